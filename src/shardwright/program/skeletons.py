"""Skeletons: the containers of arguments that are trees of arrays, for finding the leaves of arguments of the same form.

Flattening a tree of any kind takes a quarter of a microsecond a leaf. Most arguments are dicts, lists and tuples of arrays, of
the same form at every call: then keys are compared and values taken, container by container.
"""

from typing import Any

from shardwright.arrays import Array

LEAF = object()
DEEPEST = 64  # levels of containers: trees near Python's limit of recursion are flattened


def skeleton_of(tree: Any, levels: int = DEEPEST) -> Any:
    """The containers of a tree of arrays; None if some are not dicts, lists or tuples, for other leaves and many levels."""
    kind = type(tree)
    if kind is Array:
        return LEAF
    if kind not in (dict, list, tuple) or not levels:
        return None
    children = [skeleton_of(x, levels - 1) for x in (tree.values() if kind is dict else tree)]
    if any(child is None for child in children):
        return None
    flat = all(child is LEAF for child in children)
    return kind, list(tree) if kind is dict else len(tree), None if flat else children


def leaves_like(skeleton: Any, tree: Any, leaves: list[Any]) -> bool:
    """Adds the leaves of a tree, if it has the containers of a skeleton; what leaves are is not looked at."""
    kind, keys, children = skeleton
    if type(tree) is not kind or (list(tree) != keys if kind is dict else len(tree) != keys):
        return False
    values = tree.values() if kind is dict else tree
    if children is None:
        leaves.extend(values)
        return True
    for child, value in zip(children, values, strict=True):
        if child is LEAF:
            leaves.append(value)
        elif not leaves_like(child, value, leaves):
            return False
    return True
