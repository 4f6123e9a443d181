"""Running: a final program becomes one Python function on the engine's data, with nothing to decide any more."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.engines import Stacked, engine_named
from shardwright.lowering import Plan, unpartial
from shardwright.ops import OPS, Call, Rule
from shardwright.plan import Step
from shardwright.program.node import Node, Program
from shardwright.program.passes import Fused
from shardwright.sharding import Layout, layout_of

Runner = Callable[..., Any]


def layout(node: Node, index: int = 0) -> Layout:
    """The layout of a node's result."""
    shape, _, sharding = node.types[index]
    assert sharding is not None
    return layout_of(sharding, shape)


def compiled(program: Program) -> Runner:
    """A function from the inputs' data to a tuple of the outputs' data.

    Every node is a line that calls what the node needs, bound beforehand; a value is let go after its last use.
    """
    engine = engine_named(program.mesh.engine)
    users = program.users
    deferred = {node for node in program.nodes if _fuses(node, users, program)}
    names = {node: f"v{at}" for at, node in enumerate(program.nodes)}
    bound: dict[str, Any] = {}
    lines: list[str] = []
    last = {
        x: node
        for node in program.nodes
        if node not in deferred
        for x in _operands(node, deferred)
        if isinstance(x, Node)
    }
    kept = {*program.outputs, *program.constants}
    for node, value in program.constants.items():
        bound[names[node]] = value.data
    for node in program.nodes:
        if node in program.inputs or node in program.constants or node in deferred:
            continue
        operands = _operands(node, deferred)
        function, args = _call(engine, node, operands, deferred)
        bound[f"f{names[node]}"] = function
        spelled = [names[x] if isinstance(x, Node) else _literal(bound, x) for x in args]
        lines.append(f"{names[node]} = f{names[node]}({', '.join(spelled)})")
        values = [x for x in dict.fromkeys(args) if isinstance(x, Node) and x not in kept]
        done = [names[x] for x in values if last[x] is node]
        if done:
            lines.append(f"del {', '.join(done)}")
    result = ", ".join(names[node] for node in program.outputs)
    head = f"def run({', '.join(names[node] for node in program.inputs)}):"
    local = [f"    {line}" for line in lines]
    source = "\n".join([head, *local, f"    return ({result}{',' if program.outputs else ''})"])
    exec(compile(source, "<program>", "exec"), bound)  # our own text, names and calls only
    return bound["run"]


def _literal(bound: dict[str, Any], value: Any) -> str:
    name = f"c{len(bound)}"
    bound[name] = value
    return name


def _fuses(node: Node, users: dict[Node, list[Node]], program: Program) -> bool:
    """Whether a partial product is only read by its reduction: then both are one call."""
    if not isinstance(node.how, Plan) or not node.how.lazy or node in program.outputs or len(users[node]) != 1:
        return False
    (user,) = users[node]
    if not isinstance(user.how, Step) or user.op not in ("all_reduce", "reduce_scatter"):
        return False
    return not layout(user).partial_lanes and layout(node).sharding.reduction == "sum"


def _operands(node: Node, deferred: set[Node]) -> Sequence[Any]:
    return node.nodes[0].inputs if node.nodes and node.nodes[0] in deferred else node.inputs


def _call(engine: Stacked, node: Node, operands: Sequence[Any], deferred: set[Node]) -> tuple[Runner, Sequence[Any]]:
    """The function of a node's line, and its arguments."""
    how = node.how
    if isinstance(how, Step):
        source, target = layout(node.nodes[0]), layout(node)
        if node.nodes[0] in deferred:
            return _reduced_product(engine, node.nodes[0], target), operands
        return lambda data: engine.reshard(data, source, target), operands
    if isinstance(how, Fused):
        pairs = [(layout(x), layout(node, at)) for at, x in enumerate(node.nodes)]
        return lambda *data: [engine.reshard(x, a, b) for x, (a, b) in zip(data, pairs, strict=True)], operands
    if node.op == "pick":
        index = node.attrs["index"]
        return lambda values: values[index], operands
    if isinstance(how, Plan):
        return _local(engine, node, how), operands
    if isinstance(how, Rule):
        call = Call(how, (), (layout(node),), node.attrs, len(layout(node).lanes))
        kernel = OPS[node.op].kernel
        return lambda: np.asarray(kernel(call)), ()
    return how["run"], operands


def _local(engine: Stacked, node: Node, plan: Plan) -> Runner:
    """The local computation of an operation whose operands are in place."""
    arrays = [x for x in node.inputs if isinstance(x, Node)]
    as_they_are = all(layout(x) is wanted for x, wanted in zip(arrays, plan.operands, strict=True))
    plain = plan.local_call() if as_they_are else None
    if plain is not None:
        return plain
    place = _placing(engine, node, plan)
    if len(plan.results) == 1:
        return lambda *data: plan.compute(place(data))[0]
    return lambda *data: plan.compute(place(data))


def _reduced_product(engine: Stacked, product: Node, target: Layout) -> Runner:
    plan = product.how
    done = unpartial(plan.results[0])
    place = _placing(engine, product, plan)
    return lambda *data: engine.reshard(plan.contracted(place(data), True), done, target)


def _placing(engine: Stacked, node: Node, plan: Plan) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What brings operands to the lanes that a plan counts by: nothing, or reshapes where axes are cut finer."""
    wanted = iter(plan.operands)
    pairs = [(layout(x), next(wanted)) if isinstance(x, Node) else None for x in node.inputs]
    if all(pair is None or pair[0] is pair[1] for pair in pairs):
        return lambda data: data
    return lambda data: [x if pair is None else engine.reshard(x, *pair) for x, pair in zip(data, pairs, strict=True)]
