"""NumPy's own functions on Arrays: every parameter of every accepted function means what NumPy says or is refused by name."""

import inspect
import re
from functools import partial

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_close, assert_same
from shardwright import P
from shardwright.errors import OperationError
from shardwright.numpy import protocol

MESH = sw.Mesh(x=4, y=2)
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0.1, 0.9, (5, 6)), RNG.uniform(0.1, 0.9, (5, 6))
INTS = RNG.integers(0, 5, (5, 6))
VECTOR, ROWS = RNG.uniform(-1, 1, 7), np.array([2, 0, 4])
SQUARE = X[:, :5] @ X[:, :5].T + 2 * np.eye(5)
ONES = RNG.uniform(0, 1, (1, 6, 1))
MASK = X > 0.5

FUNCTIONS = {name: theirs for theirs in sw.Array.functions for name in [protocol.name_of(theirs)]}
LIKE = {f"np.{name}" for name in protocol.LIKE}

# The required arguments; a host tensor becomes an Array. Without an entry: X, or X and Y.
REQUIRED = {
    **dict.fromkeys("np.bitwise_and np.bitwise_or np.bitwise_xor np.left_shift np.right_shift".split(), (INTS, INTS)),
    "np.invert": (INTS,),
    "np.arccosh": (X + 1,),
    "np.matmul": (X, Y.T),
    "np.linalg.matmul": (X, Y.T),
    "np.array_equal": (X, Y),
    "np.allclose": (X, Y),
    "np.astype": (X, np.float32),
    "np.bincount": (ROWS,),
    "np.broadcast_to": (X, (2, 5, 6)),
    "np.can_cast": (X, np.float32),
    "np.concatenate": ([X, Y],),
    "np.stack": ([X, Y],),
    "np.clip": (X,),
    "np.einsum": ("ij,ik->jk", X, Y),
    "np.expand_dims": (X, 1),
    "np.full_like": (X, 7),
    "np.isin": (INTS, np.array([1, 3])),
    "np.linspace": (VECTOR, VECTOR + 1),
    "np.meshgrid": (VECTOR, ROWS),
    "np.moveaxis": (X, 0, 1),
    "np.put_along_axis": (X.copy(), np.zeros((5, 6), int), 7.0, 0),
    "np.repeat": (X, 2),
    "np.reshape": (X, (6, 5)),
    "np.roll": (X, 2),
    "np.searchsorted": (np.sort(VECTOR), VECTOR),
    "np.squeeze": (ONES,),
    "np.take": (X, ROWS),
    "np.take_along_axis": (X, np.zeros((5, 1), int)),
    "np.tensordot": (X, Y),
    "np.linalg.tensordot": (X, Y),
    "np.tile": (X, 2),
    "np.cumulative_sum": (VECTOR,),
    "np.cumulative_prod": (VECTOR,),
    "np.where": (MASK,),
    "np.linalg.cross": (X[:, :3], Y[:, :3]),
    "np.linalg.matrix_power": (SQUARE, 3),
    "np.linalg.outer": (VECTOR, ROWS),
    "np.linalg.solve": (SQUARE, X),
    "np.linalg.vecdot": (X, Y),
    "np.broadcast_arrays": (X, VECTOR[:6]),
    "np.result_type": (X, np.float32),
    **dict.fromkeys(
        (f"np.linalg.{n}" for n in "cholesky det eig eigh eigvals eigvalsh inv slogdet".split()), (SQUARE,)
    ),
    "np.arange": (6,),
    "np.asarray": ([[1, 2], [3, 4]],),
    "np.eye": (5,),
    "np.full": ((5, 6), 3),
    **dict.fromkeys(("np.zeros", "np.ones", "np.empty"), ((5, 6),)),
}

