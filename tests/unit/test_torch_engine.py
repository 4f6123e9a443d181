"""The torch engine in one process: memory shared with torch, dtypes, devices, what is refused. Its operations are in
tests/property, over processes in tests/multiprocess."""

import itertools
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_close, assert_same, is_exact
from shardwright import P, nn
from shardwright.engines import engine_of
from shardwright.engines.torch.routes import grid_of
from shardwright.errors import ArrayError, EngineError, MeshError

MESH = sw.Mesh(x=2, y=4, engine="torch")
HOST = np.arange(70.0).reshape(10, 7)


def test_memory_is_torchs_and_shared_where_asked():
    tensor = torch.arange(12.0).reshape(4, 3)
    kept = sw.shard(tensor, MESH, P("x"), copy=False)
    assert kept.torch().data_ptr() == kept.data.data_ptr() == tensor.data_ptr()
    own = sw.shard(tensor, MESH, P("x"))
    assert own.torch().data_ptr() != tensor.data_ptr()
    tensor.zero_()
    assert own.torch().sum() == 66
    assert np.shares_memory(np.asarray(own), own.data.numpy())
    assert np.asarray(own, copy=False).base is not None
    moved = own.reshard(P(None, "y"))
    assert moved.torch().data_ptr() == own.torch().data_ptr()  # virtual devices: nothing moves


def test_values_that_other_engines_hold_become_torch_tensors():
    x = sw.shard(HOST, sw.Mesh(x=2), P("x"))
    assert isinstance(x.torch(), torch.Tensor)
    assert_same(x.torch().numpy(), HOST)
    total = sw.shard(HOST, MESH, P("x")).sum(axis=0)
    assert total.sharding.partial == ("x",)
    assert_same(total.torch().numpy(), HOST.sum(axis=0))  # reduced first


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64]
)
def test_torchs_dtypes(dtype):
    tensor = torch.arange(10).to(dtype)
    x = sw.shard(tensor, MESH, P("y"))
    assert x.data.dtype is dtype
    assert x.dtype.itemsize == dtype.itemsize
    assert torch.equal(x.torch().view(torch.uint8), tensor.view(torch.uint8))
    assert (x + x).data.dtype is dtype
    assert_same((x + x).astype(np.complex64), np.asarray(x).astype(np.complex64) * 2)


def test_bfloat16_products_are_torchs():
    a, b = torch.randn(6, 8).bfloat16(), torch.randn(8, 5).bfloat16()
    made = sw.shard(a, MESH, P("x", "y")) @ sw.shard(b, MESH, P("y"))
    assert made.dtype == ml_dtypes.bfloat16
    assert torch.equal(made.torch(), a @ b)


def test_parameters_views_and_broadcasts_are_taken():
    weight = torch.nn.Parameter(torch.ones(4, 3))
    x = sw.shard(weight.T, MESH, P("x"))
    assert not x.torch().requires_grad
    wide = torch.zeros(1).expand(10**6, 10**6)
    assert sw.shard(wide, MESH, P("x")).data.stride() == (0, 0)  # not copied a million times
    with pytest.raises(ArrayError, match="A meta tensor of shape"):
        sw.shard(torch.empty(3, device="meta"), MESH, P("x"))


