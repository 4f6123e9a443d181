"""Every strategy of an operation, wherever its operands lie: what a planner of whole programs chooses from.

Each axis of the mesh, whole, goes to a factor, to nothing, or stays partial in a linear operation. Which of them an operation
then has depends on no operand. What a strategy takes once its operands are in place is the price of its local computation
and of what devices exchange meanwhile: the same figures that `explain` shows.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardwright.caches import MIB, Cache
from shardwright.kernels import KERNELS
from shardwright.mesh import Mesh
from shardwright.ops import OPS, Attrs
from shardwright.plan.code import Local, Slot
from shardwright.plan.factors import PARTIAL, Placement
from shardwright.plan.operation import OperationPlan, canonical, problem_of
from shardwright.plan.problem import Problem, work_of
from shardwright.plan.steps import Regroup
from shardwright.plan.strategy import Strategy, in_place, strategy_for
from shardwright.sharding import P, Sharding, layout_of

Shape = tuple[int, ...]
DType = np.dtype[Any]


class Option(NamedTuple):
    """One strategy: where operands and results lie, the seconds it takes once operands are there and those of computation
    among them, the bytes that a device holds of operands, results and what lies between, and whether it is one computation."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    seconds: float
    compute: float
    memory: int
    strategy: Strategy
    is_single: bool


class Instant(NamedTuple):
    """What a device holds in one step of an operation: the bytes of all but its operands, and the operands that it reads."""

    own: int
    operands: tuple[int, ...]  # by number, of the operands that are arrays


_options: Cache[Any, tuple[Option, ...]] = Cache(limit=64 * MIB, size=lambda found: 1000 + 1500 * len(found))


def options_of(name: str, kinds: Sequence[Any], attrs: Attrs, mesh: Mesh) -> tuple[Option, ...]:
    """Every strategy of an operation on operands, given as (shape, dtype) or as scalars; made once.

    >>> f4 = np.dtype("f4")
    >>> [str(o.results[0].spec) for o in options_of("negative", [((4, 3), f4)], Attrs(), Mesh(x=4))]
    ["P('x', None)", 'P(None, None)', 'P(None, None)']
    """
    kinds = _canonical_kinds(name, kinds, attrs)
    key = (name, *[kind if isinstance(kind, tuple) else (type(kind), repr(kind)) for kind in kinds], attrs.key, mesh)
    found = _options.get(key)
    if found is None:
        found = tuple(sorted(_Enumeration(name, kinds, attrs, mesh).options(), key=_order))
        _options.put(key, found)
    return found


def instants_of(
    name: str, kinds: Sequence[Any], attrs: Attrs, mesh: Mesh, options: Sequence[Option]
) -> list[tuple[Instant, ...]]:
    """For each of some options of an operation what a device holds in each of its steps; none where the result is the operand.

    >>> f4, mesh = np.dtype("f4"), Mesh(x=2)
    >>> kinds = [((4, 4), f4)] * 2
    >>> instants_of("add", kinds, Attrs(), mesh, options_of("add", kinds, Attrs(), mesh))[0]
    (Instant(own=32, operands=(0, 1)),)
    """
    enumeration = _Enumeration(name, _canonical_kinds(name, kinds, attrs), attrs, mesh)
    return [tuple(enumeration.instants(option)) for option in options]


def _canonical_kinds(name: str, kinds: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    if all(isinstance(kind, tuple) for kind in kinds):
        return kinds
    result = OPS[name].dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)[0]
    return [kind if isinstance(kind, tuple) else canonical(kind, result, name == "divide") for kind in kinds]


def _order(option: Option) -> Any:
    """Of equals the first is taken: what holds less, then by names."""
    shardings = (*option.results, *option.operands)
    return option.memory, [(s.dims, s.partial) for s in shardings]


