"""Caches are bounded by bytes: calls with ever new shapes, slices and numbers don't fill memory."""

import subprocess
import sys

import pytest

from shardwright.caches import Cache, kept

CODE = """
import numpy as np, shardwright as sw, shardwright.numpy as snp
from shardwright import P, nn
from shardwright.eager import calls
from shardwright.plan import operation

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

calls._ready.limit = operation._plans.limit = 4 * 2**20  # of 64 and 80 MiB, to fill them sooner
mesh = sw.Mesh(a=2, b=4)
big = sw.shard(np.ones((1024, 1024), np.float32), mesh, P("a", "b"))
step = sw.sjit(lambda x: nn.softmax(x * 2 + 1))
step._cache.limit = 2 * 2**20

def work(rounds):
    for i in rounds:
        x = sw.shard(np.ones((8 + i % 4001, 16), np.float32), mesh, P("a", "b"))
        snp.sum(nn.softmax(x + x), axis=0)
        big[i % 900 : i % 900 + 100]
        if i % 8 == 0:
            step(x)

work(range(400))
full = resident()
work(range(400, 600))
print(resident() - full, resident(), len(calls._ready), len(operation._plans), step.cache_size())
"""


def test_memory_levels_off():
    """600 shapes, each with several plans, 900 slices and 75 programs: the last third adds next to nothing."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    more, total, ready, plans, programs = map(float, done.stdout.split())
    assert more < 12, "MiB that the last calls added"
    assert total < 300, "MiB in all, NumPy and Python included"
    assert 50 < ready < 2000
    assert 50 < plans < 1000
    assert 5 < programs < 75


OFFSETS = """
import gc
import numpy as np, shardwright as sw
from shardwright import P
from shardwright.sharding.sharding import _interned

mesh = sw.Mesh(a=128, b=128)
x = sw.shard(np.ones(5 * mesh.size + 3, np.int8), mesh, P(("a", "b")))
step = sw.sjit(lambda x, i: x[i:], static_argnums=1)
for i in range(1, 121):
    {work}
gc.collect()
print(sum(bool(sharding.offsets) for sharding in list(_interned.values())))
"""


@pytest.mark.parametrize(
    "work",
    [
        "x[i:]",
        "x[i:].reshard(P(('b', 'a')))",
        "sw.plan_reshard(x[i:].shape, x.dtype, mesh, x[i:].sharding, P())",
        "step(x, i)",
    ],
)
def test_offsets_of_many_devices_are_forgotten(work):
    """Each has an integer for each of 16,384 devices. Once tapes, programs and plans of moves counted as small."""
    done = subprocess.run([sys.executable, "-c", OFFSETS.format(work=work)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60


def test_what_is_in_use_is_kept():
    cache = Cache(limit=100, size=lambda value: 10)
    for number in range(1000):
        cache.put(number, str(number))
        assert cache.get(0) == "0", "it was looked at all the time"
    assert len(cache) <= 11
    assert 1 not in cache
    assert 999 in cache
    cache.clear()
    assert len(cache) == 0
    assert cache.get(0) is None


def test_the_last_values_are_kept_however_large():
    cache = Cache(limit=100, size=lambda value: 1000, least=4)
    for number in range(50):
        cache.put(number, str(number))
        assert len(cache) <= 2 * cache.least
        assert all(cache.get(before) == str(before) for before in range(max(number - 3, 0), number + 1))


def test_large_keys_are_kept_for_less():
    calls = []

    @kept(limit=1000, size=lambda key: 10 * len(key[0]), by_key=True)
    def made(word):
        calls.append(word)
        return len(word)

    assert [made(word) for word in ("a", "b", "a")] == [1, 1, 1]
    assert calls == ["a", "b"]
    assert [made(word * 80) for word in "aba"] == [80, 80, 80]
    assert len(calls) == 5, "the first long word was forgotten"


def test_large_values_are_kept_for_less():
    calls = []

    @kept(limit=1000, size=len)
    def made(count):
        calls.append(count)
        return "x" * count

    for _ in range(3):
        assert len(made(10)) == 10
    assert calls == [10]
    made(5000)
    made(5000)
    assert calls == [10, 5000, 5000][: len(calls)]
    with pytest.raises(TypeError):
        made([1])
