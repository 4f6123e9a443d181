"""Brackets and quotes in HLO text."""

import re

from shardwright.errors import ProgramError


def closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`."""
    depth, quoted, at = 0, False, start
    while at < len(text):
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return at
        at += 1
    raise ProgramError(f"HLO: a bracket is never closed in: {short(text)}")


def split(text: str) -> list[str]:
    """The parts between commas that are not inside brackets or quotes.

    >>> split("a={1,2}, b=[3,4]<=[8], c")
    ['a={1,2}', 'b=[3,4]<=[8]', 'c']
    """
    parts, start, at = [], 0, 0
    while at < len(text):
        char = text[at]
        if char in "([{":
            at = closing(text, at)
        elif char == '"':
            at = _end_of_quote(text, at)
        elif char == ",":
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _end_of_quote(text: str, start: int) -> int:
    at = start + 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return at


def unquoted(text: str) -> str:
    """A value without its quotes and escapes."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def short(line: str) -> str:
    """A line, cut for messages."""
    return line if len(line) <= 160 else line[:159] + "…"
