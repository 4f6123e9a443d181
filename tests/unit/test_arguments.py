"""Arguments of operations: what NumPy accepts is accepted, and what is wrong is an error that says what to do."""

import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_close, assert_same
from shardwright import P, nn, random
from shardwright.errors import AxisError, OperationError

X2 = sw.Mesh(x=2)
MESH = sw.Mesh(x=4, y=2)
RNG = np.random.default_rng(0)
A = RNG.standard_normal((4, 3))
KEY = random.Key(0)
HOST = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
ROWS, FEW = np.array([0, 3, 1, 1, 2, 0, 3]), np.array([1, 0, 1])
ALL = slice(None)


def placed(host, spec=None):
    return sw.shard(host, MESH, P("x") if spec is None and np.ndim(host) else spec or P())


# -- indices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [P(), P("y"), P(None, None, "x"), P("y", None, None, "x")], ids=str)
@pytest.mark.parametrize(
    "index",
    [
        (ALL, 1, ROWS, ..., 3),
        (ALL, 1, ..., ROWS, 3),
        (ALL, FEW, ..., 1, 2),
        (ALL, FEW, ..., FEW, FEW),
        (ALL, ..., 1, ROWS, 3),
        (ALL, 1, ROWS, 3, ...),
        (..., ALL, 1, ROWS, 3),
        (0, FEW, ..., 1, ALL),
        (ALL, 1, ROWS, ..., None, 3),
        (ALL, 1, ROWS, None, ..., 3),
        (ALL, FEW, ..., 1),
        (FEW, 0, ..., 0, 0),
        (ALL, np.array([True, False, True]), ..., 1, 2),
        (ALL, [0, 2], ..., [1, 1], 2),
        (ALL, np.array(1), ..., ROWS, 2),
        (0, ..., 1, 2, 3),
        (ALL, ..., ALL, ALL, ALL),
    ],
    ids=lambda index: ", ".join(np.array2string(e) if isinstance(e, np.ndarray) else str(e) for e in index),
)
def test_an_ellipsis_that_stands_for_no_dims_still_parts_indices(index, spec):
    assert_same(sw.shard(HOST, MESH, spec)[index], HOST[index])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, bool, np.complex64, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("name", "what", "run"),
    [
        ("take", "indices", lambda x, i: snp.take(x, i, axis=0)),
        ("take", "indices", lambda x, i: np.take(x, i, 1)),
        ("embedding", "indices", lambda x, i: nn.embedding(x, i)),
        ("take_along_axis", "indices", lambda x, i: snp.take_along_axis(x, snp.reshape(i, (2, 1)), axis=0)),
        ("cross_entropy", "labels", lambda x, i: nn.cross_entropy(x[:2], i)),
        ("one_hot", "indices", lambda x, i: nn.one_hot(i, 3)),
        ("take", "indices", lambda x, i: snp.searchsorted(x[:2, 0], x[0], sorter=i)),
    ],
)
def test_indices_are_integers(name, what, run, dtype, jit):
    x, indices = placed(A), placed(np.array([1, 0]).astype(dtype))
    with pytest.raises(
        OperationError, match=rf"{name}: {what} must be integers; got {np.dtype(dtype)}. Use {what}.astype"
    ):
        (sw.sjit(run) if jit else run)(x, indices)


def test_a_mask_is_no_list_of_rows():
    with pytest.raises(
        OperationError, match=r"take: indices must be integers; got bool. .* A mask selects by x\[mask\]"
    ):
        snp.take(placed(A), [True, False], axis=0)


@pytest.mark.parametrize(
    "index", [np.array([0.0, 1.0]), [0.0], (np.array([0.5]), 1), np.array(1.0), (0, np.float32([1]))]
)
def test_an_index_array_of_floats_is_refused(index):
    with pytest.raises(OperationError, match=r"An index array has integers or booleans; got float"):
        placed(A)[index]
    with pytest.raises(OperationError, match=r"An index array has integers or booleans; got float"):
        placed(A)[index] = 0


@pytest.mark.parametrize("index", [1.0, "a", np.float64(1), (0, 1.5), {}, 1j])
def test_what_is_no_index_is_refused(index):
    with pytest.raises(IndexError, match=r"is not an index. Give integers, slices, '...', None, or arrays of"):
        placed(A)[index]


def test_an_index_out_of_bounds_names_the_dim_of_the_tensor():
    x = placed(A)
    for run in (
        lambda i: snp.take(x, [0, i], axis=1),
        lambda i: snp.take_along_axis(x, np.full((4, 1), i), axis=1),
        lambda i: x[:, [0, i]],
        lambda i: x[:, i],
    ):
        for i in (3, -4):
            with pytest.raises(IndexError, match=f"Index {i} is out of bounds for dim 1 of size 3"):
                run(i)


