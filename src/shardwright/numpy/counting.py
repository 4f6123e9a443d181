"""Counts of elements: devices count their own, and the counts are left as a pending sum over the axes that split them."""

from typing import Any

import numpy as np

from shardwright.arrays import Array, index_array
from shardwright.eager import apply
from shardwright.errors import OperationError, TraceError
from shardwright.numpy.common import array, arrays, integer
from shardwright.numpy.elementwise import astype, where
from shardwright.numpy.moves import broadcast_to
from shardwright.numpy.statistics import max, min, searchsorted, sum
from shardwright.ops import Attrs


def bincount(x: Any, /, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Array:
    """How often each integer from 0 on occurs, or the sum of its weights in float64.

    The result has one more element than the largest integer, or `minlength` if that is more. This looks at the data; with
    `length` the size is fixed, as a traced function needs, and integers beyond it are an error.
    """
    numbers = index_array("bincount", array("bincount", x), "elements")
    least = integer("bincount", "minlength", minlength)
    if length is None:
        most = int(_known("bincount", max(numbers), "length=n")) if numbers.size else -1
        size = most + 1 if most >= least else least
    else:
        size = integer("bincount", "length", length)
    if least < 0 or size < 0 or (length is not None and least > size):
        raise OperationError(
            f"bincount: minlength={minlength}, length={length}. Give 0 or more, minlength no more than length."
        )
    text = f"bincount: {{}} is not one of the {size} integers from 0 to {size - 1} that are counted."
    if size or numbers.size:
        bounds = Attrs(low=0, high=size - 1, error=OperationError, text=text)
        numbers = apply("in_range", (numbers,), bounds)
    return _counts("bincount", numbers, weights, size)


def histogram(
    x: Any, /, bins: Any = 10, range: tuple[float, float] | None = None, density: bool = False, weights: Any = None
) -> tuple[Array, Array]:
    """How many elements are in each bin, and the edges of the bins; the last bin includes its upper edge.

    `bins` is a number of equal bins over `range`, or their edges on the host. Without a range the bins go from the smallest
    element to the largest, which looks at the data: a traced function needs the range. Elements outside are not counted.
    """
    a = array("histogram", x)
    if isinstance(bins, str | Array):
        raise OperationError(
            f"histogram: bins of type {type(bins).__name__}; give a number of bins, or edges on the host."
        )
    if a.dtype.kind == "c":
        raise OperationError(
            f"histogram: elements of {a.dtype} have no order. Count real and imaginary parts separately."
        )
    ends = np.zeros(0, a.dtype)
    if np.ndim(bins) == 0 and range is None and a.size:
        ends = np.asarray([_known("histogram", end(a), "range=(low, high)") for end in (min, max)], a.dtype)
    try:
        edges = np.histogram_bin_edges(ends, bins, range)
    except (TypeError, ValueError) as error:
        raise OperationError(f"histogram: {error}") from None
    count = len(edges) - 1
    known = a.beside(edges)
    numbers = searchsorted(known, a, side="right") - 1
    numbers = where(a == edges[-1].item(), count - 1, numbers)
    numbers = where(numbers < 0, count, numbers)  # elements outside are counted beyond the last bin
    counts = _counts("histogram", numbers, weights, count + 1, exact=True)[:count]
    if weights is not None:
        kind = arrays("histogram", a, weights)[1].dtype
        if kind == np.bool_:  # NumPy's result depends on the bins: an error, or whether there are any
            raise OperationError("histogram: weights are booleans. Use weights.astype(np.int64).")
        counts = counts if density else astype(counts, kind)
    if density:
        widths = np.diff(edges).astype(np.float64)
        counts = astype(counts, np.float64) / a.beside(widths) / sum(counts)
    return counts, known


def _known(name: str, value: Array, option: str) -> Any:
    """The only element of an array, where it is known."""
    try:
        return value.item()
    except TraceError:
        raise TraceError(
            f"{name}: the shape of the result depends on data, which a traced function does not have. Give {option}."
        ) from None


def _counts(name: str, numbers: Array, weights: Any, size: int, exact: bool = False) -> Array:
    """The sum of the weights of each number, or how often it occurs; numbers are in range. Sums of integers are floats unless
    they are to be exact."""
    values = arrays(name, numbers, 1 if weights is None else weights)[1]
    dtype = np.dtype(np.int64 if weights is None else np.float64)
    if exact and values.dtype.kind in "biu":
        dtype = np.result_type(values.dtype, np.uint64 if values.dtype.kind == "u" else np.int64)
    if values.dtype.kind == "c":
        raise OperationError(
            f"{name}: weights of {values.dtype} are not real. Count real and imaginary parts separately."
        )
    if weights is not None and values.shape != numbers.shape:
        values = broadcast_to(values, numbers.shape)
    factors = " ".join(f"i{at}" for at in np.arange(numbers.ndim))
    result: Array = apply(
        "scatter_reduce",
        (numbers.beside(np.zeros(size, dtype)), astype(values, dtype), numbers),
        Attrs(op="add", dims=(0,), index=factors, updates="" if weights is None else factors),
    )
    return result
