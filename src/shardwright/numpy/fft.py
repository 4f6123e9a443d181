"""Fourier transforms; split dims are gathered if they are transformed, the others stay split."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, shard
from shardwright.eager import apply, sharding_for
from shardwright.errors import OperationError
from shardwright.numpy.common import array, axes_of, axis_of, integer, integers
from shardwright.numpy.elementwise import check_device
from shardwright.ops import Attrs
from shardwright.sharding import P, Sharding


def _length(name: str, n: int) -> int:
    """The rows of the result, for n rows of input."""
    return n // 2 + 1 if name in ("rfft", "rfftn", "ihfft") else n


def _checked(name: str, sizes: Sequence[int], norm: str | None) -> str:
    """The norm, checked like the rows of input."""
    if any(n < 1 for n in sizes):
        raise OperationError(f"{name}: a transform of {tuple(sizes)} rows; each dim needs at least 1.")
    if norm not in (None, "backward", "ortho", "forward"):
        raise OperationError(f"{name}: norm is 'backward', 'ortho' or 'forward', not {norm!r}.")
    return norm or "backward"


def _one(name: str) -> Callable[..., Array]:
    def transform(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str | None = "backward") -> Array:
        a = array(name, x)
        at = axis_of(name, axis, a.ndim)
        default = 2 * (a.shape[at] - 1) if name in ("irfft", "hfft") else a.shape[at]
        size = default if n is None else integer(name, "n", n)
        attrs = Attrs(axis=at, norm=_checked(name, (size,), norm), length=size, sizes=(_length(name, size),))
        result: Array = apply(name, (a,), attrs)
        return result

    return _named(transform, name)


def _several(name: str) -> Callable[..., Array]:
    def transform(
        x: Any,
        /,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = "backward",
    ) -> Array:
        a = array(name, x)
        given = axes if axes is not None else (range(a.ndim - len(s), a.ndim) if s is not None else None)
        dims = axes_of(name, None if given is None else tuple(given), a.ndim)
        sizes = [a.shape[d] for d in dims] if s is None else list(integers(name, "s", s))
        if len(sizes) != len(dims):
            raise OperationError(f"{name}: s={s} has {len(sizes)} sizes for {len(dims)} dims. Give one for each.")
        if name == "irfftn" and s is None:
            sizes[-1] = 2 * (sizes[-1] - 1)
        out = [*sizes[:-1], _length(name, sizes[-1])]
        attrs = Attrs(axis=dims, norm=_checked(name, sizes, norm), length=tuple(sizes), sizes=tuple(out))
        result: Array = apply(name, (a,), attrs)
        return result

    return _named(transform, name)


def _shift(name: str) -> Callable[..., Array]:
    def transform(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
        a = array(name, x)
        result: Array = apply(name, (a,), Attrs(axis=axes_of(name, axes, a.ndim)))
        return result

    return _named(transform, name)


def _named(function: Callable[..., Array], name: str) -> Callable[..., Array]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `numpy.fft.{name}`."
    return function


fft, ifft, rfft, irfft, hfft, ihfft = map(_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_several, ("fftn", "ifftn", "rfftn", "irfftn"))
fftshift, ifftshift = map(_shift, ("fftshift", "ifftshift"))


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None, sharding: Sharding | P | None = None
) -> Array:
    """The frequencies of an fft's rows."""
    check_device(device)
    host = np.fft.fftfreq(n, d).astype(dtype or np.float64)
    return shard(host, sharding_for(host.shape, sharding), copy=False)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None, sharding: Sharding | P | None = None
) -> Array:
    """The frequencies of an rfft's rows."""
    check_device(device)
    host = np.fft.rfftfreq(n, d).astype(dtype or np.float64)
    return shard(host, sharding_for(host.shape, sharding), copy=False)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip
