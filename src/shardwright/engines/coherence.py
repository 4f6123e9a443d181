"""Whether all processes make the same calls: a digest of them, and who is to blame where it differs.

A process that makes another call than the others would wait for ever, or worse, get other processes' numbers. So each keeps a
digest of its calls, which is compared before a program first runs and before elements are shown. Beside it a thread reports,
several times a second, where the process is: if one is killed, hangs or has gone another way, the others say which.
"""

import contextlib
import hashlib
import json
import math
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from shardwright.errors import CoherenceError, EngineError
from shardwright.lines import line_at, user_frame

T = TypeVar("T")
MASK = 2**64 - 1
FACTOR = 6364136223846793005  # a multiplier that mixes all bits, of Knuth's generator
BEAT = 0.3  # seconds between two reports
SILENCE = 1.5  # seconds without one after which a process counts as gone
SEARCH = 3.0  # seconds for finding out who is to blame, and for an answer of the store, which rank 0 keeps
FAREWELL = 2.0  # seconds that rank 0 waits for the others at the end
DONE = ("failed", "ended")
FEW = 64  # calls whose digests are reported
TIMEOUT = 30.0  # seconds that processes wait for one another
KEPT = 512  # calls that are remembered, to find the first that differs


def default_timeout() -> float:
    """Seconds that processes wait for one another, unless a mesh says otherwise."""
    text = os.environ.get("SHARDWRIGHT_TIMEOUT", "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise EngineError(f"SHARDWRIGHT_TIMEOUT is {text!r}; give a positive number of seconds.")
    return seconds


@lru_cache(maxsize=65536)
def key_of(text: str) -> int:
    """64 bits that stand for a call's description."""
    return struct.unpack("<Q", hashlib.blake2b(text.encode(), digest_size=8).digest())[0]


def with_values(key: int, values: Iterable[Any]) -> int:
    """64 bits for a call with values in their order: swapped or equal ones don't cancel out."""
    for value in values:
        key = ((key ^ key_of(repr(value))) * FACTOR + 1) & MASK
    return key


class Calls:
    """The calls of this process on meshes of some ranks: how many, their digest, the last of them."""

    __slots__ = ("count", "digest", "last", "ranks", "waits")

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.count, self.digest = 0, 0
        self.last: deque[tuple[int, int, Any, Any, int]] = deque(maxlen=KEPT)  # number, digest, text, the user's line
        self.waits = False  # for other processes

    def add(self, key: int, text: Any) -> None:
        """Another call; equal calls have equal keys in all processes."""
        self.count += 1
        self.digest = ((self.digest ^ key) * FACTOR + 1) & MASK
        frame = user_frame()
        if frame is None:
            self.last.append((self.count, self.digest, text, None, 0))
        else:
            self.last.append((self.count, self.digest, text, frame.f_code, frame.f_lasti))

    @property
    def key(self) -> str:
        """The ranks, as a word."""
        return "-".join(map(str, self.ranks))

    @property
    def now(self) -> str:
        """The call that is running, or ran last."""
        return _shown(self.last[-1]) if self.last else "nothing yet"

    @property
    def recent(self) -> list[tuple[int, str]]:
        """The last calls, in words, by their numbers."""
        return [(entry[0], _shown(entry)) for entry in list(self.last)]

    @property
    def digests(self) -> list[tuple[int, int]]:
        """The digests after the last few calls, by their numbers."""
        return [entry[:2] for entry in list(self.last)[-FEW:]]


def _shown(entry: tuple[int, int, Any, Any, int]) -> str:
    _, _, text, code, offset = entry
    return f"{text} ({line_at(code, offset)})" if code is not None else str(text)


class Report(NamedTuple):
    """Where a process is."""

    beat: int
    calls: dict[str, int]  # how many on meshes of which ranks
    digests: dict[str, list[tuple[int, int]]]  # after the last of them, by their numbers
    call: str
    status: str  # running, waiting, searching for who is to blame, failed or ended
    blames: list[int]  # of a failed process: the ranks that it says are to blame
    recent: list[tuple[int, str]]  # of a failed process: its last calls

    @staticmethod
    def read(text: bytes) -> "Report":
        """From what a process has written."""
        beat, calls, digests, call, status, blames, recent = json.loads(text)
        known = {key: [(n, d) for n, d in some] for key, some in digests.items()}
        return Report(beat, calls, known, call, status, blames, [(n, t) for n, t in recent])


class Reports:
    """What processes tell one another about where they are, through the store that the process group was made with."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self.rank, self.size = store, rank, size
        self.calls = Calls(tuple(range(size)))  # those that are running
        self._all = {self.calls.ranks: self.calls}
        self._beat, self._status = 0, "running"
        self._blames: list[int] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._unreachable = False  # the store: then rank 0 is gone
        self._thread = threading.Thread(target=self._run, name="shardwright reports", daemon=True)
        self.error: CoherenceError | None = None

    def calls_of(self, ranks: tuple[int, ...]) -> Calls:
        """The calls on meshes of some ranks."""
        return self._all.setdefault(ranks, Calls(ranks))

    @property
    def is_over(self) -> bool:
        """Whether this run has failed."""
        return self.error is not None

    def start(self) -> None:
        """Begin to report."""
        self._write()
        self._thread.start()

    def close(self) -> None:
        """The process ends. Rank 0, which may keep the store, gives the others a moment to end too."""
        self._stop.set()
        if self._status == "running":
            self._status = "ended"
        self._told_others()
        if self.rank == 0:
            heard = _Hearing(self.size)

            def over(found: "list[Report | None]") -> bool:
                silent = heard.silent(found)
                return all(r is None or r.status in DONE or silent[rank] for rank, r in enumerate(found))

            self._after(over, FAREWELL if self._status == "ended" else 2 * SEARCH)

    def _run(self) -> None:
        while not self._stop.wait(BEAT) and not self._unreachable:
            try:
                self._write()
            except RuntimeError:
                self._unreachable = True

    def _told_others(self) -> None:
        """Write a report; the store may have gone with rank 0, which keeps it."""
        if self._unreachable:
            return
        try:
            self._answered(self._write)
        except RuntimeError:
            self._unreachable = True

    def _answered(self, ask: Callable[[], T], limit: float = SEARCH) -> T:
        """What the store answers; RuntimeError if it does not, as when rank 0 is stopped: its client would wait for ever."""
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((ask(), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name="shardwright store", daemon=True).start()
        try:
            answer, error = answers.get(timeout=limit)
        except queue.Empty:
            raise RuntimeError(f"rank 0, which keeps the store, has not answered for {limit:g} s.") from None
        if error is not None:
            raise error
        found: T = answer
        return found

    def _write(self) -> None:
        with self._lock:
            self._beat += 1
            calls = self.calls
            recent = calls.recent if self._status == "failed" else []
            status = "waiting" if calls.waits and self._status == "running" else self._status
            known = list(self._all.values())
            counts, digests = {some.key: some.count for some in known}, {some.key: some.digests for some in known}
            report = Report(self._beat, counts, digests, calls.now, status, self._blames, recent)
            self._store.set(f"shardwright/report/{self.rank}", json.dumps(report))

    def _read(self) -> "list[Report | None]":
        """The reports of all processes; None where there is none yet, or the store is gone."""
        found: list[Report | None] = [None] * self.size

        def read() -> None:
            for rank in range(self.size):
                if (text := self._stored(f"shardwright/report/{rank}")) is not None:
                    found[rank] = Report.read(text)

        try:
            if not self._unreachable:
                self._answered(read)
        except RuntimeError:
            self._unreachable = True
        return list(found)

    def _stored(self, key: str) -> bytes | None:
        """What the store has under a key; `get` alone would wait for it."""
        return self._store.get(key) if self._store.check([key]) else None

    def meet(self, name: str, ranks: Sequence[int], timeout: float) -> None:
        """Wait until some ranks have come to make a group; RuntimeError if one is gone, or does not come in time."""
        self._answered(lambda: self._store.set(f"shardwright/meet/{name}/{self.rank}", b"here"), timeout)
        missing, heard = [rank for rank in ranks if rank != self.rank], _Hearing(self.size)
        deadline, pause = time.monotonic() + timeout, 0.001

        def absent() -> list[int]:
            return [rank for rank in missing if not self._store.check([f"shardwright/meet/{name}/{rank}"])]

        while missing := self._answered(absent, timeout):
            if pause > BEAT / 4:
                silent = heard.silent(self._read())
                if any(silent[rank] for rank in missing):
                    raise RuntimeError(f"Ranks {missing} did not come to make a group.")
            if time.monotonic() > deadline:
                raise RuntimeError(f"Waited {timeout:g} s for ranks {missing} to make a group.")
            time.sleep(pause)
            pause = min(2 * pause, BEAT / 2)

    # -- errors -------------------------------------------------------------------------------------------------------

    def diverged(self, counts: Sequence[tuple[int, int]], what: str, detail: Sequence[str] = ()) -> CoherenceError:
        """The error for processes whose calls differ; all of them see the same counts and digests. `detail` has the steps of a
        program that is about to run."""
        ranks = self.calls.ranks
        blamed = [ranks[at] for at in _minority(counts)]
        if detail:
            with contextlib.suppress(RuntimeError):  # the error then has no step
                self._answered(lambda: self._store.set(f"shardwright/program/{self.rank}", json.dumps(detail)))
        self._failed(blamed)
        reports = self._after(lambda found: all(found[r] is None or found[r].status in DONE for r in ranks), SILENCE)
        told = self._first_difference(blamed, reports)
        with contextlib.suppress(RuntimeError):
            told += self._answered(lambda: self._first_step(blamed, detail))
        return self._ends(blamed, f"{told} Compared before {what}.")

    def _first_step(self, blamed: Sequence[int], detail: Sequence[str]) -> str:
        """Where the programs of two processes differ."""
        good = next(rank for rank in self.calls.ranks if rank not in blamed)
        texts = [self._stored(f"shardwright/program/{rank}") for rank in (good, blamed[0]) if detail]
        if not texts or None in texts:
            return ""
        ours, theirs = (json.loads(text) for text in texts if text is not None)
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        other, mine = (steps[at] if at < len(steps) else "nothing more" for steps in (theirs, ours))
        if other == mine:
            return ""
        return f" Step {at} of its program is\n  {other}\nand of rank {good}'s\n  {mine}\n"

    def lost(self, cause: BaseException, what: str) -> CoherenceError:
        """The error for a collective that did not end: who is gone, or has gone another way."""
        self._status = "searching"
        self._told_others()
        heard, deadline, before = _Hearing(self.size), time.monotonic() + SEARCH, self._read()
        while True:
            now = self._read()
            silent = heard.silent(now)
            blamed = self._to_blame(now, silent, before)
            if blamed or time.monotonic() > deadline:
                break
            time.sleep(BEAT / 2)
        blamed = blamed or [rank for rank in _behind(now, self.calls) if rank != self.rank]
        self._failed(blamed)
        reason = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        if not blamed:
            return self._ends([], f"The processes lost one another in {what}: {reason}")
        told = " ".join(self._told(rank, now[rank], silent[rank]) for rank in blamed)
        return self._ends(blamed, f"{told} rank {self.rank} waited in {what}. ({reason})")

    def _to_blame(self, now: "list[Report | None]", silent: list[bool], before: "list[Report | None]") -> list[int]:
        """Ranks that made other calls, that others blame, or that are gone; none while some may still report.

        A process may have gone because another sent it what it did not expect: that one is to blame.
        """
        if self._unreachable and self.rank != 0:
            return [0]
        ranks = self.calls.ranks
        told = sorted({rank for report in now if report is not None for rank in report.blames} - {self.rank})
        gone = [r for r in ranks if silent[r] or ((it := now[r]) is not None and it.status == "ended")]
        parted = _parted(now, self.calls, ranks) or _parted(now, self.calls, [r for r in ranks if r not in gone])
        if parted or told:
            return parted or told
        has_news = [r in gone or _beat(now[r]) != _beat(before[r]) for r in self.calls.ranks if r != self.rank]
        return [rank for rank in gone if rank != self.rank] if all(has_news) else []

    def _told(self, rank: int, report: "Report | None", silent: bool) -> str:
        if report is None:
            return f"rank {rank} does not answer."
        key, own = self.calls.key, self.calls.count
        count = report.calls.get(key, 0)
        if report.status == "ended":
            return f"rank {rank} has ended after its call {count}, {report.call}."
        if silent:
            return f"rank {rank} was killed or hangs after its call {count}, {report.call}."
        if count != own or report.digests.get(key, [])[-1:] != self.calls.digests[-1:]:
            return f"rank {rank} is at its call {count}, {report.call}, while this is call {own}."
        return f"rank {rank} did not go on after its call {count}, {report.call}."

    def _first_difference(self, blamed: Sequence[int], reports: "list[Report | None]") -> str:
        """The first call that a rank to blame made and others did not, in words."""
        others = (reports[rank] for rank in self.calls.ranks if rank not in blamed)
        good = next((report for report in others if report is not None and report.recent), None)
        for rank in blamed:
            report = reports[rank]
            if good is None or report is None or not report.recent:
                continue
            theirs, ours = (dict(some.recent) for some in (report, good))
            digests = [dict(some.digests.get(self.calls.key, [])) for some in (report, good)]
            for number in sorted({*theirs, *ours}):
                words = [some.get(number, "missing") for some in (theirs, ours)]
                is_other = len({some[number] for some in digests if number in some}) > 1
                if number < max(min(theirs), min(ours)) or not (is_other or words[0] != words[1]):
                    continue
                rest = f"on other ranks {words[1]}" if words[0] != words[1] else "with other values than on other ranks"
                return f"rank {rank} has gone another way: its call {number} is {words[0]}, {rest}."
        named = " and ".join(f"rank {rank}" for rank in blamed)
        return f"{named} made other calls than the other ranks before call {self.calls.count}, {self.calls.now}."

    def _failed(self, blames: Sequence[int]) -> None:
        self._status, self._blames = "failed", list(blames)
        self._told_others()

    def _after(self, ready: Any, limit: float) -> "list[Report | None]":
        """The reports once a condition holds, or some seconds later."""
        deadline = time.monotonic() + limit
        found = self._read()
        while not ready(found) and time.monotonic() < deadline:
            time.sleep(0.02)
            found = self._read()
        return found

    def _ends(self, blamed: Sequence[int], text: str) -> CoherenceError:
        self.error = CoherenceError(f"{text} This run has ended: start all processes again.", tuple(blamed))
        return self.error


class _Hearing:
    """Which processes are silent: have not reported for a while."""

    def __init__(self, size: int) -> None:
        self._beats: list[int | None] = [None] * size
        self._since = [time.monotonic()] * size

    def silent(self, reports: "Sequence[Report | None]") -> list[bool]:
        """For each process whether it is, by its newest report."""
        now = time.monotonic()
        for rank, report in enumerate(reports):
            beat = None if report is None else report.beat
            if beat is None or beat != self._beats[rank]:  # one that never reported may still be starting
                self._beats[rank], self._since[rank] = beat, now
        return [now - since > SILENCE for since in self._since]


def _beat(report: "Report | None") -> int:
    return -1 if report is None else report.beat


def _parted(reports: "Sequence[Report | None]", calls: Calls, among: Sequence[int]) -> list[int]:
    """Of some ranks those that had another digest than most after the last call that all of them have made."""
    key, known = calls.key, {rank: report for rank in among if (report := reports[rank]) is not None}
    common = min((report.calls.get(key, 0) for report in known.values()), default=0)
    digests = {rank: dict(report.digests.get(key, [])).get(common) for rank, report in known.items()}
    ranks = [rank for rank, digest in digests.items() if digest is not None]
    return [ranks[at] for at in _minority([(common, digests[rank] or 0) for rank in ranks])] if ranks else []


def _behind(reports: "Sequence[Report | None]", calls: Calls) -> list[int]:
    """The ranks that are behind, those first that don't wait for anyone."""
    key, known = calls.key, {rank: report for rank in calls.ranks if (report := reports[rank]) is not None}
    counts = {rank: report.calls.get(key, 0) for rank, report in known.items()}
    behind = [rank for rank, count in counts.items() if count < max(counts.values())]
    return [rank for rank in behind if known[rank].status == "running"] or behind


def _minority(counts: Sequence[tuple[int, int]]) -> list[int]:
    """The members that are not where most are; of equally many, the first one's side is right."""
    sides: dict[tuple[int, int], list[int]] = {}
    for rank, at in enumerate(counts):
        sides.setdefault(at, []).append(rank)
    right = max(sides.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    return [rank for rank in range(len(counts)) if rank not in right]
