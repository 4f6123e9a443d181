"""Code as one generated Python function on a stacked engine's arrays, with nothing to decide any more."""

from collections.abc import Callable
from typing import Any, Protocol

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
    Reduce,
    Scan,
    Slot,
    Step,
    ToLocal,
    While,
)
from shardwright.sharding import Layout, layout_of

Runner = Callable[..., Any]


class StackedEngine(Protocol):
    """What is needed of the engine."""

    def local(self, local: Local, data: Any) -> tuple[Any, ...]: ...
    def plain(self, local: Local, scalars: bool) -> Callable[..., Any] | None: ...
    def product(self, local: Local, data: Any, reduce: bool) -> Any: ...
    def step(self, step: Step, data: Any) -> Any: ...
    def reshard(self, data: Any, source: Layout, target: Layout) -> Any: ...
    def row(self, data: Any, layout: Layout, at: int) -> Any: ...
    def lanes(self, data: Any, layout: Layout) -> Any: ...
    def from_lanes(self, lanes: Any, layout: Layout) -> Any: ...
    def run(self, collective: Any, lanes: Any) -> Any: ...
    def stack(self, rows: Any, layout: Layout, dtype: Any) -> Any: ...


def compiled(engine: StackedEngine, code: Code) -> Runner:
    """A function from the inputs' data to a tuple of the outputs' data.

    Every instruction is a line that calls what it needs, bound beforehand; a value is let go after its last use. A partial
    product that only its reduction reads is one call with it.
    """
    deferred = _deferred(code)
    lines = [_merged(line, deferred) for line in code.instructions if line.outputs[0] not in deferred]
    last = {x: at for at, line in enumerate(lines) for x in line.inputs if isinstance(x, Slot)}
    kept = {*code.outputs}
    bound: dict[str, Any] = {}
    text: list[str] = []
    for at, line in enumerate(lines):
        bound[f"f{at}"] = _function(engine, line, deferred)
        spelled = [_name(x) if isinstance(x, Slot) else _literal(bound, x) for x in line.inputs]
        made = ", ".join(map(_name, line.outputs))
        text.append(f"{made} = f{at}({', '.join(spelled)})")
        done = [x for x in dict.fromkeys(line.inputs) if isinstance(x, Slot) and last[x] == at and x not in kept]
        if done:
            text.append(f"del {', '.join(map(_name, done))}")
    result = ", ".join(map(_name, code.outputs))
    head = f"def run({', '.join(map(_name, code.inputs))}):"
    source = "\n".join([head, *(f"    {line}" for line in text), f"    return ({result}{',' if code.outputs else ''})"])
    exec(compile(source, "<program>", "exec"), bound)  # our own text, names and calls only
    run: Runner = bound["run"]
    return run


def _name(slot: Slot) -> str:
    return f"v{slot.number}"


def _literal(bound: dict[str, Any], value: Any) -> str:
    name = f"c{len(bound)}"
    bound[name] = value
    return name


def _deferred(code: Code) -> dict[Slot, Instruction]:
    """Partial products that are only read by their reduction."""
    readers, outputs = code.readers(), set(code.outputs)
    found: dict[Slot, Instruction] = {}
    for line in code.instructions:
        if not isinstance(line.what, Local) or line.what.name != "einsum" or line.outputs[0] in outputs:
            continue
        layout, users = line.what.results[0], readers.get(line.outputs[0], [])
        if not layout.partial_lanes or layout.sharding.reduction != "sum" or len(users) != 1:
            continue
        user = code.instructions[users[0]].what
        if isinstance(user, Reduce) and not user.there.partial_lanes:
            found[line.outputs[0]] = line
    return found


def _merged(line: Instruction, deferred: dict[Slot, Instruction]) -> Instruction:
    """A reduction of a deferred product reads the product's operands."""
    first = line.inputs[0] if line.inputs else None
    return line._replace(inputs=(*deferred[first].inputs,)) if first in deferred else line


def _function(engine: StackedEngine, line: Instruction, deferred: dict[Slot, Instruction]) -> Runner:
    """The function of a line: one result bare, several as a tuple."""
    what = line.what
    if isinstance(what, Local):
        scalars = any(not isinstance(x, Slot) for x in line.inputs)
        plain = engine.plain(what, scalars)
        if plain is not None:
            return plain
        if len(line.outputs) == 1:
            return lambda *data: engine.local(what, data)[0]
        return lambda *data: engine.local(what, data)
    if isinstance(what, Fused):
        pairs = [(step.here, step.there) for step in what.steps]
        return lambda *data: tuple(engine.reshard(x, a, b) for x, (a, b) in zip(data, pairs, strict=True))
    if isinstance(what, Reduce):
        product = next(
            (p.what for p in deferred.values() if p.what.results[0] is what.here and p.inputs == line.inputs), None
        )
        if product is not None:
            done = layout_of(what.here.sharding.replace(partial=()), what.shape, what.here.lanes)
            return lambda *data: engine.reshard(engine.product(product, data, True), done, what.there)
    if isinstance(what, Fetch):
        return lambda data: engine.step(what, data)
    if isinstance(what, Step):
        here, there = what.here, what.there
        return lambda data: engine.reshard(data, here, there)
    if isinstance(what, ToLocal):
        return lambda data: engine.lanes(data, what.layout)
    if isinstance(what, FromLocal):
        return lambda data: engine.from_lanes(data, what.layout)
    if isinstance(what, LocalStep):
        return lambda data: engine.run(what.collective, data)
    if isinstance(what, Each):
        run: Runner = what.run
        return run
    return _control(engine, what)


def _control(engine: StackedEngine, what: Any) -> Runner:
    if isinstance(what, Choice):
        return _choice(what, compiled(engine, what.true), compiled(engine, what.false))
    if isinstance(what, While):
        return _while(what, compiled(engine, what.condition), compiled(engine, what.body))
    assert isinstance(what, Scan), what
    return scanned(engine, what, compiled(engine, what.body))


def _bare(values: Any) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _choice(what: Choice, true: Runner, false: Runner) -> Runner:
    shared, own = what.shared, what.shared + what.captured

    def run(flag: Any, *data: Any) -> Any:
        return _bare(true(*data[:own]) if bool(flag.ravel()[0]) else false(*data[:shared], *data[own:]))

    return run


def _while(what: While, condition: Runner, body: Runner) -> Runner:
    count, own = what.carried, what.carried + what.captured

    def run(*data: Any) -> Any:
        state, inside, outside = data[:count], data[count:own], data[own:]
        while bool(condition(*state, *outside)[0].ravel()[0]):
            state = body(*state, *inside)
        return _bare(state)

    return run


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
