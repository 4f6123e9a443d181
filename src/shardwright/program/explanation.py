"""`Explanation`: what a program will do, before it runs: every step, what it moves, what a device holds, and why.

The table also serves programs that others compiled, of which some figures are unknown: those are None.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from shardwright.engines import padded_bytes
from shardwright.plan import Each, Fused, LocalStep, OperationPlan, Step, Strategy, strategies
from shardwright.program.memory import beside, peak_bytes
from shardwright.program.node import Compute, Cond, Node, Program, Rounds, programs_in, short_source

MOST_SHOWN = 5  # strategies of an operation that are printed
FEW = 3  # operations of a program whose strategies are printed with it


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
    time: float | None
    memory: int | None  # bytes that a device holds at most while the step runs, in all
    origins: dict[str, str] = field(default_factory=dict)  # for each axis of the result where it comes from
    plan: OperationPlan | None = None
    inside: str = ""  # the loops and branches that it is a part of
    times: int = 1  # how often it runs; of a while loop's body once for every round
    counted: int | None = None  # bytes that the busiest device did receive, each time; only `measure` knows
    padded: int | None = None  # bytes with the padding of the JAX engine's rounds
    stack: str = ""  # the names of the functions that it is inside of, as JAX writes them

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
            return f"it takes {_time(self.chosen.time)}, the next best {_time(best.time)}"
        same = f"it takes {_time(self.chosen.time)} like the next best"
        now = best.rank[2] - self.chosen.rank[2]
        if now > 0:
            return f"{same}, but defers {_time(now)} of it until the result is read"
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
                f"  {mark} {strategy}; {strategy.bytes:,} B, {_time(strategy.time)}, {strategy.memory:,} B held"
            )
        if len(ranked) > MOST_SHOWN:
            lines.append(f"    … and {len(ranked) - MOST_SHOWN} that take longer (see .considered)")
        return "\n".join([*lines, f"  chosen because {self.reason}"])

    def _step(self) -> str:
        """What is done; a step that has another name than its operation after the name that users know."""
        name = self.collective or self.operation
        return name if self.plan is None or name.startswith(self.plan.title) else f"{self.plan.title}: {name}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as the table prints it, in the columns that every table has."""
        return tuple(map(self.cell, HEAD))

    def cell(self, column: str) -> str:
        """What the table prints in a column; "" where nothing is to say, "?" where nothing is known."""
        if column in ("bytes", "bound", "counted", "padded") and not self.collective:
            return ""
        if column == "counted":
            return f"{self.counted:,}" if self.counted is not None and self.times else ""
        return _CELLS[column](self)


def _count(number: int | None, unknown: str = "") -> str:
    return unknown if number is None else f"{number:,}"


_CELLS: dict[str, Callable[[Row], str]] = {
    "source": lambda row: short_source(row.source),
    "name stack": lambda row: row.stack,
    "step": lambda row: f"{row.inside}{row._step()}({', '.join(row.operands)})",
    "result": lambda row: ", ".join(row.results),
    "groups": lambda row: row.groups,
    "bytes": lambda row: _count(row.bytes, "?"),
    "bound": lambda row: _count(row.lower_bound),
    "padded": lambda row: _count(row.padded),
    "time": lambda row: "" if row.time is None else _time(row.time),
    "held": lambda row: _count(row.memory),
}
HEAD = ("source", "step", "result", "groups", "bytes", "bound", "time", "held")
_LEFT = {"source", "name stack", "step", "result", "groups"}


