"""The multi-device checklist as a tool: it watches a run and reports its seven points, with the line of code."""

from dataclasses import dataclass
from typing import Any

from shardwright.ttnn.devices import MeshDevice
from shardwright.ttnn.mapping import ListMeshToTensor
from shardwright.ttnn.tensors import Tensor, undoes
from shardwright.ttnn.watch import watchers

POINTS = (
    "mesh device opened with the right shape",
    "weights replicated to all devices",
    "inputs sharded along the batch",
    "batch divisible by the devices",
    "outputs gathered with a matching composer",
    "all devices synchronized before results are read",
    "mesh device closed",
)


@dataclass
class Point:
    """One point of the list: True if kept, False if broken, None if the run did not reach it."""

    name: str
    kept: bool | None = None
    why: str = ""
    line: str = ""

    def __str__(self) -> str:
        mark = {True: "[x]", False: "[!]", None: "[ ]"}[self.kept]
        return f"{mark} {self.name}{f': {self.why}' if self.why else ''}{f' ({self.line})' if self.line else ''}"


class Checklist:
    """Watches a mesh during a `with` block; `shape` is the expected mesh shape.

    The list is for data parallelism: replicated tensors are weights, sharded tensors are inputs. A tensor-parallel run
    breaks points two to four on purpose.
    """

    def __init__(self, mesh_device: MeshDevice, shape: Any = None) -> None:
        self.device = mesh_device
        self.points = [Point(name) for name in POINTS]
        wanted = tuple(shape) if shape is not None else None
        self._say(0, wanted in (None, tuple(mesh_device.shape)), f"{mesh_device.shape}")

    def __enter__(self) -> "Checklist":
        watchers.append(self._watch)
        return self

    def __exit__(self, *error: object) -> None:
        watchers.remove(self._watch)
        self.finish()

    def finish(self) -> "Checklist":
        """Checks the points that are only known at the end."""
        for at, why in ((1, "no tensor was replicated"), (2, "no tensor was sharded"), (4, "nothing was read back")):
            if self.points[at].kept is None:
                self._say(at, False, why)
        self._say(
            6, self.device.closed, "closed" if self.device.closed else "still open: ttnn.close_mesh_device(mesh_device)"
        )
        return self

    def _say(self, at: int, kept: bool, why: str, line: str = "") -> None:
        point = self.points[at]
        if point.kept is not False:  # a broken point stays broken
            point.kept, point.why, point.line = kept, why, line

    def _watch(self, what: str, subject: Any, line: str, details: dict[str, Any]) -> None:
        if not isinstance(subject, Tensor) or subject.mesh.size != self.device.mesh.size:
            return
        if what == "from_torch" or (what == "to_device" and subject.sharding is not None):
            self._placed(subject, line)
        elif what == "to_torch":
            self._read(subject, details.get("composer"), line)

    def _placed(self, tensor: Tensor, line: str) -> None:
        self.device.synchronized = False
        sharding = tensor.sharding
        assert sharding is not None
        split = [dim for dim, axes in enumerate(sharding.dims) if axes]
        if not split:
            self._say(1, True, f"{list(tensor.global_shape)} on every device", line)
            return
        self._say(2, split == [0], f"dim {', '.join(map(str, split))} of {list(tensor.global_shape)} is split", line)
        count, devices = tensor.global_shape[split[0]], sharding.parts(split[0])
        even = count % devices == 0
        self._say(3, even, f"{count} over {devices} devices" + ("" if even else ": pad it with ttnn.pad_batch"), line)

    def _read(self, tensor: Tensor, composer: Any, line: str) -> None:
        self._say(
            5, self.device.synchronized, "" if self.device.synchronized else "ttnn.synchronize_device comes first", line
        )
        if tensor.sharding is not None and tensor.sharding.partial:
            self._say(4, False, "devices hold partial sums that were not reduced", line)
        elif composer is None or isinstance(composer, ListMeshToTensor):
            self._say(4, True, "every device's tensor" if composer else "by its sharding", line)
        elif tensor.sharding is None:
            self._say(4, False, "what the devices hold is no longer the shards of one tensor", line)
        else:
            fits = undoes(composer, tensor, composer.places(tensor.mesh.shape, len(tensor.shape)))
            placed = tensor.tensor_topology().placements()
            self._say(4, fits, type(composer).__name__ if fits else f"{type(composer).__name__} for {placed}", line)

    @property
    def kept(self) -> bool:
        """Whether every point was kept."""
        return all(point.kept for point in self.points)

    def __str__(self) -> str:
        return "\n".join(map(str, self.points))


def check(mesh_device: MeshDevice, shape: Any = None) -> Checklist:
    """The checklist for a mesh: `with ttnn.check(mesh_device) as list: …`, then `print(list)`."""
    return Checklist(mesh_device, shape)
