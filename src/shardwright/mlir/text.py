"""Text of a function that is being written: lines, names of values, constants, and the words of a dialect."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mesh import Mesh
from shardwright.mlir.dialects import MESH, SHARD, word
from shardwright.mlir.statements import Statement
from shardwright.mlir.types import tensor_name, type_name
from shardwright.sharding import P, Sharding, layout_of  # noqa: F401  # P in a doctest

Shape = tuple[int, ...]
DType = "np.dtype[Any]"
MOST_ELEMENTS = 65_536  # of a constant that is written element by element
MOST_LISTED = 64  # of one that could be computed from the places of its elements


class Typed:
    """A value that was written: its name, shape and dtype."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str, shape: Sequence[int], dtype: Any) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), np.dtype(dtype)

    @property
    def type(self) -> str:
        """Its type, as MLIR writes it."""
        return tensor_name(self.shape, self.dtype)


class Lazy(Typed):
    """A value that is written when its name is first asked for."""

    __slots__ = ("_write", "_written")

    def __init__(self, shape: Sequence[int], dtype: Any, write: Callable[[], str]) -> None:
        super().__init__("", shape, dtype)
        self._write = write
        self._written = ""

    def __getattribute__(self, key: str) -> Any:
        if key == "name":
            self._written = self._written or self._write()
            return self._written
        return super().__getattribute__(key)


class Reshaped(Lazy):
    """A value in another shape; what reads it may want its base."""

    __slots__ = ("base",)

    def __init__(self, base: Typed, shape: Sequence[int], write: Callable[[Typed, Sequence[int]], Typed]) -> None:
        super().__init__(shape, base.dtype, lambda: write(base, shape).name)
        self.base = base


class Known(Lazy):
    """A constant; in another shape it is another constant."""

    __slots__ = ("array",)

    def __init__(self, array: Any, shape: Sequence[int], dtype: Any, write: Callable[[], str]) -> None:
        super().__init__(shape, dtype, write)
        self.array = array  # one element where all are equal


class Bits(Lazy):
    """The bits of integers with the other signedness; what reads it may want its base."""

    __slots__ = ("base",)

    def __init__(self, base: Typed, dtype: Any, write: Callable[[Typed, Any], Typed]) -> None:
        super().__init__(base.shape, dtype, lambda: write(base, dtype).name)
        self.base = base


