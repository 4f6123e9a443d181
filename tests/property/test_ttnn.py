"""Mappers and composers over random meshes, dims, ranks and sizes: there and back, uneven or not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright.ttnn as ttnn
from shardwright.ttnn.devices import _system


@pytest.fixture(autouse=True, scope="module")
def system():
    ttnn.set_system((8, 8))
    yield
    _system.opened.clear()
    ttnn.set_system("t3k")


def lenient(tensor):
    """The global tensor, read without a composer: the hardware refuses that for several devices."""
    with pytest.warns(ttnn.TtnnWarning, match="to_torch without a composer"):
        return ttnn.to_torch(tensor)


@st.composite
def cases(draw):
    """A mesh, a tensor, and a dim for each mesh axis (or None)."""
    shape = draw(st.sampled_from([(1, 2), (2, 1), (2, 4), (4, 2), (1, 8), (3, 2), (2, 2)]))
    rank = draw(st.integers(1, 4))
    sizes = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    dims = (
        draw(st.lists(st.integers(-rank, rank - 1), min_size=2, max_size=2, unique_by=lambda d: d % rank))
        if rank > 1
        else [0]
    )
    dims = [*dims, None][:2] if rank == 1 else dims
    dims = [None if draw(st.booleans()) and draw(st.booleans()) else d for d in dims]
    return shape, sizes, dims


def pieces(tensor, parts, dim):
    """A tensor in blocks of ceil(n / parts), the last ones short or empty."""
    block = -(-tensor.shape[dim] // parts)
    return [
        tensor.narrow(dim, min(i * block, tensor.shape[dim]), max(0, min(block, tensor.shape[dim] - i * block)))
        for i in range(parts)
    ]


@settings(max_examples=300)
@given(case=cases())
def test_two_axes_there_and_back(case):
    shape, sizes, dims = case
    with ttnn.create_mesh_device(ttnn.MeshShape(shape)) as device:
        a = torch.arange(int(np.prod(sizes)), dtype=torch.float32).reshape(sizes)
        x = ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensor2dMesh(device, mesh_shape=shape, dims=dims))
        held = ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor(device))
        for row in range(shape[0]):
            for column in range(shape[1]):
                part = a
                for at, parts, dim in ((row, shape[0], dims[0]), (column, shape[1], dims[1])):
                    part = part if dim is None else pieces(part, parts, dim)[at]
                assert torch.equal(held[row * shape[1] + column], part)
        assert torch.equal(lenient(x), a)
        assert torch.equal(ttnn.to_torch(x, mesh_composer=ttnn.ConcatMesh2dToTensor(device, dims=dims)), a)
        assert x.global_shape == sizes


@settings(max_examples=200)
@given(case=cases(), data=st.data())
def test_one_dim_over_all_devices_there_and_back(case, data):
    shape, sizes, _ = case
    dim = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    with ttnn.create_mesh_device(ttnn.MeshShape(shape)) as device:
        a = torch.arange(int(np.prod(sizes)), dtype=torch.int32).reshape(sizes)
        x = ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=dim))
        parts = pieces(a, device.get_num_devices(), dim)
        held = ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor())
        assert all(torch.equal(one, other) for one, other in zip(held, parts, strict=True))
        assert torch.equal(ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=dim)), a)
        assert torch.equal(lenient(x), a)
