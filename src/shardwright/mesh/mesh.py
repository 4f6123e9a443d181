"""`Mesh`: the devices as a grid with named axes. An immutable value: it holds positions and groups and never computes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import MeshError
from shardwright.hardware import GENERIC, Fabric, Hardware, Link, Pieces, hardware_from, short
from shardwright.mesh.arguments import (
    FEW,
    axes_from,
    checked_device,
    checked_ids,
    checked_timeout,
    count_of,
    is_parameter,
    laid_on,
    links_from,
    resolve_sizes,
    shortened,
    spelled,
)
from shardwright.mesh.axes import Axes, SubAxis, as_axes, as_int, as_ints, cut_axes, parse_axis
from shardwright.mesh.topology import lay_out


class Mesh:
    """Devices in a grid with named axes.

    >>> mesh = Mesh(data=2, model=4)
    >>> mesh
    Mesh(data=2, model=4)
    >>> mesh == Mesh({"data": 2, "model": 4}) == Mesh((2, -1), ("data", "model"), devices=8)
    True
    >>> mesh.groups("data")
    [(0, 4), (1, 5), (2, 6), (3, 7)]

    `devices` is the number of devices (then one size may be -1), or their ids in row-major order; the default ids count
    from 0. `engine` is "numpy", "literal", "torch" or "jax". `device` is what torch keeps shards on ("cpu" by default), or the
    platform whose devices JAX uses (its default one). `timeout` is how many seconds processes wait for one another; equal
    meshes may differ in it. `hardware` is the machine that times are given for: the name of a preset or a `Hardware`, on
    whose levels the axes lie from the last one, the innermost, outward. `links` replaces what connects axes: one `Link` for
    all of them or a mapping from axis to `Link`. An axis with the name of one of these parameters must be given in a mapping:
    `Mesh({"devices": 2})`. A mesh has at most 1,048,576 devices and 32 axes.
    """

    __slots__ = (
        "__weakref__",
        "_axes",
        "_hash",
        "_own_links",
        "_pieces",
        "_positions",
        "axis_names",
        "device",
        "device_ids",
        "engine",
        "hardware",
        "links",
        "shape",
        "size",
        "sizes",
        "timeout",
    )

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    size: int
    sizes: Mapping[str, int]
    device_ids: Sequence[int]
    engine: str
    device: str  # what torch calls the kind of device that holds shards, such as "cuda"; a platform of JAX
    timeout: float | None  # seconds; no part of equality
    hardware: Hardware
    links: Mapping[str, Link]  # of an axis on several levels the outermost
    _own_links: Mapping[str, Link]  # that were given and are not the hardware's
    _pieces: Mapping[str, Pieces]
    _hash: int
    _positions: dict[int, int] | None
    _axes: dict[str, SubAxis]  # those asked for

    def __init__(
        self,
        shape: Mapping[str, int] | Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        /,
        *,
        devices: int | Sequence[int] | None = None,
        engine: str = "numpy",
        device: str | None = None,
        timeout: float | None = None,
        hardware: str | Hardware | None = None,
        links: Link | Mapping[str, Link] | None = None,
        **sizes: int,
    ) -> None:
        names, wanted = axes_from(shape, axis_names, sizes)
        resolved = resolve_sizes(names, wanted, count_of(devices))
        total = math.prod(resolved)
        ids = range(total) if devices is None or isinstance(devices, int | np.integer) else checked_ids(devices)
        fill = object.__setattr__
        fill(self, "axis_names", names)
        fill(self, "shape", resolved)
        fill(self, "size", total)
        fill(self, "sizes", MappingProxyType(dict(zip(names, resolved, strict=True))))
        fill(self, "device_ids", ids)
        fill(self, "engine", engine)
        fill(self, "device", checked_device(device, engine))
        fill(self, "timeout", checked_timeout(timeout))
        machine = hardware_from(hardware)
        laid = laid_on(machine, names, resolved, links_from(links, names))
        fill(self, "hardware", machine)
        fill(self, "links", laid.outermost)
        fill(self, "_own_links", laid.own)
        fill(self, "_pieces", laid.pieces)
        fill(self, "_hash", hash((names, resolved, ids, engine, self.device, machine.name, *laid.own.items())))
        fill(self, "_positions", None)
        fill(self, "_axes", {})

    @classmethod
    def on_topology(
        cls,
        physical: Sequence[int],
        logical: Mapping[str, int],
        split_physical_axes: bool = False,
        *,
        link: Link | None = None,
        hardware: str | Hardware | None = None,
        engine: str = "numpy",
        device: str | None = None,
        timeout: float | None = None,
    ) -> "Mesh":
        """A logical mesh mapped to a physical grid, so that each logical axis runs along physical links.

        >>> Mesh.on_topology(physical=(2, 2, 4), logical={"data": 4, "model": 4}).groups("model")[0]
        (0, 1, 2, 3)

        Each logical axis uses entire physical axes; if that is impossible, MeshError is raised. With
        `split_physical_axes`, several logical axes may share a physical axis, its links and its bandwidth. Physical axes are
        rings of `link`, by default that of the hardware's innermost level.
        """
        inner = hardware_from(hardware).levels[0].link
        along = link or (replace(inner, kind="ring") if inner.kind == "torus" else inner)
        ids, links = lay_out(as_ints(physical, "The physical topology"), dict(logical), split_physical_axes, along)
        return cls(logical, devices=ids, links=links, hardware=hardware, engine=engine, device=device, timeout=timeout)

    # -- a value ------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A Mesh is immutable; make a new one instead of setting {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A Mesh is immutable; {name!r} can't be deleted.")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mesh) or hash(self) != hash(other):
            return False if isinstance(other, Mesh) else NotImplemented
        return self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        return self.axis_names, self.shape, self.device_ids, self.engine, self.device, self.hardware, self._own_links

    def __reduce__(self) -> tuple[Any, ...]:
        ids = None if isinstance(self.device_ids, range) else self.device_ids
        return _rebuild, (dict(self.sizes), ids, self._options())

    def _options(self) -> dict[str, Any]:
        """What a mesh of other axes or devices keeps."""
        return {
            "engine": self.engine,
            "device": self.device,
            "timeout": self.timeout,
            "hardware": self.hardware,
            "links": dict(self._own_links),
        }

    def with_devices(self, ids: Sequence[int], shape: Sequence[int] | None = None) -> "Mesh":
        """A mesh with the same axes and engine on other devices, given by their ids in row-major order.

        >>> Mesh(x=2).with_devices((3, 1))
        Mesh(x=2, devices=(3, 1))
        """
        sizes = self.shape if shape is None else shape
        return Mesh(sizes, self.axis_names, devices=ids, **self._options())

    def __repr__(self) -> str:
        """The mesh in full, as an expression that gives it back."""
        return self._shown(spelled)

    def __str__(self) -> str:
        """The same with the first ids alone, for messages."""
        return self._shown(lambda ids: f"({shortened(ids, FEW)})" if len(ids) > FEW else spelled(ids))

    def _shown(self, written: Callable[[Sequence[int]], str]) -> str:
        plain = all(map(is_parameter, self.axis_names))
        parts = [f"{name}={size}" for name, size in self.sizes.items()] if plain else [repr(dict(self.sizes))]
        if not isinstance(self.device_ids, range):
            parts.append(f"devices={written(self.device_ids)}")
        if self.engine != "numpy":
            parts.append(f"engine={self.engine!r}")
        if self.device != checked_device(None, self.engine):
            parts.append(f"device={self.device!r}")
        if self.hardware is not GENERIC and self.hardware != GENERIC:
            parts.append(f"hardware={short(self.hardware)!r}")
        special = dict(self._own_links)
        if special:
            alike = len(special) == len(self.links) and len(set(special.values())) == 1
            parts.append(f"links={next(iter(special.values())) if alike else special!r}")
        return f"Mesh({', '.join(parts)})"

    def __enter__(self) -> "Mesh":
        """Inside `with mesh:` new arrays are placed on this mesh."""
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.set(_current.get()[:-1])

    @property
    def least_launch(self) -> float:
        """Seconds that every collective takes at least."""
        return min([link.latency for pieces in self._pieces.values() for _, link in pieces], default=0.0)

    @property
    def own_links(self) -> tuple[Link | None, ...]:
        """For each axis the link that was given for it; None where the hardware has what connects it."""
        return tuple(self._own_links.get(name) for name in self.axis_names)

    # -- axes ---------------------------------------------------------------------------------------------------------

    def axis(self, text: str) -> SubAxis:
        """The axis or sub-axis that a string names, checked against this mesh."""
        found = self._axes.get(text)
        if found is None:
            found = self._axes[text] = parse_axis(text, dict(self.sizes), self)
        return found

    def axis_size(self, axes: Axes) -> int:
        """The number of devices in a group along these axes.

        >>> Mesh(data=2, model=4).axis_size(("data", "model"))
        8
        """
        if len(axes) == 1 and axes[0] in self.sizes:
            return self.sizes[axes[0]]
        return _axis_size(self, axes if isinstance(axes, tuple) else as_axes(axes))

    def links_along(self, axes: Sequence[str]) -> Pieces:
        """For each axis and level its number of devices and its link. Pieces of one axis count together."""
        return self.fabric(axes).pieces

    def fabric(self, axes: Sequence[str]) -> Fabric:
        """The links along axes: what collectives along them cost."""
        return _fabric(self, axes if isinstance(axes, tuple) else tuple(axes))

    def group_axes(self, axes: Axes) -> tuple[str, ...]:
        """The axes as a checked tuple: each is an axis of this mesh, and no two overlap."""
        return _group_axes(self, as_axes(axes))

    def lanes(self, axes: Sequence[str] = ()) -> tuple[str, ...]:
        """All axes of the mesh in order, cut so that each of `axes` is a lane of its own.

        >>> Mesh(x=8, y=3).lanes(["x:(2)2"])
        ('x:(1)2', 'x:(2)2', 'x:(4)2', 'y')
        """
        if all(axis in self.sizes for axis in axes):
            return self.axis_names
        pieces = cut_axes((self.axis(axis) for axis in axes), dict(self.sizes))
        return tuple(piece.text(self.sizes[piece.name]) for piece in pieces)

    def cut(self, axes: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
        """The axes, cut into pieces where the axes in `by` begin or end.

        >>> Mesh(x=8, y=3).cut(("y", "x"), by=("x:(2)4",))
        ('y', 'x:(1)2', 'x:(2)4')
        """
        sizes = self.sizes
        for axis in (*axes, *by):
            if axis not in sizes:
                return _cut(self, tuple(axes), tuple(by))
        return tuple(axes)  # whole axes cut nothing

    def share_a_cut(self, axes: Sequence[str]) -> bool:
        """Whether the axes can be cut into common pieces; halves and thirds of one axis can't.

        >>> Mesh(x=6).share_a_cut(["x:(1)2", "x:(1)6"]), Mesh(x=6).share_a_cut(["x:(1)2", "x:(1)3"])
        (True, False)
        """
        if all(axis in self.sizes for axis in axes):
            return True
        marks: dict[str, set[int]] = {}
        for axis in map(self.axis, axes):
            marks.setdefault(axis.name, set()).update((axis.pre, axis.pre * axis.size))
        return all(b % a == 0 for some in marks.values() for a, b in pairwise(sorted(some)))

    # -- devices ------------------------------------------------------------------------------------------------------

    def ids(self, lanes: Sequence[str] | None = None) -> NDArray[np.int64]:
        """The device ids as an array of the mesh's shape (or of the sizes of `lanes`, its axes cut finer)."""
        shape = self.shape if lanes is None else tuple(self.axis(lane).size for lane in lanes)
        ids = self.device_ids
        return (np.arange(self.size) if isinstance(ids, range) else np.array(ids, np.int64)).reshape(shape)

    def groups(self, *axes: Axes) -> list[tuple[int, ...]]:
        """The device groups along the axes: ids in group order, first named axis outermost.

        >>> Mesh(x=2, y=2).groups("y", "x")
        [(0, 2, 1, 3)]
        >>> Mesh(x=2, y=2).groups()  # no axes: groups of one
        [(0,), (1,), (2,), (3,)]
        """
        named = self.group_axes(tuple(axis for some in axes for axis in as_axes(some)))
        lanes = self.lanes(named)
        inner = [lanes.index(axis) for axis in named]
        outer = [i for i in range(len(lanes)) if i not in inner]
        table = self.ids(lanes).transpose(*outer, *inner).reshape(-1, self.axis_size(named))
        return list(map(tuple, table.tolist()))

    def position(self, device: int) -> int:
        """The row-major position of a device id in this mesh."""
        device = as_int(device, "Device id")
        ids = self.device_ids
        if isinstance(ids, range):
            if 0 <= device < self.size:
                return int(device)
        else:
            positions = self._positions
            if positions is None:
                positions = {device: place for place, device in enumerate(ids)}
                object.__setattr__(self, "_positions", positions)
            if device in positions:
                return positions[device]
        raise MeshError(f"Device {device} is not in {self}. Its {self.size} devices are {shortened(ids)}.")

    def coords(self, device: int) -> tuple[int, ...]:
        """The coordinates of a device: its position along each axis.

        >>> Mesh(data=2, model=4).coords(5)
        (1, 1)
        """
        place = self.position(device)
        result = []
        for size in reversed(self.shape):
            place, at = divmod(place, size)
            result.append(at)
        return tuple(reversed(result))

    def index(self, coords: Sequence[int]) -> int:
        """The id of the device at these coordinates.

        >>> Mesh(data=2, model=4).index((1, 1))
        5
        """
        place = 0
        for at, size in zip(self.check_coords(coords, self.axis_names), self.shape, strict=True):
            place = place * size + at
        return int(self.device_ids[place])

    def check_coords(self, coords: int | Sequence[int], axes: tuple[str, ...]) -> tuple[int, ...]:
        """Coordinates along the axes, in their order, checked; an int is one coordinate."""
        given = (coords,) if isinstance(coords, int | np.integer) else tuple(coords)
        sizes = [self.axis(axis).size for axis in axes]
        if len(given) != len(axes):
            raise MeshError(
                f"Coordinates {given} have {len(given)} entries; along the axes {axes} of {self} there are "
                f"{len(axes)}. Give one coordinate per axis, in that order."
            )
        for at, size, axis in zip(given, sizes, axes, strict=True):
            if not isinstance(at, int | np.integer) or not 0 <= at < size:
                raise MeshError(
                    f"Coordinate {at!r} along axis {axis!r} is out of range: {self} has {size} devices there. "
                    f"Use an integer from 0 to {size - 1}."
                )
        return tuple(int(at) for at in given)

    def neighbors(self, device: int, axes: Axes) -> tuple[int | None, int | None]:
        """The devices before and after a device in its group along the axes; None at a border.

        >>> Mesh(data=2, model=4).neighbors(4, "model")
        (None, 5)
        """
        named = self.group_axes(axes)
        lanes = self.lanes(named)
        shape = tuple(self.axis(lane).size for lane in lanes)
        inner = [lanes.index(axis) for axis in named]
        sizes = [shape[lane] for lane in inner]
        place = list(np.unravel_index(self.position(device), shape))
        rank = int(np.ravel_multi_index([place[lane] for lane in inner], sizes)) if inner else 0

        def member(at: int) -> int | None:
            if not 0 <= at < math.prod(sizes):
                return None
            for lane, coordinate in zip(inner, np.unravel_index(at, sizes), strict=True):
                place[lane] = coordinate
            return self.device_ids[int(np.ravel_multi_index(place, shape))]

        return member(rank - 1), member(rank + 1)

    # -- parts of a mesh ----------------------------------------------------------------------------------------------

    def submesh(self, shape: Sequence[int], offset: Sequence[int] | None = None) -> "Mesh":
        """A rectangle of this mesh as a new mesh, with the same axis names and the same device ids.

        >>> Mesh(data=2, model=4).submesh((2, 2), offset=(0, 2))
        Mesh(data=2, model=2, devices=(2, 3, 6, 7))
        """
        size, start = (
            self._per_axis(shape, "shape"),
            self._per_axis((0,) * len(self.shape) if offset is None else offset, "offset"),
        )
        for name, n, at, full in zip(self.axis_names, size, start, self.shape, strict=True):
            if n < 1 or at < 0 or at + n > full:
                raise MeshError(
                    f"A submesh of shape {size} at offset {start} does not fit in {self}: along {name!r} it covers "
                    f"{at} to {at + n} of {full}. Every size must be positive, and offset + size at most {full}."
                )
        places = np.zeros((), np.int64)
        for n, at, full in zip(size, start, self.shape, strict=True):
            places = places[..., None] * full + np.arange(at, at + n)
        ids = [self.device_ids[place] for place in places.ravel().tolist()]
        return self.with_devices(ids, size)

    def submeshes(self, shape: Sequence[int]) -> list["Mesh"]:
        """The mesh cut into submeshes of one shape, row-major.

        >>> [tuple(part.device_ids) for part in Mesh(data=2, model=4).submeshes((2, 2))]
        [(0, 1, 4, 5), (2, 3, 6, 7)]
        """
        size = self._per_axis(shape, "shape")
        for name, n, full in zip(self.axis_names, size, self.shape, strict=True):
            if n < 1 or full % n:
                raise MeshError(
                    f"{self} is not tiled by submeshes of shape {size}: {full} devices along {name!r} are not a "
                    f"multiple of {n}. Choose a size that divides {full}."
                )
        starts = product(*(range(0, full, n) for full, n in zip(self.shape, size, strict=True)))
        return [self.submesh(size, start) for start in starts]

    def _per_axis(self, numbers: Sequence[int], what: str) -> tuple[int, ...]:
        given = as_ints(numbers, f"The submesh {what}")
        if len(given) != len(self.shape):
            raise MeshError(
                f"The submesh {what} {given} has {len(given)} entries; {self} has {len(self.shape)} axes. "
                f"Give one integer per axis."
            )
        return given


