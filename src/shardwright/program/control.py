"""Control flow on traced values: `cond`, `while_loop` and `scan`. On concrete values they are Python's own.

A branch or a body is a program of its own. What it reads from outside is captured: one more operand of the step.

Values may be tensors per device. A condition is then each device's own, and devices may decide differently. A collective
between devices that may is refused: some would wait for ever.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, PerDevice
from shardwright.eager import source_line
from shardwright.errors import ProgramError
from shardwright.mesh import overlap
from shardwright.numpy import stack
from shardwright.plan import LocalStep
from shardwright.program.local_tracing import TracedLocal
from shardwright.program.node import Cond, Input, Loop, Program, Rounds, Type, programs_in
from shardwright.program.tracing import Trace, Traced, current_trace, trace
from shardwright.trees import flatten, paths_of, structure_of, unflatten

Fn = Callable[..., Any]
Axes = tuple[str, ...]


class Part:
    """A function inside a program, traced: its program, what it captures, the tree it gives, and the axes along which each
    result may differ between devices."""

    def __init__(
        self,
        function: Fn,
        tree: Any,
        types: Sequence[Type],
        names: Sequence[str],
        outer: Trace,
        varies: Sequence[Axes],
    ) -> None:
        made: dict[str, Any] = {}

        def flat(*leaves: Any) -> list[Any]:
            outs, made["tree"] = flatten(function(*unflatten(tree, list(leaves))))
            values = [_as_array(x, outer) for x in outs]
            made["varies"] = [_varies(x) for x in values]
            return values

        self.program, inner = trace(flat, types, outer.mesh, names, varies)
        inner.mailbox.check(outer.mesh, "by the end of a loop or a branch")
        self.tree: Any = made["tree"]
        self.varies: list[Axes] = made["varies"]
        self.captured = [inner.captured[node] for node in self.program.inputs[len(types) :]]
        self.types = [node.type for node in self.program.outputs]


def _varies(x: Any) -> Axes:
    """The axes along which devices may hold different tensors; none for an array."""
    if not isinstance(x, PerDevice):
        return ()
    axes = x.varies if isinstance(x, TracedLocal) else x.mesh.axis_names
    return tuple(axis for axis in axes if x.mesh.axis(axis).size > 1)


def _type_of(x: Any) -> Type:
    if isinstance(x, PerDevice):
        return Type(x.local_shapes.largest, x.dtype, None, x.local_shapes)
    return Type(x.shape, x.dtype)


def _joined(*axes: Sequence[str]) -> Axes:
    return tuple(dict.fromkeys(axis for some in axes for axis in some))


def collectives_in(program: Program) -> list[LocalStep]:
    """The collectives on tensors per device of a program, those of loops and choices inside it too."""
    found = []
    for node in program.nodes:
        if isinstance(node.what, LocalStep):
            found.append(node.what)
        for part in programs_in(node.what).values():
            found += collectives_in(part)
    return found


def _check_alike(what: str, parts: Sequence[Part], varies: Axes) -> None:
    """Refuse collectives between devices that may decide differently."""
    for part in parts:
        for step in collectives_in(part.program):
            if any(overlap(step.mesh.axis(one), step.mesh.axis(other)) for one in step.axes for other in varies):
                raise ProgramError(
                    f"{what}: devices along {', '.join(map(repr, varies))} may decide differently, but {step.name} is over "
                    f"{', '.join(map(repr, step.axes))}, so some would wait for ever. Reduce or broadcast the condition over "
                    f"these axes first, or move the collective outside."
                )


def _as_array(x: Any, outer: Trace) -> Any:
    """A leaf as an array: scalars and host tensors are replicated. A tensor per device stays."""
    if isinstance(x, Array | PerDevice):
        return x
    probe = outer.value(outer.graph.add(Input("probe"), (), (Type((), np.dtype(np.float64)),)))
    return probe.beside(np.asarray(x))


def _own(tree: Any) -> Any:
    """A tree whose arrays are variables of their own: assigning to them changes none outside, as in a program."""
    leaves, structure = flatten(tree)
    own = [x.again() if isinstance(x, Array) else x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    return unflatten(structure, own)


def _leaves(tree: Any, outer: Trace) -> tuple[list[Any], Any, list[str]]:
    leaves, structure = flatten(tree)
    names = [path or "carry" for path in paths_of(tree)]
    return [_as_array(x, outer) for x in leaves], structure, names


def _step(
    outer: Trace, what: Any, operands: Sequence[Any], types: Sequence[Type], varies: Sequence[Axes] | None = None
) -> list[Any]:
    nodes = [outer.node_of(x) for x in operands]
    node = outer.graph.add(what, nodes, types, source_line())
    return [outer.result(outer.graph.pick(node, at), varies[at] if varies else ()) for at in range(len(types))]


def _same_tree(what: str, a: Any, b: Any, types: Sequence[Type], others: Sequence[Type], names: Sequence[str]) -> None:
    if a != b:
        raise ProgramError(f"{what} give different trees: {a} and {b}. Give the same structure from both.")
    for at, (one, other) in enumerate(zip(types, others, strict=True)):
        if one._replace(sharding=None) != other._replace(sharding=None):
            name = names[at] if at < len(names) else f"result {at}"
            raise ProgramError(f"{what}: {name!r} is {one} on one side and {other} on the other. Make both alike.")


# -- cond -----------------------------------------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Fn, false_fn: Fn, *operands: Any) -> Any:
    """`true_fn(*operands)` if a condition holds, else `false_fn(*operands)`; in a program only the branch taken runs.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 1)
    2
    """
    outer = current_trace()
    if outer is None or not isinstance(pred, Traced | TracedLocal):
        return _own((true_fn if bool(pred) else false_fn)(*_own(operands)))
    return chosen(outer, pred, true_fn, false_fn, operands)


def chosen(outer: Trace, pred: Any, true_fn: Fn, false_fn: Fn, operands: Sequence[Any], uniform: bool = False) -> Any:
    """`cond` on a traced condition; `uniform` says that it is the same on all devices though that is not seen."""
    if pred.shape != ():
        raise ProgramError(f"cond: the condition has shape {pred.shape}; it must be one boolean.")
    given, structure = flatten(tuple(operands))
    places = [
        at for at, x in enumerate(given) if isinstance(x, Array | PerDevice | np.ndarray | np.generic)
    ]  # scalars stay what they are
    leaves = [_as_array(given[at], outer) for at in places]
    names = [paths_of(operands)[at] for at in places]

    def with_scalars(fn: Fn) -> Fn:
        def run(*values: Any) -> Any:
            filled = list(given)
            for at, value in zip(places, values, strict=True):
                filled[at] = value
            return fn(*unflatten(structure, filled))

        return run

    types, known = [_type_of(x) for x in leaves], [_varies(x) for x in leaves]
    flat = structure_of(tuple(leaves))
    yes, no = (Part(with_scalars(fn), flat, types, names, outer, known) for fn in (true_fn, false_fn))
    _same_tree("cond: the branches", yes.tree, no.tree, yes.types, no.types, ())
    differs = () if uniform else _varies(pred)
    _check_alike("cond", (yes, no), differs)
    what = Cond(yes.program, no.program, len(leaves), len(yes.captured), not differs)
    varies = [_joined(one, other, differs) for one, other in zip(yes.varies, no.varies, strict=True)]
    made = _step(outer, what, [pred, *leaves, *yes.captured, *no.captured], yes.types, varies)
    return unflatten(yes.tree, made)


# -- loops ----------------------------------------------------------------------------------------------------------------


def while_loop(cond_fn: Fn, body_fn: Fn, init: Any) -> Any:
    """`init = body_fn(init)` as long as `cond_fn(init)` holds. In a program the scalars it carries are arrays (i64, f64).

    >>> while_loop(lambda n: n < 100, lambda n: n * 2, 3)
    192
    """
    outer = current_trace()
    if outer is None:
        value = _own(init)
        while bool(cond_fn(_own(value))):
            value = _own(body_fn(value))
        return value
    return repeated(outer, cond_fn, body_fn, init)


def repeated(outer: Trace, cond_fn: Fn, body_fn: Fn, init: Any, uniform: bool = False) -> Any:
    """`while_loop` in a program; `uniform` says that all devices leave it together though that is not seen."""
    leaves, tree, names = _leaves(init, outer)
    types = [_type_of(x) for x in leaves]
    wrapped = structure_of((unflatten(tree, leaves),))
    varies = _at_first(leaves, outer)
    while True:  # along which axes carried values differ, to a fixed point
        test, body = (Part(fn, wrapped, types, names, outer, varies) for fn in (cond_fn, body_fn))
        _same_tree("while_loop: what goes in and what comes out", tree, body.tree, types, body.types, names)
        if len(test.types) != 1 or test.types[0].shape != ():
            raise ProgramError(
                f"while_loop: the condition gives {', '.join(map(str, test.types))}; it must be one boolean."
            )
        differs = () if uniform else test.varies[0]
        after = _widened(varies, body.varies, differs, types)
        if after == varies:
            break
        varies = after
    _check_alike("while_loop", (test, body), differs)
    what = Loop(test.program, body.program, len(leaves), len(body.captured), tuple(names), not differs)
    made = _step(outer, what, [*leaves, *body.captured, *test.captured], types, varies)
    return unflatten(tree, made)


MOST_PRECISE = 4  # loops and choices in one another, in which it is found out how carried tensors per device differ


def _at_first(leaves: Sequence[Any], outer: Trace) -> list[Axes]:
    """The axes along which carried values differ before the first round; deep inside other loops all axes, since a body is
    traced again when a round adds one, and with it all loops in it."""
    depth, at = 0, outer.parent
    while at is not None:
        depth, at = depth + 1, at.parent
    if depth < MOST_PRECISE:
        return [_varies(x) for x in leaves]
    return [outer.mesh.axis_names if isinstance(x, PerDevice) else () for x in leaves]


def _widened(before: Sequence[Axes], after: Sequence[Axes], differs: Axes, types: Sequence[Type]) -> list[Axes]:
    """The axes along which carried tensors per device differ, once a round more has run."""
    return [
        _joined(one, other, differs) if kind.local is not None else ()
        for one, other, kind in zip(before, after, types, strict=True)
    ]


def scan(body: Fn, init: Any, xs: Any = None, length: int | None = None) -> Any:
    """`carry, y = body(carry, x)` for every row of `xs`: the last carry, and all y stacked. In a program the scalars it carries
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
    if any(isinstance(x, PerDevice) for x in rows):
        raise ProgramError("scan: xs has a tensor per device, whose rows can't be read one by one. Carry it instead.")
    types = [_type_of(x) for x in leaves]
    each = [Type(x.shape[1:], x.dtype) for x in rows]
    row_names = [f"row of xs {i}" for i in range(len(rows))]
    pair = structure_of((unflatten(tree, leaves), unflatten(row_tree, rows)))
    count, varies = len(leaves), _at_first(leaves, outer)
    while True:  # along which axes carried values differ, to a fixed point
        known = [*varies, *((),) * len(rows)]
        part = Part(body, pair, [*types, *each], [*names, *row_names], outer, known)
        new_tree, y_tree = _halves(part.tree)
        _same_tree("scan: what goes in and what comes out", tree, new_tree, types, part.types[:count], names)
        after = _widened(varies, part.varies[:count], (), types)
        if after == varies:
            break
        varies = after
    if any(kind.local is not None for kind in part.types[count:]):
        raise ProgramError(
            "scan: the body gives a tensor per device as y, which has no rows to stack. Carry it instead."
        )
    made_types = [*part.types[:count], *(Type((rounds, *t.shape), t.dtype) for t in part.types[count:])]
    what = Rounds(part.program, rounds, count, len(rows), tuple(names))
    made = _step(outer, what, [*leaves, *rows, *part.captured], made_types, [*varies, *((),) * len(made_types)])
    return unflatten(tree, made[:count]), unflatten(y_tree, made[count:])


def _scan_now(body: Fn, carry: Any, xs: Any, rounds: int) -> Any:
    rows, row_tree = flatten(xs)
    carry, ys = _own(carry), []
    for at in range(rounds):
        carry, y = _own(body(carry, unflatten(row_tree, [_own(x[at]) for x in rows])))
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
            f"scan: the body gives {len(children)} values; it must give a pair (carry, y), y None for nothing."
        )
    return children[0], children[1]
