"""Where XLA's collectives for a change of sharding receive more than shardwright's plan for the same change would.

The module from before XLA's partitioner has the sharding of every value. Of instructions that compute element by element, or
only copy, the partitioner moves each operand to the instruction's own sharding: source and target are known. The
collectives that it makes for this have the instruction's name stack and source line.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from shardwright.errors import ShardingError
from shardwright.jax.devices import Devices
from shardwright.jax.hlo import Computation, Instruction, Module, Tensor, tensors
from shardwright.jax.text import split
from shardwright.jax.trips import trip_count
from shardwright.jax.xla_shardings import elements, sharding_of
from shardwright.plan import ReshardPlan, plan_reshard
from shardwright.program import Row, short_source
from shardwright.sharding import Sharding, as_dtype, describe

# Operands are moved to the sharding of the result.
_MOVED = set(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare complex convert copy cosine divide erf exponential "
    "exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt "
    "power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)
# Nothing is sent for these.
_STILL = set("parameter constant iota broadcast after-all partition-id replica-id".split())
_STILL_CALLS = ("SPMDFullToShardShape", "SPMDShardToFullShape")
_DTYPES = {"pred": "bool", "bf16": "bfloat16"}
_KINDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}


class Key(NamedTuple):
    """What instructions from before the partitioner and collectives from after it have in common."""

    stack: str
    source: str


class Reshard(NamedTuple):
    """One array that goes from one sharding to another."""

    tensor: Tensor
    source: Sharding
    target: Sharding


@dataclass(frozen=True)
class Finding:
    """Changes of sharding at one line for which XLA's collectives receive more than a plan of shardwright's."""

    source: str  # file:line
    stack: str
    plans: tuple[tuple[ReshardPlan, int], ...]  # with how often each runs
    collectives: tuple[str, ...]  # XLA's
    bytes: int  # that the busiest device receives
    gathered: str  # the type of an array that XLA gathers beyond what the target needs; "" if it does not

    @property
    def planned_bytes(self) -> int:
        """Bytes that the busiest device would receive by shardwright's plans."""
        return sum(plan.bytes_received * times for plan, times in self.plans)

    def __str__(self) -> str:
        (plan, _), *more = self.plans
        ends = " → ".join(describe(s, plan.shape, plan.dtype) for s in (plan.source, plan.target))
        others = f" and {len(more)} more" if more else ""
        steps = ", ".join(
            dict.fromkeys(f"{step.name} {','.join(step.axes)}" for p, _ in self.plans for step in p.steps)
        )
        how = (
            f"gathers {self.gathered} on every device, which the target does not need"
            if self.gathered
            else "moves more"
        )
        place = " ".join(filter(None, (short_source(self.source), self.stack))) or "without a source line"
        return (
            f"{place}: {ends}{others}: XLA {how}: {self.bytes:,} B ({', '.join(self.collectives)}); "
            f"shardwright's plan: {self.planned_bytes:,} B ({steps or 'nothing moves'})."
        )


def find(before: Module, rows: Sequence[Row], devices: Devices) -> tuple[Finding, ...]:
    """Every line at which XLA receives more than a plan of ours, of those where source and target are known."""
    if devices.mesh is None:
        return ()
    scan = _Scan(before, devices)
    scan.computation(before.entry, "", 1, True)
    made: dict[Key, list[Row]] = {}
    for row in rows:
        made.setdefault(Key(row.stack, row.source), []).append(row)
    found = (_finding(key, scan, made[key]) for key in made if scan.is_clear(key))
    return tuple(finding for finding in found if finding is not None)


def _finding(key: Key, scan: "_Scan", rows: Sequence[Row]) -> Finding | None:
    if any(row.bytes is None or _is_combined(row) for row in rows):
        return None
    if key in scan.unsure and any(row.times != 1 for row in rows):
        return None
    plans = tuple((_plan(reshard), times) for reshard, times in scan.reshards[key].items())
    received = sum((row.bytes or 0) * row.times for row in rows)
    known = [(plan, times) for plan, times in plans if plan is not None]
    if len(known) != len(plans) or received <= sum(plan.bytes_received * times for plan, times in known):
        return None
    most = max(reshard.target.local_size(reshard.tensor.shape) for reshard in scan.reshards[key])
    names = tuple(row.collective + (f" × {row.times}" if row.times != 1 else "") for row in rows)
    return Finding(key.source, key.stack, tuple(known), names, received, _widest(rows, most))


def _is_combined(row: Row) -> bool:
    """Whether XLA made one collective of several, of other lines perhaps; an all_to_all has several operands by itself."""
    several = len(row.operands) > 1 or any(" × " in operand for operand in row.operands)
    return several and not row.collective.startswith("all_to_all")


def _widest(rows: Sequence[Row], most: int) -> str:
    """The type of the largest array that is gathered, if it has more elements than `most`; else ""."""
    gathered = [tensor for row in rows if row.collective.startswith("all_gather") for tensor in tensors(row.results[0])]
    largest = max(gathered, key=lambda tensor: prod(tensor.shape), default=None)
    return str(largest) if largest is not None and prod(largest.shape) > most else ""


