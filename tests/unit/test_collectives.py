"""The errors of collectives, and the cases with a name."""

import numpy as np
import pytest

import shardwright as sw
from shardwright import P, Sharding
from shardwright import collectives as c
from shardwright.errors import CollectiveError

MESH = sw.Mesh(x=2, y=3)


def values(shape=(6,), dtype=np.int64):
    return sw.PerDevice(MESH, [np.full(shape, i, dtype) for i in range(6)])


def listed(v):
    return [x.tolist() for x in v.values()]


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda v: c.all_gather(v, "z", 0),
            r"all_gather: 'z' is not an axis of Mesh\(x=2, y=3\); its axes are 'x', 'y'",
        ),
        (lambda v: c.all_gather(v, ("x", "x"), 0), r"all_gather: The axes \('x', 'x'\) name devices along 'x' twice"),
        (
            lambda v: c.all_gather(v, "x", 1),
            r"all_gather: dim=1 is out of range; the tensor of shape \(6,\) has dims 0 to 0",
        ),
        (lambda v: c.all_gather(v, "x", -2), r"dim=-2 is out of range"),
        (lambda v: c.all_gather(v, "x", 0.0), r"dim=0.0 is out of range"),
        (lambda v: c.all_to_all(v, "x", 0, 3), r"all_to_all: concat_dim=3 is out of range"),
        (lambda v: c.all_to_all(v, "x", 3, 0), r"all_to_all: split_dim=3 is out of range"),
        (
            lambda v: c.all_reduce(v, "x", "median"),
            r"all_reduce: reduction 'median' is unknown. Use one of sum, max, min",
        ),
        (
            lambda v: c.all_reduce(v, "x", "bitwise_or", dtype=float),
            r"bitwise_or works on the bits .*; float64 is neither",
        ),
        (lambda v: c.reduce(v, "x", 0, "bitwise_and", dtype="f4"), r"reduce: bitwise_and works on the bits"),
        (lambda v: c.reduce_scatter(v, "x", 0, "bitwise_xor", dtype="c8"), r"reduce_scatter: bitwise_xor works on"),
        (
            lambda v: c.broadcast(v, "x", (2,)),
            r"broadcast: root \(2,\) is not in a group along \('x',\)\. Coordinate 2",
        ),
        (lambda v: c.broadcast(v, "x", (-1,)), r"Coordinate -1 along axis 'x' is out of range"),
        (lambda v: c.broadcast(v, ("x", "y"), (0,)), r"Coordinates \(0,\) have 1 entries; along the axes \('x', 'y'\)"),
        (lambda v: c.gather(v, "y", 0, 3), r"gather: root \(3,\) is not in a group"),
        (lambda v: c.scatter(v, "x", 0, (9,)), r"scatter: root \(9,\) is not in a group"),
        (lambda v: c.send(v, "x", (2,)), r"send: destination \(2,\) is not in a group"),
        (lambda v: c.recv(v, "x", (2,)), r"recv: source \(2,\) is not in a group"),
        (lambda v: c.shift(v, "x", "y", 1), r"shift: shift_axis 'y' is not one of the group's axes \('x',\)"),
        (lambda v: c.shift(v, "x", "x", 0.5), r"shift: offset 0.5 is not an integer"),
        (lambda v: c.permute(v, "x", [(0, 1), (1, 1)]), r"permute: \(1,\) is a target 2 times"),
        (lambda v: c.permute(v, "x", [(0, 1), (0, 0)]), r"permute: \(0,\) is a source 2 times"),
        (lambda v: c.permute(v, "x", [(0, 2)]), r"permute: target 2 is not in a group"),
        (lambda v: c.permute(v, "x", [0]), r"permute: 0 is not a \(source, target\) pair"),
        (
            lambda v: c.update_halo(v, [("x",), ("y",)], [(1, 1)] * 2),
            r"split_axes has 2 entries, but the tensor of shape \(6,\)",
        ),
        (lambda v: c.update_halo(v, ["x"], []), r"0 halo sizes \(\) for 1 split dims"),
        (lambda v: c.update_halo(v, ["x"], [(4, 4)]), r"a halo of \(4, 4\) does not fit dim 0 of size 6"),
        (lambda v: c.update_halo(v, ["x"], [(3, 1)]), r"is wider than the neighbour's shard, which has 2 rows"),
        (lambda v: c.update_halo(v, ["x"], [(-1, 1)]), r"a halo has 0 or more rows"),
        (lambda v: c.all_reduce([1, 2], "x"), r"all_reduce takes a PerDevice or an Array; got list"),
    ],
)
def test_bad_input_is_refused_and_nothing_changes(run, text):
    v = values()
    before = listed(v)
    with pytest.raises(CollectiveError, match=text):
        run(v)
    assert listed(v) == before


