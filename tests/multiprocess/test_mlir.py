"""Functions of an MLIR file with one device a process."""

import numpy as np

import mlir_calls


def test_both_views_run_with_one_device_a_process(pool):
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    own = [np.arange(4, dtype=np.float32) + 10 * place for place in range(4)]
    gathered = [np.concatenate([-own[place // 2 * 2], own[place // 2 * 2 + 1]]).tolist() for place in range(4)]
    passed = [[0.0] * 4, [0.0] * 4, own[0].tolist(), own[1].tolist()]
    for made in pool.run(mlir_calls.both_views):
        assert made == (gathered, passed, (x @ x.T).tolist())


def test_rows_of_a_mesh_leave_a_loop_after_different_numbers_of_rounds(pool):
    """Sums of 4 · 1.5 + 46 = 52 and 212, which two devices double in a round: 3 rounds and 1."""
    own = [np.arange(4, dtype=np.float32) + 10 * place for place in range(4)]
    expected = [((own[0] + own[1]) * 4).tolist()] * 2 + [(own[2] + own[3]).tolist()] * 2
    for made in pool.run(mlir_calls.loop):
        assert made == expected
