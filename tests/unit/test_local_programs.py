"""The local view inside programs: what was once wrong, on both engines, eagerly, jitted and measured."""

import numpy as np
import pytest

import shardwright as sw
from helpers import assert_same
from shardwright import P
from shardwright import collectives as c
from shardwright.errors import ArrayError, CollectiveError, ProgramError, TraceError

X = np.arange(8.0)


@pytest.fixture(params=["numpy", "literal"])
def mesh(request):
    return sw.Mesh(x=4, engine=request.param)


def late_closures(v):
    for i in range(3):
        v = v.map(lambda t: t + i)  # noqa: B023  # the variable as it is now
    return v


def changed_operand(v):
    a = np.ones(2)
    u = v * a
    a[:] = 2
    return u + 10 * (v * a)


def long_options(v):
    a = np.zeros(3000, bool)
    b = a.copy()
    b[1500] = True
    z = v.map(lambda t: np.zeros(3000)) + 1
    total = np.add.reduce(z, where=b, initial=0) * 10 + np.add.reduce(z, where=a, initial=0)
    return total.map(lambda t: np.reshape(t, (1,)))


def increased(v):
    v += 1
    return v


@pytest.mark.parametrize(
    "function",
    [
        late_closures,
        changed_operand,
        long_options,
        increased,
        lambda v: np.divmod(v, 3)[1],
        lambda v: c.shift(v, "x:(1)2", "x:(1)2", 1, True),
        lambda v: c.all_reduce(v, "x"),
        lambda v: c.scatter(v, "x", 0, 0),
        lambda v: c.recv(c.send(v, "x", 0), "x", 1),
    ],
)
@pytest.mark.parametrize("rows", [8, 13, 16])
def test_a_function_of_tensors_per_device_gives_the_same_in_a_program(mesh, function, rows):
    host = np.arange(8.0 if function is changed_operand else float(rows))
    run = sw.shard_map(function, mesh, P("x"), P("x"))
    try:
        expected = run(host)
    except CollectiveError as error:
        with pytest.raises(CollectiveError, match=str(error)[:20]):
            sw.sjit(run, mesh=mesh)(host)
        return
    assert_same(sw.sjit(run, mesh=mesh)(host), expected)
    measured = sw.measure(sw.sjit(run, mesh=mesh), host)
    assert all(row.counted == row.bytes for row in measured.rows)


def test_pieces_of_axes_that_were_gathered_are_known_to_be_the_same(mesh):
    run = sw.shard_map(lambda v: c.all_gather(v, "x:(2)2", 0), mesh, P("x"), P("x:(1)2"))
    assert_same(sw.sjit(run, mesh=mesh)(X), run(X))
    with pytest.raises(ArrayError, match=r"devices along 'x:\(2\)2' hold the same, but here they may hold different"):
        sw.sjit(sw.shard_map(lambda v: v, mesh, P("x"), P("x:(1)2")), mesh=mesh)(X)


def test_shapes_that_depend_on_data_are_refused_when_the_program_runs(mesh):
    grows = sw.shard_map(lambda v: v.map(lambda t: np.resize(t, (2 if t.sum() > 5 else 1,))), mesh, P("x"), P("x"))
    with pytest.raises(
        ArrayError, match=r"device 2 gives float64 of shape \(2,\), but when the program was traced it gave"
    ):
        sw.sjit(grows, mesh=mesh)(X)


def test_both_ends_of_a_transfer_must_agree(mesh):
    def transfer(v):
        c.send(v, "x", 0)
        return c.recv(v, "x", 3)

    run, host = sw.shard_map(transfer, mesh, P("x"), P("x")), np.arange(7.0)
    for call in (run, sw.sjit(run, mesh=mesh), lambda x: sw.explain(sw.sjit(run, mesh=mesh), x)):
        with pytest.raises(CollectiveError, match=r"recv expects float64 of shape \(2,\), but source \(3,\) sent"):
            call(host)


def test_an_open_send_is_noticed_while_tracing(mesh):
    run = sw.shard_map(lambda v: c.send(v, "x", 0), mesh, P("x"), P("x"))
    with pytest.raises(CollectiveError, match=r"has no matching recv .* by the end of shard_map"):
        sw.sjit(run, mesh=mesh)(X)


def test_who_receives_nothing_keeps_the_size_of_its_own(mesh):
    seen = []

    def transfer(v):
        made = c.recv(c.send(v, "x", 0), "x", 1)
        seen.append([tensor.tolist() for tensor in made.values()])
        return v

    sw.shard_map(transfer, mesh, P("x"), P("x"))(np.arange(7.0))
    assert seen == [[[2.0, 3.0], [0.0, 0.0], [0.0, 0.0], [0.0]]]


@pytest.mark.parametrize(
    ("rows", "split", "halo"),
    [((3, 4), [None, "x"], [(0, 1)]), ((4, 4), ["x", None], [(0, 1)]), ((11, 4), ["x"], [(2, 2)])],
)
def test_halos_that_do_not_fit_are_refused(mesh, rows, split, halo):
    x = sw.shard(np.zeros(rows), mesh, P("x"))
    run = sw.shard_map(lambda v: c.update_halo(v, split, halo), mesh, P("x"), P("x"))
    for call in (run, sw.sjit(run), lambda x: sw.measure(run, x)):
        with pytest.raises(CollectiveError, match=r"wider than the neighbour's shard|different sizes|does not fit dim"):
            call(x)


