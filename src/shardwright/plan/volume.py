"""How much moves between two shardings: what every device lacks, what it sends, and the least that any way needs."""

import math

import numpy as np
from numpy.typing import NDArray

from shardwright.plan.route import Change
from shardwright.sharding import Layout, Sharding, layout_of

Shape = tuple[int, ...]
Ints = NDArray[np.int64]


def sizes_of(boxes: Ints) -> Ints:
    """The elements of each box; Python's numbers where those of a machine would not do."""
    return _product(boxes[1] - boxes[0])


def _product(sides: Ints) -> Ints:
    large = sides.size and float(np.prod(sides.max(axis=0).astype(float))) > 2.0**62
    return np.prod(sides.astype(object) if large else sides, axis=-1)


def _boxes(sharding: Sharding, shape: Shape) -> Ints:
    """Each device's box, with its halo as far as that lies in the tensor."""
    boxes = layout_of(sharding, shape).boxes
    if not sharding.halo:
        return boxes
    low, high = (np.array([pair[side] for pair in sharding.halo]) for side in (0, 1))
    return np.stack([np.maximum(boxes[0] - low, 0), np.minimum(boxes[1] + high, np.array(shape))])


def _overlaps(source: Sharding, target: Sharding, shape: Shape) -> Ints:
    """Per device of the target's mesh the elements of its new shard that it already holds."""
    here, there = _boxes(source, shape), _boxes(target, shape)
    at: Ints | None = None
    if source.mesh.device_ids != target.mesh.device_ids:
        places = {device: place for place, device in enumerate(source.mesh.device_ids)}
        at = np.array([places.get(device, -1) for device in target.mesh.device_ids])
        here = here[:, np.maximum(at, 0)]
    common = np.minimum(here[1], there[1]) - np.maximum(here[0], there[0])
    held = _product(np.maximum(common, 0))
    return held if at is None else np.where(at >= 0, held, 0)


def received(source: Sharding, target: Sharding, shape: Shape) -> Ints:
    """Per device the elements of its new shard that it lacks: what it must receive, however that is done."""
    return sizes_of(_boxes(target, shape)) - _overlaps(source, target, shape)


def sent(source: Sharding, target: Sharding, shape: Shape) -> int:
    """The elements that the busiest device sends, if those who hold the same share the work evenly.

    The copies of the target together need every element of a shard as often as there are copies; what its holders keep
    for themselves is not sent.
    """
    here, there = layout_of(source, shape), layout_of(target, shape)
    copies = there.mesh.size // math.prod(dim.parts for dim in there.dims)
    holders = here.mesh.size // math.prod(dim.parts for dim in here.dims)
    sizes = sizes_of(here.boxes)
    shard = shard_of(here)
    kept = np.zeros(here.mesh.size, np.int64)
    overlaps = _overlaps(source, target, shape)
    if source.mesh.device_ids == target.mesh.device_ids:
        kept = overlaps
    else:
        places = {device: place for place, device in enumerate(source.mesh.device_ids)}
        for device, elements in zip(target.mesh.device_ids, overlaps.tolist(), strict=True):
            if device in places:
                kept[places[device]] = elements
    count = int(shard.max(initial=0)) + 1
    needed = np.zeros(count)
    needed[shard] = sizes * float(copies)
    needed -= np.bincount(shard, weights=kept, minlength=count)
    return math.ceil(float(needed.max(initial=0)) / holders)


def shard_of(layout: Layout) -> Ints:
    """The number of the shard that each device holds."""
    shard = np.zeros(layout.mesh.size, np.int64)
    for dim, places in zip(layout.dims, layout.shard_places.T, strict=True):
        shard = shard * dim.parts + places
    return shard


def lower_bound(source: Sharding, target: Sharding, shape: Shape, itemsize: int) -> int:
    """Bytes that some device must receive, whatever the algorithm.

    A device receives what it lacks of its new shard. A partial value needs more: every element has p summands, so p - 1
    messages combine them and one more goes to each further device that wants the result; spread over all devices, that is the
    least the busiest receives.
    """
    here, there = source.for_shape(shape), target.for_shape(shape)
    change = Change(here, there) if here.mesh == there.mesh else None
    aligned = change is not None and change.possible
    kept = here.mesh.axis_size(change.kept) if aligned and change is not None and change.kept else 1
    made = there.mesh.axis_size(there.partial) if there.partial else 1
    lacking = (
        int(received(here, there, shape).max(initial=0)) if made == kept else 0
    )  # others may hold what adds nothing
    pieces = change.reduced if aligned and change is not None else here.partial
    summands = here.mesh.axis_size(tuple(pieces)) if pieces else 1
    if summands > 1:
        parts = there.mesh.axis_size(tuple(axis for axes in there.dims for axis in axes))
        copies = max(there.mesh.size // parts // made, 1)
        messages = math.prod(shape) * kept * (summands - 1 + copies - 1)
        devices = len({*here.mesh.device_ids, *there.mesh.device_ids}) if here.mesh != there.mesh else there.mesh.size
        lacking = max(lacking, math.ceil(messages / devices))
    return lacking * itemsize


def halo_rows(sharding: Sharding, shape: Shape) -> int:
    """The elements of halos that the device with the most of them receives."""
    if not sharding.halo:
        return 0
    return int(received(sharding.replace(halo={}).for_shape(shape), sharding, shape).max(initial=0))
