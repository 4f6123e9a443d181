"""Routes: what one process sends and receives in a step, from the step's messages."""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from shardwright.engines.torch.space import moving
from shardwright.mesh import Mesh
from shardwright.plan import LocalStep, Move, group_of

Box = tuple[slice, ...]
Shape = tuple[int, ...]


class Grid(NamedTuple):
    """Boxes of one size that lie side by side in a tensor and follow one another as in nested loops over some dims."""

    outline: Box  # of all boxes together
    split: tuple[tuple[int, int], ...]  # of each dim: how many boxes, how long each
    order: tuple[int, ...]  # dims of the tensor with every dim split in two, those that number boxes first

    def view(self, tensor: Any) -> Any:
        """The boxes of a tensor without a copy, one after the other along leading dims."""
        view = tensor[self.outline]
        for dim in reversed(range(len(self.split))):
            view = view.unflatten(dim, self.split[dim])
        return view.permute(self.order)


class Route(NamedTuple):
    """The part of one process in a move: boxes of its shard for each member of a group, and where what they send goes.

    What stays here is a message like the others, from this process to itself.
    """

    ranks: tuple[int, ...]  # the group, in the mesh's order; this process alone if nothing is sent
    shape: Shape | None  # of the result here; None if this process has no part of it
    sends: list[list[Box]]  # for each member
    comes: list[list[tuple[Box, int]]]  # from each member: to, how many elements
    is_complete: bool  # whether messages fill the whole result
    is_stacked: bool  # and what members send, one after the other, is the result
    packing: Grid | None  # the boxes to send, where one copy packs them all
    unpacking: Grid | None  # and where what comes goes


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
    members = ranks or (rank,)
    sends: list[list[Box]] = [[] for _ in members]
    comes: list[list[tuple[Box, int]]] = [[] for _ in members]
    for sender, source, target in arrived:
        if not elements(target):
            continue
        comes[members.index(sender)].append((target, elements(target)))
        if sender == rank:
            sends[members.index(rank)].append(source)
    for receiver, source in left:
        sends[members.index(receiver)].append(source)
    boxes = [box for some in comes for box, _ in some]
    complete = shape is not None and sum(map(elements, boxes)) == elements(tuple(slice(0, n) for n in shape))
    stacked = complete and shape is not None and _is_stacked(shape, boxes)
    packing = grid_of([box for some in sends for box in some])
    return Route(members, shape, sends, comes, complete, stacked, packing, None if stacked else grid_of(boxes))


def grid_of(boxes: Sequence[Box]) -> Grid | None:
    """The grid that boxes form in their order, if they do.

    None also for a grid along the first dim alone: such boxes are packed in memory as they are.
    """
    if len(boxes) < 2 or not boxes[0] or any(part.step not in (None, 1) for box in boxes for part in box):
        return None
    sizes = [part.stop - part.start for part in boxes[0]]
    starts = [[part.start for part in box] for box in boxes]
    first, last = starts[0], starts[-1]
    counts = [(high - low) // size + 1 for low, high, size in zip(first, last, sizes, strict=True)]
    numbered = [dim for dim, count in enumerate(counts) if count != 1]
    if numbered == [0] or math.prod(counts) != len(boxes):
        return None
    # The dim of the outermost loop changes last.
    numbered.sort(key=lambda dim: next(i for i, start in enumerate(starts) if start[dim] != first[dim]), reverse=True)
    steps = [[number * sizes[dim] for number in range(counts[dim])] for dim in numbered]
    for box, moved in zip(boxes, product(*steps), strict=False):
        start = dict(zip(numbered, moved, strict=True))
        expected = [(low + start.get(dim, 0), size) for dim, (low, size) in enumerate(zip(first, sizes, strict=True))]
        if [(part.start, part.stop - part.start) for part in box] != expected:
            return None
    outline = tuple(slice(low, high + size) for low, high, size in zip(first, last, sizes, strict=True))
    whole = [dim for dim in range(len(sizes)) if dim not in numbered]
    order = (*(2 * dim for dim in (*numbered, *whole)), *(2 * dim + 1 for dim in range(len(sizes))))
    return Grid(outline, tuple(zip(counts, sizes, strict=True)), order)


def _is_stacked(shape: Shape, boxes: Sequence[Box]) -> bool:
    """Whether boxes of a tensor are runs of its first dim, one after the other."""
    row = 0
    for box in boxes:
        if (
            not box
            or box[0].start != row
            or any((b.start, b.stop) != (0, n) for b, n in zip(box[1:], shape[1:], strict=True))
        ):
            return len(boxes) == 1
        row = box[0].stop
    return True


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
    return moving(lambda bits: bits.flip(flipped), tensor[tuple(forward)])
