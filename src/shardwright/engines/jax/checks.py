"""Checks of data in a compiled program: it gives what a check looks at as one more result, and the host raises the error."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

Array = Any
# Results that are not finite although the operands are: NumPy's errors for them.
FINITE = {
    "cholesky": "Matrix is not positive definite",
    "inv": "Singular matrix",
    "solve": "Singular matrix",
}


class Check(NamedTuple):
    """What a device found, and what to make of it on the host: `fail` raises if it is wrong."""

    found: Array  # extremes, or a boolean: the largest of several rounds counts
    fail: Callable[[Any], None]


def neutral(found: Any) -> Array:
    """What a check finds where it did not run."""
    dtype = np.dtype(found.dtype)
    return jnp.full(found.shape, False if dtype.kind == "b" else np.iinfo(dtype).min, dtype)


def worse(one: Array, other: Array) -> Array:
    """What two runs of a check found together."""
    return jnp.maximum(one, other)


def is_finite(x: Array, dims: int) -> Array:
    """Whether all elements along the last dims are finite."""
    return jnp.all(jnp.isfinite(x), axis=tuple(range(x.ndim - dims, x.ndim)))
