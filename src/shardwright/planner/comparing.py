"""What other placements than the best cost: one input elsewhere, or placements written by hand."""

from dataclasses import dataclass
from functools import cached_property

from shardwright.planner.easing import ROUNDING
from shardwright.planner.searching import Found
from shardwright.program.rows import duration, size
from shardwright.sharding import P, Sharding

MOST_STEPS = 5  # that are printed


@dataclass(frozen=True)
class Other:
    """The best plan with one input elsewhere, against the best plan."""

    name: str
    spec: P | Sharding
    found: Found
    best: Found

    @property
    def time(self) -> float:
        """Seconds."""
        return self.found.time

    @property
    def slower(self) -> float:
        """Seconds more than the best plan takes; 0 if that has the input there itself. Less than 0 only at places that plans
        do not choose from, such as those with pieces of axes."""
        more = self.found.time - self.best.time
        return more if abs(more) > ROUNDING * self.best.time else 0.0

    @cached_property
    def memory(self) -> int:
        """The most bytes that a device holds at a time."""
        return self.found.peak

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The steps that communicate and that the best plan lacks, each with where it is and what it takes."""
        left: dict[str, int] = {}
        for row in self.best.explanation.collectives:
            left[_step(row)] = left.get(_step(row), 0) + 1
        more: dict[str, int] = {}
        for row in self.found.explanation.collectives:
            text = _step(row)
            if left.get(text):
                left[text] -= 1
            else:
                more[text] = more.get(text, 0) + 1
        return tuple(f"{text}{f' × {count}' if count > 1 else ''}" for text, count in more.items())

    def __str__(self) -> str:
        part = f" ({100 * abs(self.slower) / self.best.time:.2g} %)" if self.best.time else ""
        word = "quicker" if self.slower < 0 else "slower"
        more = self.memory - self.best.peak
        held = f"{size(abs(more))} {'more' if more > 0 else 'less'} memory" if more else "the same memory"
        lines = [
            f"{self.name} at {self.spec}: {duration(self.time)}, {duration(abs(self.slower))}{part} {word}, {held}"
        ]
        shown = self.steps[:MOST_STEPS]
        lines += [f"  it adds {text}" for text in shown]
        if len(self.steps) > len(shown):
            lines.append(f"  and {len(self.steps) - len(shown)} more steps")
        return "\n".join(lines)


def _step(row: object) -> str:
    label = f"{row.collective} of {row.operands[0]}"  # type: ignore[attr-defined]
    source = row.source.rpartition("/")[2]  # type: ignore[attr-defined]
    return f"{label}, {duration(row.time)}{f' ({source})' if source else ''}"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Standing:
    """One placement: its seconds, the bytes that a device receives, the most that it holds."""

    name: str
    time: float
    bytes: int
    memory: int

    @classmethod
    def of(cls, name: str, found: Found) -> "Standing":
        """Of a plan."""
        explanation = found.explanation
        return cls(name, found.time, explanation.total_bytes, explanation.peak_bytes)


@dataclass(frozen=True)
class Comparison:
    """Placements under the same prices, the planned one first."""

    rows: tuple[Standing, ...]
    bound: float
    limit: float  # bytes that a device may hold

    def __str__(self) -> str:
        head = ("placement", "time", "received", "held", "over the bound")
        cells = [
            (
                row.name,
                duration(row.time),
                size(row.bytes),
                size(row.memory) if row.memory <= self.limit else f"{size(row.memory)}, too much",
                f"{row.time / self.bound:.3f} ×" if self.bound else "",
            )
            for row in self.rows
        ]
        widths = [max(len(line[at]) for line in (head, *cells)) for at in range(len(head))]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in (head, *cells)
        )
