"""Operations with data-dependent shapes: what one device finds in its own shard, and lists put together.

Results are plain lists; whoever runs these kernels lets all devices agree on how many each found, gathers the lists where
their order matters, and cuts the result anew.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.kernels.call import Call, Data
from shardwright.ops import is_small


def locations(call: Call, found: Sequence[Data]) -> list[Data]:
    """Coordinates in the whole tensor of elements of the first operand, given by their local places."""
    layout = call.operands[0]
    starts = [int(call.starts(layout, dim)) for dim in range(len(layout.shape))]
    return [places + start for places, start in zip(found, starts, strict=True)]


def nonzero(call: Call, x: Data) -> list[Data]:
    """The coordinates of elements that are not zero, a list per dim."""
    return locations(call, np.nonzero(x))


def masked(call: Call, x: Data, mask: Data) -> list[Data]:
    """The elements where a mask of the same shape is true, and their coordinates."""
    found = np.nonzero(mask)
    return [x[found], *locations(call, found)]


def unique(call: Call, x: Data) -> list[Data]:
    """A shard's different elements in order, where each is first in the whole tensor, how often each occurs, and which of
    them each element is. NaNs are all different."""
    if is_small(x.dtype):  # NumPy does not sort their NaNs last
        x = x.astype(np.float32)
    values, first, which, counts = np.unique(
        x.ravel(), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    shape = call.operands[0].shape
    where = locations(call, np.unravel_index(first, x.shape)) if x.ndim else []
    numbers = np.ravel_multi_index(where, shape) if x.size and where else first
    return [values, np.asarray(numbers, np.int64), counts, which.reshape(x.shape)]


def merged(values: Data, first: Data, counts: Data) -> tuple[Data, Data, Data, Data]:
    """The lists of all shards, one after the other, as one: different values, where each is first, how often each occurs;
    and for each entry of the lists which of them it is."""
    by_place = np.argsort(first, kind="stable")  # so that of equal values the first comes first
    order = by_place[np.argsort(values[by_place], kind="stable")]
    ordered = values[order]
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(ordered), np.int64)
    number[order] = np.cumsum(new) - 1
    begins = np.flatnonzero(new)
    total = np.add.reduceat(counts[order], begins) if len(begins) else counts[:0]
    return ordered[begins], first[order][begins], total, number


def index(call: Call, x: Data, *keys: Data) -> list[Data]:
    """x[…] with arrays in the index."""
    return [x[_key(call, keys)]]


def repeat(call: Call, x: Data, counts: Data) -> list[Data]:
    """Each row as often as its count says."""
    return [np.repeat(x, counts, axis=call.attrs["axis"])]


def _key(call: Call, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """An index whose arrays, marked by "array" in the pattern, come as operands."""
    given = iter(arrays)
    return tuple(next(given) if entry == "array" else _entry(entry) for entry in call.attrs["pattern"])


def _entry(entry: Any) -> Any:
    """Slices are not hashable in Python 3.11, so a pattern has them as tuples."""
    return slice(*entry[1:]) if isinstance(entry, tuple) else (Ellipsis if entry == "..." else entry)
