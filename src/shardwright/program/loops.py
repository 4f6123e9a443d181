"""Loops and choices lowered: their programs partitioned for where operands lie, carried values kept in one sharding."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from shardwright.eager import mind_gathers
from shardwright.errors import ProgramError
from shardwright.plan import ImplicitGather, Step, gathered_dims, move_steps
from shardwright.program.node import Cond, Constrain, Input, Loop, Node, Program, Rounds, Type, last_move, noted
from shardwright.program.partition import Partitioner, moved
from shardwright.sharding import P, Sharding

Lower = Callable[..., Program]


def lower_control(partitioner: Partitioner, node: Node, lower: Lower) -> Node:
    """The node of a loop or a choice, on operands in place."""
    if isinstance(node.what, Cond):
        return _cond(partitioner, node, node.what, lower)
    if isinstance(node.what, Loop):
        return _while(partitioner, node, node.what, lower)
    assert isinstance(node.what, Rounds), node.what
    return _scan(partitioner, node, node.what, lower)


def _settled(node: Node) -> Sharding | None:
    """A value's sharding once its reduction is done; a tensor per device has none."""
    if node.type.local is not None:
        return None
    assert node.type.sharding is not None
    return node.type.sharding.replace(partial=(), halo={}).for_shape(node.type.shape)


def _moved(partitioner: Partitioner, node: Node, there: Sharding | None, source: str) -> Node:
    """A value in another sharding; a tensor per device as it is."""
    return node if there is None else moved(partitioner.graph, node, there, source)


def _cond(partitioner: Partitioner, node: Node, what: Cond, lower: Lower) -> Node:
    first, *rest = (partitioner.made[x] for x in node.nodes)
    own = what.shared + what.captured
    shared = [_settled(x) for x in rest[: what.shared]]
    one = lower(what.true, [*shared, *map(_settled, rest[what.shared : own])])
    other = lower(what.false, [*shared, *map(_settled, rest[own:])], [n.type.sharding for n in one.outputs])
    everywhere = None if first.type.local is not None else Sharding(partitioner.program.mesh)
    whole = _moved(partitioner, first, everywhere, node.source)
    ready = [_moved(partitioner, x, _settled(x), node.source) for x in rest]
    types = [n.type for n in one.outputs]
    return partitioner.graph.add(replace(what, true=one, false=other), [whole, *ready], types, node.source)


def _while(partitioner: Partitioner, node: Node, what: Loop, lower: Lower) -> Node:
    values = [partitioner.made[x] for x in node.nodes]
    own = what.carried + what.captured
    body = _Body(partitioner, what.body, values[:own], what.carried, what.carried, what.names, node.source, lower)
    rest = values[own:]
    check = lower(what.condition, [*body.shardings, *map(_settled, rest)], [Sharding(partitioner.program.mesh)])
    ready = [_moved(partitioner, x, _settled(x), node.source) for x in rest]
    types = [t._replace(sharding=s) for t, s in zip(node.types, body.shardings, strict=True)]
    made = replace(what, condition=check, body=body.program)
    return partitioner.graph.add(made, [*body.carried, *body.captured, *ready], types, node.source)


def _scan(partitioner: Partitioner, node: Node, what: Rounds, lower: Lower) -> Node:
    values = [partitioner.made[x] for x in node.nodes]
    count, own = what.carried, what.carried + what.tables
    tables = [_all_rows(partitioner, x, node.source) for x in values[count:own]]
    given = [*values[:count], *map(_row_of, tables), *values[own:]]
    body = _Body(partitioner, what.body, given, count, own, what.names, node.source, lower)
    types = [t._replace(sharding=s) for t, s in zip(node.types[:count], body.shardings, strict=True)]
    for made in body.program.outputs[count:]:
        assert made.type.sharding is not None
        types.append(Type((what.rounds, *made.type.shape), made.type.dtype, _with_rows(made.type.sharding)))
    return partitioner.graph.add(
        replace(what, body=body.program), [*body.carried, *tables, *body.captured], types, node.source
    )


