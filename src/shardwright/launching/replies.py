"""What launched processes reply to one call: waiting for it, and which of several errors was the first."""

import contextlib
import pickle
import queue
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import LaunchError
from shardwright.launching.calls import Call
from shardwright.launching.member import Inbox, Member

ASK = 3.0  # seconds to wait for the stacks of processes that have not finished
# A death is noticed in the parent, an error is timed where it is raised. Errors up to so many seconds before the notice
# count as consequences of the death, as when connections to the dead process break.
NOTICE = 0.2


@dataclass(frozen=True, slots=True)
class Failure:
    """An error or a death: when, and as a line of text."""

    at: float
    rank: int
    line: str
    traceback: str = ""
    pickled: bytes | None = None


class Replies:
    """The replies of all members to one call, as they arrive."""

    def __init__(self, members: Sequence[Member], call: Call) -> None:
        self.unfinished = {member.rank for member in members}
        self.failures: list[Failure] = []
        self.died = False  # whether some process did
        self._call = call
        self._members = members
        self._inbox: Inbox = queue.SimpleQueue()
        self._returned: dict[int, bytes] = {}
        self._stacks: dict[int, str] = {}
        message = call.message()
        for member in members:
            member.start(message, self._inbox)

    def wait(self, deadline: float | None) -> None:
        """Wait for all replies, the first failure, or the deadline."""
        while self.unfinished and not self.failures and self._receive(deadline):
            pass

    def wait_for_all(self, deadline: float | None) -> None:
        """Wait for all replies or the deadline."""
        while self.unfinished and self._receive(deadline):
            pass

    def outcomes(self) -> list[Any]:
        """What every process returned, or its failure as an error, in rank order."""
        failures = {failure.rank: failure for failure in self.failures}
        return [self._error([failures[r]]) if r in failures else self._result(r) for r in range(len(self._members))]

    def first_failure(self) -> LaunchError | None:
        """The failure that came first in time as an error, the others as lines of its text; None if there are none."""
        return self._error(sorted(self.failures, key=lambda failure: failure.at)) if self.failures else None

    def time_out(self, timeout: float | None) -> LaunchError:
        """The error for processes that have not finished, with where they are."""
        unfinished = sorted(self.unfinished)
        for rank in unfinished:
            self._members[rank].ask_for_stack()
        deadline = time.monotonic() + ASK
        while not self._stacks.keys() >= self.unfinished and self._receive(deadline):
            pass
        named = f"rank{'s' * (len(unfinished) > 1)} {', '.join(map(str, unfinished))} of {len(self._members)}"
        parts = [
            f"{named} had not finished {self._call.name} after {timeout:g} s. Give a longer timeout= if it needs more."
        ]
        parts += [f"rank {rank} is at:\n{self._stacks[rank].rstrip()}" for rank in unfinished if self._stacks.get(rank)]
        return LaunchError("\n\n".join(parts), unfinished[0])

    def _result(self, rank: int) -> Any:
        try:
            return pickle.loads(self._returned.pop(rank))
        except Exception as error:
            text = f"what {self._call.name} returned on rank {rank} can't be loaded: {type(error).__name__}: {error}"
            raise LaunchError(text, rank) from error

    def _error(self, failures: Sequence[Failure]) -> LaunchError:
        first, *others = failures
        parts = [first.line, first.traceback.rstrip()] if first.traceback else [f"{first.line}."]
        if others:
            parts.append("\n".join(["Afterwards:", *(failure.line.partition("\n")[0] for failure in others)]))
        error = LaunchError("\n\n".join(parts), first.rank)
        if first.pickled is not None:
            with contextlib.suppress(Exception):  # some exceptions can be pickled and not loaded again
                error.__cause__ = pickle.loads(first.pickled)
        return error

    def _receive(self, deadline: float | None) -> bool:
        """Take one reply; False at the deadline."""
        try:
            rank, at, reply = self._inbox.get(
                timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
            )
        except queue.Empty:
            return False
        kind, *content = reply
        if kind == "stack":
            (self._stacks[rank],) = content
            return True
        self.unfinished.discard(rank)
        if kind == "returned":
            (self._returned[rank],) = content
        elif kind == "raised":
            at, error, text, traceback, pickled = content
            line = f"rank {rank} of {len(self._members)} raised {error}: {text}"
            self.failures.append(Failure(at, rank, line, traceback, pickled))
        else:
            self.died = True
            self.failures.append(Failure(at - NOTICE, rank, f"rank {rank} {_ending(*content)}"))
        return True


def _ending(status: int) -> str:
    """How a process ended, from its exit status."""
    if status >= 0:
        return f"ended with exit status {status} before it returned a result"
    try:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"was killed by signal {-status}"
