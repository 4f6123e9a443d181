"""`Nested`: where shards begin that collectives leave by cutting blocks into blocks, by arithmetic instead of a list.

A slice cuts every shard by itself and a gather joins neighbours, so uneven shards on thousands of devices need no list: where
one begins follows from its number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
LISTED = 4096  # shards of a dim whose offsets are a tuple; those of more are nested, if they can be
MACHINE = 2**61  # sizes from here on are counted in Python's integers


@dataclass(frozen=True)
class Nested(Sequence[int]):
    """Offsets: those of the outermost shards, then levels: each shard is cut into equal blocks, and some of these are joined.

    >>> list(Nested((0, 10), ((2, 1), (3, 1))))  # two blocks of 5, each in blocks of 2
    [0, 2, 4, 5, 7, 9, 10]
    >>> list(Nested((0, 10), ((6, 2),)))  # blocks of 2, two at a time
    [0, 4, 8, 10]
    """

    given: tuple[int, ...]
    levels: tuple[tuple[int, int], ...] = ()

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of shards that each level cuts a shard into."""
        return tuple([blocks // joined for blocks, joined in self.levels])

    @cached_property
    def parts(self) -> int:
        """The number of shards."""
        return (len(self.given) - 1) * math.prod(self.counts)

    @property
    def size(self) -> int:
        """The size of the dim."""
        return self.given[-1]

    @property
    def dtype(self) -> "np.dtype[Any]":
        """What offsets are counted in: Python's integers where those of a machine are too small."""
        return np.dtype(object if self.size >= MACHINE else np.int64)

    @property
    def largest(self) -> int:
        """The rows of the largest shard."""
        return max(self.sizes)

    @cached_property
    def sizes(self) -> set[int]:
        """The sizes that shards have; 0 may be left out."""
        return self._sizes(len(self.levels))

    def _sizes(self, levels: int) -> set[int]:
        """The sizes that shards have after some levels; 0 may be left out."""
        found = {high - low for low, high in pairwise(self.given)}
        for blocks, joined in self.levels[:levels]:
            pairs = [(min(_block(n, blocks, joined), n), n % max(_block(n, blocks, joined), 1)) for n in found]
            found = {n for pair in pairs for n in pair if n} or {0}
        return found

    # -- as a sequence of offsets --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.parts + 1

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...

    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            return tuple(self.starts(np.arange(*at.indices(len(self)))).tolist())
        return self.start(range(len(self))[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Ints:
        return self.starts(np.arange(len(self))).astype(dtype or np.int64, copy=False)

    # -- by arithmetic ---------------------------------------------------------------------------------------------------

    def start(self, shard: int) -> int:
        """Where a shard begins; the number after the last gives the end of the dim."""
        return int(self._starts(shard, min, self.given.__getitem__))

    def starts(self, shard: Ints) -> Ints:
        """Where shards begin, for many at once."""
        given = np.asarray(self.given, self.dtype)
        found = self._starts(shard.astype(self.dtype), np.minimum, lambda at: given[at.astype(np.int64)])
        return np.asarray(found, self.dtype)

    def _starts(self, shard: Any, least: Callable[[Any, Any], Any], given: Callable[[Any], Any]) -> Any:
        digits = []
        for count in reversed(self.counts):
            digits.append(shard % count)
            shard = shard // count
        low, high = given(shard), given(least(shard + 1, len(self.given) - 1))
        for (blocks, joined), digit in zip(self.levels, reversed(digits), strict=True):
            block = _block(high - low, blocks, joined)
            low = least(low + digit * block, high)
            high = least(low + block, high)
        return low

    def owners(self, rows: Ints) -> Ints:
        """The shards that rows of the dim belong to."""
        given = np.asarray(self.given)
        shard = np.searchsorted(given, rows, side="right") - 1
        low, high = given[shard], given[np.minimum(shard + 1, len(given) - 1)]
        for (blocks, joined), count in zip(self.levels, self.counts, strict=True):
            block = _block(high - low, blocks, joined)
            digit = np.minimum((rows - low) // np.maximum(block, 1), count - 1)
            low = np.minimum(low + digit * block, high)
            high = np.minimum(low + block, high)
            shard = shard * count + digit
        return np.asarray(shard)

    def turns(self) -> Ints:
        """Numbers of shards next to a change of sizes, within each level."""
        result: Ints = reduce(np.add.outer, self._turns()).ravel()
        return result

    def _turns(self) -> Iterator[Ints]:
        """For each level the first shards of blocks next to a change of sizes, counted within a block of the level before."""
        inner = math.prod(self.counts)
        yield np.arange(len(self.given) - 1) * inner
        for level, ((blocks, joined), count) in enumerate(zip(self.levels, self.counts, strict=True)):
            inner //= count
            near = {0, 1, count - 2, count - 1}
            for n in self._sizes(level):
                first = n // max(_block(n, blocks, joined), 1)
                near |= {first - 1, first, first + 1, first + 2}
            yield np.array([at * inner for at in sorted(near) if 0 <= at < count])

    def are_blocks(self, block: int) -> bool:
        """Whether these are offsets of equal blocks of a size, the last ones short or empty.

        Both are linear in the number of a shard's block within each level, but for where sizes change: what is equal next to
        these places is equal everywhere.
        """
        last, parts = self.size // max(block, 1), self.parts
        ends = np.array([n for n in (last - 1, last, last + 1, parts) if 0 <= n <= parts])
        few = all(self._begin_as_blocks(some, block) for some in (ends, *self._turns()))  # mostly one of these differs
        return few and self._begin_as_blocks(self.turns(), block)

    def _begin_as_blocks(self, shard: Ints, block: int) -> bool:
        return bool(np.array_equal(self.starts(shard), np.minimum(shard.astype(self.dtype) * block, self.size)))

    # -- what collectives do -----------------------------------------------------------------------------------------------

    def sliced(self, group: int) -> "Nested":
        """Each shard is cut into blocks."""
        if group == 1:
            return self
        if self.levels:
            blocks, joined = self.levels[-1]
            if joined == 1 and all(_is_one_level(n, blocks, group) for n in self._sizes(len(self.levels) - 1)):
                return Nested(self.given, (*self.levels[:-1], (blocks * group, 1)))
        return Nested(self.given, (*self.levels, (group, 1)))

    def joined(self, group: int) -> "Nested":
        """So many neighbours become one."""
        levels, left = list(self.levels), group
        while levels and left > 1:
            blocks, joined = levels.pop()
            count = blocks // joined
            if left % count == 0:
                left //= count
            elif count % left == 0:
                levels.append((blocks, joined * left))
                left = 1
            else:
                return Nested(self[::group])
        return Nested(self.given[::left], tuple(levels))


Cuts = tuple[int, ...] | Nested  # offsets of one dim; () stands for default blocks


def sliced(cuts: Cuts, size: int, parts: int, group: int) -> Cuts:
    """Where shards begin once each is cut into blocks."""
    return _listed(nested(cuts, size, parts).sliced(group))


def joined(cuts: Cuts, size: int, parts: int, group: int) -> Cuts:
    """Where shards begin once so many neighbours are one."""
    return _listed(nested(cuts, size, parts).joined(group))


def nested(cuts: Cuts, size: int, parts: int) -> Nested:
    """The same offsets; default blocks if there are none."""
    if isinstance(cuts, Nested):
        return cuts
    return Nested(cuts) if cuts else Nested((0, size)).sliced(parts)


def _listed(cuts: Cuts) -> Cuts:
    return tuple(cuts) if isinstance(cuts, Nested) and len(cuts) <= LISTED + 1 else cuts


def _block(size: Any, blocks: int, joined: int) -> Any:
    return -(-size // blocks) * joined


def _is_one_level(size: int, blocks: int, group: int) -> bool:
    """Whether blocks of blocks of so many rows are equal blocks themselves."""
    outer = _block(size, blocks, 1)
    inner, rest = _block(outer, group, 1), size % max(outer, 1)
    return size <= outer or (outer == inner * group and (not rest or _block(rest, group, 1) == inner))
