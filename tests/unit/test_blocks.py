"""Element-wise lines block by block: what they give is what running them one by one gives."""

import numpy as np
import pytest

from shardwright.engines import blocks
from shardwright.engines.blocks import ALONE, BLOCK, LEAST, Line, Value, blocked, shared


def lines(dtype, *steps):
    return [Line(function, inputs, np.dtype(dtype)) for function, *inputs in steps]


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + BLOCK + 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_buffers_are_used_again_only_after_their_value_was_last_read(size, dtype):
    x = np.linspace(-2, 2, size).astype(dtype)
    y = x[::-1].copy()
    work = lines(
        dtype,
        (np.multiply, Value(0), Value(1)),  # 2
        (np.add, Value(2), 1.5),  # 3
        (np.subtract, Value(2), Value(3)),  # 4
        (np.multiply, Value(4), Value(4)),  # 5, an output
        (np.divide, Value(3), 3),  # 6
        (np.add, Value(6), Value(5)),  # 7
        (np.subtract, 2.0, Value(7)),  # 8, an output
    )
    square, last = blocked(2, work, [5, 8])(x, y)
    product = x * y
    expected = (product - (product + 1.5)) ** 2
    np.testing.assert_array_equal(square, expected)
    np.testing.assert_array_equal(last, 2.0 - ((product + 1.5) / 3 + expected))
    assert square.dtype == last.dtype == dtype


def test_a_scalar_that_the_dtype_does_not_hold_warns_as_in_numpy():
    x = np.ones(LEAST, np.float32)
    run = blocked(1, lines(np.float32, (np.multiply, Value(0), 1e300)), [1])
    with pytest.warns(RuntimeWarning, match="overflow"):
        (made,) = run(x)
    assert np.isinf(made).all()
    (infinite,) = blocked(1, lines(np.float32, (np.add, Value(0), float("inf"))), [1])(x)
    assert np.isinf(infinite).all()


def test_extrema_with_scalars_and_integers():
    x = np.arange(LEAST + 3)
    (made,) = blocked(1, lines(np.int64, (np.maximum, Value(0), 7), (np.add, Value(1), 2)), [2])(x)
    np.testing.assert_array_equal(made, np.maximum(x, 7) + 2)


@pytest.mark.parametrize("size", [0, 5, 2 * ALONE - 1, 2 * ALONE, 5 * ALONE + 7])
def test_parts_are_whole_blocks_and_all_is_done_once(monkeypatch, size):
    monkeypatch.setattr(blocks, "THREADS", 3)
    done, parts = np.zeros(size, int), []

    def work(start, stop):
        done[start:stop] += 1
        parts.append((start, stop))

    shared(size, BLOCK, work)
    assert (done == 1).all()
    assert len(parts) == max(min(3, size // ALONE), 1)
    assert all(start % BLOCK == 0 and (stop % BLOCK == 0 or stop == size) for start, stop in parts)


def test_threads_warn_and_fail_as_one_does(monkeypatch):
    monkeypatch.setattr(blocks, "THREADS", 2)
    x = np.zeros(2 * ALONE, np.float32)
    x[-1] = -1  # of the second thread
    run = blocked(1, lines(np.float32, (np.sqrt, Value(0))), [1])
    with pytest.raises(RuntimeWarning, match="invalid value"):  # warnings are errors in tests
        run(x)
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        run(x)
    with np.errstate(invalid="ignore"):
        (made,) = run(x)
    assert np.isnan(made[-1])
    assert (made[:-1] == 0).all()


def test_without_threads_the_work_is_done_all_the_same(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(blocks, "THREADS", 3)
    monkeypatch.setattr(blocks.Thread, "start", refuse)
    done = np.zeros(3 * ALONE, int)

    def work(start, stop):
        done[start:stop] += 1

    shared(len(done), BLOCK, work)
    assert (done == 1).all()


@pytest.mark.parametrize(("told", "most"), [("1", 1), ("3", 3), ("", 4), ("4,2", 4)])
def test_no_more_threads_than_the_user_wants_of_blas(monkeypatch, told, most):
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert 1 <= blocks._allowed_threads() <= most
