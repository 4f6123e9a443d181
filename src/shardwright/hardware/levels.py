"""`Hardware`: a chip and the levels of links that connect many of them; how the axes of a mesh lie on the levels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.errors import MeshError
from shardwright.hardware.checks import as_count
from shardwright.hardware.chips import Chip
from shardwright.hardware.links import Link

Pieces = tuple[tuple[int, Link], ...]  # of an axis, the innermost first: how many devices, and what connects them


@dataclass(frozen=True)
class Level:
    """One level of links: how many devices it connects, and how; 0 for any number.

    A torus has a `shape`. Its axes wrap around at their full length or, if `cube` is given, where all of them are multiples
    of it; otherwise they are lines.
    """

    link: Link
    size: int = 0
    shape: tuple[int, ...] = ()
    cube: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.link, Link):
            raise MeshError(f"A level's link is a Link; got {self.link!r}.")
        as_count(self.size, "A level's size, the number of devices it connects (0 for any),")
        as_count(
            self.cube, "A level's cube, the length that axes of a torus wrap around at a multiple of (0 for none),"
        )
        if not isinstance(self.shape, Sequence) or isinstance(self.shape, str):
            raise MeshError(
                f"A level's shape is {self.shape!r}; of a torus give the sizes of its axes, such as (16, 16)."
            )
        for n in self.shape:
            as_count(n, f"An axis of a level of shape {self.shape}", 1)
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.shape:
            if self.size not in (0, math.prod(self.shape)):
                raise MeshError(
                    f"A level of shape {self.shape} connects {math.prod(self.shape)} devices, not size={self.size}. Leave "
                    f"out the size."
                )
            object.__setattr__(self, "size", math.prod(self.shape))
        if (self.link.kind == "torus") != bool(self.shape):
            raise MeshError(
                f"A level of kind {self.link.kind!r} has the shape {self.shape}: a torus needs the sizes of its axes, such as "
                f"(16, 16), other levels have none."
            )


@dataclass(frozen=True)
class Hardware:
    """A machine: its chips, and the levels that connect them, the innermost first."""

    name: str
    chip: Chip
    levels: tuple[Level, ...]
    note: str = ""  # what is assumed

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.note, str):
            raise MeshError(f"Hardware has a name and a note in words; got {self.name!r} and {self.note!r}.")
        if not isinstance(self.chip, Chip):
            raise MeshError(f"Hardware {self.name!r} needs a Chip(flops, memory_bandwidth, memory); got {self.chip!r}.")
        listed = self.levels if isinstance(self.levels, Sequence) else ()
        if not listed or not all(isinstance(level, Level) for level in listed):
            raise MeshError(
                f"Hardware {self.name!r} needs levels, such as (Level(Link('switch', 370e9), size=8),); got {self.levels!r}."
            )
        object.__setattr__(self, "levels", tuple(listed))

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def size(self) -> int:
        """How many chips the levels connect at most; 0 for any number."""
        return math.prod(level.size for level in self.levels)

    def lay(self, sizes: Sequence[int]) -> list[Pieces | None]:
        """For each axis of a mesh, the last innermost, its pieces on the levels; None for an axis beyond the last level.

        >>> nodes = Hardware("two", Chip({"float32": 1e12}, 1e12, 1e9), (Level(Link("switch"), 8), Level(Link("ring"))))
        >>> [[(n, link.kind) for n, link in pieces] for pieces in nodes.lay((2, 16))]
        [[(2, 'ring')], [(8, 'switch'), (2, 'ring')]]

        An axis larger than what is left of its level is cut: the largest divisor that fits stays inside.
        """
        layer = _Layer(self.levels)
        laid = [layer.placed(size) for size in reversed(sizes)]
        return [None if parts is None else layer.linked(parts) for parts in reversed(laid)]


class _Part(NamedTuple):
    """So many devices along one axis of a level; of a torus axis that an inner axis uses too, its stride."""

    size: int
    level: int
    axis: int = 0
    stride: int = 1


class _Layer:
    """Takes devices from levels, from the inside out."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.levels = levels
        self.level = 0
        self.used: list[list[int]] = [[1] * max(len(level.shape), 1) for level in levels]  # of each axis of a level

    def placed(self, size: int) -> list[_Part] | None:
        """The parts of a mesh axis, the innermost first."""
        parts: list[_Part] = []
        while size > 1:
            if self.level == len(self.levels):
                return None
            part = self._taken(size)
            if part is None:
                self.level += 1
                continue
            parts.append(part)
            size //= part.size
        return parts

    def _taken(self, size: int) -> _Part | None:
        level, used = self.levels[self.level], self.used[self.level]
        lengths = level.shape or (level.size,)
        fresh = [
            axis for axis in range(len(lengths) - 1, -1, -1) if used[axis] == 1
        ]  # a torus axis for each mesh axis first
        for axis in (*fresh, *(axis for axis in range(len(lengths)) if used[axis] > 1)):
            room = lengths[axis] // used[axis] if lengths[axis] else size
            taken = _largest_divisor(size, room)
            if taken > 1:
                stride = used[axis]
                used[axis] *= taken
                return _Part(taken, self.level, axis, stride if level.shape else 1)
        return None

    def linked(self, parts: Sequence[_Part]) -> Pieces:
        """The link of each part: along a torus axis a ring if it wraps around, else a line."""
        return tuple((part.size, self._link(part)) for part in parts)

    def _link(self, part: _Part) -> Link:
        level, used = self.levels[part.level], self.used[part.level]
        link = level.link
        if not level.shape:
            return link
        wraps = all(n % level.cube == 0 for n in used) if level.cube else used[part.axis] == level.shape[part.axis]
        shared = used[part.axis] > part.size  # pieces of one torus axis share its wires
        kind = "ring" if wraps and not shared else "line"
        return Link(kind, link.bandwidth / part.stride, link.latency, link.hop, link.efficiency)


def _largest_divisor(size: int, most: int) -> int:
    """The largest divisor of a size that is at most `most`."""
    if size <= most:
        return size
    return max((n for n in range(1, most + 1) if size % n == 0), default=1)
