"""Axis names, and sub-axes: pieces of a mesh axis, written `x:(pre)size` as Shardy does.

An axis of size 8 seen as 2 × 4 has the sub-axes `x:(1)2` (outer) and `x:(2)4` (inner): `pre` is the product of the
pieces before it. Everywhere in the core an axis is a string: the name of an axis, or a sub-axis in this notation.
"""

import itertools
import operator
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardwright.errors import MeshError

Axes = str | Sequence[str]

_SUB = re.compile(r"(?P<name>[^:]+):\((?P<pre>\d+)\)(?P<size>\d+)")
_RESERVED = frozenset(":@,+/~{}[]() \t\n")
MOST_DEVICES = 2**20  # of a mesh


class SubAxis(NamedTuple):
    """A piece of a mesh axis: the axis name, the product of the outer pieces, and the size."""

    name: str
    pre: int
    size: int

    def text(self, full: int) -> str:
        """The axis as a string; a piece that covers its whole axis (of size `full`) is written as the name alone.

        >>> SubAxis("x", 2, 4).text(8), SubAxis("x", 1, 8).text(8)
        ('x:(2)4', 'x')
        """
        return self.name if self.size == full else f"{self.name}:({self.pre}){self.size}"


def as_axes(axes: Axes) -> tuple[str, ...]:
    """Normalises a name, or a sequence of names (outermost first), to a tuple.

    >>> as_axes("data"), as_axes(["x", "y"]), as_axes(())
    (('data',), ('x', 'y'), ())
    """
    if isinstance(axes, str):
        return (axes,)
    if isinstance(axes, set | frozenset) or not isinstance(axes, Iterable):
        raise MeshError(f"Axes are a name or a sequence of names, in order; {axes!r} is neither.")
    result = tuple(axes)
    for axis in result:
        if not isinstance(axis, str):
            raise MeshError(f"Axes are named by strings; {axis!r} in {axes!r} is a {type(axis).__name__}.")
    return result


def as_int(value: object, what: str) -> int:
    """`value` as an int; raises MeshError if it is not an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise MeshError(f"{what} {value!r} is not an integer.")
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise MeshError(f"{what} has {type(value).__name__} entries, not integers.") from error


def as_ints(values: object, what: str) -> tuple[int, ...]:
    """`values` as a tuple of ints; raises MeshError if one is not an integer."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise MeshError(f"{what} must be a sequence of integers; got {values!r}.")
    if isinstance(values, list | tuple) and set(map(type, values)) <= {int}:
        return tuple(values)
    return tuple(as_int(value, what) for value in values)


def check_devices(count: int, what: str) -> None:
    """Raises MeshError if there are more devices than a mesh may have."""
    if count > MOST_DEVICES:
        shown = f"{count:,}" if count < 10**30 else "more than 10^30"
        raise MeshError(
            f"{what} has {shown} devices; a mesh has at most {MOST_DEVICES:,}, because groups and shards are listed device "
            f"by device. Use smaller sizes."
        )


def check_name(name: object) -> str:
    """Returns a valid axis name; raises MeshError if the sharding notation could not parse it back."""
    if not isinstance(name, str) or not name or not _RESERVED.isdisjoint(name):
        raise MeshError(
            f"{name!r} can't name a mesh axis: a name is a string of at least one character, without spaces and "
            f"without any of : @ , + / ~ {{ }} [ ] ( ). Try something like 'data' or 'tp_0'."
        )
    return str.__str__(name)  # of a subclass, an enum for one, the string alone


def parse_axis(text: str, sizes: dict[str, int], mesh: object) -> SubAxis:
    """Parses a name or `x:(pre)size`, checked against the axes of the mesh."""
    text = str.__str__(text)  # as in check_name
    if text in sizes:
        return SubAxis(text, 1, sizes[text])
    match = _SUB.fullmatch(text)
    if match is None or match["name"] not in sizes:
        raise MeshError(
            f"{text!r} is not an axis of {mesh}; its axes are {', '.join(map(repr, sizes))}. "
            f"Name one of them, or a piece of one as 'x:(pre)size'."
        )
    name, pre, size = match["name"], int(match["pre"]), int(match["size"])
    full = sizes[name]
    if pre < 1 or size < 2 or full % (pre * size):
        raise MeshError(
            f"{text!r} is not a piece of axis {name!r} of size {full}: it needs a size of at least 2 and a product "
            f"{pre} × {size} that divides {full}."
        )
    return SubAxis(name, pre, size)


def cut_axes(used: Iterable[SubAxis], sizes: dict[str, int]) -> tuple[SubAxis, ...]:
    """All axes of the mesh, in order, cut where the sub-axes in `used` begin and end.

    >>> cut_axes([SubAxis("x", 2, 2)], {"x": 8, "y": 3})
    (SubAxis(name='x', pre=1, size=2), SubAxis(name='x', pre=2, size=2), SubAxis(name='x', pre=4, size=2), \
SubAxis(name='y', pre=1, size=3))
    """
    cuts: dict[str, set[int]] = {name: {1, size} for name, size in sizes.items()}
    for axis in used:
        cuts[axis.name] |= {axis.pre, axis.pre * axis.size}
    pieces = []
    for name, marks in cuts.items():
        if sizes[name] == 1:
            pieces.append(SubAxis(name, 1, 1))
            continue
        ordered = sorted(marks)
        for low, high in itertools.pairwise(ordered):
            if high % low:
                raise MeshError(
                    f"Pieces of axis {name!r} (size {sizes[name]}) end at {low} and at {high}, and {low} does not "
                    f"divide {high}: no common cut exists. Use pieces whose boundaries divide one another."
                )
            pieces.append(SubAxis(name, low, high // low))
    return tuple(pieces)
