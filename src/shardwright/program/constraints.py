"""Where values are to lie: constraints, and annotations whose names `sjit` gives a meaning."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np  # noqa: F401  # in doctests

from shardwright.arrays import Array, shard
from shardwright.errors import ArrayError, ProgramError, TraceError
from shardwright.mesh import Mesh, current_mesh  # noqa: F401  # in doctests
from shardwright.rules import resolved
from shardwright.sharding import P, Sharding  # in doctests
from shardwright.trees import flatten, unflatten

Rule = Any  # a P, a Sharding, a ShardingRule, None, or a tree of them


class Annotations:
    """What the names of `with_sharding_annotation` stand for inside one traced function, and which were used."""

    def __init__(self, rules: Mapping[str, Rule] | None) -> None:
        self.rules = dict(rules or {})
        self.used: set[str] = set()

    def rule(self, name: str) -> Rule:
        self.used.add(name)
        if name not in self.rules:
            known = ", ".join(map(repr, self.rules)) or "none"
            raise ProgramError(
                f"The function uses the annotation {name!r}, but annotation_shardings has {known}. Add it there, with None to "
                f"leave it open."
            )
        return self.rules[name]

    def check(self) -> None:
        unused = [name for name in self.rules if name not in self.used]
        if unused:
            raise ProgramError(
                f"annotation_shardings names {', '.join(map(repr, unused))}, which the function never uses; it uses "
                f"{', '.join(map(repr, sorted(self.used))) or 'no annotation'}. Correct or remove the name."
            )


annotations: ContextVar[Annotations | None] = ContextVar("annotations", default=None)


def with_sharding_constraint(tree: Any, rule: Rule) -> Any:
    """The same arrays, laid out as a rule says: inside `sjit` a constraint on the program, outside a reshard.

    >>> x = shard(np.arange(4), Mesh(x=2), P("x"))
    >>> with_sharding_constraint({"a": x}, P())["a"].sharding.spec
    P(None)
    """
    leaves, structure = flatten(tree)
    mesh = next((leaf.mesh for leaf in leaves if isinstance(leaf, Array)), None) or current_mesh()
    if mesh is None:
        raise ArrayError(
            "with_sharding_constraint: the tree has no Array, and there is no mesh. Write `with mesh:` around it."
        )
    found = resolved(rule, tree, mesh, "with_sharding_constraint")
    if leaves and isinstance(rule, P | Sharding) and all(sharding is None for sharding in found):
        raise ArrayError(
            f"with_sharding_constraint: none of the {len(leaves)} leaves is an array or a tensor; lists of numbers are trees. "
            f"Pass np.asarray(…)."
        )
    made = [x if s is None else laid_out(x, s) for x, s in zip(leaves, found, strict=True)]
    return unflatten(structure, made)


def laid_out(x: Any, sharding: Sharding) -> Array:
    return x.reshard(sharding) if isinstance(x, Array) else shard(x, sharding)


def with_sharding_annotation(tree: Any, name: str) -> Any:
    """The same arrays under a name, for which `sjit(…, annotation_shardings={name: rule})` says where they lie."""
    known = annotations.get()
    if known is None:
        raise TraceError(
            f"The annotation {name!r} stands outside of sjit, where nothing says what it means. Run the function through "
            f"sw.sjit(fn, annotation_shardings={{{name!r}: …}})."
        )
    rule = known.rule(name)
    return tree if rule is None else with_sharding_constraint(tree, rule)
