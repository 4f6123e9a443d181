"""All collectives of an HLO module, in order, through calls, fusions, loops and branches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardwright.errors import ProgramError
from shardwright.jax.communication import is_suspect, kind_of, row_of, unknown_row
from shardwright.jax.devices import Devices
from shardwright.jax.hlo import Computation, Instruction, Module
from shardwright.jax.trips import trip_count
from shardwright.program import Row


class Part(NamedTuple):
    """What a computation and all that it calls sends."""

    rows: tuple[Row, ...] = ()
    bytes: int = 0  # that a device receives in all: of branches the dearer, of a loop with unknown rounds one round
    time: float = 0.0
    notes: tuple[str, ...] = ()

    def then(self, other: "Part") -> "Part":
        """Both, one after the other."""
        if not other.rows and not other.notes:
            return self
        notes = dict.fromkeys((*self.notes, *other.notes))
        return Part((*self.rows, *other.rows), self.bytes + other.bytes, self.time + other.time, tuple(notes))

    def inside(self, lead: str, times: int) -> "Part":
        """The same as a part of a loop or a branch, which runs a number of times."""
        rows = tuple(replace(row, inside=lead + row.inside, times=row.times * times) for row in self.rows)
        return Part(rows, self.bytes * times, self.time * times, self.notes)


class Walk:
    """Goes through a module once; what several instructions call is read once."""

    def __init__(self, module: Module, devices: Devices) -> None:
        self.module, self.devices = module, devices
        self._parts: dict[str, Part] = {}
        self._received = {
            i.attributes.get("channel_id")
            for c in module.computations.values()
            for i in c.instructions
            if i.opcode == "recv"
        }

    def whole(self) -> Part:
        """What the module sends."""
        part = self._part(self.module.entry)
        for name in self.module.computations.keys() - self._parts.keys():
            lost = self._part(name).inside(f"{name}, which nothing calls: ", 0)
            if lost.rows:
                part = part.then(lost)
        return part

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            self._parts[name] = Part()  # a computation that calls itself is not HLO
            computation, part = self.module.computations[name], Part()
            for instruction in computation.instructions:
                for own in self._parts_of(computation, instruction):
                    part = part.then(own)
            self._parts[name] = part
        return self._parts[name]

    def _parts_of(self, computation: Computation, instruction: Instruction) -> Iterator[Part]:
        opcode = instruction.opcode
        if opcode.endswith(("-done", "-update")) and self._follows_start(computation, instruction):
            return
        kind = kind_of(instruction)
        if kind is not None:
            yield self._collective(computation, instruction, kind)
        elif is_suspect(instruction):
            yield self._unknown(instruction, "it looks like a collective that is not known here")
        elif opcode == "send" and self._is_lost(instruction):
            yield self._unknown(instruction, "nothing in the module receives what it sends")
        if opcode == "while":
            yield from self._loop(computation, instruction)
        elif opcode == "conditional":
            yield self._choice(instruction)
        else:
            for _, name in self.module.called(instruction):
                yield self._part(name)

    def _follows_start(self, computation: Computation, instruction: Instruction) -> bool:
        """Whether an instruction only ends, or goes on with, what another one started."""
        if not instruction.operands or instruction.operands[0] not in computation.by_name:
            return False
        before = computation.operand(instruction, 0).opcode
        return before.endswith(("-start", "-update")) or before in ("send", "recv")

    def _is_lost(self, send: Instruction) -> bool:
        fields = send.attributes
        return fields.get("is_host_transfer") != "true" and fields.get("channel_id") not in self._received

    def _collective(self, computation: Computation, instruction: Instruction, kind: str) -> Part:
        try:
            row = row_of(self.module, computation, instruction, kind, self.devices)
        except ProgramError as error:
            return self._unknown(instruction, str(error))
        return Part((row,), row.bytes or 0, row.time or 0.0, tuple(self._notes(row)))

    def _notes(self, row: Row) -> Iterator[str]:
        if "{" in row.collective:
            yield (
                f"{row.collective}: its groups, given by places, are not along axes of {self.devices.mesh}; "
                f"its time is that of the slowest link."
            )
        if row.operation.startswith("ragged-all-to-all"):
            yield f"{row.collective}: how much is received depends on the data; {row.bytes:,} B is the most."

    def _unknown(self, instruction: Instruction, why: str) -> Part:
        note = f"{instruction.opcode} {instruction.name} is not counted: {why}"
        return Part((unknown_row(self.module, instruction),), notes=(note,))

    def _loop(self, computation: Computation, loop: Instruction) -> Iterator[Part]:
        rounds = trip_count(self.module, computation, loop)
        for what, more in (("condition", 1), ("body", 0)):
            part = self._part(loop.attributes[what].lstrip("%"))
            if not part.rows:
                continue
            if rounds is None:
                note = f"{loop.op_name or loop.name}: how many rounds the loop runs is unknown; its bytes are those of one."
                yield part.inside(f"while {what} × unknown: ", 1)._replace(notes=(*part.notes, note))
            else:
                yield part.inside(f"while {what} × {rounds + more}: ", rounds + more)

    def _choice(self, instruction: Instruction) -> Part:
        """All branches; what a device receives is that of the dearest."""
        parts = [self._part(name) for _, name in self.module.called(instruction)]
        result = Part()
        for number, part in enumerate(parts):
            result = result.then(part.inside(f"branch {number}: ", 1))
        most, time = max((p.bytes for p in parts), default=0), max((p.time for p in parts), default=0.0)
        return result._replace(bytes=most, time=time)
