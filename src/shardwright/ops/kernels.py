"""The local computation of every operation, on lanes: NumPy calls in which lanes are leading batch dims.

Padding of uneven shards repeats real values, so element-by-element work on it is harmless; whatever combines elements
along a dim fills the padding with its identity first.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.ops.call import Call, Data

Label = str | int  # a factor, or the number of a lane


# -- element by element -----------------------------------------------------------------------------------------------


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function to operands that broadcast; scalars come as they are."""

    def kernel(call: Call, *operands: Any, **options: Any) -> Any:
        arrays = iter(range(len(call.operands)))
        data = [call.align(next(arrays), x) if isinstance(x, np.ndarray) and x.ndim else x for x in operands]
        return function(*data, **call.attrs, **options)

    return kernel


def floor_divide(x1: Any, x2: Any) -> Any:
    """NumPy's, but infinities as the Array API standard has them: inf // 2 is inf, 2 // -inf is -0."""
    result = np.floor_divide(x1, x2)
    if result.dtype.kind != "f":
        return result
    a, b = np.broadcast_arrays(x1, x2)
    odd = (np.isinf(a) & np.isfinite(b)) | (np.isfinite(a) & np.isinf(b))
    if not odd.any():
        return result
    with np.errstate(all="ignore"):
        return np.where(odd, np.divide(a, b, dtype=result.dtype), result)


def expm1(x: Any) -> Any:
    """NumPy's, but complex numbers with parts that are 0 or not finite as the Array API standard has them."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    with np.errstate(all="ignore"):
        result = np.asarray(np.expm1(x))
        real, imag = x.real, x.imag
        flat = imag == 0
        result = np.where(flat, np.expm1(real) + 1j * 0, result).astype(x.dtype)
        result.imag[...] = np.where(flat, imag, result.imag)
        lost = np.isinf(real) & ~np.isfinite(imag)
        result[lost & (real < 0)] = -1
        result.real[lost & (real > 0)], result.imag[lost & (real > 0)] = np.inf, np.nan
    return result


# W. J. Cody's rational approximations (1969), innermost coefficient first: of erf near 0, of erfc up to 4, of erfc beyond.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_FAR = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], z: Data) -> Data:
    above, below = (np.polyval(some, z) for some in coefficients)
    return above / below


def erf(x: Any) -> Any:
    """The error function; integers in float64."""
    kind = x.dtype if x.dtype.kind not in "biu" else np.dtype(np.float64)
    size = np.minimum(np.abs(np.asarray(x, np.float64)), 6.0)  # beyond 6 it is 1 to the last bit
    near, middle, far = np.minimum(size, 0.46875), np.clip(size, 0.46875, 4), np.maximum(size, 4)
    small = near * _ratio(_NEAR, near * near)
    rest = np.exp(-middle * middle) * _ratio(_MIDDLE, middle)
    z = 1 / (far * far)
    tail = np.exp(-far * far) * (1 / np.sqrt(np.pi) - z * _ratio(_FAR, z)) / far
    value = np.where(size <= 0.46875, small, 1 - np.where(size <= 4, rest, tail))
    return np.copysign(value, x).astype(kind)


def tanh(x: Any) -> Any:
    """NumPy's, but a complex number with an infinite real part keeps the sign of its imaginary part."""
    result = np.tanh(x)
    if x.dtype.kind != "c":
        return result
    far = np.isinf(x.real) & np.isfinite(x.imag)
    result = np.asarray(result)
    result.imag[far] = np.copysign(0.0, x.imag[far])
    return result


# -- along dims that lie whole on every device --------------------------------------------------------------------------


def along(function: Callable[..., Any], key: str = "axis") -> Callable[..., Any]:
    """Apply a function that takes an axis or several."""

    def kernel(call: Call, data: Data) -> Any:
        attrs = dict(call.attrs)
        axis = attrs.pop(key)
        return function(data, **{key: call.n + axis if isinstance(axis, int) else call.axes(axis)}, **attrs)

    return kernel


