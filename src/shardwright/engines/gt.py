"""GT's engine API: collectives on one tensor a process, for code that handles its shards itself."""

from importlib.util import find_spec
from typing import Any, NoReturn, Protocol

from shardwright.errors import EngineError
from shardwright.mesh import Axes, Mesh

Group = tuple[Mesh, Axes] | None


class ProcessEngine(Protocol):
    """What `engine` returns. A `group` is None for all processes, or a mesh and axes of it: `(mesh, "tp")`."""

    name: str

    def supports_distributed(self) -> bool:
        """Whether the collectives work."""

    def all_reduce_sum(self, tensor: Any, group: Group = None) -> Any:
        """The sum of the tensors of a group's processes, on each of them."""

    def all_gather(self, tensor: Any, group: Group = None) -> Any:
        """The tensors of a group's processes, concatenated along dim 0 in group order; their lengths may differ."""

    def reduce_scatter(self, tensor: Any, group: Group = None) -> Any:
        """This process's block of the sum: of n rows over k processes the first ones get ceil(n/k), the last ones the rest."""


def engine(name: str) -> ProcessEngine:
    """The collectives of an engine, on tensors of this process.

    >>> engine("numpy").supports_distributed()
    False

    `engine("torch")` works in scripts that torchrun has started and in functions of `sw.launch`, with the process group that
    exists or a new one. Results are new tensors without gradients.
    """
    if name == "numpy":
        return NumpyProcess()
    if name == "torch":
        if find_spec("torch") is None:
            raise EngineError("The engine 'torch' needs PyTorch: pip install 'shardwright[torch]'.")
        from shardwright.engines.torch.gt import TorchProcess

        return TorchProcess()
    raise EngineError(f"There is no engine {name!r} with collectives between processes. Use 'torch'; 'numpy' has none.")


class NumpyProcess:
    """NumPy: one process."""

    name = "numpy"

    def __repr__(self) -> str:
        return "engine('numpy')"

    def supports_distributed(self) -> bool:
        """False: there is one process."""
        return False

    def all_reduce_sum(self, tensor: Any, group: Group = None) -> NoReturn:
        """Not implemented."""
        _refuse("all_reduce_sum")

    def all_gather(self, tensor: Any, group: Group = None) -> NoReturn:
        """Not implemented."""
        _refuse("all_gather")

    def reduce_scatter(self, tensor: Any, group: Group = None) -> NoReturn:
        """Not implemented."""
        _refuse("reduce_scatter")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name} needs several processes, and the engine 'numpy' works in one. Use sw.engine('torch') for collectives between "
        f"processes, or sw.collectives on the virtual devices of a mesh."
    )
