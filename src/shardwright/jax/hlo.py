"""XLA's HLO text as values: computations, instructions, types, and the tables that lead to source lines."""

import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from shardwright.errors import ProgramError
from shardwright.jax.text import closing, short, split, unquoted

_COMMENT = re.compile(r"/\*.*?\*/")
_OPEN = re.compile(r"(?P<entry>ENTRY\s+)?%?(?P<name>[^\s(%={]+)\s*(\(.*)?\{$")
_START = re.compile(r"(?P<root>ROOT\s+)?%?(?P<name>[^\s%=]+) = ")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-zA-Z][\w-]*)\(")
_LEAF = re.compile(r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<dims>[^\]]*)\]")
_BITS = re.compile(r"(?:bf|f|s|u|c)(\d+)")
_FIELD = re.compile(r'([\w.]+)=("(?:[^"\\]|\\.)*"|[^\s{}]+)')
_ROW = re.compile(r"(?P<id>\d+) (?P<rest>.+)")
_NAMES_COMPUTATIONS = re.compile(
    r"=\{?%|\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation|called_computations)="
)
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of an array that one device holds."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bits(self) -> int:
        """Bits of an element; 0 of a token."""
        if self.dtype in ("token", "opaque"):
            return 0
        if self.dtype == "pred":
            return 8
        width = _BITS.match(self.dtype)
        if width is None:
            raise ProgramError(f"The HLO type {self} has an unknown dtype: its bytes can't be counted.")
        return int(width[1])

    @property
    def bytes(self) -> int:
        """Bytes of the array; elements of 4 bits share bytes."""
        return -(-prod(self.shape) * self.bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    type: str
    arguments: str  # the text between the parentheses
    rest: str  # its attributes
    is_root: bool

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands."""
        return tuple(part.split()[-1].lstrip("%") for part in split(self.arguments) if part)

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """What follows the operands, by name."""
        found: dict[str, str] = {}
        for part in split(self.rest):
            name, equals, value = part.partition("=")
            if equals:
                found[name.strip()] = value.strip()
        return found

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """Where it comes from: op_name, source_file, source_line, stack_frame_id; as far as they are known."""
        return {key: unquoted(value) for key, value in _FIELD.findall(self.attributes.get("metadata", ""))}

    @property
    def op_name(self) -> str:
        """The name stack of the operation that it was made from."""
        return self.metadata.get("op_name", "")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arrays of its result, those inside tuples one by one."""
        return tensors(self.type)


@dataclass(frozen=True)
class Computation:
    """Instructions in their order."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by their names."""
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction that gives the result."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """The instruction that makes an operand."""
        name = instruction.operands[index]
        if name not in self.by_name:
            raise ProgramError(
                f"HLO: {instruction.name} of {self.name} reads {name}, which that computation does not define."
            )
        return self.by_name[name]

    def operand_tensors(self, instruction: Instruction) -> tuple[Tensor, ...]:
        """The arrays that an instruction reads."""
        found: list[Tensor] = []
        for index, part in enumerate(split(instruction.arguments)):
            typed = len(part.split()) > 1  # some texts have the type before the name
            found += tensors(part) if typed else self.operand(instruction, index).tensors
        return tuple(found)


@dataclass(frozen=True)
class Module:
    """A whole HLO text."""

    name: str
    entry: str
    computations: Mapping[str, Computation]
    replicas: int
    partitions: int
    tables: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    _sources: dict[int, str] = field(default_factory=dict, compare=False)

    def called(self, instruction: Instruction) -> Iterator[tuple[str, str]]:
        """The computations that an instruction names: the attribute and the computation."""
        if not _NAMES_COMPUTATIONS.search(instruction.rest):
            return
        for key, value in instruction.attributes.items():
            if key in ("metadata", "backend_config", "frontend_attributes", "sharding"):
                continue
            for name in re.findall(r"%?([^\s,{}%]+)", value):
                if name in self.computations:
                    yield key, name

    def source(self, instruction: Instruction) -> str:
        """The line of the user's code that an instruction comes from, as file:line; "" if unknown.

        Of its stack frames the innermost whose file belongs to no installed package; if all do, the innermost.
        """
        known = instruction.metadata
        frame = int(known.get("stack_frame_id", "0"))
        if frame in self._stack:
            if frame not in self._sources:
                lines = list(self._frames(frame))
                self._sources[frame] = next((x for x in lines if not _is_library(x.rpartition(":")[0])), lines[0])
            return self._sources[frame]
        return f"{known['source_file']}:{known.get('source_line', '0')}" if "source_file" in known else ""

    @cached_property
    def _stack(self) -> dict[int, tuple[str, int]]:
        """For every stack frame its line and its parent."""
        rows, places, files = (self.tables.get(name, {}) for name in ("StackFrames", "FileLocations", "FileNames"))
        fields = {frame: dict(_FIELD.findall(row)) for frame, row in rows.items()}
        # The first frame has no parent. Texts write that as 0, or as 1 if they count parents from 1.
        base = int(fields.get(1, {}).get("parent_frame_id", "0"))
        found = {}
        for frame, row in fields.items():
            place = dict(_FIELD.findall(places[int(row["file_location_id"])]))
            line = f"{unquoted(files[int(place['file_name_id'])])}:{place['line']}"
            found[frame] = line, int(row.get("parent_frame_id", base)) - base
        return found

    def _frames(self, frame: int) -> Iterator[str]:
        """The lines of a stack, innermost first."""
        while frame in self._stack:
            line, parent = self._stack[frame]
            yield line
            if parent >= frame:
                raise ProgramError(f"HLO: stack frame {frame} has the parent {parent}, which comes after it.")
            frame = parent


def parse(text: str) -> Module:
    """Reads an HLO text; raises ProgramError with the line that can't be read."""
    computations: dict[str, Computation] = {}
    tables: dict[str, dict[int, str]] = {}
    entry = name = table = ""
    head = ""
    lines: list[Instruction] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        opening = _OPEN.match(line) if lines is None else None
        if not line or line.startswith("//"):
            continue
        if line.startswith("HloModule"):
            head = line
        elif lines is not None and line.startswith("}"):
            computations[name], lines = Computation(name, tuple(lines)), None
        elif lines is not None:
            lines.append(_instruction(line, number))
        elif line in _TABLES:
            table = line
            tables[table] = {}
        elif table and (row := _ROW.fullmatch(line)):
            tables[table][int(row["id"])] = row["rest"]
        elif opening:
            name, lines, table = opening["name"], [], ""
            entry = name if opening["entry"] else entry
        elif _START.match(line):
            raise ProgramError(f"HLO: line {number} is an instruction outside of a computation: {short(line)}")
    if lines is not None or not entry:
        what = f"its computation {name} has no end" if lines is not None else "it has no ENTRY computation"
        raise ProgramError(f"This is not a whole HLO module: {what}. Pass the text of compiled.as_text().")
    return Module(
        _module_name(head), entry, computations, _count(head, "replica_count"), _count(head, "num_partitions"), tables
    )


def _module_name(head: str) -> str:
    return head.removeprefix("HloModule").split(",")[0].strip()


def _count(head: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", head)
    return int(found[1]) if found else 1


def _instruction(line: str, number: int) -> Instruction:
    start = _START.match(line)
    if start is None:
        raise ProgramError(f"HLO: line {number} is not an instruction: {short(line)}")
    at = _end_of_type(line, start.end())
    opcode = _OPCODE.match(line, at)
    if opcode is None:
        raise ProgramError(f"HLO: line {number} has no operation after its type: {short(line)}")
    end = closing(line, opcode.end() - 1)
    arguments = line[opcode.end() : end]
    return Instruction(
        start["name"], opcode["opcode"], line[start.end() : at], arguments, line[end + 1 :], bool(start["root"])
    )


def _end_of_type(line: str, start: int) -> int:
    """Where a type ends: at its closing parenthesis, or at the next space."""
    if line.startswith("(", start):
        return closing(line, start) + 1
    end = line.find(" ", start)
    return end if end >= 0 else len(line)


def tensors(text: str) -> tuple[Tensor, ...]:
    """The arrays of a type, those inside tuples one by one; layouts are dropped.

    >>> [str(tensor) for tensor in tensors("(f32[4,16]{1,0:T(8,128)}, (pred[], bf16[<=8]))")]
    ['f32[4,16]', 'pred[]', 'bf16[8]']
    """
    found = []
    for leaf in _LEAF.finditer(re.sub(r"\{[^{}]*\}", "", text)):
        sizes = [size.strip().removeprefix("<=") for size in leaf["dims"].split(",") if size.strip()]
        if not all(size.isdigit() for size in sizes):
            raise ProgramError(f"HLO: the type {leaf[0]} has a size without a bound: its bytes can't be counted.")
        found.append(Tensor(leaf["dtype"], tuple(map(int, sizes))))
    return tuple(found)


_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "purelib", "platlib")}
    | {os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")}
)


def _is_library(file: str) -> bool:
    """Whether a file belongs to the standard library, to an installed package or to this one."""
    return (
        file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file or file.startswith("<frozen ")
    )
