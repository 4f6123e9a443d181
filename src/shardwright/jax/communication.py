"""One collective of an HLO module: its kind, the devices that take part, the bytes that the busiest of them receives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from shardwright.errors import ProgramError
from shardwright.hardware import Fabric
from shardwright.jax.devices import Devices
from shardwright.jax.hlo import Computation, Instruction, Module, Tensor, tensors
from shardwright.jax.replica_groups import Groups, axes_of_groups, axes_of_pairs, parse_groups, parse_pairs
from shardwright.jax.text import split
from shardwright.mesh import Mesh
from shardwright.plan import Move, Reduce, Step
from shardwright.program import Row
from shardwright.sharding import P, Sharding

# What XLA calls a collective, and its name here.
KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "ragged_all_to_all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
    "collective-reduce": "reduce",
    "recv": "permute",  # with its send: a message of a permute that XLA took apart
}
# With a channel their groups have partitions; those of the others have replicas or devices.
_BY_PARTITION = {"all_to_all", "ragged_all_to_all", "permute", "broadcast", "reduce"}
# Permutes go to any device, as our own do; a reduction to one device takes as long as its reverse, a broadcast.
_PRICED_AS = {"permute": "exchange", "ragged_all_to_all": "all_to_all", "reduce": "broadcast"}
_PAIRS = "_xla_send_recv_source_target_pairs"
_MOST_SHOWN = 4  # groups that are printed where they are not along axes


@dataclass(frozen=True)
class Members:
    """Who takes part in a collective: the largest group, how groups are shown, and their axes if they are along axes."""

    size: int
    shown: str
    axes: tuple[str, ...] | None
    listed: str = ""  # the groups themselves, where they are not along axes

    def fabric(self, mesh: Mesh) -> Fabric:
        """The links of the axes; of other groups the slowest link of the mesh."""
        if self.axes is not None:
            return mesh.fabric(self.axes)
        return Fabric([(self.size, min(mesh.links.values(), key=lambda link: link.bandwidth))])


def kind_of(instruction: Instruction) -> str | None:
    """The name of a collective; None for other instructions. Of a pair start and done, the start is the collective."""
    if instruction.opcode == "recv":
        host = instruction.attributes.get("is_host_transfer") == "true"
        return None if host else KINDS["recv"]
    return KINDS.get(instruction.opcode.removesuffix("-start"))


def is_suspect(instruction: Instruction) -> bool:
    """Whether an instruction that is no known collective looks like one."""
    opcode, rest = instruction.opcode, instruction.rest
    if opcode.startswith("all-") or "collective" in opcode:
        return True
    if not any(word in rest for word in ("replica_groups", "source_target_pairs", "channel_id")):
        return False
    fields = instruction.attributes
    inner = fields.get("backend_config", "") + fields.get("frontend_attributes", "")
    if opcode in ("send", "recv", "infeed", "outfeed"):  # a send is counted where it is received
        return False
    named = any(word in fields for word in ("replica_groups", "source_target_pairs", "channel_id"))
    return named or "replica_groups" in inner or "source_target_pairs" in inner


def row_of(module: Module, computation: Computation, instruction: Instruction, kind: str, devices: Devices) -> Row:
    """The row of a collective; raises ProgramError where its text can't be read."""
    operands = _sent(computation, instruction, kind)
    members = members_of(instruction, kind, devices)
    parts = [figures(kind, tensor, members.size) for tensor in operands]
    received, bound = (sum(part[at] for part in parts) for at in (0, 1))
    over = members.listed if members.axes is None else ",".join(members.axes)
    return Row(
        instruction.opcode,
        module.source(instruction),
        _listed(operands),
        _listed(_results(instruction)),
        f"{kind} {over}".rstrip(),
        members.shown,
        received,
        None if kind == "ragged_all_to_all" else bound,
        None if devices.mesh is None else _time(kind, received, members, devices.mesh),
        None,
        stack=instruction.op_name,
    )


def _time(kind: str, received: int, members: Members, mesh: Mesh) -> float:
    """Seconds over the links of the axes; the operands of one collective share its messages."""
    return members.fabric(mesh).seconds(_PRICED_AS.get(kind, kind), received)


def unknown_row(module: Module, instruction: Instruction) -> Row:
    """The row of what looks like a collective and can't be read."""
    source, name = module.source(instruction), f"unknown {instruction.opcode}"
    shown = _listed(instruction.tensors)
    return Row(instruction.opcode, source, (), shown, name, "?", None, None, None, None, stack=instruction.op_name)


def _sent(computation: Computation, instruction: Instruction, kind: str) -> tuple[Tensor, ...]:
    """The arrays that a device contributes; of a ragged exchange, the one that it receives into."""
    if instruction.opcode == "recv":
        return instruction.tensors[:1]
    if "slice_sizes" in instruction.attributes:
        raise ProgramError(f"HLO: {instruction.name} updates slices in place, a form whose bytes are not counted yet.")
    operands = computation.operand_tensors(instruction)
    if kind == "ragged_all_to_all":
        return operands[1:2]
    if kind in ("permute", "broadcast", "reduce"):  # further operands are buffers and positions of integers
        return operands[: len(_results(instruction))]
    return operands


def _results(instruction: Instruction) -> tuple[Tensor, ...]:
    """The arrays that a collective gives: of a start, which also holds its operands, the second element."""
    if instruction.opcode == "recv":
        return instruction.tensors[:1]
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        parts = split(instruction.type.strip()[1:-1])
        return tensors(parts[1]) if len(parts) > 1 else instruction.tensors
    return instruction.tensors


