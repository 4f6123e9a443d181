"""Operations by name: the strategies of the GT document, partial values, gathers that are seen, protocols, creation."""

import enum
import warnings
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P, Sharding
from shardwright.eager import calls
from shardwright.errors import ArrayError, ImplicitGatherError, ImplicitGatherWarning, OperationError
from shardwright.ops import OPS, RowMap, rule
from shardwright.plan import OperationPlan

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((128, 64)), RNG.standard_normal((64, 32))
WORKERS = sw.Mesh(worker=4)
MESH = sw.Mesh(data=2, model=4)


def collectives_of(function, *args):
    """The names of the collectives that a function's operations need."""
    rows = sw.explain(function, *args).rows
    return [row.collective.split()[0] for row in rows if row.bytes]


# -- the three strategies ---------------------------------------------------------------------------------------------


def test_strategy_1_row_sharded():
    a, b = sw.shard(A, WORKERS, P("worker")), sw.replicate(B, WORKERS)
    c = a @ b
    assert c.sharding == Sharding(WORKERS, P("worker", None))
    assert collectives_of(lambda a, b: a @ b, a, b) == []
    for worker, shard in enumerate(c.shards):
        np.testing.assert_allclose(shard.data, A[32 * worker : 32 * worker + 32] @ B)
    np.testing.assert_allclose(np.asarray(c), A @ B)


@pytest.mark.parametrize("spec", [P("worker"), P(None, "worker")])
def test_strategy_2_reductions(spec):
    a = sw.shard(A, WORKERS, spec)
    total, average = snp.sum(a), snp.mean(a)
    assert total.sharding.partial == average.sharding.partial == ("worker",)
    assert collectives_of(snp.sum, a) == ["all_reduce"], "local sums, and a reduction when it is read"
    np.testing.assert_allclose(float(total), A.sum())
    np.testing.assert_allclose(float(average), A.mean())
    rows = A.reshape(4, 32, 64) if spec == P("worker") else A.reshape(128, 4, 16).swapaxes(0, 1)
    for worker, shard in enumerate(total.shards):
        np.testing.assert_allclose(shard.data, rows[worker].sum())


def test_strategy_3_inner_dim():
    a, b = sw.shard(A, WORKERS, P(None, "worker")), sw.shard(B, WORKERS, P("worker"))
    c = a @ b
    assert c.sharding == Sharding(WORKERS, P(None, None), partial="worker")
    for worker, shard in enumerate(c.shards):
        np.testing.assert_allclose(shard.data, A[:, 16 * worker : 16 * worker + 16] @ B[16 * worker : 16 * worker + 16])
    np.testing.assert_allclose(np.asarray(c), A @ B)
    scattered = (a @ b).reshard(P("worker"))
    assert scattered.sharding == Sharding(WORKERS, P("worker", None))
    np.testing.assert_allclose(scattered.shards[1].data, (A @ B)[32:64])


def test_columns_two_dims_and_batches():
    a, b = sw.replicate(A, WORKERS), sw.shard(B, WORKERS, P(None, "worker"))
    assert (a @ b).sharding.spec == P(None, "worker")
    a, b = sw.shard(A, MESH, P("data")), sw.shard(B, MESH, P(None, "model"))
    assert (a @ b).sharding.spec == P("data", "model")
    assert collectives_of(lambda a, b: a @ b, a, b) == []
    a, b = sw.shard(A, MESH, P("data", "model")), sw.shard(B, MESH, P("model", "data"))
    np.testing.assert_allclose(np.asarray(a @ b), A @ B)
    batch = sw.shard(RNG.standard_normal((6, 5, 4)), MESH, P("data"))
    other = sw.shard(RNG.standard_normal((6, 4, 3)), MESH, P("data"))
    assert (batch @ other).sharding.spec == P("data", None, None)
    assert collectives_of(lambda a, b: a @ b, batch, other) == []


def test_a_small_sum_over_the_inner_dim_is_not_left_partial_where_gathering_is_cheaper():
    tall, wide = (
        sw.shard(np.ones((3000, 4)), WORKERS, P(None, "worker")),
        sw.shard(np.ones((4, 3000)), WORKERS, P("worker")),
    )
    c = tall @ wide
    assert not c.sharding.partial
    assert np.asarray(c)[0, 0] == 4


# -- partial values -----------------------------------------------------------------------------------------------------


def partial():
    return sw.shard(A, WORKERS, P(None, "worker")) @ sw.shard(B, WORKERS, P("worker"))


