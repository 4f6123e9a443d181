"""Scatters, selections and counts: against torch and JAX on whole tensors, and what they communicate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.errors import OperationError, TraceError

RNG = np.random.default_rng(0)
MESH = sw.Mesh(data=2, model=3)
X = RNG.standard_normal((7, 5)).astype(np.float32)
ROWS = RNG.integers(0, 7, 11)
UPDATES = RNG.standard_normal((11, 5)).astype(np.float32)


def t(x):
    return torch.from_numpy(np.asarray(x))


def steps(function, *args):
    """(step, bytes) of what a function communicates."""
    rows = sw.explain(function, *args).rows
    return [(row.collective, row.bytes) for row in rows if row.collective]


# -- scatters -------------------------------------------------------------------------------------------------------------

TORCH = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
JAX = {"add": "add", "mul": "multiply", "max": "max", "min": "min"}
PLACES = [
    (P(), P(), P()),
    (P("model"), P("data"), P("data")),
    (P(("data", "model")), P(), P()),
    (P(None, "model"), P("data"), P("data", "model")),
    (P("data", "model"), P(), P("model")),
]


@pytest.mark.parametrize("op", TORCH)
@pytest.mark.parametrize("specs", PLACES)
def test_rows_are_combined_as_in_torch_and_jax(op, specs):
    x, rows, updates = (sw.shard(host, MESH, spec) for host, spec in zip((X, ROWS, UPDATES), specs, strict=True))
    result = np.asarray(nn.scatter_reduce(x, rows, updates, op))
    wide = t(ROWS)[:, None].expand(11, 5)
    np.testing.assert_allclose(result, torch.scatter_reduce(t(X), 0, wide, t(UPDATES), TORCH[op]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result, getattr(jnp.asarray(X).at[ROWS], JAX[op])(UPDATES), rtol=1e-5, atol=1e-6)
    if op == "add":
        np.testing.assert_array_equal(nn.scatter_add(x, rows, updates), result)


def test_the_gradient_of_an_embedding_is_a_pending_sum_over_the_batch():
    """Ids and gradients split by batch: nothing is communicated before the sum is used, and no one-hot matrix is made."""
    ids, grads = RNG.integers(0, 7, (6, 4)), RNG.standard_normal((6, 4, 5))
    table = torch.zeros(7, 5, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.embedding(t(ids), table).backward(t(grads))
    zeros = sw.shard(np.zeros((7, 5)), MESH, P(None, "model"))
    made = nn.scatter_add(zeros, sw.shard(ids, MESH, P("data")), sw.shard(grads, MESH, P("data", None, "model")))
    assert made.sharding == sw.Sharding(MESH, P(None, "model"), partial="data")
    np.testing.assert_allclose(np.asarray(made), table.grad, rtol=1e-12)


def test_rows_that_are_split_stay_in_place():
    x, rows, updates = sw.shard(X, MESH, P("model")), sw.replicate(ROWS, MESH), sw.replicate(UPDATES, MESH)
    with sw.strict():
        assert nn.scatter_add(x, rows, updates).sharding == x.sharding
    assert steps(nn.scatter_add, x, rows, updates) == []


def test_a_pending_sum_takes_more_updates_without_communication():
    rows, updates = sw.shard(ROWS, MESH, P("data")), sw.shard(UPDATES, MESH, P("data"))
    once = nn.scatter_add(sw.replicate(np.zeros_like(X), MESH), rows, updates)
    twice = nn.scatter_add(once, rows, updates)
    assert twice.sharding.partial == ("data",)
    expected = np.zeros_like(X)
    np.add.at(expected, ROWS, 2 * UPDATES)
    np.testing.assert_allclose(np.asarray(twice), expected, rtol=1e-5, atol=1e-6)


def test_elements_along_a_dim_as_in_torch():
    """Torch lets the indices be shorter than the tensor."""
    index, source = RNG.integers(0, 5, (6, 8)), RNG.standard_normal((6, 8)).astype(np.float32)
    for spec in (P(), P("model"), P(None, "model"), P("data", "model")):
        given = (sw.shard(host, MESH, spec) for host in (X, index, source))
        np.testing.assert_allclose(
            np.asarray(nn.scatter_along_axis(*given, axis=1)),
            torch.scatter_add(t(X), 1, t(index), t(source)),
            rtol=1e-5,
            atol=1e-6,
        )


def test_several_dims_as_index_put():
    index = RNG.integers(0, 7, 9), RNG.integers(0, 5, 9)
    values = RNG.standard_normal(9).astype(np.float32)
    expected = t(X).index_put(tuple(map(t, index)), t(values), accumulate=True)
    x = sw.shard(X, MESH, P("model", "data"))
    np.testing.assert_allclose(np.asarray(nn.scatter_reduce(x, index, values, axis=(0, 1))), expected, rtol=1e-5)


def test_a_scatter_in_a_program():
    @sw.sjit
    def step(x, rows, updates):
        return nn.scatter_add(x, rows, updates) * 2

    x, rows, updates = (
        sw.shard(X, MESH, P("model")),
        sw.shard(ROWS, MESH, P("data")),
        sw.shard(UPDATES, MESH, P("data")),
    )
    expected = np.array(X)
    np.add.at(expected, ROWS, UPDATES)
    np.testing.assert_allclose(np.asarray(step(x, rows, updates)), 2 * expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError, match="Index 7 is out of bounds for dim 0 of size 7"):
        step(x, rows * 0 + 7, updates)


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (lambda x: nn.scatter_add(x, [7], X[:1]), IndexError, r"Index 7 is out of bounds for dim 0 of size 7"),
        (lambda x: nn.scatter_add(x, [0.5], X[:1]), OperationError, r"indices must be integers; got float64"),
        (lambda x: nn.scatter_add(x, [0], X), OperationError, r"Give updates of shape \(1, 5\)"),
        (lambda x: nn.scatter_add(x, [0], 1j), OperationError, r"updates of complex128 would lose .* in float32"),
        (lambda x: nn.scatter_reduce(x, [0], 1.0, "set"), OperationError, r"op='set'; give one of 'add', 'mul'"),
        (
            lambda x: nn.scatter_reduce(x, ([0],), 1.0, axis=(0, 1)),
            OperationError,
            r"2 dims need an index array each; got 1",
        ),
        (
            lambda x: nn.scatter_along_axis(x, [0], 1.0),
            OperationError,
            r"indices of shape \(1,\) for a tensor of shape",
        ),
        (lambda x: snp.put_along_axis(x, np.zeros(3, int), 0, 0), OperationError, r"Give 2 dims"),
        (lambda x: snp.top_k(x, 6), OperationError, r"k=6 of a dim of size 5. Give 0 to 5"),
        (lambda x: snp.bincount(x), OperationError, r"elements must be integers; got float32"),
        (lambda x: snp.bincount(sw.shard(ROWS, MESH, P()), length=3), OperationError, r"is not one of the 3 integers"),
        (lambda x: snp.histogram(x, "auto"), OperationError, r"bins of type str; give a number of bins"),
        (lambda x: snp.histogram(x, 3, (2, 1)), OperationError, r"max must be larger than min"),
    ],
)
def test_what_is_refused(run, error, text):
    with pytest.raises(error, match=text):
        run(sw.shard(X, MESH, P()))


# -- selections -----------------------------------------------------------------------------------------------------------


def test_top_k_is_jaxs_and_torchs():
    host = RNG.standard_normal((4, 50)).astype(np.float32)
    values, indices = snp.top_k(sw.shard(host, MESH, P("data", "model")), 5)
    for theirs in (jax.lax.top_k(host, 5), torch.topk(t(host), 5)):
        np.testing.assert_array_equal(np.asarray(values), theirs[0])
        np.testing.assert_array_equal(np.asarray(indices), theirs[1])
    ties = np.array([1, 3, 3, 0, 3, 1, 0, 3])
    indices = snp.top_k(sw.shard(ties, MESH, P("model")), 6).indices
    assert np.asarray(indices).tolist() == jax.lax.top_k(ties, 6)[1].tolist() == [1, 2, 4, 7, 0, 5]


def test_top_k_sends_candidates_alone():
    """Of 32,000 columns over 4 devices each sends its 8 largest: 3 · 8 values of 4 B and places of 8 B for each of 60 rows."""
    mesh = sw.Mesh(x=4)
    logits = sw.shard(RNG.standard_normal((60, 32_000)).astype(np.float32), mesh, P(None, "x"))
    assert steps(lambda x: snp.top_k(x, 8), logits) == [("all_gather x", 60 * 24 * 4), ("all_gather x", 60 * 24 * 8)]
    measured = sw.measure(lambda x: snp.top_k(x, 8), logits)
    assert [row.counted for row in measured.rows if row.collective] == [60 * 24 * 4, 60 * 24 * 8]


def test_short_shards_pass_on_what_they_have():
    """7 columns over 3 devices are 3, 3 and 1: of k = 2 the last passes on one."""
    mesh = sw.Mesh(x=3, engine="literal")
    host = np.array([5.0, -np.inf, 2, -np.inf, 7, -np.inf, -np.inf])
    values, indices = snp.top_k(sw.shard(host, mesh, P("x")), 2)
    assert (np.asarray(values).tolist(), np.asarray(indices).tolist()) == ([7, 5], [4, 0])
    assert np.asarray(snp.top_k(sw.shard(host, mesh, P("x")), 7).indices).tolist() == [4, 0, 2, 1, 3, 5, 6]


# -- counts ---------------------------------------------------------------------------------------------------------------


def test_counts_are_pending_sums():
    numbers = sw.shard(ROWS, MESH, P("model"))
    counts = snp.bincount(numbers, length=7)
    assert counts.sharding == sw.Sharding(MESH, P(None), partial="model")
    np.testing.assert_array_equal(np.asarray(counts), np.bincount(ROWS, minlength=7))
    expected = torch.histc(t(X), 6, -2, 2)
    np.testing.assert_array_equal(np.asarray(snp.histogram(sw.shard(X, MESH, P("model")), 6, (-2, 2))[0]), expected)


def test_counts_in_a_program_need_a_length():
    numbers = sw.shard(ROWS, MESH, P("model"))
    np.testing.assert_array_equal(
        np.asarray(sw.sjit(lambda x: snp.bincount(x, length=9))(numbers)), np.bincount(ROWS, minlength=9)
    )
    with pytest.raises(TraceError, match=r"bincount: the shape of the result depends on data.*Give length=n"):
        sw.sjit(snp.bincount)(numbers)
    with pytest.raises(TraceError, match=r"histogram: .*Give range=\(low, high\)"):
        sw.sjit(snp.histogram)(numbers)
