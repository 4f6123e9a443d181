"""Checks of the figures that people give for machines."""

import math
from numbers import Real

from shardwright.errors import MeshError


def as_number(value: object, what: str, *, least: float = 0.0, above: bool = False, finite: bool = True) -> float:
    """A figure as a float: at least `least`, or above it; `finite` unless an infinite one has a meaning."""
    kind = f"{'a finite' if finite else 'a'} number {'above' if above else 'of at least'} {least:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise MeshError(f"{what} is {value!r}, which is not a number; give {kind}.")
    try:
        number = float(value)
    except OverflowError:
        raise MeshError(f"{what} is larger than any float; give {kind}.") from None
    if not (number > least or (number == least and not above)) or (finite and math.isinf(number)):
        raise MeshError(f"{what} is {value!r}; give {kind}.")
    return number


def as_count(value: object, what: str, least: int = 0) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MeshError(f"{what} is {value!r}; give a whole number of at least {least}.")
    return value