@pytest.mark.parametrize(
    "linear",
    [
        lambda c: c + c,
        lambda c: c - partial(),
        lambda c: c * 2.5,
        lambda c: c / 3,
        lambda c: -c,
        lambda c: c * np.arange(32.0),
        lambda c: snp.reshape(c, (64, 64)),
        lambda c: c.T,
        lambda c: c[3:70:2, 1:],
        lambda c: snp.sum(c, axis=0),
        lambda c: c @ np.ones((32, 2)),
        lambda c: snp.expand_dims(c, 0),
        lambda c: snp.concat([c, c]),
        lambda c: c + np.ones((128, 32)),
    ],
)
def test_linear_operations_leave_a_partial_value_partial(linear):
    c = partial()
    result = linear(c)
    assert result.sharding.partial == ("worker",)
    expected = linear_reference(linear)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-9, atol=1e-9)


def linear_reference(linear):
    """The same function of the reduced, replicated value."""
    whole = sw.replicate(A @ B, WORKERS)
    return np.asarray(linear(whole))


@pytest.mark.parametrize(
    "nonlinear", [lambda c: c * c, snp.exp, lambda c: c + 1, lambda c: 1 / c, snp.max, lambda c: c > 0]
)
def test_nonlinear_operations_reduce_first(nonlinear):
    result = nonlinear(partial())
    assert "worker" not in result.sharding.partial or result.sharding.reduction != "sum"
    np.testing.assert_allclose(np.asarray(result), linear_reference(nonlinear), rtol=1e-9)


def test_one_reduction_serves_a_sum_of_products():
    total = partial() + partial() * 2.0
    assert total.sharding.partial == ("worker",)
    np.testing.assert_allclose(np.asarray(total), 3 * (A @ B))


# -- along split dims: local work and a small combination -----------------------------------------------------------------


@pytest.mark.parametrize("spec", [P("data", "model"), P(("model", "data")), P(None, "model")])
@pytest.mark.parametrize(
    "run",
    [
        lambda x: snp.argmax(x, axis=0),
        lambda x: snp.argmin(x),
        lambda x: snp.var(x, axis=0),
        lambda x: snp.std(x),
        lambda x: snp.cumulative_sum(x, axis=0),
        lambda x: snp.cumulative_sum(x, axis=1),
        lambda x: sw.nn.logsumexp(x, axis=1),
        lambda x: snp.mean(snp.astype(x, np.int64), axis=1),
        lambda x: snp.sum(x > 0, axis=0),
        lambda x: x[2:7, 1:],
        lambda x: snp.max(x, axis=1),
    ],
)
def test_nothing_is_gathered_where_local_work_and_a_combination_do(run, spec):
    x = sw.shard(RNG.standard_normal((10, 7)) * 10, MESH, spec)
    with sw.strict():
        run(x)
    assert "all_gather" not in collectives_of(run, x)


def test_a_prefix_sum_passes_on_one_row():
    x = sw.shard(np.arange(48).reshape(8, 6), MESH, P("model"))
    rows = sw.explain(lambda x: snp.cumulative_sum(x, axis=0), x).rows
    assert [row.operation for row in rows] == [
        "cumulative_sum",
        "cumulative_sum total",
        "prefix",
        "cumulative_sum after",
    ]
    assert rows[2].results == ("i64[4,6]",)
    assert rows[2].bytes == rows[2].lower_bound == 3 * 6 * 8, "the last device hears from the three before it"
    assert rows[3].results == ("i64[8@model,6]",)


def test_only_the_dims_that_must_be_whole_are_gathered():
    x = sw.shard(RNG.standard_normal((8, 8)), MESH, P("data", "model"))
    y = snp.sort(x, axis=1)
    assert "data" in y.sharding.dims[0]
    assert y.sharding.dims[1] == ()
    (step,) = sw.explain(lambda x: snp.sort(x, axis=1), x).operations
    assert all("data" not in cost.axes for cost in step.chosen.moves[0])


def test_a_reshape_that_keeps_data_in_place_moves_nothing():
    x = sw.shard(np.arange(32 * 6.0).reshape(32, 6), sw.Mesh(x=8), P("x"))
    y = snp.reshape(x, (4, 8, 6))
    assert y.sharding.spec == P("x:(1)4", "x:(4)2", None)
    assert collectives_of(lambda x: snp.reshape(x, (4, 8, 6)), x) == []
    heads = sw.shard(np.arange(24.0).reshape(2, 12), MESH, P("data", "model"))
    split = snp.reshape(heads, (2, 4, 3))
    assert split.sharding.spec == P("data", "model", None)
    assert snp.reshape(split, (2, 12)).sharding == heads.sharding
    assert collectives_of(lambda x: snp.reshape(x, (2, 12)), split) == []


# -- never silent ---------------------------------------------------------------------------------------------------------


