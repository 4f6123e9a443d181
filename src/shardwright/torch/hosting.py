"""Nodes of host values, run by torch without memory for what repeats: a causal mask is one square, however large the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

MOST_COMPARED = 1 << 26  # elements of a tensor that is searched for rows that repeat


def run_on_host(call: Callable[..., Any], args: Sequence[Any], named: dict[str, Any], elementwise: bool) -> Any:
    """The value of a node, on the CPU wherever the model was exported; dims that repeat have stride 0."""
    if "device" in named:
        named = {**named, "device": torch.device("cpu")}
    tensors = [x for x in (*args, *named.values()) if isinstance(x, torch.Tensor)]
    with torch.no_grad():
        if not elementwise or not tensors or named:
            return _compact(call(*args, **named))
        shape = torch.broadcast_shapes(*(x.shape for x in tensors))  # type: ignore[no-untyped-call]
        repeats = [all(_repeats(x, dim - len(shape)) for x in tensors) for dim in range(len(shape))]
        once = [_once(x, repeats) if isinstance(x, torch.Tensor) else x for x in args]
        result = call(*once)
        return _compact(result.expand(shape) if isinstance(result, torch.Tensor) else result)


def _repeats(x: torch.Tensor, dim: int) -> bool:
    """Whether a tensor has the same elements all along a dim, counted from the end."""
    return -dim > x.ndim or x.shape[dim] == 1 or x.stride(dim) == 0


def _once(x: torch.Tensor, repeats: Sequence[bool]) -> torch.Tensor:
    """The tensor with one row of the dims that repeat."""
    for dim in range(-1, -x.ndim - 1, -1):
        if repeats[dim] and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x


def _compact(value: Any) -> Any:
    """A tensor of integers or booleans with stride 0 along dims of equal rows; others as they are."""
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return value
    if not 1 < value.numel() <= MOST_COMPARED:
        return value
    for dim in range(value.ndim):
        if value.shape[dim] > 1 and value.stride(dim):
            first = value.narrow(dim, 0, 1)
            if torch.equal(value, first.expand_as(value)):
                value = first.expand(value.shape)
    return value
