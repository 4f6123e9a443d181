"""Kernels are local: a device's result depends on its own shards alone. They also run on torch and on jax.numpy.

The calls are real: they are recorded from the stacked engine while the cases of all operations run on random meshes and
shardings. Each call runs again: one device at a time, with garbage on all other devices, on torch and on jax.numpy.
"""

import math
from collections import defaultdict
from itertools import islice

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import Phase, assume, given, seed, settings
from hypothesis import strategies as st

import shardwright as sw
import shardwright.numpy as snp
from cases import CASES
from helpers import assert_same
from shardwright import P, nn, random
from shardwright.caches import Cache
from shardwright.eager import calls as eager_calls
from shardwright.eager.calls import watching
from shardwright.engines import whole
from shardwright.engines.direct import DIRECT
from shardwright.engines.jax.space import JaxSpace
from shardwright.engines.stacked import Stacked
from shardwright.engines.torch.convert import from_host, to_host
from shardwright.engines.torch.direct import DIRECT as TORCH_DIRECT
from shardwright.engines.torch.space import TorchSpace
from shardwright.engines.whole import whole_operation
from shardwright.kernels import KERNELS, PLAIN, run
from shardwright.ops import OPS, Attrs, is_small
from shardwright.plan import OperationPlan
from strategies import meshes, shardings

DYNAMIC = {"nonzero", "masked", "unique", "index", "repeat"}
NAMES = sorted(set(KERNELS) - DYNAMIC)
FROM_NOTHING = {"places", "random_bits"}  # kernels without operands
MATRICES = set(
    "cholesky det inv matrix_power slogdet solve svdvals eigh eigvalsh qr qr_complete svd svd_full pinv matrix_rank "
    "matrix_norm eig eigvals".split()
)
EXACT = set(  # kernels that move or select elements
    "permute_dims reshape broadcast_to expand_rows concat take take_along_axis triangle diagonal sort fftshift ifftshift "
    "where positive negative abs max min maximum minimum max_pool clip in_range extremes assign scatter fill top_k".split()
)
ENGINE = Stacked()
MESH = sw.Mesh(data=2, model=4)


# -- recording ----------------------------------------------------------------------------------------------------------


@st.composite
def drawn(draw, name):
    """A case with its operands on a mesh; mostly devices hold different shards of some operand."""
    mesh = draw(meshes(max_axes=3, max_devices=8).filter(lambda mesh: mesh.size > 1))
    case = CASES[name](draw, draw(st.integers(0, 1000)))
    arrays = [
        sw.shard(host, draw(shardings(mesh, np.shape(host), partial=case.partial and host.dtype.kind != "b")))
        for host in case.hosts
    ]
    split = any(x.size > 1 and dim.parts > 1 for x in arrays for dim in x.layout.dims)
    assume(split or draw(st.integers(0, 4)) == 4)
    return case, arrays


def run_cases():
    """A few examples of every case."""
    for number, name in enumerate(CASES):

        @seed(number)
        @settings(max_examples=4, phases=[Phase.generate])
        @given(pair=drawn(name))
        def example(pair):
            case, arrays = pair
            case.ours(*arrays)

        example()


