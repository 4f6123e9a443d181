"""What every engine offers: it holds the shards of tensors and runs local computations and steps on them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import Collective
from shardwright.engines.views import Shards
from shardwright.kernels import Space
from shardwright.mesh import Mesh
from shardwright.plan import Code, Local, OperationPlan, Step
from shardwright.sharding import Layout

Data = Any  # the shards of a tensor, as an engine holds them; it has a dtype
View = Any  # a tensor per device: in lanes, or this process's own
Runner = Callable[..., tuple[Data, ...]]


class Engine(Protocol):
    """Holds shards and runs steps. `Data` is opaque to everyone else."""

    name: str
    xp: Space  # array functions that kernels are written in
    processes: int  # that share the work
    fuses: bool  # whether operations run on whole tensors, and partial values are what they come to until looked at
    keeps_host: bool  # whether `put` may keep the memory of the host tensor

    def check(self, mesh: Mesh) -> None:
        """Refuse a mesh that this engine can't hold."""

    def native(self, value: object) -> bool:
        """Whether `put` takes a tensor of this kind as it is; others become NumPy arrays first."""

    def put(self, host: Any, layout: Layout) -> Data:
        """The shards of a host tensor; shares its memory where it can."""

    def whole(self, data: Data, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced. A collective: every process gets it."""

    def shard(self, data: Data, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds: no padding, halos included; an error if another process has it."""

    def places(self, mesh: Mesh) -> Sequence[int]:
        """The devices of this process, by their places."""

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device of this process knows, those of all devices in their order."""

    def assemble(self, shards: Shards, layout: Layout) -> Data:
        """Data from the tensors of devices, by their places; at least of those of this process."""

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Data, ...]:
        """A local computation on operands in place; Python scalars among them come as they are."""

    def step(self, step: Step, data: Data) -> Data:
        """One move or reduce step."""

    def move(self, data: Data, source: Layout, target: Layout) -> Data:
        """A change of sharding: the steps of its plan, or at once where that gives the same."""

    def operation(self, plan: OperationPlan) -> Callable[..., Any] | None:
        """An operation as one function of its operands' data and scalars: one result bare, several as a tuple.

        Engines that fuse give it what partial operands come to, and it gives what partial results come to. Others have it only
        where operands lie as the plan wants them and nothing is to be sent; else None.
        """

    def lanes(self, data: Data, layout: Layout) -> View:
        """The shards as a tensor per device."""

    def from_lanes(self, view: View, layout: Layout) -> Data:
        """Data from a tensor per device."""

    def view(self, mesh: Mesh, tensors: Sequence[NDArray[Any]]) -> View:
        """A tensor per device, given for all of them."""

    def told(self, mesh: Mesh, tensors: Mapping[int, NDArray[Any]]) -> View:
        """A tensor per device from those of this process's devices; processes tell one another the shapes."""

    def everywhere(self, mesh: Mesh, tensor: NDArray[Any]) -> View:
        """The same tensor on every device."""

    def values(self, view: View) -> list[NDArray[Any]]:
        """The tensors of all devices, in their order. A collective: every process gets them."""

    def value(self, view: View, place: int) -> NDArray[Any]:
        """The tensor of one device. A collective."""

    def each(self, function: Callable[..., NDArray[Any]], views: Sequence[View]) -> View:
        """A function on every device of its tensors."""

    def elementwise(self, ufunc: np.ufunc, operands: Sequence[Any], options: Mapping[str, Any]) -> tuple[View, ...]:
        """A function of NumPy, element by element; scalars among the operands as they are."""

    def check_shared(self, view: View, layout: Layout, name: str) -> None:
        """Refuse tensors that differ where a layout says devices hold the same."""

    def astype(self, data: Data, dtype: Any) -> Data:
        """Elements converted to a dtype."""

    def copy(self, data: Data) -> Data:
        """The same shards in memory of their own."""

    def compile(self, code: "Code", mesh: Mesh, label: str = "") -> Runner:
        """A function from the data of a program's inputs to that of its outputs; equals running it step by step. The label is
        the same for the same program in all processes."""

    def row(self, data: Data, layout: Layout, at: int) -> Data:
        """One row of a table whose first dim is whole."""

    def stack(self, rows: Sequence[Data], layout: Layout, dtype: Any) -> Data:
        """Rows as a table."""

    def run(self, collective: Collective, view: View) -> View:
        """A collective on a tensor per device."""

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """Refuse to go on unless every process holds the same program; names the first step that differs."""
