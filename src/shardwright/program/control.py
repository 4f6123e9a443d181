"""Control flow on traced values: `cond`, `while_loop` and `scan`. On values that are known they are Python's own.

A branch or a body is a program of its own. What it reads from outside is captured: one more operand of the step. What a loop
carries lies the same way before and after every round.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.array import Array
from shardwright.dispatch import mind_gathers, source_line
from shardwright.errors import ProgramError
from shardwright.lowering import Attrs
from shardwright.numpy import stack
from shardwright.plan import gathered_dims, plan_reshard
from shardwright.program.lower import lower
from shardwright.program.node import Node, Program, Type
from shardwright.program.partition import Partitioner, is_collective, moved
from shardwright.program.run import compiled, layout
from shardwright.program.trace import Trace, Traced, current_trace, trace
from shardwright.sharding import P, Sharding
from shardwright.trees import flatten, paths_of, structure_of, unflatten

Fn = Callable[..., Any]


class Part:
    """A function inside a program, traced: its program, what it captures, the tree it gives."""

    def __init__(self, function: Fn, tree: Any, types: Sequence[Type], names: Sequence[str], outer: Trace) -> None:
        made: dict[str, Any] = {}

        def flat(*leaves: Any) -> list[Any]:
            outs, made["tree"] = flatten(function(*unflatten(tree, list(leaves))))
            return [_as_array(x, outer) for x in outs]

        self.program, inner = trace(flat, types, outer.mesh, names)
        self.tree: Any = made["tree"]
        self.captured = [inner.captured[node] for node in self.program.inputs[len(types) :]]
        self.types = [node.type for node in self.program.outputs]


def _as_array(x: Any, outer: Trace) -> Any:
    """A leaf as an array: numbers and host tensors are replicated."""
    if isinstance(x, Array):
        return x
    probe = outer.value(outer.graph.add("input", (), (Type((), np.dtype(np.float64)),), key="probe"))
    return probe.beside(np.asarray(x))


def _leaves(tree: Any, outer: Trace) -> tuple[list[Any], Any, list[str]]:
    leaves, structure = flatten(tree)
    names = [path or "carry" for path in paths_of(tree)]
    return [_as_array(x, outer) for x in leaves], structure, names


def _step(
    outer: Trace, op: str, operands: Sequence[Any], types: Sequence[Type], how: dict[str, Any], lowering: Fn
) -> list[Any]:
    nodes = [outer.node_of(x) for x in operands]
    node = outer.graph.add(op, nodes, types, Attrs(lower=lowering), source_line(), how)
    return [outer.value(outer.graph.pick(node, at)) for at in range(len(types))]


def _same_tree(what: str, a: Any, b: Any, types: Sequence[Type], others: Sequence[Type], names: Sequence[str]) -> None:
    if a != b:
        raise ProgramError(f"{what} give different trees: {a} and {b}. Give the same structure from both.")
    for at, (one, other) in enumerate(zip(types, others, strict=True)):
        if one[:2] != other[:2]:
            name = names[at] if at < len(names) else f"result {at}"
            raise ProgramError(f"{what}: {name!r} is {one} on one side and {other} on the other. Make both alike.")


# -- cond -----------------------------------------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Fn, false_fn: Fn, *operands: Any) -> Any:
    """`true_fn(*operands)` if a condition holds, else `false_fn(*operands)`; in a program only the branch taken runs.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 1)
    2
    """
    outer = current_trace()
    if outer is None or not isinstance(pred, Traced):
        return true_fn(*operands) if bool(pred) else false_fn(*operands)
    if pred.shape != ():
        raise ProgramError(f"cond: the condition has shape {pred.shape}; it must be one boolean.")
    given, structure = flatten(operands)
    places = [
        at for at, x in enumerate(given) if isinstance(x, Array | np.ndarray | np.generic)
    ]  # numbers stay what they are
    leaves = [_as_array(given[at], outer) for at in places]
    names = [paths_of(operands)[at] for at in places]

    def with_numbers(fn: Fn) -> Fn:
        def run(*values: Any) -> Any:
            filled = list(given)
            for at, value in zip(places, values, strict=True):
                filled[at] = value
            return fn(*unflatten(structure, filled))

        return run

    types = [Type(x.shape, x.dtype) for x in leaves]
    flat = structure_of(tuple(leaves))
    yes, no = (Part(with_numbers(fn), flat, types, names, outer) for fn in (true_fn, false_fn))
    _same_tree("cond: the branches", yes.tree, no.tree, yes.types, no.types, ())
    captured = [*yes.captured, *no.captured]
    count = len(leaves)

    def lowering(partitioner: Partitioner, node: Node) -> Node:
        first, *rest = (partitioner.made[x] for x in node.nodes)
        shared, mine, others = rest[:count], rest[count : count + len(yes.captured)], rest[count + len(yes.captured) :]
        given = [[*map(_settled, shared), *map(_settled, some)] for some in (mine, others)]
        one = lower(yes.program, given[0])
        other = lower(no.program, given[1], [n.type.sharding for n in one.outputs])
        run_one, run_other = compiled(one), compiled(other)
        single = len(node.types) == 1

        def run(flag: Any, *data: Any) -> Any:
            k = count + len(mine)
            made = run_one(*data[:k]) if bool(flag.ravel()[0]) else run_other(*data[:count], *data[k:])
            return made[0] if single else made

        whole = moved(partitioner.graph, first, Sharding(partitioner.program.mesh), node.source)
        ready = [moved(partitioner.graph, x, _settled(x), node.source) for x in rest]
        types = [n.type for n in one.outputs]
        return partitioner.graph.add(
            "cond", [whole, *ready], types, node.attrs, node.source, {"true": one, "false": other, "run": run}
        )

    made = _step(
        outer, "cond", [pred, *leaves, *captured], yes.types, {"true": yes.program, "false": no.program}, lowering
    )
    return unflatten(yes.tree, made)


def _settled(node: Node) -> Sharding:
    """A value's sharding once its reduction is done."""
    assert node.type.sharding is not None
    return node.type.sharding.replace(partial=(), halo={}).for_shape(node.type.shape)


