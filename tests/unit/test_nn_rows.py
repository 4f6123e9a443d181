"""Scatters, products of groups, selections, counts, attention: against torch and JAX, and what they communicate."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.engines import attention as numpy_attention
from shardwright.errors import OperationError, TraceError
from shardwright.kernels import attention

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


# -- groups ---------------------------------------------------------------------------------------------------------------

TOKENS, EXPERTS = RNG.standard_normal((10, 40)).astype(np.float32), RNG.standard_normal((4, 40, 5)).astype(np.float32)
SIZES = np.array([3, 0, 5, 1])


@pytest.mark.parametrize(
    ("tokens", "experts", "left"),
    [
        (P(), P(), ()),
        (P(), P(None, None, "model"), ()),
        (P("data"), P(), ()),
        (P(None, "model"), P(None, "model"), ("model",)),
        (P(), P("model"), ("model",)),
        (P("data"), P("model"), ("model",)),
        (P("data"), P("model", None, "data"), None),
        (P(("model", "data")), P(), ()),
    ],
)
def test_groups_of_rows_are_multiplied_as_in_jax_and_torch(tokens, experts, left):
    """Split groups and a split inner dim leave a sum; the last row is in no group."""
    x, w, sizes = sw.shard(TOKENS, MESH, tokens), sw.shard(EXPERTS, MESH, experts), sw.replicate(SIZES, MESH)
    result = nn.grouped_matmul(x, w, sizes)
    assert left is None or result.sharding.partial == left
    np.testing.assert_allclose(np.asarray(result), jax.lax.ragged_dot(TOKENS, EXPERTS, SIZES), rtol=1e-4, atol=1e-4)
    parts = [rows @ matrix for rows, matrix in zip(t(TOKENS).split([*SIZES, 1]), t(EXPERTS), strict=False)]
    np.testing.assert_allclose(np.asarray(result)[:9], torch.cat(parts), rtol=1e-4, atol=1e-4)
    assert not np.asarray(result)[9].any()


def test_devices_multiply_the_rows_of_their_groups():
    """8 experts over 4 devices: a quarter of the work each; only the sum of the results is communicated."""
    mesh = sw.Mesh(x=4)
    x, w = sw.replicate(np.ones((16, 64), np.float32), mesh), sw.shard(np.ones((8, 64, 64), np.float32), mesh, P("x"))
    rows = sw.explain(lambda x, w, sizes: nn.grouped_matmul(x, w, sizes), x, w, sw.replicate(np.full(8, 2), mesh)).rows
    assert [row.work for row in rows if row.operation == "grouped_matmul" and not row.collective] == [
        2 * 16 * 64 * 64 / 4
    ]
    assert [(row.collective, row.bytes) for row in rows if row.collective] == [
        ("all_reduce x", 2 * 16 * 64 * 4 * 3 // 4)
    ]


def test_group_sizes_are_checked():
    x, w = sw.shard(TOKENS, MESH, P()), sw.shard(EXPERTS, MESH, P("model"))
    for sizes in ([3, 0, 5, 3], [3, -1, 5, 1], [20, -15, 1, 1]):
        with pytest.raises(OperationError, match="group_sizes must be 0 or more and sum up to 10 at most"):
            nn.grouped_matmul(x, w, np.array(sizes))
    with pytest.raises(OperationError, match=r"takes x \(tokens, k\), w \(groups, k, n\) and group_sizes \(groups,\)"):
        nn.grouped_matmul(x, w, np.array([1, 2]))


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


# -- attention ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "specs"),
    [
        ("literal", (P("data"), P("data"))),
        ("literal", (P(), P(None, None, ("model", "data")))),
        ("torch", (P(None, None, "model"), P())),
        ("jax", (P(None, None, "model"), P("data"))),
    ],
)
def test_attention_in_several_blocks_is_torchs(monkeypatch, engine, specs):
    """Blocks of 20 scores and 3 rows at least, so that there are remainders; queries see up to their own key from the end."""
    monkeypatch.setattr(attention, "SCORES", 20)
    monkeypatch.setattr(attention, "LEAST", 3)
    mesh = sw.Mesh(data=2, model=3, engine=engine)
    q, k, v = (RNG.standard_normal((2, heads, n, 4)) for heads, n in ((6, 11), (2, 17), (2, 17)))
    bias = RNG.standard_normal((6, 11, 17))
    placed = [sw.shard(x, mesh, spec) for x, spec in zip((q, k, v), (specs[0], specs[1], specs[1]), strict=True)]
    result = np.asarray(nn.scaled_dot_product_attention(*placed, bias, causal=True, scale=0.3))
    seen = np.where(np.tri(11, 17, 6, dtype=bool), bias, -np.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(
        t(q), t(k), t(v), attn_mask=t(seen), scale=0.3, enable_gqa=True
    )
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


SEEN = {
    "no mask": (None, False),
    "causal": (None, True),
    "causal, in a mask": (np.tri(23, 29, 6, dtype=bool), False),
    "a window": (np.tri(23, 29, 6, dtype=bool) & ~np.tri(23, 29, 1, dtype=bool), False),
    "a window, causal as well": (~np.tri(23, 29, 1, dtype=bool), True),
    "no key for a block of queries": (np.repeat(np.arange(23) > 8, 29).reshape(23, 29), False),
    "padding of each sequence": (np.arange(29) < np.array([29, 11]).reshape(2, 1, 1, 1), True),
    "a mask for each head": (np.random.default_rng(1).random((6, 23, 29)) > 0.6, True),
    "a mask for each head of each sequence": (np.random.default_rng(2).random((2, 6, 23, 29)) > 0.6, False),
    "a mask for all queries of a head": (np.random.default_rng(3).random((6, 1, 29)) > 0.6, False),
    "a bias": (np.random.default_rng(4).standard_normal((6, 23, 29)), True),
    "a bias that hides": (np.where(np.tri(23, 29, -3, dtype=bool), 0, -np.inf), False),
    "a bias that nearly hides": (np.where(np.tri(23, 29, -3, dtype=bool), 0, np.finfo(np.float32).min), False),
}


@pytest.mark.parametrize("scale", [0.3, 30.0], ids=["modest", "large"])
@pytest.mark.parametrize(("dtype", "heads"), [(np.float64, 6), (np.float32, 2)])
@pytest.mark.parametrize("seen", SEEN)
def test_numpys_attention_in_several_blocks_is_the_kernels(monkeypatch, seen, dtype, heads, scale):
    """Blocks of 8 queries, or 4 of each head that shares keys; scores up to 8, or too large to take powers of."""
    monkeypatch.setattr(numpy_attention, "ROWS", 8)
    monkeypatch.setattr(numpy_attention, "LEAST", 4)
    monkeypatch.setattr(numpy_attention, "SCORES", 8 * 29)
    mask, causal = SEEN[seen]
    mask = mask if mask is None or mask.dtype == bool else mask.astype(dtype)
    q, k, v = (RNG.standard_normal((2, n, count, 4)).astype(dtype) for n, count in ((23, 6), (29, heads), (29, heads)))
    layers = [x.swapaxes(1, 2) for x in (q, k, v)]  # heads follow one another for each token, as in models
    results = []
    for engine in ("numpy", "literal"):
        mesh = sw.Mesh(x=1, engine=engine)
        placed = [sw.shard(x, mesh, P()) for x in layers]
        results.append(np.asarray(nn.scaled_dot_product_attention(*placed, mask, causal=causal, scale=scale)))
    tolerance = 1e-12 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(*results, rtol=tolerance, atol=tolerance)
    hidden = np.broadcast_to(True if mask is None or mask.dtype != bool else ~mask, (2, 6, 23, 29)).all(-1)
    if mask is not None and mask.dtype == bool and not causal:
        assert not results[0][hidden].any(), "queries that see no key give zeros"


def test_masked_keys_of_any_size_change_nothing():
    """Infinite scores of hidden keys, inside the block of keys that are seen."""
    q, k, v = (np.ones((1, 4, 3), np.float32) for _ in range(3))
    k[0, 1] = np.inf
    mask = np.array([True, False, True, True])
    for engine in ("numpy", "literal"):
        placed = [sw.shard(x, sw.Mesh(x=1, engine=engine), P()) for x in (q, k, v)]
        np.testing.assert_array_equal(np.asarray(nn.scaled_dot_product_attention(*placed, mask)), v)


def test_keys_that_are_split_exchange_two_numbers_for_each_query():
    """A cache of 40,001 keys over 3 devices: the largest scores and the sums of weights, 4 · 2 · 8 B each, and the result."""
    mesh = sw.Mesh(x=3)
    cache = [sw.shard(RNG.standard_normal((1, 4, 40_001, 8)), mesh, P(None, None, "x")) for _ in range(2)]
    query = sw.replicate(RNG.standard_normal((1, 4, 2, 8)), mesh)
    result = nn.scaled_dot_product_attention(query, *cache)
    assert result.sharding.partial == ("x",)
    sizes = [row.bytes for row in sw.measure(nn.scaled_dot_product_attention, query, *cache).rows if row.collective]
    chunk = -(-64 // 8 // 3)  # 8 numbers over 3 devices: chunks of 3, 3 and 2
    assert sizes[:2] == [(2 * 8 - chunk - 2) * 8] * 2
    expected = torch.nn.functional.scaled_dot_product_attention(*(t(np.array(x)) for x in (query, *cache)))
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-9, atol=1e-12)


def test_a_query_that_attends_to_nothing_gives_zeros_as_in_torch():
    mask = np.ones((5, 7), bool)
    mask[2] = False
    q, k = RNG.standard_normal((2, 5, 4)), RNG.standard_normal((2, 7, 4))
    expected = torch.nn.functional.scaled_dot_product_attention(t(q), t(k), t(k), attn_mask=t(mask))
    for engine in ("numpy", "literal", "torch"):
        mesh = sw.Mesh(x=2, engine=engine)
        placed = sw.shard(q, mesh, P("x")), sw.shard(k, mesh, P("x")), sw.shard(k, mesh, P("x"))
        result = np.asarray(nn.scaled_dot_product_attention(*placed, mask))
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        assert not result[:, 2].any()


@pytest.mark.parametrize("engine", ["numpy", "literal"])
def test_attention_needs_no_more_memory_than_explain_says(engine):
    """8 heads of 1024 queries and keys in float32: all scores would be 34 MB."""
    mesh = sw.Mesh(x=1, engine=engine)
    q = sw.replicate(RNG.standard_normal((8, 1024, 16)).astype(np.float32), mesh)
    explanation = sw.explain(lambda q: nn.scaled_dot_product_attention(q, q, q, causal=True), q)
    step = sw.sjit(lambda q: nn.scaled_dot_product_attention(q, q, q, causal=True))
    step(q)
    tracemalloc.start()
    step(q)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = explanation.peak_bytes - q.size * 4
    assert most < held < 2**24, f"{most:,} B were needed, explain says {held:,}"
    assert engine == "numpy" or most > 0.8 * held, "NumPy's own needs less than the kernel"


def test_bad_attention():
    x = sw.shard(RNG.standard_normal((2, 4, 3)), MESH, P())
    with pytest.raises(OperationError, match=r"a mask of shape \(5, 4\) does not broadcast .* = …, 2, 4, 4"):
        nn.scaled_dot_product_attention(x, x, x, np.ones((5, 4), bool))
    with pytest.raises(OperationError, match="takes real numbers; got complex128"):
        nn.scaled_dot_product_attention(x, x, x * 1j)
