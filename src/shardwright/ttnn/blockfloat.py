"""Block floats: 16 neighbours share an exponent; each has a sign and 7 (bfloat8_b) or 3 (bfloat4_b) mantissa bits."""

import numpy as np
from numpy.typing import NDArray

BITS = {"bfloat8_b": 7, "bfloat4_b": 3}
TILE, BLOCK = 32, 16
_CHUNK = 1 << 11  # blocks at a time, so that they stay in the cache


def rounded(x: NDArray[np.float32], bits: int, pad_value: float = 0.0) -> NDArray[np.float32]:
    """Rounds floats to blocks of 16 along the last dim, padded to full tiles.

    >>> rounded(np.array([1, 0.1, 0.01, 0.001], np.float32), 7).tolist()
    [1.0, 0.09375, 0.015625, 0.0]
    """
    if not x.size:
        return x.astype(np.float32)
    width = x.shape[-1] if x.ndim else 1
    flat = np.ascontiguousarray(x, np.float32).reshape(-1, max(width, 1))
    room = -(-width // TILE) * TILE
    if room != width:
        wide = np.full((flat.shape[0], room), pad_value, np.float32)
        wide[:, :width] = flat
        flat = wide
    blocks = flat.reshape(-1, BLOCK)
    out = np.empty_like(blocks)
    for at in range(0, len(blocks), _CHUNK):
        _round(blocks[at : at + _CHUNK], bits, out[at : at + _CHUNK])
    return out.reshape(-1, room)[:, :width].reshape(x.shape)


def _round(blocks: NDArray[np.float32], bits: int, out: NDArray[np.float32]) -> None:
    raw = blocks.view(np.uint32)
    exponent = ((raw >> 23) & 0xFF).astype(np.int32)
    significand = np.where(exponent > 0, (raw & 0x7FFFFF) | 0x800000, 0).astype(np.int32)  # zeros and denormals are 0
    shared = exponent.max(axis=1, keepdims=True)
    significand >>= np.minimum(shared - exponent, 31)
    drop = 24 - bits
    kept = significand >> drop
    rest = significand & ((1 << drop) - 1)
    half = 1 << (drop - 1)
    kept += (rest > half) | ((rest == half) & ((kept & 1) == 1))
    np.minimum(kept, (1 << bits) - 1, out=kept)
    with np.errstate(over="ignore"):
        np.ldexp(kept.astype(np.float32), shared - 127 - (bits - 1), out=out)
    np.negative(out, out=out, where=(raw >> 31).astype(bool) & (kept > 0))


def tile_bytes(bits: int) -> int:
    """Bytes of a 32 × 32 tile: an exponent for every 16 elements, and the elements.

    >>> tile_bytes(7), tile_bytes(3)
    (1088, 576)
    """
    return TILE * TILE // BLOCK + TILE * TILE * (bits + 1) // 8
