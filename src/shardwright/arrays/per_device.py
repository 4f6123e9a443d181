"""`PerDevice`: the local view, one tensor per device of a mesh, without a global meaning."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwright.arrays.hosts import host_array
from shardwright.collectives import Collective
from shardwright.engines import Engine, engine_of
from shardwright.errors import ArrayError
from shardwright.mesh import Axes, Mesh
from shardwright.plan import LocalShapes
from shardwright.sharding import dtype_name


class PerDevice(np.lib.mixins.NDArrayOperatorsMixin):
    """One tensor per device, all of one shape and dtype; `values` are in the order of the devices.

    >>> v = PerDevice(Mesh(x=2), [np.array([1, 2]), np.array([3, 4])])
    >>> v
    PerDevice(i64[2] on Mesh(x=2))
    >>> v[(1,)]
    array([3, 4])
    >>> print(v)
    PerDevice(i64[2] on Mesh(x=2))
    (0,): [1 2]
    (1,): [3 4]
    >>> (v * 10).values()
    [array([10, 20]), array([30, 40])]

    Inside `shard_map` the tensors of uneven shards keep their different sizes.
    """

    __slots__ = ("_lanes",)

    traces: ClassVar[bool] = False  # whether its elements are unknown, because a program is being traced

    def __init__(self, mesh: Mesh, values: Iterable[object]) -> None:
        tensors = [host_array(value) for value in values]
        if len(tensors) != mesh.size:
            raise ArrayError(
                f"{mesh} has {mesh.size} devices, but {len(tensors)} values were given: give one per device."
            )
        for place, tensor in enumerate(tensors):
            if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
                raise ArrayError(
                    f"The values of a PerDevice have one shape and dtype: value 0 is {tensors[0].dtype} of shape "
                    f"{tensors[0].shape}, value {place} is {tensor.dtype} of shape {tensor.shape}. Make them alike, or "
                    f"use sw.from_shards for the uneven shards of one tensor."
                )
        self._lanes = engine_of(mesh).view(mesh, tensors)

    @classmethod
    def of(cls, lanes: Any) -> "PerDevice":
        """A PerDevice from tensors that an engine holds."""
        self = object.__new__(cls)
        self._lanes = lanes
        return self

    @property
    def lanes(self) -> Any:
        """The tensors as the engine holds them: in lanes, or this process's own."""
        return self._lanes

    @property
    def local_shapes(self) -> LocalShapes:
        """The shapes of the devices' tensors."""
        shapes: LocalShapes = self._lanes.local_shapes
        return shapes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold the tensors."""
        mesh: Mesh = self._lanes.mesh
        return mesh

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of every device's tensor."""
        dtype: np.dtype[Any] = self._lanes.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of dims of every device's tensor."""
        ndim: int = self._lanes.ndim
        return ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every device's tensor; raises ArrayError if the shapes differ."""
        shapes: list[tuple[int, ...]] = self._lanes.shapes()
        if len(shapes) > 1:
            raise ArrayError(f"The devices hold tensors of different shapes, {shapes}; use .values() to see each.")
        return shapes[0]

    def values(self) -> list[NDArray[Any]]:
        """The tensors in the order of the devices; read-only views. Over several processes a collective, as all reads."""
        self._engine.check_sends(self.mesh, "before its tensors are read")
        return [read_only(tensor) for tensor in self._engine.values(self._lanes)]

    def __getitem__(self, device: int | Sequence[int]) -> NDArray[Any]:
        """The tensor of one device, by coordinates or by id."""
        self._engine.check_sends(self.mesh, "before its tensors are read")
        coords = self.mesh.coords(int(device)) if isinstance(device, int | np.integer) else device
        return read_only(self._engine.value(self._lanes, self.mesh.position(self.mesh.index(coords))))

    def __iter__(self) -> Any:
        return iter(self.values())

    @property
    def _engine(self) -> Engine:
        return engine_of(self.mesh)

    def apply_collective(self, collective: Collective) -> "PerDevice":
        """Run a collective on these tensors; see `shardwright.collectives`."""
        return PerDevice.of(self._engine.run(collective, self._lanes))

    def map(self, function: Callable[..., Any], *others: "PerDevice") -> "PerDevice":
        """Applies a function on every device to its tensors of this and other values; the results may differ in size.

        >>> PerDevice(Mesh(x=2), [[1, 2], [3, 4]]).map(np.sum).values()
        [array(3), array(7)]

        `v.map(np.matmul, w)` multiplies each device's tensor of v by its tensor of w.
        """
        for other in others:
            if not isinstance(other, PerDevice):
                raise ArrayError(
                    f".map takes PerDevice values; got {type(other).__name__}. Use it in the function as a closure."
                )
            same_mesh(self.mesh, other.mesh)
        traced: Any = next((other for other in others if other.traces), None)
        if traced is not None:
            return traced.record_map(function, (self, *others))
        self._engine.check_sends(self.mesh, "before its tensors are read")

        def one(*tensors: NDArray[Any]) -> NDArray[Any]:
            return host_array(function(*map(read_only, tensors)))

        return PerDevice.of(self._engine.each(one, [self._lanes, *(other._lanes for other in others)]))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = (options.pop("out", None) or (None,))[0]
        if out is not None and out is not self:
            raise ArrayError("out= is not supported for PerDevice values. Use the return value of the function.")
        if method != "__call__" or ufunc.signature is not None:  # a product or a reduction: device by device
            result = _each(getattr(ufunc, method), inputs, options)
            if out is self:
                self._lanes = result._lanes
            return result
        given = []
        for x in inputs:
            if isinstance(x, PerDevice):
                same_mesh(self.mesh, x.mesh)
            given.append(
                x._lanes
                if isinstance(x, PerDevice)
                else x
                if np.isscalar(x)
                else self._engine.everywhere(self.mesh, host_array(x))
            )
        results = tuple(map(PerDevice.of, self._engine.elementwise(ufunc, given, options)))
        if len(results) > 1:
            return results
        if out is None:
            return results[0]
        self._lanes = results[0]._lanes  # v += 1: the variable gets a new value
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise ArrayError(
            "A PerDevice has a tensor per device and can't be converted to a single array. Use .values(), "
            "v[coords], or sw.from_shards(mesh, P(…), v.values())."
        )

    def __bool__(self) -> bool:
        raise ArrayError("A PerDevice has a value per device; use .values() to look at each.")

    __hash__ = None  # type: ignore[assignment]  # == compares element by element

    def __repr__(self) -> str:
        shapes = self._lanes.shapes()
        sizes = (",".join(map(str, shape)) for shape in shapes[:3])
        shown = " or ".join(f"{dtype_name(self.dtype)}[{size}]" for size in sizes) + (
            " or …" if len(shapes) > 3 else ""
        )
        return f"PerDevice({shown} on {self.mesh})"

    def __str__(self) -> str:
        """Its values by device; over several processes a collective, as all reads."""
        lines = [repr(self)]
        for place, tensor in enumerate(self.values()):
            if place == MOST_SHOWN:
                lines.append(f"… and {self.mesh.size - MOST_SHOWN} more devices")
                break
            coords = self.mesh.coords(self.mesh.device_ids[place])
            shown = np.array2string(tensor, prefix=f"{coords}: ", threshold=64)
            lines.append(f"{coords}: {shown}")
        return "\n".join(lines)