def test_a_large_gather_warns_once_with_its_line(monkeypatch):
    monkeypatch.setattr(calls, "WARN_ABOVE", 100)
    x = sw.shard(RNG.standard_normal((8, 8)), sw.Mesh(q=8), P("q"))
    with pytest.warns(ImplicitGatherWarning) as seen:
        snp.linalg.det(x)
    (warning,) = seen
    text = str(warning.message)
    assert "det gathers dim 0 of f64[8@q,8] on Mesh(q=8): 448 bytes to every device" in text
    assert "test_operations.py:" in text
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snp.linalg.det(x.reshard(P()))


def test_strict_refuses_any_gather():
    x = sw.shard(RNG.standard_normal((8, 8)), MESH, P("data"))
    with (
        sw.strict(),
        pytest.raises(ImplicitGatherError, match=r"det gathers dim 0 of .* \(.*test_operations.py:\d+; inside strict"),
    ):
        snp.linalg.det(x)
    with sw.strict(), pytest.raises(ImplicitGatherError, match=r"repeat gathers every dim"):
        snp.repeat(x, np.arange(8), axis=0)
    snp.linalg.det(x)
    with sw.strict():
        snp.linalg.det(x.reshard(P()))


@pytest.mark.parametrize("spec", [P("data"), P("model", "data"), P(None, ("model", "data")), P("data:(1)2")], ids=str)
def test_what_the_data_tells_is_found_without_a_gather(spec):
    host = RNG.integers(-2, 3, (7, 9)).astype(np.float64)
    host[2, 3:6] = np.nan
    host[3, 1:3] = -0.0
    x = sw.shard(host, MESH, spec)
    with sw.strict():
        for ours, theirs in zip(snp.nonzero(x), np.nonzero(host), strict=True):
            assert_same(ours, theirs)
        for ours, theirs in zip(snp.unique_all(x), np.unique_all(host), strict=True):
            assert_same(ours, theirs)
        assert_same(x[x > 0], host[host > 0])
    assert snp.unique_inverse(x).inverse_indices.sharding == x.sharding


def test_an_array_without_dims_can_be_assigned():
    x = sw.shard(np.array(3), MESH, P())
    x[()] = 5
    assert x.shape == ()
    assert int(x) == 5


def test_places_found_along_the_first_dim_stay_where_they_were_found():
    host = np.array([[0, 1], [2, 3], [0, 0], [0, 4]])
    rows, columns = snp.nonzero(sw.shard(host, sw.Mesh(x=4), P("x")))
    assert [shard.data.tolist() for shard in rows.shards] == [[0], [1, 1], [], [3]]
    assert [shard.data.tolist() for shard in columns.shards] == [[1], [0, 1], [], [1]]


def test_host_tensors_and_numbers_mix_and_meshes_do_not():
    x = sw.shard(A, MESH, P("data"))
    host = np.ones((128, 64))
    for result in (x + host, host + x, np.add(x, host), x + 1, 1 + x, x + np.float64(1), x + [1.0] * 64):
        assert isinstance(result, sw.Array)
        assert_same(result, A + 1)
    y = sw.shard(A, WORKERS, P("worker"))
    with pytest.raises(
        ArrayError, match=r"Arrays on different meshes don't mix: f64\[128@data,64\] on Mesh\(data=2, model=4\) and"
    ):
        x + y
    with pytest.raises(TypeError):
        x + "text"
    with pytest.raises(OperationError, match=r"operands of shapes \(128, 64\) and \(3,\) don't fit: a dim of size"):
        x + np.ones(3)
    with pytest.raises(OperationError, match=r"matmul: operands of shapes \(128, 64\) and \(128, 64\) don't fit"):
        x @ x


# -- what is NumPy's on every engine --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, np.float32, np.complex128])
@pytest.mark.parametrize("ord", [0, 1, 2, 3, -1, -2.5, np.inf, -np.inf])
def test_norms_of_vectors_have_numpys_dtypes(ord, dtype, engine):
    with sw.Mesh(x=2, y=2, engine=engine):
        for host in (np.array([[1, 1, 2], [1, 3, 0]]).astype(dtype), np.zeros((3, 0), dtype)):
            for axis in (None, 0) if host.size or abs(ord) != np.inf else ():
                with np.errstate(all="ignore"):
                    actual, expected = (
                        f(x, ord=ord, axis=axis)
                        for f, x in ((snp.linalg.vector_norm, snp.asarray(host)), (np.linalg.vector_norm, host))
                    )
                assert actual.dtype == expected.dtype
                np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_matrices_without_elements_and_tensors_without_dims(engine):
    with sw.Mesh(x=2, y=2, engine=engine):
        for dtype, shape in product((np.bool_, np.int64, np.float32), ((0, 0), (0, 2), (2, 0), (3, 0, 2))):
            empty = snp.zeros(shape, dtype=dtype)
            inverse, rank = snp.linalg.pinv(empty), snp.linalg.matrix_rank(empty)
            assert inverse.dtype == (np.float32 if dtype is np.float32 else np.float64)
            assert inverse.shape == (*shape[:-2], shape[-1], shape[-2])
            assert (rank.dtype, rank.shape) == (np.int64, shape[:-2])
            with pytest.raises(ValueError, match=r"zero-size array to reduction"):
                snp.linalg.matrix_norm(snp.zeros((0, 0), dtype=dtype), ord=-1)
        for name in ("fftshift", "ifftshift"):
            assert int(getattr(snp.fft, name)(snp.asarray(7))) == 7
            assert np.asarray(getattr(snp.fft, name)(snp.arange(4), axes=())).tolist() == [0, 1, 2, 3]
        assert (snp.zeros(0, dtype=np.int8) ** -1).shape == (0,)
        with pytest.raises(ValueError, match=r"negative integer powers"):
            snp.ones(1, dtype=np.int8) ** -1