def run_others():
    """Calls that cases lack or seldom have: random bits, activations, many split indices, prefixes and windows over split dims,
    rows and matrices of which each device has its own, more dtypes."""
    rng = np.random.default_rng(0)

    def floats(*shape):
        return rng.uniform(0.1, 0.9, shape)

    def sharded(host, *spec):
        return sw.shard(host, MESH, P(*spec))

    for spec in (P("data", "model"), P(("model", "data"), None), P(None, "model"), P("model", "data")):
        where = sw.Sharding(MESH, spec)
        random.bits(random.Key(7), (5, 9), sharding=where)
        random.uniform(random.Key(8), (7, 3), sharding=where)
        snp.arange(11, sharding=sw.Sharding(MESH, P(*spec[:1])))
        x = sw.shard(floats(5, 7), where)
        nn.erf(x)
        nn.gelu(x)
        snp.clip(x, 0.2, 0.8)
        nn.silu(x)
        nn.cross_entropy(x, sharded(np.array([0, 6, 3, 2, 6]), spec[0]))
        snp.argmax(x)
        for dtype in (np.float32, np.complex128, ml_dtypes.bfloat16):
            y = snp.astype(x, dtype)
            for function in (snp.negative, snp.tanh, snp.expm1, snp.sum, lambda y: y @ y.mT, lambda y: y + 1):
                function(y)
        for axis in (0, 1):
            for function in (snp.cumulative_sum, snp.cumulative_prod, snp.max, snp.prod):
                function(x, axis=axis)
            snp.take(x, sharded(np.array([[0, -1, 3], [2, 4, 1]]), "data", "model"), axis=axis)
        for index, value in (
            ((slice(1, 4), slice(5, None, -2)), floats(3, 3)),
            ((slice(None), 3), floats(5)),
            ((np.array([4, 0, 4]), np.array([6, -1, 6])), floats(3)),
            ((slice(1, 5, 2), np.array([2, 2, 5])), sharded(floats(2, 3), "data", "model")),
            (x > 0.5, 0.25),
        ):
            copy = x + 0
            copy[index] = value
        snp.tile(x, (2, 3))
        snp.repeat(x, 3, axis=0)
        snp.searchsorted(snp.arange(6.0), x)
        snp.isin(x, np.array([0.5]))
        host, weights = floats(2, 9, 7, 4), floats(3, 2, 2, 6)
        for dims in ((*spec, None, None), (None, *spec, None), (None, None, *spec)):
            images = sharded(host, *dims)
            nn.conv2d(images, weights, stride=2, padding=1, groups=2)
            nn.max_pool(images, 3, 2, 1)
            nn.avg_pool(images, 2)
    many = sharded(rng.integers(0, 4, 100_003), "model")  # whatever a latency costs, too many to gather
    eager_calls.apply("in_range", (many,), Attrs(low=0, high=3, error=IndexError, text="{}"))
    long = sharded(np.round(floats(2, 100_003), 2), "data", "model")  # so long that candidates are sent
    for largest in (False, True):
        snp.top_k(long, 3, largest=largest)
    cache = [sharded(floats(2, 3, 20_001, 4), None, None, "model") for _ in range(2)]  # so long that keys stay split
    nn.scaled_dot_product_attention(sharded(floats(2, 6, 2, 4), "data"), *cache)
    nn.scaled_dot_product_attention(sharded(floats(2, 6, 2, 4), "data"), *cache, floats(20_001) > 0.3, causal=True)
    matrices = floats(5, 3, 3)
    matrices = sharded(matrices @ matrices.swapaxes(-1, -2) + np.eye(3), "model")
    for name in "cholesky det inv slogdet svdvals eigh eigvalsh qr svd matrix_norm eig eigvals".split():
        getattr(snp.linalg, name)(matrices)
    snp.linalg.pinv(matrices, rtol=0.1)
    snp.linalg.matrix_rank(matrices, rtol=0.1)
    rows = sharded(floats(5, 6), "model")
    for name in "fft ifft rfft irfft hfft ihfft".split():
        getattr(snp.fft, name)(rows + (0 if name in ("rfft", "ihfft") else 1j), axis=1)
    for name in "fftn ifftn rfftn irfftn fftshift ifftshift".split():
        getattr(snp.fft, name)(rows + (0 if name == "rfftn" else 1j), axes=(1,))


def frozen(x):
    """A copy, in the same order in memory, that no kernel may write to."""
    result = x.copy(order="K")
    result.setflags(write=False)
    return result


