"""Trees of arrays. Dicts keep their insertion order: a function may depend on it, so it is part of the structure."""

from collections.abc import Iterable, Sequence
from typing import Any

import optree

_NAMESPACE = "shardwright"
_ordered = optree.dict_insertion_ordered(True, namespace=_NAMESPACE)  # kept alive: the order ends with this object
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
    """A tree from a structure and new leaves."""
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
