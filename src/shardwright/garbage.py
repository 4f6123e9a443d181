"""`no_collection`: lowering and planning make many objects that stay, and no cycles; to look for garbage meanwhile is vain."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_under_way = 0  # pieces of work, in all threads
_resumes = False  # whether the collector ran before the first of them


@contextmanager
def no_collection(look: bool = False) -> Iterator[None]:
    """Inside, Python does not look for cyclic garbage; afterwards it does if it did before.

    Going through all objects of the process again and again would take a fifth of the time of a large program, and more the
    larger it is. To `look` once at the end, at what is young, spares that those who come next.
    """
    global _under_way, _resumes
    with _lock:
        if not _under_way:
            _resumes = gc.isenabled()
            gc.disable()
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way and _resumes:
                if look:
                    gc.collect(1)
                gc.enable()