@pytest.fixture(scope="module")
def calls():
    """For each kernel the calls that the stacked engine made, with copies of their data."""
    recorded = defaultdict(dict)
    original = Stacked.local

    def local(self, what, data):
        if what not in recorded[what.name]:
            recorded[what.name][what] = [frozen(x) if isinstance(x, np.ndarray) else x for x in data]
        return original(self, what, data)

    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"), MESH:
        patch.setattr(Stacked, "local", local)
        patch.setattr(Stacked, "fuses", False)  # every kernel passes through `local`
        patch.setattr(Stacked, "operation", lambda self, plan: None)
        # Plans prepared elsewhere skip `local`; those prepared here are slow.
        patch.setattr(eager_calls, "_ready", Cache(limit=2**26, size=lambda ready: 1))
        run_others()
        run_cases()
    return {name: list(some.items()) for name, some in recorded.items()}


# -- locality -----------------------------------------------------------------------------------------------------------


def described(local):
    """A call in words, for messages."""
    operands, results = (
        ", ".join(f"{layout.shape} {layout.sharding}" for layout in layouts)
        for layouts in (local.operands, local.results)
    )
    return f"{local.name} with {dict(local.call.attrs)}: {operands} -> {results}"


def mesh_size(local):
    return (*local.operands, *local.results)[0].mesh.size


def shards_at(local, data, place):
    """What one device holds of the operands; scalars as they are."""
    layouts = iter(local.operands)
    return [ENGINE.shard(x, next(layouts), place) if isinstance(x, np.ndarray) else x for x in data]


def results_at(local, results, place):
    return [ENGINE.shard(x, layout, place) for x, layout in zip(results, local.results, strict=True)]


def assert_alike(name, actual, expected):
    """Equal: exactly for integers and moved elements, otherwise within rounding."""
    if name in EXACT or expected.dtype.kind in "biu":
        assert_same(actual, expected)
        return
    assert actual.shape == expected.shape, f"shape {actual.shape} instead of {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype} instead of {expected.dtype}"
    if is_small(expected.dtype):
        actual, expected, rtol = actual.astype(np.float32), expected.astype(np.float32), 2e-2
    else:
        rtol = 1e-9 if np.finfo(expected.dtype).nmant > 23 else 1e-5
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-2 * rtol)


def check_lanes(local, data):
    """The kernel on all lanes gives what it gives on each device's shards alone."""
    results = ENGINE.local(local, data)
    for place in range(mesh_size(local)):
        alone = run(local.call.at(place), shards_at(local, data, place))
        for actual, expected in zip(alone, results_at(local, results, place), strict=True):
            assert_alike(local.name, np.asarray(actual), expected)


