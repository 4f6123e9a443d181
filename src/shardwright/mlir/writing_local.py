"""Collectives, moves of shards and questions about the mesh as text.

A move is written by what it does to the sharding: axes that a dim loses are gathered, axes that it gains are sliced, one
axis that goes from a dim to another is an all_to_all. What is none of these (an exchange, a permutation) is a gather of what
differs and a slice: right for every pair of shardings, though it moves more than the step that it stands for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright import collectives as c
from shardwright.errors import MLIRError
from shardwright.mlir.communication import QueryKey
from shardwright.mlir.text import Text, Typed
from shardwright.mlir.types import tensor_name
from shardwright.mlir.writing_rows import Rows
from shardwright.plan import Fetch, Reduce, SendRecv, Step
from shardwright.sharding import Sharding

Axes = tuple[str, ...]


class Moves:
    """Writes what devices do together."""

    def __init__(self, text: Text, rows: Rows) -> None:
        self.text, self.rows = text, rows

    def _collective(
        self, name: str, x: Typed, axes: Sequence[str], more: str, shape: Sequence[int], dtype: Any = None
    ) -> Typed:
        """A collective; one that names a device of the group has its types in brackets."""
        kind = x.dtype if dtype is None else np.dtype(dtype)
        alone = self.text.mesh.axis_size(tuple(axes)) == 1 and name not in ("send", "recv", "shift")
        if alone and tuple(shape) == x.shape and kind == x.dtype:
            return x  # every group is one device
        made = tensor_name(tuple(shape), kind)
        device = any(f"{what} = [" in more for what in ("root", "destination", "source")) or name in ("recv", "send")
        types = f"({x.type}) -> {made}" if device else f"{x.type} -> {made}"
        text = f"{self.text.dialect}.{name} {x.name} {self.text.on(axes)}{more}"
        return self.text.op(text, shape, kind, types)

    # -- moves of shards ----------------------------------------------------------------------------------------------

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
        if isinstance(step, Fetch) or step.source.halo or step.result.halo:
            raise MLIRError(
                f"{step.name} over {step.axes} can't be written: the dialect has no operation for rows fetched from other "
                f"devices. Write the global view, view='global'."
            )
        if isinstance(step, Reduce):
            return self._reduce(step, x)
        return self.moved(x, step.source, step.result)

    def _reduce(self, step: Reduce, x: Typed) -> Typed:
        axes, kind = step.pieces, self.text.reduction(step.source.reduction)
        if step.name != "reduce_scatter":
            return self._collective("all_reduce", x, axes, kind, x.shape)
        shape = [n // self.text.mesh.axis_size(axes) if d == step.dim else n for d, n in enumerate(x.shape)]
        return self._collective("reduce_scatter", x, axes, f"{kind} scatter_axis = {step.dim}", shape)

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

    # -- the local view -----------------------------------------------------------------------------------------------

    def local(self, step: Any, x: Typed, shape: Sequence[int], dtype: Any) -> Typed:
        """A collective on a tensor per device."""
        v = step.collective
        if isinstance(step, SendRecv):
            ((source, destination),) = v.pairs
            self.text.forget(self._collective("send", x, v.axes, f" destination = {list(destination)}", x.shape))
            return self.text.forget(self._collective("recv", x, v.axes, f" source = {list(source)}", shape))
        kind = self.text.reduction(getattr(v, "op", "sum"))
        root = f" root = {list(v.root)}" if hasattr(v, "root") else ""
        more: dict[type, Any] = {
            c.AllGather: lambda: f" gather_axis = {v.dim}",
            c.AllReduce: lambda: kind,
            c.AllSlice: lambda: f" slice_axis = {v.dim}",
            c.AllToAll: lambda: f" split_axis = {v.split_dim} concat_axis = {v.concat_dim}",
            c.Broadcast: lambda: root,
            c.Gather: lambda: f" gather_axis = {v.dim}{root}",
            c.Reduce: lambda: f"{kind}{root}",
            c.ReduceScatter: lambda: f"{kind} scatter_axis = {v.dim}",
            c.Scatter: lambda: f" scatter_axis = {v.dim}{root}",
            c.Shift: lambda: (
                f" shift_axis = {self.text.axis_numbers([v.shift_axis])[0]} offset = {int(v.offset)}"
                f"{' rotate' if v.rotate else ''}"
            ),
        }
        if isinstance(v, c.UpdateHalo):
            return self._halo(v, x)
        if type(v) not in more:
            raise MLIRError(
                f"{v.name} has no operation in the {self.text.dialect} dialect. Use shift, or send and recv."
            )
        return self._collective(v.name, x, v.axes, more[type(v)](), shape, dtype)

    def _halo(self, v: c.UpdateHalo, x: Typed) -> Typed:
        lists = [self.text.axis_numbers(axes) for axes in v.split_axes]
        sizes = [n for pair in v.halo_sizes for n in pair]
        text = (
            f"{self.text.dialect}.update_halo {x.name} on {self.text.symbol} split_axes = {lists} halo_sizes = {sizes}"
        )
        return self.text.op(text, x.shape, x.dtype)

    # -- questions about the mesh -------------------------------------------------------------------------------------

    def query(self, key: QueryKey, operands: Sequence[Typed]) -> Typed:
        """Coordinates of a device, or what follows from them, as a tensor without dims."""
        text, dialect, symbol = self.text, self.text.dialect, self.text.symbol
        if key.name == "process_linear_index":
            return self._tensor(text.scalar(f"{dialect}.process_linear_index on {symbol}", "index"))
        if key.name == "process_multi_index":
            return self._tensor(
                text.scalar(f"{dialect}.process_multi_index on {symbol} axes = {list(key.arguments)}", "index")
            )
        numbers = [self._index(x) for x in operands]
        if key.name == "neighbors_linear_indices":
            one, two = text.name(), text.name()
            text.line(
                f"{one}, {two} = {dialect}.neighbors_linear_indices on {symbol}[{', '.join(numbers)}] split_axes = "
                f"{list(key.arguments[0])} : index, index"
            )
            return self._tensor((one, two)[key.result])
        sizes, sharding = key.arguments
        named = self._sharding_value(sharding, sizes)
        name = text.name()
        count = f":{len(sizes)}" if len(sizes) > 1 else ""
        text.line(
            f"{name}{count} = {dialect}.shard_shape dims = {list(sizes)} sharding = {named} device = [{', '.join(numbers)}] : "
            f"{', '.join(['index'] * len(sizes))}"
        )
        return self._tensor(f"{name}#{key.result}" if count else name)

    def _sharding_value(self, sharding: Sharding, shape: Sequence[int]) -> str:
        """A sharding as a value, also in the dialect that has attributes."""
        _, value = self.text.sharding(sharding, shape)
        if value:
            return value
        split = self.text.split(sharding)
        dialect = self.text.dialect
        return self.text.scalar(f"{dialect}.sharding {self.text.symbol} split_axes = {split}", f"!{dialect}.sharding")

    def _tensor(self, index: str) -> Typed:
        number = self.text.scalar(f"arith.index_cast {index}", "index to i64")
        return self.text.op(f"tensor.from_elements {number}", (), np.int64)

    def _index(self, x: Typed) -> str:
        """The only element of a tensor, as an index."""
        element = self.text.scalar(f"tensor.extract {x.name}[]", x.type)
        return self.text.scalar(f"arith.index_cast {element}", "i64 to index")


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many first entries are equal."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
