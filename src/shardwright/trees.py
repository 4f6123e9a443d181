"""Trees of arrays. Dicts keep their insertion order: a function may depend on it, so it is part of the structure."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from shardwright.errors import TreeError

_NAMESPACE = "shardwright"
_ordered = optree.dict_insertion_ordered(True, namespace=_NAMESPACE)  # kept alive: the order ends with this object
_ordered.__enter__()
_any: Any = optree
_F = TypeVar("_F", bound=Callable[..., Any])


def _bounded(function: _F) -> _F:
    """The function with an error of ours for trees that are too deep to walk."""

    @functools.wraps(function)
    def walk(*args: Any) -> Any:
        try:
            return function(*args)
        except RecursionError as error:
            raise TreeError(
                f"A tree of arrays is nested more than about {optree.MAX_RECURSION_DEPTH:,} levels deep, or contains itself. "
                f"Put its arrays in one list or dict."
            ) from error

    return walk  # type: ignore[return-value]  # of the same signature


@_bounded
def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, and its structure.

    >>> flatten({"b": 1, "a": [2]})[0]
    [1, 2]
    """
    leaves, structure = _any.tree_flatten(tree, namespace=_NAMESPACE)
    return leaves, structure


@_bounded
def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """A tree from a structure and new leaves."""
    return _any.tree_unflatten(structure, list(leaves))


@_bounded
def structure_of(tree: Any) -> Any:
    """The structure of a tree."""
    return _any.tree_structure(tree, namespace=_NAMESPACE)


@_bounded
def paths_of(tree: Any) -> list[str]:
    """The paths of a tree's leaves, joined with '/'.

    >>> paths_of({"layer": [1, 2], "bias": 3})
    ['layer/0', 'layer/1', 'bias']
    """
    return ["/".join(map(str, path)) for path in _any.tree_paths(tree, namespace=_NAMESPACE)]


@_bounded
def prefix(rule: Any, tree: Any) -> list[tuple[Any, str, Any, Sequence[int]]]:
    """Matches a prefix tree against a tree: (entry, path, matching subtree, indices of the subtree's leaves) per entry.

    None is an entry.
    """
    entries, structure = _any.tree_flatten(rule, none_is_leaf=True)
    if _any.treespec_is_leaf(structure):
        raise ValueError("the rule is a leaf, not a tree")
    leaves, whole = flatten(tree)
    numbered = structure.flatten_up_to(unflatten(whole, range(len(leaves))))
    names = ["/".join(map(str, path)) for path in _any.tree_paths(rule, none_is_leaf=True)]
    parts = structure.flatten_up_to(tree)
    return [
        (e, n, part, flatten(places)[0]) for e, n, part, places in zip(entries, names, parts, numbered, strict=True)
    ]


@_bounded
def with_prefix(entries: Any, tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """For each leaf of a tree its entry in a tree that may stop higher up, and the leaf; and the structure. None is a leaf.

    >>> with_prefix({"a": 1, "b": 2}, {"a": ["x", None], "b": "y"})[0]
    [(1, 'x'), (1, None), (2, 'y')]
    """
    leaves, structure = _any.tree_flatten(tree, none_is_leaf=True)
    spread = _any.tree_broadcast_prefix(entries, tree, none_is_leaf=True)
    return list(zip(structure.flatten_up_to(spread), leaves, strict=True)), structure
