"""Where ttnn does what the hardware does, and where it is lenient and says so."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import shardwright.ttnn as ttnn
from shardwright.sharding import P
from shardwright.ttnn.devices import _system


@pytest.fixture(autouse=True)
def system():
    """Every test has a T3K of its own."""
    ttnn.set_system("t3k")
    yield
    _system.opened.clear()


@pytest.fixture
def mesh():
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 4))


@pytest.fixture
def square():
    return ttnn.open_mesh_device(ttnn.MeshShape(2, 2))


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def on(device, tensor, *dims, flat=None, **options):
    """A tensor on a mesh: split by axes, flat over all devices, or whole."""
    mapper = ttnn.ShardTensor2dMesh(device, dims=dims) if dims else None
    mapper = ttnn.ShardTensorToMesh(device, dim=flat) if flat is not None else mapper
    return ttnn.from_torch(tensor, device=device, mesh_mapper=mapper, **options)


# -- the checklist of a run that is over ------------------------------------------------------------------------------


def good_run(device):
    w = on(device, numbers(2, 2))
    y = ttnn.matmul(on(device, numbers(8, 2), flat=0), w)
    ttnn.synchronize_device(device)
    return ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(device, dim=0))


def kept(checklist):
    return [point.kept for point in checklist.points]


def test_check_reports_the_run_before_it(mesh):
    good_run(mesh)
    assert kept(ttnn.check(mesh)) == [True, True, True, True, True, True, False, True]
    assert "[!] mesh device closed: still open" in str(ttnn.check(mesh))
    ttnn.close_mesh_device(mesh)
    found = ttnn.check(mesh)
    assert found.kept, str(found)
    lines = str(found).splitlines()
    assert [line[:4] for line in lines] == ["[x] "] * 8
    assert re.search(
        r"inputs sharded along the batch: dim 0 of \[8, 2\] is split \(.*test_ttnn_hardware\.py:\d+\)", lines[2]
    )
    assert not ttnn.check(mesh, shape=(1, 8)).kept
    assert ttnn.check(mesh, shape=(2, 4)).kept


def test_check_of_a_mesh_on_which_nothing_ran(mesh):
    found = ttnn.check(mesh)
    assert kept(found) == [True, False, False, None, False, None, False, True]
    assert "no tensor was replicated" in str(found)
    assert "nothing was read back" in str(found)
    good_run(mesh)
    assert kept(found)[:6] == [True] * 6  # the report is of now, not of when it was asked for


def test_a_broken_point_of_an_earlier_run_stays_broken(mesh):
    on(mesh, numbers(5, 2), flat=0)
    good_run(mesh)
    assert ttnn.check(mesh).points[3].kept is False
    assert "5 over 8 devices: pad it with ttnn.pad_batch" in str(ttnn.check(mesh))
    with ttnn.check(mesh) as block:
        good_run(mesh)
    assert block.points[3].kept
    assert ttnn.check(mesh).points[3].kept is False
    ttnn.close_mesh_device(mesh)
    assert block.points[6].kept is False  # it was open at the end of the block


def test_a_block_is_part_of_the_whole_run(mesh):
    with ttnn.check(mesh) as block:
        on(mesh, numbers(5, 2), flat=0)
    good_run(mesh)
    assert block.points[3].kept is ttnn.check(mesh).points[3].kept is False
    assert block.points[1].kept is False
    assert ttnn.check(mesh).points[1].kept


def test_meshes_are_told_apart():
    one, other = (ttnn.open_mesh_device((1, 2)) for _ in range(2))
    with ttnn.check(other) as block:
        good_run(one)
    for found in (block, ttnn.check(other)):
        assert kept(found) == [True, False, False, None, False, None, False, True]
    part = one.create_submesh((1, 1))
    on(part, numbers(3, 2), flat=0)
    assert "3 over" not in str(ttnn.check(one))
    assert "dim 0 of [3, 2] is split" in str(ttnn.check(part))


def test_parts_that_mappers_use_belong_to_the_mesh(mesh):
    x = ttnn.from_torch(numbers(6, 2), device=mesh, mesh_mapper=ttnn.ShardTensor2dMesh(mesh, (1, 4), (None, 0)))
    assert "6 over 4 devices: pad it" in str(ttnn.check(mesh))
    assert ttnn.check(x.device()).device is mesh


@pytest.mark.parametrize(
    ("dims", "composer", "fits"),
    [
        ((0, 1), lambda m: ttnn.ConcatMesh2dToTensor(m, mesh_shape=(2, 4), dims=(0, 1)), True),
        ((0, 1), lambda m: ttnn.ConcatMesh2dToTensor(m, mesh_shape=(2, 4), dims=(1, 0)), False),
        ((0, 1), lambda m: ttnn.ConcatMesh2dToTensor(m, mesh_shape=(2, 1), dims=(0, 1)), False),  # 3 of 4 columns lost
        ((0, None), lambda m: ttnn.ConcatMesh2dToTensor(m, mesh_shape=(2, 1), dims=(0, 1)), True),
        ((0, None), lambda m: ttnn.ConcatMesh2dToTensor(m, mesh_shape=(2, 4), dims=(0, 1)), False),  # 4 copies
        ((0, None), lambda m: ttnn.ListMeshToTensor(m), True),
    ],
)
def test_composers_with_a_mesh_shape_are_judged_by_what_they_join(mesh, dims, composer, fits):
    x = on(mesh, numbers(4, 8), *dims)
    ttnn.synchronize_device(mesh)
    made = ttnn.to_torch(x, mesh_composer=composer(mesh))
    assert ttnn.check(mesh).points[4].kept is fits
    if fits and isinstance(made, torch.Tensor):
        assert torch.equal(made, numbers(4, 8))


def test_other_ways_of_reading_count(mesh):
    x = on(mesh, numbers(8, 2), flat=0)
    ttnn.aggregate_tensor(x, ttnn.ConcatMeshToTensor(mesh, dim=0))
    assert ttnn.check(mesh).points[4].kept
    with ttnn.check(mesh) as block:
        ttnn.to_torch(ttnn.get_device_tensors(x)[3])
    assert block.points[4].kept
    with ttnn.check(mesh) as block, pytest.raises(RuntimeError, match="Invalid dimension index"):
        ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=7))
    assert "nothing was read back" in str(block)


# -- closing meshes that have submeshes -------------------------------------------------------------------------------


def test_a_parent_closes_and_its_submeshes_stay_open(mesh):
    part = mesh.create_submesh((2, 2))
    of_part = on(part, numbers(4, 2), flat=0)
    ttnn.close_mesh_device(mesh)  # only the submesh has used its queue
    assert (mesh.closed, part.closed) == (True, False)
    made = ttnn.relu(ttnn.add(of_part, on(part, numbers(4, 2), flat=0)))
    assert torch.equal(ttnn.to_torch(made, mesh_composer=ttnn.ConcatMeshToTensor(part, dim=0)), 2 * numbers(4, 2))
    with pytest.raises(RuntimeError, match="closed"):
        mesh.create_submesh((1, 1))
    ttnn.close_mesh_device(part)
    with pytest.raises(RuntimeError, match="is on a mesh device that is closed"):
        ttnn.to_torch(made, mesh_composer=ttnn.ConcatMeshToTensor(dim=0))


def test_tensors_of_a_closed_parent_are_gone(mesh):
    part = mesh.create_submesh((2, 2))
    x = on(mesh, torch.zeros(8, 32), flat=0)
    ttnn.close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match="is on a mesh device that is closed"):
        ttnn.relu(x)
    assert ttnn.memory_report(part).total["dram"] == 0


USES = {
    "from_torch": lambda device: on(device, numbers(4, 2)),
    "to_device": lambda device: ttnn.to_device(ttnn.from_torch(numbers(4, 2)), device),
    "operation": lambda device: ttnn.relu(device.x),
    "method": lambda device: device.x[0:1],
    "conversion": lambda device: ttnn.typecast(device.x, ttnn.bfloat16),
    "collective": lambda device: ttnn.all_gather(device.x, 0, cluster_axis=0),
    "to_torch": lambda device: ttnn.to_torch(device.x, mesh_composer=ttnn.ListMeshToTensor()),
    "from_device": lambda device: ttnn.from_device(device.x),
    "synchronize": lambda device: ttnn.synchronize_device(device),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_one_command_queue_for_two_meshes_is_refused(mesh, use):
    part = mesh.create_submesh((2, 2))
    for device in (mesh, part):
        device.x = on(device, numbers(4, 2))
    mesh.quiesce_devices()  # frees the queues of both
    on(part, numbers(4, 2))
    use(mesh)
    for first, other, kind in ((mesh, part, "child submesh"), (part, mesh, "parent mesh")):
        text = (
            f"MeshDevice cq ID 0 is in use by {kind} ID {other.id()} during close of mesh ID {first.id()}. Call quiesce"
        )
        with pytest.raises(RuntimeError, match=re.escape(text)):
            ttnn.close_mesh_device(first)
        assert not first.closed
    mesh.quiesce_devices()
    ttnn.close_mesh_device(mesh)
    ttnn.close_mesh_device(part)


def test_different_queues_and_unused_ones_close(mesh):
    part = mesh.create_submesh((2, 2))
    x = on(mesh, numbers(4, 2), cq_id=1)
    ttnn.relu(x, queue_id=1)
    ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor(), cq_id=1)
    y = on(part, numbers(4, 2))
    ttnn.close_mesh_device(mesh)
    ttnn.close_mesh_device(part)
    assert y.device() is part


def test_grandchildren_and_forgotten_submeshes(mesh):
    child = mesh.create_submesh((2, 2))
    grandchild = child.create_submesh((1, 1))
    on(mesh, numbers(4, 2))
    on(grandchild, numbers(4, 2))
    ttnn.close_mesh_device(child)  # unused, and its own submesh stays open
    with pytest.raises(RuntimeError, match=f"in use by child submesh ID {grandchild.id()} during close"):
        ttnn.close_mesh_device(mesh)
    del child, grandchild  # submeshes are held weakly
    ttnn.close_mesh_device(mesh)


def test_a_with_block_closes_as_the_function_does():
    with ttnn.create_mesh_device((2, 4)) as device:
        part = device.create_submesh((1, 2))
        x = on(part, numbers(4, 2))
    assert (device.closed, part.closed) == (True, False)
    assert torch.equal(ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor())[1], numbers(4, 2))


def test_a_with_block_refuses_what_the_function_refuses():
    def run():
        with ttnn.create_mesh_device((2, 4)) as device:
            part = device.create_submesh((1, 2))
            return on(part, numbers(4, 2)), on(device, numbers(4, 2))

    with pytest.raises(RuntimeError, match="in use by child submesh"):
        run()


# -- errors name the operation that was called ------------------------------------------------------------------------

SIZES = {
    "in_channels": 3, "out_channels": 5, "batch_size": 2, "input_height": 4, "input_width": 4, "kernel_size": 3,
}  # fmt: skip


def operands(device):
    return {
        "x": on(device, numbers(8, 6), flat=0), "w": on(device, numbers(6, 4)), "narrow": on(device, numbers(1, 3)),
        "low": on(device, numbers(5, 4)), "ints": on(device, torch.ones(2, 2).int()),
        "image": on(device, numbers(2, 4, 4, 3)), "kernel": on(device, numbers(5, 3, 3, 3)),
        "uneven": on(device, numbers(6, 6), flat=0), "two": on(device, numbers(2, 6)),
    }  # fmt: skip


FAULTS = {
    "add": (
        lambda o: ttnn.add(o["x"], o["narrow"]),
        "add([2, 6] float32, [1, 3] float32) can't be computed on a device. The shapes must broadcast",
    ),
    "+": (lambda o: o["x"] + o["narrow"], "add([2, 6] float32, [1, 3] float32) can't be"),
    "subtract": (lambda o: ttnn.subtract(o["x"], o["narrow"]), "subtract([2, 6] float32, [1, 3] float32) can't be"),
    "sub": (lambda o: ttnn.sub(o["x"], o["narrow"]), "sub([2, 6] float32, [1, 3] float32) can't be"),
    "mul": (lambda o: ttnn.mul(o["x"], o["narrow"]), "mul([2, 6] float32, [1, 3] float32) can't be"),
    "div": (lambda o: ttnn.div(o["x"], o["narrow"]), "div([2, 6] float32, [1, 3] float32) can't be"),
    "maximum": (lambda o: ttnn.maximum(o["x"], o["narrow"]), "maximum([2, 6] float32, [1, 3] float32) can't be"),
    "uneven": (
        lambda o: ttnn.add(o["uneven"], o["two"]),
        "add([0, 6] or [2, 6] float32, [2, 6] float32) can't be computed",
    ),
    "matmul": (
        lambda o: ttnn.matmul(o["x"], o["low"]),
        "matmul([2, 6] float32, [5, 4] float32) can't be computed on a device. "
        "The width of the first tensor must be equal to the height of the second tensor.",
    ),
    "@": (lambda o: o["x"] @ o["low"], "matmul([2, 6] float32, [5, 4] float32) can't be"),
    "transposed": (
        lambda o: ttnn.matmul(o["x"], o["w"], transpose_b=True),
        "matmul([2, 6] float32, [6, 4] float32, transpose_b=True) can't be",
    ),
    "linear": (
        lambda o: ttnn.linear(o["x"], o["low"]),
        "linear([2, 6] float32, [5, 4] float32) can't be computed on a device. The width",
    ),
    "bias": (
        lambda o: ttnn.linear(o["x"], o["w"], bias=o["narrow"]),
        "linear([2, 6] float32, [6, 4] float32, bias=[1, 3] float32) can't be",
    ),
    "activation": (
        lambda o: ttnn.linear(o["x"], o["w"], activation="mish"),
        "linear: The activation 'mish' is unknown. Use one of relu",
    ),
    "binary activation": (
        lambda o: ttnn.add(o["x"], 1.0, activation="mish"),
        "add: The activation 'mish' is unknown. Use one of relu",
    ),
    "layer_norm": (
        lambda o: ttnn.layer_norm(o["x"], weight=o["narrow"]),
        "layer_norm: A weight or bias of [1, 3] in row_major layout does not fit a last dim of 6. Give […, 6]",
    ),
    "layer_norm bias": (lambda o: ttnn.layer_norm(o["x"], bias=o["narrow"]), "layer_norm: A weight or bias of [1, 3]"),
    "rms_norm": (lambda o: ttnn.rms_norm(o["x"], weight=o["narrow"]), "rms_norm: A weight or bias of [1, 3]"),
    "softmax": (lambda o: ttnn.softmax(o["x"], 5), "softmax: dim 5 is out of range for 2 dims. Use dims from -2 to 1."),
    "scalar": (
        lambda o: ttnn.softmax(ttnn.sum(o["x"])),
        "softmax: dim -1 is out of range for 0 dims. A scalar has no dims.",
    ),
    "embedding": (
        lambda o: ttnn.embedding(o["x"], o["w"]),
        "embedding([2, 6] float32, [6, 4] float32) can't be computed on a device. Indices must be integers",
    ),
    "embedding rank": (
        lambda o: ttnn.embedding(o["ints"], o["kernel"]),
        "embedding([2, 2] int32, [5, 3, 3, 3] float32) can't be",
    ),
    "conv2d": (
        lambda o: ttnn.conv2d(input_tensor=o["image"], weight_tensor=o["w"], **SIZES),
        "conv2d(input_tensor=[2, 4, 4, 3] float32, weight_tensor=[6, 4] float32, in_channels=3,",
    ),
    "conv2d groups": (
        lambda o: ttnn.conv2d(input_tensor=o["image"], weight_tensor=o["kernel"], groups=2, **SIZES),
        "groups=2",
    ),
    "max_pool2d": (
        lambda o: ttnn.max_pool2d(o["image"], 2, 4, 4, 3, 9, 9),
        "max_pool2d([2, 4, 4, 3] float32, 2, 4, 4, 3, 9, 9) can't be computed on a device. The window must fit",
    ),
    "global_avg_pool2d": (
        lambda o: ttnn.global_avg_pool2d(o["w"]),
        "global_avg_pool2d([6, 4] float32) can't be computed on a device. Images are",
    ),
    "reshape": (lambda o: ttnn.reshape(o["x"], (5,)), "reshape: [2, 6] has 12 elements on a device"),
    "permute": (
        lambda o: ttnn.permute(o["x"], (0, 0)),
        "permute([2, 6] float32, [0, 0]) can't be computed on a device. Give every dim once.",
    ),
    "concat": (
        lambda o: ttnn.concat([o["x"], o["w"]], 0),
        "concat([[2, 6] float32, [6, 4] float32], 0) can't be computed on a device. All dimensions must be the same size",
    ),
    "concat of nothing": (lambda o: ttnn.concat([]), "concat: No operand is a ttnn tensor"),
    "sum": (
        lambda o: ttnn.sum(o["x"], (0, 0)),
        "sum([2, 6] float32, [0, 0]) can't be computed on a device. Give different dims",
    ),
    "mean": (
        lambda o: ttnn.mean(o["ints"]),
        "mean([2, 2] int32) can't be computed on a device. Give different dims of a tensor of floats.",
    ),
    "index": (lambda o: o["x"][9], "__getitem__: The index 9 is not within [2, 6] on each device."),
    "all_gather": (
        lambda o: ttnn.all_gather(o["x"], 5),
        "all_gather: dim=5 is out of range; the tensor of shape (2, 6) has dims 0 to 1.",
    ),
    "reduce_scatter": (
        lambda o: ttnn.reduce_scatter(o["narrow"], 1),
        "reduce_scatter: dim 1 of size 3 is not divisible by the 4 devices",
    ),
    "mesh_partition": (
        lambda o: ttnn.mesh_partition(o["narrow"], 1),
        "mesh_partition: dim 1 of size 3 is not divisible by the 4 devices",
    ),
    "all_to_all": (
        lambda o: ttnn.all_to_all(o["narrow"], 0, 1),
        "all_to_all: dim 1 of size 3 is not divisible by the 4 devices",
    ),
    "broadcast": (lambda o: ttnn.broadcast(o["x"], (9, 9)), "broadcast: Coordinate [9, 9] is not in the mesh [2, 2]"),
    "point_to_point": (
        lambda o: ttnn.point_to_point(o["x"], (0, 0), (9, 9)),
        "point_to_point: Coordinate [9, 9] is not in the mesh",
    ),
    "torch operand": (
        lambda o: ttnn.rms_norm(o["x"], weight=numbers(6)),
        "rms_norm: An operand is a torch tensor, not a ttnn tensor. Use ttnn.from_torch",
    ),
    "number": (lambda o: ttnn.relu(3), "relu: No operand is a ttnn tensor"),
    "text": (lambda o: ttnn.add(o["x"], "a"), "add([2, 6] float32, 'a') can't be computed"),
    "matmul of a number": (lambda o: ttnn.matmul(o["x"], 3), "matmul([2, 6] float32, 3) can't be computed"),
    "keyword": (lambda o: ttnn.relu(o["x"], weight=o["w"]), "relu() got an unexpected keyword argument 'weight'"),
    "another's keyword": (
        lambda o: ttnn.softmax(o["x"], keepdim=True),
        "softmax() got an unexpected keyword argument 'keepdim'",
    ),
    "composer": (
        lambda o: ttnn.to_torch(o["uneven"], mesh_composer=ttnn.ConcatMeshToTensor(dim=1)),
        "Shard shape mismatch: expected [2, 6] but got [0, 6]. Join the dims",
    ),
}


@pytest.mark.parametrize(("call", "text"), FAULTS.values(), ids=FAULTS)
def test_errors_name_the_operation_and_its_operands(square, call, text):
    with pytest.raises(ttnn.TtnnError, match=re.escape(text)) as caught:
        call(operands(square))
    for internal in ("_op", "mat1", "tensor a", "Tensors must", "non-singleton", "in self", "Expected", "all_slice"):
        assert internal not in str(caught.value)


def test_an_error_leaves_the_next_call_alone(square):
    o = operands(square)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^linear\("):
            ttnn.linear(o["x"], o["low"])
        with pytest.raises(RuntimeError, match=r"^add\("):
            ttnn.add(o["x"], o["narrow"])
    assert [row.shape for row in o["two"]] == [(6,), (6,)]  # iteration ends with an IndexError


# -- lenient, with a warning ------------------------------------------------------------------------------------------


def recorded(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        run()
    return found


def test_reading_several_devices_without_a_composer_warns(mesh):
    x = on(mesh, numbers(8, 2), flat=0)
    with pytest.warns(ttnn.TtnnWarning, match=r"without a composer.* hardware refuses it. Pass mesh_composer="):
        assert torch.equal(ttnn.to_torch(x), numbers(8, 2))
    for copies in (on(mesh, numbers(8, 2)), ttnn.from_device(x)):  # replicas, and shards on the host
        with pytest.warns(ttnn.TtnnWarning, match="hardware refuses"):
            assert torch.equal(ttnn.to_torch(copies), numbers(8, 2))
    assert not issubclass(ttnn.TtnnWarning, ttnn.TtnnError)


def test_reading_as_the_hardware_does_is_silent(mesh):
    x = on(mesh, numbers(8, 2), flat=0)
    ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
    ttnn.to_torch(x, mesh_composer=ttnn.ListMeshToTensor(mesh))
    with ttnn.distribute(ttnn.ConcatMeshToTensor(mesh, dim=0)):
        ttnn.to_torch(x)
    assert [ttnn.to_torch(shard).shape for shard in ttnn.get_device_tensors(x)] == [(1, 2)] * 8
    ttnn.to_torch(ttnn.from_torch(numbers(3)))
    ttnn.to_torch(on(ttnn.open_mesh_device((1, 1)), numbers(3)))
    assert ttnn.check(mesh).points[4].kept


HOST_OPERATIONS = {
    "add": lambda x, w: ttnn.add(x, x), "multiply": lambda x, w: x * 2.0, "relu": lambda x, w: ttnn.relu(x),
    "matmul": lambda x, w: ttnn.matmul(x, w), "linear": lambda x, w: ttnn.linear(x, w, bias=w[0:1], activation="relu"),
    "softmax": lambda x, w: ttnn.softmax(x), "layer_norm": lambda x, w: ttnn.layer_norm(x, weight=w[0]),
    "rms_norm": lambda x, w: ttnn.rms_norm(x), "sum": lambda x, w: ttnn.sum(x, 1), "mean": lambda x, w: ttnn.mean(x, 1),
    "permute": lambda x, w: ttnn.permute(x, (1, 0)), "concat": lambda x, w: ttnn.concat([x, x], 1),
    "all_gather": lambda x, w: ttnn.all_gather(x, 0), "all_broadcast": lambda x, w: ttnn.all_broadcast(x)[0],
    "point_to_point": lambda x, w: ttnn.point_to_point(x, (0, 0), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "call"), HOST_OPERATIONS.items(), ids=HOST_OPERATIONS)
def test_operations_on_host_tensors_warn_once_and_work(square, name, call):
    name = "mul" if name == "multiply" else name  # the operator
    x, w = numbers(8, 4) - 9, numbers(4, 4)
    mapper = ttnn.ShardTensorToMesh(square, dim=0)
    results = []
    cut, copies = (
        ttnn.from_torch(x, mesh_mapper=mapper),
        ttnn.from_torch(w, mesh_mapper=ttnn.ReplicateTensorToMesh(square)),
    )
    found = recorded(lambda: results.append(call(cut, copies)))
    assert [str(one.message).split(":")[0] for one in found] == [f"{name} of a host tensor"]
    assert "the hardware refuses it. Put it on the mesh" in str(found[0].message)
    assert (found[0].category, found[0].filename) == (ttnn.TtnnWarning, __file__)
    assert not recorded(lambda: results.append(call(on(square, x, flat=0), on(square, w))))
    host, device = (ttnn.to_torch(y, mesh_composer=ttnn.ListMeshToTensor()) for y in results)
    assert all(torch.equal(one, other) for one, other in zip(host, device, strict=True))
    assert f"[!] no operation on host tensors: {name} of a host tensor: the hardware refuses it (" in str(
        ttnn.check(square)
    )


def test_one_operand_on_the_host_is_enough(square):
    x = on(square, numbers(8, 4), flat=0)
    host = ttnn.from_torch(numbers(8, 4), mesh_mapper=ttnn.ShardTensorToMesh(square, dim=0))
    for call in (lambda: ttnn.add(x, host), lambda: ttnn.add(host, x), lambda: ttnn.concat([x, host], 1)):
        assert len(recorded(call)) == 1
    with pytest.warns(ttnn.TtnnWarning, match="relu of a host tensor"):
        ttnn.relu(ttnn.from_torch(numbers(2)))  # of no mesh


def test_the_host_takes_what_the_hardware_takes_there(square):
    host = ttnn.from_torch(numbers(8, 4), mesh_mapper=ttnn.ShardTensorToMesh(square, dim=0))
    for call in (
        lambda: ttnn.reshape(host, (2, 2, 2)), lambda: ttnn.typecast(host, ttnn.bfloat16), lambda: host[0:1],
        lambda: ttnn.to_layout(host, ttnn.TILE_LAYOUT), lambda: ttnn.zeros_like(host), lambda: ttnn.to_device(host, square),
    ):  # fmt: skip
        assert not recorded(call)
    image, kernel = numbers(2, 4, 4, 3), numbers(5, 3, 3, 3)
    made = ttnn.conv2d(
        input_tensor=ttnn.from_torch(image), weight_tensor=ttnn.from_torch(kernel), device=square, **SIZES
    )
    assert made.device() is square
    expected = F.conv2d(image.permute(0, 3, 1, 2), kernel).permute(0, 2, 3, 1)
    assert torch.equal(ttnn.to_torch(made, mesh_composer=ttnn.ListMeshToTensor())[3], expected)


def test_shards_of_a_device_tensor_are_on_the_device(square):
    x = on(square, numbers(8, 4) - 9, flat=0)
    before = ttnn.memory_report(square).total
    shards = ttnn.get_device_tensors(x)
    assert not recorded(lambda: ttnn.relu(shards[0]))
    assert shards[0].device() is square
    assert ttnn.memory_report(square).total == before
    host = ttnn.get_device_tensors(ttnn.from_device(x))
    assert len(recorded(lambda: ttnn.relu(host[0]))) == 1


def test_a_call_site_warns_once(square):
    x = on(square, numbers(8, 4), flat=0)
    host = ttnn.from_device(x)

    def loop():
        for rows in (8, 4):
            ttnn.to_torch(on(square, numbers(rows, 4), flat=0))
            ttnn.relu(host)
        ttnn.to_torch(x)

    found = recorded(loop)
    first = loop.__code__.co_firstlineno
    assert [one.lineno - first for one in found] == [2, 3, 4]
    assert {one.filename for one in found} == {__file__}


def test_the_checklist_says_what_the_hardware_refuses(mesh):
    x = on(mesh, numbers(8, 2), flat=0)
    ttnn.synchronize_device(mesh)
    with ttnn.check(mesh) as block, pytest.warns(ttnn.TtnnWarning):
        ttnn.to_torch(x)
    for found in (block, ttnn.check(mesh)):
        text = str(found)
        assert re.search(
            r"\[!\] outputs gathered .*: to_torch without a composer.* hardware refuses it \(.*\.py:\d+\)", text
        )
        assert "[x] no operation on host tensors" in text
    with ttnn.check(mesh) as block:
        ttnn.to_torch(x, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
    assert block.points[4].kept


# -- weights of norms -------------------------------------------------------------------------------------------------


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b, eps=1e-5)


def rms_norm(x, w, b):
    return F.rms_norm(x, x.shape[-1:], w, eps=1e-5) + b


@pytest.mark.parametrize(("norm", "reference"), [(ttnn.layer_norm, layer_norm), (ttnn.rms_norm, rms_norm)])
@pytest.mark.parametrize("shape", [(8, 96), (8, 3, 96), (8, 1, 3, 96), (8, 1, 32, 32)])
@pytest.mark.parametrize("form", ["plain", "row", "wide", "rows of 32", "two dims of 32"])
def test_norms_take_weights_in_rows_of_32(square, norm, reference, shape, form):
    torch.manual_seed(0)
    dim = shape[-1]
    x, w, b = torch.randn(shape), torch.randn(dim), torch.randn(dim)
    form = {
        "plain": (dim,), "row": (1, dim), "wide": (1, 1, 1, dim), "rows of 32": (1, 1, dim // 32, 32),
        "two dims of 32": (dim // 32, 32),
    }[form]  # fmt: skip
    weight, bias = on(square, w.reshape(form)), on(square, b.reshape(form))
    y = norm(on(square, x, flat=0), epsilon=1e-5, weight=weight, bias=bias)
    assert (y.shape, y.global_shape) == ((2, *shape[1:]), shape)
    made = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(square, dim=0))
    torch.testing.assert_close(made, reference(x, w, b), atol=1e-5, rtol=1e-5)


def test_weights_of_a_dim_that_is_no_multiple_of_32_are_padded(square):
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 48), torch.randn(48), torch.randn(48)
    weight, bias = (on(square, F.pad(t, (0, 16), value=9.0).reshape(1, 1, 2, 32)) for t in (w, b))
    y = ttnn.layer_norm(on(square, x, flat=0), epsilon=1e-5, weight=weight, bias=bias)
    made = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(square, dim=0))
    torch.testing.assert_close(made, layer_norm(x, w, b), atol=1e-5, rtol=1e-5)


def test_weights_in_rows_of_32_are_row_major_and_of_the_right_size(square):
    x = on(square, torch.randn(4, 96), flat=0)
    for shape, layout in (
        ((1, 1, 3, 32), ttnn.TILE_LAYOUT),  # tiles have the width of the tensor
        ((1, 1, 2, 32), ttnn.ROW_MAJOR_LAYOUT), ((1, 1, 4, 32), ttnn.ROW_MAJOR_LAYOUT),
        ((1, 1, 6, 16), ttnn.ROW_MAJOR_LAYOUT), ((1, 1, 32, 3), ttnn.ROW_MAJOR_LAYOUT), ((2, 96), ttnn.ROW_MAJOR_LAYOUT),
    ):  # fmt: skip
        weight = on(square, torch.ones(shape), layout=layout)
        text = rf"A weight or bias of {re.escape(str(list(shape)))} in {layout.value} layout does not fit a last dim of 96. "
        for norm in (ttnn.layer_norm, ttnn.rms_norm):
            with pytest.raises(RuntimeError, match=f"{norm.__name__}: {text}Give"):
                norm(x, weight=weight)


def test_split_weights_scale_the_part_of_each_device(square):
    torch.manual_seed(0)
    x, w = torch.randn(4, 128), torch.randn(128)
    y = ttnn.rms_norm(on(square, x, None, 1), epsilon=1e-5, weight=on(square, w.reshape(1, 1, 4, 32), None, 2))
    assert y.sharding is None  # each device normalizes its own part
    parts = ttnn.to_torch(y, mesh_composer=ttnn.ListMeshToTensor())
    for part, i in zip(parts, (0, 1, 0, 1), strict=True):
        cut = slice(64 * i, 64 * i + 64)
        torch.testing.assert_close(part, rms_norm(x[:, cut], w[cut], 0), atol=1e-5, rtol=1e-5)


# -- the direction of all_to_all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("in_dim", "out_dim"), [(0, 1), (1, 0), (2, 1), (-1, 0), (1, -1)])
def test_all_to_all_joins_in_dim_and_splits_out_dim(mesh, axis, in_dim, out_dim):
    a, n = numbers(8, 16, 24), (2, 4)[axis]
    mapper = ttnn.ShardTensor2dMesh(mesh, dims=tuple(in_dim if i == axis else None for i in range(2)))
    x = ttnn.from_torch(a, device=mesh, mesh_mapper=mapper)
    y = ttnn.all_to_all(x, in_dim=in_dim, out_dim=out_dim, cluster_axis=axis)
    expected = list(x.shape)
    expected[in_dim] *= n
    expected[out_dim] //= n
    assert list(y.shape) == expected
    assert [axes for axes in y.sharding.dims if axes] == [(f"m{axis}",)]
    for place, part in enumerate(ttnn.to_torch(y, mesh_composer=ttnn.ListMeshToTensor())):
        assert torch.equal(part, a.chunk(n, out_dim)[divmod(place, 4)[axis]])
    back = ttnn.all_to_all(y, out_dim, in_dim, cluster_axis=axis)
    assert back.sharding == x.sharding


def test_all_to_all_over_all_devices_and_on_one(mesh):
    a = numbers(8, 16)
    x = on(mesh, a, flat=0)
    y = ttnn.all_to_all(x, 0, 1)
    assert (y.shape, y.sharding.spec) == ((8, 2), P(None, ("m0", "m1")))
    assert torch.equal(ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=1)), a)
    with pytest.raises(RuntimeError, match="all_to_all: dim 1 of size 12 is not divisible by the 8 devices"):
        ttnn.all_to_all(on(mesh, numbers(8, 12), flat=0), 0, 1)
    assert ttnn.all_to_all(on(mesh, numbers(24, 16), flat=0), 0, 1).shape == (24, 2)  # in_dim need not divide
    line = ttnn.open_mesh_device((1, 8))
    same = ttnn.all_to_all(on(line, a), 0, 1, cluster_axis=0)
    assert torch.equal(ttnn.to_torch(same, mesh_composer=ttnn.ListMeshToTensor())[0], a)
