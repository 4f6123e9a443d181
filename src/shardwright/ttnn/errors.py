"""Errors as the hardware's library raises them: a `RuntimeError` with its text, and a second sentence that says what to do."""

from shardwright.errors import ShardwrightError


class TtnnError(ShardwrightError, RuntimeError):
    """Whatever the hardware's library would refuse."""


def fatal(text: str, advice: str) -> TtnnError:
    """The error with a text and what to do about it."""
    return TtnnError(f"{text.rstrip('.')}. {advice}")