def garbage(local, operand, x, rng):
    """Other values in place of an operand's data, valid for the kernel where it refuses invalid data."""
    if local.name in MATRICES:
        return 1e6 * np.eye(*x.shape[-2:]) if x.ndim > 1 else 1e6
    if local.name == "take_along_axis" and operand == 1:
        return (x + 1) % local.operands[0].local_shape[local.call.attrs["axis"]]
    if local.name == "scatter_reduce" and operand > 1:
        return (x + 1) % min(local.operands[0].shape[dim] for dim in local.call.attrs["dims"])
    if x.dtype.kind == "b":
        return ~x
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        return rng.choice([limits.min, limits.max, limits.max // 3, 0], x.shape)
    return rng.choice([np.nan, np.inf, -1e30, 1e30, 0.0], x.shape)


def spoiled(local, data, place, rng):
    """The data with garbage in place of all but one device's shards, and how many elements other devices lost."""
    layouts, result, lost = iter(local.operands), [], 0
    for operand, x in enumerate(data):
        if isinstance(x, np.ndarray):
            layout = next(layouts)
            other = x.copy(order="K")  # the same order in memory: sums round alike
            other[...] = garbage(local, operand, x, rng)
            ENGINE.shard(other, layout, place)[...] = ENGINE.shard(x, layout, place)
            lost += other.size - math.prod(layout.at(place).local_shape)
            x = other
        result.append(x)
    return result, lost


def check_garbage(local, data):
    """Garbage on other devices and in padding leaves a device's result unchanged; returns how many elements were lost."""
    rng = np.random.default_rng(0)
    results = ENGINE.local(local, data)
    size, total = mesh_size(local), 0
    for place in sorted({0, size // 2, size - 1}):
        bad, lost = spoiled(local, data, place, rng)
        total += lost
        again = ENGINE.local(local, bad)
        for actual, expected in zip(results_at(local, again, place), results_at(local, results, place), strict=True):
            assert_same(actual, expected)
    return total


def test_calls_of_every_kernel_are_recorded(calls):
    assert set(calls) - DYNAMIC == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_local(calls, name):
    lost = 0
    with np.errstate(all="ignore"):
        for local, data in calls[name]:
            try:
                check_lanes(local, data)
                lost += check_garbage(local, data)
            except Exception as error:
                raise AssertionError(described(local)) from error
    assert lost > 0 or name in FROM_NOTHING, "no call had data on other devices"


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_what_runs_in_place_of_a_kernel_gives_the_same(calls, monkeypatch, name):
    """On whole tensors, for every call that was recorded: the function, and the kernel that it stands for."""
    for local, data in calls[name]:
        if not all(layout.is_plain for layout in local.operands):
            continue
        given = iter(zip(local.operands, local.call.dtypes, strict=True))
        kinds = [next(given) if isinstance(x, np.ndarray) else x for x in data]
        plan = OperationPlan(OPS[name], kinds, Attrs(**local.call.attrs))
        whole._functions.clear()
        direct = whole_operation(plan)(*data)
        with monkeypatch.context() as patch:
            patch.delitem(DIRECT, name)
            whole._functions.clear()
            kernels = whole_operation(plan)(*data)
        assert_alike(name, np.asarray(direct), np.asarray(kernels))


def leaks_always(call, x):
    """Without lanes the negative; with lanes their mean as well."""
    return np.mean(x, axis=tuple(range(call.n)), keepdims=True) - 2 * x


def leaks_what_is_not_finite(call, x):
    return -x + 0 * np.max(x, axis=tuple(range(call.n)), keepdims=True)


def reads_padding(call, x):
    return -x + x.shape[-2]


@pytest.mark.parametrize(
    ("fake", "check"),
    [(leaks_always, check_lanes), (leaks_what_is_not_finite, check_garbage), (reads_padding, check_lanes)],
)
def test_the_check_can_fail(calls, monkeypatch, fake, check):
    local, data = calls["negative"][0]
    assert local.operands[0].shape == (5, 7), "shards of 3 and 2 rows: there is padding"
    with np.errstate(all="ignore"):
        check(local, data)
        monkeypatch.setitem(KERNELS, "negative", fake)
        with pytest.raises(AssertionError, match=r"differ|Not equal"):
            check(local, data)


# -- data-dependent shapes ----------------------------------------------------------------------------------------------

HOST = np.random.default_rng(1).integers(-2, 3, (5, 7))
ROWS, COLUMNS, COUNTS = np.array([4, -5, 2]), np.array([0, 3, -1]), np.array([2, 0, 1, 3, 1])


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("spec", [P(), P("data"), P(None, "model"), P("model", "data")])
@pytest.mark.parametrize(
    ("kernel", "ours", "numpys"),
    [
        ("nonzero", snp.nonzero, np.nonzero),
        ("masked", lambda x: (x[x > 0],), lambda x: (x[x > 0],)),
        ("unique", snp.unique_all, np.unique_all),
        ("index", lambda x: (x[ROWS, COLUMNS],), lambda x: (x[ROWS, COLUMNS],)),
        ("repeat", lambda x: (snp.repeat(x, COUNTS, axis=0),), lambda x: (np.repeat(x, COUNTS, axis=0),)),
    ],
)
def test_data_dependent_kernels_give_what_numpy_gives(monkeypatch, engine, spec, kernel, ours, numpys):
    ran, original = [], KERNELS[kernel]
    monkeypatch.setitem(KERNELS, kernel, lambda call, *data: ran.append(call) or original(call, *data))
    results = ours(sw.shard(HOST, sw.Mesh(data=2, model=4, engine=engine), spec))
    for actual, expected in zip(results, numpys(HOST), strict=True):
        assert_same(actual, expected)
    assert ran, f"{kernel} did not run"


# -- torch --------------------------------------------------------------------------------------------------------------

TORCH = TorchSpace()


def on_torch(call, data):
    """The results of a call on torch tensors, as host arrays."""
    made = run(call.on(TORCH), [from_host(x) if isinstance(x, np.ndarray) else x for x in data])
    assert all(isinstance(x, torch.Tensor) for x in made), "the kernel left the namespace"
    return [to_host(x) for x in made]


def turned(vectors):
    """Eigenvectors, which are columns, turned so that each one's largest element is positive: their phase is arbitrary."""
    largest = np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=-2, keepdims=True), axis=-2)
    return vectors * (np.abs(largest) / largest)


def check_torch(local, data):
    """On torch the kernel gives what it gives in NumPy: on all lanes, and on the shards of each of three devices."""
    layouts = iter(zip(local.operands, local.call.operands, strict=True))
    lanes = [ENGINE.spread(x, *next(layouts)) if isinstance(x, np.ndarray) else x for x in data]
    size = mesh_size(local)
    calls = [(local.call, lanes)]
    calls += [(local.call.at(place), shards_at(local, data, place)) for place in sorted({0, size // 2, size - 1})]
    for call, operands in calls:
        made, wanted = on_torch(call, operands), [*map(np.asarray, run(call, operands))]
        if local.name == "svd":  # whose vectors have a common sign that is arbitrary: the product has none
            made, wanted = ([(u * s[..., None, :]) @ v, s] for u, s, v in (made, wanted))
        for at, (actual, expected) in enumerate(zip(made, wanted, strict=True)):
            if local.name in ("eig", "eigh") and at == 1:
                actual, expected = turned(actual), turned(expected)
            assert_alike(local.name, actual, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_runs_on_torch(calls, name):
    with np.errstate(all="ignore"):
        for local, data in calls[name]:
            try:
                check_torch(local, data)
            except Exception as error:
                raise AssertionError(described(local)) from error


@pytest.mark.parametrize("name", sorted(PLAIN | set(TORCH_DIRECT) | {"floor_divide", "expm1", "tanh"}))
def test_what_runs_on_torch_in_place_of_a_kernel_gives_the_same(calls, name):
    """On whole tensors, for every call that was recorded: torch's function, and NumPy's."""
    for local, data in calls[name]:
        if not all(layout.is_plain for layout in local.operands):
            continue
        given = iter(zip(local.operands, local.call.dtypes, strict=True))
        kinds = [next(given) if isinstance(x, np.ndarray) else x for x in data]
        plan = OperationPlan(OPS[name], kinds, Attrs(**local.call.attrs))
        made = whole_operation(plan, TORCH)(*(from_host(x) if isinstance(x, np.ndarray) else x for x in data))
        with np.errstate(all="ignore"):
            assert_alike(name, to_host(made), whole_operation(plan)(*data))


def test_operations_of_several_steps_run_on_whole_torch_tensors():
    """Every operation that runs, once more on torch: also those that fetch rows, or have several kernels."""
    seen = []

    def see(ready, operands, made):
        """Copies: assignments change arrays later."""
        results = made if isinstance(made, tuple) else (made,)
        seen.append((ready.plan, [x if np.isscalar(x) else np.array(x) for x in operands], [*map(np.array, results)]))

    with watching(see), MESH:
        run_others()
        for dtype in (np.float32, np.uint64, np.int8, ml_dtypes.float8_e4m3fn, np.complex64, np.bool_):
            x = sw.shard(np.arange(35).reshape(5, 7).astype(dtype), MESH, P("data", "model"))
            for function in (
                lambda x: x[::-1, 5:0:-2],
                lambda x: x[3, 1:],
                lambda x: snp.flip(x),
                lambda x: snp.roll(x, (2, -3), axis=(0, 1)),
                lambda x: snp.tile(x, (2, 2)),
                lambda x: snp.concat([x, x[:0]]),
                lambda x: x[5:2],
            ):
                function(x)
        nn.max_pool(sw.shard(np.arange(30).reshape(1, 5, 6, 1), MESH, P(None, "model")), 3, 2, 1)
    names = set()
    for plan, operands, expected in seen:
        made = whole_operation(plan, TORCH)(*(x if np.isscalar(x) else from_host(x) for x in operands))
        for x, y in zip(made if isinstance(made, tuple) else (made,), expected, strict=True):
            if plan.op.name not in ("eig", "eigh"):
                assert_alike(plan.op.name, to_host(x), y)
        names.add(plan.op.name)
    assert {"rows", "convolution", "max_pool", "cumulative_sum", "in_range", "qr", "fft", "scatter"} <= names


# -- jax.numpy ----------------------------------------------------------------------------------------------------------

UNTRACEABLE = {"in_range": "raises an error that depends on data"}  # each still runs outside of jax.jit


@pytest.fixture(scope="module")
def space():
    """The JAX engine's namespace with 64-bit types; compilation is fast rather than its code."""
    names = ("jax_enable_x64", "jax_disable_most_optimizations")
    options = {name: jax.config.values[name] for name in names}
    for name in options:
        jax.config.update(name, True)
    yield JaxSpace(lambda condition, error: None)
    for name, value in options.items():
        jax.config.update(name, value)


def replayed(calls):
    """Up to two calls of different dtypes: those with elements and with the most operands and results in lanes."""

    def worth(item):
        local, data = item
        layouts = (*local.operands, *local.results)
        return all(np.size(x) for x in data), sum(math.prod(layout.lane_shape) > 1 for layout in layouts)

    by_dtype = {}
    for local, data in sorted(calls, key=worth, reverse=True):
        by_dtype.setdefault((*local.call.dtypes, *local.call.result_dtypes), (local, data))
    return list(islice(by_dtype.values(), 2))


def check_space(space, local, data, traced):
    """The kernel in another namespace, traced or not, gives what it gives in NumPy."""
    call, layouts, arrays = local.call.on(space), iter(zip(local.operands, local.call.operands, strict=True)), {}
    for operand, x in enumerate(data):
        if isinstance(x, np.ndarray):
            arrays[operand] = space.asarray(ENGINE.spread(x, *next(layouts)))

    def kernel(arrays):
        results = run(call, [arrays.get(operand, x) for operand, x in enumerate(data)])
        assert all(isinstance(x, jax.Array) for x in results), "the kernel left the namespace"
        return results

    results = (jax.jit(kernel) if traced else kernel)(arrays)
    layouts = zip(local.results, local.call.results, strict=True)
    made = [ENGINE.gathered(np.asarray(x), *pair) for x, pair in zip(results, layouts, strict=True)]
    expected = ENGINE.local(local, data)
    for place in range(mesh_size(local)):
        for x, y in zip(results_at(local, made, place), results_at(local, expected, place), strict=True):
            assert_alike(local.name, x, y)


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_runs_on_jax_numpy(calls, space, name):
    for local, data in replayed(calls[name]):
        with np.errstate(all="ignore"):
            try:
                check_space(space, local, data, traced=name not in UNTRACEABLE)
            except Exception as error:
                raise AssertionError(described(local)) from error


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_a_kernel_listed_as_untraceable_is_not_traceable(calls, space, name):
    for local, data in replayed(calls[name]):
        with pytest.raises(jax.errors.JAXTypeError):
            check_space(space, local, data, traced=True)