def _listed(arrays: Sequence[Tensor]) -> tuple[str, ...]:
    """Types as the table shows them, equal neighbours counted."""
    runs = ((text, len(list(run))) for text, run in groupby(map(str, arrays)))
    return tuple(text if count == 1 else f"{count} × {text}" for text, count in runs)


def figures(kind: str, tensor: Tensor, size: int) -> tuple[int, int]:
    """Bytes that the busiest device of a group receives for one operand, and that it must receive."""
    if kind in ("permute", "broadcast", "reduce", "ragged_all_to_all"):
        received = tensor.bytes if size > 1 else 0
        return received, received
    whole_bytes = tensor.bits % 8 == 0 and tensor.bits > 0
    elements = tensor.bytes * 8 // tensor.bits if whole_bytes else tensor.bytes
    return _step_figures(kind, elements, tensor.bits // 8 if whole_bytes else 1, size)


@lru_cache(maxsize=4096)
def _step_figures(kind: str, elements: int, itemsize: int, size: int) -> tuple[int, int]:
    """The figures of our own step of that name, on a mesh that is one group."""
    if size == 1 or not elements:
        return 0, 0
    mesh, dtype = Mesh(group=size), np.dtype(f"V{itemsize}")
    whole = Sharding(mesh, P(None))
    split_, partial = Sharding(mesh, P("group")), Sharding(mesh, P(None), partial="group")
    step: Step
    if kind == "all_gather":
        step = Move(kind, ("group",), split_, whole, (elements * size,), dtype, -1, 0)
    elif kind == "all_to_all":
        rows, columns = Sharding(mesh, P("group", None)), Sharding(mesh, P(None, "group"))
        step = Move(kind, ("group",), rows, columns, (size, elements), dtype, 1, 0)
    elif kind == "all_reduce":
        step = Reduce(kind, ("group",), partial, whole, (elements,), dtype)
    else:
        step = Reduce(kind, ("group",), partial, split_, (elements,), dtype, 0)
    return step.received, step.lower_bound


# -- who takes part ---------------------------------------------------------------------------------------------------


def members_of(instruction: Instruction, kind: str, devices: Devices) -> Members:
    """The groups of a collective in words of the mesh."""
    fields = instruction.attributes
    if kind == "permute":
        return _members_of_pairs(_pairs_text(instruction), "channel_id" in fields, devices)
    text = fields.get("replica_groups", "{}")
    if "device_ids" in fields:  # a comma divides the groups in this form
        text += f", device_ids={fields['device_ids']}"
    return _members_of_groups(text, _mode(kind, fields), devices)


def _mode(kind: str, fields: Mapping[str, str]) -> str:
    """What the numbers in replica groups are: replicas, partitions, replicas with all their partitions, or devices."""
    if "channel_id" not in fields:
        return "replicas"
    if kind in _BY_PARTITION:
        return "partitions"
    return "devices" if fields.get("use_global_device_ids") == "true" else "both"


def _pairs_text(instruction: Instruction) -> str:
    fields = instruction.attributes
    if "source_target_pairs" in fields:
        return fields["source_target_pairs"]
    for part in split(fields.get("frontend_attributes", "{}")[1:-1]):
        name, _, value = part.partition("=")
        if name.strip() == _PAIRS:
            return value.strip().strip('"')
    raise ProgramError(f"HLO: {instruction.name} does not say between which devices it sends.")


@lru_cache(maxsize=1024)
def _members_of_groups(text: str, mode: str, devices: Devices) -> Members:
    groups = _flat(parse_groups(text), mode, devices)
    size = max(map(len, groups))
    least = min(map(len, groups))
    shown = f"{len(groups)} × {size}" if least == size else f"{len(groups)} of {least} to {size}"
    mesh = devices.mesh
    if mesh is None:
        return Members(size, shown, ())
    placed = [tuple(devices.places[device] for device in group) for group in groups]
    axes = axes_of_groups(placed, mesh)
    few = ",".join("{" + ",".join(map(str, group)) + "}" for group in placed[:_MOST_SHOWN])
    return Members(size, shown, axes, "" if axes is not None else few + (",…" if len(placed) > _MOST_SHOWN else ""))


@lru_cache(maxsize=1024)
def _members_of_pairs(text: str, channel: bool, devices: Devices) -> Members:
    pairs = parse_pairs(text)
    ends = _flat(pairs, "partitions" if channel else "replicas", devices) if pairs else ()
    moving = [(source, target) for source, target in ends if source != target]
    mesh = devices.mesh
    if mesh is None:
        return Members(2 if moving else 1, f"{len(moving)} messages", ())
    axes = axes_of_pairs([(devices.places[a], devices.places[b]) for a, b in moving], mesh) if moving else ()
    size = mesh.axis_size(axes)
    return Members(size, f"{mesh.size // size} × {size}", axes)


def _flat(groups: Groups | tuple[tuple[int, int], ...], mode: str, devices: Devices) -> Groups:
    """Groups of device numbers, replica × partitions + partition, whatever the numbers in the text are."""
    replicas, partitions = devices.replicas, devices.partitions
    limit = {"replicas": replicas, "both": replicas, "partitions": partitions, "devices": devices.count}[mode]
    known = groups or (tuple(range(limit)),)
    beyond = [number for group in known for number in group if number >= limit]
    if beyond:
        what = "devices" if mode == "devices" else "partitions" if mode == "partitions" else "replicas"
        raise ProgramError(f"HLO: a collective names {what[:-1]} {beyond[0]}, but the module has {limit} {what}.")
    if mode == "devices":
        return tuple(known)
    if mode == "partitions":
        return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in known)
    if mode == "replicas":
        return tuple(tuple(r * partitions + p for r in group) for p in range(partitions) for group in known)
    return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in known)
