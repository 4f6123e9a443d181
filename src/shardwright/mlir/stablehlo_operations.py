"""StableHLO's operations in the words of `shardwright.xla`: a table from names to functions of an operation and operands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright import xla
from shardwright.errors import OperationError
from shardwright.mlir.stablehlo_text import constant, dtype_of, integer, integers
from shardwright.xla import ELEMENTWISE, MONOIDS, Layout, Monoid, Numbers, Value, Window

Operation = Any
Region = Callable[..., list[Value]]  # a region as a function of values
Function = Callable[..., Any]

_RENAMED = {"chlo.next_after": "nextafter", "stablehlo.round_nearest_afz": "round_nearest_afz"}
_CHLO = "acos acosh asin asinh atan atanh cosh sinh digamma erf erf_inv erfc lgamma square conj".split()


def _result(op: Operation) -> tuple[tuple[int, ...], str]:
    kind = op.results[0].type
    return tuple(kind.shape), str(kind.element_type)


def _dtype(op: Operation) -> "np.dtype[Any]":
    dtype = dtype_of(_result(op)[1])
    assert dtype is not None
    return dtype


def _elementwise(name: str) -> Function:
    return lambda op, *operands: ELEMENTWISE[name](*operands)


def _compare(op: Operation, x: Value, y: Value) -> Value:
    words = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater", "GE": "greater_equal"}
    direction = _word(op, "comparison_direction")
    if _word(op, "compare_type") == "TOTALORDER":
        x, y = xla.total_order(x), xla.total_order(y)
    return ELEMENTWISE[words[direction]](x, y)


def _word(op: Operation, name: str) -> str:
    """The last word of an enumeration: `#stablehlo<comparison_direction LT>`."""
    return str(op.attributes[name]).rstrip(">").split()[-1] if name in op.attributes else ""


def _pairs(op: Operation, name: str, count: int) -> tuple[tuple[int, int], ...]:
    flat = integers(op, name, (0, 0) * count)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _window(op: Operation, rank: int, base: str, dilation: str) -> Window:
    ones = (1,) * rank
    reversal = tuple(bool(flag) for flag in integers(op, "window_reversal"))
    strides = integers(op, "window_strides", ones)
    pads = _pairs(op, "padding", rank)
    return Window(strides, pads, integers(op, base, ones), integers(op, dilation, ones), reversal)


def _slice(op: Operation, x: Value) -> Value:
    return xla.static_slice(
        x, integers(op, "start_indices"), integers(op, "limit_indices"), integers(op, "strides") or None
    )


def _pad(op: Operation, x: Value, value: Value) -> Value:
    low, high, interior = (integers(op, name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return xla.pad(x, value, low, high, interior)


def _dot_general(op: Operation, x: Value, y: Value) -> Value:
    from jaxlib.mlir.dialects import stablehlo

    d = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contract = tuple(d.lhs_contracting_dimensions), tuple(d.rhs_contracting_dimensions)
    batch = tuple(d.lhs_batching_dimensions), tuple(d.rhs_batching_dimensions)
    return xla.dot_general(x, y, contract, batch, _dtype(op))


def _convolution(op: Operation, x: Value, w: Value) -> Value:
    from jaxlib.mlir.dialects import stablehlo

    d = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    layout = Layout(
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (d.kernel_output_feature_dimension, d.kernel_input_feature_dimension, *d.kernel_spatial_dimensions),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    )
    window = _window(op, x.ndim - 2, "lhs_dilation", "rhs_dilation")
    groups, batches = integer(op, "feature_group_count", 1), integer(op, "batch_group_count", 1)
    return xla.convolution(x, w, layout, window, groups, batches, _dtype(op))


def _last(indices: Value, dim: int) -> Value:
    """Indices with the dim that holds a vector of them last."""
    if dim == indices.ndim:
        return xla.expand(indices, dim)
    return xla.permute(indices, (*(d for d in range(indices.ndim) if d != dim), dim))


def _numbers(d: Any, names: str) -> Numbers:
    """Which dims a gather or scatter reads and writes, by the names of the five lists."""
    return Numbers(*(tuple(getattr(d, name)) for name in names.split()))


def _gather(op: Operation, x: Value, indices: Value) -> Value:
    from jaxlib.mlir.dialects import stablehlo

    d = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    numbers = _numbers(
        d, "offset_dims collapsed_slice_dims start_index_map operand_batching_dims start_indices_batching_dims"
    )
    return xla.gather(x, _last(indices, d.index_vector_dim), numbers, integers(op, "slice_sizes"), xla.CLIP)


def _scatter(op: Operation, x: Value, indices: Value, updates: Value, *more: Value, regions: Sequence[Region]) -> Value:
    from jaxlib.mlir.dialects import stablehlo

    if more:
        raise OperationError("A scatter of several operands at once is not supported. Scatter one by one.")
    d = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    names = "update_window_dims inserted_window_dims scattered_dims_to_operand_dims input_batching_dims"
    numbers = _numbers(d, f"{names} scatter_indices_batching_dims")
    block = op.regions[0].blocks[0]
    last = list(block.operations)[-1]
    monoid = None if last.operation.operands[0] == block.arguments[1] else monoid_of(op)
    return xla.scatter(x, _last(indices, d.index_vector_dim), updates, numbers, monoid, xla.FILL)


def monoid_of(op: Operation, region: int = 0) -> Monoid:
    """The associative function of two elements that a region is."""
    block = op.regions[region].blocks[0]
    inside = [each.operation for each in block.operations]
    name = inside[0].name.removeprefix("stablehlo.") if inside else ""
    if len(inside) == 2 and name in MONOIDS and {*inside[0].operands} == {*block.arguments}:
        return MONOIDS[name]
    names = ", ".join(each.name for each in inside[:-1]) or "nothing"
    raise OperationError(
        f"A region of {names} is not a reduction that is supported. Use one of {', '.join(MONOIDS)} on its two arguments."
    )


def _reduce(op: Operation, *operands: Value, regions: Sequence[Region]) -> Any:
    dims, half = integers(op, "dimensions"), len(operands) // 2
    if half == 1:
        return xla.reduce(operands[0], monoid_of(op), dims, operands[1])
    if half == 2 and len(dims) == 1:
        name = _extreme(operands, regions[0])
        index = operands[1]
        if name and xla.is_known(index) and (index == xla.iota(index.shape, dims[0], index.dtype)).all():
            value = xla.reduce(operands[0], MONOIDS["maximum" if name == "argmax" else "minimum"], dims)
            return [value, xla.argument(operands[0], name, dims[0], index.dtype)]
    raise OperationError("A reduction of several operands at once is not supported, except for argmax and argmin.")


def _extreme(operands: Sequence[Value], region: Region) -> str:
    """Whether a region of (value, index) pairs selects the first maximum ("argmax") or minimum; "" if neither."""

    def chosen(first: tuple[int, int], second: tuple[int, int]) -> tuple[Any, ...]:
        given = [np.asarray(n, x.dtype) for n, x in zip((*first, *second), (*operands[:2], *operands[:2]), strict=True)]
        return tuple(part.item() for part in region(*given))

    ties = chosen((1, 3), (1, 2)) == chosen((1, 2), (1, 3)) == (1, 2)
    for name, wanted in (("argmax", (1, 6)), ("argmin", (0, 5))):
        if ties and chosen((0, 5), (1, 6)) == chosen((1, 6), (0, 5)) == wanted:
            return name
    return ""


def _reduce_window(op: Operation, x: Value, init: Value, *more: Value, regions: Sequence[Region]) -> Value:
    if more:
        raise OperationError("A reduction of windows of several operands is not supported. Reduce one by one.")
    window = _window(op, x.ndim, "base_dilations", "window_dilations")
    return xla.reduce_window(x, monoid_of(op), integers(op, "window_dimensions"), window, init)


def _select_and_scatter(op: Operation, x: Value, source: Value, init: Value, regions: Sequence[Region]) -> Value:
    block = op.regions[0].blocks[0]
    first = next(iter(block.operations)).operation
    keeps = xla.KEEPS.get(_word(first, "comparison_direction").lower()) if first.name == "stablehlo.compare" else None
    if keeps is None or list(first.operands) != list(block.arguments) or monoid_of(op, 1).name != "add":
        raise OperationError("A select_and_scatter is supported only if it compares elements and adds sources.")
    window = _window(op, x.ndim, "base_dilations", "window_dilations")
    return xla.select_and_scatter(x, source, keeps, integers(op, "window_dimensions"), window, init)


def _sort(op: Operation, *operands: Value, regions: Sequence[Region]) -> list[Value]:
    return xla.sort(operands, integer(op, "dimension"), _keys(operands, regions[0]))


def _keys(operands: Sequence[Value], region: Region) -> list[tuple[int, bool]]:
    """The keys that a comparison sorts by, the first one first: found by comparing elements that differ in one or two."""

    def less(differ: dict[int, tuple[int, int]]) -> bool:
        pairs = [differ.get(i, (0, 0)) for i in range(len(operands))]
        given = [np.asarray(n, x.dtype) for x, pair in zip(operands, pairs, strict=True) for n in pair]
        return bool(region(*given)[0])

    rising = {i: less({i: (0, 1)}) for i in range(len(operands))}
    keys = [i for i in rising if rising[i] != less({i: (1, 0)})]
    if not keys:
        raise OperationError(
            "The comparison of a sort does not order its operands. Compare two elements of one of them."
        )

    def first(a: int, b: int) -> bool:
        """Whether key a counts more than b: what they say differs, and a is followed."""
        said = {a: (0, 1) if rising[a] else (1, 0), b: (1, 0) if rising[b] else (0, 1)}
        return less(said)

    keys.sort(key=lambda a: sum(first(b, a) for b in keys if b != a))
    return [(key, not rising[key]) for key in keys]


def _round(op: Operation, x: Value) -> Value:
    bits = integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    return xla.reduce_precision(x, *bits)


def _custom_call(op: Operation, *operands: Value) -> Any:
    name = str(op.attributes["call_target_name"]).strip('"')
    if name in ("Sharding", "annotate_device_placement"):
        return operands[0]
    raise OperationError(f"The custom call @{name} is not supported: nothing here says what it computes.")


def _identity(op: Operation, *operands: Value) -> Any:
    return list(operands)


OPERATIONS: dict[str, Function] = {
    **{f"stablehlo.{name}": _elementwise(name) for name in ELEMENTWISE},
    **{f"chlo.{name}": _elementwise(name) for name in _CHLO},
    **{theirs: _elementwise(ours) for theirs, ours in _RENAMED.items()},
    "stablehlo.constant": lambda op: constant(op),
    "stablehlo.iota": lambda op: xla.iota(_result(op)[0], integer(op, "iota_dimension"), _dtype(op)),
    "stablehlo.compare": _compare,
    "stablehlo.select": lambda op, which, x, y: xla.where(which, x, y),
    "stablehlo.convert": lambda op, x: xla.convert(x, _dtype(op)),
    "stablehlo.bitcast_convert": lambda op, x: xla.bitcast(x, _dtype(op)),
    "stablehlo.reduce_precision": _round,
    "stablehlo.broadcast_in_dim": lambda op, x: xla.broadcast_in_dim(
        x, _result(op)[0], integers(op, "broadcast_dimensions")
    ),
    "stablehlo.reshape": lambda op, x: xla.reshape(x, _result(op)[0]),
    "stablehlo.transpose": lambda op, x: xla.permute(x, integers(op, "permutation")),
    "stablehlo.reverse": lambda op, x: xla.reverse(x, integers(op, "dimensions")),
    "stablehlo.concatenate": lambda op, *x: xla.concatenate(x, integer(op, "dimension")),
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dynamic_slice": lambda op, x, *starts: xla.dynamic_slice(x, starts, integers(op, "slice_sizes")),
    "stablehlo.dynamic_update_slice": lambda op, x, update, *starts: xla.dynamic_update_slice(x, update, starts),
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
    "chlo.top_k": lambda op, x: list(xla.top_k(x, integer(op, "k"), x.ndim - 1)),
    "stablehlo.dot_general": _dot_general,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.optimization_barrier": _identity,
}