def test_the_busiest_device_of_a_halo_is_inside_the_mesh():
    for side in (3, 64, 256):
        mesh = sw.Mesh(x=side, y=side)
        host = np.broadcast_to(np.float32(1), (side * 10, side * 10))
        run = sw.shard_map(lambda v: c.update_halo(v, ["x", "y"], [(1, 1), (1, 1)]), mesh, P("x", "y"), P("x", "y"))
        assert sw.sjit(run, mesh=mesh).lower(host).explain().rows[0].bytes == (100 - 64) * 4


def test_known_values_per_device_in_programs(mesh):
    known = sw.PerDevice(mesh, [np.arange(2) + i for i in range(4)])
    x = sw.shard(X, mesh, P("x"))
    assert_same(sw.sjit(lambda x: c.all_reduce(known, "x"))(x).values()[3], np.array([6, 10]))
    made = sw.sjit(lambda v: c.all_gather(v * 2, "x", 0))(known)
    assert_same(made.values()[1], np.array([0, 2, 2, 4, 4, 6, 6, 8]))
    assert sw.measure(lambda v: c.all_gather(v, "x", 0), known).rows[0].counted == 6 * 8


def test_elements_per_device_are_not_known_while_tracing(mesh):
    with pytest.raises(TraceError, match=r"The elements of f64\[2\] per device are not known"):
        sw.sjit(sw.shard_map(lambda v: v * v.values()[0], mesh, P("x"), P("x")), mesh=mesh)(X)


# -- loops and choices ----------------------------------------------------------------------------------------------------


def rounds(v):
    """A loop that captures a tensor per device and has a collective."""
    (total, own), _ = sw.scan(
        lambda state, _: ((c.all_reduce(state[0], "x") + v, state[1] * 2), None), (v, v), length=3
    )
    return total + own


def until_the_sum_is_large(v):
    """Each device leaves the loop by its own data; the second loop by what all hold."""
    own = sw.while_loop(lambda s: np.add.reduce(s) < 20, lambda s: s * 2 + 1, v)
    total = c.all_reduce(np.add.reduce(v), "x")
    both = sw.while_loop(lambda s: s[0] < 100, lambda s: (s[0] * 2, s[1] + c.all_reduce(v, "x")), (total, v))
    return own + both[1]


def own_branch(v):
    return sw.cond(np.add.reduce(v) < 6, lambda: v * 10, lambda: -v)


def by_hand(name, parts):
    total = sum(parts)
    if name == "rounds":
        states = parts
        for _ in range(3):
            states = [sum(states) + part for part in parts]
        return [state + part * 8 for state, part in zip(states, parts, strict=True)]
    if name == "own_branch":
        return [part * 10 if part.sum() < 6 else -part for part in parts]
    made = []
    for part in parts:
        own, count, both = part, total.sum(), part
        while own.sum() < 20:
            own = own * 2 + 1
        while count < 100:
            count, both = count * 2, both + total
        made.append(own + both)
    return made


@pytest.mark.parametrize("function", [rounds, until_the_sum_is_large, own_branch])
def test_loops_and_choices_of_tensors_per_device(mesh, function):
    step = sw.sjit(sw.shard_map(function, mesh, P("x"), P("x")), mesh=mesh)
    expected = np.concatenate(by_hand(function.__name__, np.split(X, 4)))
    assert_same(np.asarray(step(X)), expected)
    rows = sw.measure(step, X).rows
    assert any(row.counted for row in rows) == (function is not own_branch)
    assert all(row.counted == row.bytes for row in rows if function is rounds)


def test_a_collective_between_devices_that_may_decide_differently_is_refused(mesh):
    def loop(v):
        return sw.while_loop(lambda s: np.add.reduce(s) < 20, lambda s: c.all_reduce(s, "x"), v)

    def branch(v):
        return sw.cond(np.add.reduce(v) < 20, lambda: c.all_reduce(v, "x"), lambda: v)

    for function, name in ((loop, "while_loop"), (branch, "cond")):
        with pytest.raises(
            ProgramError, match=rf"{name}: devices along 'x' may decide differently, but all_reduce is over"
        ):
            sw.sjit(sw.shard_map(function, mesh, P("x"), P("x")), mesh=mesh)(X)


def test_a_scan_has_no_rows_per_device(mesh):
    def rows(v):
        return sw.scan(lambda state, row: (state, None), 0.0, v)[0]

    def collected(v):
        return sw.scan(lambda state, _: (state, state), v, length=2)[1]

    for function, name in ((rows, "xs has a tensor per device"), (collected, "a tensor per device as y")):
        with pytest.raises(ProgramError, match=name):
            sw.sjit(sw.shard_map(function, mesh, P("x"), P("x")), mesh=mesh)(X)
