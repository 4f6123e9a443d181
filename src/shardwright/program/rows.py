"""`Row`: one step of a program as `explain` shows it, with its price; how bytes and seconds are written.

Rows also serve programs that others compiled, of which some figures are unknown: those are None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from shardwright.plan import OperationPlan, Strategy, strategies
from shardwright.program.node import short_source

MOST_SHOWN = 5  # strategies of an operation that are printed
IMPLICIT, REDUNDANT = "!", "*"  # mark steps that gather unasked, and work that devices do alike


@dataclass(frozen=True)
class Row:
    """One step: a local computation, or a step that communicates."""

    operation: str
    source: str  # file:line
    operands: tuple[str, ...]
    results: tuple[str, ...]
    collective: str  # its name and axes; "" where a step is local
    groups: str  # how many groups of how many devices
    bytes: int | None  # that the busiest device receives
    lower_bound: int | None
    time: float | None  # seconds of communication
    memory: int | None  # bytes that a device holds at most while the step runs, in all
    origins: dict[str, str] = field(default_factory=dict)  # for each axis of the result where it comes from
    plan: OperationPlan | None = None
    inside: str = ""  # the loops and branches that it is a part of
    times: int = 1  # how often it runs; of a while loop's body once for every round
    counted: int | None = None  # bytes that the busiest device did receive, each time; only `measure` knows
    compute: float = 0.0  # seconds of a local step on the busiest device, by the roofline of its chip
    work: float = 0.0  # its floating-point operations
    touched: int = 0  # bytes that it reads and writes
    limit: str = ""  # what bounds it: "compute", "memory", or "network" for a step that communicates
    redundancy: int = 1  # how many devices compute the same elements
    implicit: bool = False  # whether it gathers an operand unasked
    padded: int | None = None  # bytes with the padding of the JAX engine's rounds
    stack: str = ""  # the names of the functions that it is inside of, as JAX writes them

    @property
    def seconds(self) -> float:
        """Seconds of communication and computation, as far as they are known."""
        return (self.time or 0.0) + self.compute

    @property
    def redundant(self) -> float:
        """Seconds of computation that would not be spent if devices shared the work."""
        return self.compute * (1 - 1 / self.redundancy)

    @property
    def chosen(self) -> Strategy | None:
        """The strategy of an operation."""
        return None if self.plan is None else self.plan.strategy

    @cached_property
    def considered(self) -> tuple[Strategy, ...]:
        """Every strategy that was looked at, the chosen one first."""
        plan = self.plan
        if plan is None:
            return ()
        unlike = {tuple(s.placement.items()): s for s in chain([plan.strategy], strategies(plan.problem.afresh()))}
        return tuple(unlike.values())

    @property
    def reason(self) -> str:
        """Why the chosen strategy won."""
        if self.chosen is None:
            return ""
        if self.chosen.why:
            return self.chosen.why
        others = [s for s in self.considered if s.placement != self.chosen.placement and s.idle == self.chosen.idle]
        if not others:
            return "it is the only one that leaves idle axes idle" if len(self.considered) > 1 else "it is the only one"
        best = min(others, key=lambda s: s.rank)
        if best.time > self.chosen.time:
            return f"it takes {duration(self.chosen.time)}, the next best {duration(best.time)}"
        same = f"it takes {duration(self.chosen.time)} like the next best"
        now = best.rank[2] - self.chosen.rank[2]
        if now > 0:
            return f"{same}, but defers {duration(now)} of it until the result is read"
        return f"{same}, and {self.chosen.memory:,} B of memory against {best.memory:,}"

    @property
    def strategies(self) -> str:
        """The strategies, best first, and why the chosen one won."""
        assert self.chosen is not None
        ranked = sorted(self.considered, key=lambda s: (s.placement != self.chosen.placement, s.rank))  # type: ignore[union-attr]
        lines = []
        for strategy in ranked[:MOST_SHOWN]:
            mark = "→" if strategy.placement == self.chosen.placement else " "
            lines.append(
                f"  {mark} {strategy}; {strategy.bytes:,} B, {duration(strategy.time)}, {strategy.memory:,} B held"
            )
        if len(ranked) > MOST_SHOWN:
            lines.append(f"    … and {len(ranked) - MOST_SHOWN} that take longer (see .considered)")
        return "\n".join([*lines, f"  chosen because {self.reason}"])

    @property
    def label(self) -> str:
        """What is done; a step that has another name than its operation after the name that users know."""
        name = self.collective or self.operation
        title = name if self.plan is None or name.startswith(self.plan.title) else f"{self.plan.title}: {name}"
        return f"{IMPLICIT} {title}" if self.implicit else title

    @property
    def cells(self) -> tuple[str, ...]:
        """The row in the columns that every table has."""
        return tuple(map(self.cell, HEAD))

    def cell(self, column: str) -> str:
        """What the table prints in a column; "" where nothing is to say, "?" where nothing is known."""
        if column in ("bytes", "padded", "bound", "counted") and not self.collective:
            return ""
        return _CELLS[column](self)


def _count(number: int | None, unknown: str = "") -> str:
    return unknown if number is None else f"{number:,}"


_CELLS: dict[str, Callable[[Row], str]] = {
    "source": lambda row: short_source(row.source),
    "name stack": lambda row: row.stack,
    "step": lambda row: f"{row.inside}{row.label}({', '.join(row.operands)})",
    "result": lambda row: ", ".join(row.results),
    "groups": lambda row: row.groups,
    "bytes": lambda row: _count(row.bytes, "?"),
    "padded": lambda row: _count(row.padded),
    "bound": lambda row: _count(row.lower_bound),
    "counted": lambda row: _count(row.counted) if row.times else "",
    "network": lambda row: "" if row.time is None else duration(row.time),
    "compute": lambda row: f"{duration(row.compute)}{REDUNDANT if row.redundancy > 1 and row.compute else ''}",
    "limit": lambda row: row.limit,
    "held": lambda row: _count(row.memory),
}
HEAD = ("source", "step", "result", "groups", "bytes", "bound", "network", "compute", "limit", "held")
LEFT = {"source", "name stack", "step", "result", "groups"}


def columns_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of the table with every step: those that not every table has only where a row fills them."""
    head = list(HEAD)
    if any(row.padded is not None for row in rows):
        head.insert(head.index("bound"), "padded")
    if any(row.counted is not None for row in rows):
        head.insert(head.index("network"), "counted")
    if any(row.stack for row in rows):
        head.insert(head.index("step"), "name stack")
    if rows and all(row.memory is None for row in rows):  # compiled by others: nothing is known of what it computes
        head = [column for column in head if column not in ("compute", "limit", "held")]
    return tuple(head)


def duration(seconds: float) -> str:
    """Seconds with a unit: 12.34 µs.

    >>> duration(1.234e-5), duration(0.5), duration(0)
    ('12.34 µs', '500 ms', '0 s')
    """
    if not seconds:
        return "0 s"
    if seconds >= 86400 * 9999.5:
        return f"{seconds / 86400:.0e} d"
    if seconds >= 99999.5:
        return f"{seconds / 86400:.4g} d"
    if seconds >= 9999.5:
        return f"{seconds:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if seconds * scale >= 0.99995:  # so that 999.97 ns are 1 µs
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.2g} ns"


def size(count: float) -> str:
    """Bytes with a unit: 1.23 MB.

    >>> size(1234567), size(96), size(80e9), size(999_999)
    ('1.23 MB', '96 B', '80 GB', '1 MB')
    """
    for unit, scale in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= 0.9995 * scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
