"""The leaves of JAX's pytrees with their paths, joined with '/': for trees of 100,000 leaves too."""

from typing import Any

import jax

from shardwright.errors import TreeError
from shardwright.jax.utils import key_name


def leaves_with_paths(tree: Any) -> tuple[list[str], list[Any]]:
    """The paths and the leaves of a pytree, in the order of `jax.tree.leaves`.

    >>> leaves_with_paths({"b": {"kernel": 1, "bias": 2}, "a": [3, None]})
    (['a/0', 'b/bias', 'b/kernel'], [3, 2, 1])
    """
    paths: list[str] = []
    leaves: list[Any] = []
    try:
        _walk(tree, "", paths, leaves, {})
    except RecursionError as error:
        raise TreeError(
            "A pytree is nested too deeply, or contains itself. Put its arrays in one list or dict."
        ) from error
    return paths, leaves


def _walk(node: Any, path: str, paths: list[str], leaves: list[Any], nodes: dict[type, bool]) -> None:
    """Appends the leaves below a node. `nodes` says which types have children.

    Dicts, lists and tuples are opened here, since they are most of any tree; other nodes are opened by JAX.
    """
    kind = type(node)
    if kind is dict:
        children: Any = [(key, node[key]) for key in sorted(node)]
    elif kind is list or kind is tuple:
        children = enumerate(node)
    else:
        known = nodes.get(kind)
        if known is False:
            paths.append(path)
            leaves.append(node)
            return
        opened = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)[0]
        nodes[kind] = known = not (len(opened) == 1 and not opened[0][0])
        if not known:
            paths.append(path)
            leaves.append(node)
            return
        children = [("/".join(map(key_name, keys)), child) for keys, child in opened]
    lead = f"{path}/" if path else ""
    for name, child in children:
        if nodes.get(type(child)) is False:
            paths.append(f"{lead}{name}")
            leaves.append(child)
        else:
            _walk(child, f"{lead}{name}", paths, leaves, nodes)
