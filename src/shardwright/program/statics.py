"""Static arguments: what tells their values apart, since each has a program of its own."""

import dataclasses
import functools
import numbers
import types
from typing import Any

import numpy as np

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
DEEP = 16  # levels of objects inside objects that are looked into


class Static:
    """A static argument: one leaf, compared by value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def token(value: Any, deep: int = DEEP) -> Any:
    """What is equal for values that a program can't tell apart, also inside tuples, sets and objects.

    >>> len({token(x) for x in (1, 1.0, True, 0.0, -0.0, (1,), (1.0,), frozenset({1}), frozenset({True}))})
    9

    Objects with an equality of their own are compared by it, by their type and by the tokens of their fields.
    """
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        return kind, value
    if isinstance(value, numbers.Number | np.generic | range):
        more = _fields(value) if deep and hasattr(value, "__dict__") else []  # of a subclass
        return (kind, repr(value), *[(name, token(field, deep - 1)) for name, field in more])
    if not deep:
        return kind, value
    if isinstance(value, slice):
        return kind, token((value.start, value.stop, value.step), deep - 1)
    if isinstance(value, tuple):
        return kind, tuple([token(x, deep - 1) for x in value])
    if isinstance(value, frozenset):
        return kind, frozenset(token(x, deep - 1) for x in value)
    by_identity: Any = object.__eq__
    if kind.__eq__ is by_identity or isinstance(value, (type, *_FUNCTIONS)):
        return kind, value
    fields = tuple((name, token(field, deep - 1)) for name, field in _fields(value))
    return (kind, value, fields) if _hashable(fields) else (kind, value)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object, from its fields, its slots and its dictionary."""
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    found = [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
    return [*found, *getattr(value, "__dict__", {}).items()]


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):  # a list; a memoryview that can be written to
        return False
    return True


def is_hashable(value: Any) -> bool:
    """Whether calls with this value can be told apart."""
    return _hashable(token(value))
