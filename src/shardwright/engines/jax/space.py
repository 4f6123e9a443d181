"""`JaxSpace`: the namespace in which kernels run on JAX arrays, NumPy's functions by name and by meaning.

A ufunc of NumPy says in which dtypes it computes operands of given kinds; they are converted to these and jax.numpy's function
of the same name runs. Python scalars are weak, also where their values are traced (`Weak`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwright.engines.jax.matrices import Fourier, Matrices
from shardwright.engines.promotion import Kind, loop_dtypes, total_dtype
from shardwright.ops import is_small

Array = Any  # of JAX, or traced
Axis = int | Sequence[int] | None
Flag = Callable[
    [Array, Exception], None
]  # is told a traced boolean, and the error to raise once it is known to be true


class Weak(NamedTuple):
    """A Python scalar whose value is traced: it takes the dtype of what it meets."""

    value: Array
    type: type


class JaxSpace:
    """NumPy's functions on JAX arrays, under the names that kernels use."""

    inf, nan = float("inf"), float("nan")
    fft = Fourier()
    linalg = Matrices()

    def __init__(self, flag: Flag) -> None:
        self._flag = flag

    def __getattr__(self, name: str) -> Any:
        ufunc = getattr(np, name, None)
        if not isinstance(ufunc, np.ufunc):
            raise AttributeError(f"JaxSpace has no {name}")
        function = self._function(name, ufunc)
        setattr(self, name, function)
        return function

    @staticmethod
    def dtype(x: Array) -> np.dtype[Any]:
        """The dtype as NumPy has it."""
        dtype: np.dtype[Any] = x.dtype
        return dtype

    # -- element by element -------------------------------------------------------------------------------------------

    def _function(self, name: str, ufunc: np.ufunc) -> Callable[..., Array]:
        native = getattr(jnp, name)

        def function(*operands: Any) -> Array:
            kinds = _kinds(operands)
            dtypes = loop_dtypes(ufunc, kinds)
            try:
                given = [_converted(x, dtype) for x, dtype in zip(operands, dtypes, strict=False)]
            except OverflowError:  # an integer beyond the dtype: NumPy compares with it, and refuses all else
                return self._beyond(ufunc, operands)
            return strong(self._computed(name, native, given, dtypes[0]), dtypes[-1])

        return function

    def _computed(self, name: str, native: Callable[..., Array], given: list[Array], dtype: np.dtype[Any]) -> Array:
        if is_small(dtype) and dtype.itemsize == 1:
            given = [x.astype(np.float32) for x in given]
        if dtype.kind in "iu" and name in ("floor_divide", "remainder"):
            return _divided(native, *given)
        if dtype.kind in "iu" and name == "pow":
            if dtype.kind == "i":
                error = ValueError("Integers to negative integer powers are not allowed.")
                self._flag(jnp.any(given[1] < 0), error)
            return native(*given)
        return native(*given)

    def _beyond(self, ufunc: np.ufunc, operands: Sequence[Any]) -> Array:
        """A comparison with an integer that no element equals: it depends on the integer's sign alone."""
        arrays = [x for x in operands if hasattr(x, "dtype")]
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        example = [np.zeros((), x.dtype) if hasattr(x, "dtype") else x for x in operands]
        return jnp.full(shape, ufunc(*example))

    # -- arrays from other things -------------------------------------------------------------------------------------

    def asarray(self, x: Any, dtype: Any = None) -> Array:
        """An array from an array of NumPy or JAX, or a scalar."""
        if isinstance(x, Weak):
            return _converted(x, np.dtype(dtype or x.type))
        if isinstance(x, jax.Array):
            return x if dtype is None else self.astype(x, dtype)
        with np.errstate(all="ignore"):
            return jnp.asarray(np.asarray(x, dtype))

    def astype(self, x: Array, dtype: Any) -> Array:
        """Elements converted; of complex numbers the real parts, as NumPy does."""
        dtype = np.dtype(dtype)
        if isinstance(x, Weak):
            return _converted(x, dtype)
        if x.dtype == dtype:
            return strong(x, dtype)
        if x.dtype.kind == "c" and dtype.kind not in "cb":
            x = x.real
        if dtype.kind == "b":
            return x != 0
        if x.dtype.kind == "f" and dtype.kind in "iu" and not is_small(x.dtype):
            return _truncated(x, dtype)
        return strong(x, dtype)

    def bitcast(self, x: Array, dtype: Any) -> Array:
        """The same bits in another dtype of the same width."""
        return lax.bitcast_convert_type(x, np.dtype(dtype))

    def full(self, shape: Sequence[int], value: Any, dtype: Any = None) -> Array:
        return jnp.broadcast_to(self.asarray(value, dtype), tuple(shape))

    def zeros(self, shape: Sequence[int], dtype: Any = np.float64) -> Array:
        return jnp.zeros(tuple(shape), dtype)

    def zeros_like(self, x: Array) -> Array:
        return jnp.zeros_like(x)

    def make_complex(self, real: Array, imag: Array) -> Array:
        """A complex number from its parts."""
        return lax.complex(*jnp.broadcast_arrays(*self._alike(real, imag)))

    # -- choices ------------------------------------------------------------------------------------------------------

    def where(self, condition: Any, x: Any, y: Any) -> Array:
        a, b = self._alike(x, y)
        return jnp.where(self.asarray(condition), a, b)

    def clip(self, x: Array, low: Any = None, high: Any = None) -> Array:
        for bound, function, side in ((low, self.maximum, -1), (high, self.minimum, 1)):
            if bound is None:
                continue
            if isinstance(bound, int) and not _fits(bound, x.dtype):
                if (bound > 0) != (side > 0):  # a bound that every element is beyond
                    raise OverflowError(f"Python integer {bound} out of bounds for {x.dtype}")
                continue
            x = function(x, bound)
        return x

    def isin(self, x: Array, values: Array, invert: bool = False) -> Array:
        a, b = self._alike(x, values)
        return jnp.isin(a, b, invert=invert)

    def real(self, x: Array) -> Array:
        return jnp.real(x)

    def imag(self, x: Array) -> Array:
        return jnp.imag(x)

    def round(self, x: Array) -> Array:
        return x if x.dtype.kind in "biu" else jnp.round(x)

    def matmul(self, x: Array, y: Array) -> Array:
        a, b = self._alike(x, y)
        if a.dtype.kind == "b":
            return jnp.matmul(a.astype(np.int32), b.astype(np.int32)) > 0
        if is_small(a.dtype) and a.dtype.itemsize == 1:
            return jnp.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
        return jnp.matmul(a, b)

    def grouped_matmul(self, x: Array, w: Array, first: Array, last: Array) -> Array:
        """Rows first[g] to last[g] of x times w[g], for every g; zeros in all other rows.

        The rows of the groups follow one another. `ragged_dot` wants the first of them in front.
        """
        begin, rows = jnp.min(first), jnp.arange(x.shape[0])
        sizes = (last - first).astype(np.int32)
        made = lax.ragged_dot(jnp.roll(x, -begin, axis=0), w, sizes)
        made = jnp.where((rows < jnp.sum(sizes))[:, None], made, jnp.zeros((), made.dtype))
        return jnp.roll(made, begin, axis=0).astype(x.dtype)

    # -- elements moved -----------------------------------------------------------------------------------------------

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return jnp.reshape(x, tuple(shape))

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        return jnp.transpose(x, tuple(axes))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        return jnp.broadcast_to(x, tuple(shape))

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        return jnp.concatenate(self._alike(*arrays), axis=axis)

    def stack(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        return jnp.stack(self._alike(*arrays), axis=axis)

    def flip(self, x: Array, axis: int) -> Array:
        return jnp.flip(x, axis)

    def take(self, x: Array, indices: Array, axis: int | None = None) -> Array:
        return jnp.take(x, indices, axis=axis, mode="clip")

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        return jnp.take_along_axis(x, indices, axis=axis, mode="clip")

    def rows(self, x: Array, start: Any, count: int, axis: int) -> Array:
        """Some rows of a dim, which begin at a position that may be traced."""
        return lax.dynamic_slice_in_dim(x, start, count, axis % x.ndim)

    def fold(self, turns: int, function: Any, carry: Any) -> Any:
        """The last of what a function of a turn's number and of what the turn before gave gives."""
        return function(0, carry) if turns == 1 else lax.fori_loop(0, turns, function, carry)

    def over(self, turns: int, function: Any, axis: int) -> Any:
        """The tuples of arrays that a function of a turn's number gives, joined along a dim; of one turn at least."""
        if turns == 1:
            return function(0)
        found = (jnp.moveaxis(x, 0, axis) for x in lax.map(function, jnp.arange(turns)))
        return tuple(jnp.reshape(x, (*x.shape[:axis], -1, *x.shape[axis + 2 :])) for x in found)

    def scatter_reduce(self, x: Array, rows: Array, updates: Array, op: str) -> Array:
        """Rows of x combined with rows of updates; several for one row are all combined."""
        places = x.at[rows]
        return getattr(places, {"mul": "multiply"}.get(op, op))(updates, mode="drop")

    # -- along dims ---------------------------------------------------------------------------------------------------

    def sum(self, x: Array, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
        x = self.astype(x, dtype or total_dtype(x.dtype))
        if x.dtype.kind == "b":
            return jnp.any(x, axis=_dims(axis), keepdims=keepdims)
        return _wide(x, lambda y: jnp.sum(y, axis=_dims(axis), dtype=y.dtype, keepdims=keepdims))

    def prod(self, x: Array, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
        x = self.astype(x, dtype or total_dtype(x.dtype))
        if x.dtype.kind == "b":
            return jnp.all(x, axis=_dims(axis), keepdims=keepdims)
        return _wide(x, lambda y: jnp.prod(y, axis=_dims(axis), dtype=y.dtype, keepdims=keepdims))

    def max(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return _wide(x, lambda y: jnp.max(y, axis=_dims(axis), keepdims=keepdims))

    def min(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return _wide(x, lambda y: jnp.min(y, axis=_dims(axis), keepdims=keepdims))

    def any(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return jnp.any(x, axis=_dims(axis), keepdims=keepdims)

    def all(self, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
        return jnp.all(x, axis=_dims(axis), keepdims=keepdims)

    def mean(self, x: Array, axis: Axis = None) -> Array:
        wide = x.astype(np.float64) if x.dtype.kind in "biu" else x
        return _wide(wide, lambda y: jnp.mean(y, axis=_dims(axis)))

    def argmax(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        return jnp.argmax(x, axis=axis, keepdims=keepdims)

    def cumulative_sum(self, x: Array, axis: int, dtype: Any = None) -> Array:
        return self._running(jnp.cumsum, jnp.any, x, axis, dtype)

    def cumulative_prod(self, x: Array, axis: int, dtype: Any = None) -> Array:
        return self._running(jnp.cumprod, jnp.all, x, axis, dtype)

    def _running(self, function: Any, of_booleans: Any, x: Array, axis: int, dtype: Any) -> Array:
        x = self.astype(x, dtype or total_dtype(x.dtype))
        if x.dtype.kind == "b":  # sums of booleans are or, products are and
            counts = jnp.cumsum(x if of_booleans is jnp.any else ~x, axis=axis, dtype=np.int64)
            return counts > 0 if of_booleans is jnp.any else counts == 0
        return _wide(x, lambda y: function(y, axis=axis, dtype=y.dtype))

    def sort(self, x: Array, axis: int = -1, stable: bool = True) -> Array:
        return jnp.sort(x, axis=axis, stable=True)

    def argsort(self, x: Array, axis: int = -1, stable: bool = True) -> Array:
        return jnp.argsort(x, axis=axis, stable=True)

    def searchsorted(self, x: Array, values: Array, side: str = "left") -> Array:
        a, b = self._alike(x, values)
        return jnp.searchsorted(a, b, side=side)

    def _alike(self, *operands: Any) -> list[Array]:
        """Arrays and scalars as arrays of the dtype that NumPy promotes them to."""
        kinds = _kinds(operands)
        if len(set(kinds)) == 1 and isinstance(kinds[0], np.dtype):
            return [self.asarray(x, kinds[0]) for x in operands]
        dtype = np.result_type(*(kind if isinstance(kind, np.dtype) else kind(1) for kind in kinds))
        return [_converted(x, dtype) for x in operands]


def strong(x: Array, dtype: Any) -> Array:
    """An array of a dtype that is no weak scalar's any more."""
    weak = getattr(x.aval, "weak_type", False)
    return lax.convert_element_type(x, np.dtype(dtype)) if weak or x.dtype != dtype else x


def _kinds(operands: Sequence[Any]) -> tuple[Kind, ...]:
    """The kinds of operands; a Python scalar beside a small float of ml_dtypes is of that dtype."""
    kinds = [_kind(x) for x in operands]
    small = next((kind for kind in kinds if isinstance(kind, np.dtype) and is_small(kind)), None)
    return tuple(small if small is not None and kind in (int, float) else kind for kind in kinds)


def _kind(x: Any) -> Kind:
    if isinstance(x, Weak):
        return x.type
    return x.dtype if hasattr(x, "dtype") else type(x)


def _converted(x: Any, dtype: np.dtype[Any]) -> Array:
    """An operand in a dtype; OverflowError if it is an integer that the dtype can't hold."""
    if isinstance(x, Weak):
        return strong(x.value, dtype)
    if isinstance(x, jax.Array):
        return strong(x, dtype)
    if isinstance(x, int) and not isinstance(x, bool) and dtype.kind in "iu" and not _fits(x, dtype):
        raise OverflowError(f"Python integer {x} out of bounds for {dtype}")
    with np.errstate(all="ignore"):
        return jnp.asarray(np.asarray(x).astype(dtype) if hasattr(x, "dtype") else np.asarray(x, dtype))


def _fits(value: int, dtype: np.dtype[Any]) -> bool:
    if dtype.kind not in "iu":
        return True
    info = np.iinfo(dtype)
    return info.min <= value <= info.max


def _divided(native: Callable[..., Array], x: Array, y: Array) -> Array:
    """A quotient or remainder of integers; NumPy's is 0 where the divisor is."""
    return jnp.where(y == 0, jnp.zeros((), x.dtype), native(x, jnp.where(y == 0, jnp.ones((), y.dtype), y)))


def _truncated(x: Array, dtype: np.dtype[Any]) -> Array:
    """Floats as integers; those beyond the dtype as processors convert them for NumPy: through 64 bits, wrapping."""
    if dtype.itemsize == 8:
        return lax.convert_element_type(x, dtype)
    return lax.convert_element_type(lax.convert_element_type(x, np.int64), dtype)


def _wide(x: Array, function: Callable[[Array], Array]) -> Array:
    """A function of small floats, computed in float32."""
    return function(x.astype(np.float32)).astype(x.dtype) if is_small(x.dtype) else function(x)


def _dims(axis: Axis) -> Any:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)
