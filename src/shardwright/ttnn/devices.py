"""Mesh devices on a system of virtual chips: opening, submeshes, closing."""

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from shardwright.hardware import presets
from shardwright.mesh import Mesh
from shardwright.ttnn.errors import bounded, fatal
from shardwright.ttnn.record import Record

SYSTEMS = {"n150": (1, 1), "n300": (1, 2), "t3k": (2, 4), "galaxy": (8, 4)}
DRAM_VIEWS = 12  # of a Wormhole chip
DRAM_BYTES, L1_BYTES = 12 * 2**30, 64 * 1464 * 1024  # of a chip: 12 views of 1 GiB; 64 cores of 1464 KiB


class MeshShape:
    """The sizes of a mesh: `MeshShape(1, 2)`, `MeshShape([2, 4])`.

    >>> MeshShape(1, 2), MeshShape([2, 4]).mesh_size()
    (MeshShape([1, 2]), 8)
    """

    def __init__(self, *sizes: Any) -> None:
        given = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        numbers = tuple(given) if isinstance(given, Iterable) else (given,)
        if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in numbers):
            shown = ", ".join(map(repr, sizes))
            raise fatal(f"{type(self).__name__}({shown}) is not made of integers", "Give one integer per mesh axis.")
        self.sizes = tuple(map(int, numbers))

    def dims(self) -> int:
        """The number of mesh axes."""
        return len(self.sizes)

    def mesh_size(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, at: int) -> int:
        return self.sizes[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshShape | tuple | list) and tuple(other) == self.sizes

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.sizes)})"


class MeshCoordinate(MeshShape):
    """The coordinates of a device in a mesh."""


class MeshType(Enum):
    """How devices along an axis are connected; it sets the links, never the results."""

    Ring = "ring"
    Line = "line"


class FabricConfig(Enum):
    """The connection between the chips of the system."""

    DISABLED = "all_to_all"
    FABRIC_1D = "line"
    FABRIC_1D_RING = "ring"
    FABRIC_2D = "torus"


@dataclass(frozen=True, order=True)
class CoreCoord:
    """The position of a core, or the number of cores, along x and y."""

    x: int
    y: int


@dataclass(frozen=True)
class CoreGrid:
    """A grid of cores."""

    y: int
    x: int

    @property
    def num_cores(self) -> int:
        """The number of cores."""
        return self.x * self.y


@dataclass
class _System:
    shape: tuple[int, ...] = SYSTEMS["t3k"]
    hardware: str = "t3k"
    link: str = "ring"
    opened: list[Any] = field(default_factory=list)


_system = _System()


def set_system(system: str | Sequence[int]) -> None:
    """Sets the chips of the system: "n150", "n300", "t3k" (the default), "galaxy", or a shape."""
    if isinstance(system, str) and system not in SYSTEMS:
        raise fatal(f"The system {system!r} is unknown", f"Use one of {', '.join(SYSTEMS)}, or a shape.")
    shape = SYSTEMS[system] if isinstance(system, str) else tuple(int(n) for n in system)
    if not shape or min(shape) < 1:
        raise fatal(f"A system of shape {MeshShape(shape)} has no chips", "Give sizes of at least 1.")
    _system.shape = shape
    _system.hardware = system if isinstance(system, str) else "t3k" if math.prod(shape) <= 8 else "galaxy"


def get_num_devices() -> int:
    """The number of chips of the system."""
    return math.prod(_system.shape)


def set_fabric_config(config: FabricConfig, *args: Any, **options: Any) -> None:
    """Sets the connection between chips, for meshes opened later."""
    _system.link = config.value


