"""`Explanation`: what a program will do, before it runs: every step, what it moves, what a device holds, and why."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import ProgramError
from shardwright.program.rows import LEFT, Row, columns_of, duration, size
from shardwright.program.tables import legend, page_of, text_of, wrapped

FEW = 3  # operations of a program whose strategies are printed with it
SCHEMA = 1  # the version of `Explanation.json`


@dataclass(frozen=True)
class Machine:
    """The machine that times are for: its name, a chip's memory, and its figures in words."""

    name: str
    memory: float  # bytes of a chip
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Use:
    """What a device holds at most, in bytes by kind, the step that runs then, and what could be split to hold less."""

    parameters: int = 0
    inputs: int = 0
    activations: int = 0  # made by earlier steps and read later
    temporaries: int = 0  # made by the step itself
    outputs: int = 0
    step: str = ""
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        kinds = ("parameters", "inputs", "activations", "temporaries", "outputs")
        return ", ".join(f"{name} {size(getattr(self, name))}" for name in kinds if getattr(self, name))


@dataclass(frozen=True)
class Fit:
    """Whether a program fits the memory of a chip, and by how much; true if it does."""

    peak: int
    memory: float
    advice: tuple[str, ...] = ()

    @property
    def margin(self) -> float:
        """Bytes to spare; less than 0 if it does not fit."""
        return self.memory - self.peak

    def __bool__(self) -> bool:
        return self.margin >= 0

    def __str__(self) -> str:
        if math.isinf(self.memory):
            return "fits: the chip's memory is unlimited"
        if self:
            return f"fits the chip's {size(self.memory)}: {size(self.margin)} to spare"
        further = f"Split the largest values further: {'; '.join(self.advice)}."
        advice = (
            further
            if self.advice
            else "No axis is left that could split what is held: use more devices, or smaller tensors."
        )
        return f"does not fit the chip's {size(self.memory)}: {size(-self.margin)} too much. {advice}"


