"""The user's line: which file and line of the user's code is running, past the frames of this library and others."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FrameType

_LIBRARIES = frozenset(("shardwright", "optree", "numpy", "jax", "torch"))  # their frames are never the user's
_STDLIB = os.path.dirname(contextlib.__file__) + os.sep


_located: ContextVar[str] = ContextVar("located", default="")


@contextlib.contextmanager
def located(line: str) -> Iterator[None]:
    """Inside, `source_line` is this line of a file that is not Python's."""
    token = _located.set(line)
    try:
        yield
    finally:
        _located.reset(token)


def source_line() -> str:
    """The line of the user's code that is running, as file:line; "" if none is, as in a thread that only runs ours."""
    return _located.get() or _line(_users_frame()[1])


def user_depth() -> int:
    """How many frames up the user's code is: the `stacklevel` of a warning that the caller gives."""
    return max(_users_frame()[0], 1)


def user_frame() -> FrameType | None:
    """The frame of the user's code that is running."""
    return _users_frame()[1]


def line_at(code: CodeType, offset: int) -> str:
    """file:line of an instruction, by the code object and the offset that a frame had: cheaper to keep than its line."""
    line = next((line for start, end, line in code.co_lines() if start <= offset < end and line), code.co_firstlineno)
    return f"{code.co_filename}:{line}"


def _line(frame: FrameType | None) -> str:
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


MOST_KNOWN = 20_000
_known: dict[CodeType, bool] = {}  # whether code is the user's


def _users_frame() -> tuple[int, FrameType | None]:
    """How many frames above the caller a user's code is, and that frame."""
    depth = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        users = _known.get(code)
        if users is None:
            if len(_known) > MOST_KNOWN:
                _known.clear()
            users = _known[code] = _is_users(frame)
        if users:
            break
        depth, frame = depth + 1, frame.f_back
    return depth, frame


def _is_users(frame: FrameType) -> bool:
    """Libraries are known by their package, and the standard library, whose names users may take, by its folder."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _LIBRARIES and not _in_stdlib(frame.f_code.co_filename)


@lru_cache(maxsize=4096)
def _in_stdlib(file: str) -> bool:
    installed = ("site-packages", "dist-packages")  # by users, in a folder of the standard library
    return file.startswith("<frozen ") or (
        file.startswith(_STDLIB) and not file.removeprefix(_STDLIB).startswith(installed)
    )
