"""`OperationPlan`: an operation on operands of known layouts under a strategy, as a straight line of steps.

Eager calls and programs lower through here alike. First operands move to where the strategy has them; then follow the
operation's own steps: a local computation and, where devices need one another's elements, fetches and reductions around it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardwright.caches import MIB, Cache
from shardwright.errors import ArrayError
from shardwright.kernels import KERNELS, Call
from shardwright.kernels.along import lowest
from shardwright.mesh import Mesh
from shardwright.ops import OPS, Attrs, Op, Rule, finite_range, is_small, work_dtype
from shardwright.plan.code import Instruction, Local, Slot
from shardwright.plan.fetch import Fetch
from shardwright.plan.inner import (
    candidates_of,
    candidates_steps,
    extremes_steps,
    fetch_of,
    scores_of,
    scores_steps,
    totals_of,
    totals_steps,
)
from shardwright.plan.problem import Problem
from shardwright.plan.reshard import gathered_dims, move_steps
from shardwright.plan.steps import Step
from shardwright.plan.strategy import Strategy, choose
from shardwright.plan.windows import Picked
from shardwright.sharding import Layout, P, Sharding, describe, layout_of

DType = np.dtype[Any]
Kind = Any  # of an operand: (layout, dtype) of an array, or the value of a Python scalar


class ImplicitGather(NamedTuple):
    """An operand with a split dim that an operation brings to every device unasked."""

    operation: str
    operand: str
    dims: tuple[int, ...]
    bytes: int


class OperationPlan:
    """An operation on operands of known kinds, under a strategy.

    `moves` has the steps that bring each array into place, `instructions` the operation itself. Its slots are the operands,
    scalars included, then what instructions make.
    """

    def __init__(
        self,
        op: Op,
        kinds: Sequence[Kind],
        attrs: Attrs,
        strategy: Strategy | None = None,
        wanted: Sequence[Sharding | None] = (),
        trusted: bool = False,
    ) -> None:
        self.op, self.attrs, self.wanted, self.kinds = op, attrs, tuple(wanted), tuple(kinds)
        self.problem, self.dtypes = problem_of(op, kinds, attrs, wanted, trusted)
        arrays = [kind for kind in kinds if isinstance(kind, tuple)]
        self.given: tuple[Layout, ...] = tuple(layout for layout, _ in arrays)
        self.operand_dtypes: tuple[DType, ...] = tuple(dtype for _, dtype in arrays)
        self.rule: Rule = self.problem.rule
        self.strategy: Strategy = strategy or choose(self.problem)
        self.moves: tuple[tuple[Step, ...], ...] = tuple(
            move_steps(layout.sharding, there, layout.shape, dtype)
            for (layout, dtype), there in zip(arrays, self.strategy.operands, strict=True)
        )
        self.operands = tuple(
            layout_of(there, layout.shape) for there, layout in zip(self.strategy.operands, self.given, strict=True)
        )
        self.results = tuple(
            layout_of(sharding, self.rule.out_shape(at)) for at, sharding in enumerate(self.strategy.results)
        )
        builder = _Builder(self, kinds)
        self.instructions: tuple[Instruction, ...] = tuple(builder.instructions)
        self.outputs: tuple[Slot, ...] = builder.outputs

    @property
    def gathers(self) -> list[ImplicitGather]:
        """Moves that bring a split dim to every device, and fetches of all its rows."""
        return [gather for _, gather in self.gathered_operands]

    @cached_property
    def gathered_operands(self) -> list[tuple[int | None, ImplicitGather]]:
        """The same, with the array operand that is moved; None for rows fetched."""
        found: list[tuple[int | None, ImplicitGather]] = []
        if not any(self.moves) and not self.rule.rows:
            return found
        for at, (layout, dtype, there, steps) in enumerate(
            zip(self.given, self.operand_dtypes, self.strategy.operands, self.moves, strict=True)
        ):
            received = sum(step.received for step in steps)
            dims = gathered_dims(layout.sharding, there) if received else ()
            if dims:
                text = f"{describe(layout.sharding, layout.shape, dtype)} on {layout.mesh}"
                found.append((at, ImplicitGather(self.title, text, dims, received)))
        for what, *_ in self.instructions:
            if isinstance(what, Fetch) and what.gathered_dims:
                text = f"{describe(what.source, what.shape, what.dtype)} on {what.source.mesh}"
                found.append((None, ImplicitGather(self.title, text, what.gathered_dims, what.received)))
        return found

    @cached_property
    def footprint(self) -> int:
        """About how many bytes it takes, with what only it needs."""
        return 10_000 + sum(layout.footprint for layout in (*self.given, *self.operands, *self.results))

    @property
    def title(self) -> str:
        """The name that users know the operation by."""
        name: str = self.attrs.get("name", self.op.name)
        return name

    @property
    def local(self) -> Local | None:
        """The local computation, if that is all there is to the operation."""
        (first, *rest) = self.instructions or (None,)
        return first.what if first is not None and not rest and isinstance(first.what, Local) else None


class _Builder:
    """Writes the instructions of a plan: by the rule's row maps, prefix, selection, softmax and agreement, never by the name of
    the operation."""

    def __init__(self, plan: OperationPlan, kinds: Sequence[Kind]) -> None:
        self.plan, self.rule = plan, plan.rule
        self.instructions: list[Instruction] = []
        self.count = len(kinds)
        self.inputs = [Slot(at) for at in range(len(kinds))]
        arrays = [at for at, kind in enumerate(kinds) if isinstance(kind, tuple)]
        self.attrs = {key: value for key, value in plan.attrs.items() if key != "sizes"}  # sizes are the rule's
        self.layouts: dict[int, Layout] = dict(zip(arrays, plan.operands, strict=True))
        self.dtypes: dict[int, DType] = dict(zip(arrays, plan.operand_dtypes, strict=True))
        self.fetch: Fetch | None = None
        self.outputs = self._built()

    def _built(self) -> tuple[Slot, ...]:
        self._fetched()
        name, plan = self.plan.op.name, self.plan
        if self.rule.prefix and plan.operands[0].dims[self.attrs["axis"]].parts > 1:
            return self._with_totals(name)
        if self.rule.selects and plan.operands[0].dims[self.attrs["axis"]].parts > 1:
            return self._selected(name)
        if self.rule.normalizes and plan.strategy.results[0].partial:
            return self._normalized(name)
        if self.rule.agrees:
            return self._agreed(name)
        if name not in KERNELS:  # rows that are fetched are all there is to it
            return self._expanded()
        return self._local(name, self.inputs, plan.results, plan.dtypes)

    def _add(self, what: Local | Step, inputs: Sequence[Any], count: int) -> tuple[Slot, ...]:
        outputs = tuple(Slot(self.count + i) for i in range(count))
        self.count += count
        self.instructions.append(Instruction(what, tuple(inputs), outputs))
        return outputs

    def _local(
        self,
        name: str,
        inputs: Sequence[Slot],
        results: Sequence[Layout],
        dtypes: Sequence[DType],
        attrs: Mapping[str, Any] | None = None,
    ) -> tuple[Slot, ...]:
        """A kernel on slots; layouts are cut over common lanes."""
        mesh = self.plan.problem.mesh
        slots = [slot for slot in inputs if slot.number in self.layouts]  # the others are scalars
        operands = [self.layouts[slot.number] for slot in slots]
        kinds = [self.dtypes[slot.number] for slot in slots]
        axes = [axis for layout in (*operands, *results) for axis in layout.sharding.axes]
        lanes = mesh.lanes(axes)
        fine, made_fine = ([layout_of(x.sharding, x.shape, lanes) for x in some] for some in (operands, results))
        call = Call(name, self.rule, fine, made_fine, self.attrs if attrs is None else attrs, kinds, dtypes)
        made = self._add(Local(call, tuple(operands), tuple(results)), inputs, len(results))
        for slot, layout, dtype in zip(made, results, dtypes, strict=True):
            self.layouts[slot.number], self.dtypes[slot.number] = layout, dtype
        return made

    def _step(self, step: Step, slot: Slot) -> Slot:
        (made,) = self._add(step, (slot,), 1)
        self.layouts[made.number], self.dtypes[made.number] = step.there, self.dtypes[slot.number]
        return made

    # -- rows fetched -------------------------------------------------------------------------------------------------

    def _fetched(self) -> None:
        """Operands with row maps get the rows that their device's part of the result reads."""
        plan = self.plan
        if not self.rule.rows:
            return
        for at, slot in enumerate([x for x in self.inputs if x.number in self.layouts]):
            layout, dtype = plan.operands[at], plan.operand_dtypes[at]
            fill = lowest(dtype) if self.rule.fill == "lowest" else 0
            step = fetch_of(self.rule, at, layout.sharding, plan.strategy.results, layout.shape, dtype, fill)
            if step is not None:
                self.fetch = step
                if not step.is_identity:
                    self.inputs[self.inputs.index(slot)] = self._step(step, slot)

    def _expanded(self) -> tuple[Slot, ...]:
        """Moved rows: the fetched ones, once more where the result has a row several times."""
        plan, (slot,) = self.plan, self.inputs
        if self.fetch is None:
            return (slot,)
        index = [w.index if isinstance(w, Picked) else None for w in self.fetch.wanted]
        if all(rows is None for rows in index):
            return (slot,)
        tables = tuple(None if rows is None else tuple(rows.tolist()) for rows in index)
        return self._local("expand_rows", [slot], plan.results, plan.dtypes, {"index": tables})

    # -- running totals, selection, agreement --------------------------------------------------------------------------------

    def _with_totals(self, name: str) -> tuple[Slot, ...]:
        """Local running totals; the totals of all shards; what those before come to, added."""
        plan, (slot,) = self.plan, self.inputs
        layout, axis = plan.operands[0], self.attrs["axis"]
        rows, sharding = totals_of(layout.sharding, layout.shape, axis)
        (running,) = self._local(name, [slot], plan.results, plan.dtypes)
        (totals,) = self._local(f"{name} total", [slot], [layout_of(sharding, rows)], plan.dtypes)
        for step in totals_steps(self.rule, layout.sharding, layout.shape, plan.dtypes[0]):
            totals = self._step(step, totals)
        return self._local(f"{name} after", [running, totals], plan.results, plan.dtypes)

    def _selected(self, name: str) -> tuple[Slot, ...]:
        """Each shard's candidates and their places; those of all shards; the selection among these."""
        plan, (slot,) = self.plan, self.inputs
        layout = plan.operands[0]
        rows, sharding = candidates_of(self.rule, layout.sharding, layout.shape)
        each = list(self._local(f"{name} candidates", [slot], [layout_of(sharding, rows)] * 2, plan.dtypes))
        for at, dtype in enumerate(plan.dtypes):
            for step in candidates_steps(self.rule, layout.sharding, layout.shape, dtype):
                each[at] = self._step(step, each[at])
        return self._local(f"{name} merged", each, plan.results, plan.dtypes)

    def _normalized(self, name: str) -> tuple[Slot, ...]:
        """What each device finds, the largest score of all, the weights of all relative to it, and each device's part."""
        plan, dtype, sharding = self.plan, work_dtype(self.plan.dtypes[0]), self.plan.strategy.results[0]
        highest, weights = (
            layout_of(one, rows) for op in ("max", "sum") for rows, one in [scores_of(self.rule, sharding, op)]
        )
        results = [plan.results[0], highest, weights]
        total, top, weight = self._local(f"{name} parts", self.inputs, results, [dtype] * 3)
        most = top
        for step in scores_steps(self.rule, sharding, "max", dtype):
            most = self._step(step, most)
        (weight,) = self._local(f"{name} weights", [weight, top, most], [weights], [dtype])
        for step in scores_steps(self.rule, sharding, "sum", dtype):
            weight = self._step(step, weight)
        return self._local(f"{name} merged", [total, top, most, weight], plan.results, plan.dtypes)

    def _agreed(self, name: str) -> tuple[Slot, ...]:
        """Each device's extremes, those of all devices, then the data if they are in range."""
        plan, (slot,) = self.plan, self.inputs
        layout, dtype = plan.operands[0], plan.operand_dtypes[0]
        steps = extremes_steps(layout.sharding, layout.shape, dtype)
        partial = steps[0].source if steps else Sharding(layout.mesh, P(None)).for_shape((2,))
        (found,) = self._local("extremes", [slot], [layout_of(partial, (2,))], [dtype])
        for step in steps:
            found = self._step(step, found)
        return self._local(name, [slot, found], plan.results, plan.dtypes)


