"""`Code`: a final program as engines run it: instructions on numbered slots, with loops and choices as data.

A program is lowered to code once. Any engine can run it as it is, one instruction after the other, or compile it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from shardwright.kernels import SCRATCH, Call
from shardwright.plan.local_view import LocalShapes, LocalStep
from shardwright.plan.rings import Reduce
from shardwright.plan.steps import Step
from shardwright.sharding import Layout


class Slot(NamedTuple):
    """A value: an input, or what an earlier instruction made."""

    number: int


@dataclass(frozen=True, eq=False)
class Local:
    """A kernel on one device's shards, for all devices: its call over common lanes, and the layouts that arrays have."""

    call: Call
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.call.name

    @cached_property
    def scratch(self) -> int:
        """Bytes that a device needs beside operands and results while the kernel runs."""
        needs = SCRATCH.get(self.name)
        return needs(self.call) if needs is not None else 0


@dataclass(frozen=True)
class Fused:
    """Several reductions over the same axes whose rings run in step: what goes to a neighbour is one message."""

    steps: tuple[Reduce, ...]
    name: str = "all_reduce"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that they run along."""
        return self.steps[0].axes

    @property
    def groups(self) -> str:
        """How many groups of how many devices take part."""
        return self.steps[0].groups

    @cached_property
    def received(self) -> int:
        """Bytes that the busiest device receives."""
        members = self.steps[0].busiest
        return max(sum(step.received_by(member) * step.itemsize for step in self.steps) for member in members)

    @property
    def lower_bound(self) -> int:
        """Bytes that some device must receive."""
        return min(sum(step.lower_bound for step in self.steps), self.received)

    @cached_property
    def time(self) -> float:
        """Seconds: the latency once."""
        first = self.steps[0]
        return first.source.mesh.fabric(first.pieces).seconds("all_reduce", self.received)


@dataclass(frozen=True, eq=False)
class Choice:
    """One of two codes, by a boolean that all devices hold, or each device its own. Inputs: the boolean, what both read, what
    each captures."""

    true: "Code"
    false: "Code"
    shared: int
    captured: int  # by the first
    uniform: bool = True  # whether all devices decide alike


@dataclass(frozen=True, eq=False)
class While:
    """A body that runs as long as a condition holds. Inputs: what is carried, what the body captures, what the test does."""

    condition: "Code"
    body: "Code"
    carried: int
    captured: int  # by the body
    uniform: bool = True  # whether all devices leave it together


@dataclass(frozen=True, eq=False)
class Scan:
    """A body that runs once for each row of tables. Inputs: what is carried, the tables, what the body captures."""

    body: "Code"
    rounds: int
    carried: int
    tables: tuple[Layout, ...]
    stacked: tuple[tuple[Layout, Any], ...]  # layout and dtype of each result that collects a row a round


@dataclass(frozen=True)
class ToLocal:
    """The shards of an array as a tensor per device."""

    layout: Layout
    name: str = "to_local"


@dataclass(frozen=True)
class FromLocal:
    """A tensor per device as the shards of an array."""

    layout: Layout
    name: str = "from_local"


@dataclass(frozen=True, eq=False)
class Each:
    """A function on every device's own tensors: `run` takes an engine and its tensors per device, and gives such."""

    name: str
    run: Callable[..., Any]
    key: Any  # equal for equal functions
    told: str = ""  # what processes compare of it beside its name; of functions of the user's nothing


Payload = Local | Step | Fused | Choice | While | Scan | ToLocal | FromLocal | Each | LocalStep


class Instruction(NamedTuple):
    """One step: what it does, to which slots and scalars, and which slots it fills."""

    what: Any  # a Payload
    inputs: tuple[Any, ...]  # of Slot and Python scalars
    outputs: tuple[Slot, ...]
    plan: Any = None  # the OperationPlan of the operation that it is the last instruction of


@dataclass(frozen=True, eq=False)
class Code:
    """Instructions in an order in which they can run."""

    inputs: tuple[Slot, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Slot, ...]
    kinds: tuple[
        Layout | LocalShapes, ...
    ]  # of the inputs: a sharded tensor's layout, or the shapes of a tensor per device

    def last_uses(self) -> dict[Slot, int]:
        """For each slot the last instruction that reads it."""
        return {x: at for at, line in enumerate(self.instructions) for x in line.inputs if isinstance(x, Slot)}

    def readers(self) -> dict[Slot, list[int]]:
        """For each slot the instructions that read it."""
        found: dict[Slot, list[int]] = {}
        for at, line in enumerate(self.instructions):
            for x in line.inputs:
                if isinstance(x, Slot):
                    found.setdefault(x, []).append(at)
        return found


def parts_of(what: Any) -> Sequence[tuple[str, Code]]:
    """The codes inside a loop or a choice, by name."""
    if isinstance(what, Choice):
        return [("true", what.true), ("false", what.false)]
    if isinstance(what, While):
        return [("condition", what.condition), ("body", what.body)]
    return [("body", what.body)] if isinstance(what, Scan) else []
