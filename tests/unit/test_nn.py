"""Neural-net operations and random numbers: against torch on whole tensors, under several placements."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import shardwright as sw
from shardwright import P, nn, random
from shardwright.errors import ArrayError, OperationError

F = torch.nn.functional

RNG = np.random.default_rng(0)
MESH = sw.Mesh(data=2, model=4)
X = RNG.standard_normal((6, 10))
SPECS = [P(), P("data"), P(None, "model"), P("data", "model"), P(("model", "data"))]


def t(x):
    return torch.from_numpy(np.asarray(x))


def check(ours, torchs):
    np.testing.assert_allclose(np.asarray(ours), torchs.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (nn.relu, F.relu),
        (nn.erf, torch.erf),
        (nn.gelu, F.gelu),
        (lambda x: nn.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (nn.silu, F.silu),
        (nn.sigmoid, torch.sigmoid),
        (nn.softmax, lambda x: F.softmax(x, -1)),
        (lambda x: nn.softmax(x, axis=0), lambda x: F.softmax(x, 0)),
        (nn.log_softmax, lambda x: F.log_softmax(x, -1)),
        (nn.logsumexp, lambda x: torch.logsumexp(x, -1)),
        (nn.layer_norm, lambda x: F.layer_norm(x, (10,))),
        (nn.rms_norm, lambda x: F.rms_norm(x, (10,), eps=1e-5)),
        (nn.batch_norm, lambda x: F.batch_norm(x, None, None, training=True)),
    ],
)
def test_activations_and_norms(ours, torchs, spec):
    check(ours(sw.shard(X, MESH, spec)), torchs(t(X)))


def test_erfc_to_the_last_bits():
    from functools import partial

    from shardwright.kernels import NUMPY, elementwise

    erfc = partial(elementwise.erfc, NUMPY)
    x = np.concatenate([np.linspace(0, 6, 4001), np.linspace(6, 26, 401), [0.46875, 4.0, 1e-300, 40.0, 1e300]])
    np.testing.assert_allclose(erfc(x), [math.erfc(v) for v in x], rtol=1e-13, atol=1e-310)
    assert np.isnan(erfc(np.array([np.nan]))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_erf_is_accurate_near_zero_and_far_from_it(dtype):
    host = np.concatenate([np.linspace(-6, 6, 999), 10.0 ** np.arange(-300, 1, 7), [np.inf, -np.inf, np.nan]]).astype(
        dtype
    )
    made = np.asarray(nn.erf(sw.shard(host, MESH, P("data"))))
    assert made.dtype == dtype
    exact = np.array([math.erf(v) for v in host.astype(np.float64).tolist()])
    least = float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(
        made.astype(np.float64), exact, rtol={8: 4e-16, 4: 1e-7, 2: 1e-3}[host.itemsize], atol=least
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 1000, 200_003])
def test_gelu_is_accurate_in_the_middle_and_in_the_tail(dtype, size):
    host = np.linspace(-13, 13, size).astype(dtype)
    host[:1] = -3
    exact = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in host.astype(np.float64).tolist()])
    made = np.asarray(nn.gelu(sw.shard(host, MESH, P("data")))).astype(np.float64)
    tiny = float(np.finfo(dtype).smallest_normal)
    rtol = {8: 1e-12, 4: 2e-5, 2: 2e-3}[host.itemsize]
    middle = (host > -3.01) & (host < -2)  # where large arrays of float32 lose digits: two parts cancel
    np.testing.assert_allclose(made[~middle], exact[~middle], rtol=rtol, atol=tiny)
    np.testing.assert_allclose(made[middle], exact[middle], rtol=max(rtol, 4e-5))
    assert np.abs(made - exact).max() < {8: 1e-14, 4: 1e-6, 2: 1e-2}[host.itemsize]
    most = np.finfo(dtype).max
    odd = np.asarray(nn.gelu(sw.shard(np.array([np.inf, -np.inf, np.nan, 0.0, most, -most], dtype), MESH, P())))
    assert odd[:2].tolist() == [np.inf, 0]
    assert np.isnan(odd[2])
    assert odd[3:].tolist() == [0, most, 0]


@pytest.mark.parametrize("spread", [0.5, 1.0, 1.3, 8.0])
def test_gelu_of_large_arrays_is_the_kernel_whatever_part_lies_in_the_tail(spread):
    from shardwright.kernels import NUMPY, elementwise

    host = np.random.default_rng(0).standard_normal((300, 701), np.float32) * np.float32(spread)
    edges = np.nextafter(np.float32([-3, -3, 3, 3]), np.float32([-5, 0, 0, 5]))
    odd = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, -1e-39, 3.4e38, -3.4e38, -3, 3, *edges])
    host[7, : len(odd)] = odd
    with np.errstate(all="raise", under="ignore"):
        made = np.asarray(nn.gelu(sw.shard(host, MESH, P("data"))))
        turned = np.asarray(nn.gelu(sw.shard(host.T, MESH, P("data"))))
        exact = elementwise.gelu(NUMPY, host)
    np.testing.assert_allclose(made, exact, rtol=4e-5, atol=3e-45)
    np.testing.assert_allclose(made, exact, rtol=3e-6, atol=3e-7)
    tail = np.abs(host) > 3
    np.testing.assert_allclose(made[tail], exact[tail], rtol=1e-6, atol=3e-45)
    np.testing.assert_array_equal(turned, made.T)  # whatever block an element is in


def test_large_and_infinite_inputs_stay_finite():
    x = sw.shard(np.array([[-1e4, 1e4, 0.0, -np.inf]]), MESH, P(None, "model"))
    assert np.asarray(nn.sigmoid(x)).tolist() == [[0, 1, 0.5, 0]]
    assert np.asarray(nn.softmax(x)).tolist() == [[0, 1, 0, 0]]
    np.testing.assert_allclose(np.asarray(nn.logsumexp(x)), [1e4])


@pytest.mark.parametrize("spec", SPECS)
def test_norms_with_weights(spec):
    w, b = RNG.standard_normal(10), RNG.standard_normal(10)
    x = sw.shard(X, MESH, spec)
    check(nn.layer_norm(x, w, b), F.layer_norm(t(X), (10,), t(w), t(b)))
    check(nn.rms_norm(x, w), F.rms_norm(t(X), (10,), t(w), eps=1e-5))
    mean, var = RNG.standard_normal(10), RNG.uniform(1, 2, 10)
    check(nn.batch_norm(x, w, b, mean, var), F.batch_norm(t(X), t(mean), t(var), t(w), t(b)))
    with pytest.raises(OperationError, match="give both running_mean and running_var"):
        nn.batch_norm(x, running_mean=mean)
    images = RNG.standard_normal((2, 5, 6, 12))
    y = nn.group_norm(sw.shard(images, MESH, P("data", None, None, "model")), 4)
    check(y, F.group_norm(t(images).movedim(-1, 1), 4).movedim(1, -1))
    with pytest.raises(OperationError, match="12 channels are not divisible into 5 groups"):
        nn.group_norm(sw.shard(images, MESH, P()), 5)


def test_linear_embedding_one_hot_and_losses():
    w, b = RNG.standard_normal((10, 7)), RNG.standard_normal(7)
    x = sw.shard(X, MESH, P("data", "model"))
    check(nn.linear(x, sw.shard(w, MESH, P("model")), b), F.linear(t(X), t(w.T), t(b)))
    table, rows = RNG.standard_normal((9, 5)), RNG.integers(0, 9, (4, 3))
    for spec in (P("model"), P(None, "data"), P()):
        found = nn.embedding(sw.shard(table, MESH, spec), sw.shard(rows, MESH, P("data")))
        check(found, F.embedding(t(rows), t(table)))
    large = sw.shard(RNG.standard_normal((9000, 50)), MESH, P("model"))
    assert nn.embedding(large, rows).sharding.partial == ("model",), "the table stays, the rows found are summed"
    with pytest.raises(IndexError, match=r"Index 9 is out of bounds for dim 0 of size 9"):
        nn.embedding(sw.shard(table, MESH, P()), np.array([9]))
    labels = RNG.integers(0, 10, 6)
    check(nn.one_hot(sw.shard(labels, MESH, P("data")), 10), F.one_hot(t(labels), 10).to(torch.float32))
    for spec in SPECS:
        check(nn.cross_entropy(sw.shard(X, MESH, spec), labels), F.cross_entropy(t(X), t(labels)))
    check(nn.cross_entropy(sw.shard(X.T.copy(), MESH, P()), labels, axis=0), F.cross_entropy(t(X), t(labels)))


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
@pytest.mark.parametrize("kind", [bool, np.float32])
def test_attention_with_one_mask_for_all_heads_whatever_dims_of_size_1_it_has(lead, kind):
    q, k, v = (np.random.default_rng(at).normal(size=(2, 4, 6, 8)).astype(np.float32) for at in range(3))
    seen = np.tri(6, dtype=bool)
    mask = seen if kind is bool else np.where(seen, 0, -1e9).astype(kind)
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(8), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    ours = nn.scaled_dot_product_attention(*(sw.shard(x, MESH, P()) for x in (q, k, v)), mask.reshape(*lead, 6, 6))
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P(None, "model"), P("data", None, "model"), P(None, None, None, "model")]
)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(spec, causal):
    q, k, v = RNG.standard_normal((2, 8, 6, 4)), RNG.standard_normal((2, 4, 6, 4)), RNG.standard_normal((2, 4, 6, 4))
    grouped = (t(k).repeat_interleave(2, 1), t(v).repeat_interleave(2, 1))
    ours = nn.scaled_dot_product_attention(*(sw.shard(x, MESH, spec) for x in (q, k, v)), causal=causal)
    check(ours, F.scaled_dot_product_attention(t(q), *grouped, is_causal=causal))
    mask = RNG.random((2, 1, 6, 6)) > 0.3
    mask[..., 0] = True
    ours = nn.scaled_dot_product_attention(*(sw.shard(x, MESH, spec) for x in (q, k, v)), mask=mask)
    check(ours, F.scaled_dot_product_attention(t(q), *grouped, attn_mask=t(mask)))
    bias = RNG.standard_normal((8, 6, 6))
    ours = nn.scaled_dot_product_attention(*(sw.shard(x, MESH, spec) for x in (q, k, v)), mask=bias)
    check(ours, F.scaled_dot_product_attention(t(q), *grouped, attn_mask=t(bias)))
    with pytest.raises(OperationError, match="8 query heads are not a multiple of 3 key heads"):
        nn.scaled_dot_product_attention(
            sw.shard(q, MESH, P()), sw.shard(k[:, :3], MESH, P()), sw.shard(v[:, :3], MESH, P())
        )


IMAGES = RNG.standard_normal((2, 9, 7, 4))


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P(None, "model"), P(None, "data", "model"), P(None, None, None, "model")]
)
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2, "padding": 2}, {"groups": 2, "stride": (2, 1)}]
)
def test_convolutions(spec, options):
    w = RNG.standard_normal((3, 3, 4 // options.get("groups", 1), 6))
    ours = nn.conv2d(sw.shard(IMAGES, MESH, spec), w, np.ones(6), **options)
    check(
        ours,
        F.conv2d(
            t(IMAGES).movedim(-1, 1), t(w).permute(3, 2, 0, 1), torch.ones(6, dtype=torch.float64), **options
        ).movedim(1, -1),
    )


def test_a_split_spatial_dim_exchanges_halos_and_stays_split():
    tall = sw.shard(RNG.standard_normal((2, 64, 64, 4)), MESH, P(None, "model"))
    w = RNG.standard_normal((3, 3, 4, 4))
    with sw.strict():
        y = nn.conv2d(tall, w, padding="same")
    assert y.sharding.spec == P(None, "model", None, None)
    fetch, convolution = sw.explain(lambda x: nn.conv2d(x, w, padding="same"), tall).rows
    assert (fetch.operation, convolution.operation) == ("fetch", "convolution")
    assert fetch.collective == "fetch model"
    assert fetch.bytes == fetch.lower_bound == 2 * 64 * 4 * 2 * 8, (
        "two rows of 64 pixels, 4 channels, 2 images, 8 bytes"
    )
    assert [cost.name for cost in convolution.chosen.priced.inner] == ["fetch"]


@pytest.mark.parametrize("spec", [P(), P(None, "model"), P("data", "model")])
def test_pooling_and_other_ranks(spec):
    x = sw.shard(IMAGES, MESH, spec)
    channels = t(IMAGES).movedim(-1, 1)
    check(nn.max_pool(x, 2), F.max_pool2d(channels, 2).movedim(1, -1))
    check(nn.max_pool(x, 3, stride=2, padding=1), F.max_pool2d(channels, 3, 2, 1).movedim(1, -1))
    check(nn.avg_pool(x, (3, 2), stride=1), F.avg_pool2d(channels, (3, 2), 1).movedim(1, -1))
    line, w1 = IMAGES[:, :, 0], RNG.standard_normal((3, 4, 5))
    check(
        nn.conv1d(sw.shard(line, MESH, spec), w1),
        F.conv1d(t(line).movedim(-1, 1), t(w1).permute(2, 1, 0)).movedim(1, -1),
    )
    cube, w3 = RNG.standard_normal((2, 5, 5, 5, 2)), RNG.standard_normal((2, 2, 2, 2, 3))
    check(
        nn.conv3d(sw.shard(cube, MESH, spec), w3),
        F.conv3d(t(cube).movedim(-1, 1), t(w3).permute(4, 3, 0, 1, 2)).movedim(1, -1),
    )


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda x: nn.conv2d(x, np.ones((3, 3, 5, 6))),
            r"4 channels in 1 groups need weights for 4 in; got 5 in and 6 out",
        ),
        (lambda x: nn.conv2d(x, np.ones((3, 4, 6))), r"conv2d takes `batch, 2 spatial, channels`"),
        (
            lambda x: nn.conv2d(x, np.ones((10, 3, 4, 6))),
            r"a window of 10 rows \(dilation 1\) does not fit dim 1 of size 9",
        ),
        (lambda x: nn.conv2d(x, np.ones((3, 3, 4, 6)), stride=0), r"stride=0: give a positive integer, or 2 of them"),
        (lambda x: nn.conv2d(x, np.ones((3, 3, 4, 6)), padding="full"), r"padding='full'; give 'valid', 'same'"),
        (lambda x: nn.gelu(x, approximate="erf"), r"approximate is 'none' or 'tanh'"),
        (lambda x: nn.dropout(x, 1.0, random.Key(0)), r"rate=1.0 is out of range"),
    ],
)
def test_bad_input(run, text):
    with pytest.raises(OperationError, match=text):
        run(sw.shard(IMAGES, MESH, P()))


def test_every_function_is_tested_here():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_nn*.py"))
    assert [name for name in nn.__all__ if f"nn.{name}" not in text and name != "einsum"] == []


# -- random ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: random.uniform(random.Key(3), (7, 5), **o),
        lambda **o: random.normal(random.Key(3), (7, 5), **o),
        lambda **o: random.randint(random.Key(3), (7, 5), -2, 9, **o),
        lambda **o: random.bernoulli(random.Key(3), 0.3, (7, 5), **o),
        lambda **o: random.bits(random.Key(3), (7, 5), **o),
    ],
)
def test_the_same_key_gives_the_same_numbers_on_every_mesh(make):
    meshes = [sw.Mesh(x=1), MESH, sw.Mesh(a=3, b=2, c=2)]
    want = np.asarray(make(sharding=sw.Sharding(meshes[0])))
    for mesh in meshes:
        with mesh:
            for spec in (P(), P(mesh.axis_names[0]), P(None, mesh.axis_names), None):
                np.testing.assert_array_equal(np.asarray(make(sharding=spec)), want)


def test_random_numbers_are_random():
    with MESH:
        u = np.asarray(random.uniform(random.Key(1), 100_000))
        n = np.asarray(random.normal(random.Key(2), 100_000))
        k = np.asarray(random.randint(random.Key(3), 100_000, 0, 10))
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.var() - 1 / 12) < 0.001
    assert abs(n.mean()) < 0.01
    assert abs(n.std() - 1) < 0.01
    assert abs(np.mean(n**4) - 3) < 0.1
    assert set(k) == set(range(10))
    assert len(np.unique(u)) == len(u)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_philox_is_philox():
    """The first words of Philox 4×32-10 for counter 0 and key 0, as its authors publish them."""
    with sw.Mesh(x=1):
        word = int(np.asarray(random.bits(random.Key(0), 1))[0])
    assert word & 0xFFFFFFFF == 0x6627E8D5
    assert word >> 32 == 0xE169C58D


def test_keys():
    key = random.Key(5)
    assert len({key, *key.split(100)}) == 101
    assert len({*key.split(100), *(key.fold(n) for n in range(100))}) == 200
    assert repr(random.Key(5)) == "Key(5)"
    with MESH:
        with pytest.raises(OperationError, match="Random numbers come from a Key; got 0"):
            random.uniform(0, 3)
        with pytest.raises(OperationError, match=r"the range from 3 to 3 \(excluded\) is empty"):
            random.randint(key, 3, 3, 3)
        assert random.randn(3, 4, key=key).shape == (3, 4)


def test_dropout_drops_the_same_on_every_placement():
    key = random.Key(0)
    want = None
    for spec in SPECS:
        y = np.asarray(nn.dropout(sw.shard(X, MESH, spec), 0.5, key))
        want = y if want is None else want
        np.testing.assert_array_equal(y, want)
    assert set(np.round(want[want != 0] / X[want != 0], 9)) == {2.0}
    assert nn.dropout(sw.shard(X, MESH, P()), 0.5, key, training=False).shape == X.shape


def test_uniform_numbers_stay_below_one_in_every_dtype():
    with MESH:
        for dtype in (np.float16, np.float32, np.float64):
            u = np.asarray(random.uniform(random.Key(1), 100_000, dtype=dtype))
            assert u.dtype == dtype
            assert u.max() < 1
        v = np.asarray(random.uniform(random.Key(1), 100_000, low=-3, high=5, dtype=np.float16))
        assert -3 <= v.min() < v.max() < 5


@pytest.mark.parametrize("more", [{"halo": {0: (1, 1)}}, {"partial": "model"}])
def test_random_numbers_under_halos_and_partial_axes(more):
    want = np.asarray(random.uniform(random.Key(0), (8,), sharding=sw.Sharding(MESH, P("data"))))
    x = random.uniform(random.Key(0), (8,), sharding=sw.Sharding(MESH, P("data"), **more))
    np.testing.assert_array_equal(np.asarray(x), want)


def test_labels_are_checked():
    logits = sw.shard(np.zeros((4, 3)), MESH, P("data"))
    with pytest.raises(OperationError, match="5 is not one of the 3 classes from 0 to 2"):
        nn.cross_entropy(logits, np.array([0, 5, 1, 1]))
    with pytest.raises(OperationError, match=r"need labels of their shape without dim 1; got \(4, 1\)"):
        nn.cross_entropy(logits, np.zeros((4, 1), int))
    with pytest.raises(OperationError, match="-1 is not one of the 7 classes"):
        nn.one_hot(sw.replicate(np.array([-1]), MESH), 7)


def test_small_floats_are_averaged_in_float32():
    x = sw.shard(np.full((4096, 2), 100, np.float16), MESH, P("model"))
    y = sw.numpy.mean(x)
    assert y.dtype == np.float16
    assert float(y) == 100
    assert np.isfinite(np.asarray(nn.layer_norm(x, axis=0))).all()
    b = sw.shard(np.array([1, np.nan, 3, 2]).astype(ml_dtypes.bfloat16), MESH, P("model"))
    with np.errstate(invalid="ignore"):  # comparing NaN
        assert int(sw.numpy.argmax(b)) == 1
    assert sw.numpy.mean(b).dtype == np.dtype(ml_dtypes.bfloat16)


def test_small_floats_stay_small():
    small = np.dtype(ml_dtypes.bfloat16)
    x = sw.shard(X.astype(small), MESH, P("data", "model"))
    w = sw.shard(RNG.standard_normal((10, 4)).astype(small), MESH, P("model"))
    for y in (
        x * 2.0,
        1 + x,
        x @ w,
        nn.linear(x, w),
        nn.layer_norm(x),
        nn.rms_norm(x),
        nn.softmax(x),
        nn.silu(x),
        nn.relu(x),
        nn.dropout(x, 0.5, random.Key(0)),
        nn.gelu(x, approximate="tanh"),
        nn.gelu(x),
    ):
        assert y.dtype == small
    np.testing.assert_allclose(
        np.asarray(x @ w, np.float32), np.asarray(x, np.float32) @ np.asarray(w, np.float32), rtol=0.05, atol=0.05
    )
    assert sw.numpy.isdtype(small, "real floating")
    assert not sw.numpy.isdtype(small, "integral")
    assert sw.numpy.finfo(small).bits == 16


def test_an_ordinary_block_warns_of_nothing():
    """float32, partial values divided and normalised: warnings are errors here."""
    x = sw.shard(X.astype(np.float32), MESH, P("data"))
    w = sw.shard(np.ones((10, 10), np.float32), MESH, P("model"))
    y = x + sw.shard(X.astype(np.float32), MESH, P("data", "model")) @ w
    want = F.layer_norm(t(np.array(y)), (10,)).numpy()
    np.testing.assert_allclose(np.asarray(nn.layer_norm(y)), want, rtol=1e-4, atol=1e-5)


def test_keys_are_asked_for():
    with MESH, pytest.raises(OperationError, match="Write Key"):
        random.normal(0, (4, 4))
    with pytest.raises(sw.ShardwrightError, match=r"sharding= takes a P or a Sharding; got Mesh"):
        random.normal(random.Key(0), (4, 4), sharding=MESH)


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
def test_norms_of_float16_square_in_float32(engine):
    """300² is infinite in float16."""
    host = np.array([[-200, 300, 300, 300], [1, 2, 3, -60000]], np.float16)
    x = sw.shard(host, sw.Mesh(x=2, y=2, engine=engine), P("x", "y"))
    wide = t(host.astype(np.float32))
    for ours, theirs in (
        (nn.layer_norm(x), F.layer_norm(wide, (4,))),
        (nn.rms_norm(x), F.rms_norm(wide, (4,), eps=1e-5)),
        (nn.group_norm(x, 2), F.group_norm(wide, 2)),
        (nn.batch_norm(x), F.batch_norm(wide, None, None, training=True)),
    ):
        assert ours.dtype == np.float16
        np.testing.assert_allclose(np.asarray(ours, np.float32), theirs.numpy(), atol=2e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nn.one_hot(5, x),
        lambda x: nn.one_hot(np.array([1]), 3),
        lambda x: nn.one_hot(x.astype(np.int64), -2),
        lambda x: nn.cross_entropy(3, x),
        lambda x: nn.max_pool(np.ones((2, 4, 1)), 2),
        lambda x: nn.dropout(np.ones(4), 0.5, random.Key(0)),
        lambda x: nn.layer_norm([1.0]),
        lambda x: nn.softmax(None),
        lambda x: nn.group_norm("x", 2),
        lambda x: nn.linear(x, None),
        lambda x: nn.scatter_add(np.ones(4), 1, 2),
        lambda x: nn.conv1d(3, x),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused_by_name(call):
    with pytest.raises((ArrayError, OperationError), match=r"^(\w+)[: ]"):
        call(sw.shard(np.ones((2, 4)), MESH, P("data")))
