"""`measure`: a function run literally, message by message, beside what `explain` says of it."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.engines import Literal, Tally, engine_named, engine_of
from shardwright.plan import Code, Instruction, LocalShapes, parts_of
from shardwright.program.explaining import Ran, explained
from shardwright.program.explanation import Explanation
from shardwright.program.jit import lowered_for
from shardwright.program.node import Node, programs_in
from shardwright.program.run import code_of


def measure(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """The explanation of a function, with the bytes that devices really received when it ran on the literal engine.

    >>> import numpy as np
    >>> from shardwright.arrays import shard
    >>> from shardwright.mesh import Mesh
    >>> from shardwright.sharding import P
    >>> x = shard(np.ones((6, 10)), Mesh(x=4), P(None, "x"))
    >>> [(row.bytes, row.counted) for row in measure(lambda x: x.sum(axis=1), x).rows if row.bytes]
    [(80, 80)]

    The function is traced as `explain` does and the program runs on the literal twin of its mesh, whatever engine its arrays
    are on. In every row `counted` is what the busiest device received, `bytes` what was predicted; inside loops both are for
    one run, and `times` says how often a step ran.
    """
    lowered, leaves = lowered_for(function, "measure", args, kwargs)
    engine = engine_named("literal")
    assert isinstance(engine, Literal)
    engine.check(lowered.mesh)
    ran = Ran()
    here = engine_of(lowered.mesh)
    layouts = [*lowered.layouts, *lowered.constants]
    data = [
        engine.view(lowered.mesh, here.values(x))
        if isinstance(there, LocalShapes)
        else engine.assemble(here.values(here.lanes(x, there)), there)
        for x, there in zip(
            lowered.data(leaves, [known.array for known in lowered.outside.captured]), layouts, strict=True
        )
    ]
    nodes = _nodes_of(lowered.code, lowered.nodes)

    def watch(line: Instruction, tally: Tally) -> None:
        ran.add(nodes[id(line)], tally.busiest)

    engine.interpreter(lowered.code, watch)(*data)
    return explained(lowered.program, ran)


def _nodes_of(code: Code, nodes: Sequence[Node]) -> dict[int, Node]:
    """The node of every instruction, those inside loops and choices included."""
    found: dict[int, Node] = {}
    for line, node in zip(code.instructions, nodes, strict=True):
        found[id(line)] = node
        inner = programs_in(node.what)
        for name, part in parts_of(line.what):
            found |= _nodes_of(part, code_of(inner[name])[1])
    return found