@pytest.mark.parametrize(
    "run",
    [
        lambda v: c.all_slice(v, "y", 0),
        lambda v: c.scatter(v, "y", 0, (0,)),
        lambda v: c.reduce_scatter(v, "y", 0),
        lambda v: c.all_to_all(v, "y", 0, 0),
    ],
)
def test_sizes_must_divide_on_tensors_per_device(run):
    with pytest.raises(
        CollectiveError,
        match=r"dim 0 of size 4 is not divisible by the 3 devices of a group along \('y',\). "
        r"Pad it to 6, or shard the tensor with sw.shard",
    ):
        run(values((4,)))


def test_a_scalar_has_no_dim_to_gather():
    with pytest.raises(CollectiveError, match=r"the tensor of shape \(\) has no dims"):
        c.all_gather(sw.process_index(MESH), "x", 0)


def test_no_axes_is_a_group_of_one():
    v = values((2,))
    for result in (
        c.all_gather(v, (), 0),
        c.all_reduce(v, ()),
        c.all_slice(v, (), 0),
        c.broadcast(v, (), ()),
        c.reduce(v, (), ()),
        c.all_to_all(v, (), 0, 0),
        c.permute(v, (), [((), ())]),
    ):
        assert listed(result) == listed(v)
    assert listed(c.permute(v, (), [])) == [[0, 0]] * 6


def test_the_order_of_axes_is_the_order_of_the_group():
    v = sw.PerDevice(MESH, [[i] for i in range(6)])
    assert c.all_gather(v, ("x", "y"), 0)[(0, 0)].tolist() == [0, 1, 2, 3, 4, 5]
    assert c.all_gather(v, ("y", "x"), 0)[(0, 0)].tolist() == [0, 3, 1, 4, 2, 5]


def test_shift_moves_towards_the_offset():
    v = sw.PerDevice(MESH, [[i + 1] for i in range(6)])
    assert listed(c.shift(v, "y", "y", 1)) == [[0], [1], [2], [0], [4], [5]]
    assert listed(c.shift(v, "y", "y", 1, rotate=True)) == [[3], [1], [2], [6], [4], [5]]
    assert listed(c.shift(v, "y", "y", -1)) == [[2], [3], [0], [5], [6], [0]]
    assert listed(c.shift(v, ("x", "y"), "x", 5, rotate=True)) == [[4], [5], [6], [1], [2], [3]]
    assert listed(c.shift(v, "y", "y", 7)) == [[0]] * 6


def test_averages_of_integers_are_numpys_mean_cast_back():
    v = sw.PerDevice(sw.Mesh(x=2), [np.array([1, -1, 3]), np.array([2, -2, 4])])
    assert listed(c.all_reduce(v, "x", "average")) == [[1, -1, 3]] * 2
    flags = sw.PerDevice(sw.Mesh(x=2), [np.array([True, False]), np.array([False, False])])
    assert listed(c.all_reduce(flags, "x", "average")) == [[True, False]] * 2


def test_small_integers_wrap_unless_converted_first():
    v = sw.PerDevice(sw.Mesh(x=2), [np.array([100], np.int8)] * 2)
    assert listed(c.all_reduce(v, "x")) == [[-56]] * 2
    assert listed(c.all_reduce(v, "x", dtype=np.int32)) == [[200]] * 2


# -- send and receive -------------------------------------------------------------------------------------------------


def test_a_send_without_a_recv_is_an_error_naming_both_ends():
    v = values()
    text = r"send over \('y',\) to destination \(1,\) has no matching recv over \('y',\)"
    c.send(v, "y", 1)
    with pytest.raises(CollectiveError, match=text + " before all_reduce"):
        c.all_reduce(v, "x")
    c.all_reduce(v, "x")  # the open send is forgotten: nothing is half-done
    c.send(v, "y", 1)
    with pytest.raises(CollectiveError, match=text + " before its tensors are read"):
        v.values()

    def body(v):
        c.send(v, "y", 1)
        return v

    with pytest.raises(CollectiveError, match=text + " by the end of shard_map"):
        sw.shard_map(body, MESH, P("x"), P("x"))(np.arange(4))


def test_a_recv_without_a_send_is_an_error_naming_both_ends():
    v = values()
    with pytest.raises(
        CollectiveError, match=r"recv over \('y',\) from source \(0,\) has no matching send \(open sends: none"
    ):
        c.recv(v, "y", 0)
    c.send(v, "x", 1)
    with pytest.raises(
        CollectiveError, match=r"from source any has no matching send \(open sends: to \(1,\) over \('x',\)\)"
    ):
        c.recv(v, "y")


