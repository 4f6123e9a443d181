"""lax's primitives in the words of `shardwright.xla`: a table from names to functions of operands and parameters.

A function gets values (NumPy arrays or Arrays) and the equation's parameters, and gives a value or a list of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from shardwright import xla
from shardwright.errors import OperationError
from shardwright.xla import ELEMENTWISE, MONOIDS, Layout, Monoid, Numbers, Value, Window

Params = Mapping[str, Any]
Function = Callable[..., Any]

_SAME = """
and or xor not sign sqrt rsqrt cbrt tan tanh asin acos atan sinh cosh asinh acosh atanh abs floor ceil is_finite real imag
conj complex atan2 nextafter square exp2 logistic erf erfc erf_inv lgamma digamma clamp log shift_left shift_right_logical
shift_right_arithmetic
""".split()
_RENAMED = {
    "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "rem": "remainder",
    "max": "maximum", "min": "minimum", "neg": "negate", "pow": "power", "exp": "exponential",
    "expm1": "exponential_minus_one", "log1p": "log_plus_one", "sin": "sine", "cos": "cosine", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "population_count": "popcnt", "clz": "count_leading_zeros",
}  # fmt: skip
_MOVED_ON = """
copy copy_p name stop_gradient pvary layout_constraint optimization_barrier device_put random_wrap random_unwrap
"""
MONOID_OF = {
    "add": "add",
    "mul": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
    "xor": "xor",
}


def _elementwise(name: str) -> Function:
    function = ELEMENTWISE[name]

    def run(*operands: Value, out_dtype: Any = None, **_: Any) -> Value:
        if out_dtype is not None:
            operands = tuple(xla.convert(x, out_dtype) for x in operands)
        return function(*operands)

    return run


def _reduction(name: str) -> Function:
    return lambda x, axes, **_: xla.reduce(x, MONOIDS[name], axes)


def _argument(name: str) -> Function:
    return lambda x, axes, index_dtype, **_: xla.argument(x, name, axes[0], np.dtype(index_dtype))


def _cumulative(name: str) -> Function:
    return lambda x, axis, reverse, **_: xla.cumulative(x, name, axis, reverse)


def _window(params: Params) -> Window:
    rank = len(params["window_dimensions"])
    return Window(
        tuple(params["window_strides"]),
        tuple(map(tuple, params["padding"])),
        tuple(params.get("base_dilation", (1,) * rank)),
        tuple(params.get("window_dilation", (1,) * rank)),
    )


def _windows(name: str) -> Function:
    return lambda x, **params: xla.reduce_window(x, MONOIDS[name], params["window_dimensions"], _window(params))


def monoid_of(jaxpr: Any) -> Monoid:
    """The associative function that a jaxpr of two scalars is."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    eqns = jaxpr.eqns
    if len(eqns) == 1 and eqns[0].primitive.name in MONOID_OF and set(eqns[0].invars) == set(jaxpr.invars):
        return MONOIDS[MONOID_OF[eqns[0].primitive.name]]
    names = ", ".join(eqn.primitive.name for eqn in eqns) or "nothing"
    raise OperationError(
        f"a reduction by a function of {names} is not supported. Use one of {', '.join(MONOID_OF)} on the two operands."
    )


