"""Random numbers that depend on a key only: the same key gives the same numbers on every mesh and engine.

Each element's bits depend on the key and on its global index, so every device computes only its own shard. Keys are
values: `key.split()` makes new keys, and there is no hidden state.
"""

import numbers
from typing import Any

import numpy as np

from shardwright.arrays import Array
from shardwright.eager import apply, make, sharding_for
from shardwright.errors import OperationError
from shardwright.numpy import astype, finfo, iinfo, where
from shardwright.numpy.common import integer, sizes_of
from shardwright.ops import Attrs, is_small
from shardwright.sharding import P, Sharding

_MASK = (1 << 64) - 1
Where = Sharding | P | None


class Key:
    """A key: 64 bits. Every seed, also 0, is equally good.

    >>> Key(0) == Key(0), Key(0).split(2)[0] == Key(0).split(2)[1]
    (True, False)
    """

    __slots__ = ("bits",)

    def __init__(self, seed: int) -> None:
        self.bits = int(seed) & _MASK

    def split(self, count: int = 2) -> tuple["Key", ...]:
        """`count` new keys, different from this key and from one another."""
        return tuple(Key(~self.bits).fold(number) for number in range(1, count + 1))

    def fold(self, number: int) -> "Key":
        """A new key from this key and an integer, for example the index of a step or a layer."""
        mixed = (self.bits + (int(number) + 1) * 0x9E3779B97F4A7C15) & _MASK
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
        return Key(mixed ^ (mixed >> 31))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.bits == self.bits

    def __hash__(self) -> int:
        return hash(self.bits)

    def __repr__(self) -> str:
        return f"Key({self.bits})"


def _checked(key: object) -> Key:
    if not isinstance(key, Key):
        raise OperationError(f"Random numbers come from a Key; got {key!r}. Write Key(0), or key.split().")
    return key


def bits(key: Key, shape: tuple[int, ...] | int, *, sharding: Where = None) -> Array:
    """64 random bits per element, as unsigned integers."""
    key = _checked(key)
    size = sizes_of("random", shape)
    result: Array = make(Array, "random_bits", sharding_for(size, sharding), size, Attrs(key=key.bits))
    return result


def uniform(
    key: Key,
    shape: tuple[int, ...] | int = (),
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = np.float64,
    sharding: Where = None,
) -> Array:
    """Uniformly distributed numbers from `low` to `high`, without `high`."""
    most = finfo(_float("uniform", dtype)).max
    if not -most <= low < high <= most:
        raise OperationError(
            f"uniform: no numbers of {np.dtype(dtype)} from {low} to {high} (excluded). Give low < high, both up to {most:g}."
        )
    digits = min(np.finfo(np.float64).nmant, _digits(np.dtype(dtype))) + 1  # so that no result is rounded up to 1
    unit = astype(bits(key, shape, sharding=sharding) >> np.uint64(64 - digits), np.float64) * 2.0**-digits
    if (low, high) == (0.0, 1.0):
        return astype(unit, dtype)
    scaled = astype(unit * (high - low) + low, dtype)
    return astype(where(scaled < high, scaled, low), dtype)


def _float(name: str, dtype: Any) -> "np.dtype[Any]":
    """A dtype, checked to be a real float."""
    kind = np.dtype(dtype)
    if kind.kind != "f" and not is_small(kind):
        raise OperationError(f"{name}: dtype={kind}; random floats have a float dtype. Use randint for integers.")
    return kind


def _digits(dtype: "np.dtype[Any]") -> int:
    """The bits of a float's fraction."""
    return int(np.finfo(dtype).nmant) if dtype.kind == "f" and dtype.itemsize > 1 else 2 if dtype.itemsize == 1 else 7


def normal(key: Key, shape: tuple[int, ...] | int = (), *, dtype: Any = np.float64, sharding: Where = None) -> Array:
    """Numbers of the standard normal distribution."""
    _float("normal", dtype)
    first, second = _checked(key).split()
    radius = apply("sqrt", (apply("log", (1.0 - uniform(first, shape, sharding=sharding),)) * -2.0,))
    angle = apply("cos", (uniform(second, shape, sharding=sharding) * (2.0 * np.pi),))
    return astype(radius * angle, dtype)


def randint(
    key: Key, shape: tuple[int, ...] | int, low: int, high: int, *, dtype: Any = np.int64, sharding: Where = None
) -> Array:
    """Random integers from `low` to `high`, without `high`."""
    low, high = integer("randint", "low", low), integer("randint", "high", high)
    if high <= low:
        raise OperationError(f"randint: the range from {low} to {high} (excluded) is empty. Give high > low.")
    if np.dtype(dtype).kind not in "iu":
        raise OperationError(
            f"randint: dtype={np.dtype(dtype)}; random integers have an integer dtype. Use uniform for floats."
        )
    least, most = iinfo(dtype).min, iinfo(dtype).max
    if low < least or high > most + 1:
        raise OperationError(
            f"randint: the range from {low} to {high} (excluded) is beyond {np.dtype(dtype)}, which has {least} to {most}."
        )
    offset = bits(key, shape, sharding=sharding)
    if high - low < 2**64:
        offset = offset % np.uint64(high - low)
    if low >= 0:
        return astype(offset + np.uint64(low), dtype)
    return astype(
        astype(offset ^ np.uint64(2**63), np.int64) + (low + 2**63), dtype
    )  # the offset less 2^63: no overflow


def bernoulli(key: Key, p: float, shape: tuple[int, ...] | int = (), *, sharding: Where = None) -> Array:
    """True with probability p."""
    if not isinstance(p, numbers.Real) or not 0 <= p <= 1:
        raise OperationError(f"bernoulli: p={p!r} is not a probability. Give a number from 0 to 1, then the shape.")
    result: Array = uniform(key, shape, sharding=sharding) < p
    return result


def randn(*shape: int, key: Key, dtype: Any = np.float64, sharding: Where = None) -> Array:
    """`normal` with the sizes as separate arguments."""
    return normal(key, shape, dtype=dtype, sharding=sharding)