# For each option a value that is not its default. A function with a meaning of its own has an entry under its name.
OPTIONS = {
    "axis": 0, "keepdims": True, "out": np.zeros((5, 6)), "where": MASK, "dtype": np.float32, "initial": 2.0,
    "casting": "unsafe", "order": "F", "subok": False, "signature": "dd->d", "axes": [(0, 1), (0, 1), (0, 1)],
    "copy": True, "device": "cpu", "correction": 1, "ddof": 1, "mean": 0.5, "include_initial": True, "shape": (3,),
    "kind": "stable", "stable": True, "invert": True, "side": "right", "k": 1, "n": 2, "norm": "ortho",
    "decimals": 1, "equal_nan": True, "offset": 1, "rtol": 0.5, "atol": 10.0, "upper": True, "UPLO": "U", "mode": "wrap",
    "hermitian": True, "tol": 0.5, "rcond": 0.5, "compute_uv": False, "full_matrices": False, "ord": 1, "s": (3, 4),
    "assume_unique": True, "endpoint": False, "retstep": True, "num": 7, "indexing": "ij", "sparse": True,
    "optimize": True, "prepend": 5.0, "append": np.ones((5, 2)), "a_min": 0.3, "a_max": 0.7, "min": 0.3, "max": 0.7,
    "sorter": np.argsort(np.argsort(VECTOR)), "x": X, "y": Y, "stop": 8, "step": 2, "M": 3, "minlength": 9,
    "bins": 4, "range": (0.2, 0.7), "density": True, "weights": Y,
}  # fmt: skip
OWN = {
    ("np.broadcast_to", "subok"): True, ("np.broadcast_arrays", "subok"): True, ("np.linalg.qr", "mode"): "complete",
    ("np.meshgrid", "copy"): False, ("np.astype", "copy"): False, ("np.tensordot", "axes"): 0,
    ("np.linalg.tensordot", "axes"): ((1, 0), (1, 0)), ("np.transpose", "axes"): (0, 1), ("np.squeeze", "axis"): -1,
    ("np.vecdot", "axes"): [0, 0, ()], ("np.can_cast", "casting"): "same_kind", ("np.linspace", "axis"): 1,
    **{(f"np.fft.{name}", "axes"): (1,) for name in ("fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift")},
    ("np.stack", "axis"): 1, ("np.concatenate", "axis"): -1, ("np.cumulative_sum", "axis"): -1,
    ("np.unstack", "axis"): 1, ("np.take", "axis"): -2, ("np.linalg.vector_norm", "axis"): 1,
    ("np.linalg.cross", "axis"): 1, ("np.bincount", "weights"): VECTOR[:3],
}  # fmt: skip
# Options that NumPy takes as **kwargs, and options that it wants together.
MORE = {"np.clip": ("dtype", "where", "casting", "order", "subok"), "np.einsum": ("dtype", "casting", "order")}
TOGETHER = {
    ("np.clip", "a_min"): {"a_max": 0.7}, ("np.clip", "a_max"): {"a_min": 0.3},
    ("np.where", "x"): {"y": Y}, ("np.where", "y"): {"x": X},
    **{(f"np.fft.{name}", "s"): {"axes": (0, 1)} for name in ("fftn", "ifftn", "rfftn", "irfftn")},
}  # fmt: skip

UFUNC = ("out", "where", "casting", "order", "dtype", "subok", "signature")
NEW = ("order", "subok", "shape", "device")
REFUSED = {
    **{name: UFUNC for name, theirs in FUNCTIONS.items() if isinstance(theirs, np.ufunc)},
    "np.matmul": ("axes", *(option for option in UFUNC if option != "where")),
    "np.vecdot": ("axes", "keepdims", *(option for option in UFUNC if option != "where")),
    **dict.fromkeys(("np.all", "np.any"), ("out", "where")),
    **dict.fromkeys(("np.cumulative_prod", "np.cumulative_sum"), ("out",)),
    **dict.fromkeys(("np.sum", "np.prod", "np.max", "np.min", "np.amax", "np.amin"), ("out", "initial", "where")),
    **dict.fromkeys(("np.argmax", "np.argmin"), ("out",)),
    **dict.fromkeys(("np.argsort", "np.sort"), ("kind", "order")),
    "np.mean": ("dtype", "out", "where"),
    **dict.fromkeys(("np.std", "np.var"), ("dtype", "out", "where", "mean")),
    **dict.fromkeys(("np.concatenate", "np.stack"), ("out", "dtype", "casting")),
    **dict.fromkeys(("np.zeros_like", "np.ones_like", "np.empty_like", "np.full_like"), NEW),
    **dict.fromkeys(("np.zeros", "np.ones", "np.empty", "np.full", "np.eye", "np.asarray"), ("order", "device")),
    "np.arange": ("device",),
    "np.astype": ("device",),
    **dict.fromkeys(("np.broadcast_arrays", "np.broadcast_to"), ("subok",)),
    "np.clip": ("out", *MORE["np.clip"]),
    "np.einsum": ("out", *MORE["np.einsum"]),
    "np.isin": ("assume_unique", "kind"),
    "np.linspace": ("retstep", "axis", "device"),
    "np.meshgrid": ("copy", "sparse"),
    "np.reshape": ("order",),
    "np.round": ("decimals", "out"),
    "np.take": ("out", "mode"),
    **dict.fromkeys(("np.linalg.eigh", "np.linalg.eigvalsh"), ("UPLO",)),
    "np.linalg.matrix_rank": ("tol", "hermitian"),
    "np.linalg.pinv": ("hermitian",),
    "np.linalg.svd": ("compute_uv", "hermitian"),
    **{f"np.fft.{name}": ("out",) for name in "fft ifft rfft irfft hfft ihfft fftn ifftn rfftn irfftn".split()},
}
ORDER_FREE = ("np.unique_values", "np.unique_counts")  # NumPy leaves the order of their results open
REAL_OR_COMPLEX = ("np.linalg.eig", "np.linalg.eigvals")  # ours are always complex


