"""The devices that take part in a collective of XLA, and the mesh axes that they differ along.

XLA numbers the devices of a compiled function 0, 1, …; here such a number is a *partition*. Groups of them are written in
three forms: lists, an iota with a transpose, and axes of a mesh of XLA's own.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ProgramError
from shardwright.mesh import Mesh
from shardwright.sharding import P, Sharding

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")
_FROM_IOTA = re.compile(r"\[(?P<shape>[\d,]*)\]<=(?P<iota>\[[\d,]+\](?:T\([\d,]+\))?)")
_LIST = re.compile(r"\{((\{[\d,\s]*\},?\s*)*)\}")
_MESH = re.compile(
    r"mesh\[(?P<sizes>.*?)\]\s*(,\s*device_ids=\((?P<ids>.*?\)?)\)(?=\s*[\{,]|$))?\s*,?\s*(?P<axes>\{.*\})?", re.S
)
_SIZE = re.compile(r"'(?P<name>[^']*)'=(?P<size>\d+)")
_AXIS = re.compile(r"'(?P<name>[^']*)'(?P<piece>:\(\d+\)\d+)?")


def numbers(text: str) -> tuple[int, ...]:
    """The integers of a text such as "1,0"."""
    return tuple(map(int, re.findall(r"\d+", text)))


def iota(text: str) -> NDArray[np.int64]:
    """0, 1, … in the order that XLA writes as a shape and a transpose.

    >>> iota("[2,4]T(1,0)").tolist()
    [0, 4, 1, 5, 2, 6, 3, 7]
    """
    found = _IOTA.fullmatch(text.strip())
    if found is None:
        raise ProgramError(f"HLO: {text!r} is not an order of devices such as '[2,4]T(1,0)'.")
    shape = numbers(found["shape"])
    order = numbers(found["order"]) if found["order"] else tuple(range(len(shape)))
    return np.arange(math.prod(shape)).reshape(shape).transpose(order).ravel()


def parse_groups(text: str) -> Groups:
    """The groups of a `replica_groups` in any of its forms; () stands for all devices in one group.

    >>> parse_groups("{{0,1},{2,3}}")
    ((0, 1), (2, 3))
    >>> parse_groups("[2,2]<=[2,2]T(1,0)")
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=2,'b'=4] {'b':(2)2}")
    ((0, 1), (2, 3), (4, 5), (6, 7))
    """
    text = text.strip()
    if _LIST.fullmatch(text):
        return tuple(numbers(group) for group in re.findall(r"\{([\d,\s]+)\}", text[1:-1]))
    folded = _FROM_IOTA.fullmatch(text)
    if folded:
        count, size = numbers(folded["shape"])
        return _table(iota(folded["iota"]).reshape(count, size))
    named = _MESH.fullmatch(text)
    if named and named["axes"]:
        mesh, names = xla_mesh(named["sizes"], named["ids"])
        return tuple(mesh.groups(*xla_axes(named["axes"], names)))
    raise ProgramError(
        f"HLO: the groups {text!r} are in an unknown form. Known are {{{{0,1}},{{2,3}}}}, [2,2]<=[4] and mesh['a'=2] {{'a'}}."
    )


def _table(groups: NDArray[np.int64]) -> Groups:
    return tuple(map(tuple, groups.tolist()))


def xla_mesh(sizes: str, ids: str | None) -> tuple[Mesh, dict[str, str]]:
    """A mesh of XLA's over partitions, and the names that its axes have here: XLA's may have any characters."""
    pairs = [(found["name"], int(found["size"])) for found in _SIZE.finditer(sizes)]
    names = {name: f"a{index}" for index, (name, _) in enumerate(pairs)}
    if ids is None:
        order: Sequence[int] = range(math.prod(size for _, size in pairs))
    else:
        order = iota(ids).tolist() if "[" in ids else numbers(ids)
    return Mesh({names[name]: size for name, size in pairs}, devices=list(order)), names


def xla_axes(text: str, names: dict[str, str]) -> tuple[str, ...]:
    """The axes and sub-axes of a text such as "{'a', 'b':(2)2}", by the names they have here."""
    return tuple(names[found["name"]] + (found["piece"] or "") for found in _AXIS.finditer(text))


def parse_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """The (source, target) pairs of a permute.

    >>> parse_pairs("{{0,1},{1,0}}")
    ((0, 1), (1, 0))
    """
    if not _LIST.fullmatch(text.strip()):
        raise ProgramError(f"HLO: {text!r} is not a list of source and target pairs such as {{{{0,1}},{{1,0}}}}.")
    return tuple((source, target) for source, target in map(numbers, re.findall(r"\{([\d,\s]+)\}", text.strip()[1:-1])))


def axes_of_groups(groups: Sequence[Sequence[int]], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes, outermost first, along which groups of places run; None if the groups are not along axes.

    >>> axes_of_groups([(0, 1), (2, 3), (4, 5), (6, 7)], Mesh(x=2, y=4))
    ('y:(2)2',)
    """
    wanted = {frozenset(group) for group in groups}
    for first in (tuple(groups[0]), tuple(sorted(groups[0]))):
        axes = axes_along(first, mesh)
        if axes is not None and {frozenset(group) for group in _places(mesh).groups(*axes)} == wanted:
            return axes
    return None


