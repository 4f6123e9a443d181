"""The JAX engine over two processes with two devices each, connected by jax.distributed on loopback."""

import re
import socket

import numpy as np
import pytest

import jax_calls as calls
from shardwright.errors import CoherenceError
from shardwright.launching import Processes


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def pair():
    with Processes(2) as group:
        assert group.run(calls.begin, free_port(), timeout=120) == [(4, 2)] * 2
        yield group


def test_every_process_reads_what_numpy_computes(pair):
    host = calls.HOST
    state = (host @ host.T).sum(axis=0)
    joined = np.concatenate([host[:4], host[:4] + 100])
    for found in pair.run(calls.results, timeout=180):
        assert found["sum"] == host.sum()
        np.testing.assert_allclose(found["product"], host @ host.T)
        np.testing.assert_array_equal(found["roll"], np.roll(host, 3, axis=0))
        np.testing.assert_allclose(found["cumulative"], np.cumsum(host, axis=1))
        np.testing.assert_array_equal(found["moved"], host)
        np.testing.assert_allclose(found["program"][0], np.roll(state, 1))
        np.testing.assert_allclose(found["program"][1], host.sum(axis=1))
        assert found["local"] == host.sum()
        assert found["gathered"] == [[0, 1], [0, 1], [2, 3], [2, 3]]
        for mine, theirs in zip(found["nonzero"], np.nonzero(host > 30), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(found["joined"], joined)
        assert found["largest"] == host.size - 1


def test_a_process_sees_its_own_shards(pair):
    boxes = [
        (slice(0, 5), slice(0, 4)),
        (slice(0, 5), slice(4, 7)),
        (slice(5, 10), slice(0, 4)),
        (slice(5, 10), slice(4, 7)),
    ]
    for rank, (own, error) in enumerate(pair.run(calls.own_shards, timeout=60)):
        assert sorted(own) == [2 * rank, 2 * rank + 1]
        for place, shard in own.items():
            np.testing.assert_array_equal(shard, calls.HOST[boxes[place]])
        assert f"EngineError: This shard is on rank {1 - rank}, and this is rank {rank}" in error


@pytest.mark.parametrize("fault", [calls.skips, calls.passes_other_shapes, calls.raises, calls.is_killed])
def test_the_other_process_names_the_one_that_went_another_way(fault):
    with Processes(2) as group:
        group.run(calls.begin, free_port(), 6, timeout=120)
        good, bad = group.outcomes(fault, 1, timeout=90)
    assert isinstance(bad, BaseException), bad
    error = good if isinstance(good, CoherenceError) else good.__cause__
    assert isinstance(error, CoherenceError), good
    assert error.ranks == (1,)
    assert "rank 1" in str(error)
    assert re.search(r"jax_calls\.py:\d+", str(error)), error
