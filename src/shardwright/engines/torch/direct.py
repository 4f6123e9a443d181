"""Torch's functions in place of kernels, on one device's shards: bare where torch's own result is what NumPy would give.

`DIRECT` is the table; each entry is tested against its kernel. An entry makes a function of the call, the kinds of its operands
(the dtypes of tensors, the types of scalars) and the namespace, or None where the kernel must run.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.engines.promotion import Kind, loop_dtypes
from shardwright.engines.torch.convert import torch_dtype
from shardwright.engines.torch.elementwise import Function, converting, native_of
from shardwright.engines.torch.host import letter_of, needs_host
from shardwright.kernels import Call, Space, contraction
from shardwright.ops import small_dtype

Kinds = tuple[Kind, ...]
Make = Callable[[Call, Kinds, Space], Function | None]


def direct(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """Torch's function in place of a kernel without lanes; None where the kernel must run."""
    make = DIRECT.get(call.name)
    if make is None and isinstance(getattr(np, call.name, None), np.ufunc) and not call.attrs:
        make = _elementwise
    return make(call, kinds, space) if make is not None else None


def _elementwise(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """Bare where no operand must be converted: tensors of one dtype, and scalars that torch converts as NumPy does."""
    name, small = call.name, small_dtype(call.dtypes)
    if small is not None:  # NumPy has no weak scalars beside these
        kinds = tuple(small if _is_bound(kind) else kind for kind in kinds)
    dtypes = loop_dtypes(getattr(np, name), kinds)
    if dtypes[-1] != call.result_dtypes[0] or (name in _OWN and letter_of(dtypes[0]) in _OWN[name]):
        return None
    general, native = converting(name, kinds, space.device), native_of(name, dtypes)
    if native is None and small is not None:
        return None
    arrays = [(kind, dtype) for kind, dtype in zip(kinds, dtypes, strict=False) if isinstance(kind, np.dtype)]
    if native is None or any(kind != dtype for kind, dtype in arrays) or len(arrays) > len(call.dtypes):
        return general  # scalars of NumPy have dtypes too, and become tensors
    if len(arrays) == len(call.dtypes) == len(kinds):
        return native if _gives(native, kinds, dtypes[-1], space) else general
    if small is not None or dtypes[0] not in _SCALED or not _gives(native, kinds, dtypes[-1], space):
        return general
    if name == "pow":
        return _power(general) if not isinstance(kinds[1], np.dtype) and dtypes[0].kind == "f" else general
    return _guarded(native, general) if any(kind is int for kind in kinds) else native


_OWN = {"floor_divide": "f", "expm1": "c", "tanh": "c"}  # kernels add to these
_SCALED = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128, np.int64)))


def _gives(native: Function, kinds: Kinds, dtype: np.dtype[Any], space: Space) -> bool:
    """Whether torch's function takes operands of these kinds as they are, and gives the dtype."""
    try:
        made = native(*(space.full((1,), 1, kind) if isinstance(kind, np.dtype) else kind(1) for kind in kinds))
    except (TypeError, AttributeError, RuntimeError):
        return False
    return made.dtype is torch_dtype(dtype)


def _guarded(native: Function, general: Function) -> Function:
    """Torch refuses Python's integers beyond 64 bits, which NumPy compares with or takes as floats."""

    def function(*operands: Any) -> Any:
        try:
            return native(*operands)
        except (RuntimeError, OverflowError):
            return general(*operands)

    return function


def _power(general: Function) -> Function:
    """Squares are products, as in NumPy: much faster."""
    return lambda x, y: torch.square(x) if y == 2 else general(x, y)


