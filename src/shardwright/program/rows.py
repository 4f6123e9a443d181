"""`Row`: one step of a program as `explain` shows it, with its price; how bytes and seconds are written."""

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
    bytes: int  # that the busiest device receives
    lower_bound: int
    time: float  # seconds of communication
    memory: int  # bytes that a device holds at most while the step runs, in all
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

    @property
    def seconds(self) -> float:
        """Seconds of communication and computation."""
        return self.time + self.compute

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
        """The row as the table prints it."""
        what = f"{self.inside}{self.label}({', '.join(self.operands)})"
        moved = (f"{self.bytes:,}", f"{self.lower_bound:,}") if self.collective else ("", "")
        counted = () if self.counted is None else (f"{self.counted:,}" if self.collective and self.times else "",)
        return (
            short_source(self.source),
            what,
            ", ".join(self.results),
            self.groups,
            *moved,
            *counted,
            duration(self.time),
            f"{duration(self.compute)}{REDUNDANT if self.redundancy > 1 and self.compute else ''}",
            self.limit,
            f"{self.memory:,}",
        )


def duration(seconds: float) -> str:
    """Seconds with a unit: 12.34 µs.

    >>> duration(1.234e-5), duration(0.5), duration(0)
    ('12.34 µs', '500 ms', '0 s')
    """
    if not seconds:
        return "0 s"
    if seconds >= 1:
        return f"{seconds:.4g} s"
    if seconds < 1e-9:
        return f"{seconds * 1e9:.2f} ns"
    unit, scale = ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6) if seconds >= 1e-6 else ("ns", 1e9)
    return f"{seconds * scale:.4g} {unit}"


def size(count: float) -> str:
    """Bytes with a unit: 1.23 MB.

    >>> size(1234567), size(96), size(80e9)
    ('1.23 MB', '96 B', '80 GB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
