"""Products of elements summed over factors: which lanes and dims merge, and one matmul for all devices."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from shardwright.kernels.call import Call, Data

Label = str | int  # a factor, or the number of a lane


def contract(call: Call, *operands: Data) -> Data:
    """Products of elements summed over factors, as one matmul where memory allows.

    Lanes are labels like any other: those on a factor of the result merge into its dims, `[x, 1, m, k] · [1, y, k, n]`
    being one (x m) × k × (y n) product. Lanes of a summed factor are a batch.
    """
    return contraction(call)(*operands)


def contraction(call: Call, reduce: bool = False) -> Callable[..., Data]:
    """The contraction of a call as a function of its operands' data; worked out once.

    With `reduce` it sums over the lanes of summed factors too: a stacked engine's fusion of a product and its reduction.
    """
    key = ("contraction", reduce)
    if key not in call.made:
        call.made[key] = _contraction(call, reduce)
    found: Callable[..., Data] = call.made[key]
    return found


def _contraction(call: Call, reduce: bool) -> Callable[..., Data]:
    layout, xp = call.result, call.xp
    lanes: list[Label | None] = [
        i if n > 1 and not (reduce and i in layout.partial_lanes) else None for i, n in enumerate(layout.lane_shape)
    ]
    wanted = [*lanes, *(dim[0] if dim else None for dim in call.rule.outputs[0])]
    labels: list[list[Label | None]] = []
    sizes: dict[Label | None, int] = {}
    for held, dims in zip(call.operands, call.rule.inputs, strict=True):
        names: list[Label | None] = [i if n > 1 else None for i, n in enumerate(held.lane_shape)]
        names += [dim[0] if dim else None for dim in dims]
        labels.append(names)
        sizes.update(zip(names, (*held.lane_shape, *held.local_shape), strict=True))
    shape = tuple(1 if name is None else sizes[name] for name in wanted)
    summed = [[d for d, dim in enumerate(dims) if dim and dim[0] in call.rule.sums] for dims in call.rule.inputs]
    product = _product(call, labels, wanted, sizes) if len(labels) == 2 else None

    def general(*operands: Data) -> Data:
        kept = [[i for i, name in enumerate(names) if name is not None] for names in labels]
        arrays = [xp.reshape(x, [x.shape[i] for i in some]) for x, some in zip(operands, kept, strict=True)]
        named = [[names[i] for i in some] for names, some in zip(labels, kept, strict=True)]
        made = einsum(xp, arrays, named, [name for name in wanted if name is not None])  # type: ignore[arg-type]
        return xp.reshape(made, shape)

    compute = product or general
    if all(call.mask(at, dims) is None for at, dims in enumerate(summed)):
        return compute
    return lambda *operands: compute(*(call.filled(at, x, summed[at], 0) for at, x in enumerate(operands)))


def _product(
    call: Call, labels: list[list[Label | None]], wanted: Sequence[Label | None], sizes: dict[Label | None, int]
) -> Callable[[Data, Data], Data] | None:
    """Two operands as one matmul: which dims merge into rows, columns and the sum; None where one is summed alone."""

    def in_memory(at: int) -> list[int]:
        """The dims of the data in the order in which an array lies in memory: each lane right before the dim it splits."""
        held = call.operands[at]
        dims = [i for d, dim in enumerate(held.dims) for i in (*dim.lanes, call.n + d)]
        return [*(i for i in range(call.n) if i not in dims), *dims]

    (la, lb), orders, xp = labels, [in_memory(0), in_memory(1)], call.xp
    a, b = ([names[i] for i in order if names[i] is not None] for names, order in zip(labels, orders, strict=True))
    if any(x not in b and x not in wanted for x in a) or any(x not in a and x not in wanted for x in b):
        return None
    batch = [x for x in a if x in b and x in wanted]
    inner = [x for x in a if x in b and x not in wanted]
    rows, cols = [x for x in a if x not in b], [x for x in b if x not in a]
    lead = [[x] for x in batch]  # merged they would have to be copied, where another dim lies between them in memory

    def flat(names: list[Label | None], groups: list[list[Label | None]]) -> tuple[list[int], tuple[int, ...]]:
        ones = [i for i, name in enumerate(names) if name is None]
        order = ones + [names.index(x) for group in groups for x in group]
        return order, tuple(math.prod(sizes[x] for x in group) for group in groups)

    order_a, shape_a = flat(la, [*lead, rows, inner])
    order_b, shape_b = flat(lb, [*lead, inner, cols])
    made = [*batch, *rows, *cols]
    shape = (*(sizes[x] for x in made), *(1 for name in wanted if name is None))
    ones = iter(range(len(made), len(shape)))
    order = [next(ones) if name is None else made.index(name) for name in wanted]
    same_a, same_b, same = (o == sorted(o) for o in (order_a, order_b, order))
    narrow = call.dtypes[0] if call.dtypes[0] == call.dtypes[1] else None
    transpose, matmul = xp.transpose, xp.matmul
    in_order = same_a and same_b and same and None not in (*la, *lb, *wanted)
    if in_order and all(len(group) == 1 for group in (*lead, rows, inner, cols)) and _is_native(call.dtypes):
        return matmul  # a dim for each group: nothing to reshape

    def product(x: Data, y: Data) -> Data:
        left = (x if same_a else transpose(x, order_a)).reshape(shape_a)
        right = (y if same_b else transpose(y, order_b)).reshape(shape_b)
        result = matmul(left, right).reshape(shape)
        if narrow is not None and result.dtype != x.dtype:
            result = xp.astype(result, narrow)  # NumPy multiplies small floats of ml_dtypes in float32
        return result if same else transpose(result, order)

    return product


def _is_native(dtypes: Sequence[Any]) -> bool:
    """Whether NumPy multiplies arrays of these dtypes without changing to a wider one."""
    return all(dtype.kind in "biufc" for dtype in dtypes)


def einsum(xp: Any, arrays: list[Data], labels: list[list[Label]], wanted: list[Label]) -> Data:
    """Contract operands from the left, two at a time."""
    first, names = arrays[0], labels[0]
    for at in range(1, len(arrays)):
        later = {label for some in labels[at + 1 :] for label in some} | set(wanted)
        first, names = _pair(xp, first, names, arrays[at], labels[at], later)
    first, names = _presum(xp, first, names, set(wanted))
    sizes = dict(zip(names, first.shape, strict=True))
    ordered = xp.transpose(first, [names.index(label) for label in wanted if label in sizes])
    return xp.reshape(ordered, [sizes.get(label, 1) for label in wanted])


def _pair(xp: Any, a: Data, la: list[Label], b: Data, lb: list[Label], later: set[Label]) -> tuple[Data, list[Label]]:
    a, la = _presum(xp, a, la, set(lb) | later)
    b, lb = _presum(xp, b, lb, set(la) | later)
    batch = [x for x in la if x in lb and x in later]
    inner = [x for x in la if x in lb and x not in later]
    rows, cols = [x for x in la if x not in lb], [x for x in lb if x not in la]
    size = dict(zip(la, a.shape, strict=True)) | dict(zip(lb, b.shape, strict=True))

    def flat(x: Data, names: list[Label], *groups: list[Label]) -> Data:
        order = [names.index(label) for group in groups for label in group]
        return xp.reshape(xp.transpose(x, order), [math.prod(size[label] for label in group) for group in groups])

    if batch:
        left, right = flat(a, la, batch, rows, inner), flat(b, lb, batch, inner, cols)
    else:
        left, right = flat(a, la, rows, inner), flat(b, lb, inner, cols)
    names = [*batch, *rows, *cols]
    return xp.reshape(xp.matmul(left, right), [size[label] for label in names]), names


def _presum(xp: Any, x: Data, names: list[Label], needed: set[Label]) -> tuple[Data, list[Label]]:
    gone = [i for i, label in enumerate(names) if label not in needed]
    if not gone:
        return x, names
    return xp.sum(x, axis=tuple(gone), dtype=x.dtype), [label for label in names if label in needed]