# -- protocols ----------------------------------------------------------------------------------------------------------


def test_numpys_functions_run_the_same_rows():
    x = sw.shard(A, MESH, P("data", "model"))
    for result, expected in (
        (np.add(x, x), A + A),
        (np.sum(x, axis=0), A.sum(axis=0)),
        (np.exp(x), np.exp(A)),
        (np.matmul(x, B), A @ B),
        (np.concatenate([x, x]), np.concatenate([A, A])),
        (np.linalg.vector_norm(x), np.linalg.vector_norm(A)),
        (np.transpose(x), A.T),
        (np.max(x, axis=1), A.max(axis=1)),
    ):
        assert isinstance(result, sw.Array)
        np.testing.assert_allclose(np.asarray(result), expected)
    np.testing.assert_allclose(np.asarray(np.einsum("ij,jk->ik", x, B)), A @ B)
    assert np.allclose(x, A)
    assert np.array_equal(x, A)
    with pytest.raises(TypeError, match=r"np.add.reduce does not work on sharded arrays"):
        np.add.reduce(x)
    with pytest.raises(
        TypeError, match=r"np.median does not work on sharded arrays. Use a function of shardwright.numpy"
    ):
        np.median(x)
    with pytest.raises(
        TypeError, match=r"np.add does not take out= on sharded arrays. Use the result: y = np.add\(…\)"
    ):
        np.add(x, x, out=np.zeros_like(A))


def test_the_namespace_says_who_it_is():
    x = sw.shard(A, MESH, P("data"))
    assert x.__array_namespace__() is snp
    assert x.__array_namespace__(api_version="2024.12").__array_api_version__ == "2025.12"
    with pytest.raises(ValueError, match="newer"):
        x.__array_namespace__(api_version="2099.12")
    info = snp.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.dtypes(kind="bool") == {"bool": np.dtype(bool)}
    assert info.default_dtypes()["integral"] == np.int64
    assert info.capabilities()["data-dependent shapes"]
    assert x.to_device("mesh") is x
    with pytest.raises(ArrayError, match="not on 'gpu'"):
        x.to_device("gpu")


def test_dlpack_of_the_whole_and_of_a_shard():
    x = sw.shard(A, MESH, P("data"))
    assert_same(np.from_dlpack(x), A)
    shard = x.shards[4]
    assert_same(np.from_dlpack(shard), A[64:])
    assert np.shares_memory(np.from_dlpack(shard), shard.data)
    assert torch.equal(torch.from_dlpack(shard), torch.from_numpy(A[64:]))


def test_in_place_operators_change_the_variable_only():
    x = sw.shard(A, MESH, P("data"))
    other = x.reshard(P("data"))
    x += 1
    x[0, :3] = 7
    x[x > 2] = 0
    expected = A + 1
    expected[0, :3] = 7
    expected[expected > 2] = 0
    assert_same(x, expected)
    assert_same(other, A)
    assert x.sharding == other.sharding
    y = sw.replicate(np.array([1, 2]), MESH)
    with pytest.raises(ArrayError, match=r"would turn int64 of shape \(2,\) into float64"):
        y += 0.5


def test_methods_and_properties():
    x = sw.shard(A, MESH, P("data"))
    assert_same(x.T, A.T)
    assert_same(x.transpose(1, 0), A.T)
    assert_same(x.reshape(64, -1), A.reshape(64, -1))
    assert_same(x.astype(np.float32), A.astype(np.float32))
    np.testing.assert_allclose(np.asarray(x.sum(axis=0)), A.sum(axis=0))
    np.testing.assert_allclose(float(x.mean()), A.mean())
    assert float(x.max()) == A.max()
    assert float(x.min()) == A.min()
    with pytest.raises(ArrayError, match=r"x.T is for two dims"):
        x.reshape(-1).T  # noqa: B018


