"""The sharding of new arrays on the current mesh, if none is given.

Inside `with mesh:` new arrays are placed on that mesh. The default policy assigns the mesh axes, in their order, to the
dims by size, largest first (the earlier of equals). A dim shorter than the axis is skipped and the axis tries the next
dim. `auto_sharding(policy)` replaces the policy with another function of (shape, mesh).
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from shardwright.errors import ArrayError
from shardwright.mesh import Mesh, current_mesh
from shardwright.sharding import P, Sharding

Policy = Callable[[tuple[int, ...], Mesh], P]


def largest_dims(shape: tuple[int, ...], mesh: Mesh) -> P:
    """The default policy: each axis in turn splits the largest dim that is not split yet and long enough.

    >>> largest_dims((64, 128, 3), Mesh(data=2, model=4))
    P('model', 'data', None)
    >>> largest_dims((3, 3), Mesh(data=2, model=4))
    P('data', None)
    """
    entries: list[str | None] = [None] * len(shape)
    for axis, size in mesh.sizes.items():
        free = [dim for dim, entry in enumerate(entries) if entry is None and shape[dim] >= size]
        if free and size > 1:
            entries[max(free, key=lambda dim: (shape[dim], -dim))] = axis
    return P(*entries)


_policy: ContextVar[Policy] = ContextVar("policy", default=largest_dims)


@contextlib.contextmanager
def auto_sharding(policy: Policy) -> Iterator[None]:
    """Inside, new arrays without a sharding get the spec `policy(shape, mesh)`.

    >>> with Mesh(x=2), auto_sharding(lambda shape, mesh: P()):
    ...     auto_spec((8,), current_mesh())
    P()
    """
    if not callable(policy):
        raise ArrayError(
            f"auto_sharding takes a function of a shape and a mesh that returns a P; got {policy!r}. For arrays that every "
            f"device holds write auto_sharding(lambda shape, mesh: P())."
        )
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def current_policy() -> Policy:
    """The current policy."""
    return _policy.get()


def auto_spec(shape: tuple[int, ...], mesh: Mesh) -> P:
    """The spec of a new array on a mesh."""
    return _policy.get()(shape, mesh)


def sharding_for(shape: tuple[int, ...], sharding: "Sharding | P | None") -> Sharding:
    """The sharding of a new array: the given one, or the policy's, on the current mesh."""
    if isinstance(sharding, Sharding):
        return sharding
    if isinstance(sharding, Mesh):
        raise ArrayError(f"sharding= takes a P or a Sharding; got {sharding}. Write sharding=Sharding(mesh, P(…)).")
    mesh = current_mesh()
    if mesh is None:
        raise ArrayError(
            "There is no mesh to make an array on. Write `with mesh:` around it, or pass sharding=Sharding(mesh, P(…))."
        )
    return Sharding(mesh, auto_spec(shape, mesh) if sharding is None else sharding)
