"""Meshes, specs, shardings and arrays of shardwright and of JAX, each as the other's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
from shardwright.errors import ArrayError, MeshError, ShardingError
from shardwright.jax import from_jax, to_jax

MESH = sw.Mesh(x=2, y=4)
PERMUTED = sw.Mesh({"x": 2, "y": 3}, devices=[5, 0, 7, 2, 1, 6])
TYPES = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])


def aligned(shape, dtype=np.float32):
    """Zeros that begin at a multiple of 64 bytes, which JAX takes without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@TYPES
@pytest.mark.parametrize("mesh", [MESH, PERMUTED, sw.Mesh(one=1), MESH.submesh((1, 4), (1, 0))], ids=str)
def test_meshes(mesh, kind):
    other = to_jax(mesh, kind)
    assert list(other.devices.flat) == [jax.devices()[number] for number in mesh.device_ids]
    assert (other.axis_names, other.devices.shape) == (mesh.axis_names, mesh.shape)
    assert other.axis_types == (kind,) * len(mesh.shape)
    assert from_jax(other, engine="numpy") == mesh
    assert from_jax(other) == sw.Mesh(mesh.sizes, devices=list(mesh.device_ids), engine="jax")


def test_meshes_made_by_jax():
    explicit = jax.make_mesh((4, 2), ("a", "b"))
    assert explicit.axis_types == (AxisType.Explicit,) * 2
    assert to_jax(from_jax(explicit, engine="numpy"), AxisType.Explicit) == explicit
    with pytest.raises(MeshError, match=r"device ids up to 15, but JAX has 8 devices, 0 to 7.*xla_force_host_platform"):
        to_jax(sw.Mesh(x=16))


@TYPES
@pytest.mark.parametrize("spec", [sw.P(), sw.P("x"), sw.P(None, ("y", "x")), sw.P("y", None, "x")], ids=str)
def test_specs_and_shardings(spec, kind):
    sharding = sw.Sharding(PERMUTED, spec)
    named = to_jax(sharding, kind)
    assert named == NamedSharding(to_jax(PERMUTED, kind), to_jax(spec))
    assert from_jax(named, engine="numpy") is sharding
    assert from_jax(to_jax(spec)) == spec


def test_shardings_that_jax_can_not_say():
    for options, match in (
        ({"partial": "x"}, "a pending sum along x, which a NamedSharding can't say. Reduce it first"),
        ({"halo": {0: 1}}, "halos, which"),
        ({"offsets": {0: (0, 1, 3, 4, 6)}}, "explicit offsets, which"),
    ):
        with pytest.raises(ShardingError, match=match):
            to_jax(sw.Sharding(MESH, sw.P("y"), **options))
    with pytest.raises(ShardingError, match=r"has the sub-axis 'y:\(2\)2'"):
        to_jax(sw.Sharding(MESH, sw.P("y:(2)2")))


def test_shardings_that_shardwright_can_not_say():
    with pytest.raises(ShardingError, match="leaves a dim to the compiler"):
        from_jax(P(P.UNCONSTRAINED, "x"))
    with pytest.raises(ShardingError, match="is unreduced along an axis"):
        from_jax(P("x", unreduced={"y"}))
    with pytest.raises(ShardingError, match="names no mesh of devices"):
        from_jax(NamedSharding(to_jax(MESH).abstract_mesh, P("x")))
    with pytest.raises(ShardingError, match=r"names no mesh of devices. Put the array on one: jax.device_put"):
        from_jax(jax.device_put(jnp.ones(4), SingleDeviceSharding(jax.devices()[1])), engine="numpy")
    with pytest.raises(ArrayError, match=r"from_jax takes a jax.Array, .* got int"):
        from_jax(3)
    with pytest.raises(ArrayError, match=r"to_jax takes an Array, .* got ndarray"):
        to_jax(np.ones(3))
    with pytest.raises(ArrayError, match="this one is being traced"):
        jax.jit(lambda x: from_jax(x))(jnp.ones(4))


