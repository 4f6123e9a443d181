"""torch's operations on arrays: a row each, by families. Importing this fills the table."""

from shardwright.torch.aten import elementwise, indexing, products, reductions, shapes, training, windows
from shardwright.torch.aten.table import ROWS, Row, cast, numpy_dtype, register

__all__ = [
    "ROWS",
    "Row",
    "cast",
    "elementwise",
    "indexing",
    "numpy_dtype",
    "products",
    "reductions",
    "register",
    "shapes",
    "training",
    "windows",
]