@dataclass(frozen=True)
class Explanation:
    """The steps of a program in order, with totals and what was decided on the way.

    Programs are pure, so equal operations are one step, and what no output needs is dropped: `shared` and `dead` count them.
    """

    rows: tuple[Row, ...]
    peak_bytes: int  # the most that a device holds at a time
    total_bytes: int  # that a device receives in all: of branches the dearer, of a while loop one round
    total_time: float | None  # seconds of communication in all
    notes: tuple[str, ...] = ()
    shared: int = 0  # operations that were asked for again
    dead: int = 0  # operations that no output needs

    @property
    def operations(self) -> tuple[Row, ...]:
        """The rows that compute."""
        return tuple(row for row in self.rows if row.plan is not None)

    @property
    def collectives(self) -> tuple[Row, ...]:
        """The rows that communicate."""
        return tuple(row for row in self.rows if row.bytes)

    def _total(self) -> str:
        time = "unknown time" if self.total_time is None else _time(self.total_time)
        return (
            f"{len(self.rows)} steps; a device receives {self.total_bytes:,} B in {time} (communication "
            f"only) and holds at most {self.peak_bytes:,} B{self._spared()}"
        )

    def _spared(self) -> str:
        counts = ((self.shared, "asked for again"), (self.dead, "that no output needs"))
        spared = [f"{count} {what}" for count, what in counts if count]
        return f"; spared: {' and '.join(spared)}" if spared else ""

    @property
    def _head(self) -> tuple[str, ...]:
        """The columns: those that not every table has only where a row fills them."""
        head = list(HEAD)
        if any(row.counted is not None for row in self.rows):
            head.insert(head.index("time"), "counted")
        if any(row.padded is not None for row in self.rows):
            head.insert(head.index("bound"), "padded")
        if any(row.stack for row in self.rows):
            head.insert(head.index("step"), "name stack")
        if self.rows and all(row.memory is None for row in self.rows):
            head.remove("held")
        return tuple(head)

    @property
    def _table(self) -> list[tuple[str, ...]]:
        return [tuple(map(row.cell, self._head)) for row in self.rows]

    def __str__(self) -> str:
        table = [self._head, *self._table]
        widths = [max(len(cells[at]) for cells in table) for at in range(len(self._head))]
        left = [column in _LEFT for column in self._head]
        lines = []
        few = len(self.operations) <= FEW
        for cells, row in zip(table, (None, *self.rows), strict=True):
            fitted = (_fit(*cell) for cell in zip(cells, widths, left, strict=True))
            lines.append("  ".join(fitted).rstrip())
            if few and row is not None and row.plan is not None:
                lines.append(row.strategies)
        return "\n".join([*lines, *self.notes, self._total()])

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        rows = "".join(line(cells, "td") for cells in self._table)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f"<table><thead>{line(self._head, 'th')}</thead><tbody>{rows}</tbody></table>"
            f"{f'<ul>{notes}</ul>' if notes else ''}<p>{html.escape(self._total())}</p>"
        )


def _fit(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def explained(program: Program, ran: "Ran | None" = None, outside: int = 0) -> Explanation:
    """The explanation of a final program; with what `measure` saw when it ran, if it did.

    `outside` is what a device holds beside the program's own values.
    """
    memory = peak_bytes(program, program.nodes)
    rows: list[Row] = []
    notes = list(program.notes)
    received, time = 0, 0.0
    for node, before, during in zip(program.nodes, memory.before, memory.during, strict=True):
        own = [_measured(row, node, ran) for row in _rows(node, outside + during, program)]
        rows += own
        received += sum(row.bytes or 0 for row in own)
        time += sum(row.time or 0.0 for row in own)
        parts = {
            name: explained(part, ran, outside + before + beside(node.what, part))
            for name, part in programs_in(node.what).items()
        }
        if not parts:
            continue
        rounds = node.what.rounds if isinstance(node.what, Rounds) else 1
        for name, part in parts.items():
            lead = f"{node.title} {name}{f' × {rounds}' if isinstance(node.what, Rounds) else ''}: "
            times = rounds if ran is None else 1  # what ran was counted
            rows += [replace(row, inside=lead + row.inside, times=row.times * times) for row in part.rows]
            notes += part.notes
        combine = max if isinstance(node.what, Cond) else sum
        received += rounds * combine(part.total_bytes for part in parts.values())
        time += rounds * combine(part.total_time or 0.0 for part in parts.values())
    return Explanation(tuple(rows), outside + memory.peak, received, time, tuple(notes), program.shared, program.dead)


class Ran:
    """What was seen of the nodes of a program when it ran: how often each did, and what the busiest device received."""

    def __init__(self) -> None:
        self.times: dict[Node, int] = {}
        self.received: dict[Node, int] = {}

    def add(self, node: Node, received: int) -> None:
        """A node ran once."""
        self.times[node] = self.times.get(node, 0) + 1
        self.received[node] = max(self.received.get(node, 0), received)


def _measured(row: Row, node: Node, ran: Ran | None) -> Row:
    if ran is None:
        return row
    return replace(row, counted=ran.received.get(node, 0), times=ran.times.get(node, 0))


def _rows(node: Node, memory: int, program: Program) -> list[Row]:
    operands = tuple(str(x.type) if isinstance(x, Node) else repr(x) for x in node.inputs)
    results = tuple(map(str, node.types))
    origins = {
        axis: program.origins.get(node, {}).get(axis, f"{node.title}, by cost")
        for kind in node.types
        if kind.sharding is not None
        for axis in kind.sharding.axes
    }
    what = node.what
    if isinstance(what, Step | Fused | LocalStep):
        over = f"{what.name} {','.join(what.axes)}".rstrip()
        figures = what.groups, what.received, what.lower_bound, what.time
        padded = padded_bytes(what, program.mesh)
        return [
            Row(what.name, node.source, operands, results, over, *figures, memory, origins, node.plan, padded=padded)
        ]
    if isinstance(what, Compute | Each) or programs_in(what):
        return [Row(node.title, node.source, operands, results, "", "", 0, 0, 0.0, memory, origins, node.plan)]
    return []


def _time(seconds: float) -> str:
    if not seconds:
        return "0 s"
    return f"{seconds * 1e6:.4g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
