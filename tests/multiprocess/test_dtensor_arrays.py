"""Arrays and DTensors on four real processes, without a copy."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardwright as sw
from shardwright import P, Sharding
from shardwright.arrays import Array
from shardwright.errors import ArrayError, ShardingError
from shardwright.sharding import layout_of

MESH = sw.Mesh(x=2, y=2, engine="torch")
SPECS = [P(), P("x"), P(None, "y"), P("y", "x"), P(("x", "y")), P(("y", "x"))]


def part(whole, sharding):
    """This process's array of a tensor that all have, as the engine holds it."""
    layout = layout_of(sharding, tuple(whole.shape))
    bounds = layout.at(MESH.position(dist.get_rank())).offsets
    return Array.of(layout, whole[tuple(slice(a, b) for a, b in bounds)].clone())


def refused(error, call, *args):
    with pytest.raises(error) as info:
        call(*args)
    return str(info.value)


def there_and_back():
    for shape in ((8, 6), (5, 3)):
        whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
        for spec in SPECS:
            if len(spec[:1] and spec[0]) == 2 and shape[0] % 4:
                continue
            x = part(whole, Sharding(MESH, spec))
            tensor = sw.torch.to_dtensor(x)
            assert tensor.shape == whole.shape
            assert tensor.stride() == whole.stride()
            assert tensor.to_local().data_ptr() == x.data.data_ptr()
            assert torch.equal(tensor.full_tensor(), whole)
            back = sw.torch.from_dtensor(tensor)
            assert back.data.data_ptr() == x.data.data_ptr()
            assert back.sharding == x.sharding
            assert (back.shape, back.dtype) == (x.shape, x.dtype)


def test_arrays_are_dtensors_and_back_without_a_copy(pool):
    pool.run(there_and_back)


def partial():
    rank = dist.get_rank()
    sharding = Sharding(MESH, P("x"), partial="y")
    x = Array.of(layout_of(sharding, (4,)), torch.full((2,), float(rank)))
    tensor = sw.torch.to_dtensor(x)
    assert tensor.placements == (Shard(0), Partial("sum"))
    assert sw.torch.from_dtensor(tensor).sharding == sharding
    bools = Array.of(layout_of(sharding, (4,)), torch.ones(2, dtype=torch.bool))
    return tensor.full_tensor().tolist(), refused(ArrayError, sw.torch.to_dtensor, bools)


def test_partial_arrays_are_partial_dtensors(pool):
    for values, text in pool.run(partial):
        assert values == [1.0, 1.0, 5.0, 5.0]
        assert "has a pending sum, which torch computes differently for torch.bool. Reduce it first" in text


def meshes_and_gradients():
    whole = torch.arange(8.0, requires_grad=True)
    devices = sw.torch.to_device_mesh(MESH)
    tensor = distribute_tensor(whole, devices, [Shard(0), Replicate()], src_data_rank=None)
    named = sw.Mesh(data=2, model=2, engine="torch")
    x = sw.torch.from_dtensor(tensor, named)
    assert x.sharding == Sharding(named, P("data"))
    assert not x.data.requires_grad
    other = refused(ArrayError, sw.torch.from_dtensor, tensor, sw.Mesh(x=4, engine="torch"))
    return other, refused(ArrayError, sw.torch.from_dtensor, tensor, sw.Mesh(x=2, y=2))


def test_a_mesh_may_name_the_axes_anew(pool):
    other, engine = pool.run(meshes_and_gradients)[0]
    assert engine.startswith("Mesh(x=2, y=2) is for the engine 'numpy', which can't hold a DTensor's shards.")
    assert other == (
        "Mesh(x=4, engine='torch') has the device ids [0, 1, 2, 3], but the DTensor is on ranks [[0, 1], [2, 3]]. Give a "
        "mesh of the same shape with the same ids, or none."
    )


def wrong_shards():
    rank = dist.get_rank()
    devices = sw.torch.to_device_mesh(sw.Mesh(x=4, engine="torch"))
    rows = [2, 1, 1, 1][rank]  # not torch.chunk's 2, 2, 1, 0; from_local takes them
    tensor = DTensor.from_local(torch.ones(rows, 3), devices, [Shard(0)], run_check=False, shape=(5, 3), stride=(3, 1))
    uneven = part(torch.ones(5, 3), Sharding(MESH, P(("x", "y"))))
    halo = Array.of(layout_of(Sharding(MESH, P("x"), halo={0: 1}), (8,)), torch.ones(6))
    return (
        refused(ArrayError, sw.torch.from_dtensor, tensor) if rank in (1, 3) else "",
        refused(ShardingError, sw.torch.to_dtensor, uneven),
        refused(ShardingError, sw.torch.to_dtensor, halo),
    )


def test_what_would_be_misread_is_refused(pool):
    shards, uneven, halo = pool.run(wrong_shards)[1]
    assert shards.startswith(
        "This process's shard of a tensor of shape (5, 3) has shape (1, 3); the blocks of this sharding"
    )
    assert "give (2, 3)" in shards
    assert uneven.startswith("Dim 0 of size 5 is split by the axes x, y into 4 uneven shards.")
    assert "has a halo, which a DTensor can't hold" in halo


# -- with the engine ------------------------------------------------------------------------------------------------------


def with_the_engine():
    host = np.arange(48.0, dtype=np.float32).reshape(8, 6)
    for spec in SPECS:
        x = sw.shard(host, MESH, spec)
        tensor = sw.torch.to_dtensor(x)
        assert tensor.to_local().data_ptr() == x.data.data_ptr()
        np.testing.assert_array_equal(tensor.full_tensor().numpy(), host)
        back = sw.torch.from_dtensor(tensor + 1)
        np.testing.assert_array_equal(np.asarray(back * 2), (host + 1) * 2)
    product = sw.shard(host, MESH, P(None, "x")) @ sw.shard(host.T, MESH, P("x"))
    np.testing.assert_allclose(sw.torch.to_dtensor(product).full_tensor().numpy(), host @ host.T)


def test_arrays_of_the_engine_are_dtensors_and_back(pool):
    pool.run(with_the_engine)
