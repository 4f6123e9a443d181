"""Fourier transforms and linear algebra of NumPy on torch tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.engines.torch.convert import numpy_dtype
from shardwright.engines.torch.host import letter_of, needs_host, on_host


class Fourier:
    """`numpy.fft` on tensors of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
            setattr(self, name, self._one(name))
        for name in ("fftn", "ifftn", "rfftn", "irfftn"):
            setattr(self, name, self._several(name))

    def _one(self, name: str) -> Callable[..., Tensor]:
        function = getattr(torch.fft, name)

        def transform(x: Tensor, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
            if not x.numel():  # MKL refuses these
                return on_host(self.device, getattr(np.fft, name), x, n=n, axis=axis, norm=norm)
            return function(_transformable(x), n=n, dim=axis, norm=norm).resolve_conj()

        return transform

    def _several(self, name: str) -> Callable[..., Tensor]:
        function = getattr(torch.fft, name)

        def transform(x: Tensor, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Tensor:
            if not x.numel():
                return on_host(self.device, getattr(np.fft, name), x, s=s, axes=axes, norm=norm)
            return function(_transformable(x), s=s, dim=axes, norm=norm).resolve_conj()

        return transform

    def fftshift(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return torch.roll(x, [x.shape[axis] // 2 for axis in axes], tuple(axes))

    def ifftshift(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return torch.roll(x, [-(x.shape[axis] // 2) for axis in axes], tuple(axes))


def _transformable(x: Tensor) -> Tensor:
    """Small floats in float32, integers in float64, as NumPy transforms them."""
    if x.is_floating_point() and x.dtype.itemsize < 4:
        return x.to(torch.float32)
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.float64)


class Matrices:
    """`numpy.linalg` on tensors of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        for name in "cholesky det inv slogdet solve svdvals eigh eigvalsh qr svd eig eigvals matrix_rank".split():
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        function = getattr(torch.linalg, name)

        def of_matrices(*operands: Tensor, **options: Any) -> Any:
            if _needs_host(name, *operands):
                return on_host(self.device, getattr(np.linalg, name), *operands, **options)
            result = function(*_solvable(*operands), **options)
            return tuple(result) if isinstance(result, tuple) else result

        return _raising(of_matrices)

    def diagonal(self, x: Tensor, offset: int = 0) -> Tensor:
        return torch.diagonal(x, offset, -2, -1)

    def matrix_power(self, x: Tensor, n: int) -> Tensor:
        if _needs_host("matrix_power", x):
            return on_host(self.device, np.linalg.matrix_power, x, n)
        return _raising(torch.linalg.matrix_power)(x, n)

    def pinv(self, x: Tensor, rtol: Any = 1e-15) -> Tensor:
        if _needs_host("pinv", x):
            return on_host(self.device, np.linalg.pinv, x, rtol)
        return _raising(torch.linalg.pinv)(_solvable(x)[0], rtol=rtol)

    def norm(self, x: Tensor, ord: Any, axis: tuple[int, int], keepdims: bool) -> Tensor:
        if _needs_host("norm", x) or not x.numel():  # errors are NumPy's
            return on_host(self.device, np.linalg.norm, x, ord=ord, axis=axis, keepdims=keepdims)
        return torch.linalg.matrix_norm(_solvable(x)[0], ord="fro" if ord is None else ord, dim=axis, keepdim=keepdims)


def _needs_host(name: str, *operands: Tensor) -> bool:
    """Whether a function runs in NumPy: torch solves no matrices of 16 bits, NumPy those of bfloat16 in float64."""
    dtypes = [numpy_dtype(x.dtype) for x in operands]
    return needs_host(name, dtypes) or any(letter_of(dtype) == "f" and dtype.itemsize == 2 for dtype in dtypes)


def _solvable(*operands: Tensor) -> list[Tensor]:
    """In the dtype that NumPy solves them in: float64 for integers."""
    dtype = np.result_type(*(numpy_dtype(x.dtype) for x in operands))
    wide = torch.float64 if dtype.kind in "biu" else getattr(torch, dtype.name)
    return [x.to(wide) for x in operands]


def _raising(function: Callable[..., Any]) -> Callable[..., Any]:
    """With NumPy's error for matrices that have no solution."""

    def run(*operands: Any, **options: Any) -> Any:
        try:
            return function(*operands, **options)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise np.linalg.LinAlgError(str(error)) from error

    return run