def signature(name):
    return protocol.signature_of(FUNCTIONS[name])


def required(name):
    theirs = FUNCTIONS[name]
    return REQUIRED.get(name, (X, Y) if isinstance(theirs, np.ufunc) and theirs.nin == 2 else (X,))


def lifted(value):
    if isinstance(value, list) and isinstance(value[0], np.ndarray):
        return [lifted(entry) for entry in value]
    return sw.shard(value, MESH, P("x")) if isinstance(value, np.ndarray) else value


def compare(name, ours, theirs):
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            compare(name, one, other)
    elif name in ("np.empty", "np.empty_like"):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    elif not isinstance(ours, sw.Array):
        assert ours == theirs
    else:
        expected = np.sort(theirs) if name in ORDER_FREE else np.asarray(theirs)
        if name in REAL_OR_COMPLEX:
            expected = expected.astype(np.complex128)
        assert_alike(ours, expected)


def assert_alike(ours, theirs):
    """But for rounding, if they are floats."""
    (assert_close if np.asarray(theirs).dtype.kind in "fc" else assert_same)(ours, theirs)


def call(name, args, options):
    """A function on Arrays; those that make arrays get `like=`."""
    more = {"like": sw.shard(X, MESH, P("x"))} if name in LIKE else {}
    return FUNCTIONS[name](*map(lifted, args), **{key: lifted(value) for key, value in options.items()}, **more)


def check(name, option, args, options):
    """Compared with NumPy, or refused by name, as listed."""
    if option in REFUSED.get(name, ()):
        with pytest.raises(
            TypeError, match=rf"^{re.escape(name)} does not take {option}= on sharded arrays\. .*asarray"
        ):
            call(name, args, options)
        return
    expected = FUNCTIONS[name](*args, **options)
    compare(name, call(name, args, options), expected)


def sample(name, option):
    return OWN.get((name, option), OPTIONS[option])


def options_of(name):
    """The optional parameters of a function; NumPy knows `axis` of those ufuncs only that reduce."""
    parameters = signature(name).parameters.values()
    named = [p.name for p in parameters if p.default is not p.empty and p.name != "like"]
    if isinstance(FUNCTIONS[name], np.ufunc):
        own = FUNCTIONS[name].signature  # of a generalised ufunc, such as (n),(n)->()
        named = [o for o in named if o != "where" or not own]
        named = [o for o in named if o not in ("axes", "axis", "keepdims") or (own and (o == "axes" or "->()" in own))]
    return [*named, *MORE.get(name, ())]


def test_the_lists_say_what_there_is():
    for name, refused in REFUSED.items():
        assert set(refused) <= set(options_of(name)), name
    for name in FUNCTIONS:
        for option, p in signature(name).parameters.items():
            assert option not in options_of(name) or not protocol.is_default(sample(name, option), p.default)


def test_every_option_of_a_ufunc_is_known():
    for name, theirs in FUNCTIONS.items():
        if isinstance(theirs, np.ufunc) and hasattr(theirs, "__signature__"):
            numpys = inspect.signature(theirs).parameters.values()
            assert {p.name for p in numpys if p.default is not p.empty} <= set(signature(name).parameters)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_without_options_is_numpys(name):
    check(name, None, required(name), {})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_parameter_means_what_numpy_says_or_is_refused_by_name(name):
    args = required(name)
    for option in options_of(name):
        options = {option: sample(name, option), **TOGETHER.get((name, option), {})}
        if any(p.name == option and p.kind is p.POSITIONAL_ONLY for p in signature(name).parameters.values()):
            check(name, option, (*args, *(options[key] for key in ("x", "y"))), {})  # of np.where
        else:
            check(name, option, args, options)


