"""Moves of shards as text.

Each move is written by the operation of the dialect that moves the least for it:

- axes that a dim loses are an all_gather, axes that it gains an all_slice, axes that go from a dim to another an all_to_all;
- rows of neighbours along one axis (halos, rolls, windows, other offsets) are an update_halo, or one shift for each distance;
- anything else (an exchange, a permutation over several axes) is pieces that devices send to one another (`writing_exchange`),
  or a gather of the dims that change, and each device's own rows of them, if that moves no more.

Where shards are uneven they are padded to the largest, so that collectives see equal sizes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.mlir.dialects import SHARD
from shardwright.mlir.text import Typed
from shardwright.mlir.values import MOST_DEVICES
from shardwright.mlir.writing_collectives import Collectives
from shardwright.mlir.writing_exchange import MOST_PIECES, Packed, Part, is_all_to_all, volume
from shardwright.mlir.writing_places import OUTSIDE
from shardwright.ops import RowMap
from shardwright.plan import Fetch, Move, Reduce, Step
from shardwright.sharding import REDUCTIONS, Layout, Sharding, layout_of

Axes = tuple[str, ...]
_PACKED = {"exchange", "permute", "all_to_all", "update_halo", "fetch"}  # moves that may be written by pieces


class Moves(Collectives):
    """Writes the moves of a partitioned program."""

    def gather(self, x: Typed, axes: Axes, dim: int) -> Typed:
        """Shards joined along a dim."""
        if not axes:
            return x
        size = self.text.mesh.axis_size(axes)
        shape = [n * size if d == dim else n for d, n in enumerate(x.shape)]
        return self._collective("all_gather", x, axes, f" gather_axis = {dim}", shape)

    def slice(self, x: Typed, axes: Axes, dim: int) -> Typed:
        """A device's own piece of a dim."""
        if not axes:
            return x
        size = self.text.mesh.axis_size(axes)
        shape = [n // size if d == dim else n for d, n in enumerate(x.shape)]
        return self._collective("all_slice", x, axes, f" slice_axis = {dim}", shape)

    def step(self, step: Step, x: Typed) -> Typed:
        """A move or reduce step of a partitioned program."""
        if isinstance(step, Reduce):
            return self._reduce(step, x)
        assert isinstance(step, Move), step
        packed = self._packed(step)
        if packed is not None:
            made = self._by_pieces(*packed, x)
        elif step.here.is_even and step.there.is_even and not isinstance(step, Fetch):
            made = self.moved(x, step.source, step.result)
        else:
            made = self._uneven(step, x)
        return self._made_partial(made, step)

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _packed(self, step: Move) -> tuple[Packed, list[Part]] | None:
        """An exchange or a permutation as pieces for the members of groups; None where a gather moves no more."""
        mesh = self.text.mesh
        size = mesh.axis_size(step.pieces)
        if step.name not in _PACKED or size == 1 or mesh.size > MOST_DEVICES or self._is_direct(step):
            return None
        groups = [[mesh.position(device) for device in group] for group in mesh.groups(step.pieces)]
        pack = Packed(step, groups)
        if not pack.fits:
            return None
        ways = [pack.all_to_all()] if size <= MOST_PIECES else []
        ways += [parts for parts in (pack.rounds(),) if len(parts) <= MOST_PIECES]
        best = min(ways, key=volume, default=None)
        return None if best is None or volume(best) >= self._gathered_volume(step) else (pack, best)

    def _is_direct(self, step: Move) -> bool:
        """Whether an all_to_all or update_halo of the dialect, or shifts along axes, are all of the step."""
        if step.name in ("update_halo", "fetch"):
            changed = [dim for dim in range(len(step.shape)) if not self._stays(step, dim)]
            lanes = [self.text.axis_numbers(step.source.dims[dim]) for dim in changed]
            return self._is_halo(step, changed) or all(len(own) <= 1 for own in lanes)
        even = step.here.is_even and step.there.is_even
        return step.name == "all_to_all" and (even or self._swapped(step) is not None)

    def _gathered_volume(self, step: Move) -> int:
        """Elements that a device receives if the dims that change are gathered."""
        size, received = math.prod(step.here.local_shape), 0
        for dim, (before, after) in enumerate(zip(step.source.dims, step.result.dims, strict=True)):
            even = step.here.dims[dim].is_even and step.there.dims[dim].is_even
            if self._stays(step, dim):
                continue
            plain = even and before != after
            kept = _common(before, after) if plain else self._kept(step, dim, _wanted_rows(step, dim))[0]
            count = self.text.mesh.axis_size(before[kept:])
            received += size * (count - 1)
            size *= count
        return received

    def _by_pieces(self, pack: Packed, parts: Sequence[Part], x: Typed) -> Typed:
        """The result put together from the pieces that come, and those that stay."""
        local, own = pack.step.there.local_shape, pack.own(parts)
        made: Typed | None = None if pack.fill is None else self.text.constant(pack.fill, local, x.dtype)
        for part, piece in [*((part, self._piece(pack, part, x)) for part in own), *self._arrived(pack, parts, x)]:
            keep: Typed | None = None
            for dim in range(len(local)):
                tables, inside = pack.rows(dim, part)
                piece = self.places.selected(piece, dim, tables, self.text.mesh.axis_names, local[dim])
                if not inside.all():
                    ones = [local[dim] if d == dim else 1 for d in range(len(local))]
                    here = self.rows.reshaped(self.places.entry(inside, self.text.mesh.axis_names), ones)
                    wide = self.rows.broadcast(here, local)
                    kind = (local, np.dtype(bool))
                    keep = wide if keep is None else self.rows.write("logical_and", {}, [keep, wide], kind)
            blank = keep is None or made is None
            made = piece if blank else self.rows.write("where", {}, [keep, piece, made], (local, x.dtype))
        assert made is not None
        return made

    def _piece(self, pack: Packed, part: Part, x: Typed) -> Typed:
        """What a device sends in a part."""
        for dim, room in enumerate(part.rooms):
            x = self.places.selected(x, dim, pack.starts(dim, part), self.text.mesh.axis_names, room)
        return x

    def _arrived(self, pack: Packed, parts: Sequence[Part], x: Typed) -> list[tuple[Part, Typed]]:
        """What a device gets in each part: by one all_to_all, or by a transfer a part."""
        axes, sent = pack.step.pieces, [self._piece(pack, part, x) for part in parts]
        if not is_all_to_all(parts):
            return [(part, self.transferred(piece, axes, part.to)) for part, piece in zip(parts, sent, strict=True)]
        whole = self.rows.joined(sent, 0)
        came = self._collective("all_to_all", whole, axes, " split_axis = 0 concat_axis = 0", whole.shape)
        room = parts[0].rooms[0]
        maps = [[RowMap(room, n * room), *[None] * (len(x.shape) - 1)] for n in range(len(parts))]
        return [(part, self.rows.picked(came, own)) for part, own in zip(parts, maps, strict=True)]

    def _made_partial(self, x: Typed, step: Move) -> Typed:
        """A value that becomes partial: the first device of a group keeps it, the others hold what adds nothing."""
        axes = tuple(axis for axis in step.result.partial if axis not in step.source.partial)
        neutral = REDUCTIONS[step.result.reduction].neutral(step.dtype) if axes else None
        if neutral is None:
            return x
        number = self.places.number(axes)
        first = self.rows.compared("equal", [number, self.text.constant(0, (), np.int64)], ())
        kind = (x.shape, x.dtype)
        return self.rows.write(
            "where", {}, [self.places.wide(first, x.shape), x, self.text.constant(neutral, *kind)], kind
        )

    def placed(self, x: Typed, sharding: Sharding) -> Typed:
        """A whole tensor, of which every device takes its own part."""
        layout = layout_of(sharding, x.shape)
        if layout.is_even:
            return self.moved(x, Sharding(sharding.mesh), sharding)
        for dim, held in enumerate(layout.dims):
            if sharding.dims[dim]:
                tables = [np.arange(*held.bounds(shard)) for shard in range(held.parts)]
                x = self.places.selected(x, dim, tables, sharding.dims[dim], held.local)
        return x

    def _reduce(self, step: Reduce, x: Typed) -> Typed:
        axes, kind = step.pieces, self.text.reduction(step.source.reduction)
        if step.name != "reduce_scatter":
            return self._collective("all_reduce", x, axes, kind, x.shape)
        here, there = step.here.dims[step.dim], step.there.dims[step.dim]
        if not (here.is_even and there.is_even):
            if step.source.dims[step.dim]:
                whole = self._collective("all_reduce", x, axes, kind, x.shape)
                return self._own_rows(whole, step.dim, step)
            x = self._spread(x, step.dim, step.there)
        shape = [n // self.text.mesh.axis_size(axes) if d == step.dim else n for d, n in enumerate(x.shape)]
        return self._collective("reduce_scatter", x, axes, f"{kind} scatter_axis = {step.dim}", shape)

    def _own_rows(self, x: Typed, dim: int, step: Step) -> Typed:
        """The rows of a finer shard, all of which its device holds."""
        here, there = step.here.dims[dim], step.there.dims[dim]
        tables = []
        for shard in range(there.parts):
            rows = np.arange(*there.bounds(shard))
            tables.append(rows - here.offsets[here.owners(rows)] + here.low)
        return self.places.selected(x, dim, tables, step.result.dims[dim], there.local)

    def _spread(self, x: Typed, dim: int, there: Layout) -> Typed:
        """A whole dim as shards of equal size, one after the other, padded."""
        held = there.dims[dim]
        rows = np.zeros(held.parts * held.local, np.int64)
        for shard in range(held.parts):
            own = np.arange(*held.bounds(shard))
            rows[shard * held.local : shard * held.local + len(own)] = own
        return self.places.selected(x, dim, [rows], (), len(rows))

    def moved(self, x: Typed, source: Sharding, target: Sharding) -> Typed:
        """A value in another sharding, by gathers, an all_to_all and slices."""
        count = len(x.shape)
        before, after = (tuple((*s.dims, *((),) * count)[:count]) for s in (source, target))
        kept = [_common(a, b) for a, b in zip(before, after, strict=True)]
        loses = [a[n:] for a, n in zip(before, kept, strict=True)]
        gains = [b[n:] for b, n in zip(after, kept, strict=True)]
        losing, gaining = ([d for d, axes in enumerate(some) if axes] for some in (loses, gains))
        if len(losing) == 1 and len(gaining) == 1 and losing != gaining and loses[losing[0]] == gains[gaining[0]]:
            axes, size = loses[losing[0]], self.text.mesh.axis_size(loses[losing[0]])
            shape = list(x.shape)
            shape[gaining[0]] //= size
            shape[losing[0]] *= size
            return self._collective(
                "all_to_all", x, axes, f" split_axis = {gaining[0]} concat_axis = {losing[0]}", shape
            )
        for dim in losing:
            x = self.gather(x, loses[dim], dim)
        for dim in gaining:
            x = self.slice(x, gains[dim], dim)
        return x

    # -- uneven shards, and rows of other devices ---------------------------------------------------------------------

    def _uneven(self, step: Move, x: Typed) -> Typed:
        source, target, here, there = step.source, step.result, step.here, step.there
        changed = [dim for dim in range(len(x.shape)) if not self._stays(step, dim)]
        if changed and self._is_halo(step, changed):
            return self._with_halo(step, x, changed)
        swapped = self._swapped(step)
        if swapped is not None:
            return self._exchanged(x, *swapped, here, there)
        taken = {dim: {*self.text.axis_numbers(target.dims[dim])} for dim in changed}
        split = {dim: {*self.text.axis_numbers(source.dims[dim])} for dim in changed}
        free = [d for d in changed if not any(taken[d] & split[other] for other in changed if other != d)]
        tied = [d for d in changed if d not in free]  # devices that take other rows along an axis can't gather along it
        for dim in free:
            x = self._fetched(step, x, dim)
        selections = []
        for dim in tied:
            x, tables = self._gathered(step, x, dim)
            selections.append((dim, tables))
        for dim, tables in selections:
            x = self.places.selected(x, dim, tables, target.dims[dim], there.dims[dim].local)
        return x

    def _swapped(self, step: Move) -> tuple[int, int] | None:
        """The dim that loses its axes and the one that gets them, where nothing else changes."""
        source, target = step.source, step.result
        changed = [dim for dim in range(len(step.shape)) if not self._stays(step, dim)]
        if len(changed) == 2 and not isinstance(step, Fetch) and not source.halo and not target.halo:
            for lost, gained in (changed, changed[::-1]):
                plain = not source.dims[gained] and not target.dims[lost]
                if plain and source.dims[lost] == target.dims[gained]:
                    return lost, gained
        return None

    def _stays(self, step: Move, dim: int) -> bool:
        """Whether every device keeps its rows of a dim."""
        fetched = isinstance(step, Fetch) and step.maps[dim] is not None
        one, other = step.here.dims[dim], step.there.dims[dim]
        same = step.source.dims[dim] == step.result.dims[dim] and np.array_equal(one.offsets, other.offsets)
        return same and not fetched and (one.low, one.high) == (other.low, other.high)

    def _is_halo(self, step: Move, changed: Sequence[int]) -> bool:
        """Whether even shards only get halos, which LLVM 19 has no operation for."""
        if self.text.dialect != SHARD or isinstance(step, Fetch):
            return False
        pairs = [(step.here.dims[dim], step.there.dims[dim]) for dim in changed]
        alike = all(step.source.dims[dim] == step.result.dims[dim] != () for dim in changed)
        fits = all(one.is_even and max(other.low, other.high) <= one.block for one, other in pairs)
        return alike and fits and all(np.array_equal(one.offsets, other.offsets) for one, other in pairs)

    def _with_halo(self, step: Move, x: Typed, changed: Sequence[int]) -> Typed:
        ends = [
            (step.there.dims[d].low, step.there.dims[d].high) if d in changed else (0, 0) for d in range(len(x.shape))
        ]
        wide = self.rows.padded(x, [low for low, _ in ends], [high for _, high in ends], 0)
        lists = [self.text.axis_numbers(step.result.dims[d]) if d in changed else [] for d in range(changed[-1] + 1)]
        return self._halo(lists, [n for d in changed for n in ends[d]], wide)

    def _exchanged(self, x: Typed, lost: int, gained: int, here: Layout, there: Layout) -> Typed:
        """An all_to_all of uneven shards: one dim is padded before it, the other without its padding after it."""
        axes = here.sharding.dims[lost]
        count = self.text.mesh.axis_size(axes)
        x = self._spread(x, gained, there)
        shape = list(x.shape)
        shape[gained], shape[lost] = shape[gained] // count, shape[lost] * count
        made = self._collective("all_to_all", x, axes, f" split_axis = {gained} concat_axis = {lost}", shape)
        return self.places.selected(made, lost, [here.dims[lost].places()], (), here.dims[lost].size)

    def _fetched(self, step: Move, x: Typed, dim: int) -> Typed:
        """The rows of a dim that a device wants: from neighbours by shifts if that moves less, else from a gather."""
        here, there = step.here.dims[dim], step.there.dims[dim]
        axes, target = step.source.dims[dim], step.result.dims[dim]
        rows = _wanted_rows(step, dim)
        fill = step.fill if isinstance(step, Fetch) else 0
        if axes == target and len(self.text.axis_numbers(axes)) == 1:
            near = _Near(here, rows)
            if near.volume < (here.parts - 1) * here.local:
                parts = [x, *(self._shifted(x, dim, axes, near, distance) for distance in near.starts)]
                return self.places.selected(self.rows.joined(parts, dim), dim, near.tables, axes, there.local, fill)
        whole, tables = self._gathered(step, x, dim)
        return self.places.selected(whole, dim, tables, target, there.local, fill)

    def _gathered(self, step: Move, x: Typed, dim: int) -> tuple[Typed, list[Any]]:
        """A dim gathered, and for each shard of the result the places of its rows."""
        here, there, axes = step.here.dims[dim], step.there.dims[dim], step.source.dims[dim]
        rows = _wanted_rows(step, dim)
        places = here.places()
        kept, inner = self._kept(step, dim, rows)
        whole = self.gather(x, axes[kept:], dim)
        tables = []
        for shard, own in enumerate(rows):
            base = shard // (there.parts // self.text.mesh.axis_size(axes[:kept])) * inner * here.local if kept else 0
            tables.append(np.where(own == OUTSIDE, OUTSIDE, places[np.maximum(own, 0)] - base if len(places) else own))
        return whole, tables

    def _kept(self, step: Move, dim: int, rows: Sequence[Any]) -> tuple[int, int]:
        """How many outer axes need not be gathered, since every device finds its rows along the inner ones; and how many
        shards these have."""
        here, there = step.here.dims[dim], step.there.dims[dim]
        axes, target = step.source.dims[dim], step.result.dims[dim]
        for count in range(_common(axes, target), 0, -1):
            outer = self.text.mesh.axis_size(axes[:count])
            inner, block = here.parts // outer, there.parts // outer
            owners = [here.owners(own[own != OUTSIDE]) // inner for own in rows]
            if all((some == shard // block).all() for shard, some in enumerate(owners)):
                return count, inner
        return 0, here.parts

    def _shifted(self, x: Typed, dim: int, axes: Axes, near: "_Near", distance: int) -> Typed:
        """Rows of the device at a distance along an axis; data moves towards +offset, so from the right by a negative one."""
        room = near.rooms[distance]
        tables = [start + np.arange(room) for start in near.starts[distance]]
        piece = self.places.selected(x, dim, tables, axes, room)
        more = f" shift_axis = {self.text.axis_numbers(axes)[0]} offset = {-distance}"
        return self._collective("shift", piece, axes, f"{more}{' rotate' if near.wraps[distance] else ''}", piece.shape)


def _wanted_rows(step: Move, dim: int) -> list[Any]:
    """For each shard of the result its rows, OUTSIDE where it gets the fill value: in halos beyond either border."""
    there, found = step.there.dims[dim], []
    for shard in range(there.parts):
        rows, extent = step.wanted[dim].rows(shard), int(there.sizes[shard]) + there.low + there.high
        found.append(np.concatenate([rows, np.full(max(extent - len(rows), 0), OUTSIDE)]) if there.high else rows)
    return found


class _Near:
    """Rows that the shards of a dim want, by how far the shards that hold them are along an axis.

    `starts` has, for each distance, where the rows that a shard sends begin in it, `rooms` how many it sends; `tables` has, for
    each shard, its rows among its own and those that it gets, in the order of the distances.
    """

    def __init__(self, here: Any, rows: Sequence[Any]) -> None:
        count = here.parts
        self.starts: dict[int, list[int]] = {}
        self.rooms: dict[int, int] = {}
        self.wraps: dict[int, bool] = {}
        owners, local = [], []
        for shard, own in enumerate(rows):
            held = np.where(own == OUTSIDE, shard, here.owners(np.maximum(own, 0)))
            low, high = here.bounds(shard)
            mine = (own >= max(low - here.low, 0)) & (own < min(high + here.high, here.size)) & (own != OUTSIDE)
            held = np.where(mine, shard, held)  # what its own halo has need not come from elsewhere
            owners.append(held)
            local.append(own - here.offsets[held] + here.low)
        turns = [(held - shard + count // 2) % count - count // 2 for shard, held in enumerate(owners)]
        for distance in sorted({int(n) for some in turns for n in np.unique(some)} - {0}):
            spans = {}
            for shard, (some, held) in enumerate(zip(turns, owners, strict=True)):
                asked = local[shard][some == distance]
                if len(asked):
                    spans[int(held[some == distance][0])] = int(asked.min()), int(asked.max()) + 1
            room = max(last - first for first, last in spans.values())
            first = [spans[shard][0] if shard in spans else None for shard in range(count)]
            usual = next(n for n in first if n is not None)
            self.rooms[distance] = room
            self.starts[distance] = [min(usual if n is None else n, here.local - room) for n in first]
            self.wraps[distance] = any(not 0 <= shard - distance < count for shard in spans)
        self.volume = sum(self.rooms.values())
        self.tables = [self._table(here, *some) for some in zip(rows, owners, turns, local, strict=True)]

    def _table(self, here: Any, own: Any, held: Any, turn: Any, local: Any) -> Any:
        """A shard's rows among its own and those that come from each distance."""
        result, base = np.where(turn == 0, local, 0), here.local
        for distance, starts in self.starts.items():
            there = turn == distance
            result = np.where(there, base + local - np.asarray(starts)[held], result)
            base += self.rooms[distance]
        return np.where(own == OUTSIDE, OUTSIDE, result)


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many first entries are equal."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
