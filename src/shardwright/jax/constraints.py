"""Constraints on values inside a function, by a rule or by a name that `sjit` gives a meaning."""

from typing import Any

import jax
from jax.sharding import Mesh

from shardwright.errors import ShardingError
from shardwright.jax.context import MeshShardingContext, get_global_mesh, is_optional
from shardwright.jax.resolving import Rule, resolved


def with_sharding_constraint(pytree: Any, sharding_rule: Rule) -> Any:
    """The same pytree, laid out on the mesh of `sjit` or of `with helper.get_context():` as a rule or a spec says.

    Without a mesh it is an error, unless inside `with optional_shardings():`. A dim that can't be split evenly stays whole,
    with a ShardingWarning.
    """
    mesh = get_global_mesh()
    if mesh is None:
        if is_optional():
            return pytree
        raise ShardingError(
            "with_sharding_constraint: there is no mesh. Run the function by helper.sjit(…), or inside `with "
            "helper.get_context():`; inside `with shardwright.jax.optional_shardings():` constraints have no effect."
        )
    return constrained(pytree, sharding_rule, mesh, "with_sharding_constraint")


def with_sharding_annotation(pytree: Any, sharding_name: str) -> Any:
    """The same pytree under a name, for which `sjit(…, annotation_shardings={name: rule})` gives its sharding.

    A name without a meaning is an error, unless inside `with optional_shardings():`; None as its meaning leaves it open.
    """
    context = MeshShardingContext.get_global_context()
    known = None if context is None else context.annotation_shardings
    if context is not None and known is not None and sharding_name in known:
        context.used.add(sharding_name)
        rule = known[sharding_name]
        return pytree if rule is None else with_sharding_constraint(pytree, rule)
    if is_optional():
        return pytree
    names = "there are none" if not known else f"it has {', '.join(map(repr, known))}"
    raise ShardingError(
        f"with_sharding_annotation: {sharding_name!r} is not in annotation_shardings: {names}. Add it there, with None to "
        f"leave it open; inside `with shardwright.jax.optional_shardings():` unknown names have no effect."
    )


def constrained(tree: Any, rule: Rule, mesh: Mesh, what: str) -> Any:
    """The leaves of a pytree, constrained where a rule says so."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    shardings = resolved(rule, tree, mesh, what, constraint=True)
    wanted = [at for at, sharding in enumerate(shardings) if sharding is not None]
    constrain: Any = jax.lax.with_sharding_constraint
    changed = constrain([leaves[at] for at in wanted], [shardings[at] for at in wanted])
    for at, leaf in zip(wanted, changed, strict=True):
        leaves[at] = leaf
    return jax.tree_util.tree_unflatten(structure, leaves)
