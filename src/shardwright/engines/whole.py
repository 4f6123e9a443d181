"""Operations on whole tensors: what a stacked engine runs in place of an operation's steps.

An operation on whole tensors is its plan for a mesh of one device, on which nothing moves. Kernels run without lanes, and
those that NumPy has a function for are that function; `DIRECT` is the table of these, and each is tested against its kernel.
"""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.kernels import PLAIN, Call, contraction, run
from shardwright.mesh import Mesh
from shardwright.ops import small_dtype
from shardwright.plan import OUTSIDE, Fetch, Local, OperationPlan, Picked, Spaced, make_plan, plan_operation
from shardwright.sharding import Sharding, layout_of

Data = NDArray[Any]
Function = Callable[..., Any]
ONE = Mesh(one=1)


def whole_operation(plan: OperationPlan) -> Function:
    """The function of an operation on whole tensors and scalars: one result bare, several as a tuple."""
    whole = Sharding(ONE)
    kinds = [(layout_of(whole, x[0].shape), x[1]) if isinstance(x, tuple) else x for x in plan.kinds]
    alone = plan_operation(plan.op.name, kinds, plan.attrs)
    found = _functions.get(alone)
    if found is None:
        found = _functions[alone] = _straight(alone)
    return found


_functions: "weakref.WeakKeyDictionary[OperationPlan, Function]" = weakref.WeakKeyDictionary()


def whole_call(local: Local) -> Call:
    """The call of a computation without operands, for the whole tensor."""
    call = local.call
    alone: Call = make_plan(call.name, Sharding(ONE), local.results[0].shape, tuple(call.attrs.items())).call.at(0)
    return alone


def _straight(plan: OperationPlan) -> Function:
    """The instructions of a plan for one device, one after the other."""
    count = len(plan.kinds)
    lines = [
        (_prepared(what), [x.number for x in inputs], outputs[0].number)
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


def _prepared(what: Any) -> Function:
    """An instruction as a function of its operands."""
    if isinstance(what, Fetch):
        return lambda data: fetched(what, data, 0)
    assert isinstance(what, Local), what
    call = what.call.at(0)
    make = DIRECT.get(call.name) or (_elementwise if call.name in PLAIN else None)
    function = make(call) if make is not None and small_dtype(call.dtypes) is None else None
    if function is None and len(call.results) > 1:
        return lambda *data: tuple(map(np.asarray, run(call, data)))
    if function is None:
        return lambda *data: np.asarray(run(call, data)[0])
    return function if call.result.shape else _of_one_element(function)


def _of_one_element(function: Function) -> Function:
    """NumPy gives scalars for results without dims; data is always an array."""
    return lambda *data: np.asarray(function(*data))


def fetched(step: Fetch, data: Data, lanes: int) -> Data:
    """The rows that shards read, one shard after the other, of a whole tensor behind lanes."""
    for dim, wanted in enumerate(step.wanted):
        if isinstance(wanted, Picked):
            data = _rows(data, lanes + dim, wanted, step.shape[dim], step.fill)
    return data


def _rows(data: Data, axis: int, wanted: Picked, size: int, fill: Any) -> Data:
    lead = (slice(None),) * axis
    if isinstance(wanted, Spaced):
        stretches = wanted.stretches()
        if stretches is not None:
            parts = [data[(*lead, part)] for part in stretches]
            return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
    rows = wanted.flat
    outside = rows == OUTSIDE
    if not size or not len(rows):
        return np.full((*data.shape[:axis], len(rows), *data.shape[axis + 1 :]), fill, data.dtype)
    taken = np.take(data, np.maximum(rows, 0), axis=axis)
    if outside.any():
        taken[(*lead, outside)] = fill
    return taken


# -- functions in place of kernels ----------------------------------------------------------------------------------------


def _elementwise(call: Call) -> Function | None:
    return getattr(np, call.name) if not call.attrs else None


def _reduction(ufunc: np.ufunc) -> Callable[[Call], Function | None]:
    def make(call: Call) -> Function | None:
        attrs = dict(call.attrs)
        axis, keepdims = tuple(attrs.pop("axis")), attrs.pop("keepdims", False)
        dtype = attrs.pop("dtype", None)
        empty = ufunc in (np.maximum, np.minimum) and 0 in (call.operands[0].shape[dim] for dim in axis)
        if attrs or empty:
            return None
        if dtype is None and ufunc in (np.logical_and, np.logical_or):
            dtype = np.dtype(bool)
        reduce: Any = ufunc.reduce
        return lambda x: reduce(x, axis, dtype, None, keepdims)

    return make


def _concat(call: Call) -> Function:
    axis, dtype = call.attrs["axis"], call.result_dtypes[0]
    return lambda *data: np.concatenate(data, axis, dtype=dtype)


def _reshape(call: Call) -> Function:
    shape = call.result.shape
    return lambda x: x.reshape(shape)


def _permute_dims(call: Call) -> Function:
    axes = call.attrs["axes"]
    return lambda x: x.transpose(axes)


def _broadcast_to(call: Call) -> Function:
    shape = call.result.shape
    return lambda x: np.broadcast_to(x, shape)


def _astype(call: Call) -> Function | None:
    dtype = call.attrs["dtype"]
    return (lambda x: x.astype(dtype)) if len(call.operands) == 1 else None


def _assign(call: Call) -> Function:
    rows = tuple(
        slice(None) if m is None else slice(m.start, m.start + (m.size - 1) * m.stride + 1, m.stride)
        for m in call.attrs["maps"]
    )

    def assign(x: Data, value: Data) -> Data:
        made = np.array(x)
        made[rows] = value
        return made

    return assign


def _scatter(call: Call) -> Function:
    dims, rank = call.attrs["dims"], len(call.result.shape)
    order = (*dims, *(dim for dim in range(rank) if dim not in dims))

    def scatter(x: Data, value: Data, *indices: Data) -> Data:
        made = np.array(x)
        made.transpose(order)[indices] = value
        return made

    return scatter


DIRECT: dict[str, Callable[[Call], Function | None]] = {
    "einsum": contraction,
    "sum": _reduction(np.add),
    "prod": _reduction(np.multiply),
    "max": _reduction(np.maximum),
    "min": _reduction(np.minimum),
    "all": _reduction(np.logical_and),
    "any": _reduction(np.logical_or),
    "concat": _concat,
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "astype": _astype,
    "assign": _assign,
    "scatter": _scatter,
}
