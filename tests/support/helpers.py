"""Comparisons that assert."""

import ml_dtypes
import numpy as np

import shardwright as sw
from shardwright.engines import engine_of


def assert_same(actual, expected):
    """Equal in shape, dtype and every element (NaN equals NaN)."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape} instead of {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype} instead of {expected.dtype}"
    with np.errstate(invalid="ignore"):
        alike = (actual == expected) | ((actual != actual) & (expected != expected))
    assert np.all(alike), f"{np.count_nonzero(~np.asarray(alike))} of {actual.size} elements differ"


def by_coords(mesh, tensors):
    """Tensors in device order as the oracle's dict."""
    return dict(zip(np.ndindex(*mesh.shape), tensors, strict=True))


def assert_close(actual, expected, roundings=16):
    """Equal in shape and dtype, and in every element but for a few roundings of that dtype."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape} instead of {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype} instead of {expected.dtype}"
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    eps = float(ml_dtypes.finfo(actual.dtype).eps)
    np.testing.assert_allclose(
        actual.astype(wide), expected.astype(wide), rtol=roundings * eps, atol=roundings * eps, equal_nan=True
    )


def is_exact(dtype):
    """Whether sums of a dtype don't depend on their order."""
    return np.dtype(dtype).kind in "biu" and np.dtype(dtype).type.__module__ == "numpy"


def assert_devices(mesh, actual, expected, exact=True):
    """The tensors in device order are what the oracle says each device holds; if not `exact`, but for rounding."""
    actual = list(actual)
    assert len(actual) == len(expected) == mesh.size
    for coords, tensor in by_coords(mesh, actual).items():
        try:
            (assert_same if exact else assert_close)(tensor, expected[coords])
        except AssertionError as error:
            raise AssertionError(f"device {coords}: {error}") from error


def held_by(x):
    """What each device of an array holds, in their order; over several processes a collective."""
    if engine_of(x.mesh).processes > 1:
        return sw.PerDevice.of(x.lanes).values()
    return [shard.data for shard in x.shards]