MOST_SHOWN = 64  # devices that are printed


def _each(function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> PerDevice:
    """A function of several operands on every device; operands other than PerDevice are the same everywhere."""
    local = [x for x in inputs if isinstance(x, PerDevice)]

    def one(*tensors: NDArray[Any]) -> Any:
        given = iter(tensors)
        return function(*(next(given) if isinstance(x, PerDevice) else x for x in inputs), **options)

    return local[0].map(one, *local[1:])


def same_mesh(a: Mesh, b: Mesh) -> None:
    if a != b:
        raise ArrayError(
            f"Values on different meshes don't mix: one is on {a}, the other on {b}. "
            f"Make both on one mesh, or move one there through the host."
        )


def read_only(tensor: NDArray[Any]) -> NDArray[Any]:
    """The tensor, not to be written to."""
    result = tensor.view()
    result.flags.writeable = False
    return result


def process_index(mesh: Mesh) -> PerDevice:
    """Each device's row-major position in the mesh.

    >>> [int(place) for place in process_index(Mesh(x=2, y=2)).values()]
    [0, 1, 2, 3]
    """
    return PerDevice(mesh, np.arange(mesh.size))


def process_coords(mesh: Mesh, axes: Axes = ()) -> PerDevice:
    """Each device's coordinates along the axes, in their order; along all axes by default.

    >>> process_coords(Mesh(x=2, y=2), ("y", "x"))[(0, 1)]
    array([1, 0])
    """
    named = mesh.group_axes(axes) or mesh.axis_names
    lanes = mesh.lanes(named)
    grids = np.indices([mesh.axis(lane).size for lane in lanes])
    return PerDevice(mesh, np.stack([grids[lanes.index(axis)].ravel() for axis in named], axis=-1))
