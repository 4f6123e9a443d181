"""From a final program to its `Explanation`: a row a step, with its price; totals; what is held when most is."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from shardwright.engines import padded_bytes
from shardwright.hardware import Hardware
from shardwright.lines import Line
from shardwright.mesh import Mesh
from shardwright.plan import Each, Fused, LocalStep, OperationPlan, Step, work_of
from shardwright.program.explanation import Explanation, Machine, Use
from shardwright.program.memory import Held, Lifetimes, Memory, beside
from shardwright.program.node import Compute, Cond, Node, Program, Rounds, Type, programs_in, short_source
from shardwright.program.rows import Row, size

MOST_ADVICE = 3


def explained(program: Program, ran: "Ran | None" = None, outside: int = 0) -> Explanation:
    """The explanation of a final program; with what `measure` saw when it ran, if it did.

    `outside` is what a device holds beside the program's own values.
    """
    lives = Lifetimes(program)
    memory = lives.memory(program.nodes)
    rows: list[Row] = []
    maker = _Rows(program)
    notes = list(program.notes)
    totals = _Totals()
    spent: dict[Node, tuple[float, float]] = {}  # seconds of communication and of computation
    for node, before, during in zip(program.nodes, memory.before, memory.during, strict=True):
        row = maker.row(node, outside + during)
        own = _Totals()
        if row is not None:
            rows.append(_measured(row, node, ran))
            own = _Totals(row.bytes or 0, row.lower_bound or 0, row.time or 0.0, row.compute)
        parts = {
            name: explained(part, ran, outside + before + beside(node.what, part))
            for name, part in programs_in(node.what).items()
        }
        rounds = node.what.rounds if isinstance(node.what, Rounds) else 1
        for name, part in parts.items():
            lead = f"{node.title} {name}{f' × {rounds}' if isinstance(node.what, Rounds) else ''}: "
            times = rounds if ran is None else 1  # what ran was counted
            rows += [replace(inner, inside=lead + inner.inside, times=inner.times * times) for inner in part.rows]
            notes += part.notes
        own = own.plus(_inner(parts.values(), isinstance(node.what, Cond)), rounds)
        totals = totals.plus(own)
        spent[node] = own.time, own.compute
    overlapped = min(_overlapped(program, spent), totals.time + totals.compute)  # not more, by rounding
    return Explanation(
        tuple(rows), outside + memory.peak, totals.received, totals.time, tuple(notes), program.shared, program.dead,
        totals.compute, overlapped, totals.bound, _use(program, lives, memory), machine_of(program.mesh),
    )  # fmt: skip


class _Totals(NamedTuple):
    """Bytes received and their bound, seconds of communication and of computation."""

    received: int = 0
    bound: int = 0
    time: float = 0.0
    compute: float = 0.0

    def plus(self, other: "_Totals", rounds: int = 1) -> "_Totals":
        """With others, run so often."""
        return _Totals(
            self.received + rounds * other.received,
            self.bound + rounds * other.bound,
            self.time + rounds * other.time,
            self.compute + rounds * other.compute,
        )

    def dearer(self, other: "_Totals") -> "_Totals":
        """The times of the one that takes longer, and the larger of both numbers of bytes."""
        longer = max(self, other, key=lambda one: one.time + one.compute)
        return longer._replace(received=max(self.received, other.received), bound=max(self.bound, other.bound))


def _inner(parts: Iterable[Explanation], choice: bool) -> _Totals:
    """The totals of the programs of a loop, or of the dearer of a choice."""
    total = _Totals()
    for part in parts:
        own = _Totals(part.total_bytes, part.bound or 0, part.communication_time, part.compute_time)
        total = total.dearer(own) if choice else total.plus(own)
    return total


class Ran:
    """What was seen of the nodes of a program when it ran: how often each did, and what the busiest device received."""

    def __init__(self) -> None:
        self.times: dict[Node, int] = {}
        self.received: dict[Node, int] = {}

    def add(self, node: Node, received: int) -> None:
        """A node ran once."""
        self.times[node] = self.times.get(node, 0) + 1
        self.received[node] = max(self.received.get(node, 0), received)


def _measured(row: Row, node: Node, ran: Ran | None) -> Row:
    if ran is None:
        return row
    return replace(row, counted=ran.received.get(node, 0), times=ran.times.get(node, 0))


# -- rows -------------------------------------------------------------------------------------------------------------


class _Rows:
    """Makes the rows of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.chip = program, program.mesh.hardware.chip
        self._texts: dict[Type, str] = {}  # programs have few types

    def _text(self, kind: Type) -> str:
        found = self._texts.get(kind)
        if found is None:
            found = self._texts[kind] = str(kind)
        return found

    def row(self, node: Node, memory: int) -> Row | None:
        """The row of a node; None if nothing is done."""
        what = node.what
        if isinstance(what, Step | Fused | LocalStep):
            over = f"{what.name} {','.join(what.axes)}".rstrip()
            figures = over, what.groups, what.received, what.lower_bound, what.time
            implicit = (what.name, what.axes, node.source) in self.program.implicit
            padded = padded_bytes(what, self.program.mesh)
            extra = {"limit": "network" if what.received else "", "implicit": implicit, "padded": padded}
            return self._made(what.name, node, figures, memory, extra)
        inside = programs_in(what)
        if not inside and not isinstance(what, Compute | Each):
            return None
        return self._made(node.title, node, ("", "", 0, 0, 0.0), memory, {} if inside else self._computed(node))

    def _made(
        self, name: str, node: Node, figures: tuple[str, str, int, int, float], memory: int, extra: dict[str, Any]
    ) -> Row:
        operands = tuple(self._text(x.type) if isinstance(x, Node) else repr(x) for x in node.inputs)
        results = tuple(map(self._text, node.types))
        axes = dict.fromkeys(axis for kind in node.types if kind.sharding is not None for axis in kind.sharding.axes)
        known = self.program.origins.get(node, {})
        origins = {axis: known.get(axis) or f"{node.title}, by cost" for axis in axes}
        stack = node.source.stack if isinstance(node.source, Line) else ""
        return Row(name, node.source, operands, results, *figures, memory, origins, node.plan, stack=stack, **extra)

    def _computed(self, node: Node) -> dict[str, Any]:
        """The work of a local step, the bytes that it touches, and the time that they take on a chip."""
        chip, plan = self.chip, node.plan
        if plan is None:
            touched = sum(x.type.local_bytes for x in node.nodes) + sum(kind.local_bytes for kind in node.types)
            dtype = node.types[0].dtype if node.types else "float32"
            return {"touched": touched, "compute": chip.seconds(0.0, touched, dtype), "limit": "memory"}
        price, dtype = plan.strategy.priced, plan.problem.work_dtype
        work = work_of(plan.problem, plan.strategy.placement)
        return {
            "compute": price.compute,
            "work": work,
            "touched": price.memory,
            "limit": chip.bound(work, price.memory, dtype),
            "redundancy": _redundancy(plan, self.program.mesh),
        }