def stacked_matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of matrices in the last two dims; lanes and batch dims lead."""

    def kernel(call: Call, *operands: Data) -> Any:
        rank = max(x.ndim for x in operands)
        aligned = (np.expand_dims(x, tuple(range(call.n, call.n + rank - x.ndim))) for x in operands)
        return function(*aligned, **call.attrs)

    return kernel


def tolerant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a function of matrices that takes a tolerance, one number or one for each matrix."""

    def kernel(call: Call, x: Data, *rtol: Data) -> Any:
        missing = x.ndim - 2 - (rtol[0].ndim if rtol else 0)
        given = [np.expand_dims(r, tuple(range(call.n, call.n + missing))) for r in rtol]
        return function(x, **({"rtol": given[0]} if given else {}), **call.attrs)

    return kernel


# -- reductions -------------------------------------------------------------------------------------------------------


def lowest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a maximum."""
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype: "np.dtype[Any]") -> Any:
    """What never wins a minimum."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def reduction(
    function: Callable[..., Any], identity: Callable[["np.dtype[Any]"], Any] | None = None
) -> Callable[..., Any]:
    """Reduce the local rows; padding is left out."""

    def kernel(call: Call, data: Data) -> Data:
        attrs = dict(call.attrs)
        dims = attrs.pop("axis")
        mask = call.mask(0, dims)
        options: dict[str, Any] = {}
        if mask is not None:
            options["where"] = mask
            if identity is not None:
                options["initial"] = identity(data.dtype)
        result = function(data, axis=call.axes(dims), **attrs, **options)
        return np.asarray(result)

    return kernel


# -- contractions -----------------------------------------------------------------------------------------------------


def contract(call: Call, *operands: Data, reduce: bool = False) -> Data:
    """Products of elements summed over factors, as one BLAS call where memory allows.

    Lanes are labels like any other: those on a factor of the result merge into its dims, `[x, 1, m, k] · [1, y, k, n]`
    being one (x m) × k × (y n) product. Lanes of a summed factor are a batch, unless `reduce` sums over them at once.
    """
    return contraction(call, reduce)(*operands)


def contraction(call: Call, reduce: bool = False) -> Callable[..., Data]:
    """The contraction of a call as a function of its operands' data; worked out once."""
    key = f"contraction {reduce}"
    if key not in call.made:
        call.made[key] = _contraction(call, reduce)
    return call.made[key]


def _contraction(call: Call, reduce: bool) -> Callable[..., Data]:
    layout = call.result
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
    masks = [
        call.mask(at, [d for d, dim in enumerate(dims) if dim and dim[0] in call.rule.sums])
        for at, dims in enumerate(call.rule.inputs)
    ]
    product = _product(call, labels, wanted, sizes) if len(labels) == 2 else None

    def general(*operands: Data) -> Data:
        kept = [[i for i, name in enumerate(names) if name is not None] for names in labels]
        arrays = [x.reshape([x.shape[i] for i in some]) for x, some in zip(operands, kept, strict=True)]
        named = [[names[i] for i in some] for names, some in zip(labels, kept, strict=True)]
        return einsum(arrays, named, [name for name in wanted if name is not None]).reshape(shape)  # type: ignore[arg-type]

    compute = product or general
    if all(mask is None for mask in masks):
        return compute

    def masked(*operands: Data) -> Data:
        pairs = zip(operands, masks, strict=True)
        return compute(*(x if mask is None else np.where(mask, x, np.zeros((), x.dtype)) for x, mask in pairs))

    return masked


def _product(
    call: Call, labels: list[list[Label | None]], wanted: Sequence[Label | None], sizes: dict[Label | None, int]
) -> Callable[[Data, Data], Data] | None:
    """Two operands as one matmul: which dims merge into rows, columns and the sum; None where one is summed alone."""

    def in_memory(at: int) -> list[int]:
        """The dims of the data in the order in which an array lies in memory: each lane right before the dim it splits."""
        held = call.operands[at]
        dims = [i for d, dim in enumerate(held.dims) for i in (*dim.lanes, call.n + d)]
        return [*(i for i in range(call.n) if i not in dims), *dims]

    (la, lb), orders = labels, [in_memory(0), in_memory(1)]
    a, b = ([names[i] for i in order if names[i] is not None] for names, order in zip(labels, orders, strict=True))
    if any(x not in b and x not in wanted for x in a) or any(x not in a and x not in wanted for x in b):
        return None
    batch = [x for x in a if x in b and x in wanted]
    inner = [x for x in a if x in b and x not in wanted]
    rows, cols = [x for x in a if x not in b], [x for x in b if x not in a]
    lead = [batch] if batch else []

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

    def product(x: Data, y: Data) -> Data:
        left = (x if same_a else x.transpose(order_a)).reshape(shape_a)
        right = (y if same_b else y.transpose(order_b)).reshape(shape_b)
        result = np.matmul(left, right).reshape(shape)
        if left.dtype == right.dtype != result.dtype:
            result = result.astype(left.dtype)  # NumPy multiplies small floats of ml_dtypes in float32
        return result if same else result.transpose(order)

    return product


