"""The user's line: which file and line of the user's code is running, past the frames of this library and others."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType, FrameType

_LIBRARIES = frozenset(("shardwright", "optree", "numpy", "jax", "torch"))  # their frames are never the user's
_STDLIB = os.path.dirname(contextlib.__file__) + os.sep


class Line(str):
    """A source line of an imported model: file:line, and the path of the module or name stack that it ran in.

    >>> Line("model.py:12", "layers.0.attention").stack
    'layers.0.attention'
    """

    __slots__ = ("stack",)
    stack: str

    def __new__(cls, line: str, stack: str = "") -> "Line":
        """The line, with the path."""
        made = super().__new__(cls, line)
        made.stack = stack
        return made


_located: ContextVar[str] = ContextVar("located", default="")


@contextlib.contextmanager
def located(line: str) -> Iterator[None]:
    """Inside, `source_line` is this line: of a file that is not Python's, or of a model that was imported."""
    token = _located.set(line)
    try:
        yield
    finally:
        _located.reset(token)


def source_line() -> str:
    """The line of the user's code that is running, as file:line; "" if none is, as in a thread that only runs ours."""
    located = _located.get()
    if located:
        return located
    frame = user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_depth() -> int:
    """How many frames up the user's code is: the `stacklevel` of a warning that the caller gives."""
    users, depth = user_frame(), 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not users and frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


MOST_KNOWN = 20_000
_known: dict[tuple[str, str], bool] = {}  # whether a file that runs as a module is the user's; code objects hash slowly


def user_frame() -> FrameType | None:
    """The frame of the user's code that is running, above the function of this library that asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        key = (frame.f_globals.get("__name__", ""), frame.f_code.co_filename)
        users = _known.get(key)
        if users is None:
            if len(_known) > MOST_KNOWN:
                _known.clear()
            users = _known[key] = _is_users(*key)
        if users:
            return frame
        frame = frame.f_back
    return None


def line_at(code: CodeType, offset: int) -> str:
    """file:line of an instruction, by the code object and the offset that a frame had: cheaper to keep than its line."""
    line = next((line for start, end, line in code.co_lines() if start <= offset < end and line), code.co_firstlineno)
    return f"{code.co_filename}:{line}"


def _is_users(module: str, file: str) -> bool:
    """Libraries are known by their package, and the standard library, whose names users may take, by its folder."""
    return str(module).partition(".")[0] not in _LIBRARIES and not _in_stdlib(file)


def _in_stdlib(file: str) -> bool:
    installed = ("site-packages", "dist-packages")  # by users, in a folder of the standard library
    return file.startswith("<frozen ") or (
        file.startswith(_STDLIB) and not file.removeprefix(_STDLIB).startswith(installed)
    )