def test_embedding_knows_its_arguments_apart():
    table, tokens = placed(RNG.standard_normal((9, 5)).astype(np.float32)), placed(np.array([[1, 2], [3, 4]]))
    for first, second in ((tokens, table), (np.asarray(tokens), table), (tokens, np.asarray(table))):
        with pytest.raises(
            OperationError, match=r"embedding takes \(table, indices\); the table has int64 and the indices have float32. "
            r"They seem to be swapped: write embedding\(table, indices\)",
        ):  # fmt: skip
            nn.embedding(first, second)
    assert nn.embedding(table, tokens).shape == (2, 2, 5)
    assert nn.embedding(tokens, tokens[:, :1] * 0).shape == (2, 1, 2), "a table may have integers"


@pytest.mark.parametrize(
    "value", [3.0, 99.0, np.nan, np.arange(3.0), [0.0, 1.0, 5.0], "a", None, np.float32(2)], ids=str
)
@pytest.mark.parametrize("host", [np.arange(12.0).reshape(4, 3), np.zeros((0, 3)), np.array([1.0, np.nan, 2.0])])
def test_in_asks_for_an_equal_element(host, value):
    assert (value in placed(host)) is bool(np.any(host == value))


def test_in_reduces_a_partial_sum_first():
    total = snp.sum(placed(np.array([1.0, 2.0, 3.0, 4.0])), keepdims=True)
    assert total.sharding.partial
    assert 10.0 in total
    assert 1.0 not in total


# -- accepted as NumPy does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [P(), P("x"), P("y", "x")], ids=str)
@pytest.mark.parametrize(
    "run",
    [
        lambda np, x: np.tile(x, 2),
        lambda np, x: np.tile(x, 0),
        lambda np, x: np.tile(x, (2,)),
        lambda np, x: np.tile(x, (2, 1, 3)),
        lambda np, x: np.roll(x, 2),
        lambda np, x: np.roll(x, (1, 2)),
        lambda np, x: np.roll(x, (1, 2), axis=0),
        lambda np, x: np.roll(x, 1, axis=(0, 1)),
        lambda np, x: np.roll(x, (1, -2), axis=(1, 0)),
        lambda np, x: np.roll(x, (), axis=()),
        lambda np, x: np.tensordot(x, x, axes=(0, 0)),
        lambda np, x: np.tensordot(x, x, axes=((-1,), (-1,))),
        lambda np, x: np.tensordot(x, x, axes=([0, 1], [0, 1])),
        lambda np, x: np.tensordot(x, x, axes=0),
        lambda np, x: np.broadcast_to(x[0, :1], 3),
        lambda np, x: np.diff(x, n=0, prepend=x),
        lambda np, x: np.diff(x, n=0, append=1.0),
        lambda np, x: np.diff(x, prepend=5.0),
        lambda np, x: np.diff(x, axis=0, prepend=5, append=x[:2]),
        lambda np, x: np.diff(x, n=2, axis=0, append=x[:1]),
        lambda np, x: np.diff(x, n=9),
        lambda np, x: np.diff(x > 0, axis=0, prepend=True),
        lambda np, x: np.full_like(x, x[0]),
        lambda np, x: np.repeat(x, [2], axis=0),
        lambda np, x: np.fft.fft(x, norm=None),
        lambda np, x: np.fft.fftn(x, axes=(0, 1), norm=None),
    ],
)
def test_what_numpy_accepts(run, spec):
    ours, theirs = run(snp, sw.shard(A, MESH, spec)), run(np, A)
    (assert_close if theirs.dtype.kind in "fc" else assert_same)(ours, theirs)


def test_a_difference_of_no_order_is_another_variable():
    x = placed(np.arange(4.0))
    y = snp.diff(x, n=0, prepend=np.zeros(1))
    y += 1
    assert_same(x, np.arange(4.0))