def problem_of(
    op: Op, kinds: Sequence[Kind], attrs: Attrs, wanted: Sequence[Sharding | None] = (), trusted: bool = False
) -> tuple[Problem, tuple[DType, ...]]:
    """What there is to choose for an operation, and its results' dtypes; `trusted` as for `plan_operation`."""
    arrays = [kind for kind in kinds if isinstance(kind, tuple)]
    scalars = [kind for kind in kinds if not isinstance(kind, tuple)]
    common_mesh(arrays, wanted)
    shapes = tuple([layout.shape for layout, _ in arrays])
    dtypes = op.dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)
    rule = _linear_for(op.fitted(shapes, attrs, scalar_side(kinds)), arrays, scalars, dtypes[0], trusted)
    shardings = [layout.sharding for layout, _ in arrays]
    return Problem(rule, shardings, shapes, [dtype for _, dtype in arrays], wanted, op, dtypes), dtypes


_plans: Cache[Any, OperationPlan] = Cache(limit=80 * MIB, size=lambda plan: plan.footprint)


def plan_operation(
    name: str, kinds: Sequence[Kind], attrs: Attrs, wanted: tuple[Sharding | None, ...] = (), trusted: bool = False
) -> OperationPlan:
    """The plan of an operation under the strategy of least cost; made once.

    A partial operand may stay partial in a product with an array only if that is `trusted` to scale summands safely: that
    depends on data, which a program does not have.
    """
    if not all(isinstance(kind, tuple) for kind in kinds):
        result = OPS[name].dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)[0]
        kinds = [kind if isinstance(kind, tuple) else canonical(kind, result, name == "divide") for kind in kinds]
    types = [kind if isinstance(kind, tuple) else (type(kind), repr(kind)) for kind in kinds]
    key = (name, *types, attrs.key, wanted, trusted)
    found = _plans.get(key)
    if found is None:
        found = OperationPlan(OPS[name], kinds, attrs, None, wanted, trusted)
        _plans.put(key, found)
    return found


