"""`Explanation`: what a program will do, before anyone pays for it: every step, what it moves, what it holds, and why."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from shardwright.lowering import Plan
from shardwright.plan import Strategy, lower_bound, strategies
from shardwright.program import Fused, Node, Program, is_collective, peak_bytes, steps_of

MOST_SHOWN = 5  # strategies of an operation that are printed
FEW = 3  # operations of a program whose strategies are printed with it


@dataclass(frozen=True)
class Row:
    """One step: an operation on shards, or a collective."""

    operation: str
    source: str  # file:line
    operands: tuple[str, ...]
    results: tuple[str, ...]
    collective: str  # its name and axes; "" where a step is local
    groups: str  # how many groups of how many devices
    bytes: int  # that a device receives
    lower_bound: int
    time: float
    memory: int  # bytes that a device holds once the step is done
    origins: dict[str, str] = field(default_factory=dict)  # for each axis of the result where it comes from
    plan: Plan | None = None
    inside: str = ""  # the loops and branches that it is a part of
    times: int = 1  # how often it runs; of a while loop's body once for every round

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
        shapes = [layout.shape for layout in plan.given]
        shardings = [layout.sharding for layout in plan.given]
        looked = strategies(plan.rule, shardings, shapes, [d.itemsize for d in plan.dtypes], plan.wanted)
        unlike = {tuple(s.placement.items()): s for s in chain([plan.strategy], looked)}
        return tuple(unlike.values())

    @property
    def reason(self) -> str:
        """Why the chosen strategy won."""
        if self.chosen is None:
            return ""
        others = [s for s in self.considered if s.placement != self.chosen.placement]
        if not others:
            return "it is the only one"
        best = min(others, key=lambda s: s.rank)
        if best.time > self.chosen.time:
            return f"it takes {_time(self.chosen.time)}, the next best {_time(best.time)}"
        same = f"it takes {_time(self.chosen.time)} like the next best"
        if best.rank[1] > self.chosen.rank[1]:
            return f"{same}, but puts {_time(best.rank[1] - self.chosen.rank[1])} of it off until the result is read"
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

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as the table prints it."""
        what = f"{self.inside}{self.collective or self.operation}({', '.join(self.operands)})"
        moved = (f"{self.bytes:,}", f"{self.lower_bound:,}") if self.collective or self.bytes else ("", "")
        name = self.source.rpartition(":")
        place = f"{Path(name[0]).name}:{name[2]}" if name[0] else ""
        return (place, what, ", ".join(self.results), self.groups, *moved, _time(self.time), f"{self.memory:,}")


HEAD = ("source", "step", "result", "groups", "bytes", "bound", "time", "held")


@dataclass(frozen=True)
class Explanation:
    """The steps of a program in order, with totals and what was decided on the way."""

    rows: tuple[Row, ...]
    peak_bytes: int  # the most that a device holds at a time
    total_bytes: int  # that a device receives in all: of branches the dearer, of a while loop one round
    total_time: float  # seconds of communication in all
    notes: tuple[str, ...] = ()

    @property
    def operations(self) -> tuple[Row, ...]:
        """The rows that compute."""
        return tuple(row for row in self.rows if row.plan is not None)

    @property
    def collectives(self) -> tuple[Row, ...]:
        """The rows that communicate."""
        return tuple(row for row in self.rows if row.bytes)

    def _total(self) -> str:
        return (
            f"{len(self.rows)} steps; a device receives {self.total_bytes:,} B in {_time(self.total_time)} (communication "
            f"only) and holds at most {self.peak_bytes:,} B"
        )

    def __str__(self) -> str:
        table = [HEAD, *(row.cells for row in self.rows)]
        widths = [max(len(cells[at]) for cells in table) for at in range(len(HEAD))]
        left = {0, 1, 2, 3}
        lines = []
        few = len(self.operations) <= FEW
        for cells, row in zip(table, (None, *self.rows), strict=True):
            fitted = (_fit(c, w, at in left) for at, (c, w) in enumerate(zip(cells, widths, strict=True)))
            lines.append("  ".join(fitted).rstrip())
            if few and row is not None and row.plan is not None:
                lines.append(row.strategies)
        return "\n".join([*lines, *self.notes, self._total()])

    def _repr_html_(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        rows = "".join(line(row.cells, "td") for row in self.rows)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f"<table><thead>{line(HEAD, 'th')}</thead><tbody>{rows}</tbody></table>"
            f"{f'<ul>{notes}</ul>' if notes else ''}<p>{html.escape(self._total())}</p>"
        )


def _fit(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def explained(program: Program) -> Explanation:
    """The explanation of a final program."""
    peak, held = peak_bytes(program, program.nodes)
    rows: list[Row] = []
    notes = list(program.notes)
    received, time, most = 0, 0.0, peak
    for node, memory in zip(program.nodes, held, strict=True):
        own = _rows(node, memory, program)
        rows += own
        received += sum(row.bytes for row in own)
        time += sum(row.time for row in own)
        parts = {name: explained(part) for name, part in programs_inside(node).items()}
        if not parts:
            continue
        rounds = node.how.get("rounds", 1)
        for name, part in parts.items():
            lead = f"{node.op} {name}{f' × {rounds}' if node.op == 'scan' else ''}: "
            rows += [replace(row, inside=lead + row.inside, times=row.times * rounds) for row in part.rows]
            notes += part.notes
        combine = max if node.op == "cond" else sum
        received += rounds * combine(part.total_bytes for part in parts.values())
        time += rounds * combine(part.total_time for part in parts.values())
        most = max(most, memory + max(part.peak_bytes for part in parts.values()))
    return Explanation(tuple(rows), most, received, time, tuple(notes))


def programs_inside(node: Node) -> dict[str, Program]:
    """The programs of a loop or a choice."""
    return {k: p for k, p in node.how.items() if isinstance(p, Program)} if isinstance(node.how, dict) else {}


def _rows(node: Node, memory: int, program: Program) -> list[Row]:
    operands = tuple(str(x.type) if isinstance(x, Node) else repr(x) for x in node.inputs)
    results = tuple(map(str, node.types))
    name = node.attrs.get("name", node.op)
    origins = {
        axis: program.origins.get(node, {}).get(axis, f"{name}, by cost")
        for kind in node.types
        if kind.sharding is not None
        for axis in kind.sharding.axes
    }
    if is_collective(node) or isinstance(node.how, Fused):
        steps = steps_of(node)
        bound = sum(lower_bound(s.source, s.result, s.shape, s.itemsize) for s in steps)
        over = f"{node.op} {','.join(steps[0].axes)}".rstrip()
        moved = sum(s.received for s in steps)
        row = Row(
            node.op, node.source, operands, results, over, steps[0].groups, moved, bound, node.how.time, memory, origins
        )
        return [row]
    if isinstance(node.how, Plan):
        fetched = node.how.strategy.fetched
        moved, time = sum(c.bytes for c in fetched), sum(c.time for c in fetched)
        over = ", ".join(f"{name} {c.name} {','.join(c.axes)}" for c in fetched if c.bytes)
        return [Row(name, node.source, operands, results, over, "", moved, moved, time, memory, origins, node.how)]
    if isinstance(node.how, dict):
        return [Row(name, node.source, operands, results, "", "", 0, 0, 0.0, memory, origins)]
    return []


def _time(seconds: float) -> str:
    if not seconds:
        return "0 s"
    return f"{seconds * 1e6:.4g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
