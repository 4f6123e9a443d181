"""Operations with data-dependent shapes: devices find what they hold, agree on how much, and lists are put in order.

What travels between devices are the places or the different values that were found, never the operand; only operations that
need the whole operand gather it first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.eager.held import Held
from shardwright.eager.placement import auto_spec
from shardwright.engines import engine_of
from shardwright.kernels import KERNELS, Call
from shardwright.kernels.dynamic import merged
from shardwright.ops import Attrs, Rule
from shardwright.sharding import Layout, P, Sharding, layout_of

Lists = dict[int, list[NDArray[Any]]]  # for each device of this process the lists it found


def found(name: str, rule: Rule, operands: Sequence[Held], attrs: Attrs) -> list[Held]:
    """The results of an operation with data-dependent shapes."""
    first = operands[0]
    where = first.sharding.replace(partial=(), halo={}) if rule.outputs else Sharding(first.mesh)
    layouts = [layout_of(where, x.shape) for x in operands]
    lists = _searched(name, rule, operands, layouts, attrs)
    if not rule.outputs:  # every device has made the same
        return [_laid_out(first, next(iter(lists.values()))[0])]
    if name == "unique":
        return _united(first, layouts[0], lists)
    return _listed(first, layouts[0], lists, values=name == "masked")


def _searched(name: str, rule: Rule, operands: Sequence[Held], layouts: Sequence[Layout], attrs: Attrs) -> Lists:
    """What each device finds in its own shards; devices that hold the same find the same."""
    engine = engine_of(layouts[0].mesh)
    data = [x.placed(layout) for x, layout in zip(operands, layouts, strict=True)]
    call = Call(name, rule, layouts, (), attrs, [x.dtype for x in operands], ())
    seen: dict[tuple[int, ...], list[NDArray[Any]]] = {}
    lists = {}
    for place in engine.places(layouts[0].mesh):
        numbers = layouts[0].shard_numbers(place)
        if numbers not in seen:
            shards = [engine.shard(x, layout, place) for x, layout in zip(data, layouts, strict=True)]
            seen[numbers] = KERNELS[name](call.at(place), *shards)
        lists[place] = seen[numbers]
    return lists


def _laid_out(x: Held, whole: NDArray[Any], sharding: Sharding | None = None) -> Held:
    """What every device holds whole, cut as a sharding or the policy says: devices keep their own parts."""
    engine = engine_of(x.mesh)
    layout = layout_of(Sharding(x.mesh), np.shape(whole))
    made = x.of(layout, engine.put(np.asarray(whole), layout))
    target = layout_of(sharding or Sharding(x.mesh, auto_spec(layout.shape, x.mesh)), layout.shape)
    return x.of(target, made.placed(target))


def _ragged(x: Held, layout: Layout, lists: Lists, column: int) -> Held:
    """One of the lists that each device found, one after the other, as one array: each device holds its own."""
    axes = tuple(axis for axes in layout.sharding.dims for axis in axes)
    cuts = [0, *np.cumsum(_sizes(layout, lists)).tolist()]
    there = layout_of(Sharding(x.mesh, P(axes), offsets={0: cuts}), (cuts[-1],))
    mine = {place: found[column] for place, found in lists.items()}
    return x.of(there, engine_of(x.mesh).assemble(mine, there))


def _sizes(layout: Layout, lists: Lists) -> NDArray[np.int64]:
    """How long the lists of each shard are: what all devices agree on."""
    mesh = layout.mesh
    known = engine_of(mesh).agreed(mesh, {place: [len(found[0])] for place, found in lists.items()})
    sizes = np.zeros(int(np.prod([dim.parts for dim in layout.dims])), np.int64)
    for place, (size,) in enumerate(known):
        sizes[_number(layout, place)] = size
    return sizes


def _number(layout: Layout, place: int) -> int:
    """Which of all shards a device holds, counted row-major over dims."""
    number = 0
    for dim, at in zip(layout.dims, layout.shard_numbers(place), strict=True):
        number = number * dim.parts + at
    return number


def _everywhere(x: Held) -> NDArray[Any]:
    """A list on every device: the gather that putting lists in order takes."""
    layout = layout_of(Sharding(x.mesh), x.shape)
    engine = engine_of(x.mesh)
    return engine.shard(x.placed(layout), layout, engine.places(x.mesh)[0])


def _listed(x: Held, layout: Layout, lists: Lists, values: bool) -> list[Held]:
    """Lists of places, and perhaps of values, in the order of the whole tensor.

    If only the first dim is split the devices' lists follow one another: all of them stay where they were made.
    """
    columns = [_ragged(x, layout, lists, at) for at in range(len(next(iter(lists.values()))))]
    wanted: Callable[[list[Any]], list[Any]] = (lambda some: some[:1]) if values else (lambda some: some)
    if all(dim.parts == 1 for dim in layout.dims[1:]):
        return wanted(columns)
    whole = [_everywhere(column) for column in columns]
    order = np.lexsort((whole[1:] if values else whole)[::-1])
    spread = Sharding(x.mesh, P(tuple(axis for axes in layout.sharding.dims for axis in axes)))
    return [_laid_out(x, column[order], spread) for column in wanted(whole)]


def _united(x: Held, layout: Layout, lists: Lists) -> list[Held]:
    """The different elements of all shards, where each is first, which of them each element is, how often each occurs."""
    values, first, counts = (_everywhere(_ragged(x, layout, lists, at)) for at in range(3))
    different, places, total, number = merged(values, first, counts)
    base = np.concatenate([[0], np.cumsum(_sizes(layout, lists))])
    which = {place: number[base[_number(layout, place)] + found[3]] for place, found in lists.items()}
    inverse = x.of(layout, engine_of(x.mesh).assemble(which, layout))
    spread = Sharding(x.mesh, P(tuple(axis for axes in layout.sharding.dims for axis in axes)))
    made = [_laid_out(x, some, spread) for some in (different.astype(x.dtype), places, total)]
    return [made[0], made[1], inverse, made[2]]