class Text:
    """The lines of one function."""

    def __init__(self, mesh: Mesh, dialect: str, axes: Sequence[str] = ()) -> None:
        if dialect not in (MESH, SHARD):
            raise MLIRError(f"There is no dialect {dialect!r}. Use 'shard' (LLVM 22) or 'mesh' (LLVM 19).")
        self.mesh, self.dialect = mesh, dialect
        if not mesh.share_a_cut(axes):
            raise MLIRError(
                f"The pieces {list(axes)} of mesh axes don't nest, so no mesh of the text has them as axes."
            )
        self.lanes = mesh.lanes(tuple(axes))  # the axes, cut where `axes` has pieces of them: those of the text
        self.block: list[Statement] = []
        self._around: list[list[Statement]] = []
        self._names = 0
        self._written: list[dict[str, str]] = [{}]  # for each region around the line the names of what is written
        self.texts: dict[str, str] = {}  # of every name the operation that gives it
        self.symbol = f"@{word('mesh', dialect)}0"

    # -- lines and names ----------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A statement, or a line between the regions of the last one."""
        if text[0] in "}^":
            self.block[-1].parts.append(text)
        else:
            self.block.append(Statement(text, 2 + 2 * len(self._around)))

    def name(self) -> str:
        """A new name."""
        self._names += 1
        return f"%{self._names - 1}"

    def enter(self) -> None:
        """The following lines are inside a region. What is written there and what is written outside don't see one another, so
        that the text does not depend on which comes first."""
        inner: list[Statement] = []
        self.block[-1].parts.append(inner)
        self._around.append(self.block)
        self.block = inner
        self._written.append({})

    def leave(self) -> None:
        """The region ends."""
        self.block = self._around.pop()
        self._written.pop()

    def op(self, text: str, shape: Sequence[int], dtype: Any, types: str = "") -> Typed:
        """A line with a new tensor; `types` is what stands after the colon, by default the result's type."""
        made = Typed("", shape, dtype)
        return self.pure(f"{text} : {types or made.type}", shape, dtype)

    def pure(self, text: str, shape: Sequence[int], dtype: Any) -> Typed:
        """A tensor that an operation gives; the same operation on the same values is written once."""
        return Typed(self._once(text), shape, dtype)

    def scalar(self, text: str, kind: str) -> str:
        """A scalar that an operation gives; the same operation is written once."""
        return self._once(f"{text} : {kind}")

    def _once(self, text: str) -> str:
        if text not in self._written[-1]:
            name = self.name()
            self.line(f"{name} = {text}")
            self._written[-1][text], self.texts[name] = name, text
        return self._written[-1][text]

    def forget(self, value: Typed) -> Typed:
        """The value of an operation that is not pure: the same text is another operation."""
        self._written[-1] = {text: name for text, name in self._written[-1].items() if name != value.name}
        return value

    # -- constants ----------------------------------------------------------------------------------------------------

    def constant(self, value: Any, shape: Sequence[int], dtype: Any) -> Known:
        """A constant tensor: one element repeated, or a small array."""
        kind, array = np.dtype(dtype), np.asarray(value, dtype)
        if array.size and array.tobytes() == array.ravel()[:1].tobytes() * array.size:
            array = array.ravel()[0]  # one element repeated
        if array.size > MOST_ELEMENTS:
            raise MLIRError(
                f"A constant of {array.size:,} elements is too large to be written; at most {MOST_ELEMENTS:,} are. Make it "
                f"an argument of the function."
            )
        if array.ndim and array.size > MOST_LISTED and _counts(array):
            return Known(array, shape, kind, lambda: self._numbers(tuple(shape), kind).name)
        text = f"arith.constant dense<{_elements(array)}>"
        return Known(array, shape, kind, lambda: self.op(text, shape, kind).name)

    def _numbers(self, shape: Shape, kind: "np.dtype[Any]") -> Typed:
        """0, 1, 2, … in row-major order, computed from the place."""
        out, element = self.empty(shape, kind), type_name(kind)
        loops = ", ".join(f"d{d}" for d in range(len(shape)))
        kinds = ", ".join(['"parallel"'] * len(shape))
        lines = [
            f"linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({loops})>], iterator_types = [{kinds}]}} "
            f"outs({out.name} : {out.type}) {{",
            f"^bb0(%out: {element}):",
            "  %n0 = linalg.index 0 : index",
        ]
        for dim, size in enumerate(shape[1:], 1):
            lines += [
                f"  %s{dim} = arith.constant {size} : index",
                f"  %m{dim} = arith.muli %n{dim - 1}, %s{dim} : index",
                f"  %i{dim} = linalg.index {dim} : index",
                f"  %n{dim} = arith.addi %m{dim}, %i{dim} : index",
            ]
        last = f"%n{len(shape) - 1}"
        lines += [f"  %r = arith.index_cast {last} : index to {element}", f"  linalg.yield %r : {element}"]
        return self.pure("\n".join([*lines, f"}} -> {out.type}"]), shape, kind)

    def number(self, value: Any, dtype: Any) -> str:
        """A constant scalar."""
        kind = np.dtype(dtype)
        text = f"arith.constant {_element(np.asarray(value, kind))}"
        return self._once(text) if kind.kind == "b" else self.scalar(text, type_name(kind))  # true has its type

    def empty(self, shape: Sequence[int], dtype: Any) -> Typed:
        """A tensor to be written to."""
        return self.op("tensor.empty()", shape, dtype)

    def filled(self, value: Any, shape: Sequence[int], dtype: Any) -> Typed:
        """A tensor that a reduction begins with."""
        element, out = self.number(value, dtype), self.empty(shape, dtype)
        kind = type_name(np.dtype(dtype))
        return self.pure(
            f"linalg.fill ins({element} : {kind}) outs({out.name} : {out.type}) -> {out.type}", shape, dtype
        )

    # -- words of the dialect -----------------------------------------------------------------------------------------

    def axis_numbers(self, axes: Sequence[str]) -> list[int]:
        """The numbers of axes; an axis of which pieces are used is several."""
        return [self.lanes.index(lane) for lane in self.mesh.cut(tuple(axes), by=self.lanes)]

    def on(self, axes: Sequence[str]) -> str:
        """`on @mesh0 mesh_axes = [0]`."""
        return f"on {self.symbol} {word('mesh_axes', self.dialect)} = {self.axis_numbers(axes)}"

    def reduction(self, kind: str) -> str:
        """` reduction = max`; nothing for a sum, the default."""
        if kind == "sum":
            return ""
        return f" reduction = <{kind}>" if self.dialect == MESH else f" reduction = {kind}"

    def split(self, sharding: Sharding) -> str:
        """The axes of each dim; trailing dims that are not split are left out."""
        lists = [self.axis_numbers(axes) for axes in sharding.dims]
        while len(lists) > 1 and not lists[-1]:
            lists.pop()
        return str(lists or [[]])

    def sharding(self, sharding: Sharding, shape: Sequence[int]) -> str:
        """A sharding as a value, which LLVM 19 has not."""
        cuts, kept = self._cuts(sharding, shape)[:1], self._cuts(sharding, shape)[1:]  # LLVM 22 has one of the two
        kept += [f'partial = "{self._partial(sharding)}"'] if sharding.partial else []  # and no partial axes
        text = " ".join([f"split_axes = {self.split(sharding)}", *cuts])
        return self.scalar(
            f"{self.dialect}.sharding {self.symbol} {text}{_attributes(kept)}", f"!{self.dialect}.sharding"
        )

    def annotated(self, value: Typed, sharding: Sharding, for_users: bool = False) -> Typed:
        """A value with a sharding. LLVM 19 names it by an attribute with partial axes, but without halos and offsets: these
        are attributes of the operation, which it keeps."""
        users = " annotate_for_users" if for_users else ""
        if self.dialect == MESH:
            partial = f", partial = {self._partial(sharding)}" if sharding.partial else ""
            target = f"<{self.symbol}, {self.split(sharding)}{partial}>"
            users += _attributes(self._cuts(sharding, value.shape))
        else:
            target = self.sharding(sharding, value.shape)
        return self.op(f"{self.dialect}.shard {value.name} to {target}{users}", value.shape, value.dtype)

    def _partial(self, sharding: Sharding) -> str:
        """`sum[1]`."""
        return f"{sharding.reduction}{self.axis_numbers(sharding.partial)}"

    def _cuts(self, sharding: Sharding, shape: Sequence[int]) -> list[str]:
        """Halos, and where shards begin, as both dialects write them; [] where a sharding has its axes alone."""
        found = {"halo_sizes": _halo_sizes(sharding), "sharded_dims_offsets": self._offsets(sharding, tuple(shape))}
        return [f"{name} = {numbers}" for name, numbers in found.items() if numbers]

    def _offsets(self, sharding: Sharding, shape: Shape) -> list[int]:
        """Where shards begin, for every split dim, where it is not where the dialect puts them by default."""
        held = layout_of(sharding, shape)
        default, result = True, []
        for dim, axes in enumerate(held.sharding.dims):
            if not axes:
                continue
            own = [int(n) for n in held.dims[dim].offsets]
            default = default and own == default_offsets(held.sharding, dim, shape[dim])
            result += own
        return [] if default else result

    def header(self) -> str:
        """The line that defines the mesh."""
        sizes = "x".join(str(self.mesh.axis_size((lane,))) for lane in self.lanes)
        return f"{self.dialect}.{word('mesh', self.dialect)} {self.symbol}(shape = {sizes})"


