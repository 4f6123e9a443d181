"""Any move of shards as pieces that devices send to members of their group, and put together from those that come.

Pieces travel in one all_to_all, padded to the largest message between two devices; or in rounds, in each of which every device
sends one piece and gets one, padded to the largest of the round. A permutation of devices is one round: it moves no more than
the move itself.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardwright.plan import Fetch, Message, Move

MOST_PIECES = 16  # that are written one by one
Pair = tuple[int, int]  # the numbers of sender and receiver in their group


@dataclass(frozen=True)
class Part:
    """A piece that every device of a group sends: the members that it goes to and comes from, by the number of the member."""

    to: tuple[int, ...]
    source: tuple[int, ...]
    carried: frozenset[Pair]  # between other members there is padding alone
    rooms: tuple[int, ...]  # rows along each dim

    @property
    def size(self) -> int:
        """Elements of the piece; 0 if every device keeps its own."""
        return math.prod(self.rooms) if any(a != b for a, b in enumerate(self.to)) else 0


@dataclass(frozen=True)
class Rows:
    """What goes from one device to another: along each dim rows of the sender's shard, and their places in the receiver's."""

    source: tuple[Any, ...]
    target: tuple[Any, ...]

    @staticmethod
    def of(messages: Sequence[Message]) -> "Rows":
        """Boxes that are the product of runs of rows along each dim."""
        dims = range(len(messages[0].target))
        runs = [{m.target[dim].start: m for m in messages} for dim in dims]
        assert math.prod(map(len, runs)) == len(messages), messages
        found = [tuple(_places(runs[dim].values(), end, dim) for dim in dims) for end in ("source", "target")]
        return Rows(*found)


def _places(messages: Iterable[Message], end: str, dim: int) -> Any:
    boxes = [getattr(message, end)[dim] for message in messages]
    return np.concatenate([np.arange(*rows.indices(max(rows.start, rows.stop or 0) + 1)) for rows in boxes])


class Packed:
    """A move as pieces for the members of groups."""

    def __init__(self, step: Move, groups: Sequence[Sequence[int]]) -> None:
        self.step, self.groups, self.count = step, groups, len(groups[0])
        self.number = {place: number for group in groups for number, place in enumerate(group)}
        self.members = {place: group for group in groups for place in group}
        found: dict[tuple[int, int], list[Message]] = {}
        for receiver in range(step.result.mesh.size):
            for message in step.messages(receiver):
                if message.elements:
                    found.setdefault((message.sender, receiver), []).append(message)
        self.fits = all(sender in self.members[receiver] for sender, receiver in found)  # groups hold both ends
        self.messages = {ends: Rows.of(boxes) for ends, boxes in found.items()}  # by the places of sender and receiver
        self.incoming = Counter(receiver for _, receiver in found)

    @cached_property
    def _sizes(self) -> dict[Pair, tuple[int, ...]]:
        """For members that have a message in some group its largest size along each dim, the largest messages first."""
        found: dict[Pair, tuple[int, ...]] = {}
        for (sender, receiver), rows in self.messages.items():
            pair, own = (self.number[sender], self.number[receiver]), tuple(map(len, rows.target))
            found[pair] = tuple(map(max, found.get(pair, own), own))
        return dict(sorted(found.items(), key=lambda entry: (-math.prod(entry[1]), entry[0])))

    # -- parts --------------------------------------------------------------------------------------------------------

    def all_to_all(self) -> list[Part]:
        """A piece for every member."""
        pairs = [pair for pair in self._sizes if pair[0] != pair[1]]
        rooms = self._rooms(pairs)
        same = [(number,) * self.count for number in range(self.count)]
        return [Part(to, to, frozenset(pairs), rooms) for to in same]

    def rounds(self) -> list[Part]:
        """Pieces of which every device sends one and gets one at a time."""
        found = []
        kept = {pair for pair in self._sizes if pair[0] == pair[1]}
        for pairs in coloured([pair for pair in self._sizes if pair[0] != pair[1]], self.count):
            rooms = self._rooms(pairs)
            idle = {*range(self.count)} - {n for pair in pairs for n in pair}
            fitting = {(n, n) for n in idle} & kept
            fitting = {pair for pair in fitting if all(a <= b for a, b in zip(self._sizes[pair], rooms, strict=True))}
            kept -= fitting
            to = completed(pairs, self.count)
            source = tuple(map(int, np.argsort(to)))
            found.append(Part(to, source, frozenset({*pairs} | fitting), rooms))
        return found

    def own(self, parts: Iterable[Part]) -> list[Part]:
        """What devices keep, where the parts don't carry it: a part that does not travel."""
        carried = {pair for part in parts for pair in part.carried}
        kept = [pair for pair in self._sizes if pair[0] == pair[1] and pair not in carried]
        same = tuple(range(self.count))
        return [Part(same, same, frozenset(kept), self._rooms(kept))] if kept else []

    def _rooms(self, pairs: Sequence[Pair]) -> tuple[int, ...]:
        rank = len(self.step.shape)
        return tuple(max((self._sizes[pair][dim] for pair in pairs), default=0) for dim in range(rank))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def starts(self, dim: int, part: Part) -> list[Any]:
        """For every place the rows of its shard that it sends in a part."""
        found = []
        for place, number in sorted(self.number.items()):
            rows = self._carried(place, self.members[place][part.to[number]], part)
            found.append(np.zeros(0, np.int64) if rows is None else rows.source[dim])
        return found

    def rows(self, dim: int, part: Part) -> tuple[list[Any], Any]:
        """For every place, which row of the piece that comes each of its rows is, and which of its rows come in the part."""
        local = self.step.there.local_shape[dim]
        tables, inside = [], np.zeros((len(self.number), local), bool)
        for place, number in sorted(self.number.items()):
            rows = self._carried(self.members[place][part.source[number]], place, part)
            start = 0 if rows is None else rows.target[dim][0]
            table = np.clip(
                np.arange(local) - start, 0, max(part.rooms[dim] - 1, 0)
            )  # few tables differ, even in padding
            if rows is not None:
                table[rows.target[dim]] = np.arange(len(rows.target[dim]))
                inside[place, rows.target[dim]] = True
            if self.fill is None and self.incoming[place] == (rows is not None):
                inside[place] = True  # other rows are padding
            tables.append(table)
        return tables, inside

    @property
    def fill(self) -> Any:
        """What rows hold that no message brings, such as halos beyond the border; None where these are padding alone."""
        if isinstance(self.step, Fetch):
            return self.step.fill
        return 0 if self.step.result.halo else None

    def _carried(self, sender: int, receiver: int, part: Part) -> Rows | None:
        pair = self.number[sender], self.number[receiver]
        return self.messages.get((sender, receiver)) if pair in part.carried else None