# -- refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda x: snp.tensordot(x, x, axes=5),
            r"tensordot: axes=5 dims of operands of shapes \(4, 3\) and \(4, 3\); give 0 to 2",
        ),
        (lambda x: snp.tensordot(x, x, axes=-1), r"tensordot: axes=-1 dims of .*; give 0 to 2"),
        (
            lambda x: snp.tensordot(x, x[0], axes=2),
            r"tensordot: axes=2 dims of operands of shapes \(4, 3\) and \(3,\); give 0 to 1",
        ),
        (lambda x: snp.tensordot(x, x, axes=1.5), r"tensordot: axes=1.5; give an integer"),
        (
            lambda x: snp.tensordot(x, x, axes=(0,)),
            r"tensordot: axes=\(0,\); give an integer, or the dims of both operands",
        ),
        (lambda x: snp.tensordot(x, x, axes=((0, 0), (0, 1))), r"tensordot: axis=\(0, 0\) names a dim twice"),
        (
            lambda x: snp.tensordot(x, x, axes=((0, 1), (0,))),
            r"tensordot: axes gives 2 dims of the first operand and 1",
        ),
        (lambda x: snp.tensordot(x, x, axes=((7,), (0,))), r"tensordot: axis=7 is out of range for a tensor of 2 dims"),
        (lambda x: snp.roll(x, "3"), r"roll: shift='3'; give an integer or a sequence of integers"),
        (lambda x: snp.roll(x, "12", axis=(0, 1)), r"roll: shift='12'; give an integer"),
        (lambda x: snp.roll(x, ("1", 2), axis=(0, 1)), r"roll: shift=\('1', 2\); give an integer"),
        (lambda x: snp.roll(x, 1.5, axis=0), r"roll: shift=1.5; give an integer"),
        (lambda x: snp.roll(x, None, axis=0), r"roll: shift=None; give an integer"),
        (lambda x: snp.roll(x, 1, axis="0"), r"roll: axis='0'; give an integer"),
        (
            lambda x: snp.roll(x, (1, 2, 3), axis=(0, 1)),
            r"roll: 3 shifts \(1, 2, 3\) for 2 dims \(0, 1\). Give equally many, or one",
        ),
        (lambda x: snp.tile(x, 1.5), r"tile: repetitions=1.5; give an integer"),
        (lambda x: snp.tile(x, "2"), r"tile: repetitions='2'; give an integer"),
        (lambda x: snp.tile(x, (2, -1)), r"tile: repetitions=\(2, -1\) has a negative number. Give 0 or more"),
        (lambda x: snp.repeat(x, 1.5), r"repeat: repeats=1.5; give an integer"),
        (lambda x: snp.repeat(x, -1), r"repeat: repeats=-1 is negative"),
        (lambda x: snp.repeat(x, np.ones(4), axis=0), r"repeat: repeats must be integers; got float64"),
        (lambda x: snp.repeat(x, [1, 2], axis=0), r"repeat: counts of shape \(2,\) don't fit dim 0 of size 4"),
        (lambda x: snp.reshape(x, 12.0), r"reshape: shape=12.0; give an integer or a sequence of integers"),
        (lambda x: snp.reshape(x, (4, 3.7)), r"reshape: shape=\(4, 3.7\); give an integer"),
        (lambda x: snp.broadcast_to(x, (2, 4, 3.5)), r"broadcast_to: shape=\(2, 4, 3.5\); give an integer"),
        (lambda x: snp.broadcast_to(x, (-1, 4, 3)), r"broadcast_to: shape=\(-1, 4, 3\) has a negative size"),
        (lambda x: snp.permute_dims(x, 1.0), r"permute_dims: axes=1.0; give an integer"),
        (lambda x: snp.expand_dims(x, 1.0), r"expand_dims: axis=1.0; give an integer"),
        (lambda x: snp.sum(x, axis=1.5), r"sum: axis=1.5 is out of range for a tensor of 2 dims"),
        (lambda x: snp.diff(x, n=-1), r"diff: n=-1 is negative. Give 0 or more"),
        (lambda x: snp.diff(x, n=1.0), r"diff: n=1.0; give an integer"),
        (lambda x: snp.diff(x, prepend=np.ones((2, 2, 2))), r"concat along dim 1: shapes"),
        (lambda x: snp.tril(x, k=0.5), r"tril: k=0.5; give an integer"),
        (
            lambda x: snp.take_along_axis(x, np.array([1]), axis=1),
            r"take_along_axis: indices of shape \(1,\) for a tensor of shape \(4, 3\)",
        ),
        (
            lambda x: snp.searchsorted(x[0], x[0], side="middle"),
            r"searchsorted: side is 'left' or 'right', not 'middle'",
        ),
        (lambda x: snp.zeros((2, 2.5)), r"zeros: shape=\(2, 2.5\); give an integer"),
        (lambda x: snp.ones(-1), r"ones: shape=-1 has a negative size. Give sizes of 0 or more"),
        (lambda x: snp.full("3", 1), r"full: shape='3'; give an integer"),
        (lambda x: snp.eye(2.0), r"eye: n_rows=2.0; give an integer"),
        (lambda x: snp.fft.fft(x, n=0), r"fft: a transform of \(0,\) rows; each dim needs at least 1"),
        (lambda x: snp.fft.fft(x, n=2.0), r"fft: n=2.0; give an integer"),
        (lambda x: snp.fft.fft(x, norm="none"), r"fft: norm is 'backward', 'ortho' or 'forward', not 'none'"),
        (lambda x: snp.fft.fftn(x, s=(2,), axes=(0, 1)), r"fftn: s=\(2,\) has 1 sizes for 2 dims. Give one for each"),
        (lambda x: snp.linalg.matrix_power(x[:3], 2.5), r"matrix_power: n=2.5; give an integer"),
        (
            lambda x: snp.linalg.outer(x, x),
            r"outer takes vectors; got shapes \(4, 3\) and \(4, 3\). Flatten with reshape",
        ),
        (lambda x: snp.linalg.cross(x, x, axis=2), r"cross: axis=2 is out of range for a tensor of 2 dims"),
        *(
            (lambda x, f=f: getattr(snp.linalg, f)(x[0]), rf"{f} takes matrices, at least two dims; got shape \(3,\)")
            for f in "diagonal trace qr svd svdvals pinv matrix_norm matrix_rank".split()
        ),
        *(
            (lambda x, f=f: getattr(snp.linalg, f)(x[0, 0]), rf"{f} takes matrices, at least two dims; got shape \(\)")
            for f in "diagonal trace qr svd svdvals".split()
        ),
        (
            lambda x: snp.einsum("i->i->i", x[0]),
            r"einsum: 'i->i' of 'i->i->i' is invalid. A term has letters .*'->' occurs once",
        ),
        (lambda x: snp.einsum("ij->ij->", x), r"einsum: 'ij->' of 'ij->ij->' is invalid"),
        (lambda x: snp.einsum("i1->i", x), r"einsum: 'i1' of 'i1->i' is invalid"),
        (lambda x: snp.einsum("i.j->ij", x), r"einsum: 'i.j' of 'i.j->ij' is invalid"),
        (lambda x: snp.einsum("....->...", x), r"einsum: '....' of '....->...' is invalid"),
        (lambda x: snp.einsum("ij-ij", x), r"einsum: 'ij-ij' of 'ij-ij' is invalid"),
        (lambda x: snp.einsum("ij>ij", x), r"einsum: 'ij>ij' of 'ij>ij' is invalid"),
        (lambda x: snp.einsum("ijk->i", x), r"einsum: 'ijk' of 'ijk->i' does not fit an operand of shape \(4, 3\)"),
        (lambda x: snp.einsum("...ijk->i...", x), r"einsum: '...ijk' of .* does not fit an operand of shape \(4, 3\)"),
        (lambda x: snp.einsum("i", x), r"einsum: 'i' of 'i' does not fit an operand of shape \(4, 3\)"),
        (lambda x: snp.einsum("ii->i", x), r"einsum: 'ii' repeats 'i', whose dims have different sizes: 4 and 3"),
        (lambda x: snp.einsum(x, [0, 1]), r"einsum: the first argument is a string such as 'ij,jk->ik'; got Array"),
        (lambda x: snp.einsum("ij,jk", x), r"einsum: 'ij,jk' has 2 operands; got 1"),
        (
            lambda x: nn.group_norm(x, 0),
            r"group_norm: 3 channels are not divisible into 0 groups. Choose a divisor of 3",
        ),
        (lambda x: nn.group_norm(x, -3), r"group_norm: 3 channels are not divisible into -3 groups"),
        (lambda x: nn.group_norm(x, 1.5), r"group_norm: groups=1.5; give an integer"),
        (lambda x: nn.group_norm(x[0], 1), r"group_norm takes `batch, spatial…, channels`; got shape \(3,\)"),
        (lambda x: nn.max_pool(x, 2), r"max_pool takes `batch, spatial…, channels`; got shape \(4, 3\)"),
        (lambda x: nn.avg_pool(x, 2), r"avg_pool takes `batch, spatial…, channels`; got shape \(4, 3\)"),
        (
            lambda x: nn.scaled_dot_product_attention(x, x, x),
            r"attention takes queries .*; got shapes \(4, 3\), \(4, 3\), \(4, 3\). Add dims",
        ),
        (
            lambda x: nn.scaled_dot_product_attention(x[None], x, x[None]),
            r"got shapes \(1, 4, 3\), \(4, 3\), \(1, 4, 3\)",
        ),
        (
            lambda x: nn.scaled_dot_product_attention(x[None], x[None, :, :2], x[None]),
            r"keys of the same width and .*\(1, 4, 2\)",
        ),
        (
            lambda x: nn.scaled_dot_product_attention(x[None], x[None], x[None, :2]),
            r"values for all keys; got .*\(1, 2, 3\)",
        ),
        (
            lambda x: nn.scaled_dot_product_attention(x[None], x[:0, None], x[:0, None]),
            r"1 query heads are not a multiple of 0 key heads",
        ),
        (
            lambda x: random.uniform(KEY, 4, dtype=np.int32),
            r"uniform: dtype=int32; random floats have a float dtype. Use randint",
        ),
        (lambda x: random.uniform(KEY, 4, dtype=bool), r"uniform: dtype=bool; random floats have a float dtype"),
        (lambda x: random.uniform(KEY, 4, dtype=np.complex64), r"uniform: dtype=complex64; random floats"),
        (
            lambda x: random.uniform(KEY, 4, low=1, high=0),
            r"uniform: no numbers of float64 from 1 to 0 \(excluded\). Give low < high",
        ),
        (lambda x: random.uniform(KEY, 4, high=np.inf), r"uniform: no numbers of float64 from 0.0 to inf"),
        (
            lambda x: random.uniform(KEY, 4, high=1e6, dtype=np.float16),
            r"uniform: no numbers of float16 .* both up to 65504",
        ),
        (lambda x: random.uniform(KEY, (2, 1.5)), r"random: shape=\(2, 1.5\); give an integer"),
        (lambda x: random.uniform(KEY, -1), r"random: shape=-1 has a negative size"),
        (lambda x: random.normal(KEY, 4, dtype=np.int64), r"normal: dtype=int64; random floats have a float dtype"),
        (lambda x: random.randn(4, key=KEY, dtype=np.uint8), r"normal: dtype=uint8; random floats have a float dtype"),
        (
            lambda x: random.randint(KEY, 4, 0, 300, dtype=np.int8),
            r"randint: the range from 0 to 300 \(excluded\) is beyond int8, which has -128 to 127",
        ),
        (lambda x: random.randint(KEY, 4, 0, 129, dtype=np.int8), r"is beyond int8"),
        (lambda x: random.randint(KEY, 4, -1, 3, dtype=np.uint8), r"is beyond uint8, which has 0 to 255"),
        (lambda x: random.randint(KEY, 4, 0, 2**63 + 1), r"is beyond int64"),
        (lambda x: random.randint(KEY, 4, 0, 2**64 + 1, dtype=np.uint64), r"is beyond uint64"),
        (
            lambda x: random.randint(KEY, 4, 0, 3, dtype=np.float32),
            r"randint: dtype=float32; random integers have an integer dtype",
        ),
        (lambda x: random.randint(KEY, 4, 0, 2.5), r"randint: high=2.5; give an integer"),
        (lambda x: random.bernoulli(KEY, (4,), 0.5), r"p=\(4,\) is not a probability. .* then the shape"),
        (lambda x: random.bernoulli(KEY, 1.5, 4), r"bernoulli: p=1.5 is not a probability. Give a number from 0 to 1"),
    ],
)
def test_wrong_arguments_are_named(run, text):
    with MESH, pytest.raises(OperationError, match=text):
        run(placed(A))