def _bounded(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """A maximum or minimum with a scalar is one call of clamp."""
    general = _elementwise(call, kinds, space)
    if call.dtypes[0] not in _SCALED[:2] or [*map(_is_bound, kinds)].count(True) != 1:
        return general
    bound, first = "min" if call.name == "maximum" else "max", _is_bound(kinds[0])

    def clamp(*operands: Any) -> Tensor:
        return torch.clamp(operands[first], **{bound: operands[not first]})

    return _guarded(clamp, general) if general is not None else None


def _clip(call: Call, kinds: Kinds, space: Space) -> Function | None:
    low, high = call.attrs["low"], call.attrs["high"]
    if call.dtypes[0] not in _SCALED[:2] or not (low or high) or not all(map(_is_bound, kinds[1:])):
        return None
    if low and high:
        return _guarded(torch.clamp, space.clip)
    if low:
        return _guarded(lambda x, bound: torch.clamp(x, min=bound), space.clip)
    return _guarded(lambda x, bound: torch.clamp(x, max=bound), lambda x, bound: space.clip(x, None, bound))


def _is_bound(kind: Kind) -> bool:
    return kind is int or kind is float


def _where(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """Torch's own for tensors of one dtype, or for a tensor and a scalar that does not change its dtype."""
    if kinds[0] != np.dtype(bool):
        return None
    if len(call.dtypes) == len(kinds) and kinds[1] == kinds[2]:
        return torch.where
    dtypes = call.dtypes[1:]
    weak = all(kind is float or kind is int for kind in kinds[1:] if isinstance(kind, type))
    one = len(dtypes) == 1 and dtypes[0] in _SCALED[:2] and call.result_dtypes[0] == dtypes[0]
    if not (one and weak and _gives(torch.where, kinds, dtypes[0], space)):
        return None

    def chosen(condition: Tensor, x: Any, y: Any) -> Tensor:
        try:
            return torch.where(condition, x, y)
        except (RuntimeError, OverflowError):  # a scalar that the dtype can't hold
            return space.where(condition, x, y)

    return chosen


def _by_method(name: str) -> Make:
    return lambda call, kinds, space: getattr(space, name) if small_dtype(call.dtypes) is None else None


# -- along dims -----------------------------------------------------------------------------------------------------------


def _sum(call: Call, kinds: Kinds, space: Space) -> Function | None:
    dims, keep, dtype = _reduced(call)
    if not dims or dtype.kind == "b" or needs_host("sum", (kinds[0], dtype)) or (kinds[0].kind == "c" != dtype.kind):
        return None
    wanted = torch_dtype(dtype)
    if len(dims) == len(call.operands[0].shape) and not keep and kinds[0] == dtype and dtype.kind not in "iu":
        return torch.sum
    return lambda x: torch.sum(x, dims, keep, dtype=wanted)


def _prod(call: Call, kinds: Kinds, space: Space) -> Function | None:
    dims, keep, dtype = _reduced(call)
    if (
        len(dims) != 1
        or dtype.kind == "b"
        or needs_host("prod", (kinds[0], dtype))
        or kinds[0].kind == "c" != dtype.kind
    ):
        return None
    wanted, dim = torch_dtype(dtype), dims[0]
    return lambda x: torch.prod(x, dim, keep, dtype=wanted)


def _extreme(name: str, function: Function) -> Make:
    def make(call: Call, kinds: Kinds, space: Space) -> Function | None:
        dims, keep, _ = _reduced(call)
        empty = 0 in (call.operands[0].local_shape[dim] for dim in dims)
        if not dims or empty or needs_host(name, kinds):
            return None
        return lambda x: function(x, dims, keep)

    return make


def _truth(function: Function) -> Make:
    def make(call: Call, kinds: Kinds, space: Space) -> Function | None:
        dims, keep, _ = _reduced(call)
        return (lambda x: function(x, dims, keep)) if dims and kinds[0].kind == "b" else None

    return make


def _reduced(call: Call) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    attrs = call.attrs
    return tuple(attrs["axis"]), bool(attrs.get("keepdims")), np.dtype(attrs.get("dtype", call.dtypes[0]))


def _first_true(call: Call, kinds: Kinds, space: Space) -> Function | None:
    (axis,), keep = call.attrs["axis"], bool(call.attrs["keepdims"])
    size = call.operands[0].shape[axis]
    if not size or call.operands[0].local_shape[axis] != size:
        return None

    def first_true(found: Tensor) -> Tensor:
        at = torch.argmax(found.to(torch.uint8), axis, keepdim=True)
        made = torch.where(torch.gather(found, axis, at), at, size)
        return made if keep else made.squeeze(axis)

    return first_true


def _sort(call: Call, kinds: Kinds, space: Space) -> Function | None:
    axis, descending = call.attrs["axis"], call.attrs["descending"]
    if needs_host("sort", kinds):
        return None
    if descending:
        return lambda x: torch.flip(torch.sort(x, dim=axis, stable=True).values, (axis,))
    return lambda x: torch.sort(x, dim=axis, stable=True).values


def _argsort(call: Call, kinds: Kinds, space: Space) -> Function | None:
    axis = call.attrs["axis"]
    if needs_host("sort", kinds) or call.attrs["descending"]:
        return None
    return lambda x: torch.sort(x, dim=axis, stable=True).indices


# -- products and activations ---------------------------------------------------------------------------------------------


def _einsum(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """A product of two matrices is torch's; others are taken apart as in the kernel."""
    if any(letter_of(kind) not in "fc" for kind in kinds) or len(set(kinds)) > 1:
        return contraction(call) if small_dtype(call.dtypes) is None else None
    a, b, *more = call.rule.inputs if len(kinds) == 2 else ((), ())
    plain = not more and len(a) == len(b) == 2 and all((*a, *b))
    if plain and a[1] == b[0] and tuple(call.rule.outputs[0]) == (a[0], b[1]) and a[0] != b[1]:
        return torch.matmul
    return contraction(call)


def _attention(call: Call, kinds: Kinds, space: Space) -> Function | None:
    """Torch's own, which is causal from the first position on, and either causal or masked."""
    query, key, causal = *call.operands[:2], call.attrs["causal"]
    whole = all(held.local_shape[-2] == held.shape[-2] for held in (query, key))
    alike = len({held.local_shape[:-3] for held in call.operands[:3]}) == 1 and 0 not in (
        *query.local_shape, *key.local_shape, *call.result.local_shape
    )  # fmt: skip
    if not alike or letter_of(kinds[0]) != "f":
        return None
    if causal and (not whole or query.shape[-2] != key.shape[-2] or len(kinds) > 3):
        return None
    attend, scale = torch.nn.functional.scaled_dot_product_attention, call.attrs["scale"]
    shared = query.local_shape[-3] != key.local_shape[-3]

    def attention(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
        return attend(q, k, v, mask[0] if mask else None, 0.0, causal, scale=scale, enable_gqa=shared)

    return attention


def _of_floats(function: Function) -> Make:
    return lambda call, kinds, space: function if letter_of(kinds[0]) == "f" else None


# -- elements moved -------------------------------------------------------------------------------------------------------


def _reshape(call: Call, kinds: Kinds, space: Space) -> Function:
    shape = call.result.local_shape
    return lambda x: x.reshape(shape)


def _permute_dims(call: Call, kinds: Kinds, space: Space) -> Function:
    axes = call.attrs["axes"]
    return lambda x: x.permute(axes)


def _broadcast_to(call: Call, kinds: Kinds, space: Space) -> Function:
    shape = call.result.local_shape
    return lambda x: x.expand(shape)


def _concat(call: Call, kinds: Kinds, space: Space) -> Function | None:
    axis = call.attrs["axis"]
    return (lambda *data: torch.cat(data, axis)) if len(set(kinds)) == 1 else None


def _astype(call: Call, kinds: Kinds, space: Space) -> Function | None:
    dtype = call.attrs["dtype"]
    if len(call.operands) != 1:
        return None
    wanted = torch_dtype(dtype)
    if "s" in (letter_of(np.dtype(dtype)), letter_of(kinds[0])) or (kinds[0].kind == "c" and not wanted.is_complex):
        return lambda x: space.astype(x, wanted)
    return lambda x: x.to(wanted)


def _take(call: Call, kinds: Kinds, space: Space) -> Function | None:
    axis, held = call.attrs["axis"], call.operands[0]
    is_whole = held.local_shape[axis] == held.shape[axis] > 0
    return (lambda x, indices: space.take(x, indices, axis)) if is_whole else None


def _take_along_axis(call: Call, kinds: Kinds, space: Space) -> Function:
    axis = call.attrs["axis"]
    return lambda x, indices: space.take_along_axis(x, indices, axis)


def _assign(call: Call, kinds: Kinds, space: Space) -> Function | None:
    if any(held.local_shape != held.shape for held in call.operands):
        return None
    rows = tuple(
        slice(None) if m is None else slice(m.start, m.start + (m.size - 1) * m.stride + 1, m.stride)
        for m in call.attrs["maps"]
    )

    def assign(x: Tensor, value: Tensor) -> Tensor:
        made = x.clone(memory_format=torch.contiguous_format)
        made[rows] = value
        return made

    return assign


DIRECT: dict[str, Make] = {
    "maximum": _bounded,
    "minimum": _bounded,
    "clip": _clip,
    "where": _where,
    "real": _by_method("real"),
    "imag": _by_method("imag"),
    "round": _by_method("round"),
    "sum": _sum,
    "prod": _prod,
    "max": _extreme("max", torch.amax),
    "min": _extreme("min", torch.amin),
    "all": _truth(torch.all),
    "any": _truth(torch.any),
    "first_true": _first_true,
    "sort": _sort,
    "argsort": _argsort,
    "einsum": _einsum,
    "attention": _attention,
    "gelu": _of_floats(torch.nn.functional.gelu),
    "sigmoid": _of_floats(torch.sigmoid),
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "astype": _astype,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "assign": _assign,
}