# -- loops ----------------------------------------------------------------------------------------------------------------


def while_loop(cond_fn: Fn, body_fn: Fn, init: Any) -> Any:
    """`init = body_fn(init)` as long as `cond_fn(init)` holds. In a program the numbers it carries are arrays (i64, f64).

    >>> while_loop(lambda n: n < 100, lambda n: n * 2, 3)
    192
    """
    outer = current_trace()
    if outer is None:
        value = init
        while bool(cond_fn(value)):
            value = body_fn(value)
        return value
    leaves, tree, names = _leaves(init, outer)
    types = [Type(x.shape, x.dtype) for x in leaves]
    wrapped = structure_of((unflatten(tree, leaves),))
    test, body = (Part(fn, wrapped, types, names, outer) for fn in (cond_fn, body_fn))
    _same_tree("while_loop: what goes in and what comes out", tree, body.tree, types, body.types, names)
    if len(test.types) != 1 or test.types[0].shape != ():
        raise ProgramError(
            f"while_loop: the condition gives {', '.join(map(str, test.types))}; it must be one boolean."
        )
    count, n_body = len(leaves), len(body.captured)

    def lowering(partitioner: Partitioner, node: Node) -> Node:
        values = [partitioner.made[x] for x in node.nodes]
        carried, shardings, final, more = _loop_body(
            partitioner, body.program, values[: count + n_body], count, count, names
        )
        rest = values[count + n_body :]
        check = lower(test.program, [*shardings, *map(_settled, rest)], [Sharding(partitioner.program.mesh)])
        run_body, run_test = compiled(final), compiled(check)

        def run(*data: Any) -> Any:
            state, inside, outside = data[:count], data[count : count + n_body], data[count + n_body :]
            while bool(run_test(*state, *outside)[0].ravel()[0]):
                state = run_body(*state, *inside)
            return state[0] if count == 1 else state

        ready = [moved(partitioner.graph, x, _settled(x), node.source) for x in rest]
        types = [Type(t.shape, t.dtype, s) for t, s in zip(body.types, shardings, strict=True)]
        how = {"condition": check, "body": final, "run": run}
        return partitioner.graph.add("while", [*carried, *more, *ready], types, node.attrs, node.source, how)

    how = {"condition": test.program, "body": body.program}
    made = _step(outer, "while", [*leaves, *body.captured, *test.captured], body.types, how, lowering)
    return unflatten(tree, made)


