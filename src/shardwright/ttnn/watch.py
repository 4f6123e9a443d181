"""Events on mesh devices, sent to watchers such as the checklist."""

import sys
from collections.abc import Callable
from typing import Any

Watcher = Callable[[str, Any, str, dict[str, Any]], None]
watchers: list[Watcher] = []


def note(what: str, subject: Any, **details: Any) -> None:
    """Sends an event to all watchers, with the line of code that caused it."""
    if watchers:
        line = _line()
        for watcher in watchers:
            watcher(what, subject, line, details)


def _line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "shardwright":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
