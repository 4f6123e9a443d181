"""`no_collection`: planning makes many objects that stay and hardly any cycles, so looking for garbage meanwhile is in vain."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's search for cycles of garbage is off inside, if it was on; also where one is inside another."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
