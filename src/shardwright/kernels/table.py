"""Which kernel computes which row of the table, and how one is run."""

from collections.abc import Callable, Sequence
from typing import Any

import shardwright.kernels.along as al
import shardwright.kernels.assignment as asg
import shardwright.kernels.attention as at
import shardwright.kernels.dynamic as dy
import shardwright.kernels.elementwise as el
import shardwright.kernels.moves as mv
import shardwright.kernels.scattering as sc
import shardwright.kernels.windows as wi
from shardwright.kernels.call import Call, Data
from shardwright.kernels.contraction import contract
from shardwright.kernels.grouped import grouped_matmul
from shardwright.ops import OPS, small_dtype

Kernel = Callable[..., Any]

_OTHERWISE: dict[str, Kernel] = {"floor_divide": el.floor_divide, "expm1": el.expm1, "tanh": el.tanh}

KERNELS: dict[str, Kernel] = {
    # element by element
    **{name: el.by_name(name) for name, op in OPS.items() if op.elementwise},
    **{name: el.of(function) for name, function in _OTHERWISE.items()},
    "sigmoid": el.of(el.sigmoid),
    "gelu": el.of(el.gelu),
    "erf": el.of(el.erf_of),
    "erfc": el.of(el.erfc_of),
    "astype": el.astype,
    "bitcast": el.bitcast,
    "make_complex": el.of(el.make_complex),
    "clip": el.of(el.clip),
    "isin": el.isin,
    "extremes": el.extremes,
    "in_range": el.in_range,
    # over dims
    "sum": al.reduction("sum", lambda dtype: 0),
    "prod": al.reduction("prod", lambda dtype: 1),
    "max": al.reduction("max", al.lowest),
    "min": al.reduction("min", al.highest),
    "all": al.reduction("all", lambda dtype: True),
    "any": al.reduction("any", lambda dtype: False),
    "first_true": al.first_true,
    "einsum": contract,
    "grouped_matmul": grouped_matmul,
    "attention": at.attention,
    "attention parts": at.parts,
    "attention weights": at.weights,
    "attention merged": at.merged,
    # moves
    "permute_dims": mv.permute_dims,
    "reshape": mv.reshape,
    "broadcast_to": mv.broadcast_to,
    "expand_rows": mv.expand_rows,
    "concat": mv.concat,
    "take": mv.take,
    "take_along_axis": mv.take_along_axis,
    "triangle": mv.triangle,
    "pick": mv.pick,
    "assign": asg.assign,
    "scatter": asg.scatter,
    "scatter_reduce": sc.scatter_reduce,
    "fill": asg.fill,
    "diagonal": al.linalg("diagonal"),
    # along dims
    **{name: al.cumulative(name) for name in ("cumulative_sum", "cumulative_prod")},
    **{f"{name} total": al.total(name) for name in ("cumulative_sum", "cumulative_prod")},
    **{f"{name} after": al.after(name) for name in ("cumulative_sum", "cumulative_prod")},
    "sort": al.along(al.sort),
    "argsort": al.along(al.argsort),
    "top_k": al.top_k,
    "top_k candidates": al.candidates,
    "top_k merged": al.merged,
    "searchsorted": al.searchsorted,
    **{name: al.fft(name) for name in OPS if name.endswith(("fft", "fftn"))},
    "fftshift": al.along(al.shifted("fftshift")),
    "ifftshift": al.along(al.shifted("ifftshift")),
    # matrices
    **{name: al.linalg(name) for name in "cholesky det inv matrix_power slogdet solve svdvals eigh eigvalsh".split()},
    "qr": al.linalg("qr"),
    "qr_complete": al.linalg("qr"),
    "svd": al.linalg("svd"),
    "svd_full": al.linalg("svd"),
    "pinv": al.tolerant("pinv"),
    "matrix_rank": al.tolerant("matrix_rank"),
    "matrix_norm": al.matrices(al.norm),
    "eig": al.as_complex("eig"),
    "eigvals": al.as_complex("eigvals"),
    # windows
    "convolution": wi.convolution,
    "max_pool": wi.pooling("max"),
    "avg_pool": wi.pooling("mean"),
    # from nothing but the places of elements
    "places": mv.places,
    "random_bits": mv.random_bits,
    # data-dependent shapes: on one device's shards, results of any size
    "nonzero": dy.nonzero,
    "masked": dy.masked,
    "unique": dy.unique,
    "index": dy.index,
    "repeat": dy.repeat,
}

# Bytes that a kernel needs for a while beside its operands and results, where that is more than their size tells.
SCRATCH: dict[str, Callable[[Call], int]] = {"attention": at.scratch, "attention parts": at.scratch}

PLAIN = frozenset(name for name, op in OPS.items() if op.elementwise and name not in _OTHERWISE)  # xp's own functions


def run(call: Call, data: Sequence[Any]) -> tuple[Data, ...]:
    """The results of a call's kernel; NumPy computes some functions of small floats of ml_dtypes in wider ones."""
    made = KERNELS[call.name](call, *data)
    each = made if isinstance(made, tuple) else (made,)
    if small_dtype(call.dtypes) is not None:
        each = tuple(call.xp.astype(x, d) for x, d in zip(each, call.result_dtypes, strict=True))
    assert all(call.xp.dtype(x) == d for x, d in zip(each, call.result_dtypes, strict=True)), (
        f"{call.name} gives {[x.dtype for x in each]} instead of {call.result_dtypes}"
    )
    return tuple(each)
