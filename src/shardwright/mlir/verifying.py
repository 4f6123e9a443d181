"""What is wrong with a module, in the words of the dialect's own verifier, and what that verifier misses.

Every message says what to do after what upstream says. Upstream accepts, and this refuses: axes beyond the mesh's rank in
shardings, halos and neighbours; negative in-group devices; shardings with more dims than their tensor; offsets that are not one
more than the number of shards; halos wider than a shard; bitwise reductions of floats; dims that a group does not divide in an
all_to_all.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from xdsl.dialects import builtin as b
from xdsl.ir import Operation, SSAValue

from shardwright.errors import MLIRError, ShardwrightError
from shardwright.mlir.communication import kept, partial_of
from shardwright.mlir.dialects import DYNAMIC, word
from shardwright.mlir.fields import (
    axes,
    axis_lists,
    dialect_of,
    field,
    integer,
    integers,
    is_tensor,
    mesh_name,
    mixed,
    scatter_dim,
    shape_of,
    short_name,
)
from shardwright.mlir.parsing import Source
from shardwright.mlir.types import encoding_of

MOST_DEVICES = 2**20
Shape = tuple[int, ...]
Lists = tuple[tuple[int, ...], ...]
Messages = Iterator[str]


def problems(source: Source, module: b.ModuleOp) -> Iterator[MLIRError]:
    """Every error of a module, in the order of the text."""
    meshes: dict[str, Shape] = {}
    for op in module.walk():
        if short_name(op) == "mesh":
            name = op.properties["sym_name"].data  # type: ignore[attr-defined]
            if name in meshes:
                yield source.error(f"redefinition of symbol named '{name}'. Give every mesh another name.", op)
            meshes[name] = tuple(n or 1 for n in integers(op.properties["shape"]))  # a size of 0 is an error of its own
    for op in module.walk():
        if short_name(op) == "mesh" and not isinstance(op.parent_op(), b.ModuleOp):
            yield source.error(
                f"'{op.name}' op is a symbol, so it must be in the module. Move it out of the function.", op
            )
    yield from _undefined(source, module)
    for op in module.walk():
        name = short_name(op)
        messages = chain(_encodings(op, meshes), _Check(op, meshes).messages(name) if name else ())
        try:
            yield from (source.error(message, op) for message in messages)
        except ShardwrightError as error:
            yield source.error(str(error), op)


def _encodings(op: Operation, meshes: dict[str, Shape]) -> Messages:
    """What is wrong with shardings in the types of an operation's results and of its regions' arguments."""
    arguments = (arg for region in op.regions for block in region.blocks for arg in block.args)
    for value in (*op.results, *arguments):
        encoding = encoding_of(value.type)
        if encoding is not None and encoding.name in ("mesh.shard", "shard.shard"):
            yield from _Check(op, meshes)._sharding_attribute(encoding, value)


def _undefined(source: Source, op: Operation, known: set[SSAValue] | None = None) -> Iterator[MLIRError]:
    """Values that are used where they are not defined: before their operation, or outside of its region."""
    defined: set[SSAValue] = set() if known is None or op.name == "func.func" else known
    for region in op.regions:
        for block in region.blocks:
            own: list[SSAValue] = list(block.args)
            defined.update(own)
            for inner in block.ops:
                for at, operand in enumerate(inner.operands):
                    if operand not in defined:
                        yield source.error(
                            f"operand #{at} does not dominate this use. Define it before, in this region.", inner
                        )
                yield from _undefined(source, inner, defined)
                own += inner.results
                defined.update(inner.results)
            defined.difference_update(own)


class _Check:
    """The rules of one operation."""

    def __init__(self, op: Operation, meshes: dict[str, Shape]) -> None:
        self.op, self.meshes = op, meshes
        self.mesh = word("mesh", dialect_of(op))  # the dialect's word for it
        self.shape: Shape = ()

    def messages(self, name: str) -> Messages:
        """What is wrong with the operation: the first group of problems, since later ones follow from it."""
        if name == "mesh":
            yield from self._mesh()
            return
        if field(self.op, "mesh") is not None:
            symbol = mesh_name(self.op)
            if symbol not in self.meshes:
                known = ", ".join(f'"{other}"' for other in self.meshes) or "none"
                yield f'Undefined required {self.mesh} symbol "{symbol}". The file defines {known}.'
                return
            self.shape = self.meshes[symbol]
        rules = getattr(self, f"_{name}", None)
        stages = [self._axes_exist(axes(self.op)), *([rules()] if rules else [])]
        for stage in stages:
            try:
                wrong = list(stage)
            except ShardwrightError as error:  # of attributes that the dialect does not know
                wrong = [str(error)]
            yield from wrong
            if wrong:
                return

    # -- the mesh -----------------------------------------------------------------------------------------------------

    def _mesh(self) -> Messages:
        shape = integers(self.op.properties["shape"])
        if not shape:
            yield f"'{self.op.name}' op rank of {self.mesh} is expected to be a positive integer. Give it a size an axis."
        if any(n < 0 and n != DYNAMIC for n in shape):
            yield (
                f"'{self.op.name}' op dimension size of a {self.mesh} is expected to be non-negative or dynamic; the shape is "
                f"{_sizes(shape)}."
            )
        if any(n == 0 for n in shape):
            yield f"'{self.op.name}' op has an axis of size 0, so no device. Give every axis one device or more."
        known = math.prod(n for n in shape if n > 0)
        if known > MOST_DEVICES:
            yield f"'{self.op.name}' op has {known:,} devices; at most {MOST_DEVICES:,} are possible."

    def _axes_exist(self, given: tuple[int, ...]) -> Messages:
        rank = len(self.shape)
        for axis in given:
            if not 0 <= axis < rank:
                yield (
                    f"0-based {self.mesh} axis index {axis} is out of bounds. The referenced {self.mesh} "
                    f'"{mesh_name(self.op)}" is of rank {rank}. Use axes 0 to {rank - 1}.'
                )
                return
        if len(set(given)) < len(given):
            yield f"{self.mesh.title()} axes contains duplicate elements. {list(given)} must name every axis once."

    def _mesh_shape(self) -> Messages:
        given = axes(self.op, "axes")
        yield from self._axes_exist(given)
        expected = len(given) or len(self.shape)
        if len(self.op.results) != expected:
            yield f"Unexpected number of results {len(self.op.results)}. Expected {expected}, one an axis."

    _process_multi_index = _mesh_shape

    def _neighbors_linear_indices(self) -> Messages:
        yield from self._axes_exist(axes(self.op, "split_axes"))
        if len(self.op.operands) != len(self.shape):
            yield (
                f"The device has {len(self.op.operands)} coordinates, but the {self.mesh} has {len(self.shape)} axes. "
                f"Give one coordinate an axis."
            )

    # -- collectives --------------------------------------------------------------------------------------------------

    @property
    def group(self) -> int:
        """How many devices a group has; DYNAMIC if that is not known."""
        sizes = [self.shape[axis] for axis in axes(self.op)]
        return DYNAMIC if DYNAMIC in sizes else math.prod(sizes)

    def _expect(self, expected: list[int]) -> Messages:
        """The result has these sizes."""
        result = shape_of(self.op.results[0])
        if len(result) != len(expected):
            yield (
                f"'{self.op.name}' op result type has different rank than operands: {len(result)} and {len(expected)}. "
                f"Give the result {len(expected)} dims."
            )
            return
        for axis, (wanted, size) in enumerate(zip(expected, result, strict=True)):
            if size not in (DYNAMIC, wanted):
                known = "dynamic" if wanted == DYNAMIC else wanted
                yield (
                    f"Dimension size mismatch for result axis {axis}. Expected {known}, but got {size}. "
                    f"Make it {_sizes(expected)}."
                )
                return

    def _same_element_type(self) -> Messages:
        kinds = [x.type.get_element_type() for x in (self.op.operands[0], self.op.results[0])]  # type: ignore[attr-defined]
        if kinds[0] != kinds[1]:
            yield (
                f"'{self.op.name}' op requires the same element type for all operands and results; these are {kinds[0]} and "
                f"{kinds[1]}. Convert before or after it."
            )

    def _same_shape(self, compatible: bool = False) -> Messages:
        """Operand and result have one shape; where `compatible` is enough, `?` meets any size."""
        before, after = shape_of(self.op.operands[0]), shape_of(self.op.results[0])
        pairs = list(zip(before, after, strict=False))
        if len(before) != len(after) or any(m != n and not (compatible and DYNAMIC in (m, n)) for m, n in pairs):
            yield (
                f"'{self.op.name}' op requires the same shape for all operands and results; these are {_sizes(before)} and "
                f"{_sizes(after)}. Make the result {_sizes(before)}."
            )

    def _bits(self) -> Messages:
        kind = field(self.op, "reduction").kind.data
        element = self.op.results[0].type.get_element_type()  # type: ignore[attr-defined]
        if kind.startswith("bitwise") and not isinstance(element, b.IntegerType | b.IndexType):
            yield f"Reduction {kind} works on the bits of integers; the result has {element}. Use another reduction."

    def _dim(self, name: str, dim: int, rank: int) -> Messages:
        if not 0 <= dim < rank:
            yield f"{name} axis {dim} is out of bounds [0, {rank}). The tensor has {rank} dims."

    def _divides(self, sizes: list[int], dim: int) -> Messages:
        """A dim is cut into as many equal pieces as a group has devices; `sizes` then has one piece."""
        group, size = self.group, sizes[dim]
        if DYNAMIC in (group, size):
            sizes[dim] = DYNAMIC
        elif size % group:
            yield (
                f"Operand dimension size {size} is not divisible by collective device group size {group} for tensor axis "
                f"{dim}. Pad it to {-(-size // group) * group}."
            )
        else:
            sizes[dim] = size // group

    def _grows(self, sizes: list[int], dim: int) -> None:
        sizes[dim] = DYNAMIC if DYNAMIC in (sizes[dim], self.group) else sizes[dim] * self.group

    def _device(self, name: str) -> Messages:
        """A device of the group, by its coordinates along the group's axes."""
        given = field(self.op, name)
        if given is None:
            return  # a recv may leave it out
        coords, named = integers(given), axes(self.op)
        if len(coords) != len(named):
            yield (
                f'In-group device "{name}" has unexpected multi-index size {len(coords)}. Expected {len(named)}. '
                f"Give one coordinate for each of the axes {list(named)}."
            )
            return
        for at, (coord, axis) in enumerate(zip(coords, named, strict=True)):
            size = self.shape[axis]
            if coord != DYNAMIC and size != DYNAMIC and not 0 <= coord < size:
                yield (
                    f'Out of bounds coordinate {at} for in-group device "{name}". Got {coord}, but expected value in the '
                    f"range [0, {size - 1}]. Name a device of the group."
                )

    def _all_gather(self) -> Messages:
        sizes, dim = list(shape_of(self.op.operands[0])), integer(field(self.op, "gather_axis"))
        wrong = list(self._dim("Gather", dim, len(sizes)))
        yield from wrong
        if not wrong:
            self._grows(sizes, dim)
            yield from self._expect(sizes)
        yield from self._same_element_type()

    def _gather(self) -> Messages:
        yield from self._device("root")
        yield from self._all_gather()

    def _all_reduce(self) -> Messages:
        yield from self._same_shape(compatible=True)
        yield from self._bits()

    def _reduce(self) -> Messages:
        yield from self._device("root")
        yield from self._same_shape()
        yield from self._bits()

    def _cut(self, name: str, dim: int) -> Messages:
        sizes = list(shape_of(self.op.operands[0]))
        wrong = list(self._dim(name, dim, len(sizes))) or list(self._divides(sizes, dim))
        yield from wrong or self._expect(sizes)

    def _all_slice(self) -> Messages:
        yield from self._cut("Slice", integer(field(self.op, "slice_axis")))
        yield from self._same_element_type()

    def _scatter(self) -> Messages:
        if len({"scatter_axis", "scatter_dim"} & {*self.op.properties, *self.op.attributes}) != 1:
            yield f"'{self.op.name}' op requires attribute 'scatter_axis'. Write scatter_axis = 0, or scatter_dim = 0."
            return
        if field(self.op, "root") is not None:
            yield from self._device("root")
            yield from self._same_element_type()
        yield from self._cut("Scatter", scatter_dim(self.op))

    def _reduce_scatter(self) -> Messages:
        yield from self._scatter()
        yield from self._bits()

    def _all_to_all(self) -> Messages:
        sizes = list(shape_of(self.op.operands[0]))
        split, joined = integer(field(self.op, "split_axis")), integer(field(self.op, "concat_axis"))
        wrong = [*self._dim("Split", split, len(sizes)), *self._dim("Concat", joined, len(sizes))]
        wrong = wrong or list(self._divides(sizes, split))
        yield from wrong
        if not wrong:
            self._grows(sizes, joined)
            yield from self._expect(sizes)
        yield from self._same_element_type()

    def _passed(self, device: str) -> Messages:
        yield from self._device(device)
        yield from self._same_shape()
        yield from self._same_element_type()

    def _broadcast(self) -> Messages:
        return self._passed("root")

    def _send(self) -> Messages:
        return self._passed("destination")

    def _recv(self) -> Messages:
        return self._passed("source")

    def _shift(self) -> Messages:
        axis = integer(field(self.op, "shift_axis"))
        if axis not in axes(self.op):
            yield (
                f"Invalid shift axis {axis}. It must be one of the grouping {self.mesh} axes, {list(axes(self.op))}."
            )
        yield from self._same_shape(compatible=True)
        yield from self._same_element_type()

    def _update_halo(self) -> Messages:
        lists = axis_lists(field(self.op, "split_axes"))
        halos = mixed(field(self.op, "static_halo_sizes"), self.op.operands[1:])
        wrong = [*self._split(lists, shape_of(self.op.operands[0])), *self._halos(lists, halos)]
        yield from wrong
        if wrong:
            return
        split = [dim for dim, some in enumerate(lists) if some]
        for dim, low, high in zip(split, halos[::2], halos[1::2], strict=True):
            size = shape_of(self.op.operands[0])[dim]
            if all(isinstance(n, int) for n in (low, high)) and size != DYNAMIC and size < low + high + max(low, high):
                yield (
                    f"Halo sizes ({low}, {high}) are too wide for dim {dim} of size {size}, which counts both halos and the "
                    f"rows of its own that neighbours read. Use smaller halos."
                )

    # -- shardings ----------------------------------------------------------------------------------------------------

    def _split(self, lists: Lists, shape: Shape | None) -> Messages:
        """Axes that split dims."""
        flat = [axis for some in lists for axis in some]
        if any(axis < 0 for axis in flat):
            yield f"{self.mesh} axis is expected to be non-negative; the split axes are {[list(a) for a in lists]}."
            return
        if len(set(flat)) < len(flat):
            yield f"{self.mesh} axis duplicated. {[list(a) for a in lists]} must use every axis at most once."
            return
        yield from self._axes_exist(tuple(flat))
        if shape is not None and len(lists) > len(shape):
            yield (
                f"The sharding has {len(lists)} entries in split_axes, but the tensor has {len(shape)} dims. Give at most one "
                f"a dim."
            )

    def _halos(self, lists: Lists, halos: list[Any]) -> Messages:
        split = sum(bool(some) for some in lists)
        if len(halos) != 2 * split:
            yield (
                f"halo sizes must be specified for all split axes. {split} dims are split, so there must be {2 * split} sizes, "
                f"low and high of each; got {len(halos)}."
            )
        if any(isinstance(n, int) and n < 0 for n in halos):
            yield f"halo sizes are 0 or more; got {halos}."

    def _sharding(self) -> Messages:
        lists = axis_lists(field(self.op, "split_axes"))
        wrong = list(self._split(lists, None))
        yield from wrong
        yield from self._partial(partial_of(self.op)[0], lists)
        counts = integers(field(self.op, "operandSegmentSizes")) or (0, 0)
        halos = mixed(field(self.op, "static_halo_sizes"), self.op.operands[counts[0] :])
        offsets = mixed(field(self.op, "static_sharded_dims_offsets"), self.op.operands[: counts[0]])
        if halos and offsets:
            yield f"'{self.op.name}' op halo sizes and shard offsets are mutually exclusive. Give one of them."
        offsets = offsets or list(kept(self.op, "sharded_dims_offsets"))
        yield from self._cuts(lists, halos, offsets if not wrong else [])

    def _partial(self, partial: Sequence[int], lists: Lists) -> Messages:
        if set(partial) & {axis for some in lists for axis in some}:
            yield f"{self.mesh} axis duplicated. The partial axes {list(partial)} also split a dim: use every axis once."
        yield from self._axes_exist(tuple(partial))

    def _cuts(self, lists: Lists, halos: list[Any], offsets: list[Any]) -> Messages:
        if halos:
            yield from self._halos(lists, halos)
        if offsets:
            yield from self._offsets(lists, offsets)

    def _offsets(self, lists: Lists, offsets: list[Any]) -> Messages:
        if DYNAMIC in self.shape:
            yield (
                f"sharded dims offsets are not allowed for device {self.mesh}s with dynamic shape. Give the {self.mesh} sizes."
            )
            return
        shards = [math.prod(self.shape[axis] for axis in some) for some in lists if some]
        expected = sum(n + 1 for n in shards)
        if len(offsets) != expected:
            yield (
                f"sharded dims offsets has wrong size. The split dims have {shards} shards, so there must be {expected} "
                f"offsets, one more than shards for each; got {len(offsets)}."
            )
            return
        at = 0
        for count in shards:
            part = offsets[at : at + count + 1]
            at += count + 1
            known = [n for n in part if isinstance(n, int)]
            if (isinstance(part[0], int) and part[0] != 0) or known != sorted(known):
                yield f"sharded dims offsets begin with 0 and never decrease; got {part}."

    def _shard(self) -> Messages:
        source, attribute = self.op.operands[0], self.op.properties.get("shard")
        if attribute is not None:
            yield from self._sharding_attribute(attribute, source)
        elif len(self.op.operands) < 2:
            yield f"'{self.op.name}' op needs a sharding: write `to %sharding`, or `to <@mesh, [[0]]>`."
        else:
            defined = self.op.operands[1].owner
            if isinstance(defined, Operation) and short_name(defined) == "sharding":
                yield from self._fits(defined, source)

    def _sharding_attribute(self, attribute: Any, source: SSAValue) -> Messages:
        symbol = attribute.mesh.root_reference.data
        if symbol not in self.meshes:
            yield f'Undefined required {self.mesh} symbol "{symbol}".'
            return
        checked = _Named(self.op, self.meshes, symbol)
        lists, shape = axis_lists(attribute), shape_of(source) if is_tensor(source) else None
        wrong = [*checked._split(lists, shape), *checked._partial(integers(attribute.partial), lists)]
        yield from wrong
        halos, offsets = (list(kept(self.op, name)) for name in ("halo_sizes", "sharded_dims_offsets"))
        if not wrong:
            wrong = list(checked._cuts(lists, halos, offsets))
            yield from wrong
        if not wrong and shape is not None:
            yield from self._ends(lists, symbol, offsets, shape)

    def _fits(self, sharding: Operation, source: SSAValue) -> Messages:
        """A sharding on a tensor: no more entries than dims; the last offset is the size."""
        lists, shape = axis_lists(field(sharding, "split_axes")), shape_of(source)
        if len(lists) > len(shape):
            yield (
                f"The sharding has {len(lists)} entries in split_axes, but the tensor has {len(shape)} dims. Give at most one "
                f"a dim."
            )
            return
        symbol = mesh_name(sharding)
        if symbol in self.meshes and DYNAMIC not in self.meshes[symbol]:
            offsets = integers(field(sharding, "static_sharded_dims_offsets")) or kept(sharding, "sharded_dims_offsets")
            yield from self._ends(lists, symbol, offsets, shape)

    def _ends(self, lists: Lists, symbol: str, offsets: Sequence[int], shape: Shape) -> Messages:
        """The last offset of a dim is its size."""
        for dim, some in enumerate(lists):
            if some and offsets and all(0 <= axis < len(self.meshes[symbol]) for axis in some):
                count = math.prod(self.meshes[symbol][axis] for axis in some) + 1
                last, offsets = offsets[count - 1 : count], offsets[count:]
                if last and last[0] != DYNAMIC and shape[dim] not in (DYNAMIC, last[0]):
                    yield f"sharded dims offsets of dim {dim} end at {last[0]}, but its size is {shape[dim]}."

    def _shard_shape(self) -> Messages:
        dims = integers(field(self.op, "dims"))
        if len(self.op.results) != len(dims):
            yield f"Unexpected number of results {len(self.op.results)}. Expected {len(dims)}, one a dim."
        sharding = self.op.operands[integers(field(self.op, "operandSegmentSizes"))[0]].owner
        if isinstance(sharding, Operation) and short_name(sharding) == "sharding":
            rank = len(self.meshes.get(mesh_name(sharding), ()))
            device = integers(field(self.op, "device"))
            if len(device) != rank:
                yield f"The device has {len(device)} coordinates, but the {self.mesh} has {rank} axes. Give one an axis."


class _Named(_Check):
    """The rules of an operation whose mesh an attribute names."""

    def __init__(self, op: Operation, meshes: dict[str, Shape], symbol: str) -> None:
        super().__init__(op, meshes)
        self.shape, self._symbol = meshes[symbol], symbol

    def _axes_exist(self, given: tuple[int, ...]) -> Messages:
        rank = len(self.shape)
        for axis in given:
            if not 0 <= axis < rank:
                yield (
                    f"0-based {self.mesh} axis index {axis} is out of bounds. The referenced {self.mesh} "
                    f'"{self._symbol}" is of rank {rank}. Use axes 0 to {rank - 1}.'
                )
                return


def _sizes(shape: Any) -> str:
    return "x".join("?" if n == DYNAMIC else str(n) for n in shape) or "no dims"
