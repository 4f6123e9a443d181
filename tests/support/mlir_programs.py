"""Programs on arrays whose text the real tools are asked about: operations that text has as several others."""

import numpy as np

import shardwright as sw
from shardwright import nn
from shardwright import numpy as snp

P = sw.P
_F, _I = np.float32, np.int64
CASES = {
    "attention": (
        lambda q, k, v: nn.scaled_dot_product_attention(q, k, v, causal=True),
        [((4, 6, 8), _F, P("x", "y")), ((2, 5, 8), _F, P("x")), ((2, 5, 4), _F, P("x"))],
    ),
    "scatter_add": (nn.scatter_add, [((5, 4), _F, P(None, "x")), ((7,), _I, P()), ((7, 4), _F, P(None, "x"))]),
    "grouped_matmul": (nn.grouped_matmul, [((9, 4), _F, P()), ((3, 4, 6), _F, P()), ((3,), _I, P())]),
    "top_k": (lambda x: tuple(snp.top_k(x, 2)), [((4, 3), _F, P("x"))]),
    "searchsorted": (snp.searchsorted, [((5,), _F, P()), ((4, 3), _F, P("x", "y"))]),
    "isin": (snp.isin, [((4, 6), _I, P("x", "y")), ((3,), _I, P())]),
    "any": (lambda x: snp.any(x > 0, axis=1), [((4, 6), _F, P("x", "y"))]),
    "roll": (lambda x: snp.roll(x, 3), [((9,), _F, P(("y", "x")))]),
}


def program(name):
    """The lowered program of a case."""
    function, kinds = CASES[name]
    step = sw.sjit(function, mesh=sw.Mesh(x=2, y=3), in_shardings=tuple(spec for _, _, spec in kinds))
    return step.lower(*(np.ones(shape, dtype) for shape, dtype, _ in kinds)).program
