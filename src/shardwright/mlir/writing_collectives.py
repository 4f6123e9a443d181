"""Collectives on tensors per device, and questions about the mesh, as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright import collectives as c
from shardwright.errors import MLIRError
from shardwright.mlir.communication import QueryKey, neighbours, shard_sizes
from shardwright.mlir.dialects import MESH
from shardwright.mlir.text import Text, Typed
from shardwright.mlir.types import tensor_name
from shardwright.mlir.writing_exchange import completed
from shardwright.mlir.writing_places import Places
from shardwright.mlir.writing_rows import Rows
from shardwright.ops import RowMap
from shardwright.plan import LocalStep, SendRecv


class Collectives:
    """Writes what devices do together."""

    def __init__(self, text: Text, rows: Rows) -> None:
        self.text, self.rows, self.places = text, rows, Places(text, rows)

    def _collective(
        self,
        name: str,
        x: Typed,
        axes: Sequence[str],
        more: str,
        shape: Sequence[int],
        dtype: Any = None,
        indices: int = 0,
    ) -> Typed:
        """A collective; one that names a device of the group has its types in brackets, those of its coordinates too."""
        kind = x.dtype if dtype is None else np.dtype(dtype)
        alone = self.text.mesh.axis_size(tuple(axes)) == 1 and name not in ("send", "recv", "shift")
        if alone and tuple(shape) == x.shape and kind == x.dtype:
            return x  # every group is one device
        made = tensor_name(tuple(shape), kind)
        device = any(f"{what} = [" in more for what in ("root", "destination", "source")) or name in ("recv", "send")
        types = f"({', '.join([x.type, *['index'] * indices])}) -> {made}" if device else f"{x.type} -> {made}"
        text = f"{self.text.dialect}.{name} {x.name} {self.text.on(axes)}{more}"
        return self.text.op(text, shape, kind, types)

    def transferred(self, x: Typed, axes: Sequence[str], to: Sequence[int]) -> Typed:
        """Tensors that every device sends to another: `to` has for each member of a group the number of its target."""
        lanes, count = self.text.axis_numbers(axes), len(to)
        if len(lanes) == 1 and all(n == (number + to[0]) % count for number, n in enumerate(to)):
            more = f" shift_axis = {lanes[0]} offset = {to[0]} rotate"
            return self._collective("shift", x, axes, more, x.shape)
        return self._sent(x, axes, to)

    def _sent(self, x: Typed, axes: Sequence[str], to: Sequence[int]) -> Typed:
        """The same by a send and a recv, which are never dropped."""
        self._end("send", x, axes, "destination", to)
        return self._end("recv", x, axes, "source", np.argsort(to))

    def _end(self, name: str, x: Typed, axes: Sequence[str], device: str, members: Any) -> Typed:
        """A send or recv, each member's with a device of its own."""
        sizes = [self.text.mesh.axis_size((self.text.lanes[lane],)) for lane in self.text.axis_numbers(axes)]
        entries = []
        for coords in np.unravel_index(members, sizes):
            alike = (coords == coords[0]).all()
            entries.append(str(coords[0]) if alike else self._index(self.places.entry(coords.astype(np.int64), axes)))
        indices = sum(entry.startswith("%") for entry in entries)
        made = self._collective(name, x, axes, f" {device} = [{', '.join(entries)}]", x.shape, indices=indices)
        return self.text.forget(made)

    # -- the local view -----------------------------------------------------------------------------------------------

    def local(self, step: Any, x: Typed, shape: Sequence[int], dtype: Any) -> Typed:
        """A collective on a tensor per device."""
        v = step.collective
        if isinstance(v, c.Permute) and (len(v.pairs) == step.group or not isinstance(step, SendRecv)):
            return self._permuted(step, x)
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
        if isinstance(v, c.UpdateHalo) and self.text.dialect == MESH:
            return self._halo_by_shifts(v, x)
        if isinstance(v, c.UpdateHalo):
            lists = [self.text.axis_numbers(axes) for axes in v.split_axes]
            return self._halo(lists, [n for pair in v.halo_sizes for n in pair], x)
        if type(v) not in more:
            raise MLIRError(
                f"{v.name} has no operation in the {self.text.dialect} dialect. Use shift, or send and recv."
            )
        return self._collective(v.name, x, v.axes, more[type(v)](), shape, dtype)

    def _permuted(self, step: LocalStep, x: Typed) -> Typed:
        """Tensors that change devices; zeros where none arrives."""
        axes, write = step.axes, self._sent if isinstance(step, SendRecv) else self.transferred
        made = write(x, axes, completed(step.pairs, step.group))
        arrives = np.isin(np.arange(step.group), [target for _, target in step.pairs])
        if arrives.all():
            return made
        kind, keep = (x.shape, x.dtype), self.places.wide(self.places.entry(arrives, axes), x.shape)
        return self.rows.write("where", {}, [keep, made, self.text.constant(0, *kind)], kind)

    def _halo(self, lists: list[list[int]], sizes: list[int], x: Typed) -> Typed:
        text = (
            f"{self.text.dialect}.update_halo {x.name} on {self.text.symbol} split_axes = {lists} halo_sizes = {sizes}"
        )
        return self.text.op(text, x.shape, x.dtype)

    def _halo_by_shifts(self, v: c.UpdateHalo, x: Typed) -> Typed:
        """An update_halo, which LLVM 19 has not: from the rows of its own outwards, dim by dim."""
        ends = {dim: (axes, low, high) for dim, axes, low, high in v.dims()}
        maps = [RowMap(n - sum(ends[d][1:]), ends[d][1]) if d in ends else None for d, n in enumerate(x.shape)]
        made = self.rows.picked(x, maps)
        for dim, (axes, low, high) in ends.items():
            last = made.shape[dim] - low
            before = [self._neighbour(made, dim, RowMap(low, last), axes, 1)] if low else []
            after = [self._neighbour(made, dim, RowMap(high, 0), axes, -1)] if high else []
            made = self.rows.joined([*before, made, *after], dim)
        for dim, (axes, low, high) in ends.items():
            n, parts = x.shape[dim], self.text.mesh.axis_size(axes)
            inside = np.ones((parts, n), bool)
            inside[0, :low] = inside[-1, n - high :] = False  # cells beyond the border stay as they are
            ones = [n if d == dim else 1 for d in range(len(x.shape))]
            keep = self.rows.broadcast(self.rows.reshaped(self.places.entry(inside, axes), ones), x.shape)
            made = self.rows.write("where", {}, [keep, made, x], (x.shape, x.dtype))
        return made

    def _neighbour(self, x: Typed, dim: int, rows: RowMap, axes: Sequence[str], offset: int) -> Typed:
        """Rows of the device before or after along axes."""
        piece = self.rows.picked(x, [rows if d == dim else None for d in range(len(x.shape))])
        lanes, count = self.text.axis_numbers(axes), self.text.mesh.axis_size(tuple(axes))
        if len(lanes) > 1:
            return self.transferred(piece, axes, [(number + offset) % count for number in range(count)])
        return self._collective("shift", piece, axes, f" shift_axis = {lanes[0]} offset = {offset}", piece.shape)

    # -- questions about the mesh -------------------------------------------------------------------------------------

    def query(self, key: QueryKey, operands: Sequence[Typed]) -> Typed:
        """Coordinates of a device, or what follows from them, as a tensor without dims."""
        text, dialect, symbol = self.text, self.text.dialect, self.text.symbol
        if key.name == "process_linear_index":
            return self.places.scalar(text.scalar(f"{dialect}.process_linear_index on {symbol}", "index"))
        if key.name == "process_multi_index":
            return self.places.scalar(
                text.scalar(f"{dialect}.process_multi_index on {symbol} axes = {list(key.arguments)}", "index")
            )
        if dialect == MESH:
            return self._looked_up(key, operands)
        numbers = [self._index(x) for x in operands]
        if key.name == "neighbors_linear_indices":
            one, two = text.name(), text.name()
            text.line(
                f"{one}, {two} = {dialect}.neighbors_linear_indices on {symbol}[{', '.join(numbers)}] split_axes = "
                f"{list(key.arguments[0])} : index, index"
            )
            return self.places.scalar((one, two)[key.result])
        sizes, sharding = key.arguments
        named = text.sharding(sharding, sizes)
        name = text.name()
        count = f":{len(sizes)}" if len(sizes) > 1 else ""
        text.line(
            f"{name}{count} = {dialect}.shard_shape dims = {list(sizes)} sharding = {named} device = [{', '.join(numbers)}] : "
            f"{', '.join(['index'] * len(sizes))}"
        )
        return self.places.scalar(f"{name}#{key.result}" if count else name)

    def _looked_up(self, key: QueryKey, operands: Sequence[Typed]) -> Typed:
        """What LLVM 19 has no operation for, from a table by the coordinates of a device."""
        mesh = self.text.mesh
        places = list(np.ndindex(*mesh.shape))
        if key.name == "neighbors_linear_indices":
            table = [neighbours(mesh, at, key.arguments[0])[key.result] for at in places]
        else:
            sizes, sharding = key.arguments
            table = [shard_sizes(sharding, sizes, at)[key.result] for at in places]
        return self.places.row(np.asarray(table, np.int64), self.places.mixed(operands, mesh.shape))

    def _index(self, x: Typed) -> str:
        """The only element of a tensor, as an index."""
        element = self.text.scalar(f"tensor.extract {x.name}[]", x.type)
        return self.text.scalar(f"arith.index_cast {element}", "i64 to index")
