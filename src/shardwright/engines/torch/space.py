"""`TorchSpace`: the namespace in which kernels run on torch tensors, NumPy's functions by name and by meaning."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.engines.promotion import total_dtype
from shardwright.engines.torch.convert import as_bits, from_host, numpy_dtype, torch_dtype
from shardwright.engines.torch.direct import direct
from shardwright.engines.torch.elementwise import Function, function_of, kind_of, scalar
from shardwright.engines.torch.host import letter_of, needs_host, on_host
from shardwright.engines.torch.matrices import Fourier, Matrices
from shardwright.kernels import NUMPY, Call, NumpySpace

Axis = int | Sequence[int] | None
_REDUCES = {"mul": "prod", "max": "amax", "min": "amin"}


class TorchSpace:
    """NumPy's functions on torch tensors of one device, under the names that kernels use."""

    inf, nan = float("inf"), float("nan")

    def __init__(self, device: Any = "cpu") -> None:
        self.device = torch.device(device)
        self.fft, self.linalg = Fourier(self.device), Matrices(self.device)
        self._product = function_of("matmul", self.device)

    def __getattr__(self, name: str) -> Any:
        if not isinstance(getattr(np, name, None), np.ufunc):
            raise AttributeError(f"TorchSpace has no {name}")
        function = function_of(name, self.device)
        setattr(self, name, function)
        return function

    @staticmethod
    def dtype(x: Tensor) -> np.dtype[Any]:
        """The dtype as NumPy has it."""
        return numpy_dtype(x.dtype)

    def direct(self, call: Call, kinds: tuple[Any, ...]) -> Function | None:
        """Torch's function in place of a kernel without lanes, for operands of these kinds; None where the kernel must run."""
        return direct(call, kinds, self)

    # -- tensors from other things --------------------------------------------------------------------------------

    def asarray(self, x: Any, dtype: Any = None) -> Tensor:
        """A tensor on the device from a tensor, an array or a scalar."""
        if isinstance(x, Tensor):
            return x if dtype is None else self.astype(x, dtype)
        with np.errstate(all="ignore"):
            array = np.asarray(x, None if dtype is None else numpy_dtype(dtype))
        return from_host(array, self.device)

    def astype(self, x: Tensor, dtype: Any) -> Tensor:
        """Elements converted; float8 on the host, since torch's may saturate, and has another 0 of float8_e8m0fnu."""
        wanted = torch_dtype(dtype)
        if x.dtype is wanted:
            return x
        if "s" in (letter_of(numpy_dtype(wanted)), letter_of(numpy_dtype(x.dtype))):
            return self._host(lambda array: array.astype(numpy_dtype(wanted)), x)
        if x.is_complex() and not wanted.is_complex and wanted is not torch.bool:
            x = x.real  # torch would warn
        return x.to(wanted)

    def bitcast(self, x: Tensor, dtype: Any) -> Tensor:
        """The same bits in another dtype of the same width."""
        return x.view(torch_dtype(dtype))

    def full(self, shape: Sequence[int], value: Any, dtype: Any = None) -> Tensor:
        return self.asarray(value, dtype).expand(tuple(shape)).clone()

    def zeros(self, shape: Sequence[int], dtype: Any = np.float64) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch_dtype(dtype), device=self.device)

    def zeros_like(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def make_complex(self, real: Tensor, imag: Tensor) -> Tensor:
        """A complex number from its parts."""
        return torch.complex(*self._alike(real, imag))

    # -- choices --------------------------------------------------------------------------------------------------

    def where(self, condition: Any, x: Any, y: Any) -> Tensor:
        try:
            a, b = self._alike(x, y)
        except OverflowError:  # NumPy wraps an integer that the dtype can't hold
            return self._host(np.where, condition, x, y)
        return torch.where(self.asarray(condition).to(torch.bool), a, b)

    def clip(self, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
        try:
            at_least = x if low is None else self.maximum(x, low)
            return at_least if high is None else self.minimum(at_least, high)
        except OverflowError:  # NumPy takes an integer beyond the dtype as no bound
            return self._host(np.clip, x, low, high)

    def isin(self, x: Tensor, values: Tensor, invert: bool = False) -> Tensor:
        a, b = self._alike(x, values)
        if needs_host("isin", [self.dtype(a)]):
            return self._host(np.isin, a, b, invert=invert)
        return torch.isin(a, b, invert=invert)

    def real(self, x: Tensor) -> Tensor:
        return x.real if x.is_complex() else x

    def imag(self, x: Tensor) -> Tensor:
        return x.imag if x.is_complex() else torch.zeros_like(x)

    def round(self, x: Tensor) -> Tensor:
        if needs_host("round", [self.dtype(x)]):
            return self._host(np.round, x)
        return torch.complex(torch.round(x.real), torch.round(x.imag)) if x.is_complex() else torch.round(x)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Small floats stay small, where NumPy gives float32; integers on the host, except on the CPU."""
        floats = x.dtype.is_floating_point or x.dtype.is_complex
        if x.dtype is y.dtype and floats and x.dtype.itemsize > 1:
            return torch.matmul(x, y)
        return self._product(x, y) if floats or self.device.type == "cpu" else self._host(np.matmul, x, y)

    def grouped_matmul(self, x: Tensor, w: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Rows first[g] to last[g] of x times w[g], for every g; zeros in all other rows."""
        made = torch.zeros((len(x), w.shape[-1]), dtype=x.dtype, device=x.device)
        for matrix, start, stop in zip(w, first.tolist(), last.tolist(), strict=True):
            if start < stop:
                made[start:stop] = self.matmul(x[start:stop], matrix)
        return made

    # -- elements moved -------------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape(tuple(shape))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def broadcast_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.expand(tuple(shape))

    def concat(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(self._alike(*arrays), dim=axis)

    def stack(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.stack(self._alike(*arrays), dim=axis)

    def flip(self, x: Tensor, axis: int) -> Tensor:
        return moving(lambda bits: torch.flip(bits, (axis,)), x)

    def take(self, x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
        if axis is None:
            x, axis = x.reshape(-1), 0
        axis %= x.ndim
        rows = _counted(indices, x.shape[axis]).reshape(-1)
        made = moving(lambda bits: torch.index_select(bits, axis, rows), x)
        return made if indices.ndim == 1 else made.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        axis %= x.ndim
        shape = list(np.broadcast_shapes(*((*s[:axis], 1, *s[axis + 1 :]) for s in (x.shape, indices.shape))))
        shape[axis] = -1
        rows = _counted(indices, x.shape[axis]).expand(shape)
        try:
            return moving(lambda bits: torch.gather(bits.expand(shape), axis, rows), x)
        except RuntimeError as error:
            raise IndexError(str(error)) from error

    rows, fold = staticmethod(NumpySpace.rows), staticmethod(NumpySpace.fold)

    def over(self, turns: int, function: Any, axis: int) -> Any:
        """The tuples of tensors that a function of a turn's number gives, joined along a dim; of one turn at least."""
        return tuple(torch.cat(some, dim=axis) for some in zip(*map(function, range(turns)), strict=True))

    def scatter_reduce(self, x: Tensor, rows: Tensor, updates: Tensor, op: str) -> Tensor:
        """Rows of x combined with rows of updates; several for one row are all combined."""
        if needs_host("scatter_reduce", [self.dtype(x)]):
            return self._host(NUMPY.scatter_reduce, x, rows, updates, op)
        if op == "add":
            return torch.index_add(x, 0, rows, updates)
        return torch.scatter_reduce(x, 0, rows[:, None].expand(updates.shape), updates, _REDUCES[op])

    # -- along dims -----------------------------------------------------------------------------------------------

    def sum(self, x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        x, dims = self.astype(x, dtype or total_dtype(self.dtype(x))), _dims(x, axis)
        if needs_host("sum", [self.dtype(x)]):
            return self._host(np.sum, x, axis=tuple(dims), dtype=self.dtype(x), keepdims=keepdims)
        if x.dtype is torch.bool:
            return self.any(x, axis, keepdims)
        return torch.sum(x, dims, keepdim=keepdims, dtype=x.dtype) if dims else x

    def prod(self, x: Tensor, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        x, dims = self.astype(x, dtype or total_dtype(self.dtype(x))), _dims(x, axis)
        if needs_host("prod", [self.dtype(x)]):
            return self._host(np.prod, x, axis=tuple(dims), dtype=self.dtype(x), keepdims=keepdims)
        if x.dtype is torch.bool:
            return self.all(x, axis, keepdims)
        for dim in sorted(dims, reverse=True):
            x = torch.prod(x, dim, keepdim=keepdims, dtype=x.dtype)
        return x

    def max(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._extreme("max", torch.amax, x, axis, keepdims)

    def min(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return self._extreme("min", torch.amin, x, axis, keepdims)

    def _extreme(self, name: str, function: Any, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
        dims = _dims(x, axis)
        if needs_host(name, [self.dtype(x)]):
            return self._host(getattr(np, name), x, axis=tuple(dims), keepdims=keepdims)
        return function(x, dims, keepdim=keepdims) if dims else x

    def any(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        x, dims = x.to(torch.bool), _dims(x, axis)
        return torch.any(x, dims, keepdim=keepdims) if dims else x

    def all(self, x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        x, dims = x.to(torch.bool), _dims(x, axis)
        return torch.all(x, dims, keepdim=keepdims) if dims else x

    def mean(self, x: Tensor, axis: Axis = None) -> Tensor:
        if needs_host("mean", [self.dtype(x)]):
            return self._host(np.mean, x, axis=axis)
        wide = x if x.is_floating_point() or x.is_complex() else x.to(torch.float64)
        return torch.mean(wide, dims) if (dims := _dims(x, axis)) else wide

    def argmax(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        if needs_host("argmax", [self.dtype(x)]):
            return self._host(np.argmax, x, axis=axis, keepdims=keepdims)
        return torch.argmax(x.to(torch.uint8) if x.dtype is torch.bool else x, axis, keepdim=keepdims)

    def cumulative_sum(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return self._running("cumulative_sum", torch.cumsum, x, axis, dtype)

    def cumulative_prod(self, x: Tensor, axis: int, dtype: Any = None) -> Tensor:
        return self._running("cumulative_prod", torch.cumprod, x, axis, dtype)

    def _running(self, name: str, function: Any, x: Tensor, axis: int, dtype: Any) -> Tensor:
        x = self.astype(x, dtype or total_dtype(self.dtype(x)))
        if needs_host(name, [self.dtype(x)]):
            return self._host(getattr(np, name), x, axis=axis, dtype=self.dtype(x))
        return function(x, axis, dtype=x.dtype)

    def sort(self, x: Tensor, axis: int = -1, stable: bool = True) -> Tensor:
        if needs_host("sort", [self.dtype(x)]):
            return self._host(np.sort, x, axis=axis, stable=True)
        return torch.sort(x, dim=axis, stable=True).values

    def argsort(self, x: Tensor, axis: int = -1, stable: bool = True) -> Tensor:
        if needs_host("sort", [self.dtype(x)]):
            return self._host(np.argsort, x, axis=axis, stable=True)
        return torch.sort(x, dim=axis, stable=True).indices

    def searchsorted(self, x: Tensor, values: Tensor, side: str = "left") -> Tensor:
        """NaNs are the largest, as in NumPy: they count as infinities first, and then come behind these."""
        a, b = self._alike(x, values)
        if needs_host("searchsorted", [self.dtype(a)]):
            return self._host(np.searchsorted, a, b, side=side)
        if not a.is_floating_point():
            return torch.searchsorted(a.contiguous(), b.contiguous(), side=side)
        real = (~torch.isnan(a)).sum()
        filled = torch.where(torch.isnan(a), self.inf, a), torch.where(torch.isnan(b), self.inf, b)
        found = torch.searchsorted(*(some.contiguous() for some in filled), side=side)
        return torch.where(torch.isnan(b), real if side == "left" else len(a), torch.minimum(found, real))

    # -- helpers --------------------------------------------------------------------------------------------------

    def _host(self, function: Any, *operands: Any, **options: Any) -> Any:
        return on_host(self.device, function, *operands, **options)

    def _alike(self, *operands: Any) -> list[Tensor]:
        """Tensors and scalars as tensors of the dtype that NumPy promotes them to."""
        kinds = [kind_of(x) for x in operands]
        if len(set(kinds)) == 1 and all(isinstance(x, Tensor) for x in operands):
            return list(operands)
        dtype = torch_dtype(np.result_type(*(kind if isinstance(kind, np.dtype) else kind(1) for kind in kinds)))
        tensors = (isinstance(x, Tensor) or hasattr(x, "dtype") for x in operands)
        return [
            self.asarray(x, dtype) if is_tensor else scalar(x, dtype, self.device)
            for x, is_tensor in zip(operands, tensors, strict=True)
        ]


def _dims(x: Tensor, axis: Axis) -> list[int]:
    if axis is None:
        return list(range(x.ndim))
    return [axis] if isinstance(axis, int) else list(axis)


def _counted(indices: Tensor, size: int) -> Tensor:
    """Numbers of rows from 0; negative ones count from the end."""
    rows = indices.to(torch.int64)
    return torch.where(rows < 0, rows + size, rows)


def moving(function: Any, x: Tensor) -> Tensor:
    """A move of elements; torch lacks many for wide unsigned integers and float8, and moves their bits instead."""
    if letter_of(numpy_dtype(x.dtype)) in "ws":
        return function(as_bits(x)).view(x.dtype)
    return function(x)
