"""Operations on whole tensors: what a stacked engine runs in place of an operation's steps.

An operation on whole tensors is its plan for a mesh of one device, on which nothing moves. Kernels run without lanes, in the
functions of a namespace, NumPy's or torch's; where that has one function for a kernel, that function runs (`direct`).
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.engines.direct import direct
from shardwright.kernels import NUMPY, Call, Space, run
from shardwright.mesh import Mesh
from shardwright.ops import Attrs
from shardwright.plan import OUTSIDE, Fetch, Local, OperationPlan, Picked, Slot, Spaced, make_plan, plan_operation
from shardwright.sharding import Sharding, layout_of

Data = Any  # an array of the namespace
Function = Callable[..., Any]
ONE = Mesh(one=1)


def whole_operation(plan: OperationPlan, space: Space = NUMPY) -> Function:
    """The function of an operation on whole tensors and scalars: one result bare, several as a tuple."""
    whole = Sharding(ONE)
    kinds = [(layout_of(whole, x[0].shape), x[1]) if isinstance(x, tuple) else x for x in plan.kinds]
    alone = plan_operation(plan.op.name, kinds, plan.attrs)
    functions = _functions.setdefault(alone, {})
    if space not in functions:
        functions[space] = _straight(alone, space)
    return functions[space]


_functions: "weakref.WeakKeyDictionary[OperationPlan, dict[Space, Function]]" = weakref.WeakKeyDictionary()


def row_function(name: str, kinds: Sequence[Any], attrs: Attrs) -> Function:
    """An operation of the table as a function of whole NumPy tensors; a kind is (shape, dtype) or a Python scalar."""
    whole = Sharding(ONE)
    placed = [(layout_of(whole, kind[0]), kind[1]) if isinstance(kind, tuple) else kind for kind in kinds]
    return whole_operation(plan_operation(name, placed, attrs))


def whole_call(local: Local) -> Call:
    """The call of a computation without operands, for the whole tensor."""
    call = local.call
    alone: Call = make_plan(call.name, Sharding(ONE), local.results[0].shape, tuple(call.attrs.items())).call.at(0)
    return alone


def _straight(plan: OperationPlan, space: Space) -> Function:
    """The instructions of a plan for one device, one after the other."""
    count = len(plan.kinds)
    lines = [
        (_prepared(what, operand_kinds(plan, what, inputs), space), [x.number for x in inputs], outputs[0].number)
        for what, inputs, outputs, _ in plan.instructions
    ]
    outputs = [slot.number for slot in plan.outputs]
    if not lines:
        (only,) = outputs
        return lambda *data: data[only]
    if len(lines) == 1 and lines[0][1] == list(range(count)):
        return lines[0][0]

    def run_lines(*data: Any) -> Any:
        values = list(data)
        for function, inputs, first in lines:
            made = function(*[values[i] for i in inputs])
            assert len(values) == first, "slots are numbered in order"
            values += made if isinstance(made, tuple) else (made,)
        return values[outputs[0]] if len(outputs) == 1 else tuple(values[i] for i in outputs)

    return run_lines


def operand_kinds(plan: OperationPlan, what: Any, inputs: Sequence[Slot]) -> tuple[Any, ...]:
    """The kinds of what an instruction reads: the dtypes of arrays, the types of scalars."""
    if not isinstance(what, Local):
        return ()
    given = [plan.kinds[x.number] if x.number < len(plan.kinds) else () for x in inputs]
    return kinds_of(what.call, [None if isinstance(kind, tuple) else kind for kind in given])


def kinds_of(call: Call, scalars: Sequence[Any]) -> tuple[Any, ...]:
    """The kinds of a call's operands; `scalars` has None where an array is. NumPy's scalars have dtypes, as in NumPy."""
    dtypes = iter(call.dtypes)

    def kind_of(scalar: Any) -> Any:
        return scalar.dtype if isinstance(scalar, np.generic) else type(scalar)

    return tuple(next(dtypes) if scalar is None else kind_of(scalar) for scalar in scalars)


def _prepared(what: Any, kinds: tuple[Any, ...], space: Space) -> Function:
    """An instruction as a function of its operands."""
    if isinstance(what, Fetch):
        return fetching(what, 0, space)
    assert isinstance(what, Local), what
    return computation(what.call.at(0), kinds, space)


def computation(call: Call, kinds: tuple[Any, ...], space: Space) -> Function:
    """A call of one device as a function of its operands: one result bare, several as a tuple.

    `kinds` has for each operand the dtype of an array or the type of a scalar.
    """
    call = call.on(space)
    function: Function | None = direct(call) if space is NUMPY else space.direct(call, kinds)
    if function is not None:
        return function
    as_array = space.asarray  # kernels give NumPy's scalars for results without dims; data is always an array
    if len(call.results) > 1:
        return lambda *data: tuple(map(as_array, run(call, data)))
    return lambda *data: as_array(run(call, data)[0])


def fetched(step: Fetch, data: Data, lanes: int, space: Space = NUMPY) -> Data:
    """The rows that shards read, one shard after the other, of a whole tensor behind lanes."""
    return fetching(step, lanes, space)(data)


def fetching(step: Fetch, lanes: int, space: Space = NUMPY) -> Callable[[Data], Data]:
    """The function that takes these rows."""
    steps = [
        _taking(lanes + dim, wanted, step.shape[dim], step.fill, space)
        for dim, wanted in enumerate(step.wanted)
        if isinstance(wanted, Picked)
    ]
    if len(steps) == 1:
        return steps[0]

    def take_all(data: Data) -> Data:
        for take in steps:
            data = take(data)
        return data

    return take_all


def _taking(axis: int, wanted: Picked, size: int, fill: Any, space: Space) -> Callable[[Data], Data]:
    """The function that takes the rows of one dim: slices where they are evenly spaced."""
    stretches = wanted.stretches() if isinstance(wanted, Spaced) else None
    if stretches is not None:
        cuts = [_cutting(axis, part, size, space) for part in stretches]
        concat = space.concat
        return cuts[0] if len(cuts) == 1 else lambda data: concat([cut(data) for cut in cuts], axis=axis)

    def take(data: Data) -> Data:
        rows = wanted.flat
        outside = rows == OUTSIDE
        if not size or not len(rows):
            return space.full((*data.shape[:axis], len(rows), *data.shape[axis + 1 :]), fill, dtype=data.dtype)
        taken = space.take(data, space.asarray(np.maximum(rows, 0)), axis=axis)
        if outside.any():
            taken[(*(slice(None),) * axis, space.asarray(outside))] = fill
        return taken

    return take


def _cutting(axis: int, part: slice, size: int, space: Space) -> Callable[[Data], Data]:
    """The function that takes evenly spaced rows; backward, which only NumPy slices, they are turned afterwards."""
    lead = (slice(None),) * axis
    if part.step is None or part.step > 0 or space is NUMPY:
        where = (*lead, part)
        return lambda data: data[where]
    rows = range(size)[part][::-1]
    forward = (*lead, slice(rows.start, rows.stop, rows.step))
    return lambda data: space.flip(data[forward], axis=axis)