# -- creation -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["replicate", P("data"), None])
def test_a_policy_is_a_function(policy):
    with (
        pytest.raises(ArrayError, match=r"auto_sharding takes a function of a shape and a mesh that returns a P; got"),
        sw.auto_sharding(policy),
    ):
        pass


def test_new_arrays_lie_on_the_current_mesh_by_the_policy():
    with MESH:
        x = snp.zeros((64, 128))
        assert x.sharding.spec == P("model", "data")
        assert snp.ones((3, 3)).sharding.spec == P("data", None)
        assert snp.arange(8).sharding.spec == P("data")
        assert snp.full((8, 2), 3, sharding=P("model")).sharding.spec == P("model", None)
        assert snp.asarray([[1, 2], [3, 4]]).sharding.spec == P("data", None)
        assert snp.zeros_like(x, dtype=np.int8).sharding == x.sharding
        with sw.auto_sharding(lambda shape, mesh: P()):
            assert snp.zeros((64, 128)).sharding.spec == P(None, None)
        with WORKERS:
            assert snp.zeros(8).mesh == WORKERS
        assert snp.zeros(8).mesh == MESH
    with pytest.raises(ArrayError, match=r"There is no mesh to make an array on. Write `with mesh:` around it"):
        snp.zeros(8)
    assert snp.zeros(8, sharding=Sharding(MESH, P("data"))).mesh == MESH


def test_creation_gives_numpys_values():
    with MESH:
        for ours, numpys in (
            (snp.arange(2, 9, 3), np.arange(2, 9, 3)),
            (snp.linspace(0, 1, 7), np.linspace(0, 1, 7)),
            (snp.eye(5, 3, k=1), np.eye(5, 3, k=1)),
            (snp.full((2, 3), 7), np.full((2, 3), 7)),
            (snp.ones((2, 3), dtype=np.int8), np.ones((2, 3), np.int8)),
            (snp.fft.fftfreq(6), np.fft.fftfreq(6)),
            (snp.fft.rfftfreq(6, d=0.5), np.fft.rfftfreq(6, d=0.5)),
            (snp.from_dlpack(np.arange(5)), np.arange(5)),
            (snp.empty((2, 2)), np.zeros((2, 2))),
            (snp.full_like(snp.zeros(3), 2), np.full(3, 2.0)),
            (snp.ones_like(snp.zeros(3)), np.ones(3)),
            (snp.empty_like(snp.zeros(3)), np.zeros(3)),
            (snp.asarray([snp.zeros(()), 1]), np.array([0.0, 1])),
        ):
            assert_same(ours, numpys)
        x = snp.arange(4)
        assert snp.asarray(x) is x
        assert snp.asarray(x, copy=True) is not x
        with pytest.raises(ValueError, match="forbids"):
            snp.asarray(x, dtype=np.float32, copy=False)
    assert snp.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert snp.can_cast(np.int8, np.int16)
    assert snp.result_type(np.int8, np.float32) == np.float32
    assert snp.isdtype(np.dtype(np.int8), "integral")
    assert snp.finfo(np.float32).bits == 32
    assert snp.iinfo(np.int8).max == 127


# -- rules ----------------------------------------------------------------------------------------------------------------


def test_rules_fit_shapes_or_say_why_not():
    fitted = rule("matmul", "... m k, ... k n -> ... m n", [(5, 1, 2, 3), (4, 3, 6)], sums={"k": "sum"})
    assert fitted.out_shape() == (5, 4, 2, 6)
    assert fitted.inputs[0][1] == (), "a dim of size 1 is broadcast"
    with pytest.raises(OperationError, match=r"don't match the dims of"):
        rule("matmul", "m k, k n -> m n", [(2,), (2, 3)])
    with pytest.raises(OperationError, match=r"reshape: a tensor of shape \(6,\) has 6 elements, the shape \(4,\) 4"):
        OPS["reshape"].rule([(6,)], {"shape": (4,)})


def test_row_maps():
    flip = RowMap(5, 4, -1)
    assert flip.window(0, 3).tolist() == [4, 3, 2]
    conv = RowMap(5, -1, 1, width=3)
    assert conv.window(0, 2).tolist() == [-1, 0, 1, 2]
    assert conv.anchors(5).tolist() == [0, 1, 2, 3, 4]
    assert RowMap(6, every=2).window(1, 4).tolist() == [0, 1, 1]
    assert RowMap(4, 3, wrap=4).window(0, 4).tolist() == [3, 0, 1, 2]