def einsum(arrays: list[Data], labels: list[list[Label]], wanted: list[Label]) -> Data:
    """Contract operands from the left, two at a time."""
    first, names = arrays[0], labels[0]
    for at in range(1, len(arrays)):
        later = {label for some in labels[at + 1 :] for label in some} | set(wanted)
        first, names = _pair(first, names, arrays[at], labels[at], later)
    gone = [i for i, label in enumerate(names) if label not in wanted]
    if gone:
        first = np.add.reduce(first, axis=tuple(gone), dtype=first.dtype)
        names = [label for label in names if label in wanted]
    sizes = dict(zip(names, first.shape, strict=True))
    ordered = first.transpose([names.index(label) for label in wanted if label in sizes])
    return ordered.reshape([sizes.get(label, 1) for label in wanted])


def _pair(a: Data, la: list[Label], b: Data, lb: list[Label], later: set[Label]) -> tuple[Data, list[Label]]:
    a, la = _presum(a, la, set(lb) | later)
    b, lb = _presum(b, lb, set(la) | later)
    batch = _by_stride(a, la, [x for x in la if x in lb and x in later])
    inner = _by_stride(a, la, [x for x in la if x in lb and x not in later])
    rows = _by_stride(a, la, [x for x in la if x not in lb])
    cols = _by_stride(b, lb, [x for x in lb if x not in la])
    size = dict(zip(la, a.shape, strict=True)) | dict(zip(lb, b.shape, strict=True))

    def flat(x: Data, names: list[Label], *groups: list[Label]) -> Data:
        order = [names.index(label) for group in groups for label in group]
        shape = [math.prod(size[label] for label in group) for group in groups]
        return x.transpose(order).reshape(shape)

    if batch:
        left, right = flat(a, la, batch, rows, inner), flat(b, lb, batch, inner, cols)
    else:
        left, right = flat(a, la, rows, inner), flat(b, lb, inner, cols)
    names = [*batch, *rows, *cols]
    return np.matmul(left, right).reshape([size[label] for label in names]), names


def _presum(x: Data, names: list[Label], needed: set[Label]) -> tuple[Data, list[Label]]:
    gone = [i for i, label in enumerate(names) if label not in needed]
    if not gone:
        return x, names
    return np.add.reduce(x, axis=tuple(gone), dtype=x.dtype), [label for label in names if label in needed]


def _by_stride(x: Data, names: list[Label], some: list[Label]) -> list[Label]:
    """Labels in the order in which they lie in memory, so that merging them need not copy."""
    return sorted(some, key=lambda label: -abs(x.strides[names.index(label)]))


# -- moving elements --------------------------------------------------------------------------------------------------


def permute_dims(call: Call, data: Data) -> Data:
    return data.transpose((*range(call.n), *call.axes(call.attrs["axes"])))


def reshape(call: Call, data: Data) -> Data:
    return data.reshape((*data.shape[: call.n], *call.result.local_shape))


def broadcast_to(call: Call, data: Data) -> Data:
    return np.broadcast_to(call.align(0, data), (*data.shape[: call.n], *call.result.local_shape))


def fetch_rows(call: Call, data: Data) -> Data:
    """Every dim with a row map gets its rows, wherever they lie."""
    for dim, factors in enumerate(call.rule.inputs[0]):
        if factors and factors[0] in call.rule.rows:
            data = call.fetch(0, data, dim, call.rule.outputs[0].index(factors))
    return data


def concat(call: Call, *operands: Data) -> Data:
    lanes = np.broadcast_shapes(*(x.shape[: call.n] for x in operands))
    parts = [np.broadcast_to(x, (*lanes, *x.shape[call.n :])) for x in operands]
    return np.concatenate(parts, axis=call.n + call.attrs["axis"])