def test_an_axis_out_of_range_is_an_index_error_too():
    with pytest.raises(AxisError, match=r"cross: axis=7"):
        snp.linalg.cross(placed(A), placed(A), axis=7)


def test_sizes_that_are_traced_keep_their_own_error():
    with pytest.raises(sw.errors.TraceError, match=r"Python's if, while, int\(\) and float\(\) need it"):
        sw.sjit(lambda x: snp.reshape(x, (x[0], -1)))(placed(np.array([2, 3])))


# -- random numbers at the ends of their dtypes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-128, 128, np.int8),
        (0, 256, np.uint8),
        (100, 128, np.int8),
        (-(2**63), 2**63, np.int64),
        (-(2**63), -(2**63) + 3, np.int64),
        (2**63 - 3, 2**63, np.int64),
        (-5, 2**62, np.int64),
        (0, 2**64, np.uint64),
        (2**64 - 3, 2**64, np.uint64),
        (-3, 3, np.int64),
    ],
)
def test_random_integers_fill_their_range(low, high, dtype):
    for shape in ((), (64,)):
        with MESH:
            x = np.asarray(random.randint(KEY, shape, low, high, dtype=dtype))
        assert x.dtype == dtype
        assert all(low <= int(n) < high for n in x.ravel())
    if high - low <= 8:
        assert set(x.tolist()) == set(range(low, high))
    else:
        assert len(set(x.tolist())) > 20
        assert max(x.tolist()) - min(x.tolist()) > (high - low) // 2