def test_explain_says_what_was_considered_and_why():
    a, b = sw.shard(A, MESH, P("data")), sw.shard(B, MESH, P("model"))
    explanation = sw.explain(lambda a, b: a @ b, a, b)
    (step,) = explanation.operations
    assert step.operation == "matmul"
    assert step.operands == ("f64[128@data,64]", "f64[64,32@model]")
    assert [row.collective for row in explanation.rows] == ["all_to_all model", ""]
    assert len(step.considered) > 4
    assert all(step.chosen.time <= other.time for other in step.considered)
    text = str(explanation)
    assert "data → m" in text
    assert "chosen because it takes" in text
    assert "that take longer (see .considered)" in text
    partial_sum = sw.explain(lambda a: snp.sum(a, axis=0) * 2.0, a).operations[1]
    assert "defers" in partial_sum.reason
    assert "until the result is read" in partial_sum.reason
    assert "test_operations.py:" in text
    assert (
        explanation.total_bytes == 16 * 32 * 8 * 3 // 4 == explanation.rows[0].lower_bound
    )  # three quarters of a shard
    assert explanation.peak_bytes == (64 * 64 + 16 * 32 + 2 * 64 * 8) * 8  # inputs, b by columns, the product


@pytest.mark.parametrize("left", [P("data", "model"), P("model", "data"), P(("data", "model")), P(None, "model")])
@pytest.mark.parametrize("right", [P("data", "model"), P("model", "data"), P(("model", "data")), P()])
@pytest.mark.parametrize("scale", [1, 40])
def test_the_choice_is_the_best_of_all(left, right, scale):
    """The bound that spares most placements their price never spares the best one."""
    a = sw.shard(np.ones((16 * scale, 24), np.float32), MESH, left)
    b = sw.shard(np.ones((24, 8 * scale), np.float32), MESH, right)
    step = sw.explain(lambda a, b: a @ b, a, b).operations[0]
    assert step.chosen.rank == min(strategy.rank for strategy in step.considered)


def test_a_choice_is_the_same_every_time():
    a, b = sw.shard(A, MESH, P("data", "model")), sw.shard(B, MESH, P("data", "model"))
    kinds = [(x.layout, x.dtype) for x in (a, b)]
    first, again = (OperationPlan(OPS["einsum"], kinds, calls._MATMUL[2, 2]).strategy for _ in range(2))
    assert first.placement == again.placement
    assert first.results == again.results


# -- cases that were once wrong ---------------------------------------------------------------------------------------

X2, X4 = sw.Mesh(x=2), sw.Mesh(x=4)


def product_of(left, right):
    """An inner-sharded product, which is partial, and NumPy's."""
    return sw.shard(left, X2, P(None, "x")) @ sw.shard(right, X2, P("x")), left @ right


@pytest.mark.parametrize(
    "run", [lambda c: c * 2.0, np.sum, np.mean, lambda c: c / 2.0, lambda c: c * np.int64(1), lambda c: c + c]
)
@pytest.mark.parametrize(
    "operands",
    [
        (np.array([[1, 1], [0, 1]], bool), np.array([[1, 0], [1, 1]], bool)),
        (np.full((1, 2), 100, np.int8), np.ones((2, 1), np.int8)),
    ],
)
def test_sums_that_are_or_or_wrap_are_done_before_the_elements_widen(run, operands):
    ours, numpys = product_of(*operands)
    np.testing.assert_array_equal(np.asarray(run(ours)), run(numpys))


def test_averages_of_integers_are_done_before_they_are_scaled():
    x = sw.from_shards(X2, Sharding(X2, P(), partial="x", reduction="average"), [np.array([1]), np.array([2])])
    assert np.asarray(x).tolist() == [1]
    assert np.asarray(x + x).tolist() == np.asarray(x * 2).tolist() == [2]
    assert np.asarray(x / 2).tolist() == [0.5]


@pytest.mark.parametrize("scale", [0.0, np.inf, np.nan, 1e308])
def test_summands_are_not_scaled_by_what_their_sum_would_survive(scale):
    x = np.array([2.0, -1.0])
    ours = snp.sum(sw.shard(x, X2, P("x")))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.asarray(ours * scale), x.sum() * scale)
        np.testing.assert_array_equal(np.asarray(ours / scale), np.divide(x.sum(), scale))
        product, whole = product_of(np.array([[2.0, -1.0]]), np.ones((2, 1)))
        np.testing.assert_array_equal(np.asarray(product * np.array([scale])), whole * scale)


def test_rows_by_number_are_exact():
    x = sw.shard(np.array([-0.0, 2.0]), X2, P("x"))
    y = np.asarray(x[np.array([0, 1])])
    assert np.signbit(y).tolist() == [True, False]
    big = sw.shard(np.arange(1000), X2, P("x"))
    assert np.asarray(big[np.array([-1, 2], np.int8)]).tolist() == [999, 2]
    assert np.asarray(big[np.array([1, 2], np.uint64)]).tolist() == [1, 2]
    assert np.asarray(big[[]]).shape == (0,)
    assert np.asarray(big[range(2)]).tolist() == [0, 1]
    with pytest.raises(IndexError):
        snp.searchsorted(big, 3, sorter=np.array([1000]))


