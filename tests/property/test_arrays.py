"""Arrays against the oracle: what each device holds, and the way there and back, under every sharding."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import shardwright as sw
from helpers import assert_devices, assert_same, held_by
from strategies import dtypes, host_arrays, meshes, numbers, shapes, shardings, specs


def expected(host, sharding):
    sizes = dict(sharding.mesh.sizes)
    offsets = {dim: list(cuts) for dim, cuts in enumerate(sharding.offsets) if cuts}
    return oracle.shards(host, sizes, sharding.dims, offsets, dict(enumerate(sharding.halo)))


@settings(max_examples=400)
@given(data=st.data(), mesh=meshes(), shape=shapes(), dtype=dtypes)
def test_every_device_holds_what_the_oracle_says(data, mesh, shape, dtype):
    sharding = data.draw(shardings(mesh, shape, partial=False))
    host = host_arrays(shape, dtype)
    x = sw.shard(host, sharding)
    assert_devices(mesh, held_by(x), expected(host, sharding))
    assert [shard.device for shard in x.shards] == list(mesh.device_ids)
    assert [shard.coords for shard in x.shards] == list(np.ndindex(*mesh.shape))
    if not sharding.halo:
        for shard, held in zip(x.shards, held_by(x), strict=True):
            assert_same(host[shard.index], held)


@settings(max_examples=400)
@given(data=st.data(), mesh=meshes(), shape=shapes(), dtype=dtypes, seed=st.integers(0, 9))
def test_joining_the_shards_gives_the_tensor_back(data, mesh, shape, dtype, seed):
    sharding = data.draw(shardings(mesh, shape))
    host = host_arrays(shape, dtype, seed)
    layout = data.draw(st.sampled_from(["C", "F", "strided", "read-only"]))
    given_host = np.asarray(host, order="F") if layout == "F" else host.copy()
    if layout == "strided" and shape:
        given_host = np.repeat(host, 2, axis=-1)[..., ::2]
    given_host.flags.writeable = layout != "read-only"
    x = sw.shard(given_host, sharding, copy=data.draw(st.booleans()))
    assert_same(x, host)
    assert_same(sw.gather(x), host)
    assert_same(x.numpy(), host)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes) == (shape, host.dtype, host.ndim, host.size, host.nbytes)


@settings(max_examples=300)
@given(data=st.data(), mesh=meshes(), shape=shapes())
def test_shards_make_the_array_again(data, mesh, shape):
    sharding = data.draw(shardings(mesh, shape))
    host = host_arrays(shape)
    x = sw.shard(host, sharding)
    again = sw.from_shards(mesh, sharding, held_by(x), shape=shape)
    assert again.sharding == x.sharding
    assert_same(again, host)
    for one, other in zip(held_by(x), held_by(again), strict=True):
        assert_same(one, other)


@settings(max_examples=500)
@given(data=st.data(), mesh=meshes(), shape=shapes(), dtype=numbers)
def test_resharding_gives_every_device_its_new_part(data, mesh, shape, dtype):
    source, target = data.draw(shardings(mesh, shape)), data.draw(shardings(mesh, shape))
    host = host_arrays(shape, dtype)
    x = sw.shard(host, source).reshard(target)
    assert x.sharding == target.for_shape(shape)
    assert_same(x, host)
    if not x.sharding.partial:
        assert_devices(mesh, held_by(x), expected(host, target))


@settings(max_examples=300)
@given(data=st.data(), mesh=meshes(), shape=shapes(), op=st.sampled_from([*oracle.PAIRS, "average"]))
def test_a_partial_value_is_the_reduction_of_what_devices_hold(data, mesh, shape, op):
    spec, left = data.draw(specs(mesh, len(shape), spare=True))
    sharding = sw.Sharding(mesh, spec, partial=left, reduction=op)
    sizes = dict(mesh.sizes)
    seed = data.draw(st.integers(0, 99))
    whole = {}  # per place along the partial axes, a tensor of its own
    for device in oracle.devices(sizes):
        place = oracle.rank(device, left, sizes)
        if place not in whole:
            whole[place] = host_arrays(shape, np.int64, seed + place)
    tensors = []
    for device in oracle.devices(sizes):
        tensors.append(oracle.shards(whole[oracle.rank(device, left, sizes)], sizes, spec)[device])
    x = sw.from_shards(mesh, sharding, tensors)
    value = oracle.reduced([whole[place] for place in sorted(whole)], op)
    assert_same(x, value)
    assert_same(x.reshard(sw.P(*spec)), value)
    assert_same(x == value, np.ones(shape, bool))
    for held, tensor in zip(held_by(x), tensors, strict=True):
        assert_same(held, tensor)
    assert_devices(mesh, held_by(x.reshard(spec)), oracle.shards(value, sizes, spec))


@given(data=st.data(), mesh=meshes(), shape=shapes(min_dims=1))
def test_an_array_owns_its_data(data, mesh, shape):
    sharding = data.draw(shardings(mesh, shape, partial=False))
    host = host_arrays(shape)
    kept = host.copy()
    x = sw.shard(host, sharding)
    host[...] = 99
    assert_same(x, kept)


@given(data=st.data(), mesh=meshes(), shape=shapes(min_dims=1))
def test_indexing_gives_the_elements_numpy_gives(data, mesh, shape):
    host = host_arrays(shape)
    x = sw.shard(host, data.draw(shardings(mesh, shape)))
    index = []
    for size in shape[: data.draw(st.integers(0, len(shape)))]:
        if size and data.draw(st.booleans()):
            index.append(data.draw(st.integers(-size, size - 1)))
        else:
            index.append(data.draw(st.slices(size)))
    for extra in data.draw(st.sampled_from([[], [None], [...]])):
        index.insert(data.draw(st.integers(0, len(index))), extra)
    assert_same(x[tuple(index)], host[tuple(index)])


@settings(max_examples=300)
@given(data=st.data(), mesh=meshes(), shape=shapes(), dtype=dtypes)
def test_the_notation_reads_back(data, mesh, shape, dtype):
    from shardwright.sharding import describe, parse

    sharding = data.draw(shardings(mesh, shape)).for_shape(shape)
    if dtype.name not in ("longdouble", "clongdouble", "float128", "complex256"):
        assert parse(describe(sharding, shape, dtype), mesh) == (sharding, shape, dtype)
