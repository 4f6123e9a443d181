"""`Chip`: what one device computes and holds, and the roofline time of a local step on it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shardwright.errors import MeshError
from shardwright.hardware.checks import as_number

# A dtype without a figure computes as fast as the first of these that has one; in the end as the slowest that is known.
_LIKE = {
    "float16": ("bfloat16",),
    "bfloat16": ("float16",),
    "int8": ("float8_e4m3fn", "bfloat16"),
    "float8_e4m3fn": ("bfloat16",),
    "float8_e5m2": ("float8_e4m3fn", "bfloat16"),
    "complex64": ("float32",),
    "complex128": ("float64",),
}


_DTYPE = re.compile(r"bool|(bfloat|float|complex|u?int)\d+(_\w+)?")


@dataclass(frozen=True)
class Chip:
    """One device: floating-point operations a second by dtype, bytes a second from its memory, bytes of memory.

    >>> chip = Chip(flops={"bfloat16": 989e12, "float32": 67e12}, memory_bandwidth=3.35e12, memory=80e9)
    >>> round(chip.seconds(2 * 4096**3, 3 * 2 * 4096**2, "bfloat16") * 1e6)  # µs of a bf16 matmul of 4096
    139
    """

    flops: Mapping[str, float] = field(hash=False)
    memory_bandwidth: float
    memory: float

    def __post_init__(self) -> None:
        if not isinstance(self.flops, Mapping) or not self.flops:
            raise MeshError(f"A chip's flops are given by dtype, {{'bfloat16': 989e12}}; got {self.flops!r}.")
        for dtype in self.flops:
            if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
                raise MeshError(
                    f"A chip's flops are given by the names of dtypes, such as 'bfloat16', 'float8_e4m3fn' or 'int8'; "
                    f"{dtype!r} is not one."
                )
        plain = {dtype: _positive(value, dtype) for dtype, value in self.flops.items()}
        object.__setattr__(self, "flops", MappingProxyType(plain))
        for name in ("memory_bandwidth", "memory"):
            object.__setattr__(self, name, _positive(getattr(self, name), name))

    def flops_of(self, dtype: Any) -> float:
        """Operations a second on elements of a dtype; for one that the chip has no figure for, those of its like."""
        found: dict[Any, float] = self.__dict__.setdefault("_by_dtype", {})
        if dtype not in found:
            name = str(dtype)
            like = (self.flops[known] for known in (name, *_LIKE.get(name, ())) if known in self.flops)
            found[dtype] = next(like, min(self.flops.values()))
        return found[dtype]

    def seconds(self, work: float, touched: float, dtype: Any) -> float:
        """Seconds of a local step by the roofline: its operations, or the bytes that it reads and writes."""
        return max(work / self.flops_of(dtype), touched / self.memory_bandwidth)

    def bound(self, work: float, touched: float, dtype: Any) -> str:
        """What bounds such a step: "compute" or "memory"."""
        return "compute" if work / self.flops_of(dtype) > touched / self.memory_bandwidth else "memory"

    def __reduce__(self) -> tuple[Any, ...]:
        return Chip, (dict(self.flops), self.memory_bandwidth, self.memory)

    def __repr__(self) -> str:
        return f"Chip(flops={dict(self.flops)}, memory_bandwidth={self.memory_bandwidth}, memory={self.memory})"


def _positive(value: object, name: str) -> float:
    return as_number(value, f"A chip's {name}", above=True, finite=False)