def scan(body: Fn, init: Any, xs: Any = None, length: int | None = None) -> Any:
    """`carry, y = body(carry, x)` for every row of `xs`: the last carry, and all y stacked. In a program the numbers it carries
    are arrays (i64, f64), and no rounds give y without rows instead of None.

    >>> scan(lambda total, _: (total + 1, None), 0, length=3)
    (3, None)
    """
    for x in flatten(xs)[0]:
        if not getattr(x, "shape", ()):
            raise ProgramError(f"scan: {x!r} in xs has no rows. Give arrays with a leading dim, one row a round.")
    sizes = {x.shape[0] for x in flatten(xs)[0]} | ({length} if length is not None else set())
    if len(sizes) != 1:
        raise ProgramError(
            f"scan: the leading dims of xs and length are {sorted(sizes) or 'not given'}; there must be one number of rounds."
        )
    (rounds,) = sizes
    outer = current_trace()
    if outer is None:
        return _scan_now(body, init, xs, rounds)
    leaves, tree, names = _leaves(init, outer)
    rows, row_tree, _ = _leaves(xs, outer)
    types = [Type(x.shape, x.dtype) for x in leaves]
    each = [Type(x.shape[1:], x.dtype) for x in rows]
    row_names = [f"row of xs {i}" for i in range(len(rows))]
    pair = structure_of((unflatten(tree, leaves), unflatten(row_tree, rows)))
    part = Part(body, pair, [*types, *each], [*names, *row_names], outer)
    new_tree, y_tree = _halves(part.tree)
    count = len(leaves)
    _same_tree("scan: what goes in and what comes out", tree, new_tree, types, part.types[:count], names)
    made_types = [*part.types[:count], *(Type((rounds, *t.shape), t.dtype) for t in part.types[count:])]
    n_rows = len(rows)

    def lowering(partitioner: Partitioner, node: Node) -> Node:
        values = [partitioner.made[x] for x in node.nodes]
        whole = [_all_rows(partitioner, x, node.source) for x in values[count : count + n_rows]]
        slices = [_sliced(x) for x in whole]
        given = [*values[:count], *slices, *values[count + n_rows :]]
        carried, shardings, final, more = _loop_body(partitioner, part.program, given, count, count + n_rows, names)
        run_body = compiled(final)
        leads = [len(layout(x).lanes) for x in whole]
        outs = [n.type for n in final.outputs]
        stacked = [
            Type((rounds, *t.shape), t.dtype, _with_rows(t.sharding)) for t in outs[count:] if t.sharding is not None
        ]
        y_leads = [len(layout(n).lanes) for n in final.outputs[count:]]

        def run(*data: Any) -> Any:
            state, table, inside = data[:count], data[count : count + n_rows], data[count + n_rows :]
            ys: list[list[Any]] = [[] for _ in stacked]
            for at in range(rounds):
                row = [x[(slice(None),) * lead + (at,)] for x, lead in zip(table, leads, strict=True)]
                result = run_body(*state, *row, *inside)
                state = result[:count]
                for some, y in zip(ys, result[count:], strict=True):
                    some.append(y)
            tables = [
                np.stack(some, axis=lead) if some else _no_rows(kind)
                for some, lead, kind in zip(ys, y_leads, stacked, strict=True)
            ]
            made = (*state, *tables)
            return made[0] if len(made) == 1 else made

        types = [*(Type(t.shape, t.dtype, s) for t, s in zip(part.types[:count], shardings, strict=True)), *stacked]
        how = {"body": final, "run": run, "rounds": rounds}
        return partitioner.graph.add("scan", [*carried, *whole, *more], types, node.attrs, node.source, how)

    made = _step(outer, "scan", [*leaves, *rows, *part.captured], made_types, {"body": part.program}, lowering)
    return unflatten(tree, made[:count]), unflatten(y_tree, made[count:])


def _scan_now(body: Fn, carry: Any, xs: Any, rounds: int) -> Any:
    rows, row_tree = flatten(xs)
    ys = []
    for at in range(rounds):
        carry, y = body(carry, unflatten(row_tree, [x[at] for x in rows]))
        ys.append(y)
    if not ys:
        return carry, None
    columns = zip(*(flatten(y)[0] for y in ys), strict=True)
    join = [stack(list(c)) if isinstance(c[0], Array) else np.stack(c) for c in columns]
    return carry, unflatten(flatten(ys[0])[1], join)