_current: ContextVar[tuple[Mesh, ...]] = ContextVar("meshes", default=())


def current_mesh() -> Mesh | None:
    """The mesh of the innermost `with mesh:`, if any."""
    meshes = _current.get()
    return meshes[-1] if meshes else None


def _rebuild(sizes: dict[str, int], ids: Sequence[int] | None, options: dict[str, Any]) -> Mesh:
    return Mesh(sizes, devices=ids, **options)


@lru_cache(maxsize=8192)
def _axis_size(mesh: Mesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.axis(axis).size for axis in axes)


@lru_cache(maxsize=8192)
def _fabric(mesh: Mesh, axes: tuple[str, ...]) -> Fabric:
    if len(names := set(axes)) == len(axes) and names <= mesh.sizes.keys():
        return _fabric_of(tuple([piece for axis in axes for piece in mesh._pieces[axis] if piece[0] > 1]))
    sizes: dict[tuple[str, int], tuple[int, Link]] = {}
    for axis in map(mesh.axis, axes):
        inner = mesh.sizes[axis.name] // (axis.pre * axis.size)  # devices inside one step along the axis
        for level, size, link in _covered(mesh._pieces[axis.name], inner, inner * axis.size):
            before = sizes.get((axis.name, level), (1, link))[0]
            sizes[axis.name, level] = before * size, link
    return _fabric_of(tuple(sizes.values()))


