"""`checked()`: inside, processes that share the work compare their calls at every one of them."""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

_ALWAYS = os.environ.get("SHARDWRIGHT_CHECK", "") not in ("", "0")
_checked: ContextVar[bool] = ContextVar("checked", default=False)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Inside, every call is compared between processes before it runs, eager ones too; slow, to find where they part.

    Without it calls are compared before a program first runs and before elements are read. `SHARDWRIGHT_CHECK=1` in the
    environment does the same for a whole run. In one process it changes nothing.
    """
    token = _checked.set(True)
    try:
        yield
    finally:
        _checked.reset(token)


def is_checked() -> bool:
    """Whether every call is compared here."""
    return _ALWAYS or _checked.get()
