"""The JAX front end in two real processes on loopback."""

import math
import socket

import numpy as np
import pytest

import jax_front_calls
import shardwright as sw


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def expected(order, dims, names, subset, axis, rows):
    """What each device holds of the rows of both processes, by its place in jax.devices()."""
    whole = np.concatenate([np.arange(rows), 100 + np.arange(rows)])
    sizes, subset = dict(zip(names, dims, strict=True)), subset or names
    held = {}
    for place, device in enumerate(order):
        coords = dict(zip(names, np.unravel_index(place, dims), strict=True))
        part = 0
        for name in subset:
            part = part * sizes[name] + int(coords[name])
        block = len(whole) // math.prod(sizes[name] for name in subset)
        held[device] = whole[part * block : (part + 1) * block].tolist()
    shape = (2 * rows, 2) if axis == 0 else (2, 2 * rows)
    return [(shape, {d: rows for d, rows in held.items() if d // 4 == process}) for process in (0, 1)]


def test_rows_are_where_they_belong_for_any_mesh_order_subset_and_batch_axis(port):
    orders = [list(range(8)), list(range(7, -1, -1)), [0, 4, 1, 5, 2, 6, 3, 7]]
    cases = [(order, (2, 4), ("x", "y"), subset, 0, 8) for order in orders for subset in (None, ("x",), ("y", "x"))]
    cases.append((orders[2], (4, 2), ("x", "y"), ("y",), 1, 6))  # 6 rows on 4 devices of a process
    results = sw.launch(jax_front_calls.batches, port, cases, processes=2, timeout=120)
    for number, case in enumerate(cases):
        assert [results[process][number] for process in (0, 1)] == expected(*case), case


def test_a_program_over_two_processes(port):
    w = np.arange(8.0).reshape(4, 2)
    x = np.repeat([1.0, 1.0, 2.0, 2.0], 4).reshape(4, 4)
    for y, back, refused in sw.launch(jax_front_calls.program, port, processes=2, timeout=120):
        assert y == (x @ w).tolist()
        assert back == w.tolist()
        assert "6 rows (3 from each of 2 processes) are not divisible by the 4 parts along x, y" in refused
