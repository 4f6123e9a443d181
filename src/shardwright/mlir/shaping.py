"""Operations of the tensor dialect, and those of tosa that change shapes, on values."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.ir import Operation, SSAValue

from shardwright.errors import ShardwrightError
from shardwright.mlir.arithmetic import amount
from shardwright.mlir.dialects import DYNAMIC
from shardwright.mlir.fields import integer, integers, mixed
from shardwright.mlir.types import dtype_of, element_of, sizes_of
from shardwright.mlir.values import Value, View
from shardwright.ops import RowMap
from shardwright.xla import MOST_FOLDED, first_of, is_known, is_splat, splat


def constant(op: Operation) -> Value:
    """The value of arith.constant, tosa.const or tosa.const_shape."""
    given = {**op.attributes, **op.properties}
    attribute: Any = next(given[key] for key in ("value", "values") if key in given)
    kind = op.results[0].type
    if not isinstance(attribute, b.DenseIntOrFPElementsAttr):
        dtype = dtype_of(kind)
        assert dtype is not None, "types are checked before operations run"
        return np.asarray(attribute.value.data, dtype)
    held: Any = attribute.type
    dtype = dtype_of(element_of(held))
    if dtype is None:
        raise ShardwrightError(f"A constant of {element_of(held)} can't be held. Use f16, f32, f64, i8 to i64 or i1.")
    values = np.frombuffer(attribute.data.data, dtype)
    if len(values) and attribute.data.data == values[:1].tobytes() * len(values):
        return splat(values[0], held.get_shape(), dtype)
    return values.reshape(held.get_shape())


def sliced(view: View, value: Value, starts: Sequence[Any], sizes: Sequence[int], steps: Sequence[int]) -> Value:
    """A box of a tensor; starts are Python integers or values that the program computes."""
    if is_splat(value):
        return splat(first_of(value), sizes, value.dtype)
    maps: list[RowMap | None] = [None] * value.ndim
    for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        if not isinstance(start, int):
            continue
        last = start + (size - 1) * step
        if size and not (0 <= start < value.shape[dim] and 0 <= last < value.shape[dim]):
            raise ShardwrightError(
                f"Rows {start} to {last} of dim {dim} are read, which has {value.shape[dim]}. Stay inside the tensor."
            )
        if (start, size, step) != (0, value.shape[dim], 1):
            maps[dim] = RowMap(size, start, step)
    if any(maps):
        value = view.row("rows", value, name="slice", maps=tuple(maps))
    for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        if not isinstance(start, int):
            first = view.reshaped(start, (1,))
            rows = first if size == 1 else view.row("add", np.arange(size) * step, first)
            value = view.row("take", value, rows, axis=dim)
    return value


def inserted(
    view: View, value: Value, into: Value, starts: Sequence[Any], sizes: Sequence[int], steps: Sequence[int]
) -> Value:
    """A tensor with a box replaced; starts are Python integers or values that the program computes."""
    box = view.reshaped(value, sizes)
    for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        if isinstance(start, int) and size:
            last = start + (size - 1) * step
            if not (0 <= start < into.shape[dim] and 0 <= last < into.shape[dim] and step > 0):
                raise ShardwrightError(
                    f"Rows {start} to {last} of dim {dim} are written, which has {into.shape[dim]}. Stay inside the tensor."
                )
    if 0 in sizes:
        return into
    whole = [
        isinstance(start, int) and (start, size, step) == (0, n, 1)
        for start, size, step, n in zip(starts, sizes, steps, into.shape, strict=True)
    ]
    if all(whole):
        return box
    if all(isinstance(start, int) for start in starts):
        maps = tuple(
            None if same else RowMap(size, start, step)
            for same, start, size, step in zip(whole, starts, sizes, steps, strict=True)
        )
        return view.row("assign", view.lifted(into), view.lifted(box), maps=maps)
    named = [dim for dim, same in enumerate(whole) if not same]
    block = [sizes[dim] for dim in named]
    rows = []
    for at, dim in enumerate(named):
        own = (np.arange(sizes[dim]) * steps[dim]).reshape([-1 if d == at else 1 for d in range(len(named))])
        start = starts[dim]
        first = np.asarray(start) if isinstance(start, int) else view.reshaped(start, (1,) * len(named))
        row = first if sizes[dim] == 1 else view.row("add", own, first)
        row = view.broadcast(row, block)
        rows.append(view.lifted(view.reshaped(row, (math.prod(block),))))
    rest = [dim for dim in range(len(sizes)) if dim not in named]
    order = (*named, *rest)
    moved = box if list(order) == sorted(order) else view.row("permute_dims", box, axes=order)
    flat = view.reshaped(moved, (math.prod(block), *(sizes[dim] for dim in rest)))
    return view.row("scatter", view.lifted(into), view.lifted(flat), *rows, dims=tuple(named))


class Shaping:
    """Runs the operations of tensor on values."""

    def __init__(self, view: View, outside: Callable[[SSAValue], Value]) -> None:
        self.view, self.outside = view, outside

    def run(self, op: Operation, values: Sequence[Value]) -> list[Value] | None:
        """The results of an operation; None if it is not supported."""
        rule = getattr(self, f"_{op.name.replace('.', '_')}", None)
        return None if rule is None else [rule(op, *values)]

    def _sizes(self, op: Operation, dynamic: Sequence[Value]) -> tuple[int, ...]:
        """The sizes of a result, `?` from operands."""
        sizes, given = sizes_of(op.results[0].type), iter(dynamic)
        if len(dynamic) != sizes.count(DYNAMIC):
            raise ShardwrightError(
                f"incorrect number of dynamic sizes, has {len(dynamic)}, expected {sizes.count(DYNAMIC)}. Give one a `?`."
            )
        return tuple(_number(next(given), "size") if n == DYNAMIC else n for n in sizes)

    def _tensor_empty(self, op: Operation, *dynamic: Value) -> Value:
        dtype = dtype_of(element_of(op.results[0].type))
        assert dtype is not None, "types are checked before operations run"
        return splat(0, self._sizes(op, dynamic), dtype)  # what is undefined is zeros

    def _tensor_splat(self, op: Operation, element: Value, *dynamic: Value) -> Value:
        return self.view.broadcast(element, self._sizes(op, dynamic))

    def _tensor_cast(self, op: Operation, value: Value) -> Value:
        return value

    def _tensor_dim(self, op: Operation, value: Value, dim: Value) -> Value:
        number = _number(dim, "dim")
        if not 0 <= number < value.ndim:
            raise ShardwrightError(f"Dim {number} is out of range: the tensor has {value.ndim} dims.")
        return np.asarray(value.shape[number], np.int64)

    def _tensor_extract(self, op: Operation, value: Value, *indices: Value) -> Value:
        starts = [int(x) if is_known(x) else x for x in indices]
        ones = (1,) * len(indices)
        return self.view.reshaped(sliced(self.view, value, starts, ones, ones), ())

    def _tensor_from_elements(self, op: Operation, *elements: Value) -> Value:
        shape = sizes_of(op.results[0].type)
        if len(elements) == 1:
            return self.view.reshaped(elements[0], shape)
        if all(map(is_known, elements)) and len(elements) <= MOST_FOLDED:
            return np.array(elements).reshape(shape)
        parts = [self.view.reshaped(x, (1,)) for x in elements]
        return self.view.reshaped(self.view.row("concat", *map(self.view.lifted, parts), axis=0), shape)

    def _reshaped(self, op: Operation, value: Value, *dynamic: Value) -> Value:
        """The shape of the result type; one `?` is what is left."""
        shape = list(sizes_of(op.results[0].type))
        known = math.prod(n for n in shape if n != DYNAMIC)
        if shape.count(DYNAMIC) > 1:
            raise ShardwrightError("Two sizes of the result are `?`: give the tensor static sizes.")
        total = math.prod(value.shape)
        shape = [total // max(known, 1) if n == DYNAMIC else n for n in shape]
        if math.prod(shape) != total:
            raise ShardwrightError(f"{total} elements of shape {tuple(value.shape)} don't fit {tuple(shape)}.")
        return self.view.reshaped(value, shape)

    _tensor_collapse_shape = _tensor_expand_shape = _tensor_reshape = _tosa_reshape = _reshaped

    def _box(self, op: Operation, dynamic: Sequence[Value]) -> tuple[list[Any], list[int], list[int]]:
        """Starts, sizes and steps of a slice."""
        given = iter(dynamic)
        offsets, sizes, strides = (
            [next(given) if n == DYNAMIC else n for n in integers(op.properties[f"static_{what}"])]
            for what in ("offsets", "sizes", "strides")
        )
        starts = [x if isinstance(x, int) else int(x) if is_known(x) else x for x in offsets]
        counts = [x if isinstance(x, int) else _number(x, "size") for x in sizes]
        return starts, counts, [x if isinstance(x, int) else _number(x, "stride") for x in strides]

    def _tensor_insert_slice(self, op: Operation, value: Value, into: Value, *dynamic: Value) -> Value:
        return inserted(self.view, value, into, *self._box(op, dynamic))

    def _tensor_insert(self, op: Operation, element: Value, into: Value, *indices: Value) -> Value:
        starts = [int(x) if is_known(x) else x for x in indices]
        ones = (1,) * len(indices)
        return inserted(self.view, element, into, starts, ones, ones)

    def _tensor_pad(self, op: Operation, value: Value, *dynamic: Value) -> Value:
        ends = op.properties["static_low"], op.properties["static_high"]
        below = mixed(ends[0], dynamic)
        above = mixed(ends[1], dynamic[integers(ends[0]).count(DYNAMIC) :])
        low, high = ([x if isinstance(x, int) else _number(x, "padding") for x in each] for each in (below, above))
        if min((*low, *high), default=0) < 0:
            raise ShardwrightError(f"The padding is low {low} and high {high}; it must not be negative.")
        (last,) = (inner for inner in op.regions[0].block.ops if inner.name == "tensor.yield")
        yielded = last.operands[0]
        if yielded.owner is op.regions[0].block:
            raise ShardwrightError("The padding depends on its place. Use one element for all of it.")
        inside = isinstance(yielded.owner, Operation) and yielded.owner.parent is op.regions[0].block
        if inside and yielded.owner.name != "arith.constant":
            raise ShardwrightError("The padding is computed in the body. Use a constant, or compute it before.")
        return self._padded(value, constant(yielded.owner) if inside else self.outside(yielded), low, high)

    def _padded(self, value: Value, element: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        sizes = [a + n + b for a, n, b in zip(low, value.shape, high, strict=True)]
        if list(sizes) == list(value.shape):
            return value
        if is_known(element) and not element.any() and not np.signbit(element).any():
            ends = zip(low, value.shape, sizes, strict=True)
            maps = tuple(None if n == size else RowMap(size, -start) for start, n, size in ends)
            return self.view.row("rows", self.view.lifted(value), name="pad", maps=maps)  # rows outside are zeros
        full = self.view.broadcast(self.view.cast(element, value.dtype), sizes)
        return inserted(self.view, value, full, list(low), value.shape, (1,) * value.ndim)

    def _tensor_rank(self, op: Operation, value: Value) -> Value:
        return np.asarray(value.ndim, np.int64)

    def _tensor_bitcast(self, op: Operation, value: Value) -> Value:
        dtype = dtype_of(element_of(op.results[0].type))
        assert dtype is not None, "types are checked before operations run"
        if value.dtype.kind not in "iu" or dtype.kind not in "iu":
            raise ShardwrightError("Only the sign of integers is reinterpreted. Convert with arith.")
        return self.view.cast(value, dtype)

    def _tensor_extract_slice(self, op: Operation, value: Value, *dynamic: Value) -> Value:
        starts, counts, steps = self._box(op, dynamic)
        made = sliced(self.view, value, starts, counts, steps)
        shape = list(sizes_of(op.results[0].type))
        return made if DYNAMIC in shape else self.view.reshaped(made, shape)  # dims of size 1 may be dropped

    def _tensor_concat(self, op: Operation, *values: Value) -> Value:
        dim = integer(op.properties["dim"])
        return values[0] if len(values) == 1 else self.view.row("concat", *map(self.view.lifted, values), axis=dim)

    def _tosa_concat(self, op: Operation, *values: Value) -> Value:
        axis = integer({**op.attributes, **op.properties}["axis"])
        return values[0] if len(values) == 1 else self.view.row("concat", *map(self.view.lifted, values), axis=axis)

    def _tosa_const(self, op: Operation) -> Value:
        return constant(op)

    _tosa_const_shape = _tosa_const

    def _tosa_transpose(self, op: Operation, value: Value, *order: Value) -> Value:
        given = {**op.attributes, **op.properties}.get("perms")
        dims = [int(n) for n in order[0]] if given is None and order and is_known(order[0]) else list(integers(given))
        if sorted(dims) != list(range(value.ndim)):
            raise ShardwrightError(f"perms is {dims}; give a permutation of the {value.ndim} dims.")
        return self.view.row("permute_dims", value, axes=tuple(dims))

    def _tosa_given(self, op: Operation, name: str, values: Sequence[Value]) -> list[int]:
        """Integers that are an attribute, or in later versions an operand."""
        attribute = {**op.attributes, **op.properties}.get(name)
        if attribute is not None:
            return list(integers(attribute))
        if not values or not is_known(values[0]):
            raise ShardwrightError(f"{name} must be known when the program is traced.")
        return [int(n) for n in values[0].ravel()]

    def _tosa_reverse(self, op: Operation, value: Value) -> Value:
        axis = integer({**op.attributes, **op.properties}["axis"])
        maps = tuple(RowMap(n, n - 1, -1) if d == axis else None for d, n in enumerate(value.shape))
        return self.view.row("rows", self.view.lifted(value), name="flip", maps=maps)

    def _tosa_slice(self, op: Operation, value: Value, *given: Value) -> Value:
        start, size = self._tosa_given(op, "start", given[:1]), self._tosa_given(op, "size", given[1:])
        return sliced(self.view, value, start, size, (1,) * value.ndim)

    def _tosa_tile(self, op: Operation, value: Value, *given: Value) -> Value:
        times = self._tosa_given(op, "multiples", given)
        pairs = zip(value.shape, times, strict=True)
        maps = tuple(None if count == 1 else RowMap(n * count, wrap=n) for n, count in pairs)
        return value if not any(maps) else self.view.row("rows", self.view.lifted(value), name="tile", maps=maps)

    def _tosa_pad(self, op: Operation, value: Value, padding: Value, *element: Value) -> Value:
        if not is_known(padding):
            raise ShardwrightError("The padding must be known when the program is traced.")
        ends = padding.reshape(-1, 2).tolist()
        scalar = self.view.reshaped(element[0], ()) if element else np.zeros((), value.dtype)
        return self._padded(value, scalar, [low for low, _ in ends], [high for _, high in ends])

    def _tosa_matmul(self, op: Operation, a: Value, b: Value, *zero_points: Value) -> Value:
        dtype = dtype_of(element_of(op.results[0].type))
        assert dtype is not None, "types are checked before operations run"
        x, y = self._offset(op, "a_zp", a, zero_points[:1], dtype), self._offset(op, "b_zp", b, zero_points[1:], dtype)
        alone = [v.shape[0] == 1 and x.shape[0] != y.shape[0] for v in (x, y)]  # a batch of one meets every other
        left, right = "m k" if alone[0] else "b m k", "k n" if alone[1] else "b k n"
        x, y = (self.view.reshaped(v, v.shape[1:]) if one else v for v, one in zip((x, y), alone, strict=True))
        return self.view.row("einsum", x, y, name="einsum", text=f"{left}, {right} -> b m n")

    def _offset(self, op: Operation, name: str, value: Value, zero_point: Sequence[Value], dtype: Any) -> Value:
        """Elements less a zero point, in the type of the result."""
        point = amount(self.view, op, name, zero_point, value.dtype, len(value.shape))
        wide = self.view.cast(value, dtype)
        return wide if point is None else self.view.row("subtract", wide, self.view.cast(point, dtype))

    def _tosa_reduced(self, op: Operation, value: Value) -> Value:
        row = {"product": "prod"}.get(name := op.name.removeprefix("tosa.reduce_"), name)
        axis = integer({**op.attributes, **op.properties}["axis"])
        options = {"dtype": value.dtype} if row in ("sum", "prod") else {}
        return self.view.row(row, value, axis=(axis,), keepdims=True, **options)

    _tosa_reduce_sum = _tosa_reduce_max = _tosa_reduce_min = _tosa_reduce_product = _tosa_reduced
    _tosa_reduce_prod = _tosa_reduce_all = _tosa_reduce_any = _tosa_reduced


def _number(value: Value, what: str) -> int:
    """A value that must be known when the function is traced."""
    if not is_known(value):
        raise ShardwrightError(
            f"The {what} depends on data or on the device. It must be known when the program is traced."
        )
    return int(value)
