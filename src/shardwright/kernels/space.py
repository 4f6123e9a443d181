"""NumPy as a namespace for kernels: its own functions, and the few that it lacks."""

from typing import Any

import numpy as np


class NumpySpace:
    """NumPy's functions under the names that kernels use."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        setattr(self, name, function)
        return function

    @staticmethod
    def dtype(x: Any) -> np.dtype[Any]:
        """The dtype of an array as NumPy has it."""
        dtype: np.dtype[Any] = x.dtype
        return dtype

    @staticmethod
    def bitcast(x: Any, dtype: Any) -> Any:
        """The same bits in another dtype of the same width."""
        return np.asarray(x).view(dtype)

    @staticmethod
    def make_complex(real: Any, imag: Any) -> Any:
        """A complex number from its parts; arithmetic would turn an infinity beside a NaN into two NaNs."""
        parts = np.stack(np.broadcast_arrays(real, imag), axis=-1)
        return parts.view(np.result_type(parts.dtype, np.complex64))[..., 0]

    @staticmethod
    def rows(x: Any, start: int, count: int, axis: int) -> Any:
        """Some rows of a dim, which begin at a position that an engine may have traced."""
        return x[(..., slice(start, start + count), *(slice(None),) * (-axis - 1))]

    @staticmethod
    def fold(turns: int, function: Any, carry: Any) -> Any:
        """The last of what a function of a turn's number and of what the turn before gave gives."""
        for at in range(turns):
            carry = function(at, carry)
        return carry

    @staticmethod
    def over(turns: int, function: Any, axis: int) -> Any:
        """The tuples of arrays that a function of a turn's number gives, joined along a dim; of one turn at least."""
        return tuple(np.concatenate(some, axis=axis) for some in zip(*map(function, range(turns)), strict=True))

    @staticmethod
    def scatter_reduce(x: Any, rows: Any, updates: Any, op: str) -> Any:
        """Rows of x combined with rows of updates; several for one row are all combined."""
        made = np.array(x)
        if updates.shape[1] == 1:  # NumPy is much faster on one dim
            _COMBINE[op].at(made[:, 0], rows, updates[:, 0])
        else:
            _COMBINE[op].at(made, rows, updates)
        return made

    @staticmethod
    def grouped_matmul(x: Any, w: Any, first: Any, last: Any) -> Any:
        """Rows first[g] to last[g] of x times w[g], for every g; zeros in all other rows."""
        made = np.zeros((len(x), w.shape[-1]), x.dtype)
        for matrix, start, stop in zip(w, first.tolist(), last.tolist(), strict=True):
            if start < stop:
                np.matmul(x[start:stop], matrix, out=made[start:stop])
        return made


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
NUMPY = NumpySpace()