def test_programs_take_torch_tensors():
    step = sw.sjit(lambda x, w: nn.gelu(x @ w).sum(axis=0), mesh=MESH, in_shardings=(P("x"), P(None, "y")))
    x, w = torch.randn(10, 7), torch.randn(7, 6)
    made = step(x, w)
    assert isinstance(made.data, torch.Tensor)
    torch.testing.assert_close(made.torch(), torch.nn.functional.gelu(x @ w).sum(0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64", "bool", "float16"])
@pytest.mark.parametrize(
    "value", [np.float64(2), np.float32(2), np.complex128(2), np.int64(2), np.bool_(True)], ids=repr
)
def test_scalars_of_numpy_have_dtypes_of_their_own(dtype, value):
    host = np.arange(1, 7).astype(dtype)
    x = sw.shard(host, MESH, P("y"))
    functions = [lambda xp, v: v + value, lambda xp, v: value * v, lambda xp, v: v == value]
    functions += [lambda xp, v: xp.where(v == 1, v, value)]
    if np.dtype(dtype).kind != "c" and value.dtype.kind != "c":
        functions += [
            lambda xp, v: xp.hypot(v, value),
            lambda xp, v: xp.maximum(value, v),
            lambda xp, v: xp.atan2(v, value),
        ]
    for function in functions:
        jitted = sw.sjit(lambda v, function=function: function(snp, v))
        for made in (function(snp, x), jitted(x)):
            expected = function(np, host)
            if is_exact(expected.dtype):
                assert_same(made, expected)
            else:  # functions of angles may differ in the last bit
                assert_close(made, expected, roundings=2)


def test_summands_halos_and_tensors_per_device():
    x = sw.shard(HOST, MESH, P("x", "y"))
    product = x @ x.T
    parts = [shard.data for shard in product.shards]
    assert_same(parts[0] + parts[1] + parts[2] + parts[3], (HOST @ HOST.T)[:5])
    halo = x.reshard(sw.Sharding(MESH, P("x"), halo={0: (1, 1)}))
    assert_same(halo.shards[0].data[1:], HOST[:6])
    assert_same(halo + 1, HOST + 1)
    double = sw.shard_map(lambda v: v.map(lambda tensor: tensor * 2), MESH, P("x"), P("x"))
    assert isinstance(double(x).data, torch.Tensor)
    assert_same(double(x), HOST * 2)


def test_an_array_is_pickled_and_copied():
    x = sw.shard(HOST, MESH, P("x"))
    again = pickle.loads(pickle.dumps(x))
    assert isinstance(again.data, torch.Tensor)
    assert_same(again, HOST)
    y = x.copied()
    y[0] = 1.0
    assert_same(x, HOST)
    assert repr(x).startswith("Array([[ 0.,  1.,")


def test_a_device_is_a_name():
    with pytest.raises(MeshError, match=r'an axis of this name is written Mesh\(\{"device": 4\}\)'):
        sw.Mesh(x=2, device=4)
    assert sw.Mesh({"device": 4}).sizes == {"device": 4}
    with pytest.raises(MeshError, match="device is ''; give the name that torch or JAX has"):
        sw.Mesh(x=2, device="")
    with pytest.raises(MeshError, match="'numpy' computes on the CPU; device='cuda' needs engine='torch'"):
        sw.Mesh(x=2, device="cuda")
    mesh = sw.Mesh(x=2, engine="torch", device="nonsense")
    with pytest.raises(EngineError, match="Torch can't use the device 'nonsense'"):
        snp.zeros(4, sharding=sw.Sharding(mesh, P("x")))
    assert eval(repr(mesh), {"Mesh": sw.Mesh}) == mesh != sw.Mesh(x=2, engine="torch")


def test_a_time_out_is_no_part_of_equality():
    assert sw.Mesh(x=2, engine="torch", timeout=5) == sw.Mesh(x=2, engine="torch")
    assert pickle.loads(pickle.dumps(sw.Mesh(x=2, timeout=5))).timeout == 5
    for wrong in (0, -1, "5", float("inf"), True):
        with pytest.raises(MeshError, match="give a positive number of seconds"):
            sw.Mesh(x=2, timeout=wrong)


def test_engines_have_names():
    assert engine_of(MESH).name == "torch"
    with pytest.raises(EngineError, match=r"There is no engine 'tpu'. Use one of 'numpy', 'literal', 'torch'"):
        sw.shard(HOST, sw.Mesh(x=2, engine="tpu"), P("x"))
    with pytest.raises(Exception, match="different meshes"):
        sw.shard(HOST, MESH, P("x")) + sw.shard(HOST, sw.Mesh(x=2, y=4), P("x"))


def test_checked_changes_nothing_in_one_process():
    with sw.checked():
        assert_same(sw.shard(HOST, MESH, P("x")) + 1, HOST + 1)
    parts = sw.from_process_local({"a": HOST}, MESH, axes="y", batch_dim=-1)
    assert parts["a"].sharding.spec == P(None, "y")
    with pytest.raises(ArrayError, match=r"batch_dim=0.5; give an integer"):
        sw.from_process_local(HOST, MESH, batch_dim=0.5)
    with pytest.raises(ArrayError, match=r"batch_dim=2 is not a dim of a part of shape \(10, 7\)"):
        sw.from_process_local(HOST, MESH, batch_dim=2)
    with pytest.raises(ArrayError, match="takes host tensors; this is an Array already"):
        sw.from_process_local(sw.shard(HOST, MESH, P("x")), MESH)


def boxes_of(order, low=(0, 1, 2), counts=(2, 3, 2), sizes=(2, 1, 3)):
    """Boxes side by side in three dims, in nested loops over the dims of `order`, the first one outermost."""
    numbers = [dict(zip(order, at, strict=True)) for at in itertools.product(*(range(counts[d]) for d in order))]
    starts = [[low[d] + at.get(d, 0) * sizes[d] for d in range(3)] for at in numbers]
    return [tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True)) for start in starts]


