"""The table of `explain`: steps of one source line together, equal layers once, in a hundred columns."""

import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwright.program.node import short_source
from shardwright.program.rows import IMPLICIT, REDUNDANT, Row, duration, size

WIDTHS = (13, 24, 16, 7, 8, 9, 7)  # with a gutter of 4 and gaps of 2: 100 columns
HEAD = ("source", "step", "result", "bytes", "network", "compute", "limit")
LONGEST = 256  # lines of a block that repeats
COSTLIEST = 10


@dataclass(frozen=True)
class Line:
    """Steps that the table shows as one: a step that communicates, or neighbouring local steps of one source line."""

    rows: tuple[Row, ...]
    times: int = 1  # how often it runs, one layer after the other

    @property
    def seconds(self) -> float:
        """Seconds of all its steps, as often as they run."""
        return self.times * sum(row.seconds * row.times for row in self.rows)

    @property
    def label(self) -> str:
        """What its steps do."""
        names = list(dict.fromkeys(row.label for row in sorted(self.rows, key=lambda row: -row.seconds)))
        shown = ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
        several = f" ({len(self.rows)})" if len(self.rows) > 1 else ""
        return f"{shown}{several}"

    @property
    def inside(self) -> str:
        """The loops and branches that it is a part of."""
        return self.rows[0].inside

    @property
    def steps(self) -> "tuple[Line, ...]":
        """Its steps one by one, if it has several."""
        return tuple(Line((row,), self.times) for row in self.rows) if len(self.rows) > 1 else ()

    def is_named(self, name: str) -> bool:
        """Whether its source line or one of its steps has a name."""
        return name in self.rows[0].source or any(name in row.label for row in self.rows)

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as the table prints it."""
        received, time, compute = (
            sum(getattr(row, name) or 0 for row in self.rows) for name in ("bytes", "time", "compute")
        )
        mark = REDUNDANT if any(row.redundant for row in self.rows) else " "
        return (
            short_source(self.rows[0].source),
            self.inside + self.label,
            ", ".join(self.rows[-1].results),
            size(received) if received else "",
            duration(time) if time else "",
            (duration(compute) + mark) if compute else "",
            max(self.rows, key=lambda row: row.seconds).limit,
        )


def lines_of(rows: Sequence[Row]) -> list[list[Line]]:
    """The lines of a table in blocks: what repeats is one block, run several times. Steps that take no time are left out."""
    single = [Line(group) for group in _grouped([row for row in rows if row.seconds or row.bytes])]
    numbers: dict[object, int] = {}
    keys = [numbers.setdefault(line.cells, len(numbers)) for line in single]
    return [[Line(line.rows, times) for line in single[a:b]] for a, b, times in _repeats(keys)]


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """Neighbouring local steps of one source line together."""
    group: list[Row] = []
    for row in rows:
        if group and (row.collective or group[0].collective or _place(row) != _place(group[0])):
            yield tuple(group)
            group = []
        group.append(row)
    if group:
        yield tuple(group)


def _place(row: Row) -> tuple[str, str, int]:
    return row.source, row.inside, row.times


def _repeats(keys: Sequence[int], first: int = 0) -> Iterator[tuple[int, int, int]]:
    """Blocks of keys that follow one another: where one begins and ends, and how often it comes.

    >>> list(_repeats([0, 1, 2, 1, 2, 1, 2, 3]))
    [(0, 1, 1), (1, 3, 3), (7, 8, 1)]
    """
    at, length, times = _longest(keys)
    if times == 1:
        if keys:
            yield first, first + len(keys), 1
        return
    end = at + length * times
    yield from _repeats(keys[:at], first)
    yield first + at, first + at + length, times
    yield from _repeats(keys[end:], first + end)


def _longest(keys: Sequence[int]) -> tuple[int, int, int]:
    """The block that covers most by repeating: where it begins, its length, and how often it comes."""
    best = (0, 1, 1)
    for length in range(1, min(LONGEST, len(keys) // 2) + 1):
        run = 0  # of keys that equal those a block later
        for at in range(len(keys) - length + 1):
            if at + length < len(keys) and keys[at] == keys[at + length]:
                run += 1
                continue
            times = run // length + 1
            if times > 1 and times * length > best[1] * best[2]:
                best = (at - run, length, times)
            run = 0
    return best


def text_of(rows: Sequence[Row], opened: str | None = None) -> list[str]:
    """The table as lines of text, and the lines that cost most; below each line with a name `opened` its steps one by one."""
    blocks = lines_of(rows)
    found, inside = [_fitted(HEAD)], ""
    for block in blocks:
        for at, line in enumerate(block):
            gutter = _gutter(line, at)
            source, _, *rest = line.cells
            if line.inside not in ("", inside):  # a heading for what a loop or a branch does
                found.append(_cut(f"{gutter:<3} {line.inside.rstrip()}", 100))
            inside = line.inside
            indent = "  " if inside else ""
            found.append(_fitted((source, indent + line.label, *rest), gutter))
            for step in line.steps if opened is not None and line.is_named(opened) else ():
                _, _, *rest = step.cells
                found.append(_fitted(("", f"{indent}  · {step.label}", *rest), "│" if line.times > 1 else ""))
    return [*found, *_costliest(blocks)]


def _gutter(line: Line, at: int) -> str:
    """What is printed before a line: how often its block runs at the first of them, a bar at the others."""
    return "" if line.times == 1 else "│" if at else f"×{line.times}"


def _costliest(blocks: Sequence[Sequence[Line]]) -> Iterator[str]:
    """The source lines and steps that take most of the time, if they are many."""
    lines = [line for block in blocks for line in block]
    if len(lines) <= COSTLIEST:
        return
    yield "what takes longest:"
    spent: dict[tuple[str, str], float] = {}
    for line in lines:
        key = short_source(line.rows[0].source), line.inside + line.label
        spent[key] = spent.get(key, 0.0) + line.seconds
    total = sum(spent.values())
    for (source, label), seconds in sorted(spent.items(), key=lambda pair: -pair[1])[:COSTLIEST]:
        if seconds:
            yield f"  {seconds / total:4.0%} {duration(seconds):>9}  {_cut_left(source, 24)}  {_cut(label, 50)}"


def _fitted(cells: Sequence[str], gutter: str = "") -> str:
    """A line of the table; a long gutter takes room from the source."""
    lead = f"{gutter:<3} "
    widths = (WIDTHS[0] + 4 - len(lead), *WIDTHS[1:])
    parts = (
        cell.rjust(width) if 3 <= at < 6 else (_cut_left if at == 0 else _cut)(cell, width).ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return (lead + "  ".join(parts)).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _cut_left(text: str, width: int) -> str:
    """A source without its beginning, so that its line number is there."""
    return text if len(text) <= width else "…" + text[1 - width :]


def wrapped(texts: Sequence[str]) -> list[str]:
    """Sentences in lines of at most a hundred columns."""
    found: list[str] = []
    for text in texts:
        indent = " " * (2 + len(text) - len(text.lstrip()))
        kept = re.sub(r"(?<=\d) (?=[kMGTnmµ]?(B|s)\b)", "\u00a0", text)  # a number stays with its unit
        found += textwrap.wrap(kept, 100, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in found]


def legend(rows: Sequence[Row]) -> list[str]:
    """What the marks in a table mean, for those that are in it."""
    found = []
    if any(row.implicit for row in rows):
        found.append(f"{IMPLICIT} gathers an operand that the operation could not use as it lies, unasked")
    redundant = sum(row.redundant * row.times for row in rows)
    if redundant:
        most = max(row.redundancy for row in rows if row.redundant)
        found.append(
            f"{REDUNDANT} devices compute the same, up to {most} of them: {duration(redundant)} of the computation"
        )
    return found


def page_of(rows: Sequence[Row], above: Sequence[str], below: Sequence[str]) -> str:
    """The table as HTML, with paragraphs above and below; lines of several steps open."""

    def cells(some: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in some)

    def row(line: Line, times: str) -> str:
        source, label, *rest = line.cells
        step = html.escape(label)
        if line.steps:  # opens to its steps one by one
            inner = "".join(f"<tr>{cells(step.cells[1:], 'td')}</tr>" for step in line.steps)
            step = f"<details><summary>{step}</summary><table>{inner}</table></details>"
        return f"<tr><td>{times}</td>{cells([source], 'td')}<td>{step}</td>{cells(rest, 'td')}</tr>"

    body = []
    blocks = lines_of(rows)
    for block in blocks:
        body += [row(line, _gutter(line, at)) for at, line in enumerate(block)]
    head = f"<tr><th></th>{cells(HEAD, 'th')}</tr>"
    before, after = (
        "".join(f"<p>{html.escape(text)}</p>" for text in some) for some in (above, [*_costliest(blocks), *below])
    )
    return f"{before}<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>{after}"
