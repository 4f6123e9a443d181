"""Who sends what to whom in a direct exchange. Where several devices hold a part, the load is shared among them."""

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from shardwright.sharding import Layout

Box = tuple[slice, ...]


class Transfer(NamedTuple):
    """One message: a box of the tensor, from one device to another."""

    sender: int
    receiver: int
    box: Box
    elements: int


def transfers(here: Layout, there: Layout) -> list[Transfer]:
    """Every message of the exchange between two layouts, the busiest sender as little busy as can be.

    Each receiver gets each missing box whole from one holder. Boxes go to the least loaded holder, largest first; then
    messages are handed on along chains of holders as long as that takes load off the busiest.
    """
    senders, receivers = here.mesh.device_ids, there.mesh.device_ids
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, places in zip(senders, here.shard_places.tolist(), strict=True):
        holders[tuple(places)].append(device)
    own = {device: tuple(places) for device, places in zip(senders, here.shard_places.tolist(), strict=True)}
    cuts = [(dim.offsets.tolist(), other.offsets.tolist()) for dim, other in zip(here.dims, there.dims, strict=True)]
    wanted: list[tuple[int, int, Box, tuple[int, ...]]] = []
    for device, places in zip(receivers, there.shard_places.tolist(), strict=True):
        spans = [_meeting(mine, other, at) for (mine, other), at in zip(cuts, places, strict=True)]
        for index in np.ndindex(*(len(span) for span in spans)):
            shard = tuple(span[i][0] for span, i in zip(spans, index, strict=True))
            box = tuple(span[i][1] for span, i in zip(spans, index, strict=True))
            size = int(np.prod([part.stop - part.start for part in box], dtype=np.int64))
            if size and own.get(device) != shard:
                wanted.append((size, device, box, shard))
    return _shared(sorted(wanted, key=lambda job: -job[0]), holders)


def _meeting(cuts: list[int], others: list[int], at: int) -> list[tuple[int, slice]]:
    """The shards of one dim that meet shard `at` of the other layout, each with the rows they share."""
    low, high = others[at], others[at + 1]
    result = []
    for shard in range(max(bisect_right(cuts, low) - 1, 0), len(cuts) - 1):
        if cuts[shard] >= high:
            break
        part = slice(max(low, cuts[shard]), min(high, cuts[shard + 1]))
        if part.start < part.stop:
            result.append((shard, part))
    return result


def _shared(
    wanted: list[tuple[int, int, Box, tuple[int, ...]]], holders: dict[tuple[int, ...], list[int]]
) -> list[Transfer]:
    load: dict[int, int] = defaultdict(int)
    sent: dict[int, list[int]] = defaultdict(list)  # sender -> jobs
    sender: list[int] = []
    for job, (size, _, _, shard) in enumerate(wanted):
        best = min(holders[shard], key=lambda device: (load[device], device))
        load[best] += size
        sent[best].append(job)
        sender.append(best)
    while load:
        busiest = max(load, key=lambda device: (load[device], -device))
        chain = _relief(busiest, load, sent, wanted, holders)
        if chain is None:
            break
        for job, taker in chain:
            size, giver = wanted[job][0], sender[job]
            sent[giver].remove(job)
            sent[taker].append(job)
            load[giver] -= size
            load[taker] += size
            sender[job] = taker
    return [Transfer(sender[job], device, box, size) for job, (size, device, box, _) in enumerate(wanted)]


def _relief(
    busiest: int,
    load: dict[int, int],
    sent: dict[int, list[int]],
    wanted: list[tuple[int, int, Box, tuple[int, ...]]],
    holders: dict[tuple[int, ...], list[int]],
) -> list[tuple[int, int]] | None:
    """Messages to hand on, each to another holder, so that the busiest sends less and nobody becomes as busy."""
    came: dict[int, tuple[int, int] | None] = {busiest: None}  # device -> (job it takes, from whom)
    queue = [busiest]
    for device in queue:
        for job in sent[device]:
            size = wanted[job][0]
            for taker in holders[wanted[job][3]]:
                if taker in came:
                    continue
                came[taker] = (job, device)
                if load[taker] + size < load[busiest]:
                    chain = []
                    step = came[taker]
                    at = taker
                    while step is not None:
                        chain.append((step[0], at))
                        at = step[1]
                        step = came[at]
                    return chain if _helps(chain, load, wanted, busiest) else None
                queue.append(taker)
    return None


def _helps(
    chain: list[tuple[int, int]],
    load: dict[int, int],
    wanted: list[tuple[int, int, Box, tuple[int, ...]]],
    busiest: int,
) -> bool:
    """Whether every device of a chain stays below the busiest; with messages of one size it always does."""
    after = {taker: load[taker] + wanted[job][0] for job, taker in chain}
    for (_, taker), (job, _) in zip(chain[1:], chain, strict=False):
        after[taker] -= wanted[job][0]
    return all(total < load[busiest] for total in after.values())