@pytest.mark.parametrize(
    "name", [n for n, f in sorted(FUNCTIONS.items()) if not isinstance(f, np.ufunc) and n != "np.where"]
)
def test_options_by_position_mean_the_same(name):
    """All parameters before the one in question have their defaults. NumPy hands options of ufuncs over by name."""
    args, parameters = required(name), list(signature(name).parameters.values())
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][len(args) :]
    for at, p in enumerate(by_position):
        if (name, p.name) not in TOGETHER:
            defaults = [q.default for q in by_position[:at]]
            check(name, p.name, (*args, *defaults, sample(name, p.name)), {})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_defaults_may_be_spelled_out(name):
    parameters = signature(name).parameters.values()
    known = options_of(name)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    defaults = {p.name: p.default for p in parameters if p.kind in kinds and p.name in known}
    if isinstance(FUNCTIONS[name], np.ufunc):
        defaults = {key: value for key, value in defaults.items() if key not in ("axes", "axis", "signature")}
    compare(name, call(name, required(name), defaults), FUNCTIONS[name](*required(name), **defaults))


REDUCTIONS = "sum prod max min all any mean var std count_nonzero".split()


@pytest.mark.parametrize("axis", [None, 0, -1, 1, (0, 1), (-1, 0), (0,), ()], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_axes_in_all_forms(name, axis):
    x = sw.shard(X, MESH, P("x", "y"))
    for keepdims in (False, True):
        if name in ("var", "std") and axis == ():
            continue  # no degrees of freedom: tests/unit/test_operations.py
        ours = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert_alike(ours, getattr(np, name)(X, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["argmax", "argmin", "sort", "argsort", "flip", "cumulative_sum", "take"])
def test_one_axis_in_all_forms(name):
    x, more = sw.shard(X, MESH, P("x", "y")), [ROWS] if name == "take" else []
    for axis in (None, 0, 1, -1, -2, np.int64(1)):
        if name != "cumulative_sum" or axis is not None:
            assert_alike(getattr(np, name)(x, *more, axis=axis), getattr(np, name)(X, *more, axis=axis))
    for wrong in (2, -3, 1.0, "0"):
        with pytest.raises(OperationError, match=rf"{name}: axis={wrong!r} is out of range for a tensor of 2 dims"):
            getattr(np, name)(x, *more, axis=wrong)


def test_clip_has_its_bounds_under_both_names():
    x = sw.shard(VECTOR, MESH, P("x"))
    for bounds in ({"max": 0.2}, {"min": 0.2}, {"min": -0.1, "max": 0.2}, {"a_min": None, "a_max": 0.2}):
        assert_same(np.clip(x, **bounds), np.clip(VECTOR, **bounds))
    assert_same(np.clip(x, None, 0.2), np.clip(VECTOR, None, 0.2))
    assert_same(np.clip(x, -0.1, 0.2), np.clip(VECTOR, -0.1, 0.2))
    with pytest.raises(TypeError, match=r"np.clip: min= gives 'min' a second time. Give it once"):
        np.clip(x, 0.1, 0.2, min=0.1)
    with pytest.raises(TypeError, match=r"np.var: correction= gives 'correction' a second time"):
        np.var(x, ddof=1, correction=2)


def test_hints_that_change_no_value_are_taken():
    x, y = sw.shard(X, MESH, P("x")), sw.shard(Y, MESH, P("y"))
    for hint in (True, False, "greedy", "optimal", ["einsum_path", (0, 1)]):
        assert_close(np.einsum("ij,kj->ik", x, y, optimize=hint), X @ Y.T)


def test_an_option_that_numpy_does_not_have_is_numpys_error():
    x = sw.shard(X, MESH, P("x"))
    for wrong in (lambda: np.sum(x, axes=0), lambda: np.add(x, x, sum=1), lambda: np.linalg.svd(x, mode=2)):
        with pytest.raises(TypeError, match=r"unexpected keyword argument"):
            wrong()


def test_what_numpy_means_by_where_and_size():
    x = sw.shard(X, MESH, P("x", "y"))
    for ours, theirs in zip(np.where(x > 0.5), np.where(X > 0.5), strict=True):
        assert_same(ours, theirs)
    with pytest.raises(OperationError, match=r"where: give both x and y, or neither"):
        np.where(x > 0.5, x)
    assert [np.size(x), np.size(x, 0), np.size(x, -1)] == [30, 5, 6]
    assert np.can_cast(x, np.float32, "same_kind")
    assert not np.can_cast(x, np.float32)
    assert not np.allclose(x, X + 1)
    assert np.allclose(x, X + 1, atol=2)


def test_new_arrays_like_an_array_are_on_its_mesh():
    x = sw.shard(X, MESH, P("x"))
    with sw.Mesh(z=3):
        for made in (np.zeros(8, like=x), np.arange(8, like=x), np.asarray([1.0] * 8, like=x)):
            assert made.mesh == MESH
            assert made.sharding.spec == P("x")


def test_linspace_between_arrays():
    low, high = np.array([0.0, 1.0, -3.0, 1e-320]), np.array([1.0, 1.0, 5.5, 3e-320])
    a, b = sw.shard(low, MESH, P("x")), sw.shard(high, MESH, P("y"))
    for options in (
        {},
        {"num": 1},
        {"num": 0},
        {"endpoint": False},
        {"dtype": np.int32},
        {"num": 1, "endpoint": False},
    ):
        assert_same(np.linspace(a, b, **{"num": 9, **options}), np.linspace(low, high, **{"num": 9, **options}))
        assert_same(np.linspace(a[:3], 7, **{"num": 9, **options}), np.linspace(low[:3], 7, **{"num": 9, **options}))
    assert_same(np.linspace(a[1], b[2], 5), np.linspace(low[1], high[2], 5))
    assert_same(np.linspace(0, b, 5), np.linspace(0, high, 5))
    assert_same(np.linspace([1, 2, 3, 4], b, 5), np.linspace([1, 2, 3, 4], high, 5))
    assert_same(np.linspace(low.astype(np.float32), b, 5), np.linspace(low.astype(np.float32), high, 5))
    for dtype in (np.float32, np.int8):
        ends = np.array([1, 7], dtype)
        assert_same(np.linspace(sw.shard(ends, MESH, P()), 3, 4), np.linspace(ends, 3, 4))
    traced = sw.sjit(lambda a, b: snp.linspace(a, b, 3))(a, b)
    assert_same(traced, np.linspace(low, high, 3))
    placed = snp.linspace(a, b, 8, sharding=P("x", "y"))
    assert placed.sharding.spec == P("x", "y")
    for wrong, text in ((-1, "num=-1 is negative"), (2.5, "num=2.5; give an integer")):
        with pytest.raises(OperationError, match=f"linspace: {text}"):
            snp.linspace(a, b, wrong)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"density": True}, {"bins": [-1, 0, 1, 3]}, {"range": (-1, 1)}])
