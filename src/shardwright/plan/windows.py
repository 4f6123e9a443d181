"""Which rows of a dim every shard of a result wants: blocks with halos, or rows picked one by one.

A move is described dim by dim: `Blocks` where shard j wants the rows from one offset to the next, `Picked` where a row map
(a slice, a flip, a roll, the windows of a convolution) says which rows. Both answer the same two questions, for all shards
at once: how many rows of the tensor a shard wants, and how many of them lie in a given range.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, kept
from shardwright.ops import RowMap
from shardwright.sharding import DimLayout

Ints = NDArray[np.int64]
OUTSIDE = -1  # instead of a row: this place gets the fill value


class Blocks:
    """Shard j wants the rows from its offset to the next, and its halo as far as that lies in the tensor."""

    def __init__(self, dim: DimLayout) -> None:
        self.dim, self.parts = dim, dim.parts

    @cached_property
    def _offsets(self) -> Ints:
        return self.dim.offsets

    def starts(self, shard: Ints) -> Ints:
        """Where shards begin, without halo; number `parts` begins at the end of the dim."""
        return self._offsets[shard] if self.dim.is_listed else self.dim.starts(shard)

    def low(self, shard: Ints) -> Ints:
        """The first row that shards want, clipped to the dim."""
        return np.maximum(self.starts(shard) - self.dim.low, 0)

    def high(self, shard: Ints) -> Ints:
        """And the one after the last."""
        return np.minimum(self.starts(shard + 1) + self.dim.high, self.dim.size)

    @property
    def any_rows(self) -> bool:
        """Whether some shard wants a row of the tensor."""
        return self.dim.size > 0

    def wants(self, shard: Ints) -> Ints:
        """How many rows of the tensor shards want."""
        return self.high(shard) - self.low(shard)

    def within(self, shard: Ints, low: Ints, high: Ints) -> Ints:
        """How many of them lie in a range."""
        return np.maximum(np.minimum(self.high(shard), high) - np.maximum(self.low(shard), low), 0)

    def rows(self, shard: int) -> Ints:
        """The rows of one shard in order, OUTSIDE where it gets the fill value."""
        low, high = self.dim.bounds(shard)
        first = max(low - self.dim.low, 0)
        inside = np.arange(first, min(high + self.dim.high, self.dim.size))
        before = first - (low - self.dim.low)  # a halo beyond the tensor's border
        return np.concatenate([np.full(before, OUTSIDE), inside]) if before else inside


class Picked:
    """Shard j wants rows picked one by one: `flat[starts[j]:starts[j + 1]]`, OUTSIDE where it gets the fill value.

    No shard wants a row twice. `index` says, for each row of the result, which of its shard's picked rows it is; None
    where the picked rows are the result's own.
    """

    def __init__(self, flat: Ints, starts: Ints, index: Ints | None = None) -> None:
        self.flat, self.starts, self.index = flat, starts, index

    @property
    def parts(self) -> int:
        """The number of shards."""
        return len(self.starts) - 1

    @property
    def footprint(self) -> int:
        """About how many bytes it takes."""
        return 1000 + 16 * int(self.starts[-1]) + 16 * len(self.starts)

    @cached_property
    def _sums(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.flat != OUTSIDE)])

    @property
    def any_rows(self) -> bool:
        """Whether some shard wants a row of the tensor."""
        return bool(self.wants(np.arange(self.parts)).any())

    def wants(self, shard: Ints) -> Ints:
        """How many rows of the tensor shards want."""
        return self._sums[self.starts[shard + 1]] - self._sums[self.starts[shard]]

    def within(self, shard: Ints, low: Ints, high: Ints) -> Ints:
        """How many of them lie in a range."""
        shard, low, high = np.broadcast_arrays(shard, low, high)
        shape, shard, low, high = shard.shape, shard.ravel(), np.maximum(low, 0).ravel(), high.ravel()
        if len(shard) == self.parts and np.array_equal(np.sort(shard), np.arange(self.parts)):  # each shard once
            bounds = np.empty((2, self.parts), np.int64)
            bounds[:, shard] = low, high
            owner = np.repeat(np.arange(self.parts), np.diff(self.starts))
            inside = (self.flat >= bounds[0, owner]) & (self.flat < bounds[1, owner])
            sums = np.concatenate([[0], np.cumsum(inside)])
            return (sums[self.starts[1:]] - sums[self.starts[:-1]])[shard].reshape(shape)
        result = np.empty(len(shard), np.int64)
        for number in np.unique(shard).tolist():
            ask, rows = shard == number, np.sort(self.rows(number))
            result[ask] = np.searchsorted(rows, np.maximum(high[ask], low[ask])) - np.searchsorted(rows, low[ask])
        return result.reshape(shape)

    def rows(self, shard: int) -> Ints:
        """The rows of one shard in order, OUTSIDE where it gets the fill value."""
        return self.flat[self.starts[shard] : self.starts[shard + 1]]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where the shards of the fetched tensor begin, and last its size."""
        return tuple(self.starts.tolist())