def _halves(tree: Any) -> tuple[Any, Any]:
    """The trees of a (carry, y) pair."""
    children = tree.children()
    if len(children) != 2:
        raise ProgramError(
            f"scan: the body gives {len(children)} values; it must give a pair (carry, y), y None if there is none."
        )
    return children[0], children[1]


def _all_rows(partitioner: Partitioner, node: Node, source: str) -> Node:
    """A table with all rows on every device; gathering them is something to mind."""
    there = _rows_whole(node)
    assert node.type.sharding is not None
    dims = gathered_dims(node.type.sharding, there)
    if 0 in dims:
        plan = plan_reshard(node.type.shape, node.type.dtype, there.mesh, node.type.sharding, there)
        gathers = [("scan", f"{node.type} on {there.mesh}", dims, plan.bytes_received)]
        mind_gathers(gathers, source)
        partitioner.notes.append(f"scan gathers dim 0 of {node.type}: {plan.bytes_received:,} B ({source})")
    return moved(partitioner.graph, node, there, source)


def _rows_whole(node: Node) -> Sharding:
    """A table's sharding with all rows on every device: rounds take one each."""
    here = _settled(node)
    cuts = {d: here.offsets_of(d) for d in range(1, here.ndim) if here.offsets_of(d)}
    return Sharding(here.mesh, P(None, *here.dims[1:]), offsets=cuts).for_shape(node.type.shape)


def _sliced(node: Node) -> Node:
    """What stands for one row of a table."""
    here = _settled(node)
    cuts = {d - 1: here.offsets_of(d) for d in range(1, here.ndim) if here.offsets_of(d)}
    shape = node.type.shape[1:]
    sharding = Sharding(here.mesh, P(*here.dims[1:]), offsets=cuts).for_shape(shape)
    return Node(-1, "row", (), Attrs(), (Type(shape, node.type.dtype, sharding),), "", None)


def _with_rows(sharding: Sharding) -> Sharding:
    cuts = {d + 1: given for d, given in enumerate(sharding.offsets) if given}
    return Sharding(sharding.mesh, P(None, *sharding.dims), offsets=cuts)


def _no_rows(kind: Type) -> Any:
    node = Node(-1, "empty", (), Attrs(), (kind,), "", None)
    there = layout(node)
    return np.zeros((*there.lane_shape, *there.local_shape), kind.dtype)


def _loop_body(
    partitioner: Partitioner, program: Program, values: Sequence[Node], count: int, fixed: int, names: Sequence[str]
) -> tuple[list[Node], list[Sharding], Program, list[Node]]:
    """A loop's body lowered so that what it carries lies alike before and after: the carried values in place, their
    shardings, the body, and what it captures, laid out once outside as the body wants it.

    Carried values lie as the body leaves them if it then leaves them so again, else as they come in.
    """
    here = [_settled(x) for x in values[:count]]
    rest = [_settled(x) for x in values[count:]]
    said = [node.attrs["sharding"] if node.op == "constraint" else None for node in program.outputs[:count]]
    for at, there in enumerate(said):
        if there is not None and there is not here[at]:
            raise ProgramError(
                f"The carried value {names[at]!r} comes in as {values[at].type._replace(sharding=here[at])} and a constraint "
                f"at {program.outputs[at].source} leaves it as {program.outputs[at].type._replace(sharding=there)}. "
                f"What a loop carries lies alike before and after: constrain the initial value the same way."
            )
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
    graph = partitioner.graph
    carried = [moved(graph, x, s, x.source) for x, s in zip(values[:count], here, strict=True)]
    outside = [moved(graph, x, s, x.source) for x, s in zip(values[fixed:], rest[fixed - count :], strict=True)]
    return carried, here, final, outside


def _hoisted(final: Program, fixed: int, now: Sequence[Sharding]) -> list[Sharding]:
    """Where captured values should lie: as the body's first move would leave them, if all it does with them is to move
    them there. The move then happens once, outside."""
    users = final.users
    result = list(now)
    for at, node in enumerate(final.inputs[fixed:]):
        reads = set(users[node])
        if len(reads) == 1 and node not in final.outputs:
            (user,) = reads
            if is_collective(user):
                result[at] = user.how.result
    return result
