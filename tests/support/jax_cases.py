"""Functions of JAX, one or a few for each primitive that `sw.jax.load` knows, with arguments that reach its corners."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

rng = np.random.default_rng(0)
BF16 = ml_dtypes.bfloat16


def floats(*shape, dtype=np.float32, scale=1.0):
    return np.asarray(rng.normal(size=shape) * scale).astype(dtype)


def integers(*shape, low=-9, high=9, dtype=np.int32):
    return np.asarray(rng.integers(low, high, shape)).astype(dtype)


def booleans(*shape):
    return np.asarray(rng.random(shape) < 0.5)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 1e-20, 3e38], np.float32)
X, Y = floats(7, 6), floats(7, 6)
N, M = integers(7, 6), integers(7, 6)
U, V = integers(7, 6, low=0, high=2**31).astype(np.uint32), integers(7, 6, low=0, high=40).astype(np.uint32)
B, C = booleans(7, 6), booleans(7, 6)
INSIDE = np.clip(X / 3, -0.99, 0.99)
POSITIVE = np.abs(X) + 0.1
Z = (X + 1j * Y).astype(np.complex64)

CASES = {}


def case(name, function, *args, reference=None):
    assert name not in CASES
    CASES[name] = (function, args, reference)


# -- element by element -------------------------------------------------------------------------------------------------

for (
    f
) in "exp exp2 expm1 sin cos tan tanh logistic abs neg sign floor ceil square sinh cosh asinh atan cbrt erf".split():
    case(f, getattr(lax, f), X)
for f in "exp log sqrt rsqrt sign tanh abs floor logistic erf is_finite neg cbrt log1p square".split():
    case(f"{f} of special values", getattr(lax, f), SPECIAL)
for f in "log log1p sqrt rsqrt lgamma digamma erfc".split():
    case(f, getattr(lax, f), POSITIVE)
for f in "asin acos atanh erf_inv".split():
    case(f, getattr(lax, f), INSIDE)
case("acosh", lax.acosh, POSITIVE + 1)
case("lgamma of negative", lax.lgamma, np.array([-0.5, -1.5, -3.2, 0.0, 1.0, 2.0, 30.0], np.float32))
case("digamma of negative", lax.digamma, np.array([-0.5, -1.5, -3.2, 1.0, 2.0, 30.0], np.float32))
case("erf_inv of ends", lax.erf_inv, np.array([-1.0, 1.0, 0.0, 0.9999, -0.999999, 1e-8], np.float32))
for f in "add sub mul div max min atan2 rem nextafter".split():
    case(f, getattr(lax, f), X, Y)
case("pow", lax.pow, POSITIVE, Y)
case("pow of integers", lambda x, n: x**n, POSITIVE, N)
case("rem of special values", lax.rem, SPECIAL, np.roll(SPECIAL, 5))
case("max of NaN", lax.max, SPECIAL, np.roll(SPECIAL, 3))
for f in "add sub mul max min and or xor".split():
    case(
        f"{f} of integers",
        getattr(lax, {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}.get(f, f)),
        N,
        M,
    )
case("div of integers", lax.div, N, M)
case("rem of integers", lax.rem, N, M)
case("div of unsigned", lax.div, U, V)
case("rem of unsigned", lax.rem, U, V)
for f in "eq ne lt le gt ge".split():
    case(f, getattr(lax, f), N, M)
    case(f"{f} of special values", getattr(lax, f), SPECIAL, np.roll(SPECIAL, 3))
case("and of booleans", lax.bitwise_and, B, C)
case("not", lax.bitwise_not, B)
case("not of integers", lax.bitwise_not, N)
case("population_count", lax.population_count, U)
case("clz", lax.clz, U)
case("clz of int8", lax.clz, N.astype(np.int8))
case("shift_left", lax.shift_left, U, V)
case("shift_right_logical", lax.shift_right_logical, N, M)
case("shift_right_arithmetic", lax.shift_right_arithmetic, N, M)
case("shift by a constant", lambda x: (x << 3) ^ (x >> 2), U)
for power in (0, 1, 2, 3, 5, -1, -3):
    case(f"integer_pow {power}", lambda x, power=power: lax.integer_pow(x, power), X)
case("round", lax.round, np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 7.0], np.float32))
case(
    "round to even", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), np.arange(-6, 7, dtype=np.float32) / 2
)
case("clamp", lambda x: lax.clamp(-0.5, x, 0.5), X)
case("clamp by arrays", lax.clamp, Y - 1, X, Y)
case("select_n", lax.select_n, B, X, Y)
case("select_n of three", lambda i, x, y: lax.select_n(i, x, y, x + y), integers(7, 6, low=0, high=3), X, Y)
case("select_n by one boolean", lambda b, x, y: lax.select_n(b, x, y), np.asarray(True), X, Y)
for f in "real imag conj abs exp log sign sqrt tanh".split():
    case(f"{f} of complex", getattr(lax, f), Z)
case("complex", lax.complex, X, Y)
case("complex of infinite", lambda x: lax.complex(x, -x), SPECIAL)
case("sums of constants", lambda x: x * 2.0 + 1.0 - jnp.arange(6.0), X)
case("bf16", lambda x, y: jnp.tanh(x * y + 1) / (jnp.exp(y) + 2), X.astype(BF16), Y.astype(BF16))
case("f16", lambda x, y: lax.max(x, y) - x * 0.5, X.astype(np.float16), Y.astype(np.float16))
case("igamma", lax.igamma, POSITIVE, np.abs(Y) + 0.2)
case("bessel_i0e", lax.bessel_i0e, X)

# -- dtypes and bits ----------------------------------------------------------------------------------------------------

for dtype in "int8 uint8 int32 uint32 float16 bool complex64".split():
    case(f"convert to {dtype}", lambda x, dtype=dtype: lax.convert_element_type(x, dtype), X * 100)
    case(f"convert integers to {dtype}", lambda x, dtype=dtype: lax.convert_element_type(x, dtype), N)
case("convert beyond the range", lambda x: lax.convert_element_type(x, np.int32), SPECIAL)
case("convert bf16", lambda x: lax.convert_element_type(x, jnp.bfloat16), X)
case("bitcast", lambda x: lax.bitcast_convert_type(x, np.uint32), X)
case("bitcast back", lambda x: lax.bitcast_convert_type(x, np.float32), U)
case("bitcast to narrow", lambda x: lax.bitcast_convert_type(x, np.uint8), X)
case(
    "bitcast to wide",
    lambda x: lax.bitcast_convert_type(x, np.float32),
    integers(5, 6, 4, low=0, high=255).astype(np.uint8),
)
case("bitcast bf16", lambda x: lax.bitcast_convert_type(x, np.int16), X.astype(BF16))
for bits in ((8, 7), (5, 10), (4, 3), (8, 23), (5, 2)):
    case(
        f"reduce_precision {bits}",
        lambda x, bits=bits: lax.reduce_precision(x, *bits),
        np.concatenate([X.ravel() * 1000, SPECIAL]),
    )

# -- moves --------------------------------------------------------------------------------------------------------------

case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 7, 2, 6), (1, 3)), X)
case("broadcast of a size 1", lambda x: lax.broadcast_in_dim(x, (7, 6), (0, 1)), X[:1])
case("reshape", lambda x: lax.reshape(x, (6, 7)), X)
case("reshape joins", lambda x: x.reshape(-1), X)
case("reshape cuts", lambda x: x.reshape(7, 2, 3), X)
case("squeeze", lambda x: lax.squeeze(lax.expand_dims(x, (1,)), (1,)), X)
case("transpose", lambda x: lax.transpose(x, (1, 2, 0)), floats(5, 4, 6))
case("rev", lambda x: lax.rev(x, (0, 1)), X)
case("negative strides", lambda x: x[::-2, ::-1] + x[4::-1, :][:4], X)
case("concatenate", lambda x, y: lax.concatenate([x, y, x], 0), X, Y)
case("concatenate columns", lambda x, y: jnp.concatenate([x, y[:, :2]], 1), X, Y)
case("slice", lambda x: lax.slice(x, (1, 2), (6, 5)), X)
case("slice with strides", lambda x: lax.slice(x, (1, 0), (7, 6), (2, 3)), X)
case("split", lambda x: lax.split(x, (1, 4, 2), 0), X)
case("tile", lambda x: jnp.tile(x, (2, 3)), X)
case("repeat", lambda x: jnp.repeat(x, 3, axis=0), X)
case("unstack", lambda x: jnp.unstack(x, axis=1), X)
case("stack", lambda x, y: jnp.stack([x, y], 1), X, Y)
case("iota", lambda x: x + lax.broadcasted_iota(np.float32, (7, 6), 1) * lax.iota(np.float32, 6), X)
for config in (((1, 2, 0), (0, 0, 0)), ((0, 0, 2), (1, 0, 1)), ((-1, -2, 0), (2, -1, 0)), ((-2, 3, 1), (-1, -1, 2))):
    case(f"pad {config}", lambda x, config=config: lax.pad(x, np.float32(0), config), X)
    case(f"pad {config} with a value", lambda x, config=config: lax.pad(x, np.float32(-np.inf), config), X)
case("pad with a traced value", lambda x, v: lax.pad(x, v, ((1, 1, 1), (0, 2, 0))), X, np.float32(3))
case("pad integers", lambda x: lax.pad(x, np.int32(7), ((2, 0, 0), (0, 1, 1))), N)
case("roll", lambda x: jnp.roll(x, 2, axis=0), X)
case("dynamic_slice", lambda x, i, j: lax.dynamic_slice(x, (i, j), (3, 2)), X, np.int32(2), np.int32(3))
case("dynamic_slice beyond the end", lambda x, i: lax.dynamic_slice(x, (i, 0), (3, 6)), X, np.int32(6))
case("dynamic_slice before the start", lambda x, i: lax.dynamic_slice(x, (i, 1), (2, 4)), X, np.int32(-3))
case(
    "dynamic_update_slice",
    lambda x, y, i, j: lax.dynamic_update_slice(x, y, (i, j)),
    X,
    Y[:3, :2],
    np.int32(2),
    np.int32(5),
)
case("dynamic_update_slice of a row", lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)), X, Y[:1], np.int32(4))
case("update at known starts", lambda x, y: lax.dynamic_update_slice(x, y, (2, 1)), X, Y[:3, :2])
case("triangles", lambda x: jnp.tril(x) + jnp.triu(x, 1) * 2, X)
case("where", lambda b, x: jnp.where(b, x, 0.0), B, X)

# -- gather and scatter -------------------------------------------------------------------------------------------------

ROWS = np.array([3, 0, 6, 3, 1], np.int32)
WILD = np.array([3, -1, 9, -20, 6, 0], np.int32)
T = floats(7, 6, 4)
case("take", lambda x, i: x[i], X, ROWS)
case("take columns", lambda x, i: x[:, i], X, ROWS % 6)
case("take by a matrix", lambda x, i: jnp.take(x, i.reshape(1, 5), axis=0), T, ROWS)
for mode in ("clip", "fill", "wrap"):
    case(f"take {mode}", lambda x, i, mode=mode: jnp.take(x, i, axis=0, mode=mode), X, WILD)
case("take fill of integers", lambda x, i: jnp.take(x, i, axis=1, mode="fill"), N, WILD)
case("take with a fill value", lambda x, i: x.at[i].get(mode="fill", fill_value=5.0), X, WILD)
case("one row", lambda x, i: x[i], X, np.int32(4))
case("one known row", lambda x: x[4] + x[-1], X)
case("one element", lambda x, i: x[i, i], X, np.int32(3))
case("pairs", lambda x, i: x[i, i % 6], X, ROWS)
case("outer and inner", lambda x, i: x[i, :, i % 4], T, ROWS)
case("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), X, integers(7, 3, low=0, high=6))
case("take_along_axis 0", lambda x, i: jnp.take_along_axis(x, i, 0), X, integers(4, 6, low=0, high=7))
case("labels", lambda x, i: jnp.take_along_axis(x, i[:, None], 1)[:, 0], X, integers(7, low=0, high=6))
case(
    "labels of a sequence",
    lambda x, i: jnp.take_along_axis(x, i[..., None], -1)[..., 0],
    T,
    integers(7, 6, low=0, high=4),
)
case("windows", lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j, 1), (3, 2)))(i), X, ROWS)
case(
    "batched windows",
    lambda x, i: jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (3,)))(x, i),
    X,
    integers(7, low=-1, high=6),
)
case("batched rows", lambda x, i: jax.vmap(lambda t, j: t[j])(T * x[:, :1, None], i), X, integers(7, 3, low=0, high=6))
for op in ("set", "add", "multiply", "min", "max"):
    unique = op == "set"
    index = np.array([3, 0, 6, 2, 1], np.int32) if unique else ROWS
    case(f"at rows {op}", lambda x, i, v, op=op: getattr(x.at[i], op)(v), X, index, Y[:5])
    case(f"at known row {op}", lambda x, v, op=op: getattr(x.at[2], op)(v), X, Y[0])
    case(f"at pairs {op}", lambda x, i, v, op=op: getattr(x.at[i, i % 6], op)(v), X, index, Y[:5, 0])
    case(f"at columns {op}", lambda x, i, v, op=op: getattr(x.at[:, i], op)(v), X, index[:2] % 6, Y[:, :2])
    case(
        f"at labels {op}",
        lambda x, i, v, op=op: jax.vmap(lambda r, j, w: getattr(r.at[j], op)(w))(x, i, v),
        X,
        integers(7, low=0, high=6),
        Y[:, 0],
    )
    case(f"at integers {op}", lambda x, i, v, op=op: getattr(x.at[i], op)(v), N, index, M[:5])
for mode in ("clip", "drop"):
    case(f"at wild rows add {mode}", lambda x, i, v, mode=mode: x.at[i].add(v, mode=mode), X, WILD, Y[:6])
    case(f"at wild rows max {mode}", lambda x, i, v, mode=mode: x.at[i].max(v, mode=mode), X, WILD, Y[:6])
case("at wild rows set drop", lambda x, i, v: x.at[i].set(v, mode="drop"), X, np.array([3, 9, -20, 6], np.int32), Y[:4])
case("at windows add", lambda x, i, v: x.at[i, 1:4].add(v), X, ROWS, Y[:5, :3])
case(
    "batched rows add",
    lambda x, i, v: jax.vmap(lambda t, j, w: t.at[j].add(w))(x, i, v),
    T,
    integers(7, 3, low=0, high=6),
    floats(7, 3, 4),
)
case("gradient of take", lambda x, i: jax.grad(lambda x: (x[i] ** 2).sum())(x), X, ROWS)
case("gradient of a slice", lambda x: jax.grad(lambda x: (x[1:4, ::2] ** 2).sum() + x[2, 3])(x), X)
case(
    "gradient of dynamic_slice",
    lambda x, i: jax.grad(lambda x: (lax.dynamic_slice(x, (i, 0), (3, 6)) ** 2).sum())(x),
    X,
    np.int32(2),
)

# -- along dims ---------------------------------------------------------------------------------------------------------

for f in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"):
    case(f, lambda x, f=f: getattr(lax, f)(x, (0,)), X)
    case(f"{f} of integers", lambda x, f=f: getattr(lax, f)(x, (0, 1)), N % 3)
case("reduce_sum of bf16", lambda x: lax.reduce_sum(x, (0,)), X.astype(BF16))
case("reduce_sum of bools", lambda x: x.sum(), B)
case("reduce_and", lambda x: lax.reduce_and(x, (0,)), B)
case("reduce_or", lambda x: lax.reduce_or(x, (1,)), B)
case("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), B)
case("reduce_xor of integers", lambda x: lax.reduce_xor(x, (0,)), N)
case("reduce_and of integers", lambda x: lax.reduce_and(x, (0,)), U)
case("reduce", lambda x: lax.reduce(x, np.float32(3), lax.add, (0,)), X)
case("reduce_max of nothing", lambda x: lax.reduce_max(x, (0,)), np.zeros((0, 6), np.float32))
case("reduce_max with NaN", lambda x: lax.reduce_max(x, (0,)), SPECIAL)
for f in ("argmax", "argmin"):
    case(f, lambda x, f=f: getattr(lax, f)(x, 0, np.int32), X)
    case(f"{f} of equals", lambda x, f=f: getattr(lax, f)(x, 1, np.int32), N // 6)
    case(f"{f} with NaN", lambda x, f=f: getattr(lax, f)(x, 0, np.int32), SPECIAL)
for f in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    case(f, lambda x, f=f: getattr(lax, f)(x, 0), X)
    case(f"{f} reverse", lambda x, f=f: getattr(lax, f)(x, 1, reverse=True), X)
case("cumsum of integers", lambda x: lax.cumsum(x, 0), N)
case("cummax of integers", lambda x: lax.cummax(x, 0), N)
case("sort", lambda x: lax.sort(x, dimension=0), X)
case("sort special values", lambda x: lax.sort(x), SPECIAL)
case("sort integers descending", lambda x: -jnp.sort(-x, axis=1), N)
case("sort pairs", lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), N, Y)
case("sort by two keys", lambda x, y, z: lax.sort((x, y, z), dimension=0, num_keys=2), N // 4, M, X)
case("argsort", lambda x: jnp.argsort(x, axis=1), X)
case("top_k", lambda x: lax.top_k(x, 3), X)
case("top_k of equals", lambda x: lax.top_k(x, 4), N // 4)
case("logsumexp", lambda x: jax.nn.logsumexp(x, axis=1) + jax.nn.softmax(x, 0)[:, 0], X)
case("variance", lambda x: jnp.var(x, axis=0) + jnp.std(x), X)

# -- products and windows -----------------------------------------------------------------------------------------------

case("matmul", lambda x, y: x @ y.T, X, Y)
case("dot_general with batches", lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((2,), (1,)))), T, floats(5, 4, 6))
case("dot_general of two dims", lambda x, y: lax.dot_general(x, y, (((0, 2), (1, 0)), ((), ()))), T, floats(4, 7, 3))
case(
    "dot_general to f32",
    lambda x, y: lax.dot(x, y.T, preferred_element_type=np.float32),
    X.astype(BF16),
    Y.astype(BF16),
)
case(
    "dot_general of int8",
    lambda x, y: lax.dot(x, y.T, preferred_element_type=np.int32),
    N.astype(np.int8),
    M.astype(np.int8),
)
case("einsum", lambda x, y: jnp.einsum("abc,dbc->adb", x, y), T, floats(3, 6, 4))
case("vector product", lambda x, y: x[0] @ y[0], X, Y)
case("dot of complex", lambda x, y: x @ y.T, Z, Z)

GROUPS = np.array([2, 0, 3], np.int32)
MATRICES = floats(3, 6, 5)
case("ragged_dot", lax.ragged_dot, X, MATRICES, GROUPS)
case(
    "gradients of ragged_dot",
    lambda x, w, n: jax.grad(lambda x, w: (lax.ragged_dot(x, w, n) ** 2).sum(), (0, 1))(x, w),
    X,
    MATRICES,
    GROUPS,
)

NCHW, NHWC = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def conv(numbers, strides=(1, 1), padding="SAME", **options):
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, **options)


IMAGE, KERNEL = floats(2, 7, 6, 4), floats(3, 2, 4, 6)
case("conv", conv(NHWC), IMAGE, KERNEL)
case("conv NCHW", conv(NCHW), floats(2, 4, 7, 6), floats(6, 4, 3, 2))
case("conv CHWN", conv(("CHWN", "IHWO", "CHWN")), floats(4, 7, 6, 2), floats(4, 3, 2, 6))
case("conv with strides", conv(NHWC, (2, 3), "VALID"), IMAGE, KERNEL)
case("conv with padding", conv(NHWC, (2, 1), ((2, 1), (0, 3))), IMAGE, KERNEL)
case(
    "conv with negative padding",
    conv(NHWC, (1, 1), ((-1, 1), (0, -2))),
    IMAGE,
    KERNEL,
    # XLA's CPU compiler reads beyond the operand here
    reference=lambda x, w: conv(NHWC, (1, 1), "VALID")(jnp.pad(x[:, 1:, :-2], ((0, 0), (0, 1), (0, 0), (0, 0))), w),
)
case("conv with dilated windows", conv(NHWC, (1, 1), ((2, 2), (1, 1)), rhs_dilation=(2, 3)), IMAGE, KERNEL)
case("conv dilated", conv(NHWC, (1, 1), ((2, 2), (1, 1)), lhs_dilation=(2, 3)), IMAGE, KERNEL)
case("conv in groups", conv(NHWC, feature_group_count=2), IMAGE, floats(3, 2, 2, 6))
case("conv depthwise", conv(NHWC, (2, 1), feature_group_count=4), IMAGE, floats(3, 2, 1, 8))
case("conv in batch groups", conv(NHWC, batch_group_count=2), IMAGE, floats(3, 2, 4, 6))
case("conv 1d", conv(("NWC", "WIO", "NWC"), (2,), "SAME"), floats(2, 9, 4), floats(3, 4, 6))
case("conv transpose", lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), IMAGE, KERNEL)
case("conv of bf16", conv(NHWC, preferred_element_type=np.float32), IMAGE.astype(BF16), KERNEL.astype(BF16))
for options in (
    {"padding": "SAME"},
    {"strides": (2, 2), "padding": "VALID"},
    {"padding": ((1, 2), (0, 1)), "rhs_dilation": (2, 1)},
):
    case(
        f"gradients of conv {options}",
        lambda x, w, options=options: jax.grad(lambda x, w: (conv(NHWC, **options)(x, w) ** 2).sum(), (0, 1))(x, w),
        IMAGE,
        KERNEL,
    )
case(
    "gradients of conv in groups",
    lambda x, w: jax.grad(lambda x, w: (conv(NHWC, feature_group_count=2)(x, w) ** 2).sum(), (0, 1))(x, w),
    IMAGE,
    floats(3, 2, 2, 6),
)
case(
    "gradients of conv depthwise",
    lambda x, w: jax.grad(lambda x, w: (conv(NHWC, (2, 2), feature_group_count=4)(x, w) ** 2).sum(), (0, 1))(x, w),
    IMAGE,
    floats(3, 2, 1, 4),
)


def pool(op, init, window=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID", **options):
    return lambda x: lax.reduce_window(x, np.asarray(init, x.dtype), op, window, strides, padding, **options)


LOW = -np.inf
case("max pool", pool(lax.max, LOW), IMAGE)
case("max pool padded", pool(lax.max, LOW, (1, 3, 3, 1), (1, 2, 1, 1), "SAME"), IMAGE)
case("min pool", pool(lax.min, np.inf), IMAGE)
case("sum pool", pool(lax.add, 0, (1, 3, 2, 1), (1, 1, 2, 1), "SAME"), IMAGE)
case("sum pool of integers", pool(lax.add, 0, (2, 2), (1, 1)), N)
case("max pool of integers", pool(lax.max, -(2**31), (2, 2), (1, 1)), N)
case("min pool of integers", pool(lax.min, 2**31 - 1, (2, 2), (1, 1)), N)
case("product of windows", pool(lax.mul, 1, (2, 3), (2, 1)), X)
case("windows from a first value", pool(lax.add, 3, (2, 2), (1, 1), "SAME"), X)
case("windows dilated", pool(lax.max, LOW, (2, 3), (1, 1), "VALID", window_dilation=(2, 2)), X)
case("windows of a dilated base", pool(lax.add, 0, (2, 3), (1, 1), "VALID", base_dilation=(2, 1)), X)
case("max pool of batch and channels", pool(lax.max, LOW, (2, 1, 1, 2), (2, 1, 1, 2)), IMAGE)
case("gradient of max pool", lambda x: jax.grad(lambda x: (pool(lax.max, LOW)(x) ** 2).sum())(x), IMAGE)
case(
    "gradient of max pool that overlaps",
    lambda x: jax.grad(lambda x: (pool(lax.max, LOW, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")(x) ** 2).sum())(x),
    IMAGE,
)
case(
    "gradient of max pool with equals",
    lambda x: jax.grad(lambda x: (pool(lax.max, LOW, (1, 3, 3, 1), (1, 2, 1, 1), "SAME")(x) ** 2).sum())(x),
    np.round(IMAGE),
)
case("gradient of min pool", lambda x: jax.grad(lambda x: (pool(lax.min, np.inf)(x) ** 2).sum())(x), IMAGE)
case("tangent of max pool", lambda x, t: jax.jvp(pool(lax.max, LOW), (x,), (t,))[1], IMAGE, IMAGE + 1)
case(
    "gradient of sum pool",
    lambda x: jax.grad(lambda x: (pool(lax.add, 0, (1, 3, 2, 1), (1, 1, 2, 1), "SAME")(x) ** 2).sum())(x),
    IMAGE,
)

# -- functions and control flow -----------------------------------------------------------------------------------------

case("jit", lambda x: jax.jit(lambda x: x + 1)(x) * 2, X)
case("custom_jvp", lambda x: jax.nn.relu(x) + jax.grad(lambda x: jax.nn.silu(x).sum())(x), X)


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, x), lambda x, g: (g * jnp.cos(x),))
case("custom_vjp", lambda x: doubled(x) + jax.grad(lambda x: doubled(x).sum())(x), X)
case("checkpoint", lambda x: jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())(x), X)
case("stop_gradient", lambda x: jax.grad(lambda x: (lax.stop_gradient(x) * x).sum())(x), X)
case("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), X, Y)
case("cond", lambda b, x: lax.cond(b, lambda x: x + 1, lambda x: x * 2, x), np.asarray(True), X)
case("switch", lambda i, x: lax.switch(i, [lambda x: x + 1, lambda x: x * 2, lambda x: -x], x), np.int32(5), X)
case("while", lambda x: lax.while_loop(lambda c: c[0].sum() < 50, lambda c: (c[0] + 1, c[1] + 1), (x, 0)), X)
case("fori_loop", lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 0.5 + i, x), X, np.int32(4))
case("scan", lambda x, y: lax.scan(lambda c, r: (c * 0.5 + r, c.sum()), y[0], x), X, Y)
case("scan reverse", lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(6), x, reverse=True), X)
case("scan of nothing", lambda x: lax.scan(lambda c, _: (c + 1, c.sum()), x, None, length=0), X)
case("map", lambda x: lax.map(lambda r: r @ r, x), X)
case(
    "gradient of scan",
    lambda x: jax.grad(lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), x[0], x)[0].sum())(x),
    X,
)
case("associative_scan", lambda x: lax.associative_scan(lax.add, x), X)

# -- random bits --------------------------------------------------------------------------------------------------------

KEY = np.array([1, 2], np.uint32)
case("random bits", lambda k: jax.random.bits(k, (5, 6)), KEY)
case("random normal", lambda k: jax.random.normal(jax.random.fold_in(k, 3), (7, 6)), KEY)
case("random split", lambda k: [jax.random.uniform(s, (5,)) for s in jax.random.split(k, 3)], KEY)
case("random keys", lambda k: jax.random.bernoulli(jax.random.wrap_key_data(k), 0.3, (7, 6)), KEY)
case("random key of a seed", lambda n: jax.random.randint(jax.random.key(n), (7,), 0, 100), np.int32(7))
case("random permutation", lambda k, x: jax.random.permutation(k, x), KEY, X)
case("dropout", lambda k, x: jnp.where(jax.random.bernoulli(k, 0.8, x.shape), x / 0.8, 0), KEY, X)

# -- empty and scalars --------------------------------------------------------------------------------------------------

EMPTY = np.zeros((0, 6), np.float32)
case("empty", lambda x, y: (x + 1, x @ y.T, x.sum(0), jnp.concatenate([x, y])), EMPTY, Y)
case(
    "scalars", lambda x, n: (x * 2 + n, jnp.exp(x), lax.convert_element_type(n, np.float32)), np.float32(3), np.int32(4)
)
case("constants alone", lambda x: (x, jnp.arange(5) * 2, jnp.ones((3, 3)) @ jnp.eye(3)), X)
