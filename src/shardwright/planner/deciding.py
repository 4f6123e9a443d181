"""From a choice of options to a decision that a partitioner follows, and what it finds wanting in the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.plan import Option
from shardwright.planner.model import BESIDE, Model
from shardwright.program.node import Control, Node
from shardwright.program.planned import Decision
from shardwright.sharding import Sharding

Hubs = dict[tuple[Node, int], list[tuple[Node, int]]]


def decision_of(
    model: Model, choice: Sequence[int], hubs: Mapping[tuple[Node, int], Sequence[tuple[Node, int]]]
) -> Decision:
    """Where everything lies under a choice."""
    decision = Decision()
    for number, (variable, at) in enumerate(zip(model.variables, choice, strict=True)):
        option, node = variable.options[at], variable.node
        if variable.kind == "output":
            continue
        if variable.kind == "hub":
            if variable.number == 0:
                decision.hubs[node] = option
            else:
                own = hubs.get((node, variable.number))
                for reader in model.beside[node] if own is None else [reader for reader, _ in own]:
                    decision.several[node, reader] = (*decision.several.get((node, reader), ()), option)
        elif isinstance(option, Option):
            decision.strategies[node] = option.strategy
        elif isinstance(node.what, Control):
            decision.operands[node] = option.operands
        else:
            decision.places[node] = option
        assert model.of_node.get(node, number) is not None
    for output in model.outputs:
        place: Sharding | None = None if output is None else model.variables[output].options[choice[output]]
        decision.outputs.append(place)
    return decision


Moved = tuple[Sharding, Sharding, tuple[int, ...], Any]  # from where, to where, shape and dtype


def counted_twice(model: Model, choice: Sequence[int], known: Hubs) -> Hubs:
    """Moves that several readers of a value make alike, each counted: such readers get a place of their own to share."""
    groups: dict[tuple[int, Node, Sharding], list[tuple[Node, int]]] = {}
    tables = model.tables.values
    for (before, after, node, at), table in zip(model.edges, model.moves, strict=True):
        reader = model.variables[after]
        if reader.kind == "hub" or not tables[table][choice[before], choice[after]]:
            continue
        option = reader.options[choice[after]]
        there = option if isinstance(option, Sharding) else option.operands[at]
        groups.setdefault((before, node, there), []).append((reader.node, after))
    found: Hubs = {}
    for (before, node, _), readers in groups.items():
        hub = model.variables[before]
        shared = BESIDE if node in model.beside else 0
        if len({number for _, number in readers}) > 1 and hub.kind == "hub" and hub.number == shared:
            at = 1
            while (node, at) in known or (node, at) in found:
                at += 1
            found[node, at] = [(reader, number) for reader, number in readers if model.variables[number].kind == "node"]
    return {key: readers for key, readers in found.items() if len(readers) > 1}
