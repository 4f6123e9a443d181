"""Processes that stay alive between tests: `groups(4).run(fn, *args)`."""

import pytest

from processes import Groups


@pytest.fixture(scope="session")
def groups():
    groups = Groups()
    yield groups
    groups.close()
