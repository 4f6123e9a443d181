"""`MeshShardingHelper`: a mesh of JAX's devices, and everything that is done with rules on it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from shardwright.errors import MeshError
from shardwright.jax.batches import global_arrays
from shardwright.jax.compiling import SJITCompiledFunction
from shardwright.jax.constraints import with_sharding_annotation, with_sharding_constraint
from shardwright.jax.context import (
    MeshShardingContext,
    get_global_annotation_shardings,
    get_global_mesh,
    get_global_mesh_helper,
)
from shardwright.jax.resolving import Rule, resolved
from shardwright.jax.streaming import gather_function, shard_function


class MeshShardingHelper:
    """A mesh with named axes, and functions compiled for it with sharding rules.

    >>> helper = MeshShardingHelper([-1], ["data"])
    >>> helper.axis_dims == (jax.device_count(),)
    True

    One of `axis_dims` may be -1. `mesh_axis_splitting` lets one physical axis become several logical ones. `devices` are
    those to use, by default all; its order is JAX's choice, for fast links. Helpers can be used by several threads.
    """

    def __init__(
        self,
        axis_dims: Sequence[int],
        axis_names: Sequence[str],
        mesh_axis_splitting: bool = False,
        *,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        self.axis_names = tuple(axis_names)
        chosen = jax.devices() if devices is None else list(devices)
        self.axis_dims = _resolved_dims(tuple(axis_dims), self.axis_names, len(chosen))
        grid = mesh_utils.create_device_mesh(self.axis_dims, chosen, allow_split_physical_axes=mesh_axis_splitting)
        self._mesh = Mesh(np.asarray(grid), self.axis_names)

    def __repr__(self) -> str:
        return f"MeshShardingHelper({self.axis_dims}, {self.axis_names})"

    @property
    def mesh(self) -> Mesh:
        """The `jax.sharding.Mesh`, its axes Auto."""
        return self._mesh

    def get_context(self, **kwargs: Any) -> MeshShardingContext:
        """A context in which constraints and annotations refer to this mesh; see `MeshShardingContext`."""
        return MeshShardingContext(mesh_helper=self, **kwargs)

    get_global_mesh_helper = staticmethod(get_global_mesh_helper)
    get_global_mesh = staticmethod(get_global_mesh)
    get_global_annotation_shardings = staticmethod(get_global_annotation_shardings)
    with_sharding_constraint = staticmethod(with_sharding_constraint)
    with_sharding_annotation = staticmethod(with_sharding_annotation)

    def sjit(
        self,
        fun: Callable[..., Any],
        in_shardings: Rule = None,
        out_shardings: Rule = None,
        static_argnums: int | Sequence[int] | None = None,
        args_sharding_constraint: Rule = None,
        annotation_shardings: dict[str, Rule] | None = None,
        **kwargs: Any,
    ) -> SJITCompiledFunction:
        """A function compiled by `jax.jit`, with shardings by rules, specs, or trees of them; None leaves them to XLA.

        `in_shardings` and `args_sharding_constraint` have an entry for each argument that is not static; the former is
        the sharding that arguments come in with, the latter the one that they get once the function begins.
        `annotation_shardings` gives names in `with_sharding_annotation` a meaning. Everything else is an option of `jax.jit`.
        """
        here = self.get_context(annotation_shardings=annotation_shardings)
        options = {"static_argnums": static_argnums, **kwargs}
        return SJITCompiledFunction(fun, here, in_shardings, out_shardings, args_sharding_constraint, options)

    def match_sharding_rule(self, sharding_rules: Rule, pytree: Any) -> Any:
        """The pytree of NamedShardings that rules, specs, or a tree of them give for a pytree; None where they give none."""
        found = resolved(sharding_rules, pytree, self.mesh, "match_sharding_rule")
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(pytree), found)

    def make_shard_and_gather_fns(self, pytree: Any, sharding_rule: Rule) -> tuple[Any, Any]:
        """Two pytrees of functions, that put each leaf on the mesh as a rule says, and that bring it to the host.

        Leaves move one at a time and part by part, so that a tree of host arrays never has a second full copy.
        """
        found = resolved(sharding_rule, pytree, self.mesh, "make_shard_and_gather_fns")
        structure = jax.tree_util.tree_structure(pytree)
        shard_fns = jax.tree_util.tree_unflatten(structure, map(shard_function, found))
        return shard_fns, jax.tree_util.tree_unflatten(structure, map(gather_function, found))

    @classmethod
    def apply_shard_and_gather_fns(cls, fns: Any, pytree: Any) -> Any:
        """A pytree with each function applied to its leaf."""
        return jax.tree_util.tree_map(lambda fn, leaf: fn(leaf), fns, pytree)

    def local_data_to_global_array(
        self, pytree: Any, batch_axis: int = 0, mesh_axis_subset: str | Sequence[str] | None = None
    ) -> Any:
        """A pytree of global arrays from the rows that each process has: its own part of the batch, as many on each.

        The parts follow one another along `batch_axis` in the order of the processes, and are split over the axes in
        `mesh_axis_subset`, by default all. What a process's devices hold of its own rows is not communicated.
        """
        subset = self.axis_names if mesh_axis_subset is None else mesh_axis_subset
        return global_arrays(pytree, self.mesh, batch_axis, (subset,) if isinstance(subset, str) else tuple(subset))


def _resolved_dims(dims: tuple[int, ...], names: tuple[str, ...], devices: int) -> tuple[int, ...]:
    """The sizes of the axes, -1 replaced by what is left of the devices."""
    if len(dims) != len(names):
        raise MeshError(
            f"axis_dims {dims} has {len(dims)} entries and axis_names {names} has {len(names)}: give as many."
        )
    if dims.count(-1) > 1 or any(size < 1 and size != -1 for size in dims):
        raise MeshError(f"axis_dims {dims}: sizes are positive, and one may be -1, for all devices that are left.")
    rest = math.prod(size for size in dims if size != -1)
    sizes = tuple(devices // rest if size == -1 else size for size in dims)
    if math.prod(sizes) != devices:
        raise MeshError(
            f"axis_dims {dims} needs {'a multiple of ' if -1 in dims else ''}{rest} devices, but there are {devices}. Change "
            f"the sizes, or name the devices to use: devices=jax.devices()[:n]."
        )
    return sizes
