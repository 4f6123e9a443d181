"""The arguments of `Mesh`: normalised, checked, and written out again for its repr."""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from functools import lru_cache
from keyword import iskeyword
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from shardwright.errors import MeshError
from shardwright.hardware import Hardware, Link, Pieces
from shardwright.mesh.axes import MOST_DEVICES, as_ints, check_devices, check_name

FEW = 8  # ids that are written one by one
MOST_AXES = 32  # of which at most 20 are longer than 1; NumPy's arrays have 64 dims, lanes and the tensor's own


def axes_from(
    shape: Mapping[str, int] | Sequence[int] | None, axis_names: Sequence[str] | None, sizes: dict[str, int]
) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """The names of the axes and the sizes given for them, from any form of the arguments."""
    if shape is None and axis_names is None:
        shape = sizes
    elif sizes:
        raise MeshError(
            f"Axes were given twice: positionally and as keywords {', '.join(sizes)}. "
            f"Use Mesh(data=2, model=4), Mesh({{'data': 2}}) or Mesh((2, 4), ('data', 'model'))."
        )
    if isinstance(shape, Mapping):
        if axis_names is not None:
            raise MeshError("A mapping already names the axes: leave out axis_names, or give the sizes as a tuple.")
        names, wanted = tuple(shape), tuple(shape.values())
    elif shape is None or axis_names is None:
        raise MeshError(
            f"A mesh needs sizes and names: Mesh((2, 4), ('data', 'model')); got {shape!r}, {axis_names!r}."
        )
    elif not isinstance(axis_names, Iterable):
        raise MeshError(
            f"axis_names is {axis_names!r}; give names: Mesh((2, 4), ('data', 'model')) or Mesh(data=2, model=4)."
        )
    else:
        names, wanted = tuple(axis_names), tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if isinstance(axis_names, str):
        raise MeshError(
            f"axis_names is the string {axis_names!r}; give a sequence of names, such as ({axis_names!r},)."
        )
    if len(names) != len(wanted):
        raise MeshError(f"{len(wanted)} sizes {wanted} but {len(names)} axis names {names}: give one name per size.")
    if not names:
        raise MeshError("A mesh has at least one axis: Mesh(data=1) is a single device.")
    names = tuple(map(check_name, names))
    if len(set(names)) < len(names):
        name = max(names, key=names.count)
        raise MeshError(f"Axis {name!r} is named {names.count(name)} times in {names}: names must be unique.")
    return names, wanted


def resolve_sizes(names: tuple[str, ...], wanted: tuple[object, ...], count: int | None) -> tuple[int, ...]:
    """The sizes of the axes; -1 becomes what is left of the number of devices."""
    sizes: list[int] = []
    for name, size in zip(names, wanted, strict=True):
        if type(size) is not int and (isinstance(size, bool) or not isinstance(size, int | np.integer)):
            raise MeshError(f"Axis {name!r} has size {size!r}; a size is a positive integer, or -1 for 'the rest'.")
        if not 0 < size <= MOST_DEVICES and size != -1:
            if size < 1:
                raise MeshError(f"Axis {name!r} has size {size!r}; a size is a positive integer, or -1 for 'the rest'.")
            check_devices(int(size), f"Axis {name!r}")
        sizes.append(int(size))
    if -1 in sizes:
        sizes = _completed(names, sizes, count)
    total = math.prod(sizes)
    if total > MOST_DEVICES:
        check_devices(total, _shown(names, sizes))
    if len(names) > MOST_AXES:
        raise MeshError(
            f"{len(names)} axes are more than the {MOST_AXES} that a mesh may have. Leave out those of size 1."
        )
    if count is not None and total != count:
        raise MeshError(
            f"{_shown(names, sizes)} has {total} positions, but there are {count} devices. "
            f"Change a size, use -1 for one of them, or take a submesh."
        )
    return tuple(sizes)


