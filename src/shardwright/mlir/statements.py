"""The statements of a function that is being written, and their canonical order.

Two programs that do the same write the same statements, but perhaps in another order. In the canonical order operands stand
before what reads them, in the order in which the results are needed, and names are numbered as they appear. So text that was
read and is written again is the same text.
"""

import re
from collections.abc import Iterator, Sequence

_NAME = re.compile(r"%\d+")
_EFFECT = re.compile(r"\.(?:send|recv) %|\.shard %arg")


class Statement:
    """One operation: its lines, and between them the statements of its regions."""

    def __init__(self, text: str, indent: int) -> None:
        self.indent = indent
        self.parts: list[str | list[Statement]] = [text]

    @property
    def _own(self) -> list[str]:
        return [part for part in self.parts if isinstance(part, str)]

    @property
    def defines(self) -> list[str]:
        """The names of its results."""
        head, sign, _ = self._own[0].partition(" = ")
        return _NAME.findall(head) if sign and head.startswith("%") else []

    @property
    def is_root(self) -> bool:
        """Whether it stays though nothing reads it: a send, a recv, where an argument lies, the end of a region."""
        return not self.defines or any(_EFFECT.search(text) for text in self.lines())

    def reads(self) -> list[str]:
        """The names that it reads, in order, those of its regions included."""
        found: dict[str, None] = {}
        for part in self.parts:
            if isinstance(part, str):
                found.update((name, None) for name in _NAME.findall(part))
            else:
                found.update((name, None) for inner in part for name in inner.reads())
        return list(found)

    def lines(self) -> Iterator[str]:
        """Its lines, indented."""
        for part in self.parts:
            if isinstance(part, str):
                yield from (" " * self.indent + line for line in part.split("\n"))
            else:
                for inner in part:
                    yield from inner.lines()


def in_order(block: Sequence[Statement], canonical: bool = True) -> list[Statement]:
    """The statements of a region that are needed, in the canonical order or as they stand."""
    by_name = {name: statement for statement in block for name in statement.defines}
    order: dict[Statement, None] = {}
    stack = [(statement, False) for statement in reversed(block) if statement.is_root]
    while stack:
        statement, ready = stack.pop()
        if ready:
            order[statement] = None
        elif statement not in order:
            operands = [
                by_name[name] for name in statement.reads() if name in by_name and by_name[name] is not statement
            ]
            stack += [(statement, True), *((operand, False) for operand in reversed(operands))]
    for statement in order:
        statement.parts = [part if isinstance(part, str) else in_order(part, canonical) for part in statement.parts]
    return list(order) if canonical else [statement for statement in block if statement in order]


def renumbered(text: str) -> str:
    """Text whose names are numbered in the order in which they appear.

    >>> renumbered("%3 = a %arg0\\n%1:2 = b %3\\nc %1#1")
    '%0 = a %arg0\\n%1:2 = b %0\\nc %1#1'
    """
    numbers: dict[str, str] = {}
    return _NAME.sub(lambda found: numbers.setdefault(found.group(), f"%{len(numbers)}"), text)
