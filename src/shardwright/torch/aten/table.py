"""The table of imported operations: for each name of torch's a function on arrays, and what it wants of its operands."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import shardwright.numpy as xp
from shardwright.arrays import Array
from shardwright.errors import ModelError
from shardwright.sharding import as_dtype

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Row:
    """How an operation of torch runs on arrays.

    Host tensors beside arrays become arrays that every device holds; those of `elementwise` operations keep broadcast
    dims at size 1, and all operands from number `promotes` on are converted to the dtype that torch computes in. Operations
    that read `sizes` look at shapes and dtypes alone: they give host values. `raw` ones get host tensors as they are.
    """

    call: Function
    elementwise: bool = False
    promotes: int | None = None
    sizes: bool = False
    raw: bool = False


ROWS: dict[str, Row] = {}


def row(names: str, **facts: Any) -> Callable[[Function], Function]:
    """Adds a function under names such as `add.Tensor`; without an overload it is `.default`, and the namespace is aten."""

    def add(function: Function) -> Function:
        for name in names.split():
            ROWS[_full(name)] = Row(function, **facts)
        return function

    return add


def rows(functions: dict[str, Function], **facts: Any) -> None:
    """Adds several functions, each under one or several names."""
    for names, function in functions.items():
        row(names, **facts)(function)


def elementwise(functions: dict[str, Function], promotes: int | None = 0) -> None:
    """Adds functions of elements, on operands of the dtype that torch computes in."""
    rows(functions, elementwise=True, promotes=promotes)


def _full(name: str) -> str:
    parts = name.split("::")
    space, rest = parts if len(parts) == 2 else ("aten", name)
    return f"{space}.{rest}" if "." in rest else f"{space}.{rest}.default"


def register(operation: Any) -> Callable[[Function], Function]:
    """Adds an operation that models may use: a decorator of a function on arrays with torch's arguments.

    >>> @register("mylib::twice")
    ... def twice(x):
    ...     return x + x
    >>> del ROWS["mylib.twice.default"]

    `operation` is one of `torch.ops`, with or without an overload (then all of its overloads), or its name. Host tensors
    come as arrays that every device holds; the result is converted to the dtype that torch gives it.
    """
    if isinstance(operation, torch._ops.OpOverload):
        keys: Iterable[str] = [str(operation)]
    elif isinstance(operation, torch._ops.OpOverloadPacket):
        keys = [f"{operation}.{overload}" for overload in operation.overloads()]  # type: ignore[no-untyped-call]
    elif isinstance(operation, str):
        keys = [_full(operation)]
    else:
        raise ModelError(
            f"register takes an operation of torch.ops or its name, such as 'mylib::twice'; got {operation!r}."
        )

    def add(function: Function) -> Function:
        for key in keys:
            ROWS[key] = Row(function)
        return function

    return add


# -- what rows share -----------------------------------------------------------------------------------------------------


def numpy_dtype(dtype: Any) -> "np.dtype[Any]":
    """NumPy's dtype for torch's."""
    return as_dtype(dtype)


def torch_dtype(x: Any) -> torch.dtype:
    """torch's dtype of an array or a tensor."""
    dtype: torch.dtype = x.dtype if isinstance(x, torch.Tensor) else getattr(torch, np.dtype(x.dtype).name)
    return dtype


def cast(x: Any, dtype: Any) -> Any:
    """An array in a dtype, torch's or NumPy's; as it is if it has that already, or if none is given."""
    if dtype is None or not isinstance(x, Array):
        return x
    wanted = numpy_dtype(dtype)
    return x if x.dtype == wanted else xp.astype(x, wanted)


def in_float32(function: Function) -> Function:
    """A function that computes small floats in float32 and rounds once at the end, as torch's own do."""

    def call(x: Any, *args: Any, **options: Any) -> Any:
        if x.dtype.kind == "f" and x.dtype.itemsize >= 4:
            return function(x, *args, **options)
        small = x.dtype
        wide = [cast(a, np.float32) if isinstance(a, Array) and a.dtype == small else a for a in (x, *args)]
        return cast(function(*wide, **options), small)

    return call


def dims_of(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dims counted from the front, as torch gives them: None or nothing is all."""
    if not ndim or dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(ndim))  # torch takes dim 0 of a tensor without dims
    several = dims if isinstance(dims, list | tuple) else (dims,)
    return tuple(d % ndim for d in several)


def along(ndim: int, dim: int, entry: Any) -> tuple[Any, ...]:
    """An index that has an entry for one dim alone."""
    return (*(slice(None),) * (dim % ndim), entry)