def _completed(names: tuple[str, ...], sizes: list[int], count: int | None) -> list[int]:
    """Sizes of which one is -1, with what is left of the number of devices in its place."""
    shown = _shown(names, sizes)
    if sizes.count(-1) > 1:
        raise MeshError(f"{shown} leaves {sizes.count(-1)} sizes open; only one can be -1.")
    if count is None:
        raise MeshError(f"{shown} leaves a size open. Pass devices=, the number of devices.")
    known = -math.prod(sizes)
    if count % known or count < known:
        raise MeshError(
            f"{shown} can't hold {count} devices: {count} is not a multiple of {known}, the product of the other sizes."
        )
    return [count // known if size == -1 else size for size in sizes]


def _shown(names: tuple[str, ...], sizes: list[int]) -> str:
    return f"Mesh({', '.join(f'{name}={size}' for name, size in zip(names, sizes, strict=True))})"


def count_of(devices: int | Sequence[int] | None) -> int | None:
    """How many devices are given, if that is."""
    if devices is None:
        return None
    if isinstance(devices, int | np.integer):
        count = int(devices)
    elif isinstance(devices, range) and devices:
        count = devices.index(devices[-1]) + 1  # len() can't say more than 2^63 - 1
    elif isinstance(devices, Sized):
        count = len(devices)
    else:
        raise MeshError(f"devices is {devices!r}; give the number of devices, or a sequence of their ids.")
    check_devices(count, "devices=")
    return count


def checked_ids(devices: Sequence[int]) -> Sequence[int]:
    """Ids in row-major order; a range if they count from 0."""
    if isinstance(devices, range) and devices == range(len(devices)):
        return range(len(devices))
    ids = as_ints(devices, "Device ids")
    if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= 2**63:
        raise MeshError(f"Device ids must be different and not negative, in 64 bits; got {shortened(ids)}.")
    return range(len(ids)) if ids == tuple(range(len(ids))) else ids


class Laid(NamedTuple):
    """How the axes of a mesh lie on hardware."""

    pieces: Mapping[str, Pieces]
    own: Mapping[str, Link]  # links that were given and are not the hardware's
    outermost: Mapping[str, Link]


@lru_cache(maxsize=256)
def laid_on(
    hardware: Hardware, names: tuple[str, ...], sizes: tuple[int, ...], given: tuple[tuple[str, Link], ...]
) -> Laid:
    """How axes lie on hardware, and on the links that were given for some of them."""
    links = dict(given)
    pieces: dict[str, Pieces] = {}
    own: dict[str, Link] = {}
    outermost: dict[str, Link] = {}
    for name, size, laid in zip(names, sizes, hardware.lay(sizes), strict=True):
        link = links.get(name)
        known = None if laid is None else laid[-1][1] if laid else hardware.levels[0].link
        if link is not None and not (link == known and (laid is None or len(laid) < 2)):
            own[name] = link
            laid, known = ((size, link),), link
        if laid is None or known is None:
            raise MeshError(
                f"{hardware.name} connects {hardware.size} chips; a mesh of {math.prod(sizes)} devices goes beyond it "
                f"at axis {name!r}. Choose smaller sizes or other hardware, or give the axis its own links=."
            )
        pieces[name], outermost[name] = laid, known
    return Laid(MappingProxyType(pieces), MappingProxyType(own), MappingProxyType(outermost))


def links_from(links: Link | Mapping[str, Link] | None, names: tuple[str, ...]) -> tuple[tuple[str, Link], ...]:
    """The links that were given, by axis."""
    if links is None or isinstance(links, Link):
        return () if links is None else tuple((name, links) for name in names)
    if not isinstance(links, Mapping):
        raise MeshError(f"links is a Link for all axes, or a dict of them by axis; got {links!r}.")
    for axis, link in links.items():
        if not isinstance(link, Link):
            raise MeshError(f"links gives {link!r} for axis {axis!r}; give a Link, such as Link('ring').")
    unknown = [axis for axis in links if axis not in names]
    if unknown:
        raise MeshError(f"links names axis {unknown[0]!r}; the mesh has only {', '.join(map(repr, names))}.")
    given = {check_name(axis): link for axis, link in links.items()}
    return tuple((name, given[name]) for name in names if name in given)


def checked_device(device: object, engine: str) -> str:
    """A device as torch names it, or a platform of JAX; the other engines compute on the CPU."""
    if device is None:
        return "default" if engine == "jax" else "cpu"
    if isinstance(device, int | np.integer):
        raise MeshError(
            f"device={device} is not a device such as 'cpu' or 'cuda'; an axis of this name is written "
            f'Mesh({{"device": {device}}}).'
        )
    if not isinstance(device, str) or not device:
        raise MeshError(f"device is {device!r}; give the name that torch or JAX has for it, such as 'cpu' or 'cuda'.")
    if device != "cpu" and engine in ("numpy", "literal"):
        raise MeshError(f"The engine {engine!r} computes on the CPU; device={device!r} needs engine='torch'.")
    return device


def checked_timeout(timeout: object) -> float | None:
    """Seconds that processes wait for one another; None for the default."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise MeshError(f"timeout is {timeout!r}; give a positive number of seconds.")
    return float(timeout)


def is_parameter(name: str) -> bool:
    """Whether an axis can be named as Mesh(name=2): other letters than ASCII's may stand for several names."""
    fixed = ("devices", "engine", "device", "timeout", "hardware", "links", "__debug__")
    return name.isascii() and name.isidentifier() and not iskeyword(name) and name not in fixed


def spelled(ids: Sequence[int]) -> str:
    """All ids as an expression; of more than a few, evenly spaced ones as ranges.

    >>> spelled((2, 3, 6, 7)), spelled((0, 1, 2, 3, 9, 8, 6, 4, 2))
    ('(2, 3, 6, 7)', '(*range(0, 4), 9, *range(8, 1, -2))')
    """
    if len(ids) <= FEW:
        return repr(tuple(ids))
    parts: list[str] = []
    first = 0
    while first < len(ids):
        step = ids[first + 1] - ids[first] if first + 1 < len(ids) else 1
        last = first
        while last + 1 < len(ids) and ids[last + 1] - ids[last] == step:
            last += 1
        if last - first < 2:
            parts.append(str(ids[first]))
            first += 1
            continue
        stop = ids[last] + (1 if step > 0 else -1)
        parts.append(f"*range({ids[first]}, {stop}{f', {step}' if step != 1 else ''})")
        first = last + 1
    return parts[0].removeprefix("*") if len(parts) == 1 else f"({', '.join(parts)})"


def shortened(ids: Sequence[int], most: int = 16) -> str:
    """The first ids, for messages."""
    return ", ".join(map(str, ids[:most])) + (", …" if len(ids) > most else "")
