"""Comparisons that assert."""

import numpy as np


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


def assert_devices(mesh, actual, expected):
    """The tensors in device order are what the oracle says each device holds."""
    actual = list(actual)
    assert len(actual) == len(expected) == mesh.size
    for coords, tensor in by_coords(mesh, actual).items():
        try:
            assert_same(tensor, expected[coords])
        except AssertionError as error:
            raise AssertionError(f"device {coords}: {error}") from error