@dataclass(frozen=True)
class Explanation:
    """The steps of a program in order, with totals and what was decided on the way.

    Programs are pure, so equal operations are one step, and what no output needs is dropped: `shared` and `dead` count them.
    Printing folds what repeats and joins the steps of a source line; `open()` opens such lines, `rows` has every step, and
    `full()` prints them.
    """

    rows: tuple[Row, ...]
    peak_bytes: int  # the most that a device holds at a time
    total_bytes: int  # that a device receives in all: of branches the dearer, of a while loop one round
    total_time: float | None  # seconds of communication in all; None if the machine is unknown
    notes: tuple[str, ...] = ()
    shared: int = 0  # operations that were asked for again
    dead: int = 0  # operations that no output needs
    compute_time: float = 0.0  # seconds of computation in all
    overlapped: float | None = None  # seconds if communication and computation that don't wait for one another overlap
    bound: int | None = (
        None  # bytes that a device must receive by the bounds of all steps: of these steps, not of any others
    )
    use: Use = Use()
    machine: Machine | None = None

    @property
    def communication_time(self) -> float:
        """Seconds of communication in all, as far as they are known."""
        return self.total_time or 0.0

    @property
    def time(self) -> float:
        """Seconds in all, one step after the other."""
        return self.communication_time + self.compute_time

    def seconds(self, overlap: str = "none") -> float:
        """Seconds in all: one step after the other, or with "ideal" overlap of communication with independent computation."""
        if overlap not in ("none", "ideal"):
            raise ProgramError(f"The overlap {overlap!r} is unknown. Use 'none' or 'ideal'.")
        if overlap == "none":
            return self.time
        return max(self.communication_time, self.compute_time) if self.overlapped is None else self.overlapped

    @property
    def fits(self) -> Fit:
        """Whether a device holds no more than its chip's memory, by what margin, and what to change if not."""
        if self.machine is None:
            raise ProgramError("This explanation names no machine. Explain it on a Mesh(…, hardware='h100').")
        return Fit(self.peak_bytes, self.machine.memory, self.use.advice)

    @property
    def operations(self) -> tuple[Row, ...]:
        """The rows that compute."""
        return tuple(row for row in self.rows if row.plan is not None)

    @property
    def collectives(self) -> tuple[Row, ...]:
        """The rows that communicate."""
        return tuple(row for row in self.rows if row.bytes)

    # -- words ----------------------------------------------------------------------------------------------------------

    def _totals(self) -> list[str]:
        bound = "" if self.bound is None else f" (sum of the steps' bounds {size(self.bound)})"
        lines = [
            self._times(),
            f"a device receives {size(self.total_bytes)}{bound} and holds at most {size(self.peak_bytes)}{self._spared()}",
        ]
        if self.use.step:
            lines.append(f"most is held at {self.use.step}: {self.use}")
        return [*lines, str(self.fits)] if self.machine is not None else lines

    def _times(self) -> str:
        if self.total_time is None:
            return f"{len(self.rows)} steps take an unknown time"
        if self.rows and all(row.memory is None for row in self.rows):  # compiled by others: its computation is unknown
            return f"{len(self.rows)} steps; {duration(self.total_time)} of communication"
        return (
            f"{len(self.rows)} steps take {duration(self.time)}: {duration(self.total_time)} of communication, "
            f"{duration(self.compute_time)} of computation; {duration(self.seconds('ideal'))} if they overlap"
        )

    def _spared(self) -> str:
        counts = ((self.shared, "asked for again"), (self.dead, "that no output needs"))
        spared = [f"{count} {what}" for count, what in counts if count]
        return f"; spared: {' and '.join(spared)}" if spared else ""

    def _above(self) -> list[str]:
        return [] if self.machine is None else list(self.machine.about)

    def __str__(self) -> str:
        return self._folded(None)

    def open(self, name: str = "") -> str:
        """The folded table with some lines opened: below each line of several steps those steps, one by one.

        `name` is a part of a source ("model.py:12") or of a step's name ("tanh"); without it all lines open. `full()` has every
        step with its operands, also those that take no time, and repeated layers as often as they run.
        """
        known = [row for row in self.rows if name in row.source or name in row.label]
        if name and not known:
            raise ProgramError(
                f"No step or source line has {name!r} in its name. Call open() without a name to open all lines."
            )
        return self._folded(name)

    def _folded(self, opened: str | None) -> str:
        if any(row.counted is not None for row in self.rows):
            return self.full()  # what was measured is for every step
        below = [*self._strategies(), *legend(self.rows), *self.notes, *self._totals()]
        return "\n".join([*wrapped(self._above()), *text_of(self.rows, opened), *wrapped(below)])

    def full(self) -> str:
        """The table with every step, nothing folded or cut."""
        head = columns_of(self.rows)
        table = [head, *(tuple(map(row.cell, head)) for row in self.rows)]
        widths = [max(len(cells[at]) for cells in table) for at in range(len(head))]
        few = len(self.operations) <= FEW
        lines = []
        for cells, row in zip(table, (None, *self.rows), strict=True):
            columns = zip(head, cells, widths, strict=True)
            fitted = (cell.ljust(width) if name in LEFT else cell.rjust(width) for name, cell, width in columns)
            lines.append("  ".join(fitted).rstrip())
            if few and row is not None and row.plan is not None:
                lines.append(row.strategies)
        return "\n".join([*self._above(), *lines, *legend(self.rows), *self.notes, *self._totals()])

    def _repr_html_(self) -> str:
        below = [*self._strategies(), *legend(self.rows), *self.notes, *self._totals()]
        return page_of(self.rows, self._above(), below)

    def _strategies(self) -> list[str]:
        """The strategies of a program of few operations."""
        few = self.operations if len(self.operations) <= FEW else ()
        return [line for row in few for line in (f"{row.label}:", *row.strategies.splitlines())]

    def json(self) -> str:
        """All of it as JSON: `version` changes when the meaning of a field does."""
        machine = self.machine
        use = {name: getattr(self.use, name) for name in self.use.__dataclass_fields__}
        totals = {
            "steps": len(self.rows),
            "seconds": None if self.total_time is None else self.time,
            "communication_seconds": self.total_time,
            "compute_seconds": self.compute_time,
            "overlapped_seconds": self.seconds("ideal"),
            "received_bytes": self.total_bytes,
            "bound_bytes": self.bound,
            "peak_bytes": self.peak_bytes,
            "redundant_seconds": sum(row.redundant * row.times for row in self.rows),
            "shared": self.shared,
            "dead": self.dead,
            "held": use,
        }
        named = fits = None
        if machine is not None:
            memory = machine.memory if math.isfinite(machine.memory) else None  # JSON has no infinity
            named = {"name": machine.name, "memory": memory, "about": machine.about}
            fits = {"fits": bool(self.fits), "margin": None if memory is None else self.fits.margin}
        return json.dumps(
            {
                "version": SCHEMA,
                "hardware": named,
                "fits": fits,
                "totals": totals,
                "steps": [_as_data(row) for row in self.rows],
                "notes": self.notes,
            },
            allow_nan=False,
        )


FIELDS: Sequence[str] = (
    "operation", "source", "operands", "results", "collective", "groups", "bytes", "lower_bound", "time", "compute", "work",
    "touched", "limit", "redundancy", "implicit", "memory", "origins", "inside", "times", "counted", "padded", "stack", "label",
)  # fmt: skip


def _as_data(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in FIELDS}
