"""Code as one generated Python function, a line an instruction, with nothing to decide any more; on stacked engines a line an
operation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from shardwright.engines.chains import ChainLine, Entry, chained
from shardwright.engines.deciding import choose, repeat
from shardwright.engines.folding import folded
from shardwright.engines.rows import row_operation
from shardwright.engines.whole import fetching
from shardwright.kernels import NUMPY
from shardwright.plan import (
    Choice,
    Code,
    Each,
    Fetch,
    FromLocal,
    Fused,
    Instruction,
    Local,
    LocalStep,
    OperationPlan,
    Regroup,
    Scan,
    Slot,
    Step,
    ToLocal,
    While,
    parts_of,
)
from shardwright.sharding import Layout

Runner = Callable[..., Any]


class StackedEngine(Protocol):
    """What is needed of the engine."""

    xp: Any

    def operation(self, plan: OperationPlan) -> Callable[..., Any]: ...
    def local(self, local: Local, data: Any) -> tuple[Any, ...]: ...
    def step(self, step: Step, data: Any) -> Any: ...
    def move(self, data: Any, source: Layout, target: Layout) -> Any: ...
    def total(self, data: Any, layout: Layout) -> Any: ...
    def row(self, data: Any, layout: Layout, at: int) -> Any: ...
    def lanes(self, data: Any, layout: Layout) -> Any: ...
    def from_lanes(self, lanes: Any, layout: Layout) -> Any: ...
    def run(self, collective: Any, lanes: Any) -> Any: ...
    def stack(self, rows: Any, layout: Layout, dtype: Any) -> Any: ...


def compiled(engine: StackedEngine, code: Code) -> Runner:
    """A function from the inputs' data to a tuple of the outputs' data.

    Every operation is a line that calls one function, bound beforehand; a value is let go after its last use. Values that a
    plan leaves partial are carried as what they come to, so that moves and reductions are nothing at all; only if summands
    are looked at, by a function of tensors per device or as a result, every instruction runs on lanes.
    """
    partial = {slot for line in code.instructions for slot in _partial_outputs(line)}
    given = [
        (slot, at)
        for slot, at in zip(code.inputs, code.kinds, strict=True)
        if isinstance(at, Layout) and at.partial_lanes
    ]
    partial.update(slot for slot, _ in given)
    if _shows_summands(code) or not partial.isdisjoint(code.outputs) or any(at.sharding.halo for _, at in given):
        return _Stacked(engine, totals=False).function(code)
    run = _Stacked(engine, totals=True).function(code)
    if not given:
        return run
    sums = [(code.inputs.index(slot), at) for slot, at in given]

    def with_totals(*data: Any) -> Any:
        values = list(data)
        for number, at in sums:
            values[number] = engine.total(values[number], at)
        return run(*values)

    return with_totals


def _shows_summands(code: Code) -> bool:
    """Whether a function of tensors per device looks at summands, or halos are made of them."""
    for line in code.instructions:
        what = line.what
        if isinstance(what, ToLocal) and what.layout.partial_lanes:
            return True
        if (
            isinstance(what, Step)
            and (what.source.halo or what.result.halo)
            and (what.source.partial or what.result.partial)
        ):
            return True
        if any(_shows_summands(part) for _, part in parts_of(what)):
            return True
    return False


def _partial_outputs(line: Instruction) -> list[Slot]:
    what = line.what
    if isinstance(what, Local):
        return [slot for slot, layout in zip(line.outputs, what.results, strict=True) if layout.partial_lanes]
    if isinstance(what, Step):
        return list(line.outputs) if what.there.partial_lanes else []
    return []


def shortened(lines: Sequence[ChainLine], outputs: Sequence[Slot]) -> list[Entry]:
    """The lines that outputs need, with one in place of several where these can be folded or run block by block."""
    wanted, kept = {*outputs}, []
    for line in reversed(lines):
        if not wanted.isdisjoint(line.outputs):
            wanted.update(line.reads)
            kept.append(line)
    return chained(folded(kept[::-1], outputs), outputs)


class Compiler:
    """Writes the function of a code for any engine: a value is let go after its last use."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def function(self, code: Code) -> Runner:
        """The function of a code."""
        bound: dict[str, Any] = {"__name__": __name__}
        text: list[str] = []
        alias: dict[Slot, Slot] = {}
        every = self._lines(code, alias)
        outputs = tuple(alias.get(x, x) for x in code.outputs)
        lines = shortened(every, outputs)
        last = {x: at for at, (_, inputs, _) in enumerate(lines) for x in inputs if isinstance(x, Slot)}
        kept = {*outputs}
        for at, (function, inputs, made) in enumerate(lines):
            bound[f"f{at}"] = function
            spelled = [_name(x) if isinstance(x, Slot) else _literal(bound, x) for x in inputs]
            text.append(f"{', '.join(map(_name, made))} = f{at}({', '.join(spelled)})")
            done = [x for x in dict.fromkeys(inputs) if isinstance(x, Slot) and last[x] == at and x not in kept]
            if done:
                text.append(f"del {', '.join(map(_name, done))}")
        result = ", ".join(map(_name, outputs))
        head = f"def run({', '.join(map(_name, code.inputs))}):"
        source = "\n".join(
            [head, *(f"    {line}" for line in text), f"    return ({result}{',' if code.outputs else ''})"]
        )
        exec(compile(source, "<program>", "exec"), bound)  # our own text, names and calls only
        run: Runner = bound["run"]
        return run

    def _lines(self, code: Code, alias: dict[Slot, Slot]) -> list[ChainLine]:
        """Whole operations in place of their instructions, and no line for a move."""
        producer = {slot: line for line in code.instructions for slot in line.outputs}
        found = []
        for line in code.instructions:
            entry = self._line(line, producer)
            if entry is None:
                first = line.inputs[0]
                alias[line.outputs[0]] = alias.get(first, first)
                continue
            inputs = tuple(alias.get(x, x) if isinstance(x, Slot) else x for x in entry.inputs)
            found.append(entry._replace(inputs=inputs))
        return found

    def _line(self, line: Instruction, producer: dict[Slot, Instruction]) -> ChainLine | None:
        """The function of a line and what it reads; None if it changes nothing."""
        return ChainLine(self._function(line), line.inputs, line.outputs)

    def _local(self, what: Local, inputs: Sequence[Any]) -> Runner:
        engine = self.engine
        if len(what.results) == 1:
            return lambda *data: engine.local(what, data)[0]
        return lambda *data: engine.local(what, data)

    def _step(self, what: Step) -> Runner:
        engine = self.engine
        return lambda data: engine.step(what, data)

    def _fused(self, what: Fused) -> Runner:
        engine = self.engine
        return lambda *data: engine.fused(what, data)

    def _scan(self, what: Scan) -> Runner:
        return scanned(self.engine, what, self.function(what.body))

    def _function(self, line: Instruction) -> Runner:
        """The function of one instruction: one result bare, several as a tuple."""
        what, engine = line.what, self.engine
        if isinstance(what, Local):
            return self._local(what, line.inputs)
        if isinstance(what, Fused):
            return self._fused(what)
        if isinstance(what, Step):
            return self._step(what)
        if isinstance(what, ToLocal):
            return lambda data: engine.lanes(data, what.layout)
        if isinstance(what, FromLocal):
            return lambda data: engine.from_lanes(data, what.layout)
        if isinstance(what, LocalStep):
            return lambda data: engine.run(what.collective, data)
        if isinstance(what, Each):
            return lambda *data: what.run(engine, *data)
        if isinstance(what, Choice):
            return _bared(choose(engine, what, self.function(what.true), self.function(what.false)))
        if isinstance(what, While):
            return _bared(repeat(engine, what, self.function(what.condition), self.function(what.body)))
        assert isinstance(what, Scan), what
        return self._scan(what)


