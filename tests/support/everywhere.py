"""Properties run by processes that share the work: all draw the same examples, one after the other."""

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings

TESTS = Path(__file__).parents[1]


@cache
def module_at(path):
    """A file of tests as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, TESTS / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_property(path, test_name, examples, parameters=None, number=0):
    """Run a property on every process, on meshes with a device for each; the seed makes all draw the same examples."""
    import strategies

    strategies.ENGINE[:] = ["torch"]
    strategies.DEVICES[:] = [int(os.environ["WORLD_SIZE"])]
    test = getattr(module_at(path), test_name)
    test._hypothesis_internal_use_settings = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    seed(number)(test)(**(parameters or {}))
    return examples


def run_cases(names, examples):
    """Operations by the names of their cases."""
    for name in names:
        run_property(
            "property/test_operations.py", "test_an_operation_gives_what_numpy_gives", examples, {"name": name}
        )
    return len(names)
