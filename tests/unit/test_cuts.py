"""Offsets by arithmetic against lists of them."""

import copy
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest

import shardwright as sw
import shardwright.sharding.cuts as module
from shardwright import P
from shardwright.plan import volume
from shardwright.plan.maker import Maker
from shardwright.plan.route import change_between
from shardwright.plan.windows import Blocks
from shardwright.sharding import Nested, layout_of, nested
from shardwright.sharding.sharding import are_blocks

SIZES = [0, 1, 2, 3, 5, 7, 8, 12, 16, 24, 30, 60, 61, 97, 100, 128, 1000, 1009]


def sliced(cuts, group):
    result = []
    for low, high in pairwise(cuts):
        block = math.ceil((high - low) / group)
        result += [min(low + at * block, high) for at in range(group)]
    return [*result, cuts[-1]]


def random_offsets(rng):
    """The same slices and gathers of neighbours, nested and as a list."""
    size = int(rng.choice(SIZES))
    cuts = [0, size]
    if rng.random() < 0.3:
        cuts = [0, *sorted(rng.integers(0, size + 1, rng.integers(0, 4)).tolist()), size]
    own = Nested(tuple(cuts))
    for _ in range(rng.integers(1, 6)):
        parts = len(cuts) - 1
        if rng.random() < 0.7:
            group = int(rng.integers(1, 7))
            if parts * group < 1000:
                own, cuts = own.sliced(group), sliced(cuts, group)
        else:
            group = int(rng.choice([n for n in range(1, parts + 1) if parts % n == 0]))
            own, cuts = own.joined(group), cuts[::group]
    return own, cuts


