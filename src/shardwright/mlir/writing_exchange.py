"""Any move of shards as one all_to_all: each device packs a piece for every member of its group, and puts together what comes.

Pieces are padded to the largest message between two devices. So a device receives that many elements from each member: more
than the move itself where messages differ, and never more than a gather.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.plan import Message, Move

MOST_MEMBERS = 16  # of a group whose pieces are written one by one


class Packed:
    """A move as pieces for the members of groups."""

    def __init__(self, step: Move, groups: Sequence[Sequence[int]]) -> None:
        self.step, self.groups = step, groups
        self.count = len(groups[0])
        self.at = {place: number for group in groups for number, place in enumerate(group)}
        self.members = {place: group for group in groups for place in group}
        self.messages: dict[tuple[int, int], Message] = {}  # by sender and receiver
        self.fits = self._found()
        others = [m for (sender, receiver), m in self.messages.items() if sender != receiver]
        rank = len(step.shape)
        self.rooms = [max((_length(m.target[d]) for m in others), default=0) for d in range(rank)]
        self.volume = (self.count - 1) * math.prod(self.rooms)  # elements that a device receives

    def _found(self) -> bool:
        """Whether every device gets at most one box from each member of its group, and none from other devices."""
        for receiver in range(self.step.result.mesh.size):
            for message in self.step.messages(receiver):
                if not message.elements:
                    continue
                key = (message.sender, receiver)
                if key in self.messages or message.sender not in self.members[receiver]:
                    return False
                self.messages[key] = message
        return True

    def starts(self, dim: int, number: int) -> list[Any]:
        """For every place the rows of its shard that it sends to a member of its group."""
        limit, room = self.step.here.local_shape[dim], self.rooms[dim]
        found = []
        for place in range(len(self.at)):
            message = self.messages.get((place, self.members[place][number]))
            first = 0 if message is None or message.sender == message.receiver else message.source[dim].start
            found.append(np.minimum(first + np.arange(room), max(limit - 1, 0)))
        return found

    def rows(self, dim: int, number: int) -> tuple[list[Any], Any]:
        """For every place, which row of a member's piece each of its rows is, and which rows come from it."""
        local = self.step.there.local_shape[dim]
        tables, inside = [], np.zeros((len(self.at), local), bool)
        for place in range(len(self.at)):
            message = self.messages.get((self.members[place][number], place))
            start = 0
            if message is not None and message.sender != message.receiver:
                start = message.target[dim].start
                inside[place, message.target[dim]] = True
            tables.append(np.clip(np.arange(local) - start, 0, self.rooms[dim] - 1))
        return tables, inside

    def own(self, dim: int) -> list[Any]:
        """For every place its own rows, where they go in its result."""
        limit, local = self.step.here.local_shape[dim], self.step.there.local_shape[dim]
        found = []
        for place in range(len(self.at)):
            message = self.messages.get((place, place))
            shift = 0 if message is None else message.source[dim].start - message.target[dim].start
            found.append(np.clip(np.arange(local) + shift, 0, max(limit - 1, 0)))
        return found


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)
