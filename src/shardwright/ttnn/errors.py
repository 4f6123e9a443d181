"""Errors as the real ttnn raises them: a `RuntimeError` with its text, then a sentence with the fix."""

import difflib
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from shardwright.errors import ShardwrightError

F = TypeVar("F", bound=Callable[..., Any])


class TtnnError(ShardwrightError, RuntimeError):
    """An error that the real ttnn would raise."""


class TtnnIndexError(TtnnError, IndexError):
    """An index out of range: iterating over a tensor ends with it."""


class TtnnWarning(UserWarning):
    """A call that works here and that the hardware refuses."""


def fatal(text: str, advice: str) -> TtnnError:
    """The error with a text and a fix."""
    return TtnnError(f"{text.rstrip('.')}. {advice}")


# What invalid arguments raise inside: our own errors, Python's and torch's.
FAULTS = (ShardwrightError, ValueError, IndexError, KeyError, TypeError, RuntimeError)


def bounded(function: F) -> F:
    """Decorates a ttnn function: any exception inside becomes a TtnnError with the function's name."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TtnnError:
            raise
        except FAULTS as error:
            first = str(error).split("\n")[0].rstrip(".")
            raise fatal(
                f"{function.__name__}: {first}", "Check the arguments against the shapes on each device."
            ) from error

    return cast(F, run)


# Keywords of the real functions that have no effect here.
_IGNORED = frozenset(
    """memory_config dtype program_config compute_kernel_config compute_config conv_config core_grid queue_id output_tensor
    optional_output_tensor num_links topology slice_config layout subdevice_id multi_device_global_semaphore barrier_semaphore
    cq_id blocking tile spec ceil_mode applied_shard_scheme in_place_halo deallocate_input reallocate_halo_output
    return_weights_and_bias fast_and_approximate_mode numeric_stable use_legacy padding_idx device preprocess""".split()
)


def check_options(name: str, options: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    """Raises an error for unknown keywords: a misspelt keyword would be silently ignored."""
    for key in options:
        if key not in _IGNORED and key not in known:
            close = difflib.get_close_matches(key, [*known, *_IGNORED], n=1)
            advice = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(known) or 'none of its own'}."
            raise fatal(f"{name}() got an unexpected keyword argument {key!r}", advice)
