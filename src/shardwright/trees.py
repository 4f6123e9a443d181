"""Trees of arrays, dicts in the order they were made: a function may depend on it, so programs must tell orders apart."""

from collections.abc import Iterable, Sequence
from typing import Any

import optree

_NAMESPACE = "shardwright"
_ordered = optree.dict_insertion_ordered(True, namespace=_NAMESPACE)  # kept: if it went, so would the order
_ordered.__enter__()
_any: Any = optree


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, and its structure.

    >>> flatten({"b": 1, "a": [2]})[0]
    [1, 2]
    """
    leaves, structure = _any.tree_flatten(tree, namespace=_NAMESPACE)
    return leaves, structure


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """The tree of a structure with other leaves."""
    return _any.tree_unflatten(structure, list(leaves))


def structure_of(tree: Any) -> Any:
    """The structure of a tree."""
    return _any.tree_structure(tree, namespace=_NAMESPACE)


def paths_of(tree: Any) -> list[str]:
    """The paths of a tree's leaves, joined with '/'.

    >>> paths_of({"layer": [1, 2], "bias": 3})
    ['layer/0', 'layer/1', 'bias']
    """
    return ["/".join(map(str, path)) for path in _any.tree_paths(tree, namespace=_NAMESPACE)]


def prefix(rule: Any, tree: Any) -> list[tuple[Any, str, Any, Sequence[int]]]:
    """The entries of a tree that stops higher up than another (None is an entry), each with its path, the part of the other
    that it stands for, and the places of that part's leaves among all."""
    entries, structure = _any.tree_flatten(rule, none_is_leaf=True)
    if _any.treespec_is_leaf(structure):
        raise ValueError("it is no tree")
    leaves, whole = flatten(tree)
    numbered = structure.flatten_up_to(unflatten(whole, range(len(leaves))))
    names = ["/".join(map(str, path)) for path in _any.tree_paths(rule, none_is_leaf=True)]
    parts = structure.flatten_up_to(tree)
    return [
        (e, n, part, flatten(places)[0]) for e, n, part, places in zip(entries, names, parts, numbered, strict=True)
    ]
