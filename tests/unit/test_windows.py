"""Rows that shards want, by arithmetic and one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.ops import RowMap
from shardwright.plan.windows import OUTSIDE, Spaced, picked


@st.composite
def maps(draw):
    size = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["slice", "flip", "roll", "windows", "shifted"]))
    if kind == "slice":
        step = draw(st.integers(1, 3))
        start = draw(st.integers(0, size - 1))
        return size, RowMap(len(range(start, size, step)), start, step)
    if kind == "flip":
        return size, RowMap(size, size - 1, -1)
    if kind == "roll":
        return size, RowMap(size, draw(st.integers(0, size - 1)), 1, wrap=size)
    if kind == "windows":
        return size, RowMap(draw(st.integers(0, 8)), draw(st.integers(-3, 2)), draw(st.integers(1, 3)), 3)
    return size, RowMap(draw(st.integers(0, 9)), draw(st.integers(-9, 9)), draw(st.sampled_from([-2, -1, 1, 2])))


@settings(max_examples=1000)
@given(data=st.data(), case=maps())
def test_arithmetic_counts_the_rows_there_are(data, case):
    size, row_map = case
    parts = data.draw(st.integers(1, 4))
    inner = sorted(data.draw(st.lists(st.integers(0, row_map.size), min_size=parts - 1, max_size=parts - 1)))
    cuts = [0, *inner, row_map.size]
    wanted = picked(row_map, tuple(cuts), size)
    assert isinstance(wanted, Spaced)
    shards = np.arange(parts)
    low, high = (np.array(data.draw(st.lists(st.integers(0, size), min_size=parts, max_size=parts))) for _ in range(2))
    counts, inside = wanted.wants(shards), wanted.within(shards, low, high)
    stretches = {}
    for some, one, last in wanted.ends():
        for shard, a, b in zip(some.tolist(), one.tolist(), last.tolist(), strict=True):
            stretches.setdefault(shard, []).append((min(a, b), max(a, b)))
    for shard in range(parts):
        rows = [int(r) % size if row_map.wrap else int(r) for r in row_map.window(cuts[shard], cuts[shard + 1])]
        expected = [row if 0 <= row < size else OUTSIDE for row in rows]
        assert wanted.rows(shard).tolist() == expected == wanted.flat[slice(*wanted.starts[shard : shard + 2])].tolist()
        real = [row for row in expected if row != OUTSIDE]
        assert counts[shard] == len(real)
        assert inside[shard] == sum(low[shard] <= row < high[shard] for row in real)
        ends = stretches.get(shard, [])
        assert bool(ends) == bool(real)
        if real:
            assert min(a for a, _ in ends) == min(real)
            assert max(b for _, b in ends) == max(real)
            assert {row for pair in ends for row in pair} <= set(real)