def test_complex_variances_and_clips():
    z = np.array([1 + 1j, 2 - 1j, 0])
    v = snp.var(sw.shard(z, X2, P("x")))
    np.testing.assert_allclose(np.asarray(v), np.var(z))
    assert v.dtype == np.float64
    small = sw.shard(np.array([1, 2, 3], np.uint8), X2, P("x"))
    assert_same(snp.clip(small, -1, 300), np.clip(np.array([1, 2, 3], np.uint8), -1, 300))
    assert_same(snp.clip(sw.shard(np.array([1, 2, 3]), X2, P("x")), 1.5, 2.5), np.clip(np.array([1, 2, 3]), 1.5, 2.5))


def test_einsum_keeps_its_dots_and_names_its_result():
    a, b = RNG.standard_normal((2, 2, 3)), RNG.standard_normal((2, 3, 2))
    x, y = sw.shard(a, X2, P("x")), sw.shard(b, X2, P("x"))
    np.testing.assert_allclose(np.asarray(snp.einsum("...ij,...jk", x, y)), np.einsum("...ij,...jk", a, b))
    np.testing.assert_allclose(np.asarray(snp.einsum("i,->i", sw.shard(a[0, 0], X2, P()), 2.0)), 2 * a[0, 0])
    for wrong in ("...ij->ij", "aij->z", "aij->ii"):
        with pytest.raises(OperationError, match=r"must name letters of"):
            snp.einsum(wrong, x)


def test_assignment_fails_where_numpys_does():
    x = sw.shard(np.arange(4, dtype=np.uint8), X2, P("x"))
    for index in (0, np.array([True, False, True, False])):
        with pytest.raises(OverflowError):
            x[index] = 300
    y = sw.shard(np.arange(4), X2, P("x"))
    with pytest.raises(ValueError, match="NaN"):
        y[y > 1] = np.nan
    with pytest.raises(TypeError):
        y[0] = 1j
    assert_same(y, np.arange(4))


@pytest.mark.parametrize(
    "same",
    [
        lambda x: x[:],
        lambda x: x[...],
        lambda x: x[0:4],
        lambda x: snp.concat([x]),
        lambda x: snp.diff(x, n=0),
        lambda x: snp.flip(x, axis=()),
        lambda x: sw.nn.dropout(x, 0.0, sw.random.Key(0)),
    ],
)
def test_what_looks_the_same_is_another_variable(same):
    x = sw.shard(np.arange(4.0), X2, P("x"))
    y = same(x)
    y += 1
    assert_same(x, np.arange(4.0))


def test_a_deferred_product_is_made_once_and_pickles():
    import copy
    import pickle

    c, whole = product_of(RNG.standard_normal((8, 8)), RNG.standard_normal((8, 8)))
    first = np.asarray(c)
    assert np.asarray(c) is not None
    assert np.shares_memory(first, np.asarray(c)), "the product is kept"
    for other in (pickle.loads(pickle.dumps(c)), copy.deepcopy(c)):
        assert other.sharding == c.sharding
        np.testing.assert_allclose(np.asarray(other), whole)


def test_numpys_positional_arguments():
    x = sw.shard(A, MESH, P("data"))
    for ours, numpys in (
        (np.sum(x, 0), np.sum(A, 0)),
        (np.max(x, 1), np.max(A, 1)),
        (np.mean(x, 0), np.mean(A, 0)),
        (np.var(x, ddof=1), np.var(A, ddof=1)),
        (np.sort(x, 0), np.sort(A, 0)),
        (np.argmax(x, 1), np.argmax(A, 1)),
        (np.roll(x, 3, 0), np.roll(A, 3, 0)),
        (np.concatenate([x, x], 1), np.concatenate([A, A], 1)),
        (np.stack([x, x], 1), np.stack([A, A], 1)),
        (np.flip(x, 0), np.flip(A, 0)),
    ):
        np.testing.assert_allclose(np.asarray(ours), numpys)
    assert np.ndim(x) == 2
    assert np.shape(x) == (128, 64)
    with pytest.raises(TypeError, match=r"np.sum does not take initial= on sharded arrays. Combine it with the result"):
        np.sum(x, initial=3.0)


def test_operands_that_share_no_cut_are_gathered_in_the_open():
    mesh = sw.Mesh(x=12)
    a, b = sw.shard(np.arange(24.0), mesh, P("x:(1)3")), sw.shard(np.arange(24.0), mesh, P("x:(1)2"))
    np.testing.assert_array_equal(np.asarray(a + b), 2 * np.arange(24.0))
    with sw.strict(), pytest.raises(ImplicitGatherError, match="add gathers dim 0"):
        a + b


