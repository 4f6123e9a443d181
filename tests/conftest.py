"""Hypothesis runs the same examples every time, and no test depends on timing."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("suite")

collect_ignore = ["conformance/array_api_module.py"]  # for the public suite: importing it enters a mesh for good
