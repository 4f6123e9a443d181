"""Tensors from outside: torch's, those that repeat themselves, and tensors without elements."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P, ShapeDtype
from shardwright.errors import ArrayError, ProgramError

MESH = sw.Mesh(x=4)
DTYPES = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int64", "bool"]


@pytest.mark.parametrize("name", DTYPES)
def test_torch_tensors_are_sharded_in_their_dtype(name):
    tensor = torch.tensor([[0.0, 1, 2], [3, 4, 5], [6, 0, 1], [2, 3, 4], [5, 6, 0]]).to(getattr(torch, name))
    expected = tensor.to(torch.float64).numpy()
    x = sw.shard(tensor, MESH, P("x"))
    assert str(x.dtype) == name
    np.testing.assert_array_equal(np.asarray(x).astype(np.float64), expected)
    made = sw.sjit(lambda t: t, mesh=MESH, in_shardings=P("x"))(tensor.mT)
    np.testing.assert_array_equal(np.asarray(made).astype(np.float64), expected.T)
    assert sw.shard(tensor[0, 1], MESH, P()).shape == ()


def test_parameters_and_conjugates_are_tensors():
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    assert_same(sw.shard(weight, MESH, P()), np.arange(6, dtype=np.float32).reshape(2, 3))
    layer = {"weight": weight, "bias": torch.ones(2)}
    made = sw.sjit(lambda x, p: x @ p["weight"].mT + p["bias"], mesh=MESH)(torch.ones(4, 3), layer)
    assert_same(made, np.broadcast_to(np.array([4, 13], np.float32), (4, 2)))
    turned = torch.tensor([1 + 2j]).conj()
    assert_same(sw.shard(turned, MESH, P()), np.array([1 - 2j], np.complex64))
    assert_same(sw.shard(np.ones(2, np.float32), MESH, P()) + torch.ones(2), np.full(2, 2, np.float32))
    with pytest.raises(ArrayError, match="Make it dense first"):
        sw.shard(torch.eye(3).to_sparse(), MESH, P())


def test_a_torch_tensor_is_shared_without_a_copy_if_asked():
    tensor = torch.zeros(8)
    x = sw.shard(tensor, MESH, P("x"), copy=False)
    owned = sw.shard(tensor, MESH, P("x"))
    tensor += 1
    assert x.tolist() == [1.0] * 8
    assert owned.tolist() == [0.0] * 8


def test_a_shape_and_a_dtype_are_a_value():
    plain = ShapeDtype((2, 3), "bfloat16")
    assert plain == ShapeDtype([2, 3], ml_dtypes.bfloat16)
    assert plain.dtype == ml_dtypes.bfloat16
    assert hash(plain) == hash(ShapeDtype((2, np.int64(3)), "bfloat16"))
    assert ShapeDtype(3, torch.float16).shape == (3,)
    assert ShapeDtype((4,), "f32", sw.Sharding(MESH, P("x"))).sharding == sw.Sharding(MESH, P("x"))
    assert repr(plain) == "ShapeDtype((2, 3), bf16)"
    with pytest.raises(ArrayError, match=r"sharding= takes a Sharding, which knows its mesh; got P\('x'\)"):
        ShapeDtype((4,), "f32", P("x"))
    with pytest.raises(ArrayError, match="negative"):
        ShapeDtype((-1,), "f32")
    with pytest.raises(sw.ShardwrightError, match="unknown dtype 'f33'"):
        ShapeDtype((1,), "f33")
    with pytest.raises(AttributeError):
        plain.shape = ()


def abstract_kinds():
    import jax

    return [
        lambda shape, dtype: ShapeDtype(shape, dtype),
        lambda shape, dtype: jax.ShapeDtypeStruct(shape, np.dtype(dtype)),
        lambda shape, dtype: torch.empty(shape, dtype=getattr(torch, dtype), device="meta"),
    ]


@pytest.mark.parametrize("kind", range(3))
def test_tensors_without_elements_are_explained(kind):
    make = abstract_kinds()[kind]
    step = sw.sjit(lambda p, x: snp.sum(x @ p["w"], axis=0), mesh=MESH, in_shardings=({"w": P("x")}, P(None, "x")))
    big = {"w": make((1 << 20, 1 << 16), "float32")}, make((1 << 18, 1 << 20), "float32")
    explanation = step.lower(*big).explain()
    assert explanation.total_bytes > 2**17
    small = step({"w": np.ones((8, 4), np.float32)}, np.ones((2, 8), np.float32))
    assert small.tolist() == [16.0] * 4
    with MESH:
        assert sw.explain(lambda x: x + 1, make((2**40, 4), "float32")).rows
    with pytest.raises(ProgramError, match="can be lowered and explained for it but not run"):
        step(*big)
    with pytest.raises(ArrayError, match="has no elements"):
        sw.shard(make((4,), "float32"), MESH, P())


def test_a_sharding_that_is_given_is_honoured():
    there = sw.Sharding(MESH, P(None, "x"))
    lowered = sw.sjit(lambda x: x + 1).lower(ShapeDtype((4, 8), "float32", there))
    assert lowered.program.inputs[0].type.sharding == there
    step = sw.sjit(lambda x: x + 1)
    step.lower(ShapeDtype((4, 8), "float32", there))
    step(sw.shard(np.ones((4, 8), np.float32), there))
    assert step.cache_size() == 1, "an array and its description are of one kind"
    wrong = type("Struct", (), {"shape": (4,), "dtype": np.dtype("f4"), "sharding": "somewhere"})()
    with pytest.raises(ArrayError, match="has the sharding 'somewhere', which is not a Sharding of shardwright"):
        step.lower(wrong)


def test_explaining_allocates_nothing():
    """A matrix of 64 TiB, in a process that may use 4 GiB."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
