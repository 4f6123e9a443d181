"""Calls of torch's operations with small operands, several for each row of the table of imported operations."""

from typing import Any

import torch

Case = tuple[str, tuple[Any, ...], dict[str, Any]]
CASES: list[Case] = []
_random = torch.Generator().manual_seed(0)


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal floats."""
    return torch.randn(shape, generator=_random, dtype=torch.float64).to(dtype)


def positive(*shape: int) -> torch.Tensor:
    """Floats from 0.1 to 0.9."""
    return torch.rand(shape, generator=_random) * 0.8 + 0.1


def i(*shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers."""
    return torch.randint(low, high, shape, generator=_random).to(dtype)


def nonzero(*shape: int) -> torch.Tensor:
    """Integers without 0."""
    drawn = i(*shape, low=1, high=6)
    return drawn * (1 - 2 * i(*shape, low=0, high=2))


def b(*shape: int) -> torch.Tensor:
    """Booleans."""
    return torch.rand(shape, generator=_random) > 0.5


def case(names: str, *args: Any, **named: Any) -> None:
    """The same call for operations by name; without an overload `.default`."""
    for name in names.split():
        CASES.append((name if "." in name else f"{name}.default", args, named))


H = torch.float16
S = (4, 6)

# -- arithmetic, with promotion ------------------------------------------------------------------------------------------
for _other in (f(*S), f(6), f(4, 1), torch.tensor(1.5, dtype=torch.float64), i(*S), b(6), 2, 2.5):
    _names = (
        "add.Tensor sub.Tensor mul.Tensor"
        if not (isinstance(_other, torch.Tensor) and _other.dtype == torch.bool)
        else "add.Tensor mul.Tensor"
    )
    case(_names, f(*S), _other)
case("add.Tensor sub.Tensor mul.Tensor div.Tensor", i(*S), nonzero(*S))
case("add.Tensor mul.Tensor div.Tensor", i(*S), 2.5)
case("add.Tensor mul.Tensor", b(*S), 3)
case("add.Tensor mul.Tensor", b(*S), b(*S))
case("add.Tensor mul.Tensor div.Tensor", f(*S, dtype=H), 2.0)
case("add.Tensor mul.Tensor", f(*S, dtype=H), f(*S))
case("add.Tensor sub.Tensor", f(*S), f(*S), alpha=3)
case("add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Scalar", f(*S), 2)
case("add.Scalar rsub.Scalar", i(*S), 2)
case("rsub.Tensor", f(*S), f(6), alpha=2)
case("subtract.Tensor multiply.Tensor divide.Tensor true_divide.Tensor", f(*S), positive(*S))
case("subtract.Scalar multiply.Scalar divide.Scalar true_divide.Scalar", f(*S), 4)
case("div.Tensor", f(*S), positive(*S))
for _mode in (None, "floor", "trunc"):
    case("div.Tensor_mode divide.Tensor_mode", f(*S), positive(*S), rounding_mode=_mode)
    case("div.Tensor_mode", i(*S, low=-50, high=50), nonzero(*S), rounding_mode=_mode)
    case("div.Scalar_mode divide.Scalar_mode", i(*S, low=-50, high=50), 7, rounding_mode=_mode)
case("floor_divide remainder.Tensor fmod.Tensor", i(*S, low=-50, high=50), nonzero(*S))
case("floor_divide remainder.Tensor fmod.Tensor", f(*S) * 5, positive(*S))
case("floor_divide.Scalar remainder.Scalar fmod.Scalar", i(*S, low=-50, high=50), -7)
case("floor_divide.Scalar remainder.Scalar fmod.Scalar", f(*S) * 5, 1.5)
case("remainder.Scalar_Tensor", 7, nonzero(*S))
for _power in (2, 3, 0.5, -0.5, 1.7, 0):
    case("pow.Tensor_Scalar", positive(*S), _power)