def places(mesh: Mesh, shape: Shape, any_order: bool = False) -> tuple[Sharding, ...]:
    """Every way to lay a tensor out in blocks, each axis whole on a dim or on none, no dim in more blocks than elements; those
    that hold less first. Axes on a dim are in the order of the mesh or, after those, in any.

    >>> [str(s.spec) for s in places(Mesh(x=2, y=2), (2, 3))]
    ["P('x', 'y')", "P('y', 'x')", "P('x', None)", "P('y', None)", "P(None, 'x')", "P(None, 'y')", 'P(None, None)']
    >>> [str(s.spec) for s in places(Mesh(x=2, y=2), (4,), any_order=True)]
    ["P(('x', 'y'))", "P(('y', 'x'))", "P('x')", "P('y')", 'P(None)']
    """
    axes = [axis for axis, n in mesh.sizes.items() if n > 1]
    found = []
    for choice in itertools.product([*range(len(shape)), None], repeat=len(axes)):
        dims = [tuple(axis for axis, d in zip(axes, choice, strict=True) if d == dim) for dim in range(len(shape))]
        if all(mesh.axis_size(some) <= n for some, n in zip(dims, shape, strict=True) if some):
            orders = itertools.product(*map(itertools.permutations, dims)) if any_order else [dims]
            found += [(at > 0, Sharding(mesh, P(*order)).for_shape(shape)) for at, order in enumerate(orders)]
    return tuple([s for _, s in sorted(found, key=lambda entry: (entry[1].local_size(shape), entry[0]))])


