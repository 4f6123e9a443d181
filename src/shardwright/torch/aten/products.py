"""Products: linear layers, matrices, attention, experts. Weights stay as torch has them, `out, in`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwright.nn as nn
import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.torch.aten.table import cast, row, rows


@row("linear")
def linear(x: Array, weight: Array, bias: Any = None) -> Array:
    """x @ weightᵀ + bias."""
    y = xp.einsum("...k,k->..." if weight.ndim == 1 else "...k,nk->...n", x, weight)
    return y if bias is None else y + bias


@row("bilinear")
def bilinear(x: Array, y: Array, weight: Array, bias: Any = None) -> Array:
    """A product of two inputs and a weight of three dims."""
    z = xp.einsum("...i,oij,...j->...o", x, weight, y)
    return z if bias is None else z + bias


def _added(product: Any) -> Any:
    """A function like addmm: beta · x + alpha · (a product)."""

    def call(x: Any, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
        y = product(a, b)
        y = y if alpha == 1 else y * alpha
        return y if beta == 0 else y + (x if beta == 1 else x * beta)

    return call


def _outer(a: Array, b: Array) -> Array:
    return xp.einsum("i,j->ij", a, b)


rows(
    {
        "matmul mm bmm mv dot": xp.matmul,
        "addmm": _added(xp.matmul),
        "addmv": _added(xp.matmul),
        "baddbmm": _added(xp.matmul),
        "addbmm": _added(lambda a, b: xp.einsum("bik,bkj->ij", a, b)),
        "addr": _added(_outer),
        "outer ger": _outer,
        "vdot": lambda a, b: xp.matmul(xp.conj(a), b) if a.dtype.kind == "c" else xp.matmul(a, b),
        "linalg_vecdot": lambda a, b, *, dim=-1: xp.vecdot(a, b, axis=dim),
        "tensordot": lambda a, b, left, right: xp.tensordot(a, b, axes=(tuple(left), tuple(right))),
        "kron": lambda a, b: _kron(a, b),
        "chain_matmul linalg_multi_dot": lambda xs: _chain(xs),
    }
)


def _chain(xs: Sequence[Array]) -> Array:
    product = xs[0]
    for x in xs[1:]:
        product = product @ x
    return product


def _kron(a: Array, b: Array) -> Array:
    ndim = max(a.ndim, b.ndim)
    a, b = (xp.reshape(x, (1,) * (ndim - x.ndim) + x.shape) for x in (a, b))
    spread = [xp.expand_dims(x, axis=tuple(range(at, 2 * ndim, 2))) for x, at in ((a, 1), (b, 0))]
    return xp.reshape(spread[0] * spread[1], [m * n for m, n in zip(a.shape, b.shape, strict=True)])


@row("einsum")
def einsum(equation: str, operands: Sequence[Array], path: Any = None) -> Array:
    """A product by index names."""
    if "->" not in equation:  # implicit: names that occur once, in order, after the dims of `...`
        names = equation.replace(",", "").replace(" ", "").replace(".", "")
        once = "".join(sorted({name for name in names if names.count(name) == 1}))
        equation = f"{equation}->{'...' if '...' in equation else ''}{once}"
    return xp.einsum(equation, *operands)


# -- attention -----------------------------------------------------------------------------------------------------------


@row("scaled_dot_product_attention", elementwise=True)
def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Attention over `…, heads, length, width`; keys and values may have fewer heads."""
    if dropout:
        raise ModelError(f"Attention with dropout_p={dropout}: load the model in inference mode, after model.eval().")
    if query.ndim == 2:
        added = [xp.expand_dims(x, axis=0) for x in (query, key, value)]
        mask = mask if mask is None or mask.ndim < 2 else xp.expand_dims(mask, axis=0)
        return xp.squeeze(attention(*added, mask, dropout, causal, scale), axis=0)
    queries, keys = query.shape[-2], key.shape[-2]
    if causal and queries != keys:  # torch aligns the first query with the first key
        seen = np.arange(queries)[:, None] >= np.arange(keys)
        mask, causal = xp.asarray(seen), False
    if mask is not None and mask.dtype.kind != "b":
        mask = cast(mask, query.dtype)
    return nn.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal, scale=scale)


@row("_scaled_dot_product_flash_attention_for_cpu", elementwise=True)
def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """As attention, with the logarithm of the sum of exponentials of every query's scores."""
    width = query.shape[-1]
    scores = xp.einsum("...qd,...kd->...qk", query, key) * (width**-0.5 if scale is None else scale)
    if causal:
        seen = xp.asarray(np.arange(query.shape[-2])[:, None] >= np.arange(key.shape[-2]))
        scores = xp.where(seen, scores, -math.inf)
    if attn_mask is not None:
        scores = xp.where(attn_mask, scores, -math.inf) if attn_mask.dtype.kind == "b" else scores + attn_mask
    total = nn.logsumexp(scores, axis=-1)
    weights = xp.exp(scores - xp.expand_dims(total, -1))
    return xp.einsum("...qk,...kd->...qd", weights, value), total


# -- experts -------------------------------------------------------------------------------------------------------------


@row("transformers::grouped_mm_fallback _grouped_mm")
def grouped_mm(x: Array, weight: Array, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Array:
    """Rows of x in groups, each times its group's matrix; `offs` has where each group ends."""
    if bias is not None:  # torch 2.13 refuses it too
        raise ModelError("grouped_mm with a bias can't be imported: add it to the result.")
    if x.ndim == 3 and weight.ndim == 3:
        return x @ weight
    if x.ndim != 2 or weight.ndim != 3:
        raise ModelError(f"grouped_mm of shapes {x.shape} and {weight.shape}: only rows in groups times matrices.")
    ends = cast(offs, np.int64)
    return nn.grouped_matmul(x, weight, xp.diff(ends, prepend=np.zeros(1, np.int64)))
