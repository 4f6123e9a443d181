"""Errors as the hardware's library raises them: a `RuntimeError` with its text, and a second sentence that says what to do."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from shardwright.errors import ShardwrightError

F = TypeVar("F", bound=Callable[..., Any])


class TtnnError(ShardwrightError, RuntimeError):
    """Whatever the hardware's library would refuse."""


def fatal(text: str, advice: str) -> TtnnError:
    """The error with a text and what to do about it."""
    return TtnnError(f"{text.rstrip('.')}. {advice}")


def bounded(function: F) -> F:
    """A function of ttnn: whatever goes wrong inside is an error of ttnn's, with what it was called with."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TtnnError:
            raise
        except (ShardwrightError, ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
            first = str(error).split("\n")[0].rstrip(".")
            raise fatal(
                f"{function.__name__}: {first}", "Check the arguments against the shapes on each device."
            ) from error

    return cast(F, run)