class MeshDevice:
    """A grid of chips, or a part of one, that holds tensors. Made by `open_mesh_device`."""

    def __init__(self, mesh: Mesh, parent: "MeshDevice | None" = None, base: "MeshDevice | None" = None) -> None:
        self.mesh = mesh
        self.parent = parent
        self.queues: int = 1 if parent is None else parent.queues
        self._base = base
        self._closed = False
        self._children: list[weakref.ref[MeshDevice]] = []
        self.synchronized = True
        self.busy: set[int] = set()  # the command queues in use
        self.records = [Record()]  # the first is of everything since opening
        self.tensors: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def base(self) -> "MeshDevice":
        """The mesh that this is a view of, which has the tensors and the state; usually the mesh itself."""
        return self if self._base is None else self._base

    @property
    def closed(self) -> bool:
        """Whether the mesh is closed. Submeshes are closed one by one."""
        return self.base._closed

    def enqueue(self, queue: int | None = None) -> None:
        """Notes a command on a queue, by default the first."""
        self.base.busy.add(queue or 0)

    def parents(self) -> Iterator["MeshDevice"]:
        """The mesh that this is a submesh of, that mesh's parent, and so on."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.parents()

    def family(self) -> Iterator["MeshDevice"]:
        """This mesh and the submeshes of it and of its submeshes, closed or not."""
        yield self
        for child in (reference() for reference in self._children):
            if child is not None:
                yield from child.family()

    def view(self, shape: tuple[int, ...], offset: tuple[int, ...] | None = None) -> "MeshDevice":
        """A part of the mesh, or its chips in another shape; not a submesh: its tensors belong to this mesh."""
        if len(shape) == len(self.mesh.shape) and all(a <= b for a, b in zip(shape, self.mesh.shape, strict=True)):
            mesh = self.mesh.submesh(shape, offset or (0,) * len(shape))
        else:
            mesh = _mesh(shape, self.get_device_ids()[: math.prod(shape)], _kind(self.mesh))
        return MeshDevice(mesh, self.parent, self.base)

    @property
    def shape(self) -> MeshShape:
        """The shape of the mesh."""
        return MeshShape(self.mesh.shape)

    @property
    def core_grid(self) -> CoreGrid:
        """The cores of one chip."""
        return CoreGrid(y=8, x=8)

    def compute_with_storage_grid_size(self) -> CoreCoord:
        """The cores of one chip that compute and store."""
        return CoreCoord(8, 8)

    def dram_grid_size(self) -> CoreCoord:
        """The DRAM views of one chip."""
        return CoreCoord(DRAM_VIEWS, 1)

    def get_num_devices(self) -> int:
        """The number of chips of the mesh."""
        return self.mesh.size

    def get_device_ids(self) -> list[int]:
        """The ids of its chips, row by row."""
        return list(self.mesh.device_ids)

    @bounded
    def get_device_id(self, coord: Sequence[int]) -> int:
        """The id of the chip at these coordinates."""
        return self.mesh.index(tuple(coord))

    def id(self) -> int:
        """A unique number."""
        return id(self)

    def get_submeshes(self) -> list["MeshDevice"]:
        """The open submeshes."""
        found = (child() for child in self.base._children)
        return [child for child in found if child is not None and not child.closed]

    def create_submesh(self, shape: Any, offset: Any = None) -> "MeshDevice":
        """A rectangle of this mesh; a view of the same chips."""
        size, start = tuple(shape), tuple(offset) if offset is not None else (0,) * len(tuple(shape))
        own = self.mesh.shape
        if len(size) != len(own) or len(start) != len(own):
            raise fatal(
                f"Submesh shape {MeshShape(size)} and mesh shape {self.shape} must have the same number of dimensions.",
                f"Give {len(own)} sizes.",
            )
        if any(n < 1 for n in size):
            raise fatal(
                f"Invalid submesh shape: ({', '.join(map(str, size))}). All dimensions must be positive.",
                "Give sizes of at least 1.",
            )
        if any(a + n > full or a < 0 for a, n, full in zip(start, size, own, strict=True)):
            raise fatal(
                f"Submesh shape {MeshShape(size)} and offset {MeshCoordinate(start)} does not fit within parent mesh "
                f"({', '.join(map(str, own))}).",
                "Make it smaller, or begin it earlier.",
            )
        return self._child(self.mesh.submesh(size, start))

    def create_submeshes(self, shape: Any) -> list["MeshDevice"]:
        """The mesh tiled by submeshes of a shape, row by row."""
        size = tuple(shape)
        if len(size) != len(self.mesh.shape):
            raise fatal(
                f"Submesh shape {MeshShape(size)} and mesh shape {self.shape} must have the same number of dimensions.",
                f"Give {len(self.mesh.shape)} sizes.",
            )
        for dim, (full, n) in enumerate(zip(self.mesh.shape, size, strict=True)):
            if n < 1 or full % n:
                raise fatal(
                    f"Shape {self.shape} is not divisible by submesh shape {MeshShape(size)} along dimension {dim}",
                    f"Choose a size that divides {full}.",
                )
        return [self._child(part) for part in self.mesh.submeshes(size)]

    def _child(self, mesh: Mesh) -> "MeshDevice":
        self.check_open("create a submesh of")
        child = MeshDevice(mesh, self.base)
        self.base._children.append(weakref.ref(child))
        return child

    def reshape(self, new_shape: Any) -> None:
        """The same chips in another grid, in place."""
        size = tuple(new_shape)
        if math.prod(size) != self.mesh.size or min(size) < 1:
            raise fatal(
                "New shape must have the same number of devices as current shape",
                f"{MeshShape(size)} has {math.prod(size)}, the mesh {self.mesh.size}.",
            )
        self.mesh = _mesh(size, self.get_device_ids(), _kind(self.mesh))

    def quiesce_devices(self) -> None:
        """Waits until all chips are done; the command queues of the mesh and of its submeshes are then free."""
        for device in self.base.family():
            device.synchronized = True
            device.busy.clear()

    def check_open(self, what: str) -> None:
        """Raises an error if the mesh is closed."""
        if self.closed:
            raise fatal(f"Can't {what} a mesh device that is closed", "Do it before ttnn.close_mesh_device(…).")

    def __repr__(self) -> str:
        return f"MeshDevice({'x'.join(map(str, self.mesh.shape))} grid, {self.mesh.size} devices)"


def _kind(mesh: Mesh) -> str:
    return next(iter(mesh.links.values())).kind


def _mesh(shape: Sequence[int], ids: Sequence[int], link: str) -> Mesh:
    names = [f"m{i}" for i in range(len(shape))]
    wires = replace(presets()[_system.hardware].levels[0].link, kind=link)
    return Mesh(dict(zip(names, shape, strict=True)), devices=list(ids), hardware=_system.hardware, links=wires)


@bounded
def open_mesh_device(
    mesh_shape: Any = None,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: Any = None,
    offset: Any = None,
    physical_device_ids: Sequence[int] = (),
    worker_l1_size: int = 0,
    mesh_type: MeshType | None = None,
) -> MeshDevice:
    """Opens a mesh of a given shape, or of all chips of the system.

    >>> device = open_mesh_device(MeshShape(1, 2))
    >>> device, device.get_device_ids()
    (MeshDevice(1x2 grid, 2 devices), [0, 1])
    >>> close_mesh_device(device)
    """
    system = _system.shape
    total = math.prod(system)
    if mesh_shape is None and len(physical_device_ids):
        raise fatal("Mesh shape must be provided when physical device ids are supplied", "Give mesh_shape= too.")
    shape = tuple(system if mesh_shape is None else mesh_shape)
    needed = math.prod(shape)
    if not shape or min(shape) < 1:
        raise fatal(f"Requested mesh shape {MeshShape(shape)} has no devices", "Give sizes of at least 1.")
    wrong = [i for i in physical_device_ids if not 0 <= i < total]
    if wrong:
        raise fatal(f"Physical device ids {wrong} are not in the system", f"Its {total} chips are 0 to {total - 1}.")
    if needed > total:
        raise fatal(
            f"Requested mesh shape {MeshShape(shape)} requires {needed} devices, but only {total} devices are available in the "
            f"system mesh {MeshShape(system)}.",
            "Ask for fewer, or choose a larger system with ttnn.set_system(…).",
        )
    ids = (
        _chips(shape, tuple(offset) if offset is not None else None)
        if not len(physical_device_ids)
        else list(physical_device_ids)
    )
    device = MeshDevice(_mesh(shape, ids, mesh_type.value if mesh_type is not None else _system.link))
    device.queues = num_command_queues
    _system.opened.append(device)
    return device


def _chips(shape: tuple[int, ...], offset: tuple[int, ...] | None) -> list[int]:
    """The ids of a rectangle of the system, rotated if necessary; for a line or another shape the first ids."""
    system = _system.shape
    start = offset or (0,) * len(shape)
    table = Mesh({f"m{i}": n for i, n in enumerate(system)}).ids()
    if len(shape) == len(system):
        for size, turned in ((shape, False), (shape[::-1], True)):
            if all(a >= 0 and a + n <= full for a, n, full in zip(start, size, system, strict=True)):
                part = table[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
                return [int(i) for i in (part.T if turned else part).ravel()]
        if 1 not in shape or offset is not None:
            raise fatal(
                f"Requested mesh is too big and is not rotatable: {MeshShape(shape)} at {list(start)} on the system "
                f"{MeshShape(system)}",
                "Ask for a shape that fits there, or for one row without an offset.",
            )
    elif offset is not None:
        raise fatal(
            f"The offset {list(start)} has another rank than the system {MeshShape(system)}",
            "Give a shape and an offset of that rank.",
        )
    return [int(i) for i in table.ravel()[: math.prod(shape)]]


def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Closes a mesh. Its submeshes stay open, with their tensors.

    A mesh can't be closed while it and a parent or a submesh use the same command queue: call `quiesce_devices` first.
    """
    device = mesh_device.base
    _, *submeshes = device.family()
    relatives = [("parent mesh", parent) for parent in device.parents()]
    relatives += [("child submesh", submesh) for submesh in submeshes]
    for kind, other in relatives:
        shared = device.busy & other.busy
        if shared:
            raise fatal(
                f"MeshDevice cq ID {min(shared)} is in use by {kind} ID {other.id()} during close of mesh ID {device.id()}",
                "Call quiesce_devices() of the parent mesh before closing.",
            )
    device._closed = True
    device.busy.clear()
    device.tensors.clear()
    if device in _system.opened:
        _system.opened.remove(device)


@contextlib.contextmanager
def create_mesh_device(*args: Any, **options: Any) -> Iterator[MeshDevice]:
    """A mesh that is open during a `with` block."""
    device = open_mesh_device(*args, **options)
    try:
        yield device
    finally:
        close_mesh_device(device)


def synchronize_device(device: MeshDevice) -> None:
    """Waits until a mesh is done."""
    device.check_open("synchronize")
    device.base.synchronized = True
    device.base.busy.update(range(device.base.queues))  # waiting is a command on every queue


synchronize_mesh_device = synchronize_device


def the_mesh(given: MeshDevice | None, what: str) -> MeshDevice:
    """The given mesh, or the only open mesh."""
    if given is not None:
        given.check_open(f"use {what} on")
        return given
    if len(_system.opened) != 1:
        raise fatal(
            f"{what} without a mesh device needs exactly one open mesh; {len(_system.opened)} are open",
            "Pass the mesh device.",
        )
    only: MeshDevice = _system.opened[0]
    return only