def _redundancy(plan: OperationPlan, mesh: Mesh) -> int:
    """How many devices compute the same elements: those along axes that the strategy puts to nothing."""
    used = tuple(axis for axis, factor in plan.strategy.placement.items() if factor is not None)
    return mesh.size // mesh.axis_size(used)


def _overlapped(program: Program, spent: Mapping[Node, tuple[float, float]]) -> float:
    """Seconds if a network and a chip each run their steps in order, as soon as operands are there."""
    done: dict[Node, float] = {}
    network = chip = 0.0
    for node in program.nodes:
        ready = max((done[x] for x in node.nodes), default=0.0)
        time, compute = spent[node]
        if time:
            ready = network = max(ready, network) + time
        if compute:
            ready = chip = max(ready, chip) + compute
        done[node] = ready
    return max(network, chip, *(done[node] for node in program.outputs), 0.0)


# -- memory -----------------------------------------------------------------------------------------------------------


def _use(program: Program, lives: Lifetimes, memory: Memory) -> Use:
    peak = lives.peak(memory)
    node = peak.node
    step = "" if node is None else f"{node.title} ({short_source(node.source)})" if node.source else node.title
    names = dict(zip(program.inputs, program.names, strict=True))
    found = (_advice(value, names.get(value.node, value.node.title), program.mesh) for value in peak.values)
    advice = tuple(text for text, _ in zip(filter(None, found), range(MOST_ADVICE), strict=False))
    return Use(peak.parameters, peak.inputs, peak.activations, peak.temporaries, peak.outputs, step, advice)


def _advice(value: Held, name: str, mesh: Mesh) -> str:
    """The axes that could still split a value, and the dim; "" if none can."""
    kind = value.type
    if kind.sharding is None:
        return ""
    used = {mesh.axis(axis).name for axis in kind.sharding.axes}
    local = [n // mesh.axis_size(axes) for n, axes in zip(kind.shape, kind.sharding.dims, strict=True)]
    free = [axis for axis, n in mesh.sizes.items() if n > 1 and axis not in used]
    for axis in sorted(free, key=lambda axis: -mesh.sizes[axis]):
        parts = mesh.sizes[axis]
        fits = [dim for dim, n in enumerate(local) if n >= parts and n % parts == 0]
        fits = fits or [dim for dim, n in enumerate(local) if n >= parts]  # then shards are uneven
        if fits:
            dim = max(fits, key=local.__getitem__)
            return f"{name}, {kind}: {size(value.bytes)}; {axis} could split dim {dim} into {parts}"
    return ""


# -- the machine ------------------------------------------------------------------------------------------------------


def machine_of(mesh: Mesh) -> Machine:
    """The machine of a mesh in words, with what was assumed of its axes."""
    hardware = mesh.hardware
    return Machine(hardware.name, hardware.chip.memory, (_chip_words(hardware), _link_words(mesh)))


def _chip_words(hardware: Hardware) -> str:
    chip = hardware.chip
    usual = {name: chip.flops[name] for name in ("bfloat16", "float32") if name in chip.flops} or chip.flops
    flops = ", ".join(f"{name} {value / 1e12:g}" for name, value in usual.items())
    note = f" ({hardware.note})" if hardware.note else ""
    return f"{hardware.name}: {flops} TFLOP/s, {size(chip.memory)} at {size(chip.memory_bandwidth)}/s{note}"


def _link_words(mesh: Mesh) -> str:
    axes = []
    for axis, n in mesh.sizes.items():
        pieces = mesh.links_along((axis,))
        words = " and ".join(
            f"{count} by {link.kind}, {size(link.bandwidth)}/s"
            if len(pieces) > 1
            else f"{link.kind}, {size(link.bandwidth)}/s"
            for count, link in pieces
        )
        axes.append(f"{axis}={n}{f' ({words})' if words else ''}")
    return f"axes: {'; '.join(axes)}"