@pytest.mark.parametrize("seed", range(10))
def test_nested_offsets_are_those_of_a_list(seed):
    rng, blocks = np.random.default_rng(seed), 0
    for _ in range(150):
        own, cuts = random_offsets(rng)
        size, parts = cuts[-1], len(cuts) - 1
        rows = np.arange(size)
        assert (len(own), own.parts, own.size) == (parts + 1, parts, size)
        assert list(own) == cuts
        assert [own[at] for at in range(-parts, parts)] == [cuts[at] for at in range(-parts, parts)]
        assert own[1::2] == tuple(cuts[1::2])
        np.testing.assert_array_equal(np.asarray(own), cuts)
        np.testing.assert_array_equal(own.owners(rows), np.searchsorted(cuts, rows, side="right") - 1)
        assert own.sizes | {0} == {*np.diff(cuts).tolist(), 0}
        assert own.largest == max(np.diff(cuts))
        for block in (own.largest, -(-size // parts)):
            same = cuts == [min(at * block, size) for at in range(parts + 1)]
            assert are_blocks(own, block) == are_blocks(tuple(cuts), block) == same
            blocks += same
    assert 100 < blocks < 280


def test_offsets_beyond_what_a_machine_counts():
    size = 2**70 + 3
    own = nested((), size, 2**14).sliced(2**6).joined(2)
    parts = 2**19
    outer = (size + 2**14 - 1) // 2**14
    block = (outer + 2**6 - 1) // 2**6 * 2
    assert own[1] == block
    assert own[parts] == size
    assert own.owners(np.array([0, block, block - 1], object)).tolist() == [0, 1, 0]
    assert np.asarray(own, object)[-1] == size


def test_equal_nested_offsets_are_one_sharding():
    mesh = sw.Mesh(a=128, b=128, c=4)
    size = 10**6 + 3
    source = sw.Sharding(mesh, P("a")).for_shape((size,))
    twice = [sw.collectives.AllSlice(("b",), 0).on(source, (size,)) for _ in range(2)]
    assert twice[0] is twice[1]
    assert isinstance(twice[0].offsets[0], Nested)
    for made in (pickle.loads(pickle.dumps(twice[0])), copy.deepcopy(twice[0]), eval(repr(mesh), {"Mesh": sw.Mesh})):
        assert made is twice[0] or made == mesh
    assert sw.collectives.AllGather(("b",), 0).on(twice[0], (size,)) is source
    even = sw.Sharding(mesh, P("a")).for_shape((2**21,))
    assert sw.collectives.AllSlice(("b",), 0).on(even, (2**21,)).offsets == ()


@pytest.mark.parametrize("seed", range(8))
def test_steps_over_nested_offsets_are_those_over_lists(seed):
    """Also with few places looked at; what is sent only where all holders of a shard are looked at."""
    rng, nested_steps = np.random.default_rng(seed), 0
    for _ in range(20):
        counts = [int(n) for n in rng.choice([2, 3, 4, 5, 8, 12], rng.integers(2, 4))]
        names = "abc"[: len(counts)]
        mesh = sw.Mesh(counts, tuple(names), links=sw.Link(bandwidth=3e9 + seed))
        shape = tuple(int(n) for n in rng.choice([1, 5, 29, 100, 1009, 65537], rng.integers(1, 3)))
        ends = []
        for _ in range(2):
            dims = [()] * len(shape)
            for axis in rng.permutation(list(names)).tolist():
                dims[rng.integers(len(shape))] += (axis,) if rng.random() < 0.75 else ()
            ends.append(sw.Sharding(mesh, P(*dims)).for_shape(shape))
        maker, change = Maker(shape, np.dtype(np.int8)), change_between(*ends, np.dtype(np.int8))
        for hops in change.chains(True)[:6]:
            if any(hop.name == "regroup" for hop in hops):
                continue
            found = []
            for listed, most in ((4096, 8192), (0, 0)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(module, "LISTED", listed)
                    patch.setattr(volume, "MOST_PLACES", most)
                    patch.setattr(volume, "MOST_MORE", 200 if most == 0 else 32768)
                    steps = maker.followed(*ends, hops)
                    found.append([figures(step, shape) for step in steps])
            nested_steps += sum(isinstance(cuts, Nested) for step in steps for cuts in step.result.offsets)
            assert found[0] == found[1]
    assert nested_steps > 10


def figures(step, shape):
    here, there = layout_of(step.source, shape), layout_of(step.result, shape)
    met = volume.Meeting(here, there, [Blocks(dim) for dim in there.dims])
    split = {lane for dim in met.source.dims for lane in dim.lanes}
    alone = split >= {lane for dim in met.target.dims for lane in dim.lanes}
    offsets = [dim.offsets.tolist() for dim in there.dims]
    return step.name, step.axes, offsets, met.received, met.crossed, met.distance, met.sent if alone else None


@pytest.mark.parametrize("seed", range(4))
def test_arrays_with_nested_offsets_move_and_are_computed_with(seed, monkeypatch):
    monkeypatch.setattr(module, "LISTED", 0)
    rng, seen = np.random.default_rng(seed), 0
    for number in range(12):
        counts = [int(n) for n in rng.integers(2, 5, 2)]
        mesh = sw.Mesh(counts, ("a", "b"), links=sw.Link(bandwidth=5e9 + 100 * seed + number))
        host = rng.normal(size=(int(rng.integers(1, 30)), int(rng.integers(1, 9))))
        source = sw.Sharding(mesh, P("a")).for_shape(host.shape)
        cut = sw.collectives.AllSlice(("b",), 0).on(source, host.shape)
        seen += bool(cut.offsets)
        x = sw.shard(host, cut)
        for spec in (P("b"), P(("b", "a")), P(None, "a"), P()):
            np.testing.assert_array_equal(np.asarray(x.reshard(spec)), host)
        np.testing.assert_allclose(np.asarray((x * 2 + 1).sum(axis=0)), (host * 2 + 1).sum(axis=0))
        np.testing.assert_array_equal(np.asarray(sw.sjit(lambda x: x[1:] - x[:-1])(x)), np.diff(host, axis=0))
        assert sw.gather(x).shape == host.shape
    assert seen
