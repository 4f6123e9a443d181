"""What one device does inside `shard_map`, whichever device it is: kernels and steps on its own padded shards.

All devices run one traced function. What a device knows of itself, its sizes and offsets, it looks up in tables by its place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwright.collectives import AllReduce, ReduceScatter, UpdateHalo
from shardwright.engines.jax.checks import FINITE, Check, is_finite
from shardwright.engines.jax.rounds import Round, is_native, rounds_of
from shardwright.engines.jax.space import JaxSpace, strong
from shardwright.engines.parts import is_first
from shardwright.kernels import Call, run
from shardwright.kernels.call import padding_mask
from shardwright.kernels.elementwise import check_range
from shardwright.mesh import Mesh
from shardwright.ops import is_small
from shardwright.plan import Fetch, Local, LocalStep, Move, Reduce, Regroup, Step, group_of
from shardwright.sharding import REDUCTIONS, Layout

Array = Any
Ints = Any


class Somewhere:
    """The layout of one device, whichever that is: padded sizes, and its own ones looked up; kernels accept it."""

    lanes: tuple[str, ...] = ()
    full_shape: tuple[int, ...] = ()
    lane_shape: tuple[int, ...] = ()
    partial_lanes: tuple[int, ...] = ()

    def __init__(self, layout: Layout, mine: Callable[[Any], Any]) -> None:
        self.sharding, self.shape, self.mesh = layout.sharding, layout.shape, layout.mesh
        self.dims = tuple(dim._replace(lanes=()) for dim in layout.dims)
        self.local_shape = layout.local_shape
        self._layout, self._mine = layout, mine
        self.extents = tuple(
            None if extent is None else mine(np.broadcast_to(extent, layout.full_shape).ravel())
            for extent in layout.extents
        )

    def over_lanes(self, dim: int, per_shard: Any) -> Any:
        """This device's entry of an array with one value per shard of a dim."""
        return self._mine(np.asarray(per_shard)[self._layout.shard_places[:, dim]])


