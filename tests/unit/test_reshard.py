"""Plans to lay a tensor out anew: the cheapest there are, what they say, and what they refuse."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

import oracle
import shardwright as sw
from brute_force import Shardings, whole_axes
from helpers import assert_devices
from shardwright import P
from shardwright.errors import ShardingError
from shardwright.plan import move_costs
from shardwright.plan.bounds import least_time
from shardwright.plan.maker import Maker
from shardwright.plan.route import change_between
from shardwright.sharding import layout_of

MESH = sw.Mesh(x=2, y=4)
XY = {"x": 2, "y": 4}


@pytest.mark.parametrize(
    ("sizes", "shape", "pairs"),
    [(XY, (8, 8), 121), ({"x": 2, "y": 3}, (6, 6), 121), ({"x": 2, "y": 2}, (4, 4, 4), 361)],
)
def test_chains_of_collectives_are_as_cheap_as_any(sizes, shape, pairs):
    every = Shardings(sizes, shape)
    mesh, ends = sw.Mesh(sizes), list(whole_axes(list(sizes), len(shape)))
    assert len(ends) ** 2 == pairs
    for a in ends:
        for b in ends:
            plan = sw.plan_reshard(shape, np.int8, mesh, P(*a), P(*b), algorithm="portable")
            least = every.least(every.refined(a), every.refined(b))
            assert plan.bytes_received == least, f"{a} → {b}: {plan.explain()}"


def test_the_brute_force_search_can_tell_more_from_less():
    every = Shardings(XY, (8, 8))
    rows, columns = every.refined((("x",), ())), every.refined(((), ("x",)))
    assert every.least(rows, columns) == 16  # half of 32 elements: an all-to-all
    assert every.least(rows, rows) == 0


@pytest.mark.parametrize("algorithm", ["best", "direct", "portable"])
def test_all_121_pairs_are_right_on_every_device(algorithm):
    host = np.arange(64).reshape(8, 8)
    ends = list(whole_axes(list(XY), 2))
    for a in ends:
        for b in ends:
            plan = sw.plan_reshard((8, 8), host.dtype, MESH, P(*a), P(*b), algorithm=algorithm)
            held = oracle.shards(host, XY, a)
            for step in plan.steps:
                held = run(step, held, host)
                assert_devices(MESH, held.values(), oracle.shards(host, XY, step.result.dims))
            assert_devices(MESH, held.values(), oracle.shards(host, XY, b))
            assert plan.bytes_received >= plan.lower_bound
            if algorithm != "portable":
                assert plan.bytes_received == plan.lower_bound


def run(step, held, host):
    """A step by hand, on a dict from device to tensor."""
    c = step.collective
    if step.name == "all_slice":
        return oracle.all_slice(held, XY, c.axes, c.dim)
    if step.name == "all_gather":
        return oracle.all_gather(held, XY, c.axes, c.dim)
    if step.name == "all_to_all":
        return oracle.all_to_all(held, XY, c.axes, c.split_dim, c.concat_dim)
    if step.name == "permute":
        return oracle.permute(held, XY, c.axes, c.pairs)
    assert step.name in ("exchange", "local")
    made = {}
    before, after = (oracle.shards(np.arange(64).reshape(8, 8), XY, s.dims) for s in (step.source, step.result))
    for device, numbers in after.items():
        values = dict(zip(before[device].ravel().tolist(), held[device].ravel().tolist(), strict=True))
        for message in step.transfers:
            if message.receiver == MESH.index(device):
                sender = MESH.coords(message.sender)
                known = dict(zip(before[sender].ravel().tolist(), held[sender].ravel().tolist(), strict=True))
                wanted = np.arange(64).reshape(8, 8)[message.box].ravel().tolist()
                values |= {number: known[number] for number in wanted}
        made[device] = np.array([values[n] for n in numbers.ravel().tolist()], host.dtype).reshape(numbers.shape)
    return made


def test_the_known_case_receives_1792_bytes():
    args = (16, 16, 16), np.float32, MESH, P("y", None, "x"), P(None, ("x", "y"), None)
    plan = sw.plan_reshard(*args)
    assert (plan.bytes_received, plan.lower_bound, plan.algorithm) == (1792, 1792, "direct")
    chain = sw.plan_reshard(*args, algorithm="portable")
    assert chain.bytes_received == 2560
    assert [step.name for step in chain.steps] == ["all_to_all", "all_to_all"]
    assert chain.peak_bytes == 2048 + 1024
    assert plan is sw.plan_reshard(*args)  # made once


def names(plan):
    return [step.name for step in plan.steps]


@pytest.mark.parametrize(
    ("source", "target", "steps", "received"),
    [
        (P("x"), P("x", "y"), ["all_slice"], 0),
        (P(("x", "y")), P("x"), ["all_gather"], 3 * 32),
        (P("x"), P(None, "x"), ["all_to_all"], 64),
        (P("x", "y"), P("x", "y"), [], 0),
        (P(None, "y"), P("x:(1)2", "y"), ["all_slice"], 0),
    ],
    ids=str,
)
def test_one_collective_is_enough_where_it_is(source, target, steps, received):
    plan = sw.plan_reshard((8, 8), np.float32, MESH, source, target)
    assert names(plan) == steps
    assert plan.bytes_received == received == plan.lower_bound


def test_partial_values_are_reduced_on_the_way():
    some = sw.Sharding(MESH, P(None, None), partial="y")
    assert names(sw.plan_reshard((8, 8), np.float32, MESH, some, P("y"))) == ["reduce_scatter"]
    assert names(sw.plan_reshard((8, 8), np.float32, MESH, some, P())) == ["all_reduce"]
    assert names(sw.plan_reshard((8, 8), np.float32, MESH, some, P("x"))) == ["all_slice", "all_reduce"]
    scatter = sw.plan_reshard((8, 8), np.float32, MESH, some, P("y"))
    assert scatter.bytes_received == 3 * 64
    assert scatter.lower_bound <= scatter.bytes_received
    other = sw.Sharding(MESH, P(None, None), partial="y", reduction="max")
    assert names(sw.plan_reshard((8, 8), np.float32, MESH, some, other)) == ["all_reduce", "local"]


def test_halos_and_offsets_alone():
    plain, wide = sw.Sharding(MESH, P("y")), sw.Sharding(MESH, P("y"), halo={0: 1})
    plan = sw.plan_reshard((8, 8), np.float32, MESH, plain, wide)
    assert names(plan) == ["update_halo"]
    assert plan.bytes_received == 2 * 8 * 4 == plan.lower_bound
    assert names(sw.plan_reshard((8, 8), np.float32, MESH, wide, plain)) == ["local"]
    other = sw.Sharding(MESH, P("y"), offsets={0: (0, 1, 4, 6, 8)})
    plan = sw.plan_reshard((8, 8), np.float32, MESH, plain, other)
    assert names(plan) == ["exchange"]
    assert plan.bytes_received == 8 * 4 == plan.lower_bound  # one row goes from the first shard to the second


def test_between_meshes_only_what_is_missing_moves():
    part = MESH.submesh((2, 2))
    plan = sw.plan_reshard((8, 8), np.float32, MESH, sw.Sharding(MESH, P("x", "y")), sw.Sharding(part, P("x", "y")))
    assert (plan.algorithm, names(plan)) == ("direct", ["exchange"])
    assert plan.bytes_received == plan.lower_bound == 4 * 4 * 4  # the second column of devices has none of its part
    same = sw.Mesh({"a": 8})
    assert sw.plan_reshard((8,), np.float32, MESH, P(("x", "y")), sw.Sharding(same, P("a"))).bytes_received == 0
    with pytest.raises(ShardingError, match=r"they lie on different meshes. Use algorithm='direct'"):
        sw.plan_reshard((8,), np.float32, MESH, P("x"), sw.Sharding(same, P("a")), algorithm="portable")


def test_devices_may_change_places():
    x = sw.shard(np.arange(8), MESH, P(("x", "y")))
    moved = x.reshard(P(("y", "x")), allow_device_permutation=True)
    assert moved.sharding.spec == P(("y", "x"))
    for shard in moved.shards:
        assert shard.data.tolist() == [shard.device]
    plan = sw.plan_reshard((8,), np.int64, MESH, P(("x", "y")), P(("y", "x")), allow_device_permutation=True)
    assert (plan.algorithm, plan.steps, plan.bytes_received, plan.lower_bound) == ("relabel", (), 0, 0)
    plan = sw.plan_reshard((8,), np.int64, MESH, P("x"), P("y"), allow_device_permutation=True)
    assert plan.algorithm != "relabel"


def test_links_decide():
    slow = sw.Mesh(x=2, y=4, links={"x": sw.Link(bandwidth=1e9), "y": sw.Link(bandwidth=1e12)})
    args = (512, 512, 512), np.float32, slow, P("y", "x"), P()
    best, direct = (sw.plan_reshard(*args, algorithm=a) for a in ("best", "direct"))
    assert best.algorithm == "portable"
    assert best.time < direct.time
    assert names(best) == ["all_gather", "all_gather"]
    assert best.steps[0].axes == ("x",)  # along the slow link first, while shards are small
    assert best.bytes_received == direct.bytes_received


def test_messages_are_shared_among_those_who_hold_a_part():
    mesh = sw.Mesh(x=2, y=3)
    (step,) = sw.plan_reshard((12,), np.int8, mesh, P("x"), P("y"), algorithm="direct").steps
    load = {}
    for message in step.transfers:
        load[message.sender] = load.get(message.sender, 0) + message.elements
    assert sorted(load.values()) == [2, 2, 4, 4]  # messages of 2 and 4 from each half: no holder sends both
    assert step.sent == 2  # what the busiest would send if messages were cut further


def test_a_plan_explains_itself():
    plan = sw.plan_reshard((16, 16, 16), np.float32, MESH, P("y", None, "x"), P(None, ("x", "y"), None))
    assert str(plan) == (
        "f32[16@y,16,16@x] → f32[16,16@(x,y),16]  (direct)\n"
        "  1. exchange over y, x: 1,792 B\n"
        "receives 1,792 B, bound 1,792 B (1.00 ×); 4.01 µs; peak 5,888 B"
    )
    text = plan.explain()
    assert "1. exchange over y, x: 1 × 8 devices" in text
    assert "sends 1,792 B, receives 1,792 B; shard 4×16×8 → 16×2×16" in text
    names = [f"a_rather_long_axis_name_{i}" for i in range(6)]
    mesh = sw.Mesh(dict.fromkeys(names, 2))
    long = sw.plan_reshard((64,) * 3, np.float32, mesh, P(names), P(None, names[::-1]))
    assert max(map(len, str(long).splitlines())) <= 79


def test_bad_input_is_refused():
    with pytest.raises(ShardingError, match=r"The algorithm 'fast' is unknown. Use 'best', 'direct' or 'portable'"):
        sw.plan_reshard((8,), np.float32, MESH, P("x"), P("y"), algorithm="fast")
    with pytest.raises(ShardingError, match="names axis 'z'"):
        sw.plan_reshard((8,), np.float32, MESH, P("z"), P("y"))
    with pytest.raises(ShardingError, match=r"has 2 entries, but the tensor of shape \(8,\) has 1 dim"):
        sw.plan_reshard((8,), np.float32, MESH, P("x", None), P("y"))


def test_the_price_without_a_plan_is_the_plans():
    for a in whole_axes(list(XY), 2):
        for b in whole_axes(list(XY), 2):
            here, there = sw.Sharding(MESH, P(*a)), sw.Sharding(MESH, P(*b))
            plan = sw.plan_reshard((8, 8), np.float32, MESH, here, there)
            costs = move_costs(here, there, (8, 8), np.dtype(np.float32))
            assert sum(cost.bytes for cost in costs) == plan.bytes_received
            assert sum(cost.time for cost in costs) == pytest.approx(plan.time)


# -- cases that were once wrong ---------------------------------------------------------------------------------------


def test_shapes_are_checked_before_anything_is_kept():
    for shape, text in (
        ((8.0,), "not an integer"),
        ((True, 8), "not an integer"),
        ((-8,), "negative size"),
        (8, "sequence"),
    ):
        with pytest.raises(sw.ShardwrightError, match=text):
            sw.plan_reshard(shape, np.float32, MESH, P("x"), P())
    assert sw.shard(np.arange(8.0), MESH, P("x")).shape == (8,)
    huge = sw.plan_reshard((2**40, 2**40), np.float32, MESH, P("x"), P())
    assert huge.bytes_received == 2**79 * 4 == huge.lower_bound


def test_arguments_in_other_forms():
    assert sw.plan_reshard([8], "bf16", MESH, ["x"], []).bytes_received == 8
    with pytest.raises(ShardingError, match="names the unknown dtype 'float7'"):
        sw.plan_reshard((8,), "float7", MESH, P("x"), P())
    with pytest.raises(ShardingError, match="works on the bits"):
        sw.plan_reshard((8,), np.float32, MESH, sw.Sharding(MESH, P(), partial="x", reduction="bitwise_or"), P())
    with pytest.raises(ShardingError, match="algorithm 'foo' is unknown"):
        sw.plan_reshard((8,), np.float32, MESH, P("x"), P("x"), algorithm="foo", allow_device_permutation=True)


def test_slices_go_before_reductions_where_that_moves_less():
    mesh = sw.Mesh(c=4, b=16)
    plan = sw.plan_reshard((1 << 20,), np.float32, mesh, sw.Sharding(mesh, P(), partial="c"), P(("c", "b")))
    assert names(plan)[:2] == ["all_slice", "reduce_scatter"]
    assert plan.bytes_received < 2 * plan.lower_bound


def test_axes_with_other_links_are_gathered_one_after_the_other():
    mesh = sw.Mesh(x=16, y=4, links={"x": sw.Link(bandwidth=1e12), "y": sw.Link(bandwidth=1e9, latency=0, hop=0)})
    shape = (1 << 20, 16)
    plan = sw.plan_reshard(shape, np.float32, mesh, P(("x", "y")), P())
    assert [step.axes for step in plan.steps] == [("y",), ("x",)]
    two = (sw.plan_reshard(shape, np.float32, mesh, a, b) for a, b in ((P(("x", "y")), P("x")), (P("x"), P())))
    assert plan.time == pytest.approx(sum(p.time for p in two))


def test_bounds_are_bounds_for_other_reductions_and_meshes():
    mesh = sw.Mesh(x=4)
    some = sw.Sharding(mesh, P(), partial="x", reduction="max")
    for target in (sw.Sharding(mesh, P(), partial="x"), P(), P("x")):
        plan = sw.plan_reshard((8,), np.float32, mesh, some, target)
        assert plan.lower_bound <= plan.bytes_received
    big, small = sw.Mesh(x=16), sw.Mesh(x=2, devices=[20, 21])
    plan = sw.plan_reshard((16,), np.float32, big, sw.Sharding(big, P(), partial="x"), sw.Sharding(small, P()))
    assert plan.lower_bound <= plan.bytes_received
    assert sw.plan_reshard((8, 4), np.float32, mesh, P("x"), sw.Sharding(mesh, P(), partial="x")).lower_bound == 0


def test_halos_that_are_there_are_not_fetched_again():
    def wide(n):
        return sw.Sharding(MESH, P("y"), halo={0: n})

    shrunk = sw.plan_reshard((16, 4), np.float32, MESH, wide(2), wide(1))
    assert (names(shrunk), shrunk.bytes_received) == (["local"], 0)
    grown = sw.plan_reshard((16, 4), np.float32, MESH, wide(1), wide(2))
    assert (names(grown), grown.bytes_received) == (["update_halo"], 2 * 4 * 4)
    assert grown.lower_bound == grown.bytes_received


def test_scalars_and_other_devices():
    here, there = (sw.Sharding(sw.Mesh(x=2, devices=ids), P()) for ids in ([0, 1], [5, 6]))
    plan = sw.plan_reshard((), np.float32, here.mesh, here, there)
    assert (names(plan), plan.bytes_received, plan.lower_bound) == (["exchange"], 4, 4)
    assert plan.time > 0
    assert "from 2 to 2 devices" in plan.explain()
    x = sw.shard(np.arange(4.0), here.mesh, P("x"))
    moved = x.reshard(sw.Sharding(there.mesh, P("x")), allow_device_permutation=True)
    assert list(moved.mesh.device_ids) == [5, 6]


def test_a_reduction_smaller_than_its_group_is_small():
    mesh = sw.Mesh(x=4096)
    some = sw.Sharding(mesh, P(), partial="x")
    plan = sw.plan_reshard((), np.float32, mesh, some, P())
    assert (
        plan.bytes_received
        == 8
        == sum(cost.bytes for cost in move_costs(some, sw.Sharding(mesh, P()), (), np.dtype(np.float32)))
    )


def test_messages_of_many_shards_are_listed_at_once():
    n = 2048
    mesh = sw.Mesh(x=n)
    cuts = [0, *(2 * i + 1 for i in range(n - 1)), 2 * n]
    (step,) = sw.plan_reshard((2 * n,), np.float32, mesh, P("x"), sw.Sharding(mesh, P("x"), offsets={0: cuts})).steps
    assert len(step.transfers) == n - 1


def every_kind(mesh, spec, size):
    """A spec plain, partial along each axis that it leaves over, with offsets and with a halo along its first dim."""
    used = {axis for axes in spec for axis in axes}
    yield sw.Sharding(mesh, spec)
    yield from (sw.Sharding(mesh, spec, partial=axis) for axis in mesh.sizes if axis not in used)
    if spec and spec[0]:
        cuts = [0, *(5 * i + 1 for i in range(mesh.axis_size(spec[0]) - 1)), size]
        yield sw.Sharding(mesh, spec, offsets={0: cuts})
        yield sw.Sharding(mesh, spec, halo={0: (2, 3)})


@pytest.mark.parametrize(
    "shape",
    [(10**12,) * 3, (10**12 + 1, 10**12 - 1, 10**12 + 3), (10**19, 3), (10**30 + 1, 10**30), (2**63,), (2**64 + 1,)],
    ids=str,
)
def test_sizes_beyond_machine_integers_are_exact(shape):
    specs = [P(), P("x"), P(("y", "x")), P("x", "y"), P(None, "y")]
    kinds = [s for spec in specs if len(spec) <= len(shape) for s in every_kind(MESH, spec, shape[0])]
    for a, b in itertools.product(kinds, kinds):
        for algorithm in ("best", "direct", "portable"):
            plan = sw.plan_reshard(shape, np.float32, MESH, a, b, algorithm=algorithm)
            assert f"{plan.bytes_received:,} B" in plan.explain()
            assert "receives" in str(plan)
            assert plan.lower_bound <= plan.bytes_received
            figures = [plan.bytes_received, plan.lower_bound, plan.peak_bytes]
            figures += [n for step in plan.steps for n in (step.received, step.sent, step.message, step.lower_bound)]
            assert {type(n) for n in figures} == {int}
            assert plan.time >= 0


def test_huge_figures_are_those_of_integers():
    n = 10**30 + 1
    total = n * n * 4
    half, quarter = -(-n // 2), -(-n // 4)
    gather = sw.plan_reshard((n, n), np.float32, MESH, P("x"), P())
    assert (gather.bytes_received, gather.steps[0].sent) == (
        half * n * 4,
        half * n * 4,
    )  # the second half is a row less
    ring = sw.plan_reshard((n, n), np.float32, MESH, sw.Sharding(MESH, P(), partial="y"), P())
    chunk = -(-n * n // 4)
    assert ring.bytes_received == 2 * total - (n * n - 3 * chunk) * 4 - chunk * 4
    turned = sw.plan_reshard((n, n), np.float32, MESH, P("y"), P(None, "y"), algorithm="direct")
    assert turned.bytes_received == turned.lower_bound == (n - quarter) * quarter * 4


@pytest.mark.parametrize("more", [0, 7])
@pytest.mark.parametrize("algorithm", ["best", "direct"])
@pytest.mark.parametrize(
    ("sizes", "source", "target"),
    [
        ({"a": 128, "b": 128, "c": 64}, P(("a", "b", "c")), P(None, ("c", "b", "a"))),
        ({"a": 128, "b": 128, "c": 64}, P("a", "b"), P("b", "a")),
        ({"x": 1024, "y": 1024}, P(("x", "y")), P(("y", "x"))),
        ({"x": 1024, "y": 1024}, P(("x", "y")), P()),
        ({"x": 1024, "y": 1024}, P(), P(("x", "y"))),
        ({"x": 1024, "y": 1024}, P(("x", "y")), P("y", "x")),
        ({"x": 1024, "y": 1024}, P(("x", "y")), P("x")),
        ({"x": 1024, "y": 1024}, P("x"), P("y")),
        ({"x": 1024, "y": 1024}, P("x"), P(("y", "x"))),
        ({"a": 128, "b": 128, "c": 64}, P(("a", "b"), "c"), P("c", "a")),
    ],
    ids=str,
)
def test_plans_for_a_million_devices_list_none_of_them(sizes, source, target, algorithm, more):
    mesh = sw.Mesh(sizes)
    tracemalloc.start()
    plan = sw.plan_reshard((2**20 + more, 2**20 + more), np.float32, mesh, source, target, algorithm=algorithm)
    text = plan.explain()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.lower_bound <= plan.bytes_received
    assert text
    assert peak < 2**22  # four bytes a device


def test_reductions_over_a_million_devices_list_none_of_them():
    mesh = sw.Mesh(x=1024, y=1024)
    some = sw.Sharding(mesh, P(), partial=("x", "y"))
    for target in (P(), P(("x", "y")), P(None, ("y", "x"))):
        tracemalloc.start()
        plan = sw.plan_reshard((2**20 + 7, 2**20), np.float32, mesh, some, target)
        assert plan.lower_bound <= plan.bytes_received
        assert tracemalloc.get_traced_memory()[1] < 2**22
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(96, 60), (97, 61)], ids=str)
@pytest.mark.parametrize("offsets", [None, {0: [0, 5, 5, 40, 96]}], ids=str)
def test_a_dim_that_stays_counts_as_a_factor(shape, offsets):
    mesh = sw.Mesh(a=4, b=6, c=2)
    if offsets:
        offsets = {0: [*offsets[0][:-1], shape[0]]}
    source = sw.Sharding(mesh, P("a", "b"), offsets=offsets)
    for spec in (P("a", ("c", "b")), P("a", "c"), P("a"), P("a", ("b", "c"))):
        step = sw.plan_reshard(
            shape, np.float32, mesh, source, sw.Sharding(mesh, spec, offsets=offsets), algorithm="direct"
        ).steps[-1]
        largest = layout_of(source, shape).dims[0].block
        line = sw.plan_reshard(shape[1:], np.float32, mesh, P("b"), P(*list(spec)[1:]), algorithm="direct").steps[-1]
        assert step.received == line.received * largest, spec
        assert (line.sent - 4) * largest < step.sent <= line.sent * largest, spec  # shares are rounded up to an element


def test_the_text_of_a_plan_shows_few_offsets():
    mesh = sw.Mesh(x=64, y=64)
    plan = sw.plan_reshard((100_003,), np.float32, mesh, sw.Sharding(mesh, P("x"), partial="y"), P(("x", "y")))
    assert "f32[100003@(x,y)/0/25/50/" in plan.explain()
    assert "/…/100003]" in plan.explain()
    assert max(map(len, plan.explain().splitlines())) < 200


RINGS = {"a": sw.Link("torus", 1e12, 0), "b": sw.Link("all_to_all", 1e11, 1e-7)}


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target"),
    [  # a permute along more pieces than an exchange, a chain that only a search finds, one of fewer bytes and more time
        (sw.Mesh(a=6, b=8, links=RINGS), (3489,), P(("a:(1)2", "b:(1)2", "a:(2)3", "b:(2)4")), P(("a", "b"))),
        (sw.Mesh(a=4, b=8, c=2), (576, 4608), P("b", "c"), P("a", ("b", "c"))),
        (sw.Mesh(a=4, b=8, c=2), (577, 4608), P("b", "c"), P("a", ("b", "c"))),
        (sw.Mesh(a=4, b=8), (23040, 3), P("a", "b"), P(("b:(4)2", "a"))),
    ],
    ids=str,
)
def test_the_best_way_is_the_faster_of_both(mesh, shape, source, target):
    best, *others = (
        sw.plan_reshard(shape, np.float32, mesh, source, target, algorithm=a) for a in ("best", "direct", "portable")
    )
    assert best.time == min(plan.time for plan in others)


def test_pieces_of_an_axis_in_one_step_take_as_long_as_the_axis():
    mesh = sw.Mesh(x=8)
    assert mesh.links_along(("x:(1)2", "x:(2)4")) == mesh.links_along(("x",))
    assert mesh.links_along(("x:(1)2", "x:(4)2")) == mesh.links_along(("x:(1)4",))


# So slow that the links of all members of a node together are slower than those inside, and without latencies: levels are
# then gathered one after the other. Where outer links keep up, one gather over all levels, in a pipeline, takes less time.
SLOW = {
    "node": sw.Link(bandwidth=1e9, latency=0, hop=0),
    "pod": sw.Link(bandwidth=1e7, latency=0, hop=0),
    "g": sw.Link(latency=0, hop=0),
}
NODES = {"node": SLOW["node"], "g": SLOW["g"]}


def test_levels_that_keep_up_are_gathered_at_once():
    mesh = sw.Mesh(node=4, g=8, links={"node": sw.Link(bandwidth=12.5e9)})
    plan = sw.plan_reshard((2**28,), np.float32, mesh, P(("node", "g")), P())
    assert [(step.name, step.axes) for step in plan.steps] == [("all_gather", ("node", "g"))]
    # launch and 4 + 2 hops; 8 members × 2 × 12.5 GB/s into a node are as fast as 2 × 100 GB/s inside
    assert plan.time == pytest.approx(7e-6 + 31 * 2**25 / 200e9)


def test_a_slow_outer_axis_is_gathered_first():
    mesh = sw.Mesh(node=4, g=8, links=NODES)
    plan = sw.plan_reshard((2**28,), np.float32, mesh, P(("node", "g")), P())
    assert [(step.name, step.axes) for step in plan.steps] == [
        ("regroup", ()),
        ("all_gather", ("node",)),
        ("all_gather", ("g",)),
        ("regroup", ()),
    ]
    assert plan.bytes_received == plan.lower_bound == 2**30 - 2**25
    assert plan.time == pytest.approx(3 * 2**25 / 2e9 + 7 * 2**27 / 200e9)  # rings send both ways
    assert plan.time < 31 * 2**25 / (8 * 2e9)  # at once, at the pace of the outer level
    assert "f32[4@node,67108864@g]" in plan.explain()
    inner_first = 7 * 2**25 / 200e9 + 3 * 2**28 / 2e9
    assert inner_first > 7 * plan.time


@pytest.mark.parametrize(
    ("source", "target", "axes"),
    [
        (P(("pod", "node", "g")), P(), ["pod", "node", "g"]),
        (P(("g", "node", "pod")), P(), ["pod", "node", "g"]),
        (P(("g", "pod", "node")), P("g"), ["pod", "node"]),
        (P(("node", "g"), "pod"), P(), ["pod", "node", "g"]),
        (P(("node", "g:(1)2"), ("pod", "g:(2)2")), P(), ["pod", "node", "g:(2)2", "g:(1)2"]),
        (P(None, ("node", "g")), P("pod"), ["node", "g"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("engine", ["numpy", "literal"])
def test_links_set_the_order_of_gathers(source, target, axes, engine):
    mesh = sw.Mesh(pod=2, node=3, g=4, links=SLOW, engine=engine)
    host = np.arange(48 * 24).reshape(48, 24)
    plan = sw.plan_reshard(host.shape, host.dtype, mesh, source, target, algorithm="portable")
    assert [axis for step in plan.steps if step.name == "all_gather" for axis in step.axes] == axes
    x = sw.shard(host, mesh, source)
    moved = x.reshard(target)
    assert_devices(mesh, [s.data for s in moved.shards], oracle.shards(host, dict(mesh.sizes), moved.sharding.dims))
    measured = sw.measure(lambda x: x.reshard(target), x)
    assert measured.total_bytes == sum(row.counted for row in measured.rows)
    assert np.array_equal(np.asarray(sw.sjit(lambda x: x.reshard(target) + 1)(x)), host + 1)


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("target", [P(("node", "g")), P("pod", ("node", "g")), P(("pod", "node", "g"))], ids=str)
def test_slow_links_scatter_last(target, engine):
    mesh = sw.Mesh(pod=2, node=3, g=4, links=SLOW, engine=engine)
    host = np.arange(48.0 * 24).reshape(48, 24)
    some = sw.Sharding(mesh, P(), partial=("node", "g"))
    plan = sw.plan_reshard(host.shape, host.dtype, mesh, some, target)
    assert [step.axes for step in plan.steps if step.name == "reduce_scatter"] == [("g",), ("node",)]
    x = sw.shard(host, some)
    moved = x.reshard(target)
    assert_devices(mesh, [s.data for s in moved.shards], oracle.shards(host, dict(mesh.sizes), moved.sharding.dims))
    assert np.array_equal(np.asarray(sw.sjit(lambda x: x.reshard(target) * 2)(x)), host * 2)
    measured = sw.measure(lambda x: x.reshard(target), x)
    assert [row.counted for row in measured.rows] == [row.bytes for row in measured.rows]


def test_uneven_shards_are_gathered_over_all_levels_at_once():  # they can't be regrouped, and inner first sends most outside
    mesh = sw.Mesh(node=4, g=8, links=NODES)
    plan = sw.plan_reshard((2**20 + 1,), np.float32, mesh, P(("node", "g")), P(), algorithm="portable")
    assert [step.axes for step in plan.steps] == [("node", "g")]


def test_regrouped_tensors_stay_partial_along_other_axes():
    for engine in ("numpy", "literal"):
        mesh = sw.Mesh(pod=2, node=3, g=4, links=SLOW, engine=engine)
        host = np.arange(24.0)
        source, target = (sw.Sharding(mesh, spec, partial="pod") for spec in (P(("node", "g")), P()))
        x = sw.shard(host, source)
        steps = sw.plan_reshard(host.shape, host.dtype, mesh, source, target).steps
        assert [step.name for step in steps] == ["regroup", "all_gather", "all_gather", "regroup"]
        moved = x.reshard(target)
        assert moved.sharding.partial == ("pod",)
        assert np.array_equal(np.asarray(moved), host)
        assert np.array_equal(np.asarray(sw.sjit(lambda x, t=target: x.reshard(t))(x)), host)


def test_moves_of_regrouped_moves_are_planned_anew():
    mesh = sw.Mesh(node=4, g=8, links=NODES)
    x = sw.shard(np.arange(64.0), mesh, P(("node", "g")))
    there_and_back = sw.explain(lambda x: x.reshard(P()).reshard(P(("node", "g"))) + 1, x)
    assert there_and_back.total_bytes == 0
    sliced = sw.explain(lambda x: x.reshard(P()).reshard(P("node")) + 1, x)
    assert sliced.total_bytes == sw.plan_reshard((64,), np.float64, mesh, P(("node", "g")), P("node")).bytes_received
    again = sw.explain(lambda x: (x + 1).reshard(P("node")).reshard(P(("node", "g"))).reshard(P()), x)
    assert again.total_bytes == sw.plan_reshard((64,), np.float64, mesh, P(("node", "g")), P()).bytes_received


def test_a_loop_moves_what_it_regroups_once():
    mesh = sw.Mesh(node=4, g=8, links=NODES)
    x, y = sw.shard(np.arange(64.0), mesh, P(("node", "g"))), sw.replicate(np.zeros(64), mesh)

    def repeated(x, y):
        return sw.while_loop(lambda y: y[0] < 3, lambda y: y + 1 + x.reshard(P()), y)

    assert np.array_equal(np.asarray(sw.sjit(repeated)(x, y)), 3 * (np.arange(64) + 1.0))
    rows = sw.explain(repeated, x, y).rows
    assert [row.inside for row in rows if row.collective.startswith("all_gather")] == ["", ""]


def test_regrouping_takes_no_memory():
    mesh = sw.Mesh(node=4, g=8, links=NODES)
    x = sw.shard(np.arange(64.0), mesh, P(("node", "g")))
    assert sw.explain(lambda x: x.reshard(P()), x).peak_bytes <= 16 + 64 * 8 + 64


def test_a_way_does_not_depend_on_the_names_of_axes():
    shape, dtype = (96, 48, 24), np.dtype(np.float32)
    for sizes in ((2, 4), (3, 2, 4), (8, 8, 8)):
        for links in (None, sw.Link("ring", 1e9, 1e-5)):
            specs = [((0,), (1,), ()), ((1, 0), (), ()), ((), (0,), (1,)), ((), (1, 0), ()), ((0, 1), (), ())]
            for source, target in itertools.permutations(specs, 2):
                plans = []
                for names in ("abc", "cab", "xyz"):
                    mesh = sw.Mesh(sizes, tuple(names[: len(sizes)]), links={names[0]: links} if links else None)
                    ends = (P(*([mesh.axis_names[n] for n in dim] for dim in spec)) for spec in (source, target))
                    plan = sw.plan_reshard(shape, dtype, mesh, *ends)
                    numbered = [tuple(mesh.axis_names.index(a.partition(":")[0]) for a in s.axes) for s in plan.steps]
                    plans.append(([s.name for s in plan.steps], numbered, plan.time))
                assert plans[0] == plans[1] == plans[2]


ALIKE = {  # the axes x and y of 8×8×8 are alike: which of them a move names must not matter
    "a permute along fewer axes": ((4096, 4096, 512), P("z", "x", "y"), (), P("y", None, None)),
    "gathers of slow links before those of both": ((4096, 4096, 512), P("y", None, ("x", "z")), (), P()),
    "a permute or an exchange": ((4096, 4096, 512), P("z", "y", "x"), (), P(None, None, "z")),
    "sliced, then a permute": ((4096, 512, 64), P("y", "x", "z:(1)2"), (), P(None, "z", None)),
    "scattered, then a permute": ((512, 64, 512), P(None, None, "y"), ("x", "z"), P("x", "y", "z")),
    "scattered along both kinds of links": ((64, 64, 64), P(), ("x", "y", "z"), P("y", None, ("x", "z"))),
    "scattered before it is sliced": ((512, 64), P(), ("y", "z"), P("z", ("y", "x"))),
    "gathered where blocks are uneven": ((100, 60, 512), P(("y", "x"), None, "z"), (), P()),
}


@pytest.mark.parametrize("case", ALIKE)
def test_a_move_takes_the_least_time_whichever_of_alike_axes_it_names(case):
    shape, source, partial, target = ALIKE[case]
    mesh = sw.Mesh(x=8, y=8, z=8, hardware="h100")
    swap = {"x": "y", "y": "x"}
    plans = []
    for names in ({}, swap):
        ends = [P(*[tuple(names.get(axis, axis) for axis in _axes(dim)) for dim in spec]) for spec in (source, target)]
        start = sw.Sharding(mesh, ends[0], partial=tuple(names.get(axis, axis) for axis in partial))
        plans.append(sw.plan_reshard(shape, np.float32, mesh, start, ends[1]))
    assert plans[0].time == plans[1].time
    assert plans[0].bytes_received == plans[1].bytes_received


def _axes(dim):
    return () if dim is None else dim if isinstance(dim, tuple) else (dim,)


def test_of_alike_chains_that_with_the_cheaper_links_is_taken():
    mesh = sw.Mesh(x=8, y=8, z=8, hardware="h100")
    for slow, other in (("x", "y"), ("y", "x")):
        plan = sw.plan_reshard((4096, 4096, 512), np.float32, mesh, P(slow, None, (other, "z")), P())
        assert [step.axes for step in plan.steps] == [
            (slow,),
            (other, "z"),
        ]  # what crosses nodes alone, while it is small
        plan = sw.plan_reshard((4096, 4096, 512), np.float32, mesh, P("z", slow, other), P(other, None, None))
        assert [step.axes for step in plan.steps] == [(other, "z"), (slow,), ("z",)]


LINKS = ["ring", "line", "torus", "switch", "full"]


def _uneven_move(rng, least, most, sizes, lengths, kinds):
    """A random mesh of more than `least` and up to `most` devices, a shape, and two placements."""
    while True:
        counts = [int(n) for n in rng.choice(sizes, 3)]
        if least < math.prod(counts) <= most:
            break
    links = [sw.Link(str(kind), float(rng.choice([1e9, 1e11]))) for kind in rng.choice(kinds, 3)]
    mesh = sw.Mesh(counts, tuple("abc"), links=dict(zip("abc", links, strict=True)))
    shape = tuple(int(n) for n in rng.choice(lengths, rng.integers(1, 3)))
    specs = []
    for _ in range(2):
        dims: list[tuple[str, ...]] = [()] * len(shape)
        for axis in rng.permutation(list("abc")).tolist():
            dims[rng.integers(len(shape))] += (axis,) if rng.random() < 0.8 else ()
        specs.append(P(*dims))
    return mesh, shape, specs


@pytest.mark.parametrize("seed", range(12))
def test_between_thousands_of_devices_no_chain_is_quicker_than_the_plan(seed):
    """Uneven shards of primes, more than 4,096 of a dim among them."""
    rng, listed = np.random.default_rng(seed), 0
    while listed < 2:
        mesh, shape, specs = _uneven_move(
            rng, 4096, 65536, [2, 8, 16, 64, 128], [10007, 65537, 1048583], ["ring", "switch"]
        )
        best, chain = (sw.plan_reshard(shape, np.float32, mesh, *specs, algorithm=a) for a in ("best", "portable"))
        assert best.time <= chain.time * (1 + 1e-9), (mesh, shape, specs)
        listed += any(max(map(len, step.result.offsets), default=0) > 4096 for step in chain.steps)


@pytest.mark.parametrize(
    ("sizes", "hardware", "shape", "source", "target"),
    [
        ({"a": 2, "b": 8, "c": 2}, "mi300x", (10**12, 2), P("b", "c"), P(None, "a")),
        ({"a": 2, "b": 8, "c": 2}, "mi300x", (8_000_000, 2), P("b", "c"), P(None, "a")),
        ({"a": 3, "b": 8, "c": 4, "d": 2, "e": 2}, "gb200-nvl72", (16, 10**12), P("b", "d"), P(("c", "e"))),
        ({"a": 1, "b": 8, "c": 8, "d": 2}, "tpu-v6e", (10**12,), P(("b", "d", "a")), P(("a", "c"))),
        ({"a": 4, "b": 2, "c": 2, "d": 1}, "mi300x", (1000, 100, 48), P(None, None, ("a", "b")), P("d", "c")),
    ],
)
def test_a_chain_that_regroups_shards_does_not_hide_a_quicker_one(sizes, hardware, shape, source, target):
    mesh = sw.Mesh(sizes, hardware=hardware)
    best, chain, direct = (
        sw.plan_reshard(shape, np.float32, mesh, source, target, algorithm=a) for a in ("best", "portable", "direct")
    )
    assert best.time <= min(chain.time, direct.time) * (1 + 1e-9)
    assert chain.time < direct.time


@pytest.mark.parametrize("seed", range(4))
def test_between_a_hundred_thousand_devices_no_chain_is_quicker_than_the_plan(seed):
    rng, listed = np.random.default_rng(seed), 0
    while listed < 4:
        mesh, shape, specs = _uneven_move(rng, 65536, 2**18, [3, 16, 64, 100, 256], [10007, 65537, 1048583], LINKS)
        try:
            chain = sw.plan_reshard(shape, np.float32, mesh, *specs, algorithm="portable")
        except ShardingError:
            continue
        assert sw.plan_reshard(shape, np.float32, mesh, *specs).time <= chain.time * (1 + 1e-9), (mesh, shape, specs)
        listed += any(max(map(len, step.result.offsets), default=0) > 4096 for step in chain.steps)


@pytest.mark.parametrize("seed", range(8))
def test_what_chains_over_uneven_shards_take_at_least_is_never_more_than_they_take(seed):
    rng, near, count = np.random.default_rng(seed), 0, 0
    for _ in range(25):
        mesh, shape, specs = _uneven_move(rng, 1, 512, range(2, 17), [1, 5, 29, 100, 1000, 65537], LINKS)
        source, target = (sw.Sharding(mesh, spec).for_shape(shape) for spec in specs)
        maker, change = Maker(shape, np.dtype(np.float32)), change_between(source, target, np.dtype(np.float32))
        for hops in change.chains(True):
            if any(hop.name == "regroup" for hop in hops):
                continue
            least = least_time(source, change.before(hops), hops, target, shape, 4)
            takes = sum(step.time for step in maker.followed(source, target, hops))
            assert least <= takes * (1 + 1e-9), (mesh, shape, specs, hops)
            near, count = near + (least > 0.9 * takes), count + 1
    assert near > count / 2
