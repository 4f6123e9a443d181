"""What every engine offers: it holds the shards of tensors and runs local computations and steps on them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from shardwright.collectives import Collective
from shardwright.engines.lanes import Lanes
from shardwright.kernels import Space
from shardwright.mesh import Mesh
from shardwright.plan import Code, Local, Step
from shardwright.sharding import Layout

Data = Any  # the shards of a tensor, as an engine holds them; it has a dtype
Runner = Callable[..., tuple[Data, ...]]


class Engine(Protocol):
    """Holds shards and runs steps. `Data` is opaque to everyone else."""

    name: str
    xp: Space  # array functions that kernels are written in
    processes: int  # that share the work
    fuses: bool  # whether a partial product may wait for its reduction, to be one call with it

    def check(self, mesh: Mesh) -> None:
        """Refuse a mesh that this engine can't hold."""

    def put(self, host: NDArray[Any], layout: Layout) -> Data:
        """The shards of a host tensor; shares its memory where it can."""

    def whole(self, data: Data, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced. A collective: every process gets it."""

    def shard(self, data: Data, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds: no padding, halos included; an error if another process has it."""

    def assemble(self, shards: Sequence[NDArray[Any]], layout: Layout) -> Data:
        """Data from the tensor of every device, in their order."""

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Data, ...]:
        """A local computation on operands in place; Python scalars among them come as they are."""

    def step(self, step: Step, data: Data) -> Data:
        """One move or reduce step."""

    def move(self, data: Data, source: Layout, target: Layout) -> Data:
        """A change of sharding: the steps of its plan, or at once where that gives the same."""

    def lanes(self, data: Data, layout: Layout) -> Lanes:
        """The shards as a tensor per device."""

    def from_lanes(self, lanes: Lanes, layout: Layout) -> Data:
        """Data from a tensor per device, over the layout's lanes."""

    def astype(self, data: Data, dtype: Any) -> Data:
        """Elements converted to a dtype."""

    def copy(self, data: Data) -> Data:
        """The same shards in memory of their own."""

    def compile(self, code: "Code") -> Runner:
        """A function from the data of a program's inputs to that of its outputs; equals running it step by step."""

    def row(self, data: Data, layout: Layout, at: int) -> Data:
        """One row of a table whose first dim is whole."""

    def stack(self, rows: Sequence[Data], layout: Layout, dtype: Any) -> Data:
        """Rows as a table."""

    def run(self, collective: Collective, lanes: Lanes) -> Lanes:
        """A collective on a tensor per device."""

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""

    def agree(self, steps: tuple[str, ...]) -> None:
        """Refuse to go on unless every process holds the same program; names the first step that differs."""