def axes_of_pairs(pairs: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[str, ...]:
    """The axes, in the mesh's order, along which the two places of some pair differ.

    >>> axes_of_pairs([(0, 2), (2, 0), (1, 3), (3, 1)], Mesh(x=2, y=4))
    ('y:(1)2',)
    """
    pieces = [piece for name, size in mesh.sizes.items() for piece in _prime_pieces(name, size)]
    shape = [mesh.axis(piece).size for piece in pieces]
    ends = (np.unravel_index(np.array(end, dtype=np.int64), shape) for end in zip(*pairs, strict=True))
    differ = [bool((a != b).any()) for a, b in zip(*ends, strict=True)] if pairs else []
    return merged([piece for piece, moved in zip(pieces, differ, strict=False) if moved], mesh)


def axes_along(members: Sequence[int], mesh: Mesh) -> tuple[str, ...] | None:
    """The axes, outermost first, that lead from the first of some places through all others in order; None if none do.

    Distances repeat along every axis. The innermost is taken off first: of (0, 4, 1, 5) on Mesh(x=2, y=2, z=2) steps of 4
    are x, steps of 1 are z, so the axes are (z, x).
    """
    steps = [member - members[0] for member in members]
    pieces: list[str] = []
    while len(steps) > 1:
        piece = _innermost(steps, mesh)
        if piece is None:
            return None
        pieces.insert(0, piece)
        steps = steps[:: mesh.axis(piece).size]
    named = [(axis.name, axis.pre, axis.size) for axis in map(mesh.axis, pieces)]
    if any(a[0] == b[0] and a[1] < b[1] * b[2] and b[1] < a[1] * a[2] for i, a in enumerate(named) for b in named[:i]):
        return None  # one piece twice
    return merged(pieces, mesh)


def _innermost(steps: Sequence[int], mesh: Mesh) -> str | None:
    """The piece of an axis along which the steps run fastest."""
    stride = steps[1]
    inner = {name: math.prod(mesh.shape[at + 1 :]) for at, name in enumerate(mesh.axis_names)}
    name = next((name for name, size in mesh.sizes.items() if inner[name] <= stride < inner[name] * size), None)
    if name is None:
        return None
    size = mesh.sizes[name]
    after, left = divmod(stride, inner[name])
    if left or size % after:
        return None
    room, run = size // after, 1
    while run < min(room, len(steps)) and steps[run] == run * stride:
        run += 1
    sizes = (n for n in range(run, 1, -1) if room % n == 0 and len(steps) % n == 0)
    count = next(sizes, 0)
    if not count or any(step != steps[i - i % count] + i % count * stride for i, step in enumerate(steps)):
        return None
    return name if count == size else f"{name}:({size // after // count}){count}"


def merged(pieces: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Pieces of axes, neighbouring pieces of one axis as one."""
    return Sharding(mesh, P(tuple(pieces))).dims[0] if pieces else ()


def _places(mesh: Mesh) -> Mesh:
    """The mesh with places for device ids."""
    return mesh.with_devices(range(mesh.size))


def _prime_pieces(name: str, size: int) -> list[str]:
    """An axis as pieces of prime sizes, outermost first."""
    marks, left, factor = [1], size, 2
    while left > 1:
        while left % factor:
            factor += 1
        marks.append(marks[-1] * factor)
        left //= factor
    if len(marks) <= 2:
        return [name]
    return [f"{name}:({low}){high // low}" for low, high in pairwise(marks)]