class _Enumeration:
    """The strategies of one operation on operands of known shapes."""

    def __init__(self, name: str, kinds: Sequence[Any], attrs: Attrs, mesh: Mesh) -> None:
        self.op, self.kinds, self.attrs, self.mesh = OPS[name], kinds, attrs, mesh
        self.count = sum(isinstance(kind, tuple) for kind in kinds)
        self._problems: dict[tuple[tuple[str, ...], ...], Problem] = {}
        self.rule = rule = self._problem(((),) * self.count).rule
        self.plain = name in KERNELS and not (
            rule.rows or rule.prefix or rule.agrees or rule.selects or rule.normalizes
        )
        used = rule.inputs[:1] if rule.keeps else (*rule.inputs, *rule.outputs)
        named = {factor for dims in used for dim in dims for factor in dim} - {*rule.owners}
        self.factors = [f for f in rule.sizes if f in named and f not in rule.whole]
        self.sizes = rule.sizes

    def _problem(self, partial: tuple[tuple[str, ...], ...]) -> Problem:
        """The operation on whole operands that are partial over some axes."""
        found = self._problems.get(partial)
        if found is None:
            left = iter(partial)
            kinds = [self._given(kind, next(left)) if isinstance(kind, tuple) else kind for kind in self.kinds]
            found, self.dtypes = problem_of(self.op, kinds, self.attrs)
            self._problems[partial] = found
        return found

    def _given(self, kind: tuple[Shape, DType], partial: tuple[str, ...]) -> Any:
        return layout_of(Sharding(self.mesh, partial=partial).for_shape(kind[0]), kind[0]), kind[1]

    def _holders(self) -> list[tuple[int, ...]]:
        """The operands that may be partial together over an axis, so that the result is."""
        axis = next((axis for axis, n in self.mesh.sizes.items() if n > 1), None)
        if axis is None or not self.count:
            return []
        constants = self._problem(((),) * self.count).rule.constants
        every = tuple(at for at in range(self.count) if at not in constants)
        found = []
        for some in dict.fromkeys([every, *((at,) for at in every)]):
            problem = self._problem(tuple((axis,) if at in some else () for at in range(self.count)))
            together = problem.rule.linear in ("add", "move")
            if some and problem.keeps_partial and (some == every if together else len(some) == 1):
                found.append(some)
        return found

    def options(self) -> Iterator[Option]:
        """All of them; those that lead to the same shardings once."""
        holders = self._holders()
        axes = [axis for axis, n in self.mesh.sizes.items() if n > 1]
        choices: list[list[Any]] = [
            [*(f for f in self.factors if self.sizes[f] >= self.mesh.sizes[axis]), None, *holders] for axis in axes
        ]
        seen = set()
        for choice in itertools.product(*choices):
            at = dict(zip(axes, choice, strict=True))
            placement: Placement = {axis: PARTIAL if isinstance(to, tuple) else to for axis, to in at.items()}
            partial = tuple(
                tuple(axis for axis, to in at.items() if isinstance(to, tuple) and i in to) for i in range(self.count)
            )
            problem = self._problem(partial)
            if any(partial) and not problem.keeps_partial:
                continue
            placed = strategy_for(problem, placement)
            if placed is None or (placed.operands, placed.results) in seen:
                continue
            seen.add((placed.operands, placed.results))
            yield self._priced(problem, placed)

    def _priced(self, problem: Problem, placed: Strategy) -> Option:
        price = in_place(problem, placed)
        work = functools.partial(work_of, problem, placed.placement)
        strategy = replace(placed, idle=0, price=price, count_work=work)
        if self.plain:
            return Option(placed.operands, placed.results, price.compute, price.compute, price.memory, strategy, True)
        plan = self._plan(strategy)
        network, compute = seconds_in_place(plan)
        most = max([instant.own for instant in self._instants(plan)], default=0)
        memory = price.memory + max(most - self._result_bytes(placed.results), 0)
        return Option(placed.operands, placed.results, network + compute, compute, memory, strategy, False)

    def _plan(self, strategy: Strategy) -> OperationPlan:
        """The operation under a strategy, its operands in place."""
        left = iter(strategy.operands)
        kinds = [(layout_of(next(left), kind[0]), kind[1]) if isinstance(kind, tuple) else kind for kind in self.kinds]
        return OperationPlan(self.op, kinds, self.attrs, strategy)

    def instants(self, option: Option) -> Iterator[Instant]:
        """What a device holds in each of an option's steps."""
        if self.plain:
            return iter([Instant(self._result_bytes(option.results), tuple(range(self.count)))])
        return self._instants(self._plan(option.strategy))

    def _result_bytes(self, results: Sequence[Sharding]) -> int:
        """The bytes that a device holds of the results."""
        every = zip(results, self.dtypes, strict=True)
        return sum([s.local_size(self.rule.out_shape(at)) * dtype.itemsize for at, (s, dtype) in enumerate(every)])

    def _instants(self, plan: OperationPlan) -> Iterator[Instant]:
        slots_of = [Slot(at) for at, kind in enumerate(self.kinds) if isinstance(kind, tuple)]
        numbers = {slot: number for number, slot in enumerate(slots_of)}
        held: dict[Slot, int] = {}  # bytes of what steps have made
        for what, inputs, outputs, _ in plan.instructions:
            slots = [slot for slot in dict.fromkeys(inputs) if isinstance(slot, Slot)]
            made = _made(what)
            held.update(zip(outputs, made, strict=True))
            if not isinstance(what, Regroup):  # whose result is the memory of its operand
                own = sum(made) + sum([held[slot] for slot in slots if slot in held])
                scratch = what.scratch if isinstance(what, Local) else 0
                yield Instant(own + scratch, tuple([numbers[slot] for slot in slots if slot in numbers]))


def _made(what: Any) -> list[int]:
    """The bytes that a device holds of each result of an instruction."""
    if not isinstance(what, Local):
        return [what.result.local_size(what.result_shape) * what.dtype.itemsize]
    every = zip(what.results, what.call.result_dtypes, strict=True)
    return [layout.sharding.local_size(layout.shape) * dtype.itemsize for layout, dtype in every]


def seconds_in_place(plan: OperationPlan) -> tuple[float, float]:
    """The communication and the computation of an operation's instructions, its operands in place."""
    chip, network, compute = plan.problem.chip, 0.0, 0.0
    for at, (what, *_) in enumerate(plan.instructions):
        if not isinstance(what, Local):
            network += what.time
        elif at + 1 == len(plan.instructions):
            compute += plan.strategy.priced.compute
        else:
            compute += chip.seconds(0.0, touched(what), what.call.result_dtypes[0])
    return network, compute


def touched(local: Local) -> int:
    """Bytes that a local computation reads and writes."""
    arrays = zip((*local.operands, *local.results), (*local.call.dtypes, *local.call.result_dtypes), strict=True)
    return sum(layout.sharding.local_size(layout.shape) * dtype.itemsize for layout, dtype in arrays)
