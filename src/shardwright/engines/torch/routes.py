"""Routes: what one process sends and receives in a step, from the step's messages."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardwright.mesh import Mesh
from shardwright.plan import LocalStep, Move, group_of

Box = tuple[slice, ...]
Shape = tuple[int, ...]


class Route(NamedTuple):
    """The part of one process in a move: boxes of its shard for each member of a group, and where what they send goes."""

    ranks: tuple[int, ...]  # the group, in the mesh's order; () if nothing is sent
    shape: Shape | None  # of the result here; None if this process has no part of it
    own: list[tuple[Box, Box]]  # what stays here: from, to
    sends: list[list[Box]]  # for each member
    comes: list[list[tuple[Box, int]]]  # from each member: to, how many elements

    @property
    def is_complete(self) -> bool:
        """Whether messages fill the whole result."""
        boxes = [box for _, box in self.own] + [box for some in self.comes for box, _ in some]
        return self.shape is not None and sum(map(elements, boxes)) == elements(tuple(slice(0, n) for n in self.shape))


def elements(box: Box) -> int:
    """How many elements a box has whose slices go forward."""
    count = 1
    for part in box:
        count *= max(part.stop - part.start, 0)
    return count


def route_of(step: Move, rank: int) -> Route:
    """The route of the process of a rank in a move between shardings, of one mesh or of two."""
    source, result = step.source.mesh, step.result.mesh
    here, there = place_in(source, rank), place_in(result, rank)
    if not step.received:
        ranks: tuple[int, ...] = ()
    elif source == result:
        assert here is not None
        ranks = tuple(int(source.device_ids[place]) for place in group_of(source, step.pieces, here))
    else:
        ranks = tuple(sorted({*map(int, source.device_ids), *map(int, result.device_ids)}))
    incoming = step.messages(there) if there is not None else []
    outgoing = step.outgoing(here) if here is not None and ranks else []
    arrived = ((int(source.device_ids[m.sender]), m.source, m.target) for m in incoming if m.elements)
    left = ((int(result.device_ids[m.receiver]), m.source) for m in outgoing if m.elements)
    return _route(ranks, rank, step.there.at(there).local_shape if there is not None else None, arrived, left)


def local_route(step: LocalStep, rank: int) -> Route:
    """The route of the process of a rank in a collective on a tensor per device."""
    mesh = step.mesh
    place = place_in(mesh, rank)
    assert place is not None
    members = step.members(place)
    ids = [int(mesh.device_ids[member]) for member in members]
    arrived = ((int(mesh.device_ids[m.sender]), m.source, m.target) for m in step.messages(place))
    left = (
        (device, m.source)
        for member, device in zip(members, ids, strict=True)
        if member != place
        for m in step.messages(member)
        if m.sender == place and elements(m.source)
    )
    return _route(tuple(ids) if step.received else (), rank, step.result_at(place), arrived, left)


def _route(
    ranks: tuple[int, ...],
    rank: int,
    shape: Shape | None,
    arrived: "Iterable[tuple[int, Box, Box]]",
    left: "Iterable[tuple[int, Box]]",
) -> Route:
    own: list[tuple[Box, Box]] = []
    sends: list[list[Box]] = [[] for _ in ranks]
    comes: list[list[tuple[Box, int]]] = [[] for _ in ranks]
    for sender, source, target in arrived:
        if sender == rank:
            own.append((source, target))
        elif elements(target):
            comes[ranks.index(sender)].append((target, elements(target)))
    for receiver, source in left:
        sends[ranks.index(receiver)].append(source)
    return Route(ranks, shape, own, sends, comes)


def place_in(mesh: Mesh, rank: int) -> int | None:
    """The place of a rank's device in a mesh; None if it is not there."""
    return mesh.position(rank) if rank in mesh.device_ids else None


def taken(tensor: Any, box: Sequence[slice]) -> Any:
    """A box of a tensor; torch has no slices that go backward."""
    if all(part.step is None or part.step > 0 for part in box):
        return tensor[tuple(box)]
    forward, flipped = [], []
    for dim, part in enumerate(box):
        if part.step is None or part.step > 0:
            forward.append(part)
            continue
        rows = range(*part.indices(tensor.shape[dim]))
        forward.append(slice(rows[-1], rows[0] + 1, -part.step) if rows else slice(0, 0))
        flipped.append(dim)
    return tensor[tuple(forward)].flip(flipped)
