"""From rules and specs to the NamedSharding of each leaf of a pytree, with everything checked that JAX would let pass."""

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardwright.mesh
from shardwright import rules as core
from shardwright.errors import ShardingError, ShardingWarning
from shardwright.jax.convert import from_jax
from shardwright.jax.paths import leaves_with_paths
from shardwright.jax.rules import is_spec, partition_spec, specs_of
from shardwright.jax.utils import tree_path_to_string

Rule = Any  # a rule, a spec, a NamedSharding, None, or a pytree of them
_NUMBERS = (bool, int, float, complex)


def is_entry(value: Any) -> bool:
    """Whether a value gives the sharding of all arrays below it in a pytree."""
    return value is None or is_spec(value) or isinstance(value, core.ShardingRule | jax.sharding.Sharding)


def has_rules(value: Rule) -> bool:
    """Whether shardings follow from shapes or paths."""
    return any(isinstance(entry, core.ShardingRule) for entry in jax.tree_util.tree_leaves(value, is_leaf=is_entry))


def resolved(rule: Rule, tree: Any, mesh: Mesh, what: str, *, constraint: bool = False) -> list[Any]:
    """The NamedSharding of each leaf of a pytree; None where the rule gives none, or the leaf is not an array or number.

    JAX replicates a constraint that does not divide a dim without a word: with `constraint` that is a warning, else an error.
    """
    if is_entry(rule):
        return _for_all(rule, tree, mesh, what, constraint)
    structure: Any
    named, structure = jax.tree_util.tree_flatten_with_path(rule, is_leaf=is_entry)
    for _, entry in named:
        if not is_entry(entry):
            raise ShardingError(
                f"{what}: got {entry!r}. Give a rule, a jax.P, a sw.P, a NamedSharding, None, or a pytree of them."
            )
    try:
        parts = structure.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise ShardingError(
            f"{what}: the tree of shardings is not a prefix of the tree of arrays: {error} Give the same structure, or one "
            f"that stops higher up."
        ) from error
    result: list[Any] = []
    for (path, entry), part in zip(named, parts, strict=True):
        result += _for_all(entry, part, mesh, what, constraint, tree_path_to_string(path, "/"))
    return result


def _for_all(rule: Any, tree: Any, mesh: Mesh, what: str, constraint: bool, lead: str = "") -> list[Any]:
    """One rule for all leaves of a pytree."""
    if rule is None:
        return [None] * len(jax.tree_util.tree_leaves(tree))
    paths, leaves = leaves_with_paths(tree)
    if isinstance(rule, jax.sharding.Sharding):
        return [rule if _shape(leaf) is not None else None for leaf in leaves]
    if isinstance(rule, core.ShardingRule):
        specs: Sequence[PartitionSpec | None] = specs_of(rule, tree, same_mesh(mesh))
    else:
        specs = [partition_spec(rule)] * len(leaves)
    known: dict[Any, NamedSharding] = {}
    result: list[Any] = []
    for path, leaf, spec in zip(paths, leaves, specs, strict=True):
        shape = _shape(leaf)
        if spec is None or shape is None:
            result.append(None)
            continue
        sharding = known.get((spec, shape))
        if sharding is None:
            place = "/".join(name for name in (lead, path) if name)
            where = f"{what}, leaf {place!r}" if place else what
            sharding = known[spec, shape] = _checked(spec, shape, mesh, where, constraint)
        result.append(sharding)
    return result


def _shape(leaf: Any) -> tuple[int, ...] | None:
    return () if type(leaf) in _NUMBERS else getattr(leaf, "shape", None)


def _checked(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh, where: str, constraint: bool) -> NamedSharding:
    if len(spec) > len(shape):
        raise ShardingError(
            f"{where}: {spec} has {len(spec)} entries, but the array of shape {shape} has {len(shape)} "
            f"dim{'s' * (len(shape) != 1)}. Give at most one entry per dim; to cut specs to the rank of each leaf, use "
            f"PolicyShardingRule(lambda path, leaf: P(*spec[:leaf.ndim]))."
        )
    used = [axis for entry in spec for axis in _axes(entry)]
    for axis in used:
        if axis not in mesh.shape:
            raise ShardingError(
                f"{where}: {spec} names axis {axis!r}; the mesh has only {', '.join(map(repr, mesh.shape))}. Use one of those."
            )
        if used.count(axis) > 1:
            raise ShardingError(f"{where}: {spec} uses axis {axis!r} {used.count(axis)} times. Keep one use.")
    for dim, (size, entry) in enumerate(zip(shape, spec, strict=False)):
        parts = math.prod(mesh.shape[axis] for axis in _axes(entry))
        if size % parts:
            message = (
                f"{where}: {spec} splits dim {dim} of an array of shape {shape} in {parts} parts, and {size} is not divisible "
                f"by {parts}."
            )
            if not constraint:
                raise ShardingError(f"{message} JAX only holds even shards: pad the dim, or split another one.")
            warnings.warn(f"{message} JAX leaves the dim whole.", ShardingWarning, stacklevel=2)
    return NamedSharding(mesh, spec)


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


@lru_cache(maxsize=256)
def same_mesh(mesh: Mesh) -> shardwright.mesh.Mesh:
    """The `sw.Mesh` with the same devices."""
    return from_jax(mesh, engine="numpy")