def default_offsets(sharding: Sharding, dim: int, size: int) -> list[int]:
    """Where the shards of a dim begin in the dialect: n // k rows each, one more on the trailing ones.

    >>> default_offsets(Sharding(Mesh(x=2), P("x")), 0, 9)
    [0, 4, 9]
    """
    count = math.prod(sharding.mesh.axis_size(axis) for axis in sharding.dims[dim])
    return [number * (size // count) + max(0, number - (count - size % count)) for number in range(count + 1)]


def with_default_offsets(sharding: Sharding, shape: Sequence[int]) -> Sharding:
    """A sharding of the dialect on a shape: uneven dims are cut as the dialect cuts them."""
    cuts = {dim: list(given) for dim, given in enumerate(sharding.offsets) if given}
    for dim, axes in enumerate(sharding.dims):
        if axes and dim not in cuts and dim < len(shape):
            found = default_offsets(sharding, dim, shape[dim])
            if shape[dim] % (len(found) - 1):
                cuts[dim] = found
    return sharding.replace(offsets=cuts) if cuts else sharding


def _attributes(parts: Sequence[str]) -> str:
    """Attributes that other tools don't know, and keep."""
    return f" {{{', '.join(parts)}}}" if parts else ""


def _halo_sizes(sharding: Sharding) -> list[int]:
    if not sharding.halo:
        return []
    return [n for dim, axes in enumerate(sharding.dims) if axes for n in sharding.halo_of(dim)]


def _counts(array: Any) -> bool:
    """Whether the elements are 0, 1, 2, … in row-major order, of a signed type that holds them."""
    return array.dtype.kind == "i" and array.dtype.itemsize > 2 and np.array_equal(array.ravel(), np.arange(array.size))


def _element(value: Any) -> str:
    """One element, as MLIR writes it: floats without loss, or by their bits."""
    kind, item = value.dtype, value.reshape(()).item()
    if kind.kind == "b":
        return "true" if item else "false"
    if kind.kind in "iu":
        return str(item)
    if kind.kind == "c":
        return f"({_element(np.asarray(value.real))}, {_element(np.asarray(value.imag))})"
    wide = float(item)
    if not math.isfinite(wide):
        bits = value.reshape(()).view(f"u{kind.itemsize}").item()
        return f"0x{bits:0{kind.itemsize * 2}X}"
    text = repr(wide) if kind.itemsize == 8 else str(np.float32(wide)) if kind.itemsize == 4 else repr(wide)
    if "e" in text and "." not in text.partition("e")[0]:
        text = text.replace("e", ".0e")
    return text


def _elements(array: Any) -> str:
    if array.ndim == 0:
        return _element(array)
    if array.size == 0:
        return ""
    return f"[{', '.join(_elements(part) for part in array)}]"
