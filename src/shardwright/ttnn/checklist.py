"""The multi-device checklist as a tool: tensors placed and read are judged, and a run is reported with its lines of code."""

import warnings
from collections.abc import Iterable
from typing import Any

from shardwright.eager import source_line, user_depth
from shardwright.sharding import Sharding
from shardwright.ttnn.devices import MeshDevice, MeshShape
from shardwright.ttnn.errors import TtnnWarning, fatal
from shardwright.ttnn.mapping import Composer, ListMeshToTensor, placements
from shardwright.ttnn.record import (
    BATCH,
    CLOSED,
    INPUTS,
    OPERANDS,
    OUTPUTS,
    SHAPE,
    SYNCHRONIZED,
    WEIGHTS,
    Point,
    Record,
)


class Checklist:
    """The points of the multi-device guide, and an eighth: no operation on host tensors.

    It reports everything since the mesh was opened, or the run inside a `with` block; `shape` is the expected mesh shape.
    The list is for data parallelism: replicated tensors are weights, sharded tensors are inputs. A tensor-parallel run
    breaks points two to four on purpose.
    """

    def __init__(self, mesh_device: MeshDevice, shape: Any = None) -> None:
        if not isinstance(mesh_device, MeshDevice):
            raise fatal(
                f"check takes a mesh device; got a {type(mesh_device).__name__}", "Give ttnn.check(mesh_device)."
            )
        self.device = mesh_device.base
        self.shape = None if shape is None else tuple(MeshShape(shape))
        self._record = self.device.records[0]
        self._final: list[Point] | None = None

    def __enter__(self) -> "Checklist":
        self._record, self._final = Record(), None
        self.device.records.append(self._record)
        return self

    def __exit__(self, *error: object) -> None:
        self.device.records.remove(self._record)
        self._final = self.points

    @property
    def points(self) -> list[Point]:
        """The points as they are now; those of a `with` block as they were at its end."""
        if self._final is not None:
            return self._final
        now = Record()
        now.points = list(self._record.points)
        now.say(SHAPE, self.shape in (None, tuple(self.device.shape)), f"{self.device.shape}")
        for at, why in (
            (WEIGHTS, "no tensor was replicated"),
            (INPUTS, "no tensor was sharded"),
            (OUTPUTS, "nothing was read back"),
        ):
            if now.points[at].kept is None:
                now.say(at, False, why)
        closed = self.device.closed
        now.say(CLOSED, closed, "closed" if closed else "still open: ttnn.close_mesh_device(mesh_device)")
        now.say(OPERANDS, True, "")
        return now.points

    @property
    def kept(self) -> bool:
        """Whether every point was kept."""
        return all(point.kept for point in self.points)

    def __str__(self) -> str:
        return "\n".join(map(str, self.points))


def check(mesh_device: MeshDevice, shape: Any = None) -> Checklist:
    """The checklist of what has run on a mesh: `print(ttnn.check(mesh_device))`.

    `with ttnn.check(mesh_device) as found: …`, then `print(found)`, reports the block alone.
    """
    return Checklist(mesh_device, shape)


# -- what runs is judged ----------------------------------------------------------------------------------------------


def placed(device: MeshDevice, sharding: Sharding, shape: tuple[int, ...]) -> None:
    """Judges a tensor that was put on a mesh, or cut for it."""
    split = [dim for dim, axes in enumerate(sharding.dims) if axes]
    if not split:
        _say(device, WEIGHTS, True, f"{list(shape)} on every device")
        return
    _say(device, INPUTS, split == [0], f"dim {', '.join(map(str, split))} of {list(shape)} is split")
    count, devices = shape[split[0]], sharding.parts(split[0])
    even = count % devices == 0
    _say(device, BATCH, even, f"{count} over {devices} devices" + ("" if even else ": pad it with ttnn.pad_batch"))


_COMPOSER = "Pass mesh_composer=, such as ttnn.ConcatMeshToTensor(mesh_device, dim=0)."


def was_read(device: MeshDevice, sharding: Sharding | None, size: int, composer: Composer | None, fits: bool) -> None:
    """Judges a tensor on `size` devices that was read by a composer; `fits` says whether that inverts its sharding."""
    ready = device.synchronized
    _say(device, SYNCHRONIZED, ready, "" if ready else "ttnn.synchronize_device comes first")
    if sharding is not None and sharding.partial:
        _say(device, OUTPUTS, False, "devices hold partial sums that were not reduced")
    elif size == 1 or isinstance(composer, ListMeshToTensor):
        _say(device, OUTPUTS, True, "every device's tensor")
    elif composer is None:
        refused([device], OUTPUTS, "to_torch without a composer, of a tensor on several devices", _COMPOSER)
    elif sharding is None:
        _say(device, OUTPUTS, False, "what the devices hold is no longer the shards of one tensor")
    else:
        name = type(composer).__name__
        _say(device, OUTPUTS, fits, name if fits else f"{name} for {placements(sharding)}")


def refused(devices: Iterable[MeshDevice | None], at: int, what: str, advice: str) -> None:
    """Says, in a warning and on the checklists of devices, that a call works here and that the hardware refuses it."""
    text = f"{what}: the hardware refuses it"
    for device in devices:
        if device is not None:
            _say(device, at, False, text)
    warnings.warn(f"{text}. {advice}", TtnnWarning, stacklevel=user_depth())


def _say(device: MeshDevice, at: int, kept: bool, why: str) -> None:
    for record in device.records:
        record.say(at, kept, why, source_line())