def triangle(call: Call, data: Data) -> Data:
    rank = len(call.result.shape)
    rows, cols = call.positions(call.result, rank - 2), call.positions(call.result, rank - 1)
    keep = cols - rows <= call.attrs["k"] if call.attrs["lower"] else cols - rows >= call.attrs["k"]
    return np.where(keep, data, np.zeros((), data.dtype))


def take(call: Call, data: Data, indices: Data) -> Data:
    """Rows by number; where the dim is split, each device gives the rows it has and zeros for the others."""
    axis, rank = call.attrs["axis"], len(call.operands[0].shape)
    held = call.operands[0].dims[axis]
    lane_shape = np.broadcast_shapes(data.shape[: call.n], indices.shape[: call.n])
    starts = call.operands[0].over_lanes(axis, held.offsets[:-1])
    sizes = call.operands[0].over_lanes(axis, held.sizes)
    lead = (1,) * (indices.ndim - call.n)
    indices = indices.astype(np.int64, copy=False)
    numbers = np.where(indices < 0, indices + held.size, indices)
    local = numbers - starts.reshape((*starts.shape, *lead))
    mine = (local >= 0) & (local < sizes.reshape((*sizes.shape, *lead)))
    count = math.prod(indices.shape[call.n :])
    flat = np.where(mine, local, 0).reshape((*np.broadcast_shapes(mine.shape[: call.n], (1,) * call.n), count))
    if not held.local:
        shape = (
            *lane_shape,
            *data.shape[call.n : call.n + axis],
            *indices.shape[call.n :],
            *data.shape[call.n + axis + 1 :],
        )
        return np.zeros(shape, data.dtype)
    if all(n == 1 for n in flat.shape[:-1]):
        rows = np.take(data, flat.ravel(), axis=call.n + axis)
    else:
        index = flat.reshape((*flat.shape[:-1], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        wide = np.broadcast_to(data, (*lane_shape, *data.shape[call.n :]))
        rows = np.take_along_axis(
            wide, np.broadcast_to(index, (*lane_shape, *index.shape[call.n :])), axis=call.n + axis
        )
    if held.parts > 1:
        have = mine.reshape((*mine.shape[: call.n], *(1,) * axis, count, *(1,) * (rank - axis - 1)))
        rows = np.where(
            have, rows, np.asarray(-0.0 if rows.dtype.kind in "fc" else 0).astype(rows.dtype)
        )  # -0.0 + x is x
    return rows.reshape((*rows.shape[: call.n + axis], *indices.shape[call.n :], *rows.shape[call.n + axis + 1 :]))


def take_along_axis(call: Call, data: Data, indices: Data) -> Data:
    lanes = np.broadcast_shapes(data.shape[: call.n], indices.shape[: call.n])
    wide = [np.broadcast_to(x, (*lanes, *x.shape[call.n :])) for x in (data, indices)]
    return np.take_along_axis(wide[0], wide[1], axis=call.n + call.attrs["axis"])


# -- prefixes ---------------------------------------------------------------------------------------------------------


def cumulative(ufunc: np.ufunc, start: int) -> Callable[..., Any]:
    """Local prefixes, then what the shards before hold in all: devices exchange one row each."""

    def kernel(call: Call, data: Data) -> Data:
        axis, dtype = call.attrs["axis"], call.attrs["dtype"]
        dim = call.n + axis
        data = data.astype(dtype, copy=False)
        mask = call.mask(0, [axis])
        if mask is not None:
            data = np.where(mask, data, np.full((), start, dtype))
        local = ufunc.accumulate(data, axis=dim, dtype=dtype)
        held = call.operands[0].dims[axis]
        if held.parts == 1 or not held.local:
            return local
        last = local[(*(slice(None),) * dim, slice(-1, None))]
        rest = [i for i in range(last.ndim) if i not in held.lanes]
        order = (*held.lanes, *rest)
        flat = last.transpose(order)
        totals = flat.reshape((held.parts, *flat.shape[len(held.lanes) :]))
        before = np.full_like(totals, start)
        before[1:] = ufunc.accumulate(totals[:-1], axis=0, dtype=dtype)
        back = [order.index(i) for i in range(last.ndim)]
        return ufunc(local, before.reshape(flat.shape).transpose(back)).astype(dtype, copy=False)

    return kernel


# -- windows ----------------------------------------------------------------------------------------------------------


def _windows(call: Call, data: Data, dims: Sequence[int], fill: Any) -> Data:
    """Fetch the rows that each device's part of the result reads, then view them as windows in trailing dims."""
    for dim in dims:
        data = call.fetch(0, data, dim, dim, fill)
    for dim in dims:
        (factor,) = call.rule.inputs[0][dim]
        row_map, axis = call.rule.rows[factor], call.n + dim
        room = call.result.local_shape[dim]
        if not room or data.shape[axis] < row_map.span:
            shape = list(data.shape)
            shape[axis] = room
            data = np.full((*shape, row_map.width), fill, data.dtype)
            continue
        view = np.lib.stride_tricks.sliding_window_view(data, row_map.span, axis=axis)[..., :: row_map.dilation]
        stride = 1 if row_map.width == 1 else row_map.stride  # rows that no window reads were not fetched
        data = view[(*(slice(None),) * axis, slice(0, (room - 1) * stride + 1, stride))]
    return data


def convolution(call: Call, data: Data, weights: Data) -> Data:
    """Windows of `b spatial… c` times weights `window… c o`, group by group."""
    spatial = len(call.result.shape) - 2
    groups, n = call.attrs["groups"], call.n
    masks = call.mask(0, [1 + spatial]), call.mask(1, [spatial])
    data, weights = (
        x if m is None else np.where(m, x, np.zeros((), x.dtype)) for x, m in zip((data, weights), masks, strict=True)
    )
    windows = _windows(call, data, range(1, 1 + spatial), 0)  # lanes b spatial… c window…
    lanes = np.broadcast_shapes(windows.shape[:n], weights.shape[:n])
    c_in, c_out = windows.shape[n + 1 + spatial] // groups, weights.shape[-1] // groups
    cut = windows.reshape((*windows.shape[: n + 1 + spatial], groups, c_in, *windows.shape[n + 2 + spatial :]))
    kernel = weights.reshape((*weights.shape[:-1], groups, c_out))
    lane_in: list[Label] = [i if k > 1 else -1 - i for i, k in enumerate(windows.shape[:n])]
    lane_w: list[Label] = [i if k > 1 else -1 - n - i for i, k in enumerate(weights.shape[:n])]
    places: list[Label] = [f"s{i}" for i in range(spatial)]
    offsets: list[Label] = [f"w{i}" for i in range(spatial)]
    out: list[Label] = [*(i for i in range(n) if lanes[i] > 1), "b", *places, "g", "o"]
    result = einsum(
        [cut, kernel], [[*lane_in, "b", *places, "g", "c", *offsets], [*lane_w, *offsets, "c", "g", "o"]], out
    )
    return result.reshape((*lanes, *call.result.local_shape))


def pooling(function: Callable[..., Any], fill: Callable[["np.dtype[Any]"], Any]) -> Callable[..., Any]:
    """Reduce windows of `b spatial… c`."""

    def kernel(call: Call, data: Data) -> Data:
        spatial = len(call.result.shape) - 2
        windows = _windows(call, data, range(1, 1 + spatial), fill(data.dtype))
        return np.asarray(function(windows, axis=tuple(range(-spatial, 0))))

    return kernel


# -- numbers from nothing but their place -------------------------------------------------------------------------------


def places(call: Call) -> NDArray[np.uint64]:
    """The row-major number of every element of the result in the whole tensor."""
    layout = call.result
    total = np.zeros((1,) * (call.n + len(layout.shape)), np.uint64)
    for dim, size in enumerate(layout.shape):
        total = total * np.uint64(size) + call.positions(layout, dim).astype(np.uint64)
    return np.broadcast_to(total, (*layout.lane_shape, *layout.local_shape))


def random_bits(call: Call) -> NDArray[np.uint64]:
    """64 random bits an element, from a key and the element's place alone: Philox 4×32 with 10 rounds."""
    key = np.uint64(call.attrs["key"])
    low32, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = places(call)
    c = [counter & low32, counter >> shift, np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = key & low32, key >> shift
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ k0, p1 & low32, (p0 >> shift) ^ c[3] ^ k1, p0 & low32]
        k0, k1 = np.uint64((int(k0) + 0x9E3779B9) & 0xFFFFFFFF), np.uint64((int(k1) + 0xBB67AE85) & 0xFFFFFFFF)
    return c[0] | (c[1] << shift)
