"""Operations of elements: arithmetic, comparisons, activations. Operands come in the dtype that torch computes in."""

import math
import operator
from typing import Any

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.table import cast, elementwise, in_float32, numpy_dtype, row


def _scaled(function: Any) -> Any:
    return lambda a, b, alpha=1: function(a, b if alpha == 1 else b * alpha)


def _reversed(a: Any, b: Any, alpha: Any = 1) -> Any:
    return b - (a if alpha == 1 else a * alpha)


def _divided(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    if rounding_mode == "floor":
        return xp.floor_divide(a, b)
    if _kind(a, b) in "iu":  # towards zero, without a float between
        quotient = xp.floor_divide(a, b)
        return xp.where((quotient < 0) & (quotient * b != a), quotient + 1, quotient)
    return xp.trunc(a / b)


def _kind(*operands: Any) -> str:
    return next(x.dtype.kind for x in operands if isinstance(x, Array))


def _power(a: Any, b: Any) -> Any:
    if not isinstance(b, Array):
        if b == 2:
            return xp.square(a)
        if b == 0.5:
            return xp.sqrt(a)
        if b == -0.5:
            return 1 / xp.sqrt(a)
        if b == 3:
            return xp.square(a) * a
    return xp.pow(a, b)


def _fmod(a: Any, b: Any) -> Any:
    rest = xp.remainder(a, b)  # has the sign of b; fmod's has that of a
    return xp.where((rest != 0) & ((a < 0) != (b < 0)), rest - b, rest)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


elementwise(
    {
        "add.Tensor add.Scalar": _scaled(operator.add),
        "sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar": _scaled(operator.sub),
        "rsub.Tensor rsub.Scalar": _reversed,
        "mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar": operator.mul,
        "div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar": operator.truediv,
        "div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode": _divided,
        "floor_divide floor_divide.Scalar": xp.floor_divide,
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": xp.remainder,
        "fmod.Tensor fmod.Scalar": _fmod,
        "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar": _power,
        "neg negative": operator.neg,
        "abs": xp.abs,
        "sign sgn": xp.sign,
        "square": xp.square,
        "reciprocal": lambda x: 1 / x,
        "exp": xp.exp,
        "exp2": xp.exp2,
        "expm1": xp.expm1,
        "log": xp.log,
        "log2": xp.log2,
        "log10": xp.log10,
        "log1p": xp.log1p,
        "sqrt": xp.sqrt,
        "rsqrt": lambda x: 1 / xp.sqrt(x),
        "sin": xp.sin,
        "cos": xp.cos,
        "tan": xp.tan,
        "asin arcsin": xp.asin,
        "acos arccos": xp.acos,
        "atan arctan": xp.atan,
        "sinh": xp.sinh,
        "cosh": xp.cosh,
        "tanh": xp.tanh,
        "asinh arcsinh": xp.asinh,
        "acosh arccosh": xp.acosh,
        "atanh arctanh": xp.atanh,
        "atan2 arctan2": xp.atan2,
        "floor": xp.floor,
        "ceil": xp.ceil,
        "trunc fix": xp.trunc,
        "round": xp.round,
        "logaddexp": xp.logaddexp,
        "hypot": xp.hypot,
        "copysign.Tensor copysign.Scalar": xp.copysign,
        "maximum max.other": xp.maximum,
        "minimum min.other": xp.minimum,
        "fmax": xp.fmax,
        "fmin": xp.fmin,
        "clamp clamp.Tensor clip clip.Tensor": _clamp,
        "clamp_min clamp_min.Tensor": xp.maximum,
        "clamp_max clamp_max.Tensor": xp.minimum,
        "eq.Tensor eq.Scalar": xp.equal,
        "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar": xp.not_equal,
        "lt.Tensor lt.Scalar less.Tensor less.Scalar": xp.less,
        "le.Tensor le.Scalar less_equal.Tensor less_equal.Scalar": xp.less_equal,
        "gt.Tensor gt.Scalar greater.Tensor greater.Scalar": xp.greater,
        "ge.Tensor ge.Scalar greater_equal.Tensor greater_equal.Scalar": xp.greater_equal,
        "__and__.Tensor __and__.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": xp.bitwise_and,
        "__or__.Tensor __or__.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": xp.bitwise_or,
        "__xor__.Tensor __xor__.Scalar bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor": xp.bitwise_xor,
        "__lshift__.Tensor __lshift__.Scalar bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": (
            xp.bitwise_left_shift
        ),
        "__rshift__.Tensor __rshift__.Scalar bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": (
            xp.bitwise_right_shift
        ),
        "bitwise_not": xp.bitwise_invert,
        "lerp.Scalar lerp.Tensor": lambda a, b, weight: a + (b - a) * weight,
        "addcmul": lambda x, a, b, value=1: x + a * b * value,
        "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    }
)
elementwise(
    {
        "logical_not": xp.logical_not,
        "logical_and": xp.logical_and,
        "logical_or": xp.logical_or,
        "logical_xor": xp.logical_xor,
        "isnan": xp.isnan,
        "isinf": xp.isinf,
        "isfinite": xp.isfinite,
    },
    promotes=None,
)


@row("erf special_erf", elementwise=True, promotes=0)
@in_float32
def erf(x: Array) -> Array:
    """From the exact gelu, which has it: gelu(x) = x / 2 · (1 + erf(x / √2)). Near 0, where that divides by 0, by a series."""
    scaled = x * math.sqrt(2)
    safe = xp.where(scaled == 0, 1.0, scaled)
    found = 2 * nn.gelu(safe) / safe - 1
    return xp.where(xp.abs(x) < 1e-2, x * (2 / math.sqrt(math.pi)) * (1 - x * x / 3 + xp.square(x * x) / 10), found)


@row("where.self where.ScalarOther where.ScalarSelf where.Scalar", elementwise=True, promotes=1)
def where(condition: Any, a: Any, b: Any) -> Array:
    """Elements of the first where the condition holds."""
    condition = condition if condition.dtype.kind == "b" else condition != 0
    return xp.where(condition, a, b)


@row("masked_fill.Scalar masked_fill.Tensor", elementwise=True)
def masked_fill(x: Any, mask: Any, value: Any) -> Array:
    """The value where the mask holds."""
    if isinstance(value, Array):
        value = cast(value, x.dtype)
    elif x.dtype.kind in "iu":
        value = int(value)
    return xp.where(mask, value, x)


# -- activations -----------------------------------------------------------------------------------------------------


def _gelu(x: Any, approximate: str = "none") -> Any:
    return nn.gelu(x, approximate)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else x * beta
    smooth = xp.maximum(scaled, 0) + xp.log1p(xp.exp(-xp.abs(scaled)))
    return xp.where(scaled > threshold, x, smooth if beta == 1 else smooth / beta)


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return xp.where(x > 0, x * scale, xp.expm1(xp.minimum(x, 0) * input_scale) * (alpha * scale))


def _leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return xp.where(x > 0, x, x * slope)


SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # alpha and scale

elementwise(
    {
        "relu": nn.relu,
        "relu6": lambda x: _clamp(x, 0, 6),
        "hardtanh": lambda x, low=-1, high=1: _clamp(x, low, high),
        "threshold": lambda x, threshold, value: xp.where(x > threshold, x, value),
        "sigmoid special_expit": in_float32(nn.sigmoid),
        "silu": in_float32(nn.silu),
        "mish": in_float32(lambda x: x * xp.tanh(_softplus(x))),
        "gelu": in_float32(_gelu),
        "softplus": in_float32(_softplus),
        "log_sigmoid": in_float32(lambda x: -_softplus(-x)),
        "elu": in_float32(_elu),
        "selu": in_float32(lambda x: _elu(x, *SELU)),
        "celu": in_float32(lambda x, alpha=1: _elu(x, alpha, 1, 1 / alpha)),
        "leaky_relu": _leaky_relu,
        "hardsigmoid": in_float32(lambda x: _clamp(x + 3, 0, 6) / 6),
        "hardswish": in_float32(lambda x: x * _clamp(x + 3, 0, 6) / 6),
        "logit": in_float32(lambda x, eps=None: xp.log((y := x if eps is None else _clamp(x, eps, 1 - eps)) / (1 - y))),
    }
)


@row("prelu _prelu_kernel")
def prelu(x: Array, weight: Array) -> Array:
    """A slope for each channel, the second dim, below 0."""
    if weight.ndim == 1 and weight.shape[0] > 1:
        weight = xp.reshape(weight, (-1, *(1,) * (x.ndim - 2)))
    return xp.where(x > 0, x, x * weight)


@row("glu")
def glu(x: Array, dim: int = -1) -> Array:
    """The first half times the sigmoid of the second."""
    half, lead = x.shape[dim] // 2, (slice(None),) * (dim % x.ndim)
    return x[(*lead, slice(None, half))] * nn.sigmoid(x[(*lead, slice(half, None))])


# -- copies and dtypes -----------------------------------------------------------------------------------------------


@row("_to_copy to.dtype to.device to.dtype_layout to.other")
def to(x: Array, *args: Any, dtype: Any = None, **options: Any) -> Array:
    """The same elements; the result's dtype is known from the graph."""
    return _converted(x, dtype)


def _converted(x: Array, dtype: Any) -> Array:
    wanted = x.dtype if dtype is None else numpy_dtype(dtype)
    if x.dtype.kind not in "biu" and wanted.kind in "iu":
        return xp.astype(xp.trunc(x), wanted)
    return x if wanted == x.dtype else xp.astype(x, wanted)


@row("type_as")
def type_as(x: Array, other: Array) -> Array:
    """The dtype of another array."""
    return _converted(x, other.dtype)


@row("clone alias contiguous detach lift_fresh lift_fresh_copy positive alias_copy detach_copy")
def same(x: Array, *args: Any, **options: Any) -> Array:
    """The array itself: nothing is changed in place."""
    return x


@row("dropout feature_dropout alpha_dropout")
def dropout(x: Array, p: float, train: bool | None = None) -> Any:
    """Nothing in inference; refused in training, which would need torch's random numbers."""
    if train and p:
        raise ModelError(f"dropout with p={p} in training: load the model in inference mode, after model.eval().")
    return x


@row("native_dropout")
def native_dropout(x: Array, p: float, train: bool | None = None) -> tuple[Array, Array]:
    """As dropout, and the mask of what is kept."""
    return dropout(x, p, train), xp.isfinite(x) | True
