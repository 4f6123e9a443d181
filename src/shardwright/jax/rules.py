"""Sharding rules on JAX's pytrees: the rules of `shardwright.rules`, whose `apply` gives `jax.sharding.PartitionSpec`s."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardwright import rules as core
from shardwright.errors import ShardingError, ShardingWarning
from shardwright.jax.paths import leaves_with_paths
from shardwright.mesh import Mesh
from shardwright.sharding import P
from shardwright.trees import flatten

_spec: Any = PartitionSpec
_NUMBERS = (bool, int, float, complex)  # scalars to JAX


class ShardingRule(core.ShardingRule):
    """Chooses PartitionSpecs for a pytree: a subclass defines `apply(pytree)`, or `spec(path, leaf, mesh)` for one leaf.

    >>> class LastDim(ShardingRule):
    ...     def apply(self, pytree):
    ...         return jax.tree.map(lambda x: PartitionSpec(*[None] * (x.ndim - 1), "x"), pytree)
    """

    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        if not _has_own_apply(self):
            raise NotImplementedError(
                f"{type(self).__name__} defines neither apply(pytree) nor spec(path, leaf, mesh)."
            )
        (found,) = specs_of(self, leaf, mesh)
        return P() if found is None else P(*found), "chosen by apply"

    def apply(self, tree: Any, mesh: Mesh | None = None) -> Any:
        """A pytree of PartitionSpecs; None for leaves that are not arrays or numbers."""
        structure = jax.tree_util.tree_structure(tree)
        return jax.tree_util.tree_unflatten(structure, specs_of(self, tree, mesh))

    def specs(self, tree: Any, mesh: Mesh | None = None) -> list[P | None]:
        """The specs as `P`, in the order of shardwright's trees: for `sw.sjit` and the like."""
        if not _has_own_apply(self):
            return super().specs(tree, mesh)
        found = flatten(self.apply(tree))[0]
        return [None if spec is None else P(*spec) for spec in found]


class FSDPShardingRule(core.FSDPShardingRule, ShardingRule):
    """Splits large float tensors along one dim, the largest that the axis divides, and replicates the others.

    >>> FSDPShardingRule(fsdp_axis_size=4, min_fsdp_size=8).apply({"w": jax.numpy.ones((6, 8))})
    {'w': P(None, 'fsdp')}

    Without `fsdp_axis_size` the size of the mesh's axis is used where there is a mesh; `apply` alone has none, and splits
    the dim with the largest power of two as a divisor.
    """

    def divisor(self, mesh: Mesh | None) -> int | None:
        if mesh is None or self.fsdp_axis_size is not None:
            return self.fsdp_axis_size
        return mesh.sizes[self.fsdp_axis_name]


class TreePathShardingRule(core.TreePathShardingRule, ShardingRule):
    """The first pattern found in a leaf's path gives its spec; scalars and single elements are replicated.

    >>> rule = TreePathShardingRule(("kernel", PartitionSpec(None, "x")), ("bias", P()))
    >>> rule.apply({"kernel": jax.numpy.ones((2, 2)), "bias": jax.numpy.ones(2)})
    {'bias': P(), 'kernel': P(None, 'x')}

    A leaf that no pattern matches is an error unless `strict=False`. A pattern that no path has gives a ShardingWarning,
    once; `warnings.filterwarnings("ignore", category=ShardingWarning)` allows such patterns.
    """

    def __init__(self, *rules: Any, strict: bool = True) -> None:
        super().__init__(*rules, strict=strict)
        self._warned: set[str] = set()

    def unused(self, pattern: str, paths: Sequence[str]) -> None:
        if paths and pattern not in self._warned:
            self._warned.add(pattern)
            warnings.warn(
                f"The pattern {pattern!r} matches no leaf; one of the paths is {paths[0]!r}. Correct or remove it.",
                ShardingWarning,
                stacklevel=2,
            )


class PolicyShardingRule(core.PolicyShardingRule, ShardingRule):
    """A function of path and leaf gives the PartitionSpec of each leaf, scalars included."""


def specs_of(rule: core.ShardingRule, tree: Any, mesh: Mesh | None) -> list[PartitionSpec | None]:
    """The PartitionSpec that a rule gives each leaf of a pytree; None for leaves that are neither arrays nor numbers."""
    if _has_own_apply(rule):
        return _spread(rule.apply(tree), tree, rule)
    paths, leaves = leaves_with_paths(tree)
    arrays = [jax.typeof(leaf) if type(leaf) in _NUMBERS else leaf for leaf in leaves]
    known: dict[int, PartitionSpec | None] = {}
    specs = rule.specs_of(paths, arrays, mesh)  # kept: ids below are theirs
    for spec in specs:
        if id(spec) not in known:
            known[id(spec)] = None if spec is None else partition_spec(spec)
    return [known[id(spec)] for spec in specs]


def is_spec(value: Any) -> bool:
    """Whether a value is a spec: JAX's PartitionSpec or shardwright's `P`."""
    return isinstance(value, PartitionSpec | P)


def partition_spec(spec: Any) -> PartitionSpec:
    """JAX's PartitionSpec for either kind of spec.

    >>> partition_spec(P("x", None, ("y", "z")))
    P('x', None, ('y', 'z'))
    """
    if isinstance(spec, PartitionSpec):
        return spec
    if not isinstance(spec, P):
        raise ShardingError(f"A rule gave {spec!r}, which is not a spec. Give a jax.P, a sw.P, or None.")
    for axis in (axis for axes in spec for axis in axes):
        if ":" in axis:
            raise ShardingError(
                f"{spec} has the sub-axis {axis!r}, and JAX's specs only name whole axes. Make a mesh in which it is an "
                f"axis of its own."
            )
    return _spec(*(axes[0] if len(axes) == 1 else axes or None for axes in spec))


def _has_own_apply(rule: core.ShardingRule) -> bool:
    """Whether a rule's class, outside of shardwright, defines `apply`."""
    return type(rule).apply not in (core.ShardingRule.apply, ShardingRule.apply)


def _spread(specs: Any, tree: Any, rule: core.ShardingRule) -> list[PartitionSpec | None]:
    """A tree of specs, or a prefix of one, as a list with one for each leaf."""
    structure: Any
    entries, structure = jax.tree_util.tree_flatten(specs, is_leaf=lambda node: node is None or is_spec(node))
    try:
        parts = structure.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise ShardingError(
            f"{type(rule).__name__}.apply gave a tree of another structure than its argument's: {error}"
        ) from error
    result: list[PartitionSpec | None] = []
    for entry, part in zip(entries, parts, strict=True):
        result += [None if entry is None else partition_spec(entry)] * len(jax.tree_util.tree_leaves(part))
    return result
