"""Launched processes for tests: groups that stay alive between tests, and what a process leaves behind."""

import os
import time
from contextlib import suppress
from pathlib import Path

from shardwright.launching import Processes


class Groups:
    """Groups of processes by their number, started when first asked for and again after one was closed."""

    def __init__(self):
        self._groups = {}

    def __call__(self, processes):
        group = self._groups.get(processes)
        if group is None or group.closed:
            group = self._groups[processes] = Processes(processes)
        return group

    def close(self):
        for group in self._groups.values():
            group.close()


def wait_until(condition, seconds=20):
    """Wait for a condition; an assertion fails if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def children(pid=None):
    """The process ids of the children of a process (of this one by default), zombies included."""
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    found: set[int] = set()
    for task in tasks.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))