case("pow.Tensor_Scalar", i(*S), 2)
case("pow.Tensor_Scalar", i(*S), 3)
case("pow.Tensor_Tensor", positive(*S), f(6))
case("pow.Scalar", 2, f(*S))
case("lerp.Scalar", f(*S), f(*S), 0.3)
case("lerp.Tensor", f(*S), f(*S), positive(6))
case("addcmul addcdiv", f(*S), f(6), positive(*S), value=0.5)
case("neg negative abs sign sgn square positive", f(*S))
case("neg abs sign square", i(*S))
case("abs", f(*S, dtype=torch.complex64) * (1 - 2j))
case(
    "reciprocal exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh atanh",
    positive(*S),
)
case("arcsin arccos arctan arcsinh arctanh", positive(*S))
case("acosh arccosh", positive(*S) + 1)
case("exp sqrt log sin sigmoid", i(*S, low=1, high=5))
case("exp tanh rsqrt", positive(*S).to(H))
case("atan2 arctan2 hypot logaddexp maximum minimum fmax fmin", f(*S), f(6))
case("max.other min.other maximum minimum", i(*S), i(6))
case("maximum", f(*S), i(*S))
case("copysign.Tensor", f(*S), f(6))
case("copysign.Scalar", f(*S), -1.0)
case("floor ceil trunc fix round", f(*S) * 3)
case("clamp clip", f(*S), -0.5, 0.5)
case("clamp", f(*S), None, 0.5)
case("clamp", i(*S), -1, 2)
case("clamp.Tensor clip.Tensor", f(*S), f(6) - 1, f(4, 1) + 1)
case("clamp_min clamp_max", f(*S), 0.1)
case("clamp_min.Tensor clamp_max.Tensor", f(*S), f(6))
for _op in ("eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    case(f"{_op}.Tensor", i(*S), i(6))
    case(f"{_op}.Scalar", i(*S), 1)
    case(f"{_op}.Scalar", i(*S), 0.5)
    case(f"{_op}.Tensor", f(*S), f(4, 1))
for _op in ("and", "or", "xor"):
    case(f"__{_op}__.Tensor bitwise_{_op}.Tensor", b(*S), b(6))
    case(f"__{_op}__.Tensor bitwise_{_op}.Tensor", i(*S), i(6))
    case(f"__{_op}__.Scalar bitwise_{_op}.Scalar", i(*S), 5)
    case(f"bitwise_{_op}.Scalar_Tensor", 5, i(*S))
case(
    "__lshift__.Tensor __rshift__.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor",
    i(*S),
    i(6, low=0, high=4),
)
case("__lshift__.Scalar __rshift__.Scalar bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar", i(*S), 2)
case("bitwise_not", i(*S))
case("bitwise_not logical_not", b(*S))
case("logical_not", i(*S, low=-1, high=2))
case("logical_and logical_or logical_xor", f(*S).round(), i(6, low=-1, high=2))
case("isnan isinf isfinite", torch.tensor([[1.0, float("nan"), float("inf")], [-float("inf"), 0.0, 2.0]]))
case("erf special_erf", f(*S))
case("where.self", b(*S), f(*S), f(6))
case("where.self", b(4, 1), i(*S), f(6))
case("where.ScalarOther", b(*S), f(*S), 0.0)
case("where.ScalarOther", b(*S), i(*S), 2.5)
case("where.ScalarSelf", b(*S), 1.0, f(*S))
case("where.Scalar", b(*S), 1.0, 2.0)
case("masked_fill.Scalar", f(*S), b(6), -1e9)
case("masked_fill.Scalar", i(*S), b(*S), 3)
case("masked_fill.Tensor", f(*S), b(*S), torch.tensor(2.0))

# -- activations ---------------------------------------------------------------------------------------------------------
case(
    "relu relu6 sigmoid special_expit silu mish gelu softplus log_sigmoid elu selu leaky_relu hardsigmoid hardswish hardtanh",
    f(*S) * 3,
)
case("silu gelu softplus sigmoid", f(*S, dtype=H))
case("relu", i(*S))
case("gelu", f(*S), approximate="tanh")
case("softplus", f(*S) * 20, 2, 10)
case("elu", f(*S), 0.5)
case("celu", f(*S), 0.7)
case("leaky_relu", f(*S), 0.2)
case("hardtanh", f(*S), -0.3, 0.4)
case("threshold", f(*S), 0.1, -2.0)
case("logit", positive(*S))
case("logit", positive(*S), 0.2)
case("prelu", f(2, 3, 4), positive(3))
case("_prelu_kernel", f(2, 3, 4), positive(1))
case("glu", f(4, 6), -1)
case("glu", f(4, 6), 0)
case("softmax.int log_softmax.int", f(*S), -1)
case("softmax.int", f(*S, dtype=H), 0)
case("softmax.int", f(*S, dtype=H), -1, torch.float32)
case("_softmax _log_softmax", f(*S), 0, False)
case("_safe_softmax", f(*S), 1)
case("logsumexp", f(*S), [1])
case("logsumexp", f(*S), [0, 1], True)

# -- copies and dtypes ---------------------------------------------------------------------------------------------------
case("clone alias contiguous detach lift_fresh lift_fresh_copy alias_copy detach_copy", f(*S))
for _dtype in (torch.float64, torch.int32, torch.bool, H):
    case("_to_copy", f(*S) * 3, dtype=_dtype)
    case("to.dtype", i(*S), _dtype)
case("to.dtype_layout", f(*S), dtype=torch.float64)
case("to.other", f(*S), i(3))
case("to.device", f(*S), torch.device("cpu"), torch.float64)
case("type_as", i(*S), f(2))
case("dropout", f(*S), 0.5, False)
case("feature_dropout alpha_dropout", f(*S), 0.5, False)
case("native_dropout", f(*S), 0.5, False)

# -- shapes --------------------------------------------------------------------------------------------------------------
case("view reshape _unsafe_view view_copy _reshape_copy", f(4, 6), [2, 2, 6])
case("view reshape", f(4, 6), [-1])
case("view", f(4, 3, 2), [4, 6])
case("view_as reshape_as", f(4, 6), f(8, 3))
case("flatten.using_ints", f(4, 3, 2), 1, 2)
case("unflatten.int", f(4, 6), 1, [2, -1])
case("unsqueeze unsqueeze_copy", f(4, 6), -1)
case("unsqueeze", f(4, 6), 0)
case("transpose.int transpose_copy.int swapaxes swapdims", f(4, 3, 6), -1, 0)
case("t t_copy numpy_T", f(4, 6))
case("t", f(4))
case("mT adjoint", f(3, 4, 6))
case("permute permute_copy", f(4, 3, 6), [2, 0, -2])
case("squeeze squeeze_copy", f(4, 1, 6, 1))
case("squeeze.dim squeeze_copy.dim", f(4, 1, 6), 1)
case("squeeze.dim", f(4, 1, 6), 0)
case("squeeze.dims squeeze_copy.dims", f(4, 1, 6, 1), [1, -1, 0])
case("movedim.int moveaxis.int", f(4, 3, 6), 0, -1)
case("movedim.intlist moveaxis.intlist", f(4, 3, 6), [0, 1], [2, 0])
case("flip", f(4, 6), [0, -1])
case("repeat tile", f(4, 3), [2, 1, 2])
case("tile", f(4, 3), [2])
case("expand expand_copy", f(4, 1), [3, -1, 5])
case("expand_as", f(4, 1), f(4, 6))
case("broadcast_to", f(1, 6), [4, 6])
case("broadcast_tensors", [f(4, 1), f(6)])
case("roll", f(4, 6), [1, -2], [0, 1])
case("roll", f(4, 6), [3], [])
case("repeat_interleave.self_int", f(4, 6), 2, 1)
case("repeat_interleave.self_int", f(4, 6), 2)
case("slice.Tensor slice_copy.Tensor", f(4, 6), 1, 1, 5, 2)
case("slice.Tensor", f(4, 6), 0, -3, 9223372036854775807)
case("slice.Tensor", f(4, 6), 1, 0, -1)
case("narrow narrow_copy", f(4, 6), 1, 2, 3)
case("select.int select_copy.int", f(4, 6), 1, -2)
case("select.int", f(4, 6), 0, 3)
case("split.Tensor split_copy.Tensor", f(4, 7), 3, 1)
case("split.sizes", f(4, 7), [3, 4], 1)
case("split_with_sizes split_with_sizes_copy", f(4, 7), [1, 2, 4], -1)
case("chunk", f(4, 7), 3, 1)
case("tensor_split.sections", f(4, 7), 3, 1)
case("tensor_split.indices", f(4, 7), [2, 5], 1)
case("unbind.int unbind_copy.int", f(4, 3), 1)
case("cat concat concatenate", [f(4, 3), f(4, 2)], -1)
case("cat", [f(4, 3), i(2, 3)], 0)
case("cat", [torch.zeros(0), f(4, 3)], 0)
case("stack", [f(4, 3), f(4, 3)], 1)
case("stack", [i(4, 3), f(4, 3)], -1)
case("hstack", [f(4, 3), f(4, 2)])
case("hstack", [f(4), f(3)])
case("vstack", [f(4, 3), f(3)])
case("pad", f(4, 6), [1, 2])
case("pad", f(4, 6), [1, 2, 0, 3], "constant", 1.5)
case("pad", f(4, 6), [-1, 2])
case("pad", f(2, 4, 6), [2, 1], "reflect")
case("pad", f(2, 4, 6), [2, 1], "replicate")
case("pad", f(2, 4, 6), [2, 1], "circular")
case("constant_pad_nd", f(4, 6), [1, 0, 2, 0], 3)
case("constant_pad_nd", i(4, 6), [1, 0])
case("reflection_pad1d replication_pad1d", f(2, 4, 6), [2, 3])
case("reflection_pad2d replication_pad2d", f(2, 3, 4, 6), [2, 3, 1, 2])
case("reflection_pad3d replication_pad3d", f(1, 2, 3, 4, 6), [2, 3, 1, 2, 1, 1])
case("zeros_like ones_like", f(4, 6))
case("full_like", f(4, 6), 2.5)
case("fill.Scalar", f(4, 6), 2.5)
case("fill.Tensor", i(4, 6), torch.tensor(2.5))
case("copy", f(4, 6), i(6))
case("sum.dim_IntList mean.dim", f(), [0])
case("softmax.int log_softmax.int sort argsort", f(), 0)
case("view.dtype", b(4, 6), torch.uint8)
case("view.dtype", b(4, 6).view(torch.int8), torch.bool)
case("view.dtype view_copy.dtype", f(4, 6), torch.int32)
case("view.dtype", f(4, 6), torch.int16)
case("view.dtype", i(4, 6, dtype=torch.uint8), torch.int16)
case("new_zeros new_ones", f(4, 6), [3, 2])
case("new_full", i(4, 6), [3, 2], 7)
case("new_full", i(4, 6), [3, 2], 7.5, dtype=torch.float32)
case("sym_size.int", f(4, 6), 1)
case("sym_numel", f(4, 6))

# -- over and along dims -------------------------------------------------------------------------------------------------
for _x in (f(*S), i(*S), b(*S)):
    case("sum", _x)
    case("sum.dim_IntList", _x, [0], True)
    case("prod.dim_int", _x, 1)
    case("cumsum cumprod", _x, 1)
case("sum.dim_IntList", f(*S), None)
case("sum.dim_IntList", f(*S, dtype=H), [1], dtype=torch.float32)
case("sum.dim_IntList", i(*S, dtype=torch.int32), [1], dtype=torch.int32)
case("mean", f(*S))
case("mean.dim", f(2, 3, 4), [-1, 0], True)
case("mean.dim", f(*S, dtype=H), [1])
case("mean.dim", i(*S), [1], dtype=torch.float32)
case("prod", f(*S))
case("var.correction std.correction var_mean.correction std_mean.correction", f(*S), [1], correction=0, keepdim=True)
case("var.correction", f(*S), None)
case("var.dim std.dim var_mean.dim std_mean.dim", f(*S), [0], False)
case("var std var_mean std_mean", f(*S))
case("amax amin", f(*S), [1], True)
case("amax amin", f(*S))
case("aminmax", f(*S), dim=1)
case("max.dim min.dim", f(*S), 1)
case("max.dim", f(*S), 0, True)
case("max min", f(*S))
case("argmax argmin", f(*S), 1, True)
case("argmax argmin", f(*S))
case("all any", b(*S))
case("all.dim any.dim", b(*S), 1, True)
case("all.dims any.dims", b(2, 3, 4), [0, 2])
case("any.dim", f(*S).round(), 0)
case("count_nonzero", i(*S))
case("count_nonzero.dim_IntList", i(*S), [1])
for _ord in (2, 1, 0, 3, float("inf")):
    case("linalg_vector_norm", f(*S), _ord, [1])
case("norm.ScalarOpt_dim", f(*S), 2, [1], True)
case("norm.Scalar", f(*S), 2)
case("diff", f(*S))
case("diff", i(*S), 1, 0)
case("diff", f(*S), 1, 1, f(4, 2), f(4, 1))
case("sort argsort", f(*S), 1)
case("sort argsort", f(*S), 0, True)
case("sort.stable argsort.stable", i(*S), stable=True, dim=1, descending=True)
case("topk", f(*S), 3)
case("topk", f(*S), 2, 0, False)
case("topk", f(7), 3)
case("histc", positive(20) * 8, 8, 0, 8)
case("histc", positive(20), 5)
case("layer_norm", f(4, 3, 6), [6])
case("layer_norm", f(4, 3, 6), [3, 6], positive(3, 6), f(3, 6), 1e-3)
case("layer_norm", f(*S, dtype=H), [6], f(6, dtype=H), f(6, dtype=H))
case("native_layer_norm", f(*S), [6], positive(6), f(6), 1e-5)
case("rms_norm", f(*S), [6], positive(6), 1e-5)
case("rms_norm", f(*S), [6])
case("group_norm", f(2, 6, 5), 3, positive(6), f(6))
case("group_norm", f(2, 6, 3, 4), 2)
case("instance_norm", f(2, 3, 5), positive(3), f(3), None, None, True, 0.1, 1e-5, False)
case("instance_norm", f(2, 3, 5), positive(3), f(3), f(3), positive(3), False, 0.1, 1e-5, False)
case("batch_norm", f(4, 3, 5), positive(3), f(3), f(3), positive(3), False, 0.1, 1e-5, False)
case("batch_norm", f(4, 3), None, None, None, None, True, 0.1, 1e-5, False)
case("_native_batch_norm_legit_no_training", f(4, 3, 5), positive(3), f(3), f(3), positive(3), 0.1, 1e-5)
case("_native_batch_norm_legit.no_stats", f(4, 3, 5), positive(3), f(3), True, 0.1, 1e-5)

# -- products ------------------------------------------------------------------------------------------------------------
case("linear", f(4, 5, 6), f(3, 6), f(3))
case("linear", f(4, 6), f(3, 6))
case("linear", f(4, 6, dtype=H), f(3, 6, dtype=H))
case("bilinear", f(4, 3), f(4, 5), f(2, 3, 5), f(2))
case("matmul", f(4, 6), f(6, 5))
case("matmul", f(2, 4, 6), f(6, 5))
case("matmul", f(6), f(6, 5))
case("matmul", f(4, 6), f(6))
case("mm", f(4, 6), f(6, 5))
case("mm", i(4, 6), i(6, 5))
case("bmm", f(3, 4, 6), f(3, 6, 5))
case("mv", f(4, 6), f(6))
case("dot vdot", f(6), f(6))
case("addmm", f(5), f(4, 6), f(6, 5))
case("addmm", f(4, 5), f(4, 6), f(6, 5), beta=0.5, alpha=2)
case("addmv", f(4), f(4, 6), f(6))
case("baddbmm", f(3, 4, 5), f(3, 4, 6), f(3, 6, 5), beta=0)
case("addbmm", f(4, 5), f(3, 4, 6), f(3, 6, 5))
case("addr", f(4, 5), f(4), f(5))
case("outer ger", f(4), f(5))
case("linalg_vecdot", f(4, 6), f(4, 6))
case("tensordot", f(4, 3, 6), f(6, 3, 5), [1, 2], [1, 0])
case("kron", f(2, 3), f(3, 2))
case("linalg_multi_dot chain_matmul", [f(4, 6), f(6, 3), f(3, 5)])
case("einsum", "bij,bjk->bik", [f(3, 4, 6), f(3, 6, 5)])
case("einsum", "ij,jk", [f(4, 6), f(6, 5)])
case("einsum", "...ij,kj->...ik", [f(2, 3, 6), f(4, 6)])
_q, _k = f(2, 4, 6, 8), f(2, 4, 6, 8)
case("scaled_dot_product_attention", _q, _k, f(2, 4, 6, 8))
case("scaled_dot_product_attention", _q, _k, f(2, 4, 6, 8), None, 0.0, True)
case("scaled_dot_product_attention", f(2, 4, 5, 8), f(2, 4, 7, 8), f(2, 4, 7, 3), None, 0.0, True)
case("scaled_dot_product_attention", _q, _k, f(2, 4, 6, 8), torch.ones(6, 6).tril().bool())
case("scaled_dot_product_attention", _q, _k, f(2, 4, 6, 8), f(2, 1, 6, 6), scale=0.3)
case("scaled_dot_product_attention", _q, f(2, 2, 6, 8), f(2, 2, 6, 8), enable_gqa=True)
case("scaled_dot_product_attention", f(5, 8), f(7, 8), f(7, 8))
case("_scaled_dot_product_flash_attention_for_cpu", _q, _k, f(2, 4, 6, 8), 0.0, True)
case("_scaled_dot_product_flash_attention_for_cpu", _q, _k, f(2, 4, 6, 8), attn_mask=f(2, 1, 6, 6))

# -- indices -------------------------------------------------------------------------------------------------------------
case("embedding", f(7, 6), i(4, 3, low=0, high=7))
case("index_select", f(4, 6), 1, i(3, low=0, high=6))
case("gather", f(4, 6), 1, i(4, 3, low=0, high=6))
case("gather", f(4, 6), 0, i(2, 5, low=0, high=4))
case("take_along_dim", f(4, 6), i(4, 1, low=0, high=6), 1)
case("take_along_dim", f(4, 6), i(5, low=0, high=24))
case("take", f(4, 6), i(2, 5, low=0, high=24))
case("index.Tensor _unsafe_index.Tensor", f(4, 6), [i(3, low=-4, high=4)])
case("index.Tensor", f(4, 6), [None, i(2, 3, low=0, high=6)])
case("index.Tensor", f(4, 6), [i(5, low=0, high=4), i(5, low=-6, high=6)])
case("index.Tensor", f(4, 6, 3), [torch.arange(4), i(4, low=0, high=6)])
case("index.Tensor", f(4, 5, 6), [i(2, 1, low=0, high=4), None, i(3, low=0, high=6)])
case("one_hot", i(4, 3, low=0, high=5), 5)
case("scatter.src", f(4, 6), 1, torch.tensor([[0, 2], [5, 1], [3, 3], [4, 0]])[:, :1], f(4, 1))
case("scatter.src", f(4, 6), 0, torch.tensor([[0, 1, 2, 3, 0, 1]]), f(1, 6))
case("scatter.src", f(4, 6), 0, torch.tensor([[2, 1]]), f(3, 6))
case("scatter.value", f(4, 6), 1, i(4, 2, low=0, high=6), 2.0)
case("scatter_add", f(4, 6), 1, i(4, 5, low=0, high=6), f(4, 5))
case("scatter_add", f(4, 6), 0, i(5, 6, low=0, high=4), f(5, 6))
for _reduce in ("sum", "prod", "amax", "amin", "mean"):
    for _include in (True, False):
        case("scatter_reduce.two", f(4, 6), 1, i(4, 5, low=0, high=6), f(4, 5), _reduce, include_self=_include)
case("scatter_reduce.two", f(4, 6), 0, i(5, 3, low=0, high=4), f(5, 6), "sum")
case("index_add", f(4, 6), 1, i(5, low=0, high=6), f(4, 5), alpha=2)
case("index_copy", f(4, 6), 0, torch.tensor([2, 0]), f(2, 6))
case("index_fill.int_Scalar", f(4, 6), 1, torch.tensor([2, 0]), 1.5)
case("index_put _unsafe_index_put", f(4, 6), [torch.tensor([2, 0])], f(2, 6))
case("index_put", i(6), [torch.tensor([2, 0, 1, 5, 4, 3])], i(6))
case("index_put", f(4, 6), [i(5, low=0, high=4)], f(5, 6), True)
case("index_put", f(4, 6), [torch.tensor([1, 3]), torch.tensor([5, 0])], f(2), True)
case("index_put", f(4, 6, 3), [None, torch.tensor([5, 0])], f(4, 2, 3))
case("index_put", f(4, 6, 3), [None, torch.tensor([5, 0]), torch.tensor([1, 2])], f(4, 2))
case("index_put", f(4, 6, 3), [i(3, low=0, high=4), None, i(3, low=0, high=3)], f(3, 6), True)
case("index_put", f(4, 6), [b(4, 6)], torch.tensor(2.0))
case("tril triu", f(4, 6))
case("tril triu", f(2, 4, 6), 1)
case("diagonal diagonal_copy", f(4, 6), 1)
case("diagonal", f(3, 4, 6), 0, 1, 2)

# -- windows -------------------------------------------------------------------------------------------------------------
case("conv1d", f(2, 4, 9), f(6, 4, 3), f(6), [2], [1])
case("conv1d", f(2, 4, 9), f(8, 1, 3), None, [1], [2], [2], 4)
case("conv1d.padding", f(2, 4, 9), f(6, 4, 4), f(6), [1], "same")
case("conv2d", f(2, 4, 6, 7), f(6, 4, 3, 3), f(6), [1, 2], [1, 0])
case("conv2d", f(4, 6, 7), f(6, 4, 3, 3))
case("conv2d", f(2, 4, 6, 7), f(4, 2, 3, 2), None, [1], [1], [1], 2)
case("conv2d.padding", f(2, 4, 6, 7), f(6, 4, 3, 2), None, [1], "valid")
case("conv3d", f(1, 2, 4, 5, 6), f(3, 2, 2, 3, 2), f(3))
case("conv3d.padding", f(1, 2, 4, 5, 6), f(3, 2, 3, 3, 3), f(3), [1], "same")
case("convolution", f(2, 4, 6, 7), f(6, 4, 3, 3), f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
case("convolution", f(2, 4, 5), f(4, 3, 3), f(3), [2], [1], [1], True, [1], 1)
case("conv_transpose1d", f(2, 4, 5), f(4, 3, 3), f(3), [2], [1], [1])
case("conv_transpose2d.input", f(2, 4, 4, 5), f(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 0], 1, [1, 2])
case("conv_transpose2d.input", f(2, 4, 4, 5), f(4, 3, 2, 2), None, [2, 2], [0, 0], [0, 0], 2)
case("conv_transpose3d.input", f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2), None, [2])
case("max_pool1d", f(2, 3, 9), [3], [2], [1])
case("max_pool2d", f(2, 3, 6, 7), [2, 2])
case("max_pool2d", f(2, 3, 6, 7), [3], [2], [1], [1], True)
case("max_pool2d", f(2, 3, 8, 7), [3, 2], [1, 2], [1, 0], [2, 1], True)
case("max_pool2d", i(3, 8, 7), [2, 2], [], [1, 1], [2, 3])
case("max_pool1d", f(2, 3, 9), [3], [1], [1], [3])
case("max_pool3d", f(1, 2, 4, 4, 4), [2])
case("avg_pool1d", f(2, 3, 9), [3], [2], [1])
case("avg_pool2d", f(2, 3, 6, 7), [2, 2])
case("avg_pool2d", f(2, 3, 6, 7), [3], [2], [1], True, False)
case("avg_pool2d", f(2, 3, 6, 7), [3, 2], [2], [1], False, True, 4)
case("avg_pool3d", f(1, 2, 4, 4, 4), [2])
case("adaptive_avg_pool1d", f(2, 3, 7), [3])
case("adaptive_avg_pool2d _adaptive_avg_pool2d", f(2, 3, 6, 7), [1, 1])
case("adaptive_avg_pool2d", f(2, 3, 6, 7), [3, 5])
case("adaptive_avg_pool3d _adaptive_avg_pool3d", f(1, 2, 4, 5, 6), [2, 2, 3])
for _name in ("upsample_nearest", "_upsample_nearest_exact"):
    case(f"{_name}1d", f(2, 3, 5), [8])
    case(f"{_name}2d", f(2, 3, 4, 5), [8, 7])
    case(f"{_name}3d", f(1, 2, 3, 3, 3), [6, 5, 4])
    case(f"{_name}1d.vec", f(2, 3, 5), None, [2.0])
    case(f"{_name}2d.vec", f(2, 3, 4, 5), None, [2.0, 1.5])
    case(f"{_name}2d.vec", f(2, 3, 4, 5), [8, 10], None)
    case(f"{_name}3d.vec", f(1, 2, 3, 3, 3), None, [2.0, 2.0, 1.0])
for _corners in (False, True):
    case("upsample_linear1d", f(2, 3, 5), [8], _corners)
    case("upsample_bilinear2d upsample_bicubic2d", f(2, 3, 4, 5), [8, 7], _corners)
    case("upsample_trilinear3d", f(1, 2, 3, 3, 3), [6, 5, 4], _corners)
case("upsample_linear1d.vec", f(2, 3, 5), None, False, [2.0])
case("upsample_bilinear2d.vec upsample_bicubic2d.vec", f(2, 3, 4, 5), None, False, [2.0, 1.5])
case("upsample_trilinear3d.vec", f(1, 2, 3, 3, 3), None, False, [2.0, 2.0, 1.0])
case("pixel_shuffle", f(2, 8, 3, 4), 2)
case("pixel_unshuffle", f(2, 2, 6, 4), 2)

# -- training ------------------------------------------------------------------------------------------------------------
_labels = torch.tensor([1, 0, 2, -100])
_total = torch.tensor(3.0)
for _reduction in (0, 1, 2):
    case("nll_loss_forward cross_entropy_loss", f(4, 3), _labels, None, _reduction, -100)
    case("nll_loss_forward", f(4, 3), _labels, positive(3), _reduction, -100)
    _grad = f(4) if _reduction == 0 else torch.tensor(1.5)
    case("nll_loss_backward", _grad, f(4, 3), _labels, None, _reduction, -100, _total)
    case("mse_loss", f(*S), f(*S), _reduction)
    case("mse_loss_backward", f(*S) if _reduction == 0 else torch.tensor(1.5), f(*S), f(*S), _reduction)
case("nll_loss2d_forward", f(2, 3, 4, 5), i(2, 4, 5, low=0, high=3), None, 1, -100)
case(
    "nll_loss2d_backward",
    torch.tensor(1.5),
    f(2, 3, 4, 5),
    i(2, 4, 5, low=0, high=3),
    None,
    1,
    -100,
    torch.tensor(40.0),
)
case("tanh_backward sigmoid_backward silu_backward gelu_backward", f(*S), positive(*S))
case("gelu_backward", f(*S), f(*S), approximate="tanh")
case("threshold_backward", f(*S), f(*S), 0)
case("_softmax_backward_data _log_softmax_backward_data", f(*S), f(*S).softmax(1), 1, torch.float32)
case("slice_backward", f(4, 3), [4, 7], 1, 1, 7, 2)
case("slice_backward", f(2, 6), [4, 6], 0, 1, 3, 1)
case("select_backward", f(4), [4, 6], 1, -2)
case("slice_scatter", f(4, 6), f(4, 3), 1, 1, 4)
case("slice_scatter", f(4, 6), f(2, 6), 0, 0, 4, 2)
case("select_scatter", f(4, 6), f(4), 1, 2)
case("unfold", f(4, 7), 1, 3, 2)
case("embedding_dense_backward", f(4, 3, 6), i(4, 3, low=0, high=7), 7, -1, False)
case("embedding_dense_backward", f(4, 3, 6), i(4, 3, low=0, high=7), 7, 2, False)
_x = f(4, 3, 6)
_, _mean, _inverse = torch.ops.aten.native_layer_norm(_x, [6], None, None, 1e-5)
case("native_layer_norm_backward", f(4, 3, 6), _x, [6], _mean, _inverse, positive(6), f(6), [True, True, True])
_q, _k, _v = f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)
_out, _sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(_q, _k, _v, 0.0, True)
case("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 6, 8), _q, _k, _v, _out, _sums, 0.0, True)
for _stride, _padding, _dilation, _groups in (
    ([1, 1], [1, 1], [1, 1], 1),
    ([2, 3], [1, 0], [1, 1], 1),
    ([1, 2], [2, 1], [2, 1], 2),
):
    _x, _w = f(2, 4, 7, 8), f(6, 4 // _groups, 3, 2)
    _y = torch.ops.aten.convolution(_x, _w, None, _stride, _padding, _dilation, False, [0, 0], _groups)
    case(
        "convolution_backward",
        f(*_y.shape),
        _x,
        _w,
        [6],
        _stride,
        _padding,
        _dilation,
        False,
        [0, 0],
        _groups,
        [True] * 3,
    )
for _ends in ([2, 2, 7], [0, 7, 7], [7, 7, 7], [0, 0, 7], [1, 3, 7]):
    case("_grouped_mm", f(7, 16), f(3, 16, 8), torch.tensor(_ends, dtype=torch.int32))
case("_grouped_mm", f(5, 8), f(1, 8, 12), torch.tensor([5], dtype=torch.int32))
case("_grouped_mm", f(2, 4, 8), f(2, 8, 4))
