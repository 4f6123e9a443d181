"""The reductions: how the values of a group are combined, and how one value becomes partial again."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np


def is_number(dtype: "np.dtype[Any]") -> bool:
    """Whether a dtype is numeric or boolean: one of NumPy's, or a small float of ml_dtypes."""
    return dtype.kind in "biufc" or dtype.type.__module__.split(".")[0] == "ml_dtypes"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One row of the table of reductions."""

    name: str
    ufunc: str | None  # the NumPy function that combines two values; None if one function is not enough
    rest: int | None  # what the other devices hold if one holds the value; None if all hold it
    bits: bool = False  # for integers and booleans only

    def accepts(self, dtype: "np.dtype[Any]") -> bool:
        """Whether values of a dtype can be combined this way."""
        return not self.bits or dtype.kind in "biu"

    def neutral(self, dtype: "np.dtype[Any]") -> Any:
        """What the other devices hold if one holds the value; None if all devices hold it."""
        if self.rest is None:
            return None
        value = np.asarray(self.rest).astype(dtype)
        return (
            np.negative(value) if self.rest == 0 and dtype.kind in "fc" else value
        )  # -0.0 + x is x, 0.0 + -0.0 is not


REDUCTIONS = MappingProxyType({
    row.name: row
    for row in (
        Reduction("sum", "add", rest=0),
        Reduction("max", "maximum", rest=None),
        Reduction("min", "minimum", rest=None),
        Reduction("product", "multiply", rest=1),
        Reduction("average", None, rest=None),
        Reduction("bitwise_and", "bitwise_and", rest=None, bits=True),
        Reduction("bitwise_or", "bitwise_or", rest=None, bits=True),
        Reduction("bitwise_xor", "bitwise_xor", rest=0, bits=True),
    )
})  # fmt: skip