def test_recv_finds_the_only_other_member_or_asks():
    v = sw.PerDevice(MESH, [[i + 1] for i in range(6)])
    assert listed(c.recv(c.send(v, "x", 1), "x")) == [[0], [0], [0], [1], [2], [3]]
    c.send(v, "y", 0)
    with pytest.raises(CollectiveError, match=r"2 members could have sent to \(0,\). Name one with source="):
        c.recv(v, "y")


def test_sends_are_received_in_order_and_must_agree():
    v = sw.PerDevice(MESH, [[i + 1] for i in range(6)])
    c.send(v, "x", 1)
    c.send(v * 10, "x", 1)
    first, second = c.recv(v, "x", 0), c.recv(v, "x", 0)
    assert first[(1, 0)].tolist() == [1]
    assert second[(1, 0)].tolist() == [10]
    c.send(v, "x", 1)
    with pytest.raises(CollectiveError, match=r"recv expects float64 of shape \(1,\), but source \(0,\) sent int64"):
        c.recv(v * 1.0, "x", 0)


# -- arrays -----------------------------------------------------------------------------------------------------------

HOST = np.arange(30.0).reshape(6, 5)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda x: c.all_gather(x, "x", 0),
            r"all_gather over \('x',\): dim 0 is split by \('x', 'y'\); only its innermost",
        ),
        (lambda x: c.all_gather(x, "y", 1), r"dim 1 is split by no axis"),
        (lambda x: c.all_slice(x, "x", 1), r"already uses \['x'\]. Slice along axes over which it is replicated"),
        (lambda x: c.all_reduce(x, "x"), r"all_reduce over \('x',\) by sum: the tensor is not partial"),
        (lambda x: c.all_to_all(x, "y", 0, 0), r"split_dim = concat_dim = 0 does not give a sharding"),
        (lambda x: c.broadcast(x, "y", 0), r"broadcast moves the tensors of single devices and has no meaning for one"),
        (lambda x: c.shift(x, "y", "y", 1), r"Use it on PerDevice values, for example inside sw.shard_map"),
        (lambda x: c.update_halo(x, ["x"], [(1, 1)]), r"give \('x',\) and \(1, 1\) for dim 0"),
        (lambda x: c.all_gather(x, "y", 2), r"all_gather: dim=2 is out of range"),
    ],
)
def test_what_has_no_meaning_for_an_array_is_refused(run, text):
    with pytest.raises(CollectiveError, match=text):
        run(sw.shard(HOST, MESH, P(("x", "y"))))


def test_the_reduction_must_be_the_arrays_own():
    x = sw.shard(HOST, Sharding(MESH, P(None), partial="y", reduction="max"))
    with pytest.raises(CollectiveError, match=r"the tensor is partial over \('y',\) by max"):
        c.all_reduce(x, "y", "sum")
    assert c.all_reduce(x, "y", "max", dtype=np.float32).dtype == np.float32


def test_halos_are_removed_before_a_dim_is_moved():
    x = sw.shard(HOST, Sharding(MESH, P("x"), halo={0: 1}))
    with pytest.raises(CollectiveError, match=r"dim 0 has a halo of \(1, 1\). Remove it with x.reshard"):
        c.all_gather(x, "x", 0)
    with pytest.raises(CollectiveError, match=r"dim 0 has a halo of \(1, 1\)"):
        c.all_slice(x, "y", 0)


def test_all_to_all_appends_the_axis_as_the_innermost():
    x = sw.shard(np.arange(72).reshape(12, 6), MESH, P("y", "x"))
    y = c.all_to_all(x, "x", split_dim=0, concat_dim=1)
    assert y.sharding.spec == P(("y", "x"), None)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_pieces_of_axes_are_gathered_and_reduced_too():
    mesh = sw.Mesh(x=8)
    x = sw.shard(np.arange(16), mesh, P("x"))
    y = c.all_gather(x, "x:(2)4", 0)
    assert y.sharding.spec == P("x:(1)2")
    assert y.shards[5].data.tolist() == list(range(8, 16))
    z = sw.shard(np.arange(16), Sharding(mesh, P(None), partial="x"))
    assert c.all_reduce(z, "x:(1)2").sharding.partial == ("x:(2)4",)
    np.testing.assert_array_equal(np.asarray(c.all_reduce(z, "x:(1)2")), np.arange(16))
