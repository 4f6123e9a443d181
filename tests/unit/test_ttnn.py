"""ttnn's mesh API on virtual chips: devices, mappers and composers, tensors, collectives, models, the checklist."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwright.ttnn as ttnn
from shardwright.sharding import P
from shardwright.ttnn.devices import _system
from shardwright.ttnn.tt_cnn.pipeline import PipelineConfig, create_pipeline_from_config

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def system():
    """Every test has a T3K of its own."""
    ttnn.set_system("t3k")
    yield
    _system.opened.clear()


@pytest.fixture
def mesh():
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 4))


def numbers(*shape):
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def lenient(tensor):
    """The global tensor, read without a composer: the hardware refuses that for several devices."""
    with pytest.warns(ttnn.TtnnWarning, match="to_torch without a composer"):
        return ttnn.to_torch(tensor)


# -- devices --------------------------------------------------------------------------------------------------------------


def test_shapes_and_devices():
    shape = ttnn.MeshShape(2, 4)
    assert (list(shape), shape[1], shape.dims(), shape.mesh_size(), repr(shape)) == (
        [2, 4],
        4,
        2,
        8,
        "MeshShape([2, 4])",
    )
    assert shape == ttnn.MeshShape([2, 4])
    assert ttnn.MeshShape(1, 2, 3).mesh_size() == 6
    device = ttnn.open_mesh_device(mesh_shape=shape, mesh_type=ttnn.MeshType.Ring)
    assert repr(device) == "MeshDevice(2x4 grid, 8 devices)"
    assert (device.get_num_devices(), device.get_device_ids(), device.shape) == (8, list(range(8)), shape)
    assert device.get_device_id(ttnn.MeshCoordinate(1, 2)) == 6
    assert device.dram_grid_size() == ttnn.CoreCoord(12, 1)
    assert device.compute_with_storage_grid_size() == ttnn.CoreCoord(8, 8)
    assert device.core_grid.num_cores == 64
    assert ttnn.get_num_devices() == 8
    ttnn.synchronize_device(device)
    ttnn.synchronize_mesh_device(device)
    device.reshape(ttnn.MeshShape(1, 8))
    assert device.shape == (1, 8)
    with pytest.raises(
        RuntimeError, match=r"New shape must have the same number of devices as current shape. .* has 9, the mesh 8"
    ):
        device.reshape(ttnn.MeshShape(3, 3))


def test_systems():
    ttnn.set_system("n300")
    assert ttnn.open_mesh_device().shape == (1, 2)
    with pytest.raises(
        RuntimeError,
        match=r"Requested mesh shape MeshShape\(\[2, 4\]\) requires 8 devices, but only 2 devices are available in the system mesh "  # noqa: E501
        r"MeshShape\(\[1, 2\]\). Ask for fewer",
    ):
        ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    ttnn.set_system((4, 4))
    assert ttnn.open_mesh_device(ttnn.MeshShape(4, 2)).get_device_ids() == [0, 1, 4, 5, 8, 9, 12, 13]
    with pytest.raises(RuntimeError, match="The system 'n500' is unknown"):
        ttnn.set_system("n500")
    ttnn.set_system("t3k")
    assert ttnn.open_mesh_device(ttnn.MeshShape(4, 2)).get_device_ids() == [0, 4, 1, 5, 2, 6, 3, 7]  # turned
    with pytest.raises(RuntimeError, match="Mesh shape must be provided when physical device ids are supplied"):
        ttnn.open_mesh_device(physical_device_ids=[1, 2])


def test_submeshes(mesh):
    parts = mesh.create_submeshes(ttnn.MeshShape(2, 2))
    assert [part.get_device_ids() for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    one = mesh.create_submesh(ttnn.MeshShape(1, 2), offset=ttnn.MeshCoordinate(1, 2))
    assert one.get_device_ids() == [6, 7]
    with pytest.raises(
        RuntimeError, match=r"offset MeshCoordinate\(\[0, 3\]\) does not fit within parent mesh \(2, 4\)."
    ):
        mesh.create_submesh(ttnn.MeshShape(2, 2), offset=(0, 3))
    with pytest.raises(RuntimeError, match=r"Invalid submesh shape: \(0, 2\). All dimensions must be positive."):
        mesh.create_submesh((0, 2))
    with pytest.raises(RuntimeError, match="must have the same number of dimensions"):
        mesh.create_submesh((2,))
    with pytest.raises(
        RuntimeError, match=r"Shape MeshShape\(\[2, 4\]\) is not divisible by submesh shape .* along dimension 1"
    ):
        mesh.create_submeshes((2, 3))
    for part in (*parts, one):
        ttnn.close_mesh_device(part)
    ttnn.close_mesh_device(mesh)


def test_tensors_on_a_closed_mesh_say_so():
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as device:
        x = ttnn.from_torch(numbers(4, 2), device=device)
        assert lenient(x).tolist() == numbers(4, 2).tolist()
    with pytest.raises(
        RuntimeError, match=r"is on a mesh device that is closed. Read it, or move it to the host, before"
    ):
        ttnn.to_torch(x)
    with pytest.raises(RuntimeError, match="mesh device that is closed"):
        ttnn.from_torch(numbers(2), mesh_mapper=ttnn.ReplicateTensorToMesh(device))


# -- mappers and composers --------------------------------------------------------------------------------------------------


def test_two_dims_over_two_axes(mesh):
    a = numbers(2, 8, 6)
    x = ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(2, 1), mesh_shape=(2, 4)))
    assert (x.shape, x.global_shape, x.sharding.spec) == ((2, 2, 3), (2, 8, 6), P(None, "m1", "m0"))
    for at, shard in enumerate(ttnn.get_device_tensors(x)):
        r, c = divmod(at, 4)
        assert torch.equal(ttnn.to_torch(shard), a[:, 2 * c : 2 * c + 2, 3 * r : 3 * r + 3])
    back = ttnn.to_torch(x, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, mesh_shape=(2, 4), dims=(2, 1)))
    assert torch.equal(back, a)
    assert torch.equal(lenient(x), a)
    assert x.tensor_topology().placements() == [ttnn.PlacementShard(2), ttnn.PlacementShard(1)]
    config = ttnn.MeshMapperConfig([ttnn.PlacementReplicate(), ttnn.PlacementShard(-2)])
    y = ttnn.from_torch(a, mesh_mapper=ttnn.create_mesh_mapper(mesh, config))
    assert y.shape == (2, 2, 6)


def test_a_replicated_axis_is_joined_too_unless_none_is_said(mesh):
    submesh = mesh.create_submesh((2, 2))
    latents = numbers(2, 4, 3, 5)
    x = ttnn.from_torch(latents, mesh_mapper=ttnn.ShardTensor2DMesh(submesh, dims=(1, None)))
    assert x.shape == (2, 2, 3, 5)
    joined = ttnn.to_torch(x, mesh_composer=ttnn.ConcatMesh2DToTensor(dims=[1, 0]))
    assert joined.shape == (4, 4, 3, 5)  # B·y
    assert torch.equal(joined[:2], latents)
    assert torch.equal(ttnn.to_torch(x, mesh_composer=ttnn.ConcatMesh2DToTensor(dims=[1, None])), latents)
    once = ttnn.ConcatMesh2dToTensor(submesh, mesh_shape=(2, 1), dims=[1, 0])
    assert torch.equal(ttnn.to_torch(x, mesh_composer=once), latents)


def test_uneven_shards_work(mesh):
    x = ttnn.from_torch(numbers(10, 3), device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    assert [len(t) for t in ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor(mesh))] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert torch.equal(ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0)), numbers(10, 3))
    assert torch.equal(lenient(ttnn.relu(ttnn.subtract(x, 4.0))), torch.relu(numbers(10, 3) - 4))


def test_mappers_refuse_what_makes_no_sense(mesh):
    a = numbers(4, 4)
    with pytest.raises(RuntimeError, match=r"dims must be unique. Got"):
        ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(0, 0)))
    with pytest.raises(
        RuntimeError, match=r"Invalid dimension index; got dims: \[5\], tensor dimension: 2. Use dims from -2 to 1"
    ):
        ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=5))
    with pytest.raises(RuntimeError, match="does not match the device shape size"):
        ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, mesh_shape=(3, 4), dims=(0, 1)))
    x = ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(0, 1)))
    with pytest.raises(RuntimeError, match="dims must be unique"):
        ttnn.to_torch(x, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, dims=(0, 0)))
    ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    with pytest.raises(RuntimeError, match=r"needs exactly one open mesh; 2 are open. Pass the mesh device"):
        ttnn.from_torch(a, mesh_mapper=ttnn.ShardTensorToMesh(dim=0))


def test_distribute_and_defaults(mesh):
    with ttnn.distribute(ttnn.ShardTensorToMesh(mesh, dim=0)), ttnn.distribute(ttnn.ConcatMeshToTensor(mesh, dim=0)):
        x = ttnn.from_torch(numbers(8, 2))
        assert x.shape == (1, 2)
        assert torch.equal(ttnn.to_torch(x), numbers(8, 2))
    assert ttnn.from_torch(numbers(8, 2)).shape == (8, 2)
    make = ttnn.from_torch(mesh_mapper=ttnn.ShardTensorToMesh(dim=1))
    assert make(numbers(2, 8)).shape == (2, 1)
    small = ttnn.from_torch(numbers(4, 4), mesh_mapper=ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, 2), dims=(0, 1)))
    assert small.mesh.device_ids == (0, 1, 4, 5)


# -- tensors and dtypes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "eight", "four"),
    [
        ([64.5], [64], [64]),
        ([7.9999], [7.9375], [7]),
        ([1, 0.1, 0.01, 0.001], [1, 0.09375, 0.015625, 0], [1, 0, 0, 0]),
        ([1, 0.3, -0.3, 100], [1, 0, 0, 100], [0, 0, 0, 96]),
    ],
)
def test_the_vectors_of_the_block_formats(row, eight, four):
    for dtype, expected in ((ttnn.bfloat8_b, eight), (ttnn.bfloat4_b, four)):
        made = ttnn.to_torch(ttnn.from_torch(torch.tensor([row]), dtype))
        assert made.dtype == torch.float32
        assert made.tolist() == [expected]
        assert not torch.signbit(made[made == 0]).any()


def scalar_block(values, bits):
    """Sixteen numbers of a block, one by one, from the description."""
    parts = []
    for value in values:
        raw = int(np.float32(value).view(np.uint32))
        parts.append((raw >> 31, (raw >> 23) & 255, raw & 0x7FFFFF))
    shared = max(exponent for _, exponent, _ in parts)
    made = []
    for sign, exponent, mantissa in parts:
        if exponent == 0:
            made.append(0.0)
            continue
        shifted = (mantissa + (1 << 23)) >> (shared - exponent)
        unit = 1 << (24 - bits)
        kept, rest = divmod(shifted, unit)
        if rest * 2 > unit or (rest * 2 == unit and kept % 2):
            kept += 1
        kept = min(kept, (1 << bits) - 1)
        size = kept / 2 ** (bits - 1) * 2.0 ** (shared - 127)
        made.append(-size if sign and kept else size)
    return made


@pytest.mark.parametrize(("dtype", "bits"), [(ttnn.bfloat8_b, 7), (ttnn.bfloat4_b, 3)])
def test_block_formats_are_right_to_the_bit(dtype, bits):
    values = (RNG.standard_normal((40, 32)) * 2.0 ** RNG.integers(-40, 40, (40, 32))).astype(np.float32)
    values[RNG.random(values.shape) < 0.1] = 0
    values[RNG.random(values.shape) < 0.05] *= np.float32(1e-42)
    made = ttnn.to_torch(ttnn.from_torch(torch.from_numpy(values), dtype)).numpy()
    for row, got in zip(values.reshape(-1, 16), made.reshape(-1, 16), strict=True):
        assert got.tolist() == scalar_block(row, bits)


def test_blocks_are_those_of_each_shard(mesh):
    """A large number is no neighbour of those on other devices."""
    a = torch.ones(1, 128)
    a[0, 0] = 1e6
    x = ttnn.from_torch(a, ttnn.bfloat8_b, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=1))
    made = lenient(x)
    assert made[0, 16:].eq(1).all()
    assert made[0, 1:16].eq(0).all()


@pytest.mark.parametrize(
    ("source", "dtype", "back"),
    [
        (torch.float32, None, torch.float32), (torch.bfloat16, None, torch.bfloat16), (torch.float32, ttnn.bfloat16, torch.bfloat16),  # noqa: E501
        (torch.int32, None, torch.int32), (torch.uint8, None, torch.uint8), (torch.int64, ttnn.uint32, torch.uint32),
        (torch.float64, None, torch.float32), (torch.float16, None, torch.bfloat16),
    ],
)  # fmt: skip
def test_dtypes_come_back(source, dtype, back, mesh):
    a = numbers(4, 8).to(source)
    made = lenient(ttnn.from_torch(a, dtype, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=1)))
    assert made.dtype == back
    assert made.to(torch.float64).tolist() == a.to(torch.float64).tolist()


def test_layouts_memory_and_moves(mesh):
    with pytest.raises(
        RuntimeError, match=r"Layout must be Layout::TILE for bfloat8_b or bfloat4_b! Leave|Layout must be Layout::TILE"
    ):
        ttnn.from_torch(numbers(2, 2), ttnn.bfloat8_b, layout=ttnn.ROW_MAJOR_LAYOUT)
    host = ttnn.from_torch(numbers(8, 40), mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    assert host.device() is None
    x = ttnn.to_device(host, mesh, memory_config=ttnn.L1_MEMORY_CONFIG)
    assert x.device() is mesh
    tiled = ttnn.to_layout(x, ttnn.TILE_LAYOUT)
    assert (tiled.shape, tiled.device_bytes) == ((1, 40), 32 * 64 * 4)
    assert torch.equal(lenient(ttnn.from_device(tiled)), numbers(8, 40))
    assert ttnn.typecast(tiled, ttnn.bfloat8_b).device_bytes == 2 * 1088
    report = ttnn.memory_report(mesh)
    assert report.total["l1"] == x.device_bytes + tiled.device_bytes
    assert not report.too_much
    assert report.balance == 1
    assert "on the fullest device" in str(report)
    uneven = ttnn.from_torch(numbers(5, 32), device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    assert ttnn.memory_report(mesh).balance > 1
    assert sorted(uneven.bytes_by_device().values()) == [0] * 3 + [128] * 5
    ttnn.deallocate(uneven)
    vast = ttnn.from_torch(torch.zeros(1).expand(1), device=mesh, memory_config=ttnn.L1_MEMORY_CONFIG)
    vast.bytes_by_device = lambda: dict.fromkeys(range(8), 2**40)
    assert ttnn.memory_report(mesh).too_much == ("l1",)
    assert "does not fit" in str(ttnn.memory_report(mesh))
    ttnn.deallocate(vast)
    huge = ttnn.from_torch(torch.zeros(1, 1).expand(1, 1), device=mesh)
    assert ttnn.memory_report(mesh).total["dram"] == huge.device_bytes
    with pytest.raises(RuntimeError, match="is cut for MeshShape"):
        ttnn.to_device(host, ttnn.open_mesh_device((1, 8)))


def test_shards_from_hosts(mesh):
    parts = [ttnn.from_torch(torch.full((2, 2), float(i))) for i in range(8)]
    x = ttnn.from_host_shards(parts, ttnn.MeshShape(2, 4))
    assert ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(dim=0)).shape == (16, 2)
    with pytest.raises(RuntimeError, match=r"its global value is unknown. Give a mesh_composer"):
        ttnn.to_torch(x)
    joined = ttnn.aggregate_tensor(x, ttnn.ConcatMesh2dToTensor(dims=(0, 1)))
    assert joined.shape == (4, 8)
    assert ttnn.combine_device_tensors(parts[:2]).mesh.shape == (1, 2)


def test_a_cache_file_is_checked(tmp_path, mesh):
    a = numbers(4, 8)
    mapper = ttnn.ShardTensorToMesh(mesh, dim=1)
    name = tmp_path / "weights"

    def read(tensor):
        made = ttnn.as_tensor(tensor, ttnn.bfloat16, cache_file_name=name, mesh_mapper=mapper)
        return lenient(made).float()

    assert torch.equal(read(a), a)
    (path,) = tmp_path.iterdir()
    assert path.name == "weights_dtype_BFLOAT16.npz"
    before = path.read_bytes()
    assert torch.equal(read(a), a)
    assert path.read_bytes() == before
    assert torch.equal(read(a + 1), a + 1)  # stale
    path.write_bytes(path.read_bytes()[:-40])
    assert torch.equal(read(a + 1), a + 1)  # damaged
    damaged = bytearray(path.read_bytes())
    damaged[300] ^= 0xFF
    path.write_bytes(bytes(damaged))
    assert torch.equal(read(a + 1), a + 1)


# -- collectives --------------------------------------------------------------------------------------------------------------


def test_collectives_along_an_axis_and_over_all(mesh):
    a = numbers(4, 8)
    x = ttnn.from_torch(a, device=mesh, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(0, 1)))
    rows = ttnn.all_gather(x, 1, cluster_axis=1)
    assert (rows.shape, rows.sharding.spec) == ((2, 8), P("m0", None))
    assert torch.equal(lenient(ttnn.all_gather(rows, 0, cluster_axis=0)), a)
    cut = ttnn.mesh_partition(rows, 1, cluster_axis=1)
    assert cut.sharding == x.sharding
    swapped = ttnn.all_to_all(rows, 0, 1, cluster_axis=0)
    assert (swapped.shape, torch.equal(lenient(swapped), a)) == ((4, 4), True)
    whole = ttnn.from_torch(a, device=mesh)
    assert torch.equal(lenient(ttnn.all_reduce(whole)), 8 * a)  # copies are summed, as real devices do
    assert torch.equal(lenient(ttnn.all_reduce(whole, cluster_axis=0)), 2 * a)
    scattered = ttnn.reduce_scatter(whole, 1, cluster_axis=1)
    parts = ttnn.to_torch(scattered, mesh_composer=ttnn.ListMeshToTensor())
    assert torch.equal(parts[1], 4 * a[:, 2:4])
    copied = ttnn.all_gather(whole, 0, cluster_axis=0)
    assert torch.equal(lenient(copied), torch.cat([a, a]))
    everywhere = ttnn.broadcast(x, ttnn.MeshCoordinate(1, 2))
    assert all(torch.equal(t, a[2:, 4:6]) for t in ttnn.to_torch(everywhere, mesh_composer=ttnn.ListMeshToTensor()))
    each = ttnn.all_broadcast(x, cluster_axis=1)
    assert len(each) == 4
    assert torch.equal(ttnn.to_torch(each[3], mesh_composer=ttnn.ListMeshToTensor())[0], a[:2, 6:])
    sent = ttnn.point_to_point(x, (0, 0), (1, 3))
    parts = ttnn.to_torch(sent, mesh_composer=ttnn.ListMeshToTensor())
    assert torch.equal(parts[7], a[:2, :2])
    assert torch.equal(parts[6], a[2:, 4:6])
    with pytest.raises(RuntimeError, match="Invalid cluster_axis 2"):
        ttnn.all_gather(x, 0, cluster_axis=2)


# -- memory configurations ----------------------------------------------------------------------------------------------------


def test_sharded_memory_configurations(mesh):
    grid, S, order = ttnn.CoreGrid(y=2, x=4), ttnn.ShardStrategy, ttnn.ShardOrientation

    def shape(strategy, orientation=None):
        return ttnn.create_sharded_memory_config((1, 2, 32, 64), grid, strategy, orientation).shard_shape

    assert shape(S.HEIGHT) == (8, 64)
    assert shape(S.WIDTH) == (64, 8)
    assert shape(S.BLOCK) == (32, 16)
    assert shape(S.BLOCK, order.COL_MAJOR) == (16, 32)
    dram = ttnn.create_sharded_memory_config(shape=(1, 1, 32, 96), core_grid=mesh.dram_grid_size(), strategy=S.WIDTH)
    assert (dram.buffer_type, dram.shard_shape, dram.is_sharded()) == (ttnn.BufferType.DRAM, (32, 8), True)
    for args, text in (
        ((5, grid, S.HEIGHT), "Invalid input shape"),
        (((64, 64), (2, 4), S.HEIGHT), "Invalid core_grid type"),
        (((64, 64), ttnn.CoreGrid(0, 1), S.HEIGHT), "Invalid core_grid"),
        (((64, 64), grid, "height"), "Invalid sharding strategy"),
        (((64, 64), grid, S.HEIGHT, "row"), "Invalid shard orientation"),
        (((64, 63), grid, S.WIDTH), "Invalid sharding core_grid. A tensor of 64 rows and 63 columns"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(text)):
            ttnn.create_sharded_memory_config(*args)


# -- models -------------------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.fc = torch.nn.Linear(8 * 4 * 4, 5)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.fc(x.permute(0, 2, 3, 1).flatten(1))


def network(x, p, device, batch):
    """The same on a mesh, images as `batch, height, width, channels`."""
    x = ttnn.conv2d(
        input_tensor=x, weight_tensor=p.conv.weight, bias_tensor=p.conv.bias, device=device, in_channels=3, out_channels=8,
        batch_size=batch, input_height=8, input_width=8, kernel_size=(3, 3), padding=(1, 1),
    )  # fmt: skip
    x = ttnn.max_pool2d(ttnn.relu(x), batch, 8, 8, 8, 2, 2)
    x = ttnn.reshape(x, (x.shape[0], 8 * 4 * 4))
    return ttnn.linear(x, p.fc.weight, bias=p.fc.bias)


@pytest.mark.parametrize(("shape", "batch"), [((1, 2), 8), ((2, 4), 16), ((2, 4), 13)])
def test_a_small_cnn_in_data_parallel_equals_torch(shape, batch):
    torch.manual_seed(0)
    model = Net()
    images = torch.randn(batch, 3, 8, 8)
    with ttnn.create_mesh_device(ttnn.MeshShape(shape)) as device:
        with ttnn.distribute(ttnn.ReplicateTensorToMesh(device)):
            parameters = ttnn.preprocess_model_parameters(initialize_model=lambda: model, device=device)
        assert parameters.fc.weight.sharding.is_replicated
        nhwc = images.permute(0, 2, 3, 1).contiguous()
        x = ttnn.from_torch(nhwc, ttnn.bfloat16, device=device, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=0))
        y = network(x, parameters, device, batch)
        assert y.global_shape == (batch, 5)
        made = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0)).float()
        assert torch.equal(made, lenient(y).float())
    expected = model(images)
    assert torch.allclose(made, expected, atol=0.05, rtol=0.05)


def test_a_tensor_parallel_mlp_needs_its_reduction():
    torch.manual_seed(0)
    up, down, x = torch.randn(16, 64), torch.randn(64, 16) / 8, torch.randn(4, 16)
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    replicated = ttnn.from_torch(x, device=device)
    w1 = ttnn.from_torch(up, device=device, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=-1))
    w2 = ttnn.from_torch(down, device=device, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=-2))
    h = ttnn.linear(replicated, w1, activation="gelu")
    assert h.sharding.spec == P(None, "m1")
    partial = ttnn.linear(h, w2)
    assert partial.sharding.partial == ("m1",)
    y = ttnn.all_reduce(partial, cluster_axis=1)
    expected = torch.nn.functional.gelu(x @ up) @ down
    assert torch.allclose(lenient(y), expected, atol=1e-4)
    assert torch.allclose(lenient(ttnn.all_reduce(partial)), expected, atol=1e-4)  # an axis of size 1 is no matter
    assert "summands over m1" in repr(partial)
    with pytest.raises(RuntimeError, match=r"holds partial sums: no device has the values. Reduce it first"):
        ttnn.to_torch(partial)
    assert not torch.allclose(
        ttnn.to_torch(partial, mesh_composer=ttnn.ConcatMeshToTensor(dim=0))[:4], expected, atol=1e-2
    )


def test_preprocessing_follows_the_model():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 6), torch.nn.LayerNorm(6)])
            self.table = torch.nn.Embedding(10, 4)
            self.scale = torch.nn.Parameter(torch.ones(3))

    p = ttnn.preprocess_model_parameters(initialize_model=Block)
    assert (p.layers[0].weight.shape, p.layers[0].bias.shape, p.layers[1].weight.shape) == ((4, 6), (1, 6), (1, 6))
    assert (p.table.weight.dtype, p.scale.dtype) == (ttnn.bfloat16, ttnn.bfloat16)
    assert isinstance(p, ttnn.ParameterDict)
    seen = []

    def custom(model, name, convert_to_ttnn):
        seen.append(name)
        return {"mine": 1} if isinstance(model, torch.nn.Embedding) else None

    assert ttnn.preprocess_model_parameters(initialize_model=Block, custom_preprocessor=custom).table.mine == 1
    assert seen == ["", "layers", "layers.0", "layers.1", "table"] or seen[0] == ""
    with pytest.raises(RuntimeError, match="Custom preprocessor must have at least two parameters: model and name"):
        ttnn.preprocess_model_parameters(initialize_model=Block, custom_preprocessor=lambda model: None)
    with pytest.raises(AttributeError, match="There is no parameter 'nope'; there are 'layers', 'table', 'scale'"):
        _ = p.nope


def test_pipelines():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    mapper = ttnn.ShardTensorToMesh(device, dim=0)
    inputs = [ttnn.from_torch(numbers(4, 2) + i, mesh_mapper=mapper) for i in range(3)]
    pipe = create_pipeline_from_config(PipelineConfig(use_trace=False), ttnn.relu, device, ttnn.L1_MEMORY_CONFIG)
    with pytest.raises(RuntimeError, match="not compiled"):
        pipe.enqueue(inputs)
    outputs = pipe.compile(inputs[0]).enqueue(inputs).pop_all()
    assert [torch.equal(lenient(y), numbers(4, 2) + i) for i, y in enumerate(outputs)] == [True] * 3
    assert all(y.device() is None for y in outputs)
    assert len(pipe.enqueue(inputs[:1]).enqueue(inputs[1:]).pop_all()) == 2
    assert len(pipe.preallocate_output_tensors_on_host(3).enqueue(inputs[:1]).enqueue(inputs[1:]).pop_all()) == 3
    with pytest.raises(RuntimeError, match="All input tensors must be on host"):
        pipe.enqueue([ttnn.to_device(inputs[0], device)])
    with pytest.raises(RuntimeError, match="was compiled for"):
        pipe.enqueue([ttnn.from_torch(numbers(8, 2), mesh_mapper=mapper)])
    pipe.cleanup()
    for config in (
        PipelineConfig(),
        PipelineConfig(use_trace=False, num_command_queues=2, all_transfers_on_separate_command_queue=True),
    ):
        with pytest.raises(ValueError, match=r"needs? "):
            create_pipeline_from_config(config, ttnn.relu, device, ttnn.L1_MEMORY_CONFIG)


# -- batches, the checklist, pictures -------------------------------------------------------------------------------------------  # noqa: E501


def test_batches_that_do_not_divide(mesh):
    batch = numbers(13, 2)
    padded = ttnn.pad_batch(batch, mesh)
    assert padded.shape == (16, 2)
    assert torch.equal(ttnn.unpad_batch(padded, 13), batch)
    assert ttnn.pad_batch(padded, mesh) is padded


def test_the_checklist_tells_kept_from_broken():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    with ttnn.check(device, shape=(1, 2)) as good:
        w = ttnn.from_torch(numbers(2, 2), device=device, mesh_mapper=ttnn.ReplicateTensorToMesh(device))
        x = ttnn.from_torch(numbers(4, 2), device=device, mesh_mapper=ttnn.ShardTensorToMesh(device, dim=0))
        y = ttnn.matmul(x, w)
        ttnn.synchronize_device(device)
        ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))
        ttnn.close_mesh_device(device)
    assert good.kept, str(good)
    assert str(good).count("[x]") == 8
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    with ttnn.check(device, shape=(2, 4)) as bad:
        x = ttnn.from_torch(numbers(5, 3), mesh_mapper=ttnn.ShardTensorToMesh(device, dim=1))
        lenient(x)
    assert [point.kept for point in bad.points] == [False] * 7 + [True]
    text = str(bad)
    assert "no tensor was replicated" in text
    assert "dim 1 of [5, 3] is split" in text
    assert "3 over 2 devices: pad it with ttnn.pad_batch" in text
    assert "test_ttnn.py:" in text
    assert "still open" in text


def test_pictures(mesh, capsys):
    x = ttnn.from_torch(numbers(4, 8, 2), mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(None, 1)))
    text = ttnn.visualize_tensor(x, colour=False)
    assert "dev 5: [0:4, 2:4, 0:2]" in text
    assert capsys.readouterr().out.strip() == text
    coloured = ttnn.visualize_tensor(x, colour=True)
    assert coloured.count("\033[") == 16
    assert "dev 7" in ttnn.visualize_mesh_device(mesh, colour=False)


# -- the documents' snippets ------------------------------------------------------------------------------------------------------  # noqa: E501


def test_the_first_documents_snippets_run():
    from shardwright.ttnn import ConcatMesh2DToTensor, ShardTensor2DMesh, ShardTensor2dMesh, from_torch

    device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    submesh = device.create_submesh(ttnn.MeshShape(2, 2))
    _system.opened[:] = [submesh]
    B, H, W, C = 2, 4, 3, 5
    latents = numbers(B, H, W, C)
    place = from_torch(mesh_mapper=ShardTensor2DMesh(
        dims=(1, None)) # fracture dim 1 (H) on cluster axis x, don't fracture on cluster axis y
    )  # fmt: skip
    sharded = place(latents)
    assert sharded.shape == (B, H // 2, W, C)
    gathered = ttnn.all_gather(ttnn.to_device(sharded, submesh), 1, cluster_axis=0)
    assert torch.equal(lenient(gathered), latents)
    mesh_mapper=ShardTensor2dMesh(
        dims=(2,1)  # x is on dim 2 (D), y is on dim 1 (S)
    )  # fmt: skip
    a = numbers(2, 6, 8)
    some_tensor = from_torch(a, mesh_mapper=mesh_mapper)
    assert some_tensor.shape == (2, 3, 4)
    mesh_composer = ConcatMesh2DToTensor(
        dims=[2,1]
    )  # fmt: skip
    assert torch.equal(ttnn.to_torch(some_tensor, mesh_composer=mesh_composer), a)
    mesh_composer = ConcatMesh2DToTensor(
        dims=[1, 0]
        # we are replicated on y, not fracturing on y. 0 is just some other dimension.
    )  # fmt: skip
    back = ttnn.to_torch(sharded, mesh_composer=mesh_composer)
    assert back.shape == (B * 2, H, W, C)
    assert torch.equal(back[:B, ...], latents)


GUIDE = Path(__file__).parent / "ttnn_guide.md"


def test_the_guides_snippets_run_as_written():
    """Every code block of the multi-device guide, in order; names that it leaves to the reader are given here."""
    ttnn.install()
    torch.manual_seed(0)
    reference_model = torch.nn.Linear(6, 4)
    distributed = torch.randn(8, 6)
    names = {
        "torch": torch, "torch_weight": torch.randn(6, 4), "torch_input": torch.randn(4, 6), "reference_model": reference_model,
        "preprocess_model_parameters": ttnn.preprocess_model_parameters, "batch": torch.randn(4, 6), "batch_size": 2,
        "input_shape": (1, 1, 32, 96), "input_height": 1, "input_width": 6, "C": 1, "H": 1, "W": 6,
    }  # fmt: skip

    def model_of(parameters):
        def model(x):
            flat = ttnn.reshape(x, (x.shape[0], 6))
            bias = ttnn.reshape(parameters.bias, (1, 4))
            return ttnn.add(ttnn.matmul(flat, parameters.weight, transpose_b=True), bias)

        return model

    def create_preprocessor(mesh_device, mesh_mapper):
        def preprocessor(model, name):
            return {
                "weight": ttnn.from_torch(model.weight, dtype=ttnn.bfloat8_b, mesh_mapper=mesh_mapper),
                "bias": ttnn.from_torch(model.bias.reshape(1, 1, 1, -1), dtype=ttnn.bfloat16, mesh_mapper=mesh_mapper),
            }

        return preprocessor

    names["create_preprocessor"] = create_preprocessor
    names["create_model_configs"] = lambda parameters, height, width, size: parameters
    names["create_model"] = lambda configs, mesh_device: model_of(configs)
    names["model"] = lambda x: model_of(names["parameters"])(x)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) == 9
    for block in blocks:
        if "distributed_tensor" in block:
            names["distributed_tensor"] = ttnn.from_torch(distributed, mesh_mapper=ttnn.ShardTensorToMesh(dim=0))
        if "tt_cnn" in block:
            ttnn.close_mesh_device(names["mesh_device"])
        with warnings.catch_warnings(record=True) as refused:
            warnings.simplefilter("default")
            exec(compile(block, "guide", "exec"), names)
        assert {str(one.message).split(":")[0] for one in refused} == (
            {"matmul of a host tensor", "add of a host tensor"} if "output = model(" in block else set()
        )
        if "Run inference\n" in block:
            assert torch.allclose(names["output_torch"].float(), reference_model(names["batch"]), atol=0.1)
    assert torch.equal(names["gathered"], distributed)
    assert [len(t) for t in names["tensors_list"]] == [4, 4]
    expected = reference_model(names["batch_input"].reshape(4, 6))
    assert torch.allclose(names["output_torch"].float(), expected, atol=0.1)
    assert names["mesh_device"].closed


# -- cases that were once wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def square():
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 2))


def on(device, tensor, *dims, flat=None, **options):
    """A tensor on a mesh: split by axes, flat over all devices, or whole."""
    mapper = ttnn.ShardTensor2dMesh(device, dims=dims) if dims else None
    mapper = ttnn.ShardTensorToMesh(device, dim=flat) if flat is not None else mapper
    return ttnn.from_torch(tensor, device=device, mesh_mapper=mapper, **options)


def test_a_reshape_must_fit_each_device(square):
    x = on(square, numbers(8, 6), flat=0)
    with pytest.raises(RuntimeError, match=r"\[2, 6\] has 12 elements on a device, which don't fit the shape \[2, 3\]"):
        ttnn.reshape(x, (2, 3))
    y = ttnn.reshape(on(square, numbers(7, 3, 2), flat=0), (2, -1))
    assert y.global_shape == (7, 6)
    assert torch.equal(lenient(y), numbers(7, 6))


def test_devices_compute_what_fits_them_and_claim_no_more(square):
    x = on(square, numbers(8, 6), flat=0)
    for y in (
        ttnn.add(x, on(square, torch.ones(2, 6))),
        ttnn.matmul(on(square, torch.ones(4, 8), flat=1), on(square, torch.ones(2, 3))),
        ttnn.concat([x, on(square, torch.ones(2, 3))], 1),
    ):
        assert y.sharding is None
        with pytest.raises(RuntimeError, match="no longer the shards of one tensor"):
            _ = y.global_shape
    spread = ttnn.add(on(square, numbers(4, 6), flat=0), on(square, numbers(4, 6)))  # one row meets four
    assert (spread.shape, spread.sharding) == ((4, 6), None)


def test_composers_neither_lose_nor_invent(mesh):
    t = ttnn.from_torch(numbers(8, 8), mesh_mapper=ttnn.ShardTensor2dMesh(mesh, (2, 4), (0, 1)))
    with pytest.raises(RuntimeError, match="does not match the device shape size"):
        ttnn.to_torch(t, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, (8, 8), (0, 1)))
    regrouped = ttnn.from_torch(numbers(8, 8), mesh_mapper=ttnn.ShardTensor2dMesh(mesh, (4, 2), (0, 1)))
    assert (regrouped.shape, regrouped.mesh.shape) == ((2, 4), (4, 2))
    assert torch.equal(
        ttnn.to_torch(regrouped, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, (4, 2), (0, 1))), numbers(8, 8)
    )
    uneven = ttnn.from_torch(numbers(15, 1), mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))
    with pytest.raises(RuntimeError, match="Shard shape mismatch: expected"):
        ttnn.to_torch(uneven, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, (2, 4), (0, 1)))
    with pytest.raises(RuntimeError, match="dims must be unique"):
        ttnn.to_torch(uneven, mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, None, (0, 0)))
    with pytest.raises(RuntimeError, match="The number of dims 0 does not match"):
        ttnn.to_torch(ttnn.from_torch(numbers(2), device=mesh), mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, dims=()))


def test_summands_are_no_copies(square):
    p = ttnn.matmul(on(square, numbers(4, 8), 1, None), on(square, numbers(8, 8), 0, None))
    assert p.tensor_topology().placements() == [ttnn.PlacementPartial(), ttnn.PlacementReplicate()]
    text = ttnn.visualize_tensor(p, colour=True)
    assert text.count("] summand") == 4
    assert len(set(re.findall(r"\033\[(\d\d)m", text))) == 4
    x = ttnn.all_gather(on(square, numbers(8, 6), 0, None), 0, cluster_axis=1)
    assert (x.sharding, x._global) == (None, None)


def test_lists_of_shards_are_copies(square):
    y = on(square, torch.zeros(2, 2))
    ttnn.to_torch(y, mesh_composer=ttnn.ListMeshToTensor())[0].fill_(7)
    assert torch.equal(lenient(y), torch.zeros(2, 2))


def test_the_device_that_is_named_counts(mesh):
    part, other = mesh.create_submesh((1, 2), (1, 2)), ttnn.open_mesh_device((1, 2))
    assert ttnn.from_torch(numbers(8, 2), device=part, mesh_mapper=ttnn.ShardTensorToMesh(dim=0)).mesh.device_ids == (
        6,
        7,
    )
    assert ttnn.from_torch(numbers(8, 2), device=other, mesh_mapper=ttnn.ShardTensorToMesh(dim=0)).shape == (4, 2)
    with pytest.raises(RuntimeError, match=r"The mapper is for .* but device= is"):
        ttnn.from_torch(numbers(8, 2), device=part, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))


def test_parts_of_a_mesh_that_mappers_use_are_no_submeshes(mesh):
    ttnn.from_torch(torch.ones(8, 2), device=mesh, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, (1, 2), (None, 0)))
    config = ttnn.MeshMapperConfig(
        [ttnn.PlacementShard(0), ttnn.PlacementReplicate()], mesh_shape_override=(2, 2), mesh_offset_override=(0, 2)
    )
    for owner in (mesh, None):
        x = ttnn.from_torch(torch.ones(8, 2), device=mesh, mesh_mapper=ttnn.create_mesh_mapper(owner, config))
        assert x.mesh.device_ids == (2, 3, 6, 7)
    assert ttnn.memory_report(mesh).by_device["dram"][7] == x.device_bytes
    assert ttnn.memory_report(x.device()).total["dram"] == x.device_bytes
    gone = ttnn.relu(x)
    ttnn.deallocate(gone)
    assert ttnn.memory_report(mesh).by_device["dram"][7] == x.device_bytes
    ttnn.close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match="closed"):
        ttnn.to_torch(x)


def test_collectives_keep_block_floats(square):
    torch.manual_seed(0)
    t = on(square, torch.randn(8, 48), dtype=ttnn.bfloat8_b, flat=0)
    for made in (ttnn.all_reduce(t), ttnn.reduce_scatter(t, 1), t[:, 3:19]):
        for part in ttnn.to_torch(made, mesh_composer=ttnn.ListMeshToTensor()):
            assert torch.equal(part, ttnn.to_torch(ttnn.from_torch(part, ttnn.bfloat8_b)))
    eight = ttnn.open_mesh_device((2, 4))
    last = ttnn.from_torch(torch.ones(4, 20), ttnn.bfloat8_b, mesh_mapper=ttnn.ShardTensorToMesh(eight, 1))
    assert torch.equal(lenient(last), torch.ones(4, 20))
    assert ttnn.from_torch(torch.zeros(4, 0), ttnn.bfloat8_b).shape == (4, 0)


def test_a_cache_does_not_depend_on_who_wrote_it(tmp_path, square):
    torch.manual_seed(0)
    x, name = torch.randn(4, 30) * torch.logspace(-2, 2, 30), tmp_path / "w"
    mapper = ttnn.ShardTensorToMesh(square, 1)
    ttnn.as_tensor(x, ttnn.bfloat8_b, device=square, cache_file_name=name)
    again = ttnn.as_tensor(x, ttnn.bfloat8_b, device=square, cache_file_name=name, mesh_mapper=mapper)
    fresh = ttnn.from_torch(x, ttnn.bfloat8_b, device=square, mesh_mapper=mapper)
    assert torch.equal(lenient(again), lenient(fresh))
    assert ttnn.as_tensor(torch.tensor(2.0), device=square, cache_file_name=name).shape == ()
    path = tmp_path / "w_dtype_BFLOAT8_B.npz"
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(bytes(damaged))
        read = ttnn.as_tensor(x, ttnn.bfloat8_b, device=square, cache_file_name=name, mesh_mapper=mapper)
        assert torch.equal(lenient(read), lenient(fresh))


def test_images_are_not_mixed(square):
    sizes = {
        "in_channels": 3,
        "out_channels": 5,
        "batch_size": 2,
        "input_height": 4,
        "input_width": 4,
        "kernel_size": 3,
    }
    weight = on(square, torch.randn(5, 3, 3, 3))
    with pytest.raises(RuntimeError, match=r"conv2d: \[2, 2, 4, 3\] on a device does not hold images"):
        ttnn.conv2d(input_tensor=on(square, torch.randn(2, 4, 4, 3), 1, None), weight_tensor=weight, **sizes)
    rows = on(square, torch.randn(2, 4, 4, 3).reshape(1, 1, 32, 3))
    made, (height, width) = ttnn.conv2d(input_tensor=rows, weight_tensor=weight, return_output_dim=True, **sizes)
    assert (made.shape, height, width) == ((1, 1, 2 * 2 * 2, 5), 2, 2)


def test_the_checklist_judges_what_was_done(square):
    def watched(run):
        with ttnn.check(square) as found:
            run()
        return found.points

    x = on(square, numbers(8, 4), 0, 1)
    right = ttnn.create_mesh_composer(square, ttnn.MeshComposerConfig([0, 1]))
    assert watched(lambda: ttnn.to_torch(x, mesh_composer=right))[4].kept
    wrong = ttnn.ConcatMesh2dToTensor(square, dims=(1, 0))
    assert watched(lambda: ttnn.to_torch(x, mesh_composer=wrong))[4].kept is False
    whole = ttnn.all_gather(ttnn.all_gather(x, 1, cluster_axis=1), 0, cluster_axis=0)
    assert watched(lambda: ttnn.to_torch(whole, mesh_composer=ttnn.ConcatMeshToTensor(dim=0)))[4].kept is False
    lost = ttnn.softmax(x, -1)
    assert watched(lambda: ttnn.to_torch(lost, mesh_composer=right))[4].kept is False

    def late():
        ttnn.synchronize_device(square)
        lenient(ttnn.relu(x))

    assert watched(late)[5].kept is False
    model = torch.nn.Linear(4, 4)
    points = watched(lambda: ttnn.preprocess_model_parameters(initialize_model=lambda: model, device=square))
    assert points[1].kept


def test_chips_that_are_not_there():
    for options in (
        {"mesh_shape": (1, 4), "offset": (0, 6)}, {"mesh_shape": (1, 8), "offset": (1, 0)}, {"mesh_shape": (0, 2)},
        {"mesh_shape": (1, 2), "physical_device_ids": [50, 99]}, {"mesh_shape": (1, 2), "physical_device_ids": [1]},
        {"mesh_shape": 4},
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"\. [A-Z]"):
            ttnn.open_mesh_device(**options)
    with pytest.raises(RuntimeError, match="has no chips"):
        ttnn.set_system((0,))


def test_memory_by_chip_and_small_faults(mesh):
    inner = mesh.create_submesh((1, 2)).create_submesh((1, 1))
    z = ttnn.from_torch(torch.zeros(64, 64), device=inner)
    for device in (mesh, inner):
        assert ttnn.memory_report(device).total["dram"] == 64 * 64 * 4
    grid = mesh.dram_grid_size()
    config = ttnn.create_sharded_memory_config(
        (32, 32), grid, ttnn.ShardStrategy.WIDTH, use_height_and_width_as_shard_shape=True
    )
    assert config.buffer_type is ttnn.BufferType.DRAM
    assert torch.equal(lenient(ttnn.zeros_like(on(mesh, torch.tensor([[float("inf"), 1]])))), torch.zeros(1, 2))
    ttnn.deallocate(z)
    with pytest.raises(RuntimeError, match="was deallocated"):
        ttnn.to_torch(z)


def test_errors_are_ttnns(square):
    x = on(square, numbers(8, 6), flat=0)
    whole = on(square, numbers(4, 3))
    ints = on(square, torch.ones(2, 2).int())
    for call in (
        lambda: ttnn.all_gather(x, 5),
        lambda: ttnn.reduce_scatter(whole, 1, cluster_axis=0),
        lambda: ttnn.mesh_partition(whole, 1),
        lambda: ttnn.broadcast(x, (0, 7)),
        lambda: ttnn.broadcast(x, (0,)),
        lambda: ttnn.softmax(x, 5),
        lambda: ttnn.sum(x, 5),
        lambda: ttnn.permute(x, (0, 5)),
        lambda: ttnn.linear(x, on(square, numbers(6, 2)), activation="mish"),
        lambda: ttnn.embedding(on(square, torch.tensor([[9]])), on(square, numbers(4, 2))),
        lambda: ttnn.aggregate_tensor(x, ttnn.ListMeshToTensor()),
        lambda: ttnn.add(ints, 0.5),
        lambda: ttnn.mean(ints),
        lambda: ttnn.add(x, ttnn.from_torch(numbers(2, 6))),
        lambda: square.get_device_id((5, 5)),
        lambda: square.create_submeshes((2,)),
        lambda: square.reshape((-2, -2)),
        lambda: ttnn.from_torch(numbers(2, 2), mesh_mapper=ttnn.ShardTensor2dMesh(square, None, (0,))),
    ):
        with pytest.raises(RuntimeError, match=r"\. [A-Z]"):
            call()
    assert ttnn.combine_device_tensors(ttnn.get_device_tensors(on(square, numbers(7, 2), flat=0))).mesh.shape == (1, 4)


def test_mistakes_in_arguments_are_named(square):
    x = on(square, numbers(8, 6))
    for call, text in (
        (
            lambda: ttnn.layer_norm(x, 1e-5),
            "too many positional arguments. It takes tensor, and by name epsilon, weight",
        ),
        (lambda: ttnn.matmul(x), "matmul: missing a required argument: 'b'. It takes a, b, and by name"),
        (lambda: ttnn.MeshShape(1.5, 2), r"MeshShape\(1.5, 2\) is not made of integers"),
        (lambda: ttnn.MeshShape("24"), r"MeshShape\('24'\) is not made of integers"),
        (lambda: ttnn.MeshCoordinate(0, True), r"MeshCoordinate\(0, True\) is not made of integers"),
        (lambda: ttnn.MeshShape(None), r"MeshShape\(None\) is not made of integers"),
        (lambda: ttnn.check(None), "check takes a mesh device; got a NoneType"),
        (lambda: ttnn.check(x), "check takes a mesh device; got a Tensor"),
        (lambda: ttnn.check(square, shape="2x4"), "is not made of integers"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()
    assert ttnn.MeshShape(np.int64(2), 4) == ttnn.MeshShape(np.array([2, 4])) == (2, 4)


def test_misspelt_keywords_are_refused(square):
    x, w = on(square, numbers(8, 6), flat=0), on(square, numbers(6, 6))
    for call, advice in (
        (lambda: ttnn.from_torch(numbers(2, 2), mesh_maper=None), "mesh_mapper"),
        (lambda: ttnn.to_torch(x, mesh_compser=None), "mesh_composer"),
        (lambda: ttnn.linear(x, w, activaton="relu"), "activation"),
        (lambda: ttnn.softmax(x, axis=0), "It takes"),
        (lambda: ttnn.layer_norm(x, eps=1.0), "unexpected keyword argument 'eps'"),
        (lambda: ttnn.matmul(x, w, tranpose_b=True), "transpose_b"),
        (lambda: ttnn.all_gather(x, 0, clusteraxis=0), "cluster_axis"),
    ):
        with pytest.raises(RuntimeError, match=advice):
            call()
    for call in (
        lambda: ttnn.matmul(x, numbers(6, 6)),
        lambda: ttnn.to_torch(numbers(2)),
        lambda: ttnn.from_torch(np.ones(2)),
        lambda: ttnn.from_torch(numbers(4), mesh_mapper=ttnn.ConcatMeshToTensor(square, dim=0)),
        lambda: ttnn.to_torch(x, mesh_composer=ttnn.ShardTensorToMesh(square, dim=0)),
    ):
        with pytest.raises(RuntimeError, match=r"\. [A-Z]"):
            call()
    assert ttnn.matmul(x, w, program_config=None, compute_kernel_config=None).global_shape == (8, 6)


def test_tensors_have_operators(square):
    x, w = on(square, numbers(8, 6), flat=0), on(square, numbers(6, 6))
    assert torch.equal(lenient((x @ w + 1.0) * 2.0 - x), (numbers(8, 6) @ numbers(6, 6) + 1) * 2 - numbers(8, 6))
