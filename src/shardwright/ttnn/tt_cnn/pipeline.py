"""A pipeline runs a model on a list of host tensors: compile once, enqueue many, pop all. Here it runs synchronously."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.ttnn.devices import MeshDevice, synchronize_device
from shardwright.ttnn.errors import fatal
from shardwright.ttnn.memory import MemoryConfig
from shardwright.ttnn.tensors import Tensor, from_device, to_device


@dataclass(frozen=True)
class PipelineConfig:
    """Whether commands are traced, the number of command queues, and whether transfers use a separate queue."""

    use_trace: bool = True
    num_command_queues: int = 1
    all_transfers_on_separate_command_queue: bool = False


class Pipeline:
    """A model with its transfers. Made by `create_pipeline_from_config`."""

    def __init__(
        self, config: PipelineConfig, model: Callable[[Tensor], Any], device: MeshDevice, memory: MemoryConfig
    ) -> None:
        self.config, self.model, self.device, self.memory = config, model, device, memory
        self._kind: tuple[Any, ...] | None = None
        self._outputs: list[Any] = []
        self._kept = False

    def preallocate_output_tensors_on_host(self, count: int) -> "Pipeline":
        """Keeps the outputs of earlier calls of `enqueue`."""
        self._kept = count > 0
        return self

    def compile(self, host_input: Tensor) -> "Pipeline":
        """Runs the model once, and records the kind of its input."""
        self._check_host([host_input])
        self._kind = _kind(host_input)
        self._run(host_input)
        return self

    def enqueue(self, host_inputs: Sequence[Tensor]) -> "Pipeline":
        """Runs the model on each host tensor."""
        if self._kind is None:
            raise fatal("The pipeline is not compiled", "Call pipeline.compile(host_input) first.")
        self._check_host(host_inputs)
        for tensor in host_inputs:
            if _kind(tensor) != self._kind:
                raise fatal(
                    f"The pipeline was compiled for {self._kind} and got {_kind(tensor)}",
                    "Compile it for these inputs first.",
                )
        if (
            self.config.num_command_queues == 2
            and self.config.all_transfers_on_separate_command_queue
            and len(host_inputs) < 2
        ):
            raise fatal("Pipelined transfers need at least two inputs", "Enqueue a list of two or more.")
        made = [self._run(tensor) for tensor in host_inputs]
        self._outputs = [*self._outputs, *made] if self._kept else made
        return self

    def pop_all(self) -> list[Any]:
        """Waits for all commands, and returns the outputs on the host."""
        synchronize_device(self.device)
        outputs, self._outputs = self._outputs, []
        return outputs

    def cleanup(self) -> None:
        """Frees all tensors."""
        self._outputs, self._kind = [], None

    def _check_host(self, tensors: Sequence[Tensor]) -> None:
        if any(tensor.device() is not None for tensor in tensors):
            raise fatal("All input tensors must be on host", "Use ttnn.from_device(…), or from_torch without device=.")

    def _run(self, tensor: Tensor) -> Any:
        made = self.model(to_device(tensor, self.device, self.memory))
        return from_device(made) if isinstance(made, Tensor) else [from_device(x) for x in made]


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype.value, tensor.layout.value


def create_pipeline_from_config(
    config: PipelineConfig,
    model: Callable[[Tensor], Any],
    device: MeshDevice,
    l1_input_memory_config: MemoryConfig,
    dram_input_memory_config: MemoryConfig | None = None,
    dram_output_memory_config: MemoryConfig | None = None,
) -> Pipeline:
    """The pipeline of a model, with the checks of real devices."""
    separate, queues = config.all_transfers_on_separate_command_queue, config.num_command_queues
    if queues not in (1, 2):
        raise ValueError(f"A pipeline has 1 or 2 command queues, not {queues}.")
    if config.use_trace and dram_input_memory_config is None:
        raise ValueError(
            "A traced pipeline needs dram_input_memory_config=: traced commands read from a fixed address."
        )
    if queues == 2 and not config.use_trace and separate:
        raise ValueError("A separate command queue for transfers needs a trace. Pass use_trace=True.")
    if queues == 2 and separate and dram_output_memory_config is None:
        raise ValueError(
            "Pipelined transfers need dram_output_memory_config=: outputs are kept there until they are read."
        )
    return Pipeline(config, model, device, l1_input_memory_config)
