"""Fourier transforms and linear algebra of NumPy on JAX arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from shardwright.ops import is_small

Array = Any


class Fourier:
    """`numpy.fft` on JAX arrays."""

    def __init__(self) -> None:
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn", "rfftn", "irfftn"):
            setattr(self, name, _transform(name))

    def fftshift(self, x: Array, axes: Sequence[int]) -> Array:
        return jnp.fft.fftshift(x, axes=tuple(axes))

    def ifftshift(self, x: Array, axes: Sequence[int]) -> Array:
        return jnp.fft.ifftshift(x, axes=tuple(axes))


def _transform(name: str) -> Callable[..., Array]:
    function = getattr(jnp.fft, name)

    def transform(x: Array, **options: Any) -> Array:
        shape = np.shape(getattr(np.fft, name)(np.zeros(x.shape), **options)) if 0 in x.shape else None
        wide = _solvable(x)
        if shape is not None:  # XLA refuses transforms of no elements
            return jnp.zeros(shape, np.result_type(wide.dtype, np.complex64))
        return function(wide, **options)

    return transform


class Matrices:
    """`numpy.linalg` on JAX arrays."""

    def __init__(self) -> None:
        for name in "cholesky det inv slogdet solve svdvals eigh eigvalsh qr svd eig eigvals matrix_rank pinv".split():
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        function = getattr(jnp.linalg, name)

        def of_matrices(*operands: Array, **options: Any) -> Any:
            made = function(*_alike(operands), **options)
            return tuple(made) if isinstance(made, tuple) else made

        return of_matrices

    def diagonal(self, x: Array, offset: int = 0) -> Array:
        return jnp.diagonal(x, offset, -2, -1)

    def matrix_power(self, x: Array, n: int) -> Array:
        return jnp.linalg.matrix_power(x, n)

    def norm(self, x: Array, ord: Any, axis: tuple[int, int], keepdims: bool) -> Array:
        return jnp.linalg.norm(_solvable(x), ord=ord, axis=axis, keepdims=keepdims)


def _alike(operands: Sequence[Array]) -> list[Array]:
    """In the dtype that NumPy solves them in."""
    dtype = np.result_type(*(_solvable(x).dtype for x in operands))
    return [x.astype(dtype) for x in operands]


def _solvable(x: Array) -> Array:
    """Small floats in float32, integers in float64, as NumPy transforms and solves them."""
    if is_small(x.dtype) or x.dtype == np.float16:
        return x.astype(np.float32)
    return x if x.dtype.kind in "fc" else x.astype(np.float64)
