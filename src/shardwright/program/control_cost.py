"""What a loop or a choice costs and where its operands and results lie, as propagation lays it out: for planners."""

import math
import warnings
from collections.abc import Mapping
from itertools import zip_longest
from typing import NamedTuple

from shardwright.errors import ImplicitGatherError, ProgramError
from shardwright.plan import places
from shardwright.program.explaining import explained
from shardwright.program.lowering import WithControl
from shardwright.program.node import Graph, Node, Program
from shardwright.program.propagate import Propagation
from shardwright.sharding import Sharding


class ControlOption(NamedTuple):
    """Where operands and results of a loop or a choice lie, its seconds, the bytes that a device holds in it, and the program
    that it then is."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    seconds: float
    memory: int
    program: Program


MOST = 24  # layouts of a loop or a choice that are looked at beside what is fixed, and as many without it


def controlled(program: Program, node: Node, fixed: Mapping[Node, Sharding]) -> tuple[ControlOption, ...]:
    """The loop or choice as propagation lays it out: from what is fixed, and from places of the values that it reads, one of
    each in turn, the largest value first. Values that nothing is said of are whole. The same from these places alone: what is
    fixed may be moved to where the loop takes less, and layouts of a plan must remain when its places are fixed."""
    by_size = sorted(dict.fromkeys(node.nodes), key=lambda x: -math.prod(x.type.shape) * x.type.dtype.itemsize)
    open_values = [value for value in by_size if value.type.sharding is None]
    turns = zip_longest(
        *[[{value: there} for there in places(program.mesh, value.type.shape)] for value in open_values]
    )
    alone: list[dict[Node, Sharding]] = [{}, *[start for turn in turns for start in turn if start is not None]]
    led = [{**fixed, **more} for more in alone if fixed.keys().isdisjoint(more)]
    found: dict[tuple[Sharding, ...], ControlOption] = {}
    refused: ImplicitGatherError | ProgramError | None = None
    for start in (*led[:MOST], *(alone[:MOST] if fixed else ())):
        known = Propagation(program, start)
        where = tuple(
            (known.wanted(x) or Sharding(program.mesh)).replace(partial=(), halo={}).for_shape(x.type.shape)
            for x in node.nodes
        )
        if where in found:
            continue
        try:
            found[where] = _laid_out(program, node, known, where)
        except (ImplicitGatherError, ProgramError) as error:
            # No layouts: under `strict` those that gather, and those in which a constraint leaves a carried value elsewhere.
            refused = refused or error
    if not found:
        assert refused is not None
        raise refused
    return tuple(sorted(found.values(), key=lambda option: (option.memory, [s.dims for s in option.operands])))


def _laid_out(program: Program, node: Node, known: Propagation, where: tuple[Sharding, ...]) -> ControlOption:
    graph = Graph()
    inputs = [
        graph.input(at, x.type._replace(sharding=there))
        for at, (x, there) in enumerate(zip(node.nodes, where, strict=True))
    ]
    partitioner = WithControl(program, known)
    partitioner.graph = graph
    partitioner.made = dict(zip(node.nodes, inputs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is only tried is not warned of
        made = partitioner.control(node)
    outputs = [graph.pick(made, at) for at in range(len(made.types))]
    partitioned = Program(program.mesh, list(dict.fromkeys(inputs)), outputs)
    alone = explained(partitioned)
    results = tuple(kind.sharding for kind in made.types)
    assert all(s is not None for s in results)
    return ControlOption(where, results, alone.time, alone.peak_bytes, partitioned)  # type: ignore[arg-type]
