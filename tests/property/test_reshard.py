"""Resharding between random shardings: right on every device, never below the bound, and direct exactly at it."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import oracle
import shardwright as sw
import strategies
from helpers import assert_devices, held_by
from shardwright import P
from shardwright.errors import ShardingError
from shardwright.plan import move_costs, volume
from shardwright.plan.alike import alike_axes
from shardwright.plan.bounds import least_time
from shardwright.plan.maker import Maker
from shardwright.plan.route import change_between
from shardwright.plan.windows import Blocks
from shardwright.sharding import layout_of
from strategies import host_arrays, meshes, shapes, shardings

plans_only = pytest.mark.parametrize("engine", ["numpy"], indirect=True)  # nothing runs on an engine


@st.composite
def changes(draw, partial=False, halo=False, offsets=True):
    """A tensor, and two shardings of it on one mesh of up to 4 axes."""
    mesh = draw(meshes(max_axes=4, max_devices=24))
    host = host_arrays(draw(shapes(min_dims=1, max_dims=3, max_size=9)), seed=draw(st.integers(0, 99)))
    source, target = (
        draw(shardings(mesh, host.shape, partial=partial, halo=halo, offsets=offsets)).for_shape(host.shape)
        for _ in range(2)
    )
    return host, source, target


def held(host, sharding):
    cuts = {dim: list(given) for dim, given in enumerate(sharding.offsets) if given}
    halo = {dim: pair for dim, pair in enumerate(sharding.halo) if pair != (0, 0)}
    return oracle.shards(host, dict(sharding.mesh.sizes), sharding.dims, cuts, halo)


def check(x, host):
    assert_devices(x.mesh, held_by(x), held(host, x.sharding))


def follow(plan, x, host):
    """Run a plan step by step, looking at every device after each."""
    at = plan.source
    for step in plan.steps:
        assert step.source is at
        runs_alone = step.name in ("permute", "update_halo", "local")
        x = x.reshard(step.result) if runs_alone else x.apply_collective(step.collective)
        assert x.sharding is step.result
        if not x.sharding.partial:
            check(x, host)
        at = step.result
    assert at is plan.target
    return x


@settings(max_examples=700)
@given(change=changes())
def test_every_way_is_right_and_the_direct_one_at_the_bound(change):
    host, source, target = change
    x = sw.shard(host, source)
    check(x.reshard(target), host)
    plans = {}
    for algorithm in ("best", "direct", "portable"):
        if algorithm == "portable" and not source.mesh.share_a_cut((*source.axes, *target.axes)):
            with pytest.raises(ShardingError, match="No chain of collectives"):
                sw.plan_reshard(host.shape, host.dtype, x.mesh, source, target, algorithm=algorithm)
            continue
        plan = plans[algorithm] = sw.plan_reshard(host.shape, host.dtype, x.mesh, source, target, algorithm=algorithm)
        check(follow(plan, x, host), host)
        assert plan.bytes_received >= plan.lower_bound
    assert plans["direct"].bytes_received == plans["direct"].lower_bound
    assert plans["best"].time <= plans["direct"].time


@plans_only
@settings(max_examples=200)
@given(change=changes())
def test_the_messages_of_an_exchange_bring_each_device_what_it_lacks(change):
    host, source, target = change
    (step,) = sw.plan_reshard(host.shape, host.dtype, source.mesh, source, target, algorithm="direct").steps or (None,)
    assume(step is not None and step.name == "exchange")
    mesh = source.mesh
    has, wants = {}, {}
    for sharding, masks in ((source, has), (target, wants)):
        cuts = {dim: list(given) for dim, given in enumerate(sharding.offsets) if given}
        numbers = oracle.shards(np.arange(host.size).reshape(host.shape), dict(mesh.sizes), sharding.dims, cuts)
        for coords, part in numbers.items():
            masks[mesh.index(coords)] = set(part.ravel().tolist())
    got = {device: set() for device in wants}
    sent = dict.fromkeys(has, 0)
    every = np.arange(host.size).reshape(host.shape)
    for sender, receiver, box, elements in step.transfers:
        part = set(every[box].ravel().tolist())
        assert len(part) == elements > 0
        assert part <= has[sender]
        assert not part & (has[receiver] | got[receiver])
        got[receiver] |= part
        sent[sender] += elements
    for device, wanted in wants.items():
        assert wanted <= has[device] | got[device]
        assert got[device] <= wanted
    assert max(map(len, got.values())) * host.itemsize == step.received
    assert max(sent.values()) * host.itemsize >= step.sent  # which shares every box evenly among its holders


@plans_only
@settings(max_examples=300)
@given(change=changes(offsets=False), scale=st.sampled_from([720]))
def test_a_chain_of_even_shards_never_holds_more_than_the_larger_end(change, scale):
    host, source, target = change
    shape = (scale,) * host.ndim  # divided by every number of shards there can be here
    parts = [source.parts(d) for d in range(host.ndim)] + [target.parts(d) for d in range(host.ndim)]
    assume(all(scale % n == 0 for n in parts))
    try:
        plan = sw.plan_reshard(shape, np.int8, source.mesh, source, target, algorithm="portable")
    except ShardingError:
        return
    room = max(math.prod(local) for s in (source, target) for local in [local_shape(s, shape)])
    assert all(math.prod(step.local_after) <= room for step in plan.steps)
    assert plan.peak_bytes <= room + max((step.message for step in plan.steps), default=0)
    assert all(step.message <= math.prod(step.local_before) for step in plan.steps)
    direct = sw.plan_reshard(shape, np.int8, source.mesh, source, target, algorithm="direct")
    assert direct.lower_bound == direct.bytes_received <= plan.bytes_received


@plans_only
@settings(max_examples=500)
@given(data=st.data())
def test_the_best_way_takes_no_longer_than_those_it_chooses_from(data):
    kinds = st.builds(
        sw.Link,
        st.sampled_from(["ring", "line", "torus", "all_to_all"]),
        st.sampled_from([1e9, 1e10, 1e11, 1e12]),
        st.sampled_from([0, 1e-7, 1e-6, 1e-5]),
    )
    names = "abcd"[: data.draw(st.integers(1, 4))]
    sizes = {name: data.draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for name in names}
    links = data.draw(st.one_of(kinds, st.fixed_dictionaries(dict.fromkeys(names, kinds))))
    mesh = sw.Mesh(sizes, links=links)
    size = st.one_of(st.integers(0, 9), st.integers(1, 5000), st.sampled_from([576, 4608, 23040]))
    shape = tuple(data.draw(st.lists(size, min_size=1, max_size=3)))
    dtype = np.dtype(data.draw(st.sampled_from([np.float32, np.int16])))
    source, target = (
        data.draw(shardings(mesh, shape, halo=False, offsets=data.draw(st.booleans())))
        .replace(reduction=data.draw(st.sampled_from(["sum", "max", "average"])))
        .for_shape(shape)
        for _ in range(2)
    )
    best, direct = (sw.plan_reshard(shape, dtype, mesh, source, target, algorithm=a) for a in ("best", "direct"))
    assert best.time <= direct.time * (1 + 1e-9)
    try:
        portable = sw.plan_reshard(shape, dtype, mesh, source, target, algorithm="portable")
    except ShardingError:
        return
    assert best.time <= portable.time * (1 + 1e-9)
    costs = move_costs(source, target, shape, dtype)
    assert sum(cost.bytes for cost in costs) == best.bytes_received
    assert sum(cost.time for cost in costs) == pytest.approx(best.time, rel=1e-9)


@plans_only
@settings(max_examples=300)
@given(change=changes())
def test_the_least_time_of_a_chain_is_a_bound(change):
    host, source, target = change
    assume(source.mesh.share_a_cut((*source.axes, *target.axes)))
    assume(all(n > 1 for n in source.mesh.sizes.values()))  # a plan drops axes of size 1 first
    change = change_between(source, target, host.dtype)
    for hops in change.chains(further=True):
        least = least_time(source, change.before(hops), hops, target, host.shape, host.itemsize)
        steps = Maker(host.shape, host.dtype).followed(source, target, hops)
        assert least <= sum(step.time for step in steps)


def renamed(sharding, names):
    """A sharding with other names for axes; pieces of axes keep their bounds."""

    def named(axes):
        return tuple(":".join([names[axis.split(":")[0]], *axis.split(":")[1:]]) for axis in axes)

    return sw.Sharding(sharding.mesh, P(*map(named, sharding.dims)), partial=named(sharding.partial))


@plans_only
@settings(max_examples=400)
@given(data=st.data())
def test_a_move_costs_the_same_whichever_of_several_alike_axes_it_names(data):
    sizes, hardware, kinds = data.draw(
        st.sampled_from(
            [
                ({"a": 8, "b": 8, "c": 8}, "h100", ["ab", "c"]),
                ({"a": 2, "b": 2, "c": 2}, "h100", ["abc"]),
                ({"a": 4, "b": 4, "c": 4}, "tpu-v4", ["abc"]),
                ({"a": 4, "b": 2, "c": 4, "d": 4}, "generic", ["acd", "b"]),
            ]
        )
    )
    mesh = sw.Mesh(sizes, hardware=hardware)
    assert sorted(map("".join, alike_axes(mesh))) == kinds
    names = {a: b for kind in kinds for a, b in zip(kind, data.draw(st.permutations(kind)), strict=True)}
    shape = tuple(data.draw(st.lists(st.sampled_from([512, 4096, 64, 60, 7]), min_size=1, max_size=3)))
    source = data.draw(shardings(mesh, shape, halo=False, offsets=False))
    target = data.draw(shardings(mesh, shape, partial=False, halo=False, offsets=False))
    ends = [(source, target), (renamed(source, names), renamed(target, names))]
    one, other = (sw.plan_reshard(shape, np.float32, mesh, *pair) for pair in ends)
    assert one.time == pytest.approx(other.time, rel=1e-12)
    assert one.bytes_received == other.bytes_received


@settings(max_examples=200)
@given(data=st.data())
def test_chains_over_links_of_different_speed_are_right_and_counted(data):
    large = [{"a": 2, "b": 3, "c": 4}, {"a": 2, "b": 2, "c": 2, "d": 3}, {"a": 4, "b": 6}]
    small = [{"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 2}, {"a": 2, "b": 4}]
    sizes = data.draw(st.sampled_from(small if strategies.ENGINE[0] in strategies.MOST else large))
    speeds = st.sampled_from([1e9, 1e10, 1e11])
    links = {name: sw.Link(bandwidth=data.draw(speeds), latency=0.0, hop=0.0) for name in sizes}
    mesh = sw.Mesh(sizes, links=links, engine=strategies.ENGINE[0])
    host = host_arrays((24,) * data.draw(st.integers(1, 2)))  # divided by every number of shards there can be here
    kinds = {"halo": False, "offsets": False}
    source = data.draw(shardings(mesh, host.shape, **kinds))
    target = data.draw(shardings(mesh, host.shape, partial=False, **kinds))
    x = sw.shard(host, source)
    check(x.reshard(target), host)
    measured = sw.measure(lambda x: x.reshard(target), x)
    assert [row.counted for row in measured.rows] == [row.bytes for row in measured.rows]
    np.testing.assert_array_equal(np.asarray(sw.sjit(lambda x: x.reshard(target) * 2)(x)), host * 2)
    paces = [
        max(1 / links[axis.split(":")[0]].bandwidth for axis in step.axes)
        for step in sw.plan_reshard(host.shape, host.dtype, mesh, source, target).steps
        if step.name == "all_gather"
    ]
    assert paces == sorted(paces, reverse=True)


@plans_only
@settings(max_examples=300)
@given(data=st.data())
def test_figures_from_a_few_places_are_those_of_all(data):
    sizes = {name: data.draw(st.integers(1, 7)) for name in "abc"}
    mesh = sw.Mesh(sizes)
    shape = data.draw(shapes(min_dims=1, max_dims=2, max_size=400))
    kinds = {"partial": False, "halo": False, "offsets": False}
    layouts = [layout_of(data.draw(shardings(mesh, shape, **kinds)).for_shape(shape), shape) for _ in range(2)]
    figures = []
    for most in (volume.MOST_PLACES, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(volume, "MOST_PLACES", most)
            met = volume.Meeting(*layouts, [Blocks(dim) for dim in layouts[1].dims])
            figures.append((met.received, met.crossed))
    assert figures[0] == figures[1]


@plans_only
@settings(max_examples=300)
@given(data=st.data())
def test_figures_dim_by_dim_are_those_of_every_device(data):
    mesh = sw.Mesh({name: data.draw(st.integers(1, 4)) for name in "abc"})
    shape = data.draw(shapes(min_dims=1, max_dims=3, max_size=30))
    layouts = [layout_of(data.draw(shardings(mesh, shape, partial=False)).for_shape(shape), shape) for _ in range(2)]
    wanted = [Blocks(dim) for dim in layouts[1].dims]
    met = volume.Meeting(*layouts, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sw.Mesh, "share_a_cut", lambda *_: False)
        each = volume.Meeting(*layouts, wanted)
        assert not each.aligned
    assert met.aligned
    assert (met.received, met.sent) == (each.received, each.sent)


def local_shape(sharding, shape):
    return tuple(-(-n // sharding.parts(dim)) for dim, n in enumerate(shape))


@settings(max_examples=300)
@given(change=changes(partial=True, halo=True))
def test_partial_values_halos_and_offsets_are_part_of_it(change):
    host, source, target = change
    x = sw.shard(host, source)
    made = x.reshard(target)
    np.testing.assert_array_equal(np.asarray(made), host)
    if not target.partial:
        check(made, host)
    for algorithm in ("best", "direct"):
        plan = sw.plan_reshard(host.shape, host.dtype, x.mesh, source, target, algorithm=algorithm)
        np.testing.assert_array_equal(np.asarray(follow(plan, x, host)), host)
        assert plan.bytes_received >= plan.lower_bound
        assert not plan.steps or plan.steps[-1].result is target


@settings(max_examples=200)
@given(data=st.data())
def test_arrays_move_between_meshes(data):
    one, other = (data.draw(meshes(max_axes=3, max_devices=12)) for _ in range(2))
    host = host_arrays(data.draw(shapes(min_dims=1, max_dims=3)))
    source = data.draw(shardings(one, host.shape, partial=False, halo=False)).for_shape(host.shape)
    target = data.draw(shardings(other, host.shape, partial=False, halo=False)).for_shape(host.shape)
    x = sw.shard(host, source)
    check(x.reshard(target), host)
    plan = sw.plan_reshard(host.shape, host.dtype, one, source, target)
    if one != other:
        assert plan.algorithm == "direct"
        lacking = []
        places = {d: set(n.ravel().tolist()) for d, n in numbered(host, source).items()}
        for device, wanted in numbered(host, target).items():
            lacking.append(len(set(wanted.ravel().tolist()) - places.get(device, set())))
        assert plan.bytes_received == max(lacking) * host.itemsize == plan.lower_bound


def numbered(host, sharding):
    """The numbers of the elements that each device holds, by its id."""
    every = np.arange(host.size).reshape(host.shape)
    return {sharding.mesh.index(coords): part for coords, part in held(every, sharding).items()}


@settings(max_examples=200)
@given(change=changes())
def test_devices_that_hold_the_right_shards_may_change_places(change):
    host, source, target = change
    plan = sw.plan_reshard(host.shape, host.dtype, source.mesh, source, target, allow_device_permutation=True)
    made = sw.shard(host, source).reshard(target, allow_device_permutation=True)
    check(made, host)
    boxes = [sorted(map(str, numbered(host, s).values())) for s in (source, target)]
    if boxes[0] == boxes[1] and len(set(boxes[0])) == source.mesh.size:
        assert plan.algorithm == "relabel"
        assert not plan.steps
        assert made.sharding is plan.target
        was, now = numbered(host, source), numbered(host, made.sharding)
        assert all(was[device].ravel().tolist() == now[device].ravel().tolist() for device in was)