@lru_cache(maxsize=1024)
def make_plan(name: str, sharding: Sharding, shape: tuple[int, ...], attrs_key: tuple[Any, ...]) -> Local:
    """An operation without operands: each device makes its own part of the result."""
    op, attrs = OPS[name], dict(attrs_key)
    rule = op.rule((), {**attrs, "shape": shape})
    layout = layout_of(sharding.replace(partial=(), halo={}), shape)
    return Local(Call(name, rule, (), (layout,), attrs, (), op.dtypes((), attrs)), (), (layout,))


# -- which operations are linear in partial operands ----------------------------------------------------------------------

# By the highest value of a float dtype: scales under which no summand of a sensible size overflows. Below that, only those
# under which none does: 300 · 300 is beyond float16.
_SAFE = ((1e300, 1e100), (1e38, 1e15), (0.0, 1.0))
_UNSAFE = {bool: False, int: 1 << 1024, float: float("inf"), complex: complex("inf")}


def canonical(value: Any, result: DType, divides: bool) -> Any:
    """What stands for a scalar in a plan, which depends on its type and on whether summands may be scaled by it only."""
    if _is_safe((value,), result, divides):
        return type(value)(1)
    return type(value)(next(unsafe for kind, unsafe in _UNSAFE.items() if isinstance(value, kind)))