class Spaced(Picked):
    """Picked rows that are evenly spaced within each shard: row `first[j] + step · p` at place p of shard j, around the end of
    the dim if `wraps`. All questions are answered by arithmetic; rows are listed only when an engine moves them."""

    def __init__(self, first: Ints, counts: Ints, step: int, size: int, wraps: bool) -> None:
        self.first, self.counts, self.step, self.size, self.wraps = first, counts, step, size, wraps
        self.starts, self.index = np.concatenate([[0], np.cumsum(counts)]), None

    @property
    def footprint(self) -> int:
        """About how many bytes it takes."""
        return 1000 + 40 * len(self.starts)

    @property
    def flat(self) -> Ints:  # type: ignore[override]
        """Every shard's rows, one shard after the other; made anew each time."""
        shard = np.repeat(np.arange(self.parts), self.counts)
        return self._real(self.first[shard] + (np.arange(len(shard)) - self.starts[shard]) * self.step)

    def wants(self, shard: Ints) -> Ints:
        """How many rows of the tensor shards want."""
        return self.within(shard, np.zeros((), np.int64), np.full((), self.size))

    def within(self, shard: Ints, low: Ints, high: Ints) -> Ints:
        """How many of them lie in a range."""
        low, high = np.maximum(low, 0), np.minimum(high, self.size)
        first, counts = self.first[shard], self.counts[shard]
        if not self.wraps:
            return _in_range(first, counts, self.step, low, high)
        ahead = np.minimum(counts, self.size - first)  # the rows up to the end of the dim; the others begin anew
        return _in_range(first, ahead, 1, low, high) + _in_range(first * 0, counts - ahead, 1, low, high)

    def rows(self, shard: int) -> Ints:
        """The rows of one shard in order, OUTSIDE where it gets the fill value."""
        return self._real(self.first[shard] + np.arange(self.counts[shard]) * self.step)

    def _real(self, rows: Ints) -> Ints:
        if self.wraps:
            return rows % self.size if self.size else rows
        return np.where((rows < 0) | (rows >= self.size), OUTSIDE, rows)

    def stretches(self) -> list[slice] | None:
        """The rows of all shards, one after the other, as slices of the dim; None where shards overlap or read outside."""
        some = self.counts > 0
        if not some.any():
            return [slice(0, 0)]
        start = int(self.first[np.argmax(some)]) - int(self.starts[:-1][np.argmax(some)]) * self.step
        expected = start + self.starts[:-1] * self.step
        count, step = int(self.starts[-1]), self.step
        if self.wraps:
            if not np.array_equal(self.first[some], expected[some] % self.size) or count > self.size:
                return None
            start %= self.size
            ahead = min(count, self.size - start)
            return [slice(start, start + ahead), *([slice(0, count - ahead)] if count > ahead else [])]
        last = start + (count - 1) * step
        if (
            not np.array_equal(self.first[some], expected[some])
            or min(start, last) < 0
            or max(start, last) >= self.size
        ):
            return None
        stop = last + (1 if step > 0 else -1)
        return [slice(start, stop if stop >= 0 else None, step)]

    def ends(self) -> list[tuple[Ints, Ints, Ints]]:
        """For shards that want rows: their numbers, and the ends of each stretch of rows that they want."""
        ahead = np.minimum(self.counts, self.size - self.first) if self.wraps else self.counts
        stretches = [(self.first, ahead)] + ([(self.first * 0, self.counts - ahead)] if self.wraps else [])
        found = []
        for first, counts in stretches:
            some = np.flatnonzero(
                _in_range(first, counts, self.step, np.zeros((), np.int64), np.full((), self.size)) > 0
            )
            one, last = first[some], first[some] + (counts[some] - 1) * self.step
            if self.step > 0:  # the first and the last row that lie in the tensor
                one = one + np.maximum(-(one // self.step), 0) * self.step
                last = last - np.maximum(-((self.size - 1 - last) // self.step), 0) * self.step
            else:
                back = -self.step
                one = one - np.maximum(-((self.size - 1 - one) // back), 0) * back
                last = last + np.maximum(-(last // back), 0) * back
            found.append((some, one, last))
        return found

    @property
    def is_everything(self) -> bool:
        """Whether the rows of all shards are those of the dim, in order."""
        follow = np.array_equal(self.first, self.starts[:-1]) or not self.starts[-1]
        return self.step == 1 and not self.wraps and follow and int(self.starts[-1]) == self.size


def _in_range(first: Ints, counts: Ints, step: int, low: Ints, high: Ints) -> Ints:
    """How many of the rows first, first + step, … lie from `low` up to `high`."""
    if step > 0:
        begin, end = -((first - low) // step), -((first - high) // step)
    else:
        begin, end = (first - high) // -step + 1, (first - low) // -step + 1
    return np.maximum(np.minimum(end, counts) - np.maximum(begin, 0), 0)


Wanted = Blocks | Picked


@kept(limit=8 * MIB, size=lambda rows: rows.footprint)
def picked(row_map: RowMap, cuts: tuple[int, ...], size: int) -> Picked:
    """The rows of a dim of a size that shards of the result, cut at `cuts`, read."""
    bounds = np.asarray(cuts, np.int64)
    lengths = np.diff(bounds)
    first = row_map.start + bounds[:-1] * row_map.stride
    if row_map.width > 1:
        if row_map.dilation == 1 and 0 < row_map.stride <= row_map.width:
            rooms = np.where(lengths > 0, (lengths - 1) * row_map.stride + row_map.width, 0)
            return Spaced(first, rooms, 1, size, False)
        return _windows(row_map, bounds, lengths, size)
    if row_map.every == 1 and row_map.stride and not row_map.wrap:
        return Spaced(first, lengths, row_map.stride, size, False)
    if row_map.every == 1 and row_map.stride == 1 and row_map.wrap == size and int(lengths.max(initial=0)) <= size:
        return Spaced(first % max(size, 1), lengths, 1, size, True)
    rows = row_map.sources(0, row_map.size)
    rows = np.where((rows < 0) | (rows >= size), OUTSIDE, rows)
    longest = int(lengths.max(initial=0))
    if row_map.every == 1 and (not row_map.wrap or longest <= row_map.wrap):
        return Picked(rows, bounds)
    shard = np.repeat(np.arange(len(lengths)), lengths)  # some shard reads a row twice: it wants it once
    _, first, inverse = np.unique(shard * (size + 1) + rows + 1, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kept = first[order]
    starts = np.searchsorted(shard[kept], np.arange(len(bounds)))
    return Picked(rows[kept], starts, rank[inverse] - starts[shard])


def _windows(row_map: RowMap, bounds: Ints, lengths: Ints, size: int) -> Picked:
    """Windows of several rows: each shard's are contiguous, with holes where no window reads a row."""
    room = np.where(lengths > 0, (lengths - 1) * row_map.stride + row_map.span, 0)
    starts = np.concatenate([[0], np.cumsum(room)])
    first = np.asarray([row_map.start + int(b) * row_map.stride for b in bounds[:-1]], np.int64)
    shard = np.repeat(np.arange(len(room)), room)
    rows = first[shard] + np.arange(starts[-1]) - starts[shard]
    read = np.zeros(int(starts[-1]), bool)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    at = starts[owner] + (np.arange(bounds[-1]) - bounds[owner]) * row_map.stride
    read[(at[:, None] + np.arange(row_map.width) * row_map.dilation).ravel()] = True
    return Picked(np.where(read & (rows >= 0) & (rows < size), rows, OUTSIDE), starts)


def runs(rows: Ints, owners: Ints) -> Iterator[tuple[int, int, int, int, int]]:
    """Places of one owner whose rows are evenly spaced: (owner, first place, first row, how many, step).

    >>> list(runs(np.array([4, 5, 6, -1, 2, 1]), np.array([1, 1, 2, -1, 0, 0])))
    [(1, 0, 4, 2, 1), (2, 2, 6, 1, 1), (0, 4, 2, 2, -1)]
    """
    if not len(rows):
        return
    breaks = np.flatnonzero((np.diff(owners) != 0) | ((rows[1:] == OUTSIDE) != (rows[:-1] == OUTSIDE))) + 1
    for first, last in pairwise([0, *breaks.tolist(), len(rows)]):
        if rows[first] == OUTSIDE:
            continue
        steps = np.diff(rows[first:last])
        turns = (np.flatnonzero(np.diff(steps) != 0) + 1).tolist() if len(steps) > 1 else []
        at = first
        for turn in [*(first + turn for turn in turns), last]:
            if turn < at:
                continue  # a step that joins two runs belongs to neither
            stop = min(turn + 1, last)
            step = int(rows[at + 1] - rows[at]) if stop - at > 1 else 1
            yield int(owners[at]), at, int(rows[at]), stop - at, step
            at = stop
        if at < last:
            yield int(owners[at]), at, int(rows[at]), last - at, 1