@lru_cache(maxsize=4096)
def _fabric_of(pieces: Pieces) -> Fabric:
    return Fabric(pieces)


def _covered(pieces: Pieces, inner: int, outer: int) -> Iterator[tuple[int, int, Link]]:
    """The part of an axis between two strides, by the levels that it lies on."""
    low = 1
    for level, (size, link) in enumerate(pieces):
        high = low * size
        covered = -(-min(high, outer) // max(low, inner))
        if covered > 1:
            yield level, covered, link
        low = high


@lru_cache(maxsize=8192)
def _cut(mesh: Mesh, axes: tuple[str, ...], by: tuple[str, ...]) -> tuple[str, ...]:
    lanes = mesh.lanes((*axes, *by))
    return tuple(lane for axis in axes for lane in lanes if overlap(mesh.axis(axis), mesh.axis(lane)))


@lru_cache(maxsize=8192)
def _group_axes(mesh: Mesh, axes: tuple[str, ...]) -> tuple[str, ...]:
    pieces = [mesh.axis(axis) for axis in axes]
    for i, piece in enumerate(pieces):
        for other in pieces[:i]:
            if overlap(piece, other):
                raise MeshError(
                    f"The axes {axes} name devices along {piece.name!r} twice. A group differs along each axis once: "
                    f"name every axis once."
                )
    return tuple(piece.text(mesh.sizes[piece.name]) for piece in pieces)


def overlap(a: SubAxis, b: SubAxis) -> bool:
    """Whether two sub-axes overlap."""
    if a.name != b.name:
        return False
    return a == b or max(a.pre, b.pre) < min(a.pre * a.size, b.pre * b.size)
