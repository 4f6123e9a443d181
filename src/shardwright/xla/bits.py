"""Bits of elements: shifts, counts, other dtypes for the same bits, fewer bits of precision, and random bits."""

from typing import Any

import numpy as np

from shardwright.arrays import Array
from shardwright.eager import make
from shardwright.errors import OperationError
from shardwright.mesh import current_mesh
from shardwright.sharding import Sharding
from shardwright.xla.values import DType, Value, cast, expand, full_like, is_known, row, where


def unsigned(dtype: DType) -> DType:
    """The unsigned integer dtype of the same width."""
    return np.dtype(f"u{dtype.itemsize}")


def _guarded(shifted: Value, x: Value, amount: Value, beyond: Value) -> Value:
    """A shift, by defined results where the amount is negative or not below the number of bits."""
    width = x.dtype.itemsize * 8
    count = cast(amount, unsigned(amount.dtype))
    if is_known(count) and (count < width).all():
        return shifted
    return where(row("less", count, full_like(count, width)), shifted, beyond)


def _within(amount: Value) -> Value:
    """Amounts that are valid whatever the width: the others are looked at separately."""
    return row("bitwise_and", amount, full_like(amount, amount.dtype.itemsize * 8 - 1))


def shift_left(x: Value, amount: Value) -> Value:
    """Bits moved up; 0 beyond the width."""
    return _guarded(row("bitwise_left_shift", x, _within(amount)), x, amount, full_like(x, 0))


def shift_right_logical(x: Value, amount: Value) -> Value:
    """Bits moved down, zeros above; 0 beyond the width."""
    plain, by = cast(x, unsigned(x.dtype)), cast(_within(amount), unsigned(x.dtype))
    shifted = row("bitwise_right_shift", plain, by)
    return cast(_guarded(shifted, x, amount, full_like(shifted, 0)), x.dtype)


def shift_right_arithmetic(x: Value, amount: Value) -> Value:
    """Bits moved down, the sign above; nothing but the sign beyond the width."""
    if x.dtype.kind == "u":
        signed = np.dtype(f"i{x.dtype.itemsize}")
        return cast(shift_right_arithmetic(cast(x, signed), cast(amount, signed)), x.dtype)
    sign = row("bitwise_right_shift", x, full_like(x, x.dtype.itemsize * 8 - 1))
    return _guarded(row("bitwise_right_shift", x, _within(amount)), x, amount, sign)


def population_count(x: Value) -> Value:
    """How many bits are 1."""
    kind, width = unsigned(x.dtype), x.dtype.itemsize * 8
    bits = cast(x, kind)
    mask = (1 << width) - 1

    def summed(bits: Value, shift: int, pattern: int) -> Value:
        low = full_like(bits, pattern & mask)
        down = row("bitwise_right_shift", bits, full_like(bits, shift))
        return row("add", row("bitwise_and", bits, low), row("bitwise_and", down, low))

    for shift, pattern in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F), (8, 0x00FF00FF00FF00FF),
                           (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):  # fmt: skip
        if shift < width:
            bits = summed(bits, shift, pattern)
    return cast(bits, x.dtype)


def leading_zeros(x: Value) -> Value:
    """How many bits above the highest 1 are 0."""
    bits = cast(x, unsigned(x.dtype))
    shift = 1
    while shift < x.dtype.itemsize * 8:
        bits = row("bitwise_or", bits, row("bitwise_right_shift", bits, full_like(bits, shift)))
        shift *= 2
    return cast(population_count(row("bitwise_invert", bits)), x.dtype)