def test_weights_of_a_histogram_keep_their_dtype(dtype, options):
    rng, mesh = np.random.default_rng(0), sw.Mesh(x=2)
    host, weights = rng.standard_normal(50), rng.integers(0, 5, 50).astype(dtype)
    x, w = sw.shard(host, mesh, P("x")), sw.shard(weights, mesh, P("x"))
    expected = np.histogram(host, weights=weights, **options)[0]
    for given in (w, weights):
        counts = np.histogram(x, weights=given, **options)[0]
        assert counts.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(counts), expected, rtol=1e-6)
    with pytest.raises(OperationError, match=r"histogram: weights are booleans"):
        np.histogram(x, weights=w > 1)


@pytest.mark.parametrize("axis", [(0,), (), 0.0, "0"])
def test_argmax_takes_one_dim(axis):
    x = sw.shard(np.arange(8.0).reshape(2, 4), sw.Mesh(x=2), P("x"))
    for function in (np.argmax, np.argmin):
        with pytest.raises(OperationError, match=r"arg(max|min): axis=.* is out of range"):
            function(x, axis=axis)


@pytest.mark.parametrize("engine", ["numpy", "torch", "literal"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("name", "fft ifft rfft irfft hfft ihfft fftn ifftn rfftn irfftn".split())
def test_fourier_transforms_have_numpys_dtypes(name, dtype, engine):
    """Once irfft and hfft of float16 failed with torch, and irfftn of one dim with NumPy."""
    host = (8 * X[:, :4]).astype(dtype)
    x = sw.shard(host, sw.Mesh(x=4, engine=engine), P(None, "x"))
    for options in (
        [{"axes": axes} for axes in (None, (0,), (-1, 0))] if name.endswith("n") else [{}, {"n": 3, "axis": 0}]
    ):
        transform = partial(getattr(np.fft, name), **options)
        for made in (transform(x), sw.sjit(transform)(x)):
            expected = transform(host)
            assert made.dtype == expected.dtype
            np.testing.assert_allclose(made, expected, rtol=0.01, atol=0.05)


def test_complex_elements_have_no_histogram():
    """Once they were counted in other bins than NumPy's."""
    with pytest.raises(OperationError, match="histogram: elements of complex128 have no order"):
        np.histogram(sw.shard(X + 1j * Y, MESH, P("x")))