def _plan(reshard: Reshard) -> ReshardPlan | None:
    """Our plan; None for dtypes that NumPy lacks, or holds in more bits than XLA."""
    tensor = reshard.tensor
    name = re.sub(r"^([a-z]\d+)(e)", r"\1_\2", tensor.dtype)  # f8e4m3 is float8_e4m3
    try:
        dtype = as_dtype(_DTYPES.get(name) or _KINDS.get(name[0], "?") + name[1:])
    except (ShardingError, TypeError):
        return None
    if dtype.itemsize * 8 != tensor.bits:
        return None
    return plan_reshard(tensor.shape, dtype, reshard.source.mesh, reshard.source, reshard.target)


class _Scan:
    """Goes through the module from before the partitioner and notes, for each key, what is moved from where to where."""

    def __init__(self, module: Module, devices: Devices) -> None:
        self.module, self.devices = module, devices
        self.reshards: dict[Key, Counter[Reshard]] = {}
        self.unclear: set[Key] = set()  # something else there may send too
        self.unsure: set[Key] = set()  # inside of a loop with unknown rounds
        self._known: dict[tuple[str, int], Sharding | None] = {}

    def is_clear(self, key: Key) -> bool:
        """Whether all that is sent there is sent for changes of sharding that are known."""
        return key in self.reshards and key not in self.unclear

    def computation(self, name: str, stack: str, times: int, sure: bool) -> None:
        """Notes what a computation moves that runs a number of times inside of a name stack."""
        computation = self.module.computations[name]
        for instruction in computation.instructions:
            key = self._key(instruction, stack)
            if instruction.opcode in _MOVED and len(instruction.tensors) == 1:
                self._moved(computation, instruction, key, times)
            elif instruction.opcode in ("tuple", "get-tuple-element", "while", "optimization-barrier"):
                self._bundled(computation, instruction, key, times)
            elif not self._is_still(computation, instruction):
                self.unclear.add(key)
            if not sure:
                self.unsure.add(key)
            for called, count, known in self._called(computation, instruction):
                inner = key.stack if instruction.opcode == "call" else stack
                self.computation(called, inner, times * count, sure and known)

    def _key(self, instruction: Instruction, stack: str) -> Key:
        """Computations that are called keep name stacks of their own, which come after the caller's."""
        own = instruction.op_name
        joined = f"{stack}/{own}" if stack and own and not own.startswith(stack) else own
        return Key(joined, self.module.source(instruction))

    def _called(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[str, int, bool]]:
        if instruction.opcode == "while":
            rounds = trip_count(self.module, computation, instruction)
            for what, more in (("body", 0), ("condition", 1)):
                name = instruction.attributes[what].lstrip("%")
                yield name, 1 if rounds is None else rounds + more, rounds is not None
        elif instruction.opcode in ("call", "conditional"):
            yield from ((name, 1, True) for _, name in self.module.called(instruction))

    def _is_still(self, computation: Computation, instruction: Instruction) -> bool:
        if instruction.opcode in _STILL:
            return True
        if instruction.opcode == "custom-call":
            return instruction.attributes.get("custom_call_target", "").strip('"') in _STILL_CALLS
        if instruction.opcode == "conditional":
            return all(
                _shardings(computation.operand(instruction, index)) == _shardings(self._parameter(name))
                for index, (_, name) in enumerate(self.module.called(instruction), 1)
            )
        return instruction.opcode == "call" and _shardings(instruction) == ["{manual}"]

    def _parameter(self, name: str) -> Instruction:
        return next(i for i in self.module.computations[name].instructions if i.opcode == "parameter")

    def _moved(self, computation: Computation, instruction: Instruction, key: Key, times: int) -> None:
        """Every operand goes to the sharding of the result."""
        (target, *_) = _shardings(instruction)
        for index in range(len(instruction.operands)):
            operand = computation.operand(instruction, index)
            for tensor, source in zip(operand.tensors, _shardings(operand), strict=False):
                self._note(tensor, source, target, key, times)

    def _bundled(self, computation: Computation, instruction: Instruction, key: Key, times: int) -> None:
        """Tuples are made and taken apart, and go into loops, element by element."""
        operands = [computation.operand(instruction, index) for index in range(len(instruction.operands))]
        sources = [sharding for operand in operands for sharding in _shardings(operand)]
        if instruction.opcode == "get-tuple-element":
            whole = operands[0].tensors
            if len(whole) != len(split(operands[0].type.strip()[1:-1])):  # tuples of tuples
                self.unclear.add(key)
                return
            sources = [sources[int(instruction.attributes["index"])]]
        targets = _shardings(instruction)
        for tensor, source, target in zip(instruction.tensors, sources, targets, strict=True):
            self._note(tensor, source, target, key, times)

    def _note(self, tensor: Tensor, source: str, target: str, key: Key, times: int) -> None:
        """Notes that an array goes from one sharding to another."""
        if source == target or not tensor.shape:
            return
        here, there = (self._sharding(text, len(tensor.shape)) for text in (source, target))
        if here is None or there is None:
            self.unclear.add(key)
        elif here is not there:
            self.reshards.setdefault(key, Counter())[Reshard(tensor, here, there)] += times

    def _sharding(self, text: str, rank: int) -> Sharding | None:
        if (text, rank) not in self._known:
            self._known[text, rank] = sharding_of(text, rank, self.devices)
        return self._known[text, rank]


def _shardings(instruction: Instruction) -> list[str]:
    """The sharding of every array of an instruction's result; without one the partitioner makes copies."""
    text, count = instruction.attributes.get("sharding", "{replicated}"), len(instruction.tensors)
    several = elements(text)
    return several if len(several) == count else [text] * count