def scales_safely(largest: float, smallest: float, result: DType, divides: bool) -> bool:
    """Whether summands may be scaled by elements whose sizes are between two numbers, if the product has a dtype."""
    if result.kind in "biu" and not is_small(result):
        return True  # integers wrap alike
    highest = finite_range(result)[1]
    limit = next(limit for least, limit in _SAFE if highest >= least)
    return largest <= limit and (not divides or smallest >= 1 / limit)


def _is_safe(values: Sequence[Any], result: DType, divides: bool) -> bool:
    """Whether summands may be scaled one by one: an infinity, a NaN or a division by 0 would not be the sum's."""
    return all(scales_safely(size, size, result, divides) for size in map(_size, values))


def _size(value: Any) -> float:
    try:
        return float(abs(value))
    except OverflowError:  # an integer beyond every float
        return float("inf")


def _linear_for(
    rule: Rule, arrays: Sequence[tuple[Layout, DType]], scalars: Sequence[Any], result: DType, trusted: bool
) -> Rule:
    """Drops linearity where the elements break it: boolean sums are ORs, integers wrap, integer averages truncate, a dtype
    with a smaller range cuts summands, and products are linear only beside scalars that no summand overflows under."""
    if rule.linear in ("", "move") or not any(layout.sharding.partial for layout, _ in arrays):
        return rule
    if rule.linear in ("mul", "over") and not (
        (len(arrays) == 1 or trusted) and _is_safe(scalars, result, rule.linear == "over")
    ):
        return replace(rule, linear="")
    for layout, dtype in arrays:
        if not layout.sharding.partial:
            continue
        if dtype.kind not in "biu" or is_small(dtype):
            if result.kind in "biu" or finite_range(result)[1] < finite_range(dtype)[1]:
                return replace(rule, linear="")
            continue
        wraps_alike = dtype.kind != "b" and dtype == result
        if not wraps_alike or layout.sharding.reduction == "average":
            return replace(rule, linear="")
    return rule


def common_mesh(arrays: Sequence[tuple[Layout, Any]], wanted: Sequence[Sharding | None] = ()) -> Mesh:
    """The mesh of all arrays; different ones don't mix."""
    meshes = [layout.mesh for layout, _ in arrays] or [s.mesh for s in wanted if s is not None]
    for (layout, dtype), mesh in zip(arrays, meshes, strict=False):
        if mesh is not meshes[0] and mesh != meshes[0]:
            one = f"{describe(arrays[0][0].sharding, arrays[0][0].shape, arrays[0][1])} on {meshes[0]}"
            other = f"{describe(layout.sharding, layout.shape, dtype)} on {mesh}"
            raise ArrayError(
                f"Arrays on different meshes don't mix: {one} and {other}. "
                f"Bring both onto one mesh first: x.reshard(Sharding(mesh, P(…)))."
            )
    return meshes[0]


def scalar_side(kinds: Sequence[Kind]) -> str:
    """On which side scalars stand: "left", "right", or "" where there are none."""
    if all(isinstance(kind, tuple) for kind in kinds):
        return ""
    return "right" if isinstance(kinds[0], tuple) else "left"
