"""What surrounds every operation: errors with its name and arguments, warnings of host operands, work noted on devices."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np
import torch

from shardwright.ttnn.checklist import refused
from shardwright.ttnn.errors import FAULTS, TtnnError, check_options, fatal
from shardwright.ttnn.record import OPERANDS
from shardwright.ttnn.tensors import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_running: ContextVar[bool] = ContextVar("running", default=False)


def operation(needs: str, *, host: bool = False) -> Callable[[F], F]:
    """Decorates an operation; `needs` says what it takes, `host` whether the hardware takes host tensors.

    An operation that calls others is one operation: errors and warnings have the name that the user called.
    """

    def decorate(function: F) -> F:
        name = function.__name__
        signature = inspect.signature(function)
        known = tuple(p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            if _running.get():
                return function(*args, **options)
            check_options(name, options, known)
            token = _running.set(True)
            try:
                operands = _operands((*args, *options.values()))
                result = function(*args, **options)
            except TtnnError as error:
                error.args = (f"{name}: {error}",)
                raise
            except (*FAULTS, AttributeError) as error:
                _check_arguments(name, signature, args, options)
                raise fatal(f"{name}({_shown(args, options)}) can't be computed on a device", needs) from error
            finally:
                _running.reset(token)
            for operand in operands:
                operand.note_work(options.get("queue_id", options.get("cq_id")))
            if not host and any(operand.device() is None for operand in operands):
                refused(
                    {operand.owner for operand in operands},
                    OPERANDS,
                    f"{name} of a host tensor",
                    "Put it on the mesh: from_torch(…, device=mesh_device), or ttnn.to_device.",
                )
            return result

        return cast(F, run)

    return decorate


def _check_arguments(name: str, signature: inspect.Signature, args: Any, options: dict[str, Any]) -> None:
    """Raises an error for arguments that are missing, or are too many, given by position."""
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        found = signature.parameters.values()
        plain = ", ".join(p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD)
        named = ", ".join(p.name for p in found if p.kind is p.KEYWORD_ONLY)
        raise fatal(f"{name}: {error}", f"It takes {plain}{f', and by name {named}' if named else ''}.") from error


def _operands(values: Any) -> list[Tensor]:
    """The tensors among arguments; raises an error if there are none, or if one is not a ttnn tensor."""
    flat = list(_flat(values))
    for value in flat:
        if isinstance(value, torch.Tensor | np.ndarray):
            kind = "torch tensor" if isinstance(value, torch.Tensor) else "NumPy array"
            raise fatal(f"An operand is a {kind}, not a ttnn tensor", "Use ttnn.from_torch(…) first.")
    operands = [value for value in flat if isinstance(value, Tensor)]
    if not operands:
        raise fatal("No operand is a ttnn tensor", "Use ttnn.from_torch(…) first.")
    return operands


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _shown(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Arguments as an error shows them: tensors by the shapes on each device."""
    named = (f"{name}={_text(value)}" for name, value in options.items())
    return ", ".join([*map(_text, args), *named])


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{' or '.join(str(list(shape)) for shape in value.shapes)} {value.dtype.value}"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else repr(value)
