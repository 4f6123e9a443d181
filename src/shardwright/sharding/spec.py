"""`P`: a user's spec, one entry per tensor dim. Conveniences (None, a bare name) are normalised here, once."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from shardwright.errors import ShardingError

Dims = tuple[tuple[str, ...], ...]


class P(tuple[tuple[str, ...], ...]):
    """The mesh axes that split each dim of a tensor, outermost first; dims left out at the end are whole.

    >>> P("data", None, ("x", "y"))
    P('data', None, ('x', 'y'))
    >>> tuple(P("data", None, ("x", "y")))
    (('data',), (), ('x', 'y'))
    """

    __slots__ = ()

    def __new__(cls, *dims: str | Iterable[str] | None) -> "P":
        return super().__new__(cls, tuple(map(_entry, dims)))

    def __repr__(self) -> str:
        return f"P({', '.join(repr(axes[0] if len(axes) == 1 else axes or None) for axes in self)})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


def _entry(entry: object) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    ordered = isinstance(entry, Iterable) and not isinstance(entry, set | frozenset)
    axes = tuple(entry) if ordered else (entry,)  # type: ignore[arg-type]
    for axis in axes:
        if not isinstance(axis, str):
            raise ShardingError(
                f"{entry!r} is an invalid spec entry. Use None (not split), an axis name, or a tuple of names."
            )
    return axes  # type: ignore[return-value]  # checked one by one above


def as_spec(spec: object) -> P:
    """Converts a `P` or a sequence of entries to a `P`."""
    if isinstance(spec, P):
        return spec
    if isinstance(spec, str | Mapping | Set) or not isinstance(spec, Iterable):
        raise ShardingError(f"{spec!r} is not a spec. Write P({spec!r}), with one entry per tensor dim.")
    return P(*spec)
