"""Brackets and quotes in HLO text."""

import re

from shardwright.errors import ProgramError

_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')  # brackets and commas outside of quotes


def closing(text: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] in "([{":
            depth += 1
        elif mark[0] in ")]}":
            depth -= 1
            if not depth:
                return mark.start()
    raise ProgramError(f"HLO: a bracket is never closed in: {short(text)}")


def split(text: str) -> list[str]:
    """The parts between commas that are not inside brackets or quotes.

    >>> split('a={1,2}, b=[3,4]<=[8], c="d, (e"')
    ['a={1,2}', 'b=[3,4]<=[8]', 'c="d, (e"']
    """
    parts, start, depth = [], 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in "([{":
            depth += 1
        elif mark[0] in ")]}":
            depth -= 1
        elif mark[0] == "," and not depth:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def unquoted(text: str) -> str:
    """A value without its quotes and escapes."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def short(line: str) -> str:
    """A line, cut for messages."""
    return line if len(line) <= 160 else line[:159] + "…"
