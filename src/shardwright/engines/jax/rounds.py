"""Rounds: a move as padded boxes, one at most to and from each device in a round.

JAX has no exchange of boxes of different sizes on every platform. So messages are sorted into rounds, each of which is a
partial permutation of the devices (`ppermute`), and boxes of a round are padded to its largest along each dim.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.plan import LocalStep, Move, group_of

Ints = NDArray[np.int64]
Box = Sequence[slice]


class Round(NamedTuple):
    """Boxes that travel at once. Tables have a row for each place, and a column for each dim."""

    pairs: tuple[tuple[int, int], ...]  # sender and receiver; none where every device keeps its own
    room: tuple[int, ...]  # the padded box
    source: Ints  # where the box begins in the sender's shard
    step: Ints  # how far its rows lie apart there
    target: Ints  # where it begins in the receiver's
    size: Ints  # how much of it is real
    gets: NDArray[np.bool_]  # for each place whether it receives a box

    @property
    def is_full(self) -> bool:
        """Whether every device receives a box without padding."""
        return bool(self.gets.all() and (self.size == self.room).all())


def rounds_of(step: "Move | LocalStep") -> list[Round]:
    """The rounds of a move, or of a collective on a tensor per device that moves."""
    if isinstance(step, LocalStep):
        mesh, members = step.mesh, step.members
    else:
        mesh = step.source.mesh
        members = lambda place: group_of(mesh, step.pieces, place)  # noqa: E731
    messages = ((m.sender, place, m.source, m.target) for place in range(mesh.size) for m in step.messages(place))
    return _rounds(messages, members, mesh.size)


def is_native(step: Move) -> bool:
    """Whether a move is one collective of `lax`."""
    return step.is_even and step.name in ("all_gather", "prefix", "all_to_all")


def padded_bytes(step: Any) -> int:
    """Bytes that the busiest device receives in a step, with the padding of its rounds."""
    moves = not step.reduces if isinstance(step, LocalStep) else isinstance(step, Move) and not is_native(step)
    if not moves or not step.received:
        received_as_planned: int = step.received
        return received_as_planned
    received: dict[int, int] = {}
    for turn in rounds_of(step):
        for _, receiver in turn.pairs:
            received[receiver] = received.get(receiver, 0) + math.prod(turn.room) * step.dtype.itemsize
    return max(received.values(), default=0)


def _rounds(
    messages: "Iterable[tuple[int, int, Box, Box]]", members: Callable[[int], Sequence[int]], places: int
) -> list[Round]:
    turns: dict[tuple[int, int], dict[int, Any]] = {}
    seen: dict[tuple[int, int], int] = {}
    for sender, receiver, source, target in messages:
        if any(part.stop <= part.start for part in target):
            continue
        number = seen[sender, receiver] = seen.get((sender, receiver), -1) + 1
        turns.setdefault((_distance(members(receiver), sender, receiver), number), {})[receiver] = (
            sender,
            source,
            target,
        )
    return [_round(turns[key], places) for key in sorted(turns)]


def _distance(members: Sequence[int], sender: int, receiver: int) -> int:
    """How far the receiver is behind the sender around their group: the same for all pairs of a round."""
    if sender == receiver:
        return 0
    return (members.index(receiver) - members.index(sender)) % len(members)


def _round(boxes: dict[int, Any], places: int) -> Round:
    rank = len(next(iter(boxes.values()))[2])
    source, target, size = (np.zeros((places, rank), np.int64) for _ in range(3))
    step, gets, pairs = np.ones((places, rank), np.int64), np.zeros(places, bool), []
    for receiver, (sender, there, here) in boxes.items():
        pairs.append((sender, receiver))
        gets[receiver] = True
        source[sender] = [part.start for part in there]
        step[sender] = [part.step or 1 for part in there]
        target[receiver] = [part.start for part in here]
        size[receiver] = [part.stop - part.start for part in here]
    room = tuple(int(n) for n in size.max(axis=0)) if rank else ()
    travels = any(sender != receiver for sender, receiver in pairs)
    return Round(tuple(pairs) if travels else (), room, source, step, target, size, gets)
