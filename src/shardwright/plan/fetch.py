"""`Fetch`: rows of a tensor, brought to the devices whose part of an operation's result reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shardwright.ops import RowMap
from shardwright.plan.steps import Move, Shape
from shardwright.plan.volume import Meeting
from shardwright.plan.windows import Blocks, Picked, Spaced, Wanted, picked
from shardwright.sharding import P, Sharding


@dataclass(frozen=True)
class Fetch(Move):
    """Rows of a tensor, brought to the devices whose part of an operation's result reads them.

    The result is an ordinary tensor: along a dim with a row map, the rows that each shard wants, one shard after the other,
    with explicit offsets; rows outside the tensor are `fill`. `cuts` are the offsets of the operation's result.
    """

    maps: tuple[RowMap | None, ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()
    fill: Any = 0

    @staticmethod
    def of(
        source: Sharding,
        shape: Shape,
        dtype: "np.dtype[Any]",
        maps: tuple[RowMap | None, ...],
        cuts: tuple[tuple[int, ...], ...],
        fill: Any = 0,
        everywhere: bool = False,
    ) -> "Fetch":
        """The fetch for row maps and the offsets of the result; it knows its own result and axes.

        With `everywhere` dims with a map are whole in the result: every device gets their rows.
        """
        offsets: dict[int, Sequence[int]] = {}
        sizes = list(shape)
        spec = [() if everywhere and row_map else axes for row_map, axes in zip(maps, source.dims, strict=True)]
        for dim, row_map in enumerate(maps):
            if row_map is not None:
                rows = picked(row_map, cuts[dim], shape[dim])
                sizes[dim] = rows.offsets[-1]
                if spec[dim]:
                    offsets[dim] = rows.offsets
            elif source.offsets_of(dim):
                offsets[dim] = source.offsets_of(dim)
        result = source.replace(spec=P(*spec), offsets=offsets, halo={}).for_shape(tuple(sizes))
        made = Fetch("fetch", (), source, result, shape, dtype, maps=maps, cuts=cuts, fill=fill)
        if not made._meeting_of().received:
            return made
        return Fetch("fetch", made._meeting_of().crossed, source, result, shape, dtype, maps=maps, cuts=cuts, fill=fill)

    @cached_property
    def result_shape(self) -> Shape:
        """The shape of the fetched tensor."""
        rows = zip(self.wanted, self.shape, strict=True)
        return tuple(w.offsets[-1] if isinstance(w, Picked) else n for w, n in rows)

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """For each dim the rows that the shards of the result want."""
        return tuple(
            Blocks(self.here.dims[dim]) if row_map is None else picked(row_map, self.cuts[dim], self.shape[dim])
            for dim, row_map in enumerate(self.maps)
        )

    @cached_property
    def _own_meeting(self) -> Meeting:
        return Meeting(self.here, self.there, self.wanted)

    def _meeting_of(self) -> Meeting:
        return self._own_meeting

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        return self._own_meeting.received * self.itemsize

    @property
    def sent(self) -> int:
        """Bytes that the busiest device sends: about what it receives."""
        return self.received

    @property
    def lower_bound(self) -> int:
        """Bytes that some device must receive: it fetches only rows that it reads and lacks."""
        return self.received

    @property
    def gathered_dims(self) -> tuple[int, ...]:
        """Split dims of which some device wants every row."""
        if not self.received:
            return ()
        rows = enumerate(zip(self.wanted, self.here.dims, strict=True))
        return tuple(
            at
            for at, (w, dim) in rows
            if isinstance(w, Picked) and dim.size > dim.block and int(w.wants(np.arange(w.parts)).max()) == dim.size
        )

    @property
    def is_identity(self) -> bool:
        """Whether every device already holds just the rows that it wants."""
        rows = zip(self.maps, self.wanted, self.here.dims, strict=True)
        return all(
            row_map is None
            or (
                isinstance(w, Picked)
                and not dim.low
                and not dim.high
                and np.array_equal(w.starts, dim.offsets)
                and (w.is_everything if isinstance(w, Spaced) else np.array_equal(w.flat, np.arange(dim.size)))
            )
            for row_map, w, dim in rows
        )


@lru_cache(maxsize=4096)
def element_step(source: Sharding, shape: Shape, dtype: "np.dtype[Any]", place: tuple[int, ...]) -> Fetch:
    """One element, from the devices that hold it to all."""
    maps = tuple(RowMap(1, row) for row in place)
    return Fetch.of(source, shape, dtype, maps, ((0, 1),) * len(shape), everywhere=True)