@pytest.mark.parametrize("order", [(1,), (2,), (0, 1), (2, 0), (0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_boxes_of_a_grid_are_packed_and_unpacked_by_one_view(order):
    host, boxes = np.arange(5 * 6 * 9).reshape(5, 6, 9), boxes_of(order)
    packed = np.concatenate([host[box].ravel() for box in boxes])
    grid = grid_of(boxes)
    assert_same(grid.view(torch.tensor(host)).reshape(-1).numpy(), packed)
    made, expected = torch.zeros(5, 6, 9, dtype=torch.int64), np.zeros_like(host)
    view = grid.view(made)
    view.copy_(torch.tensor(packed).view(view.shape))
    for box in boxes:
        expected[box] = host[box]
    assert_same(made.numpy(), expected)


def test_boxes_without_a_grid_are_left_as_they_are():
    boxes = boxes_of((1, 2))
    row = (slice(0, 2), slice(1, 2), slice(2, 5))
    for wrong in (
        boxes_of((0,)),  # rows: packed as they are
        boxes[:1],
        boxes[:-1],
        boxes[1:] + boxes[:1],
        [boxes[0], boxes[2], boxes[1], *boxes[3:]],
        [row, (slice(0, 2), slice(2, 4), slice(2, 5))],  # sizes differ
        [row, (slice(0, 2), slice(3, 4), slice(2, 5))],  # a gap
        [tuple(slice(n, None, -1) for n in (1, 2, 4))] * 2,
        [(), ()],
    ):
        assert grid_of(wrong) is None


def test_indices_of_uint64_are_read():
    x, at = sw.shard(np.arange(4.0), MESH, P("x")), sw.shard(np.array([1, 2], np.uint64), MESH, P())
    assert_same(x[at], np.array([1.0, 2.0]))
    assert_same(sw.sjit(lambda x, at: x[at])(x, at), np.array([1.0, 2.0]))
    assert_same(nn.one_hot(at, 3), np.array([[0, 1, 0], [0, 0, 1]], np.float32))
    x[at] = 9
    assert_same(x, np.array([0.0, 9, 9, 3]))
    with pytest.raises(IndexError, match=r"Index 9223372036854775813 is out of bounds for dim 0 of size 4"):
        x[sw.shard(np.array([1, 2**63 + 5], np.uint64), MESH, P())]


@pytest.mark.parametrize(
    ("dtype", "scalar"),
    [(np.float32, -1e300), (np.float16, 1e39), (np.float64, -1e300), (np.uint8, 300), (np.uint8, -1)],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_where_takes_scalars_that_the_dtype_can_not_hold_as_numpy_does(dtype, scalar):
    host = np.array([1, 2, 3, 0], dtype)
    for function in (lambda x: np.where(x > 1, x, scalar), sw.sjit(lambda x: np.where(x > 1, x, scalar))):
        assert_same(function(sw.shard(host, MESH, P("y"))), np.where(host > 1, host, scalar))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float16])
@pytest.mark.parametrize(
    "name",
    "cholesky det eig eigh eigvals inv matrix_norm matrix_power matrix_rank pinv qr slogdet solve svd svdvals".split(),
)
def test_matrices_of_small_floats_are_solved_as_numpy_solves_them(name, dtype):
    """Once those of bfloat16 were errors of torch."""
    host = (np.eye(3) * 2 + 0.5).astype(dtype)

    def results(engine):
        x = sw.shard(host, sw.Mesh(x=2, engine=engine), P("x"))
        more = {"solve": (x,), "matrix_power": (-2,)}.get(name, ())
        made = getattr(np.linalg, name)(x, *more, **({"ord": "nuc"} if name == "matrix_norm" else {}))
        return made if isinstance(made, tuple) else (made,)

    try:
        expected = results("numpy")
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            results("torch")
        return
    for one, other in zip(results("torch"), expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.abs(one), np.abs(other), atol=1e-6)