def bitcast(x: Value, dtype: Any) -> Value:
    """The same bits in another dtype; a wider one joins the last dim, a narrower one adds a dim, lowest bits first."""
    wanted = np.dtype(dtype)
    narrow, wide = sorted((x.dtype.itemsize, wanted.itemsize))
    if x.dtype.kind == "b" or wanted.kind == "b":
        raise OperationError(f"bitcast: {x.dtype} has no bits that could be {wanted}. Convert it instead.")
    if narrow == wide:
        return x if x.dtype == wanted else row("bitcast", x, dtype=wanted)
    if x.dtype.kind == "c" or wanted.kind == "c":
        raise OperationError(f"bitcast: {x.dtype} to {wanted} is not supported. Take real and imaginary parts.")
    count, bits = wide // narrow, 8 * narrow
    small, large = np.dtype(f"u{narrow}"), np.dtype(f"u{wide}")
    if x.dtype.itemsize == wide:
        source = expand(bitcast(x, large), x.ndim)
        steps = np.broadcast_to(np.arange(count, dtype=large) * bits, (*(1,) * x.ndim, count))
        return bitcast(cast(row("bitwise_right_shift", source, steps), small), wanted)
    source = cast(bitcast(x, small), large)
    steps = (np.arange(count, dtype=large) * bits).reshape((*(1,) * (x.ndim - 1), count))
    moved = row("bitwise_left_shift", source, steps)
    joined = row("sum", moved, axis=(x.ndim - 1,), keepdims=False, dtype=large)  # no two summands share a bit
    return bitcast(joined, wanted)


def reduce_precision(x: Value, exponent_bits: int, mantissa_bits: int) -> Value:
    """Floats rounded to fewer bits, halves to even; beyond the exponent's range they are infinite or 0."""
    info = np.finfo(np.float32) if x.dtype.itemsize < 4 else np.finfo(x.dtype)
    if x.dtype.itemsize < 4:
        return cast(reduce_precision(cast(x, np.float32), exponent_bits, mantissa_bits), x.dtype)
    kind, width = unsigned(x.dtype), x.dtype.itemsize * 8
    bits, result = bitcast(x, kind), x
    if mantissa_bits < info.nmant:
        drop = info.nmant - mantissa_bits
        last = row("bitwise_and", row("bitwise_right_shift", bits, full_like(bits, drop)), full_like(bits, 1))
        bits = row("add", bits, row("add", last, full_like(bits, (1 << (drop - 1)) - 1)))
        bits = row("bitwise_and", bits, full_like(bits, ((1 << width) - 1) ^ ((1 << drop) - 1)))
    if exponent_bits < info.nexp:
        sign = row("bitwise_and", bits, full_like(bits, 1 << (width - 1)))
        field = row("bitwise_and", bits, full_like(bits, ((1 << info.nexp) - 1) << info.nmant))
        bias = (1 << (info.nexp - 1)) - 1
        most = (bias + (1 << (exponent_bits - 1)) - 1) << info.nmant
        least = (bias - (1 << (exponent_bits - 1)) + 2) << info.nmant
        infinite = full_like(bits, ((1 << info.nexp) - 1) << info.nmant)
        bits = where(row("greater", field, full_like(bits, most)), row("bitwise_or", sign, infinite), bits)
        bits = where(row("less", field, full_like(bits, least)), sign, bits)
    result = bitcast(bits, x.dtype)
    return where(row("isnan", x), x, result)


# -- random bits -------------------------------------------------------------------------------------------------------------

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key0: Value, key1: Value, x0: Value, x1: Value) -> tuple[Value, Value]:
    """Threefry 2×32 with 20 rounds, of uint32 counters, as JAX computes it."""

    def known(x: Value, number: int) -> Value:
        return full_like(x, number)

    third = row("bitwise_xor", row("bitwise_xor", key0, key1), known(key0, 0x1BD11BDA))
    keys = (key0, key1, third)
    x0, x1 = row("add", x0, key0), row("add", x1, key1)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = row("add", x0, x1)
            up = row("bitwise_left_shift", x1, known(x1, rotation))
            x1 = row("bitwise_or", up, row("bitwise_right_shift", x1, known(x1, 32 - rotation)))
            x1 = row("bitwise_xor", x0, x1)
        x0 = row("add", x0, keys[(group + 1) % 3])
        x1 = row("add", row("add", x1, keys[(group + 2) % 3]), known(x1, group + 1))
    return x0, x1


def counts(shape: tuple[int, ...]) -> tuple[Value, Value]:
    """The upper and the lower 32 bits of every element's row-major number; each device makes its own."""
    mesh = current_mesh()
    assert mesh is not None
    places = make(Array, "places", Sharding(mesh), shape)
    return tuple(
        cast(
            row("bitwise_and", row("bitwise_right_shift", places, full_like(places, n)), full_like(places, 0xFFFFFFFF)),
            np.uint32,
        )
        for n in (32, 0)
    )
