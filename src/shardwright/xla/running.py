"""Programs of imported functions: as `sjit` makes them, but silent about infinities and NaNs, as XLA is."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright.program import SJIT, sjit


class Silent(SJIT):
    """A program that does not warn where NumPy does: XLA computes infinities and NaNs without a word."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return super().__call__(*args, **kwargs)


def silent(function: Callable[..., Any], **options: Any) -> SJIT:
    """`sjit(function, **options)`, silent."""
    made: SJIT = sjit(function, **options)
    return Silent(made.function, made._options)
