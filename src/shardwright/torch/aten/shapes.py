"""Operations that move elements and compute nothing: views, slices, joins, and arrays that are known from their shape."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.table import along, cast, dims_of, numpy_dtype, row, rows, torch_dtype
from shardwright.xla import bitcast

# -- views -----------------------------------------------------------------------------------------------------------


@row("view reshape _unsafe_view view_copy _reshape_copy")
def view(x: Array, shape: Sequence[int]) -> Array:
    """The same elements in another shape."""
    return xp.reshape(x, tuple(shape)) if tuple(shape) != x.shape else x


@row("view.dtype view_copy.dtype")
def view_bits(x: Array, dtype: Any) -> Array:
    """The same bits in another dtype; the last dim is as much longer or shorter as elements are smaller or larger."""
    wanted = numpy_dtype(dtype)
    if wanted.kind == "b" or x.dtype.kind == "b":  # booleans are bytes of 0 and 1
        byte = cast(x, torch.uint8) if x.dtype.kind == "b" else view_bits(x, torch.uint8)
        return byte != 0 if wanted.kind == "b" else view_bits(byte, dtype)
    joined = wanted.itemsize // x.dtype.itemsize
    if joined > 1:
        x = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // joined, joined))
    result: Array = bitcast(x, wanted)
    return xp.reshape(result, (*x.shape[:-1], math.prod(result.shape[-2:]))) if result.ndim > x.ndim else result


@row("copy")
def copy(x: Array, source: Array, non_blocking: bool = False) -> Array:
    """Elements of another in place of all that are here: what assigning to a part of a tensor becomes."""
    return expand(source, x.shape)


@row("fill.Tensor")
def fill(x: Array, value: Array) -> Array:
    """One element in place of all."""
    return expand(value, x.shape)


@row("view_as reshape_as")
def view_as(x: Array, other: Array) -> Array:
    """The same elements in the shape of another."""
    return view(x, other.shape)


@row("flatten.using_ints")
def flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    """Dims from one to another as one."""
    if not x.ndim:
        return xp.reshape(x, (1,))
    start, end = start % x.ndim, end % x.ndim
    return view(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


@row("unflatten.int")
def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    """A dim as several."""
    dim %= x.ndim
    known = math.prod(n for n in sizes if n != -1)
    full = [x.shape[dim] // known if n == -1 else n for n in sizes]
    return view(x, (*x.shape[:dim], *full, *x.shape[dim + 1 :]))


def _swapped(x: Array, i: int, j: int) -> Array:
    order = list(range(x.ndim))
    if not order:
        return x
    order[i], order[j] = order[j], order[i]
    return xp.permute_dims(x, order)


def _permuted(x: Array, dims: Sequence[int]) -> Array:
    return xp.permute_dims(x, [d % x.ndim for d in dims])


def _squeezed(x: Array, dims: Any = None) -> Array:
    gone = tuple(d for d in dims_of(dims, x.ndim) if x.ndim and x.shape[d] == 1)
    return xp.squeeze(x, axis=gone) if gone else x


def _moved(x: Array, source: Any, target: Any) -> Array:
    listed = source if isinstance(source, list | tuple) else [source]
    to = target if isinstance(target, list | tuple) else [target]
    return xp.moveaxis(x, tuple(listed), tuple(to))


rows(
    {
        "unsqueeze unsqueeze_copy": lambda x, dim: xp.expand_dims(x, axis=dim),
        "transpose.int transpose_copy.int swapaxes swapdims": _swapped,
        "t t_copy numpy_T": lambda x: xp.permute_dims(x, tuple(reversed(range(x.ndim)))),
        "mT adjoint": xp.matrix_transpose,
        "permute permute_copy": _permuted,
        "squeeze squeeze_copy": _squeezed,
        "squeeze.dim squeeze.dims squeeze_copy.dim squeeze_copy.dims": _squeezed,
        "movedim.intlist movedim.int moveaxis.intlist moveaxis.int": _moved,
        "flip": lambda x, dims: xp.flip(x, axis=tuple(dims)),
        "repeat": lambda x, times: xp.tile(x, tuple(times)),
        "tile": lambda x, times: xp.tile(x, tuple(times)),
    }
)


@row("expand expand_copy")
def expand(x: Array, shape: Sequence[int], implicit: bool = False) -> Array:
    """Dims of size 1 repeated; -1 leaves a dim as it is."""
    lead = len(shape) - x.ndim
    full = tuple(x.shape[d - lead] if n == -1 else n for d, n in enumerate(shape))
    return x if full == x.shape else xp.broadcast_to(x, full)


@row("expand_as")
def expand_as(x: Array, other: Array) -> Array:
    """Repeated to the shape of another."""
    return expand(x, other.shape)


@row("broadcast_to")
def broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    """As expand."""
    return expand(x, shape)


@row("broadcast_tensors")
def broadcast_tensors(xs: Sequence[Array]) -> tuple[Array, ...]:
    """All repeated to one shape."""
    return xp.broadcast_arrays(*xs)


@row("roll")
def roll(x: Array, shifts: Any, dims: Any = ()) -> Array:
    """Rows moved along dims, around the end; without dims in the order of all elements."""
    if not dims and dims != 0:
        return xp.reshape(xp.roll(xp.reshape(x, (-1,)), tuple(shifts), axis=0), x.shape)
    return xp.roll(x, tuple(shifts), axis=tuple(dims))


@row("repeat_interleave.self_int")
def repeat_interleave(x: Array, repeats: int, dim: int | None = None, output_size: Any = None) -> Array:
    """Each row several times."""
    return xp.repeat(x, repeats, axis=dim)


# -- parts and joins ---------------------------------------------------------------------------------------------------


@row("slice.Tensor slice_copy.Tensor")
def slice_rows(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    """Rows of a dim; an end beyond the last is the end."""
    rows = slice(start, end, step)
    return x if rows.indices(x.shape[dim]) == (0, x.shape[dim], 1) else x[along(x.ndim, dim, rows)]


@row("narrow narrow_copy")
def narrow(x: Array, dim: int, start: int, length: int) -> Array:
    """Some rows of a dim."""
    start = start + x.shape[dim] if start < 0 else start
    return slice_rows(x, dim, start, start + length)


@row("select.int select_copy.int")
def select(x: Array, dim: int, index: int) -> Array:
    """One row of a dim, without it."""
    return x[along(x.ndim, dim, index)]


@row("split.Tensor split.sizes split_with_sizes split_copy.Tensor split_with_sizes_copy")
def split(x: Array, sizes: Any, dim: int = 0) -> tuple[Array, ...]:
    """Parts of a dim, of one size (the last may be shorter) or of each its own."""
    total = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)] or [0]
    bounds = [0, *itertools.accumulate(sizes)]
    return tuple([slice_rows(x, dim, low, high) for low, high in itertools.pairwise(bounds)])


@row("chunk")
def chunk(x: Array, count: int, dim: int = 0) -> tuple[Array, ...]:
    """At most so many equal parts of a dim."""
    return split(x, max(1, -(-x.shape[dim] // count)), dim)


@row("tensor_split.sections tensor_split.indices")
def tensor_split(x: Array, where: Any, dim: int = 0) -> tuple[Array, ...]:
    """Parts of a dim by their number, the first ones longer, or by where they begin."""
    total = x.shape[dim]
    if isinstance(where, int):
        sizes = [total // where + (at < total % where) for at in range(where)]
        return split(x, sizes, dim)
    bounds = [0, *(min(max(at + total if at < 0 else at, 0), total) for at in where), total]
    return tuple([slice_rows(x, dim, low, max(low, high)) for low, high in itertools.pairwise(bounds)])


@row("unbind.int unbind_copy.int")
def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """The rows of a dim, each without it."""
    return xp.unstack(x, axis=dim)


@row("cat concat concatenate")
def cat(xs: Sequence[Array], dim: int = 0) -> Array:
    """Arrays joined along a dim, in the dtype that all promote to; torch ignores empty ones of one dim."""
    kept = [x for x in xs if x.shape != (0,)] or list(xs[:1])
    return xp.concat(_alike(kept), axis=dim)


@row("stack")
def stack(xs: Sequence[Array], dim: int = 0) -> Array:
    """Arrays joined along a new dim."""
    return xp.stack(_alike(xs), axis=dim)


@row("hstack")
def hstack(xs: Sequence[Array]) -> Array:
    """Arrays joined along the second dim, or the first of vectors."""
    lifted = [x if x.ndim else xp.reshape(x, (1,)) for x in xs]
    return cat(lifted, 0 if lifted[0].ndim == 1 else 1)


@row("vstack")
def vstack(xs: Sequence[Array]) -> Array:
    """Arrays joined along the first dim, vectors as rows."""
    return cat([x if x.ndim > 1 else xp.reshape(x, (1, -1)) for x in xs], 0)


def _alike(xs: Sequence[Array]) -> list[Array]:
    """Arrays in the dtype that torch promotes them to, which NumPy's promotion is not (int64 with float32 is float32)."""
    common = functools.reduce(torch.promote_types, map(torch_dtype, xs))
    return [cast(x, common) for x in xs]