import shardwright as sw
from shardwright import P
mesh = sw.Mesh(x=64, y=64)
a = sw.ShapeDtype((1 << 22, 1 << 22), "float32", sw.Sharding(mesh, P("x", "y")))
print(sw.explain(lambda a: (a @ a).sum(axis=0), a).peak_bytes > 2**32)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("shape", [(1 << 20, 1 << 20), ((1 << 20) + 1, (1 << 20) - 3)])
def test_host_tensors_that_repeat_themselves_are_not_copied(shape):
    """4 TiB of one number, on even and uneven shards."""
    host = np.broadcast_to(np.float32(3), shape)
    for copy in (True, False):
        x = sw.shard(host, sw.Mesh(x=2, y=4), P("x", "y"), copy=copy)
        assert set(x.data.strides) == {0}
    row = np.arange(6.0)
    y = sw.shard(np.broadcast_to(row, (5, 6)), MESH, P("x"))
    row += 1
    assert_same(y, np.broadcast_to(np.arange(6.0), (5, 6)))


UNFIT = {
    "masked": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "would lose its mask"),
    "record": (lambda: np.zeros(4, "i4,f4"), "can't be sharded; a numeric or boolean dtype is needed"),
    "text": (lambda: np.array(["a"] * 4), "Elements of dtype <U1 can't be sharded"),
    "objects": (lambda: np.array([None] * 4), "Elements of dtype object can't be sharded"),
    "dates": (lambda: np.zeros(4, "M8[D]"), "Elements of dtype datetime64"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "t.to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "qint8 .* t.dequantize"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "t.to_padded_tensor"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch's, of such tensors
@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_dense_tensor_of_numbers_is_refused_everywhere(name):
    make, text = UNFIT[name]
    host, step = make(), sw.sjit(lambda x: x + x, mesh=sw.Mesh(x=4))
    for call in (lambda: sw.shard(host, sw.Mesh(x=4), P("x")), lambda: step(host), lambda: step.lower(host)):
        with pytest.raises(ArrayError, match=text):
            call()


def test_a_static_memoryview_is_named():
    step = sw.sjit(lambda x, more: x + x, mesh=sw.Mesh(x=4))
    with pytest.raises(ProgramError, match="static argument 'more' is a memoryview, which can't be hashed"):
        step(np.ones(4), memoryview(bytearray(4)))
