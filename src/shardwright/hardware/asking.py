"""`time`: what a collective costs on the links of a mesh, asked directly."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shardwright.errors import MeshError
from shardwright.hardware.checks import as_number
from shardwright.hardware.fabric import COLLECTIVES, Fabric


@runtime_checkable
class Connected(Protocol):
    """What has links along its axes: a Mesh."""

    def fabric(self, axes: Sequence[str]) -> Fabric: ...
    def group_axes(self, axes: str | Sequence[str]) -> tuple[str, ...]: ...


def received_bytes(collective: str, nbytes: float, members: int) -> float:
    """Bytes that a device receives, from what people call the size of a collective.

    That is of all_gather the gathered tensor; of all_reduce, reduce_scatter, all_to_all and broadcast what one device starts
    with; of permute and exchange what one device receives.
    """
    share = (members - 1) / members
    return nbytes * {"all_reduce": 2 * share, "broadcast": 1.0, "permute": 1.0, "exchange": 1.0}.get(collective, share)


def time(collective: str, nbytes: float, mesh: Connected, axes: str | Sequence[str]) -> float:
    """Seconds that a collective takes along axes of a mesh.

    `nbytes` is of all_gather the gathered tensor; of all_reduce, reduce_scatter, all_to_all and broadcast what one device
    starts with; of permute (to the next device) and exchange what one device receives.
    """
    if collective not in COLLECTIVES:
        raise MeshError(f"The collective {collective!r} is unknown. Use one of {', '.join(COLLECTIVES)}.")
    size = as_number(nbytes, f"The number of bytes of {collective}")
    if not isinstance(mesh, Connected) or isinstance(mesh, type):
        raise MeshError(f"{collective} runs on a Mesh, such as Mesh(a=4, hardware='h100'); got {mesh!r}.")
    fabric = mesh.fabric(mesh.group_axes(axes))
    return fabric.seconds(collective, received_bytes(collective, size, fabric.size))