def is_all_to_all(parts: Sequence[Part]) -> bool:
    """Whether a part goes to one member from all."""
    return len({*parts[0].to}) == 1 < len(parts[0].to)


def volume(parts: Sequence[Part]) -> int:
    """Elements that a device receives."""
    return sum(part.size for part in parts) - (parts[0].size if parts and is_all_to_all(parts) else 0)


def coloured(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """Messages in rounds, in each of which a device sends once and receives once at most: as few as the busiest has messages.

    >>> coloured([(0, 1), (1, 0), (0, 2), (2, 0)], 3)
    [[(0, 1), (1, 0)], [(0, 2), (2, 0)]]
    """
    sends: list[dict[int, int]] = [{} for _ in range(count)]  # for each sender and round the receiver
    receives: list[dict[int, int]] = [{} for _ in range(count)]
    rounds = max((times for end in zip(*pairs, strict=True) for times in Counter(end).values()), default=0)
    for sender, receiver in pairs:
        free = [{*range(rounds)} - {*used} for used in (sends[sender], receives[receiver])]
        if free[0] & free[1]:
            first = min(free[0] & free[1])
        else:
            first = min(free[0])
            _swap(sends, receives, receiver, first, min(free[1]))
        sends[sender][first], receives[receiver][first] = receiver, sender
    return [[(n, own[number]) for n, own in enumerate(sends) if number in own] for number in range(rounds)]


def _swap(sends: list[dict[int, int]], receives: list[dict[int, int]], receiver: int, one: int, two: int) -> None:
    """Free round `one` at a receiver: its message goes to round `two`, the message that is there to `one`, and so on."""
    path = []
    while one in receives[receiver]:
        sender = receives[receiver][one]
        path.append((sender, receiver, one, two))
        if two not in sends[sender]:
            break
        receiver = sends[sender][two]
        path.append((sender, receiver, two, one))
    for sender, end, old, _ in path:
        del sends[sender][old], receives[end][old]
    for sender, end, _, new in path:
        sends[sender][new], receives[end][new] = end, sender


def completed(pairs: Sequence[Pair], count: int) -> tuple[int, ...]:
    """Pairs as a permutation: members that have no message keep their piece, or pass it to one that gets none."""
    to = dict(pairs)
    targets = {*range(count)} - {*to.values()}
    to |= {n: n for n in range(count) if n not in to and n in targets}
    left = sorted(targets - {*to.values()})
    to |= dict(zip(sorted({*range(count)} - {*to}), left, strict=True))
    return tuple(to[n] for n in range(count))
