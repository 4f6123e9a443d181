"""Partial values: which reductions accept which dtypes, and what stays partial when a sharding changes."""

from typing import Any

import numpy as np

from shardwright.errors import ShardingError, ShardwrightError
from shardwright.mesh import overlap
from shardwright.sharding.reductions import REDUCTIONS
from shardwright.sharding.sharding import Sharding


def check_partial(sharding: Sharding, dtype: "np.dtype[Any]", error: type[ShardwrightError] = ShardingError) -> None:
    """Raises an error if the sharding's reduction does not accept a dtype."""
    if sharding.partial and not REDUCTIONS[sharding.reduction].accepts(dtype):
        raise error(
            f"{sharding} has a pending {sharding.reduction}, which works on the bits of integers and booleans; "
            f"{dtype.name} is neither. Choose another reduction, or convert the tensor."
        )


def truncates(reduction: str, dtype: "np.dtype[Any] | None") -> bool:
    """Whether a reduction needs a single step: integer averages truncate, so averages of averages differ."""
    return reduction == "average" and dtype is not None and dtype.kind in "biu"


def kept_partial(source: Sharding, target: Sharding, dtype: "np.dtype[Any] | None" = None) -> tuple[str, ...]:
    """The partial axes (or pieces of them) that are partial in both the source and the target."""
    mesh = source.mesh
    if mesh != target.mesh or source.reduction != target.reduction or not source.partial:
        return ()
    if truncates(source.reduction, dtype) and source.partial != target.partial:
        return ()
    if not mesh.share_a_cut((*source.partial, *target.partial)):
        return ()
    shared = [a for a in source.partial if any(overlap(mesh.axis(a), mesh.axis(b)) for b in target.partial)]
    pieces = mesh.cut(tuple(shared), by=target.partial)
    return tuple(axis for axis in pieces if axis in mesh.cut(target.partial, by=source.partial))
