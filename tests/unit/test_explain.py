"""What explain says of a program beside its steps: the memory that devices hold, notes, and source lines."""

import functools
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from unittest.mock import Mock

import numpy as np
import optree
import pytest

import shardwright as sw
import shardwright.numpy as snp
from heap import counted, simulated, unread
from shardwright import P
from shardwright.errors import ImplicitGatherError, ProgramError

MESH = sw.Mesh(data=2, model=4)
X = sw.shard(np.ones((8, 8)), MESH, P("data"))

# -- memory -----------------------------------------------------------------------------------------------------------


def twice_carried(x):
    a, b = sw.while_loop(lambda c: snp.max(c[0]) < 9, lambda c: (c[0] + 1, c[1] * 2), (x, x * 3))
    return snp.sum(snp.tanh(b)) + snp.sum(snp.exp(snp.sin(a)))


def picked_late(x):
    q, r = snp.linalg.qr(x)
    return snp.sum(snp.exp(snp.tanh(r))) + snp.sum(q)


def picked_in_part(x):
    return snp.exp(snp.tanh(snp.linalg.qr(x)[1]))  # q is freed at once


def picked_outputs(x):
    q, r = snp.linalg.qr(x)
    snp.tanh(r)
    return q, snp.tanh(snp.exp(snp.sin(x)))


def reduced_together(x):
    a, b = (sw.with_sharding_constraint(snp.sum(y, axis=0), P()) for y in (x, snp.exp(x)))
    return snp.tanh(snp.sin(a)) * b


def scanned(x):
    carry, ys = sw.scan(lambda c, row: (snp.tanh(c + row), (c * 2, snp.sum(c))), x[0], x)
    return snp.sum(snp.exp(ys[0])) + snp.sum(ys[1]) + snp.sum(carry)


def scanned_once(x):
    return sw.scan(lambda c, row: (snp.tanh(c) + row, c + 1), x[0], x[:1])


def counted_rounds(x):
    return sw.scan(lambda c, _: (snp.exp(snp.tanh(c)), None), x, length=3)[0]


def no_rounds(x):
    return sw.scan(lambda c, row: (snp.exp(snp.tanh(c)) + row, c), x[0], x[:0])


def chosen(x):
    y, z = x * 3, x * 4
    a, b = sw.cond(snp.max(x) > 0, lambda v: (snp.exp(v + y), v), lambda v: (v, snp.sin(v) * z), x)
    return snp.tanh(b) + a, y


def handed_on(x):
    return sw.while_loop(lambda c: snp.max(c[0]) < 9, lambda c: (c[0] + c[1], c[1], c[2]), (x, x * 3, x))


def nested(x):
    def body(c):
        inner, ys = sw.scan(lambda s, row: (s + row, s * 2), c[0][0], c[0])
        return c[0] + ys, sw.cond(snp.max(inner) > 4, lambda v: snp.tanh(v) + inner, lambda v: v * 1.0, c[1])

    a, b = sw.while_loop(lambda c: snp.max(c[0] * 2.0) < 9, body, (x, x[0]))
    return snp.sum(a) + snp.sum(snp.tanh(b)) + snp.sum(x * 2)


MEMORY = [
    twice_carried, picked_late, picked_in_part, picked_outputs, reduced_together, scanned, scanned_once, counted_rounds,
    no_rounds, chosen, handed_on, nested,
]  # fmt: skip


@pytest.mark.parametrize("fn", MEMORY)
@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P()])
def test_memory_is_that_of_a_naive_simulation(fn, spec):
    lowered = sw.sjit(fn).lower(sw.shard(np.ones((6, 5, 4)), MESH, spec))
    explanation = lowered.explain()
    peak, rows = simulated(lowered.program)
    assert explanation.peak_bytes == peak
    if fn is not no_rounds:  # its body never runs
        assert [row.memory for row in explanation.rows] == rows


@pytest.mark.parametrize("fn", [fn for fn in MEMORY if fn not in (handed_on, no_rounds)])
def test_the_literal_engine_holds_what_explain_says(fn):
    with counted() as counter:
        mesh = sw.Mesh(data=2, model=4, engine="literal")
        x = sw.shard(np.full((6, 5, 4), 0.1), mesh, P(None, "model"))
        lowered = sw.sjit(fn).lower(x)
        counter.most = 0
        lowered([x])
    peak = lowered.explain().peak_bytes
    assert counter.most <= peak + unread(lowered.program)
    if fn not in (chosen, nested):  # one branch runs, the cheaper one perhaps
        assert counter.most >= peak


def test_what_a_loop_carries_is_held_until_its_last_use():
    """Values of 8 · 8 / 2 = 32 elements, 256 B each; one element is 8 B."""
    x = sw.shard(np.ones((8, 8)), MESH, P("data"))
    held = {row.inside + row.operation: row.memory for row in sw.explain(twice_carried, x).rows}
    assert held["multiply"] == 2 * 256  # x, x * 3
    assert held["while_loop body: multiply"] == 6 * 256  # both, the state before and the new one
    assert held["while_loop"] == 6 * 256
    assert held["tanh"] == 4 * 256  # x, a, b, tanh(b)
    assert held["sin"] == 3 * 256 + 8  # x, a, sin(a), the sum
    assert sw.explain(twice_carried, x).peak_bytes == 6 * 256
    assert sw.explain(lambda x: (x + 1, x * 2), x).peak_bytes == 3 * 256


