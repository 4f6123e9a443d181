"""What happens on mesh devices, told to whoever watches: the checklist listens here."""

import sys
from collections.abc import Callable
from typing import Any

Watcher = Callable[[str, Any, str, dict[str, Any]], None]
watchers: list[Watcher] = []


def note(what: str, subject: Any, **details: Any) -> None:
    """Tell watchers of an event, with the line of code that caused it."""
    if watchers:
        line = _line()
        for watcher in watchers:
            watcher(what, subject, line, details)


def _line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "shardwright":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