def _reduce(*operands: Value, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> Value:
    if len(operands) != 2:
        raise OperationError(
            f"a reduction of {len(operands) // 2} operands at once is not supported. Reduce one by one."
        )
    return xla.reduce(operands[0], monoid_of(jaxpr), dimensions, operands[1])


def _reduce_window(x: Value, init: Value, *more: Value, jaxpr: Any, **params: Any) -> Value:
    if more:
        raise OperationError("a reduction of windows of several operands is not supported. Reduce one by one.")
    return xla.reduce_window(x, monoid_of(jaxpr), params["window_dimensions"], _window(params), init)


def _selecting(function: Function, flipped: bool) -> Function:
    def run(source: Value, x: Value, select_prim: Any, **params: Any) -> Value:
        keeps = xla.KEEPS[select_prim.name]
        return function(x, source, keeps, params["window_dimensions"], _window(params))

    return run


def _dot_general(x: Value, y: Value, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any) -> Value:
    contract, batch = dimension_numbers
    return xla.dot_general(x, y, contract, batch, preferred_element_type)


def _ragged_dot(
    x: Value, y: Value, sizes: Value, ragged_dot_dimension_numbers: Any, preferred_element_type: Any = None, **_: Any
) -> Value:
    d = ragged_dot_dimension_numbers
    contract, batch = d.dot_dimension_numbers
    if batch[0] or len(d.lhs_ragged_dimensions) != 1 or sizes.ndim != 1:
        raise OperationError("a ragged product with batch dims is not supported. Map over them, or write it as a loop.")
    ragged, groups = d.lhs_ragged_dimensions[0], tuple(d.rhs_group_dimensions)
    return xla.ragged_dot(x, y, sizes, contract, ragged, groups, preferred_element_type)


def _convolution(x: Value, w: Value, dimension_numbers: Any, **params: Any) -> Value:
    numbers = dimension_numbers
    layout = Layout(tuple(numbers.lhs_spec), tuple(numbers.rhs_spec), tuple(numbers.out_spec))
    window = Window(
        tuple(params["window_strides"]),
        tuple(map(tuple, params["padding"])),
        tuple(params["lhs_dilation"]),
        tuple(params["rhs_dilation"]),
    )
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    return xla.convolution(x, w, layout, window, groups, batches, params.get("preferred_element_type"))


_MODES = {
    GatherScatterMode.CLIP: xla.CLIP,
    GatherScatterMode.FILL_OR_DROP: xla.FILL,
    GatherScatterMode.PROMISE_IN_BOUNDS: xla.PROMISE,
    GatherScatterMode.ONE_HOT: xla.PROMISE,
}


def _gather(
    x: Value, indices: Value, dimension_numbers: Any, slice_sizes: Sequence[int], mode: Any, fill_value: Any, **_: Any
) -> Value:
    d = dimension_numbers
    numbers = Numbers(
        d.offset_dims, d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims, d.start_indices_batching_dims
    )
    return xla.gather(x, indices, numbers, slice_sizes, _MODES[GatherScatterMode.from_any(mode)], fill_value)


def _scatter(name: str | None, negated: bool = False) -> Function:
    def run(x: Value, indices: Value, updates: Value, dimension_numbers: Any, mode: Any, **_: Any) -> Value:
        d = dimension_numbers
        numbers = Numbers(
            d.update_window_dims,
            d.inserted_window_dims,
            d.scatter_dims_to_operand_dims,
            d.operand_batching_dims,
            d.scatter_indices_batching_dims,
        )
        monoid = None if name is None else MONOIDS[name]
        values = ELEMENTWISE["negate"](updates) if negated else updates
        return xla.scatter(x, indices, values, numbers, monoid, _MODES[GatherScatterMode.from_any(mode)])

    return run


def _dynamic_slice(x: Value, *starts: Value, slice_sizes: Sequence[int]) -> Value:
    return xla.dynamic_slice(x, starts, slice_sizes)


def _dynamic_update_slice(x: Value, update: Value, *starts: Value) -> Value:
    return xla.dynamic_update_slice(x, update, starts)


def _pad(x: Value, value: Value, padding_config: Sequence[tuple[int, int, int]]) -> Value:
    low, high, interior = zip(*padding_config, strict=True) if padding_config else ((), (), ())
    return xla.pad(x, value, low, high, interior)


def _sort(*operands: Value, dimension: int, num_keys: int, **_: Any) -> list[Value]:
    return xla.sort(operands, dimension, [(key, False) for key in range(num_keys)])


def _top_k(x: Value, k: int, axis: int = -1, **_: Any) -> list[Value]:
    return list(xla.top_k(x, k, axis % x.ndim))


def _round(x: Value, rounding_method: Any) -> Value:
    return ELEMENTWISE["round_nearest_afz" if int(rounding_method) == 0 else "round_nearest_even"](x)


def _integer_pow(x: Value, y: int) -> Value:
    return xla.integer_power(x, y)


def _reshape(x: Value, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Value:
    return xla.reshape(x if dimensions is None else xla.permute(x, dimensions), new_sizes)


def _squeeze(x: Value, dimensions: Sequence[int]) -> Value:
    return xla.reshape(x, [n for d, n in enumerate(x.shape) if d not in dimensions])


def _unstack(x: Value, axis: int) -> list[Value]:
    shape = [n for d, n in enumerate(x.shape) if d != axis]
    return [xla.reshape(part, shape) for part in xla.split(x, (1,) * x.shape[axis], axis)]


def _identity(*operands: Value, **_: Any) -> Any:
    return list(operands) if len(operands) != 1 else operands[0]


def _platform_index(platforms: Sequence[Any], **_: Any) -> Value:
    """The number of the branch for CPUs, or of the default one."""
    found = [i for i, names in enumerate(platforms) if names is None or "cpu" in names]
    return np.asarray(found[0] if found else len(platforms) - 1, np.int32)


PRIMITIVES: dict[str, Function] = {
    **{name: _elementwise(name) for name in _SAME},
    **{theirs: _elementwise(ours) for theirs, ours in _RENAMED.items()},
    **dict.fromkeys(_MOVED_ON.split(), _identity),
    "integer_pow": _integer_pow,
    "round": _round,
    "select_n": xla.select,
    "convert_element_type": lambda x, new_dtype, **_: xla.convert(x, new_dtype),
    "bitcast_convert_type": lambda x, new_dtype, **_: xla.bitcast(x, new_dtype),
    "reduce_precision": lambda x, exponent_bits, mantissa_bits: xla.reduce_precision(x, exponent_bits, mantissa_bits),
    # moves
    "broadcast_in_dim": lambda x, shape, broadcast_dimensions, **_: xla.broadcast_in_dim(
        x, shape, broadcast_dimensions
    ),
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": lambda x, dimensions: xla.reshape(x, np.expand_dims(np.empty(x.shape, bool), dimensions).shape),
    "transpose": lambda x, permutation: xla.permute(x, permutation),
    "rev": lambda x, dimensions: xla.reverse(x, dimensions),
    "concatenate": lambda *x, dimension: xla.concatenate(x, dimension),
    "stack": lambda *x, axis: xla.concatenate([xla.expand(each, axis) for each in x], axis),
    "unstack": _unstack,
    "slice": lambda x, start_indices, limit_indices, strides: xla.static_slice(
        x, start_indices, limit_indices, strides
    ),
    "split": lambda x, sizes, axis: xla.split(x, sizes, axis),
    "tile": lambda x, reps: xla.tile(x, reps),
    "pad": _pad,
    "iota": lambda shape, dimension, dtype, **_: xla.iota(shape, dimension, dtype),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter(None),
    "scatter-add": _scatter("add"),
    "scatter-sub": _scatter("add", negated=True),
    "scatter-mul": _scatter("multiply"),
    "scatter-min": _scatter("minimum"),
    "scatter-max": _scatter("maximum"),
    # along dims
    "reduce_sum": _reduction("add"),
    "reduce_prod": _reduction("multiply"),
    "reduce_max": _reduction("maximum"),
    "reduce_min": _reduction("minimum"),
    "reduce_and": _reduction("and"),
    "reduce_or": _reduction("or"),
    "reduce_xor": _reduction("xor"),
    "reduce": _reduce,
    "argmax": _argument("argmax"),
    "argmin": _argument("argmin"),
    "cumsum": _cumulative("add"),
    "cumprod": _cumulative("multiply"),
    "cummax": _cumulative("maximum"),
    "cummin": _cumulative("minimum"),
    "cumlogsumexp": _cumulative("logsumexp"),
    "sort": _sort,
    "top_k": _top_k,
    # products and windows
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
    "reduce_window": _reduce_window,
    "reduce_window_sum": _windows("add"),
    "reduce_window_max": _windows("maximum"),
    "reduce_window_min": _windows("minimum"),
    "select_and_scatter_add": _selecting(xla.select_and_scatter, False),
    "select_and_gather_add": _selecting(xla.select_and_gather, True),
    # random bits
    "threefry2x32": lambda k0, k1, x0, x1: list(xla.threefry(k0, k1, x0, x1)),
    "iota_2x32_shape": lambda shape: list(xla.counts(shape)),
    "platform_index": _platform_index,
}