class _Stacked(Compiler):
    """For stacked engines. With `totals` partial values are carried as what they come to."""

    engine: StackedEngine

    def __init__(self, engine: StackedEngine, totals: bool) -> None:
        super().__init__(engine)
        self.totals = totals

    def _line(self, line: Instruction, producer: dict[Slot, Instruction]) -> ChainLine | None:
        what, engine = line.what, self.engine
        if self.totals and line.plan is not None:
            operands = operands_of(line, producer)
            if operands is not None:
                return whole_line(engine.xp, line.plan, engine.operation(line.plan), operands, line.outputs)
        if isinstance(what, Step) and not isinstance(what, Fetch | Regroup) and self._is_relabelling(what):
            return None
        return super()._line(line, producer)

    def _is_relabelling(self, step: Step) -> bool:
        plain = step.here.is_plain and step.there.is_plain
        halo = step.source.halo or step.result.halo
        return plain or (self.totals and not halo)

    def _local(self, what: Local, inputs: Sequence[Any]) -> Runner:
        run_local = _with_summands(self.engine, what) if self.totals else self.engine.local
        if len(what.results) == 1:
            return lambda *data: run_local(what, data)[0]
        return lambda *data: run_local(what, data)

    def _fused(self, what: Fused) -> Runner:
        engine, pairs = self.engine, [(step.here, step.there) for step in what.steps]
        if self.totals:
            return lambda *data: data
        return lambda *data: tuple(engine.move(x, a, b) for x, (a, b) in zip(data, pairs, strict=True))

    def _step(self, what: Step) -> Runner:
        if isinstance(what, Fetch) and self.totals:
            return fetching(what, 0, self.engine.xp)
        if isinstance(what, Regroup) and self.totals:
            return lambda data: data.reshape(what.result_shape)
        return super()._step(what)

    def _scan(self, what: Scan) -> Runner:
        if self.totals:
            stacked = tuple((at.settled, dtype) for at, dtype in what.stacked)
            what = replace(what, tables=tuple(layout.settled for layout in what.tables), stacked=stacked)
        return super()._scan(what)