def test_many_axes_are_planned_quickly_enough_to_run():
    mesh = sw.Mesh({f"a{i}": 2 for i in range(12)})
    x = sw.shard(np.ones((4096, 2)), mesh, P(mesh.axis_names))
    assert float(snp.sum(x)) == 8192
    step = sw.explain(lambda x: snp.sum(x, axis=0), x).operations[0]
    assert len(step.considered) < 100


def test_explain_counts_a_reduction_once_and_knows_dtypes():
    a, b = sw.shard(A, WORKERS, P(None, "worker")), sw.shard(B, WORKERS, P("worker"))
    both = sw.explain(lambda a, b: sw.nn.relu(a @ b), a, b)
    product, _ = both.operations
    assert both.total_bytes < 2 * product.chosen.bytes + 1000
    assert sw.explain(lambda a: a > 0, a).rows[0].results == ("bool[128,64@worker]",)


def test_products_of_small_floats_have_one_dtype_wherever_they_lie():
    bf16 = np.dtype(ml_dtypes.bfloat16)
    for left, right in ((bool, bf16), (bf16, bf16), (bf16, np.float32)):
        expected = np.result_type(left, right)
        hosts = np.ones((4, 4), left), np.ones((4, 4), right)
        for specs in ((P(), P()), (P(None, "x"), P("x")), (P("x"), P())):
            product = sw.shard(hosts[0], X4, specs[0]) @ sw.shard(hosts[1], X4, specs[1])
            assert product.dtype == np.asarray(product).dtype == product.shards[0].data.dtype == expected
    x = sw.shard(np.ones((4, 4), bf16), X4, P("x"))
    assert snp.einsum("ij,jk,kl->il", x, x, x).dtype == bf16


def test_numbers_beside_small_floats():
    bf16 = np.dtype(ml_dtypes.bfloat16)
    x = sw.shard(np.array([1, 2, 3, 4], bf16), X4, P("x"))
    assert_same(snp.where(x > 2, x, 0.5), np.array([0.5, 0.5, 3, 4], bf16))
    assert (x + 1j).dtype == np.complex64
    assert snp.clip(sw.shard(np.array([1, 9], np.int8), X4, P()), x[0], x[3]).dtype == np.float32


def test_small_floats_with_nan_are_told_apart():
    bf16 = np.dtype(ml_dtypes.bfloat16)
    values, counts = snp.unique_counts(sw.shard(np.array([2, np.nan, 1, 2, np.nan, 1, 2, 1], bf16), X2, P("x")))
    assert_same(values, np.array([1, 2, np.nan, np.nan], bf16))
    assert counts.tolist() == [3, 3, 1, 1]


def test_eigenvalues_are_complex_and_a_clip_may_have_no_bounds():
    x = sw.shard(np.eye(2, dtype=np.float32), X2, P())
    assert [r.dtype for r in snp.linalg.eig(x)] == [np.complex64] * 2
    assert snp.linalg.eigvals(x).dtype == np.complex64
    assert_same(snp.clip(x), np.eye(2, dtype=np.float32))


def test_one_row_by_its_number_is_no_implicit_gather():
    host = np.arange(24.0).reshape(4, 6)
    with sw.strict():
        for spec in (P("x"), P(None, "x"), P(("x",))):
            x = sw.shard(host, X4, spec)
            assert_same(x[2], host[2])
            assert_same(x[:, 3], host[:, 3])
            assert_same(x[1:, -1], host[1:, -1])
            assert float(x[2, 3]) == host[2, 3]


class Level(enum.IntEnum):
    HIGH = 5


class Length(float):
    pass


@pytest.mark.parametrize("engine", ["numpy", "torch", "literal"])
@pytest.mark.parametrize(
    "number",
    [
        *(np.float64("nan"), np.float64("inf"), np.float64(1e200), np.complex128(complex("inf")), np.float64(2.5)),
        *(Level.HIGH, Length(2.5), Length("inf")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_numbers_of_other_types_are_numpys(number, dtype, engine):
    """Once those beyond a dtype were a KeyError in programs and beside partial values, and an IntEnum was an error."""
    host = np.arange(1, 9).reshape(4, 2).astype(dtype)
    x = sw.shard(host, sw.Mesh(x=4, engine=engine), P("x"))
    for function in (lambda x: x * number, lambda x: number - x, lambda x: np.where(x > 2, x, number)):
        for operand, expected in ((x, host), (snp.sum(x, axis=0, dtype=dtype), host.sum(0, dtype=dtype))):
            with np.errstate(all="ignore"):
                wanted = function(expected)
                for made in (function(operand), sw.sjit(function)(operand)):
                    assert made.dtype == wanted.dtype
                    np.testing.assert_allclose(made, wanted)
    with pytest.raises(TypeError):
        x @ np.float64(2)
