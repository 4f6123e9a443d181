"""`explain`: what operations will do, before anyone pays for it: every strategy looked at, its collectives, bytes and time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from shardwright.dispatch import recording
from shardwright.lowering import Plan
from shardwright.plan import Strategy, strategies
from shardwright.sharding import describe

MOST_SHOWN = 5  # strategies of an operation that are printed


@dataclass(frozen=True)
class Step:
    """One operation: its operands and result, the strategy taken, and the others."""

    operation: str
    source: str  # file:line
    operands: tuple[str, ...]
    results: tuple[str, ...]
    chosen: Strategy
    considered: tuple[Strategy, ...]

    @property
    def reason(self) -> str:
        """Why the chosen strategy won."""
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

    def __str__(self) -> str:
        lines = [f"{self.operation}({', '.join(self.operands)}) -> {', '.join(self.results)}    {self.source}"]
        ranked = sorted(self.considered, key=lambda s: (s.placement != self.chosen.placement, s.rank))
        for strategy in ranked[:MOST_SHOWN]:
            mark = "→" if strategy.placement == self.chosen.placement else " "
            lines.append(
                f"  {mark} {strategy}; {strategy.bytes:,} B, {_time(strategy.time)}, {strategy.memory:,} B held"
            )
        if len(ranked) > MOST_SHOWN:
            lines.append(f"    … and {len(ranked) - MOST_SHOWN} that take longer (see .considered)")
        return "\n".join([*lines, f"  chosen because {self.reason}"])


@dataclass(frozen=True)
class Explanation:
    """The operations of a function, in order."""

    rows: tuple[Step, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes that a device receives in all: a reduction put off counts where it is done, or once if it never is."""
        last = self.rows[-1].chosen.bytes if self.rows else 0
        return last + sum(row.chosen.bytes - row.chosen.put_off for row in self.rows[:-1])

    @property
    def peak_bytes(self) -> int:
        """The most that a device holds for one operation."""
        return max((row.chosen.memory for row in self.rows), default=0)

    def __str__(self) -> str:
        total = f"{len(self.rows)} operations, {self.total_bytes:,} B received by a device, at most {self.peak_bytes:,} B held"
        return "\n".join([*map(str, self.rows), total])


def explain(function: Callable[..., Any], *args: Any) -> Explanation:
    """What a function does with these arguments, operation by operation.

    A strategy is printed as `axis → factor`: factors are the index ranges of the operation's rule, m, k and n of a matmul,
    `...0`, `...1` for dims that broadcast (the last one highest), d0, d1 for dims by number, r… for pieces of a reshape.

    >>> import numpy as np, shardwright as sw
    >>> mesh = sw.Mesh(x=4)
    >>> a, b = sw.shard(np.ones((128, 64)), mesh, sw.P("x")), sw.replicate(np.ones((64, 32)), mesh)
    >>> print(explain(lambda a, b: a @ b, a, b).rows[0].reason)
    it takes 0 s, the next best 3.492 µs
    """
    with recording() as plans:
        function(*args)
    return Explanation(tuple(_step(plan, source) for plan, source in plans))


def _step(plan: Plan, source: str) -> Step:
    shapes = [layout.shape for layout in plan.given]
    shardings = [layout.sharding for layout in plan.given]
    operands = tuple(describe(s, shape, d) for s, shape, d in zip(shardings, shapes, plan.dtypes, strict=True))
    results = tuple(
        describe(layout.sharding, layout.shape, dtype)
        for layout, dtype in zip(plan.results, plan.dtypes_made, strict=True)
    )
    looked: Sequence[Strategy] = list(strategies(plan.rule, shardings, shapes, [d.itemsize for d in plan.dtypes]))
    unlike = {tuple(s.placement.items()): s for s in chain([plan.strategy], looked)}
    name = plan.call.attrs.get("name", plan.op.name)
    return Step(name, source, operands, results, plan.strategy, tuple(unlike.values()))


def _time(seconds: float) -> str:
    if not seconds:
        return "0 s"
    return f"{seconds * 1e6:.4g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.4g} ms"