def whole_line(
    xp: Any, plan: OperationPlan, function: Runner, inputs: tuple[Any, ...], outputs: tuple[Slot, ...]
) -> ChainLine:
    """An operation on whole tensors as a line; NumPy's may be folded into others, or run some rows at a time."""
    if xp is not NUMPY:
        return ChainLine(function, inputs, outputs)
    return ChainLine(function, inputs, outputs, row_operation(plan, function), plan)


def _with_summands(engine: StackedEngine, local: Local) -> Callable[..., tuple[Any, ...]]:
    """A kernel on lanes between values that are carried as what they come to."""
    if all(layout.is_plain for layout in (*local.operands, *local.results)):
        return engine.local

    def run(local: Local, data: Any) -> tuple[Any, ...]:
        layouts = iter(local.operands)
        given = [engine.move(x, (at := next(layouts)).settled, at) if hasattr(x, "dtype") else x for x in data]
        made = zip(engine.local(local, given), local.results, strict=True)
        return tuple(engine.move(x, layout, layout.settled) for x, layout in made)

    return run


def operands_of(line: Instruction, producer: Mapping[Slot, Instruction]) -> tuple[Any, ...] | None:
    """The operands of the operation that a line is the last instruction of, in their places; None where passes have changed
    what comes before it."""
    plan = line.plan
    assert plan is not None
    found: dict[int, Any] = {}
    made = {slot: at for at, instruction in enumerate(plan.instructions) for slot in instruction.outputs}

    def matched(at: int, line: Instruction) -> bool:
        instruction = plan.instructions[at]
        if len(instruction.inputs) != len(line.inputs) or type(instruction.what) is not type(line.what):
            return False
        for slot, x in zip(instruction.inputs, line.inputs, strict=True):
            if slot not in made:
                if found.setdefault(slot.number, x) is not x and found[slot.number] != x:
                    return False
            elif not isinstance(x, Slot) or x not in producer or not matched(made[slot], _own_line(producer[x], x)):
                return False
        return True

    if not matched(len(plan.instructions) - 1, line) or len(found) != len(plan.kinds):
        return None
    return tuple(found[i] for i in range(len(plan.kinds)))


def _own_line(line: Instruction, slot: Slot) -> Instruction:
    """The line that makes a value alone: of several reductions in one message, its own."""
    if not isinstance(line.what, Fused):
        return line
    at = line.outputs.index(slot)
    return Instruction(line.what.steps[at], (line.inputs[at],), (slot,))


def _name(slot: Slot) -> str:
    return f"v{slot.number}"


def _literal(bound: dict[str, Any], value: Any) -> str:
    name = f"c{len(bound)}"
    bound[name] = value
    return name


def _bare(values: Any) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _bared(function: Runner) -> Runner:
    return lambda *data: _bare(function(*data))


def scanned(engine: Any, what: Scan, body: Runner) -> Runner:
    """A scan on any engine that can take a row of a table and stack rows."""
    count, own = what.carried, what.carried + len(what.tables)

    def run(*data: Any) -> Any:
        state, tables, inside = tuple(data[:count]), data[count:own], data[own:]
        collected: list[list[Any]] = [[] for _ in what.stacked]
        for at in range(what.rounds):
            rows = [engine.row(x, layout, at) for x, layout in zip(tables, what.tables, strict=True)]
            made = body(*state, *rows, *inside)
            state = tuple(made[:count])
            for some, y in zip(collected, made[count:], strict=True):
                some.append(y)
        ys = [engine.stack(some, *kind) for some, kind in zip(collected, what.stacked, strict=True)]
        return _bare((*state, *ys))

    return run
