"""Processes that stay alive between tests: `groups(4).run(fn, *args)`."""

import pytest

import engine_calls
from processes import Groups


@pytest.fixture(scope="session")
def groups():
    groups = Groups()
    yield groups
    groups.close()


@pytest.fixture
def pool(groups):
    """Four processes that are a process group of torch."""
    assert groups(4).run(engine_calls.begin, timeout=120) == [4] * 4
    return groups(4)