def _all_rows(partitioner: Partitioner, node: Node, source: str) -> Node:
    """A table with all rows on every device; gathering them is an implicit gather."""
    here = _settled(node)
    assert here is not None
    cuts = {d: here.offsets_of(d) for d in range(1, here.ndim) if here.offsets_of(d)}
    there = Sharding(here.mesh, P(None, *here.dims[1:]), offsets=cuts).for_shape(node.type.shape)
    assert node.type.sharding is not None
    dims = gathered_dims(node.type.sharding, there)
    if 0 in dims:
        steps = move_steps(node.type.sharding, there, node.type.shape, node.type.dtype)
        received = sum(step.received for step in steps)
        mind_gathers([ImplicitGather("scan", f"{node.type} on {there.mesh}", dims, received)], source)
        partitioner.notes.append(noted(f"scan gathers dim 0 of {node.type}: {received:,} B", source))
    return moved(partitioner.graph, node, there, source)


def _row_of(node: Node) -> Node:
    """A value that stands for one row of a table."""
    here = _settled(node)
    assert here is not None
    cuts = {d - 1: here.offsets_of(d) for d in range(1, here.ndim) if here.offsets_of(d)}
    shape = node.type.shape[1:]
    sharding = Sharding(here.mesh, P(*here.dims[1:]), offsets=cuts).for_shape(shape)
    return Node(-1, Input("row"), (), (Type(shape, node.type.dtype, sharding),), "")


def _with_rows(sharding: Sharding) -> Sharding:
    cuts = {d + 1: given for d, given in enumerate(sharding.offsets) if given}
    return Sharding(sharding.mesh, P(None, *sharding.dims), offsets=cuts)


class _Body:
    """A loop's body lowered so that what it carries has one sharding before and after every round.

    Carried values lie as the body leaves them if it then leaves them so again, else as they come in. What the body captures
    and only moves is moved once, outside.
    """

    def __init__(
        self,
        partitioner: Partitioner,
        program: Program,
        values: Sequence[Node],
        count: int,
        fixed: int,
        names: Sequence[str],
        source: str,
        lower: Lower,
    ) -> None:
        here = [_settled(x) for x in values[:count]]
        rest = [_settled(x) for x in values[count:]]
        self._check_constraints(program, values, here, names)
        more = [None] * (len(program.outputs) - count)
        natural = [_settled(node) for node in lower(program, [*here, *rest]).outputs[:count]]
        if natural != here:
            again = [_settled(node) for node in lower(program, [*natural, *rest]).outputs[:count]]
            here = natural if again == natural else here
        for _ in range(4):
            final = lower(program, [*here, *rest], [*here, *more])
            better = _hoisted(final, fixed, rest[fixed - count :])
            if better == rest[fixed - count :]:
                break
            rest[fixed - count :] = better
        self.shardings, self.program = here, final
        self.carried = [_moved(partitioner, x, s, source) for x, s in zip(values[:count], here, strict=True)]
        self.captured = [
            _moved(partitioner, x, s, source) for x, s in zip(values[fixed:], rest[fixed - count :], strict=True)
        ]

    def _check_constraints(
        self, program: Program, values: Sequence[Node], here: Sequence[Sharding | None], names: Sequence[str]
    ) -> None:
        for at, (node, sharding) in enumerate(zip(program.outputs, here, strict=False)):
            there = node.what.sharding if isinstance(node.what, Constrain) else None
            if there is not None and there is not sharding:
                raise ProgramError(
                    f"The carried value {names[at]!r} comes in as {values[at].type._replace(sharding=sharding)} and a "
                    f"constraint at {node.source} leaves it as {node.type._replace(sharding=there)}. What a loop carries "
                    f"lies alike before and after: constrain the initial value the same way."
                )


def _hoisted(final: Program, fixed: int, now: Sequence[Sharding | None]) -> list[Sharding | None]:
    """Where captured values should lie: as the body's first move would leave them, if all it does with them is to move
    them there. The move then happens once, outside."""
    users = final.users
    result = list(now)
    for at, node in enumerate(final.inputs[fixed:]):
        last = node
        while last not in final.outputs and len(reads := set(users[last])) == 1:
            last = reads.pop()
            if not isinstance(last.what, Step) or last.type.shape == node.type.shape:
                break  # a tensor that is regrouped on the way has its shape again at the end
        move = last_move(last)
        if move and move[-1].nodes[0] is node:
            result[at] = last.what.result
    return result