@TYPES
@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
@pytest.mark.parametrize("spec", [sw.P(), sw.P("x"), sw.P(("y", "x")), sw.P("x", None), sw.P(None, "y")], ids=str)
def test_arrays_there_and_back(engine, spec, kind):
    mesh = sw.Mesh(PERMUTED.sizes, devices=list(PERMUTED.device_ids), engine=engine)
    host = np.arange(72, dtype=np.float32).reshape(12, 6)
    x = sw.shard(host, mesh, spec)
    there = to_jax(x, kind)
    assert there.sharding == to_jax(x.sharding, kind)
    np.testing.assert_array_equal(np.asarray(there), host)
    held = {shard.device: shard.data.tolist() for shard in there.addressable_shards}
    assert held == {jax.devices()[part.device]: part.data.tolist() for part in x.shards}
    back = from_jax(there, engine=engine)
    assert back.sharding == x.sharding
    np.testing.assert_array_equal(np.asarray(back), host)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64"])
def test_dtypes_stay(dtype):
    x = sw.shard(np.arange(8).astype(sw.sharding.as_dtype(dtype)), MESH, sw.P("y"))
    there = to_jax(x)
    assert there.dtype == x.dtype
    back = from_jax(there, engine="numpy")
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(back), np.asarray(x))


def test_shards_are_shared_where_jax_can_and_stay_as_they_are():
    x = sw.shard(aligned((8, 1024)), MESH, sw.P("x"), copy=False)
    there = to_jax(x)
    addresses = {shard.device.id: shard.data.unsafe_buffer_pointer() for shard in there.addressable_shards}
    assert addresses == {part.device: part.data.ctypes.data for part in x.shards}
    x[:] = 1.0
    assert float(there.max()) == 0
    back = from_jax(there, engine="numpy")
    back[:] = 2.0
    assert float(there.max()) == 0


def test_64_bits_if_jax_has_them():
    with jax.enable_x64(True):
        there = to_jax(sw.shard(np.arange(8.0), MESH, sw.P("y")))
        assert there.dtype == np.float64
        assert from_jax(there, engine="numpy").dtype == np.float64


def test_what_jax_can_not_hold():
    with pytest.raises(
        ArrayError, match=r"f32\[6@y\].* has shards of different sizes, and JAX only holds even ones. Pad it"
    ):
        to_jax(sw.shard(np.ones(6, np.float32), MESH, sw.P("y")))
    w = sw.shard(np.ones((8, 4), np.float32), MESH, sw.P("x"))
    partial = w.T @ w
    assert partial.sharding.partial == ("x",)
    with pytest.raises(ShardingError, match="has a pending sum along x"):
        to_jax(partial)
    with pytest.raises(ArrayError, match="would lose bits: JAX's 64-bit types are off"):
        to_jax(sw.shard(np.ones(8), MESH, sw.P("y")))


def shares(x, y):
    """Whether two JAX arrays have the same memory on every device."""
    pairs = zip(x.addressable_shards, y.addressable_shards, strict=True)
    return all(a.data.unsafe_buffer_pointer() == b.data.unsafe_buffer_pointer() for a, b in pairs)


@TYPES
def test_arrays_of_the_jax_engine_share_their_shards_with_jax(kind):
    there = jax.device_put(jnp.arange(64.0).reshape(8, 8), to_jax(sw.Sharding(PERMUTED, sw.P("x")), kind))
    x = from_jax(there)
    assert (x.mesh.engine, x.mesh.device_ids, x.sharding.spec) == ("jax", PERMUTED.device_ids, sw.P("x", None))
    assert shares(x.data, there)
    y = sw.sjit(lambda x: x @ x.T + 1)(x)
    np.testing.assert_allclose(np.asarray(y), np.asarray(there) @ np.asarray(there).T + 1)
    back = to_jax(y, kind)
    assert shares(back, y.data)
    assert back.sharding == to_jax(y.sharding, kind)
    np.testing.assert_allclose(np.asarray(back), np.asarray(y))


def test_what_jax_cannot_hold_of_the_jax_engine_is_refused():
    mesh = sw.Mesh(x=2, y=4, engine="jax")
    with pytest.raises(ArrayError, match="JAX only holds even ones"):
        to_jax(sw.shard(np.ones(7, np.float32), mesh, sw.P("y")))
    with pytest.raises(ShardingError, match="pending sum along y"):
        to_jax(sw.shard(np.ones(8, np.float32), sw.Sharding(mesh, sw.P(None), partial="y")))
    with pytest.raises(ArrayError, match="would lose bits"):
        to_jax(sw.shard(np.ones(8), mesh, sw.P("y")))