def test_arguments_are_held_from_the_start():
    """Also one that is read last: the caller has it."""
    x, w = sw.shard(np.ones((8, 8)), MESH, P("data")), sw.shard(np.ones((64, 64)), MESH, P())
    rows = sw.explain(lambda x, w: snp.sum(snp.tanh(snp.exp(x))) * w, x, w).rows
    assert rows[0].memory == 2 * 256 + 64 * 64 * 8
    y = sw.shard(np.ones((64, 64)), MESH, P())
    assert sw.explain(lambda x: snp.sum(snp.tanh(snp.exp(x))) * y, x).rows[0].memory == rows[0].memory


# -- notes ------------------------------------------------------------------------------------------------------------


def conflict(x, w):
    return x @ w


def conflict_of_several(x, w):
    q, r = snp.linalg.qr(x)
    return q + w, r


def conflict_in_a_loop(x, w):
    return sw.scan(lambda c, _: (c @ (c[0] + w), None), x, length=2)[0]


def gathered(x, w):
    return snp.linalg.inv(x) @ snp.tile(w, (3, 1)).T


def repeated(x, w):
    return snp.repeat(snp.flip(w, axis=1), 3, axis=0), snp.tile(snp.tril(w[:1]), (9, 1)), snp.linalg.svd(x)[1]


@pytest.mark.parametrize("fn", [conflict, conflict_of_several, conflict_in_a_loop, gathered, repeated])
def test_notes_speak_of_the_steps_of_the_table(fn):
    x, w = sw.shard(np.ones((64, 8, 8)), MESH, P("data")), sw.shard(np.ones((8, 8)), MESH, P("model", "data"))
    explanation = sw.explain(fn, x, w)
    lines = explanation.full().splitlines()
    table = {(row.cells[0], row.cells[1]) for row in explanation.rows}
    assert explanation.notes
    for note in explanation.notes:
        name, source = re.match(r"(\w+)\b.* \((.*)\)$", note).groups()
        assert [place for place, step in table if place == source and re.search(rf"\b{name}\b.*\(", step)], note
        assert note in lines


def test_notes_name_operations_as_users_do():
    x, w = sw.shard(np.ones((64, 8)), MESH, P("data")), sw.shard(np.ones((8, 8)), MESH, P(None, "data"))
    line = here() + 1
    explanation = sw.explain(lambda x, w: x @ w, x, w)
    assert explanation.notes == (
        f"matmul gathers dim 1 of f64[8,8@data] on {MESH}: 256 B (test_explain.py:{line})",
        f"matmul, f64[64,8]: dim 1 is whole, not @data as w has it (test_explain.py:{line})",
    )
    for name in ("tensordot", "vecdot", "matmul"):
        rows = sw.explain(getattr(snp, name), *[sw.shard(np.ones((8, 8)), MESH, P("data"))] * 2).rows
        assert name in [row.operation for row in rows]
    constrained = sw.explain(lambda x: sw.with_sharding_constraint(x + w, P("model")), X)
    assert "as constraint at test_explain.py:" in constrained.notes[-1]


def test_notes_of_arguments_name_them():
    line = here() + 1
    fn = sw.sjit(lambda a: [sw.with_sharding_constraint(a * n, P(x)) for n, x in enumerate(MESH.sizes)], mesh=MESH)
    notes = fn.lower(np.ones((8, 8))).explain().notes
    assert notes[0] == f"a, f64[8,8]: dim 0 is @data, not @model as constraint at test_explain.py:{line} has it"


def test_the_table_names_the_operation_of_a_step():
    (row,) = sw.explain(lambda x: snp.roll(x, 1, axis=0), X).rows
    assert row.cells[1] == "roll: fetch data(f64[8@data,8])"
    assert sw.explain(lambda x: snp.repeat(x, 2, axis=1), X).rows[-1].cells[1].startswith("repeat: expand_rows(")
    assert [row.operation for row in sw.explain(snp.tril, X).rows] == ["tril"]


# -- source lines -----------------------------------------------------------------------------------------------------


def here():
    return sys._getframe(1).f_lineno


def sources(function, *args):
    return {row.cells[0] for row in sw.explain(function, *args).rows}


class Layer:
    @property
    def doubled(self):
        return self.x * 2

    @sw.sjit
    def jitted(self, x):
        return x + 1

    @staticmethod
    def static(x):
        return x + 1

    def __call__(self, x):
        self.x = x
        return self.doubled