class Inside:
    """One device of a mesh, inside `shard_map` over axes that are cut as fine as any step needs."""

    def __init__(self, mesh: Mesh, lanes: tuple[str, ...], by_rounds: bool = False) -> None:
        self.mesh, self.lanes = mesh, lanes
        self._by_rounds = by_rounds  # whether all moves are rounds: their groups need not be axes of `shard_map`
        self.checks: list[Check] = []
        self.xp = JaxSpace(self.flag)

    def flag(self, condition: Array, error: Exception) -> None:
        """An error to raise on the host if a device finds a condition true."""

        def fail(found: Any) -> None:
            if np.any(found):
                raise error

        self.checks.append(Check(condition, fail))

    # -- this device --------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Array:
        """The place of this device: a traced number."""
        return lax.axis_index(self.lanes)

    def mine(self, table: Any) -> Any:
        """This device's row of a table; a plain array where all rows are equal."""
        table = np.asarray(table)
        if len(table) == 0 or (table == table[:1]).all():
            return table[0]
        return jnp.asarray(table)[self.place]

    def names(self, pieces: Sequence[str]) -> tuple[str, ...]:
        """The axes of `shard_map` that some axes or pieces of them are, in group order."""
        return self.mesh.cut(tuple(pieces), by=self.lanes)

    def axes_pairs(self, pieces: Sequence[str], by: int) -> list[tuple[int, int]]:
        """For every device the member of its group that comes some members later."""
        pairs = []
        for place in range(self.mesh.size):
            members = group_of(self.mesh, pieces, place)
            pairs.append((place, members[(members.index(place) + by) % len(members)]))
        return pairs

    # -- kernels ------------------------------------------------------------------------------------------------------

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Array, ...]:
        """A kernel on this device's shards."""
        call = self.call(local.call)
        if local.name == "in_range":
            if 0 not in call.operands[0].shape:
                self.checks.append(
                    Check(data[1], lambda found: check_range(local.call, found.reshape(-1)[-2:].tolist()))
                )
            return (data[0],)
        made = run(call, data)
        if local.name in FINITE:
            self._check_finite(call, data, made)
        return tuple(strong(self.xp.asarray(x), dtype) for x, dtype in zip(made, call.result_dtypes, strict=True))

    def call(self, call: Call) -> Call:
        """A call as this device makes it. It lives as long as the trace: it keeps traced values."""
        operands, results = ([Somewhere(x, self.mine) for x in some] for some in (call.operands, call.results))  # type: ignore[arg-type]
        return Call(call.name, call.rule, operands, results, call.attrs, call.dtypes, call.result_dtypes, self.xp)  # type: ignore[arg-type]

    def _check_finite(self, call: Call, data: Sequence[Array], made: Sequence[Array]) -> None:
        """NumPy refuses matrices without a solution, where JAX gives NaNs; padding does not count."""
        lost = ~is_finite(made[0], 2)
        for x in data:
            lost = lost & is_finite(x, x.ndim).reshape((1,) * lost.ndim)
        real = padding_mask(call.operands[0], range(len(call.operands[0].shape) - 2))
        if real is not None:
            lost = lost & real.reshape(real.shape[:-2])
        self.flag(jnp.any(lost), np.linalg.LinAlgError(FINITE[call.name]))

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, step: Step, data: Array) -> Array:
        """One step."""
        if isinstance(step, Reduce):
            return self.reduced((step,), (data,))[0]
        if isinstance(step, Regroup):
            return jnp.reshape(data, step.there.local_shape)
        assert isinstance(step, Move), step
        if is_native(step) and not self._by_rounds and data.size:  # XLA refuses collectives of no elements
            names = self.names(step.pieces)
            if step.name == "all_to_all":
                return lax.all_to_all(data, names, split_axis=step.dim, concat_axis=step.other, tiled=True)
            return lax.all_gather(data, names, axis=step.other, tiled=True)
        fill = step.fill if isinstance(step, Fetch) else 0
        result = self.xp.full(step.there.local_shape, fill, dtype=data.dtype)
        made = self.moved(rounds_of(step), data, result)
        kept = step.result.mesh.cut(step.source.partial, by=step.there.lanes)
        new = tuple(lane for lane in step.there.partial_lanes if step.there.lanes[lane] not in kept)
        return self.apart(made, step.there, new)

    def moved(self, rounds: Sequence[Round], data: Array, result: Array) -> Array:
        """A result with the boxes of some rounds written into it."""
        shape, rank = result.shape, result.ndim
        spare, over = [0] * rank, [0] * rank  # rows past the end that padded boxes reach, of the data and of the result
        for turn in rounds:
            for d, room in enumerate(turn.room):
                if (turn.step[:, d] == 1).all():
                    spare[d] = max(spare[d], int(turn.source[:, d].max()) + room - data.shape[d])
                over[d] = max(over[d], int(turn.target[:, d].max()) + room - shape[d])
        data, result = _longer(data, spare), _longer(result, over)
        for turn in rounds:
            result = self._written(turn, self._travelled(turn, data), result)
        return result[tuple(map(slice, shape))] if any(over) else result

    def _travelled(self, turn: Round, data: Array) -> Array:
        """The padded box that this device receives in a round."""
        unit = [bool((turn.step[:, d] == 1).all()) for d in range(data.ndim)]
        starts = [self.mine(turn.source[:, d]) if is_unit else 0 for d, is_unit in enumerate(unit)]
        sizes = [room if is_unit else n for room, is_unit, n in zip(turn.room, unit, data.shape, strict=True)]
        box = _sliced(data, starts, sizes)
        for d, is_unit in enumerate(unit):
            if not is_unit:
                rows = self.mine(turn.source[:, d]) + self.mine(turn.step[:, d]) * np.arange(turn.room[d])
                box = jnp.take(box, rows, axis=d, mode="clip")
        return lax.ppermute(box, self.lanes, turn.pairs) if turn.pairs else box

    def _written(self, turn: Round, box: Array, result: Array) -> Array:
        """A result with the real part of a padded box in its place."""
        starts = [self.mine(turn.target[:, d]) for d in range(result.ndim)]
        if turn.is_full and box.shape == result.shape:
            return box
        if not turn.is_full:
            real = jnp.asarray(self.mine(turn.gets))
            for d, room in enumerate(turn.room):
                inside = np.arange(room) < self.mine(turn.size[:, d])
                real = real & inside.reshape([-1 if i == d else 1 for i in range(result.ndim)])
            box = jnp.where(real, box, _sliced(result, starts, turn.room))
        return lax.dynamic_update_slice(result, box, [jnp.asarray(start, np.int32) for start in starts])

    def apart(self, part: Array, layout: Layout, lanes: Sequence[int]) -> Array:
        """A shard of a value as one that is partial along some lanes: the first of a group keeps it."""
        rest = REDUCTIONS[layout.sharding.reduction].neutral(part.dtype)
        if not lanes or rest is None:
            return part
        first = self.mine(np.array([is_first(layout, place, lanes) for place in range(self.mesh.size)]))
        return jnp.where(first, part, self.xp.full(part.shape, rest, dtype=rest.dtype))

    # -- reductions ---------------------------------------------------------------------------------------------------

    def reduced(self, steps: Sequence[Reduce], data: Sequence[Array]) -> list[Array]:
        """Reductions of one kind over the same groups; several native ones are one message."""
        op, names, dtypes = steps[0].source.reduction, self.names(steps[0].pieces), [x.dtype for x in data]
        carried = [self.xp.astype(x, step.carrier) for step, x in zip(steps, data, strict=True)]
        count = steps[0].group
        if count == 1 or not any(x.size for x in carried):
            totals: Sequence[Array] = [self._own_chunk(step, x) for step, x in zip(steps, carried, strict=True)]
        elif steps[0].name == "reduce_scatter":
            totals = [self._scattered(steps[0], carried[0], op, names)]
        elif reduces_natively(op, carried):
            totals = NATIVE[op](tuple(carried), names)
        else:
            totals = [self._around(x, op, steps[0].pieces) for x in carried]
        return [self._finished(op, total, count, dtype) for total, dtype in zip(totals, dtypes, strict=True)]

    def _own_chunk(self, step: Reduce, x: Array) -> Array:
        """The result where there is nothing to combine: one device, or no elements."""
        return x if x.shape == step.there.local_shape else jnp.zeros(step.there.local_shape, x.dtype)

    def _finished(self, op: str, total: Array, count: int, dtype: Any) -> Array:
        if op == "average":
            total = self.xp.divide(total, np.asarray(count))
        return self.xp.astype(total, dtype)

    def _around(self, x: Array, op: str, pieces: Sequence[str]) -> Array:
        """A ring of chunks of the flattened shard, then what each member finished, gathered."""
        names = self.names(pieces)
        count = int(np.prod([self.mesh.axis(name).size for name in names]))
        chunk = -(-x.size // count)
        padded = jnp.pad(x.reshape(-1), (0, chunk * count - x.size))
        made = self._ring(op, pieces, lambda number: lax.dynamic_slice_in_dim(padded, number * chunk, chunk))
        return lax.all_gather(made, names, tiled=True)[: x.size].reshape(x.shape)

    def _scattered(self, step: Reduce, x: Array, op: str, names: tuple[str, ...]) -> Array:
        """The chunk of a reduction that is this device's part of the result."""
        dim, room = step.dim, step.there.local_shape[step.dim]
        even = x.shape[dim] == room * step.group and all(extent is None for extent in step.here.extents)
        if even and reduces_natively(op, [x]) and op in ("sum", "average"):
            return lax.psum_scatter(x, names, scatter_dimension=dim, tiled=True)
        starts = np.array(
            [[chunk[dim].start for chunk in step.chunks(place)] for place in range(self.mesh.size)]  # type: ignore[union-attr]
        )
        mine = jnp.asarray(self.mine(starts))
        long = _longer(x, [room if d == dim else 0 for d in range(x.ndim)])
        return self._ring(op, step.pieces, lambda number: lax.dynamic_slice_in_dim(long, mine[number], room, dim))

    def _ring(self, op: str, pieces: Sequence[str], chunk: Callable[[Array], Array]) -> Array:
        """What members of a group hold, combined: chunk i starts at member i + 1 and ends at member i."""
        names = self.names(pieces)
        at, count = lax.axis_index(names), int(np.prod([self.mesh.axis(name).size for name in names]))
        pairs, travelling = self.axes_pairs(pieces, 1), chunk((at - 1) % count)
        for turn in range(count - 1):
            came = lax.ppermute(travelling, self.lanes, pairs)
            travelling = self.combined(op, came, chunk((at - 2 - turn) % count))
        return travelling

    def combined(self, op: str, one: Array, other: Array) -> Array:
        """What two devices hold, combined."""
        return self.xp.astype(getattr(self.xp, REDUCTIONS[op].ufunc or "add")(one, other), one.dtype)

    # -- tensors per device -------------------------------------------------------------------------------------------

    def collective(self, step: LocalStep, data: Array) -> Array:
        """A collective on a tensor per device."""
        if not step.reduces:
            keeps = isinstance(step.collective, UpdateHalo)
            result = data if keeps else jnp.zeros(step.results.largest, data.dtype)
            return self.moved(rounds_of(step), data, result)
        op, names = step.collective.op, self.names(step.axes)
        carried = self.xp.astype(self.xp.astype(data, step.result_dtype), step.carrier)
        if step.group == 1 or not carried.size:
            total = carried.reshape(step.results.largest)
        elif isinstance(step.collective, ReduceScatter):
            total = self._scattered_here(step, carried, op)
        elif reduces_natively(op, [carried]):
            (total,) = NATIVE[op]((carried,), names)
        else:
            total = self._around(carried, op, step.axes)
        made = self._finished(op, total, step.group, step.result_dtype)
        if isinstance(step.collective, AllReduce | ReduceScatter):
            return made
        root = np.array([step.root(place) == place for place in range(self.mesh.size)])
        return jnp.where(self.mine(root), made, jnp.zeros_like(made))

    def _scattered_here(self, step: LocalStep, x: Array, op: str) -> Array:
        dim, room = step.collective.dim, step.results.largest[step.collective.dim]
        starts = np.array([[chunk[dim].start for chunk in step.chunks(place)] for place in range(self.mesh.size)])
        mine = jnp.asarray(self.mine(starts))
        long = _longer(x, [room if d == dim else 0 for d in range(x.ndim)])
        return self._ring(op, step.axes, lambda number: lax.dynamic_slice_in_dim(long, mine[number], room, dim))


NATIVE: dict[str, Callable[..., Any]] = {"sum": lax.psum, "average": lax.psum, "max": lax.pmax, "min": lax.pmin}


def reduces_natively(op: str, data: Sequence[Array]) -> bool:
    """Whether XLA reduces arrays of these dtypes as NumPy does; others go around a ring."""
    kinds = "iuf" if op in ("max", "min") else "iufc"
    return op in NATIVE and all(x.dtype.kind in kinds or (is_small(x.dtype) and x.dtype.itemsize == 2) for x in data)


def _sliced(data: Array, starts: Sequence[Any], sizes: Sequence[int]) -> Array:
    """A box of an array; at known places a plain slice."""
    if all(not isinstance(start, jax.Array) for start in starts):
        return data[tuple(slice(int(start), int(start) + size) for start, size in zip(starts, sizes, strict=True))]
    return lax.dynamic_slice(data, [jnp.asarray(start, np.int32) for start in starts], tuple(sizes))


def _longer(data: Array, rows: Sequence[int]) -> Array:
    """An array with zeros behind each dim."""
    return jnp.pad(data, [(0, max(n, 0)) for n in rows]) if any(n > 0 for n in rows) else data
