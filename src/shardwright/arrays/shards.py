"""`x.shards`: which device holds which part of a tensor, and that part. Worked out when looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import engine_of
from shardwright.sharding import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What one device holds."""

    device: int
    coords: tuple[int, ...]
    index: tuple[slice, ...]  # the part of the whole tensor, without halos
    _layout: Layout
    _data: Any
    _place: int

    @property
    def data(self) -> NDArray[Any]:
        """The device's tensor, read-only: padding removed, halos included, of a partial value its summand."""
        engine = engine_of(self._layout.mesh)
        result = engine.shard(self._data, self._layout, self._place).view()
        result.flags.writeable = False
        return result

    def __dlpack__(self, **options: Any) -> Any:
        """This device's tensor by DLPack; without a copy for those who take read-only tensors."""
        if (options.get("max_version") or (0, 0)) >= (1, 0):
            return self.data.__dlpack__(**options)
        return self.data.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __repr__(self) -> str:
        index = ", ".join(f"{part.start}:{part.stop}" for part in self.index)
        return f"Shard(device={self.device}, coords={self.coords}, index=[{index}])"


class Shards(Sequence[Shard]):
    """The shards of an array, in the order of the devices."""

    def __init__(self, layout: Layout, data: Any) -> None:
        self._layout = layout
        self._data = data

    def __len__(self) -> int:
        return self._layout.mesh.size

    def _shard(self, place: int, coords: tuple[int, ...]) -> Shard:
        index = tuple(
            slices[at] for slices, at in zip(self._layout.shard_slices, self._layout.shard_numbers(place), strict=True)
        )
        return Shard(self._layout.mesh.device_ids[place], coords, index, self._layout, self._data, place)

    @overload
    def __getitem__(self, place: int) -> Shard: ...
    @overload
    def __getitem__(self, place: slice) -> list[Shard]: ...
    def __getitem__(self, place: int | slice) -> Shard | list[Shard]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        n = len(self)
        if not -n <= place < n:
            raise IndexError(f"Shard {place} of {n}: the mesh {self._layout.mesh} has devices at places 0 to {n - 1}.")
        at = place % n
        return self._shard(at, tuple(int(i) for i in np.unravel_index(at, self._layout.mesh.shape)))

    def __iter__(self) -> Iterator[Shard]:
        coords = np.ndindex(*self._layout.mesh.shape)
        return (self._shard(place, at) for place, at in enumerate(coords))

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:8]))}{', …' if len(self) > 8 else ''}]"