# -- padding -----------------------------------------------------------------------------------------------------------


@row("pad constant_pad_nd")
def pad(x: Array, widths: Sequence[int], mode: Any = "constant", value: Any = None) -> Array:
    """Rows before and after, from the last dim on; negative widths cut."""
    if not isinstance(mode, str):  # constant_pad_nd(x, widths, value)
        mode, value = "constant", mode
    for at in range(len(widths) // 2):
        low, high = widths[2 * at : 2 * at + 2]
        x = _padded(x, x.ndim - 1 - at, low, high, mode, 0 if value is None else value)
    return x


def _padded(x: Array, dim: int, low: int, high: int, mode: str, value: Any) -> Array:
    size = x.shape[dim]
    if low < 0 or high < 0:
        x = slice_rows(x, dim, max(-low, 0), size + min(high, 0))
        return _padded(x, dim, max(low, 0), max(high, 0), mode, value)
    if not low and not high:
        return x
    if mode == "constant":
        before, after = (_filled(x, dim, count, value) for count in (low, high))
    elif mode == "replicate":
        before, after = (
            xp.repeat(slice_rows(x, dim, at, at + 1), n, axis=dim) for at, n in ((0, low), (size - 1, high))
        )
    elif mode == "circular":
        before, after = slice_rows(x, dim, size - low, size), slice_rows(x, dim, 0, high)
    elif mode == "reflect":
        before = xp.flip(slice_rows(x, dim, 1, low + 1), axis=dim)
        after = xp.flip(slice_rows(x, dim, size - 1 - high, size - 1), axis=dim)
    else:
        raise ModelError(f"pad: the mode {mode!r} is unknown. Use constant, reflect, replicate or circular.")
    parts = [part for part, count in ((before, low), (x, 1), (after, high)) if count]
    return xp.concat(parts, axis=dim)


def _filled(x: Array, dim: int, count: int, value: Any) -> Array:
    """Rows of one value, as x has them along other dims."""
    shape = tuple(count if d == dim else n for d, n in enumerate(x.shape))
    value = bool(value) if x.dtype.kind == "b" else int(value) if x.dtype.kind in "iu" else value
    return xp.broadcast_to(xp.full((1,) * x.ndim, value, dtype=x.dtype), shape)


def _padding(mode: str) -> Any:
    return lambda x, widths: pad(x, widths, mode)


for _mode, _name in (("reflect", "reflection"), ("replicate", "replication")):
    for _dims in (1, 2, 3):
        row(f"{_name}_pad{_dims}d")(_padding(_mode))


# -- known from the shape alone: host values of one element that repeats ------------------------------------------------


def _constant(value: Any) -> Any:
    """A function like zeros_like."""

    def made(x: Any, *rest: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        return _repeated(rest[0] if value is None else value, tuple(x.shape), dtype or torch_dtype(x))

    return made


def _new(value: Any) -> Any:
    """A function like new_zeros."""

    def made(x: Any, size: Sequence[int], *rest: Any, dtype: Any = None, **options: Any) -> torch.Tensor:
        return _repeated(rest[0] if value is None else value, tuple(size), dtype or torch_dtype(x))

    return made


def _repeated(value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full((), value, dtype=dtype).expand(shape)


rows(
    {
        "zeros_like empty_like": _constant(0),
        "ones_like": _constant(1),
        "full_like fill.Scalar": _constant(None),
        "new_zeros new_empty": _new(0),
        "new_ones": _new(1),
        "new_full": _new(None),
        "sym_size.int": lambda x, dim: x.shape[dim],
        "sym_numel": lambda x: math.prod(x.shape),
        "sym_size": lambda x: list(x.shape),
        "new_empty_strided": lambda x, size, stride, **options: _new(0)(x, size, **options),
    },
    sizes=True,
)