@functools.singledispatch
def dispatched(x):
    return x + 1


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def test_a_source_line_is_the_users():
    first = here() + 2
    functions = [
        lambda x: x + 1,
        lambda x: [row * 2 for row in (x, x + 1)],
        lambda x: {"a": {"b": snp.tanh(x)}},
        lambda x: optree.tree_map(snp.tanh, {"a": x, "b": [x]}),
        lambda x: optree.tree_map(lambda y: y + 1, [x, x]),
        lambda x: functools.reduce(snp.add, [x, x, x]),
        lambda x: list(map(snp.exp, [x])),
        lambda x: Mock(side_effect=snp.exp)(x),
        lambda x: copy_context().run(snp.exp, x),
        lambda x: np.sum(x),
        lambda x: np.add(x, x),
        lambda x: sorted([2, 1], key=lambda n: snp.sum(x * n).ndim) and x + 1,
        lambda x: sw.sjit(snp.tanh)(x),
        lambda x: sw.shard_map(lambda v: v * 2, MESH, P("data"), P("data"))(x),
        lambda x: sw.cond(snp.sum(x) > 0, snp.tanh, snp.exp, x),
        lambda x: sw.while_loop(lambda c: snp.sum(c) < 9, snp.exp, x),
        lambda x: sw.scan(lambda c, row: (c + row, None), x[0], x)[0],
        lambda x: sw.with_sharding_constraint({"a": x}, P("model")),
        lambda x: x @ np.ones((8, 8)),
    ]
    for at, function in enumerate(functions):
        assert sources(function, X) == {f"test_explain.py:{first + at}"}, at
    assert sources(sw.sjit(snp.tanh), X) == {f"test_explain.py:{sources.__code__.co_firstlineno + 1}"}


def test_a_source_line_is_inside_methods_and_wrapped_functions():
    def line(function):
        return {f"test_explain.py:{function.__code__.co_firstlineno + 2}"}

    layer = Layer()
    assert sources(layer, X) == line(Layer.doubled.fget)
    assert sources(layer.static, X) == line(Layer.static)
    assert sources(layer.jitted, X) == line(Layer.jitted.function)
    assert sources(wrapped(Layer.static), X) == line(Layer.static)
    assert sources(functools.partial(Layer.static), X) == line(Layer.static)
    assert sources(lambda x: dispatched(x), X) == line(dispatched.__wrapped__)


@pytest.mark.parametrize(
    "name",
    ["numpy_utils", "optree_trees", "shardwright_models", "functools_more", "contextlib2", "jaxlike", "test", "code",
     "__main__", "__mp_main__", "mine.numpy", "mine.shardwright.eager"],
)  # fmt: skip
def test_users_may_call_their_modules_as_they_like(name, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def fn(x):\n\n    return x + 1\n")
    space = {"__name__": name}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert sources(space["fn"], X) == {"own.py:3"}


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<console>", "<ipython-input-1>"])
@pytest.mark.parametrize("space", [{}, {"__name__": None}, {"__name__": "__main__"}])
def test_code_without_a_file_has_a_line(file, space):
    space = dict(space)
    exec(compile("def fn(x):\n    return x + 1\n", file, "exec"), space)
    assert sources(space["fn"], X) == {f"{file}:2"}


def test_installed_packages_of_users_are_theirs():
    file = f"{functools.__file__.removesuffix('functools.py')}site-packages/models.py"
    space = {"__name__": "models"}
    exec(compile("def fn(x):\n    return x + 1\n", file, "exec"), space)
    assert sources(space["fn"], X) == {"models.py:2"}


def test_where_no_line_is_the_users_there_is_none():
    with ThreadPoolExecutor(1) as pool:
        (row,) = pool.submit(sw.explain, snp.tanh, X).result().rows
        assert (row.source, row.cells[0]) == ("", "")
        gathers = pool.submit(sw.explain, snp.linalg.inv, X).result()
        assert gathers.notes[0] == f"inv gathers dim 0 of f64[8@data,8] on {MESH}: 256 B"
    errors = []

    def refuse(*error):
        errors.append(error[0].exc_value)

    kept, threading.excepthook = threading.excepthook, refuse
    try:
        thread = threading.Thread(target=sw.strict()(snp.linalg.inv), args=(X,))
        thread.start()
        thread.join()
    finally:
        threading.excepthook = kept
    assert isinstance(errors[0], ImplicitGatherError)
    assert str(errors[0]).endswith("where you mean it. (inside strict())")


def test_warnings_point_at_the_users_line(monkeypatch):
    monkeypatch.setattr("shardwright.eager.calls.WARN_ABOVE", 0)
    line = here() + 2
    with pytest.warns(sw.ImplicitGatherWarning, match=rf"det gathers dim 0 .*test_explain.py:{line}\)$") as seen:
        optree.tree_map(snp.linalg.det, [X])
    assert (seen[0].filename, seen[0].lineno) == (__file__, line)


def test_a_program_without_steps_opens_too():
    x = sw.shard(np.arange(4.0), sw.Mesh(x=2), P("x"))
    explanation = sw.explain(lambda x: x, x)
    assert explanation.rows == ()
    assert explanation.open() == str(explanation)
    with pytest.raises(ProgramError, match="No step or source line has 'tanh'"):
        explanation.open("tanh")
