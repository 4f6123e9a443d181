"""Functions played back: the same as running them, for other arrays of the same kinds, and only for these."""

import threading

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P, nn
from shardwright.eager import recording, taped
from shardwright.eager.calls import is_watched, watching
from shardwright.errors import ImplicitGatherError

MESH = sw.Mesh(data=2, model=4)
RNG = np.random.default_rng(0)


def arrays(*shape, spec=None, count=3):
    spec = spec or P("data", "model")
    hosts = [RNG.standard_normal(shape) for _ in range(count)]
    return hosts, [sw.shard(host, MESH, spec) for host in hosts]


CASES = {
    "softmax": (nn.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "layer_norm": (nn.layer_norm, lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    "sum": (snp.sum, np.sum),
    "sum of rows": (lambda x: snp.sum(x, axis=1), lambda x: x.sum(axis=1)),
    "a row": (lambda x: x[3], lambda x: x[3]),
    "a slice": (lambda x: x[1:6:2, ::-1], lambda x: x[1:6:2, ::-1]),
    "a new dim": (lambda x: x[None, ..., 2], lambda x: x[None, ..., 2]),
    "concat of one array twice": (lambda x: snp.concat([x, x]), lambda x: np.concatenate([x, x])),
    "argmax": (lambda x: snp.argmax(x, axis=1), lambda x: x.argmax(axis=1)),
    "roll": (lambda x: snp.roll(x, 3, axis=0), lambda x: np.roll(x, 3, axis=0)),
}


@pytest.mark.parametrize("name", CASES)
def test_later_calls_give_what_the_first_would(name):
    ours, numpys = CASES[name]
    for spec in (P("data", "model"), P(None, "model"), P(("model", "data"))):
        for shape in ((8, 8), (7, 9)):
            hosts, given = arrays(*shape, spec=spec)
            made = [ours(x) for x in given]
            for host, result in zip(hosts, made, strict=True):
                np.testing.assert_allclose(np.asarray(result), numpys(host), rtol=1e-12)
                shards = [shard.data for shard in result.shards]
                again = sw.from_shards(result.mesh, result.sharding, shards)
                np.testing.assert_allclose(np.asarray(again), numpys(host), rtol=1e-12)
            assert len({result.sharding for result in made}) == 1


def test_other_options_kinds_and_patterns_have_tapes_of_their_own():
    _, (x, y, z) = arrays(8, 8)
    assert_same(snp.concat([x, x]), np.concatenate([x, x]))
    assert_same(snp.concat([x, y]), np.concatenate([x, y]))
    assert_same(snp.concat([y, z]), np.concatenate([y, z]))
    for axis in (0, 1, None, (0, 1)):
        np.testing.assert_allclose(np.asarray(snp.sum(x, axis=axis)), np.asarray(x).sum(axis=axis))
    for eps in (0.0, -0.0, 1e-5, 1.0):
        centred = np.asarray(x) - np.asarray(x).mean(-1, keepdims=True)
        expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        np.testing.assert_allclose(np.asarray(nn.layer_norm(x, eps=eps)), expected)
    small = snp.astype(x, np.float32)
    assert nn.softmax(small).dtype == np.float32
    assert nn.softmax(x).dtype == np.float64


def test_arrays_of_one_integer_among_the_options_are_read_at_every_call():
    host, one = np.arange(12.0).reshape(12, 1), sw.shard(np.arange(12.0).reshape(12, 1), MESH, P("data"))
    for low, high, step in ((0, 3, 1), (2, 7, 1), (1, 11, 3), (11, 2, -2)):
        with MESH:
            a, b, c = (snp.asarray(n) for n in (low, high, step))
            assert_same(one[a:b:c], host[low:high:step])
            assert_same(one[a:b:c, 0], host[low:high:step, 0])
            assert_same(one[a], host[low])
            assert_same(snp.roll(one, a, axis=0), np.roll(host, low, axis=0))
            made = snp.zeros_like(one)
            made[a:b:c] = 1.0
            expected = np.zeros_like(host)
            expected[low:high:step] = 1.0
            assert_same(made, expected)


def test_errors_strictness_and_recording_are_as_without_tapes():
    _, (x, _, _) = arrays(64, 64)
    line = sw.shard(np.arange(64.0), MESH, P("data"))
    for _ in range(3):
        snp.sort(line)
        with sw.strict(), pytest.raises(ImplicitGatherError, match="sort gathers dim 0"):
            snp.sort(line)
        with recording() as seen:
            nn.softmax(x)
        assert len(seen) > 3
        with pytest.raises(IndexError, match="Index 99 is out of bounds"):
            x[99]
    labels = sw.shard(np.arange(64), MESH, P("data"))
    for _ in range(3):
        nn.cross_entropy(x, labels)
    with pytest.raises(sw.errors.OperationError, match="65 is not one of the 64 classes"):
        nn.cross_entropy(x, labels + 2)


def test_a_result_that_waits_is_that_of_its_own_arguments():
    _, (x, y, _) = arrays(8, 8)
    first, before = snp.sum(x, axis=1), np.asarray(x).sum(axis=1)
    second = snp.sum(x, axis=1)
    assert second.sharding.partial
    x += 100.0
    for total in (first, second):
        shards = np.sum([shard.data for shard in total.shards if shard.index == total.shards[0].index], axis=0)
        np.testing.assert_allclose(shards, before[total.shards[0].index])
    np.testing.assert_allclose(np.asarray(snp.sum(y, axis=1) + second), np.asarray(y).sum(axis=1) + before)


def test_what_makes_arrays_or_several_results_is_run_every_time():
    ran = []

    @taped
    def odd(x):
        ran.append(1)
        return x + sw.replicate(np.float64(len(ran)), MESH)

    _, (x, y, _) = arrays(4, 4)
    assert float((odd(x) - x)[0, 0]) == pytest.approx(1)
    assert float((odd(y) - y)[0, 0]) == pytest.approx(2), "the array from inside is not kept"


def test_a_deferred_sum_is_played_back_as_what_it_comes_to():
    """A product over a split inner dim waits to be reduced; arrays of its layout that are not deferred have another tape."""
    hosts, _ = arrays(8, 8, count=6)
    pairs = [
        (sw.shard(a, MESH, P(None, "model")), sw.shard(b, MESH, P("model")))
        for a, b in zip(hosts[:3], hosts[3:], strict=True)
    ]
    for _ in range(2):
        for (x, w), a, b in zip(pairs, hosts[:3], hosts[3:], strict=True):
            product = x @ w
            assert product.sharding.partial
            expected = np.exp(a @ b) / np.exp(a @ b).sum(-1, keepdims=True)
            np.testing.assert_allclose(np.asarray(nn.softmax(product)), expected, rtol=1e-9)
            np.testing.assert_allclose(np.asarray(snp.sum(product, axis=0)), (a @ b).sum(0), rtol=1e-9)
            summed = [shard.data for shard in snp.sum(product, axis=0).shards][:4]  # of the devices along "model"
            np.testing.assert_allclose(np.sum(summed, axis=0), (a @ b).sum(0))
            shards = [shard.data for shard in product.shards]  # its summands are made now
            np.testing.assert_allclose(np.asarray(nn.softmax(product)), expected, rtol=1e-9)
            made = sw.from_shards(product.sharding, shards)
            np.testing.assert_allclose(np.asarray(nn.softmax(made)), expected, rtol=1e-9)
            np.testing.assert_allclose(
                np.asarray(snp.concat([product, x @ w])), np.concatenate([a @ b, a @ b]), rtol=1e-9
            )


def test_watchers_of_several_threads_end_in_any_order():
    seen = {"first": [], "second": []}
    entered, left = threading.Event(), threading.Event()

    def first():
        with watching(lambda *what: seen["first"].append(what)):
            entered.wait(10)
            x = sw.shard(np.arange(4.0), MESH, P("data"))
            _ = x + x
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    with watching(lambda *what: seen["second"].append(what)):
        entered.set()
        left.wait(10)
    thread.join()
    assert len(seen["first"]) == 1
    assert not seen["second"]
    assert not is_watched()
