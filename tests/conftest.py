"""Hypothesis runs the same examples every time, no test depends on timing, and JAX has 8 virtual devices."""

import os

from hypothesis import HealthCheck, settings

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("suite")

collect_ignore = ["conformance/array_api_module.py"]  # for the public suite: importing it enters a mesh for good
