"""`PerDevice`: the local view, one tensor per device of a mesh, without a global meaning."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwright.arrays.hosts import host_array
from shardwright.collectives import Collective
from shardwright.engines import Engine, Lanes, engine_named
from shardwright.engines.lanes import aligned, common_extents, lanes_from, stack, tensor_at
from shardwright.errors import ArrayError
from shardwright.mesh import Axes, Mesh
from shardwright.sharding import dtype_name


class PerDevice(np.lib.mixins.NDArrayOperatorsMixin):
    """One tensor per device, all of one shape and dtype; `values` are in the order of the devices.

    >>> v = PerDevice(Mesh(x=2), [np.array([1, 2]), np.array([3, 4])])
    >>> v
    PerDevice(i64[2] on Mesh(x=2))
    >>> v[(1,)]
    array([3, 4])
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
        self._lanes = stack(mesh, tensors)

    @classmethod
    def of(cls, lanes: Lanes) -> "PerDevice":
        """A PerDevice from tensors that an engine holds in lanes."""
        self = object.__new__(cls)
        self._lanes = lanes
        return self

    @property
    def lanes(self) -> Lanes:
        """The tensors as the engine holds them."""
        return self._lanes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold the tensors."""
        return self._lanes.mesh

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of every device's tensor."""
        return self._lanes.data.dtype

    @property
    def ndim(self) -> int:
        """The number of dims of every device's tensor."""
        return self._lanes.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every device's tensor; raises ArrayError if the shapes differ."""
        shapes = self._lanes.shapes()
        if len(shapes) > 1:
            raise ArrayError(f"The devices hold tensors of different shapes, {shapes}; use .values() to see each.")
        return shapes[0]

    def values(self) -> list[NDArray[Any]]:
        """The tensors in the order of the devices; read-only views."""
        self._engine.check_sends(self.mesh, "before its tensors are read")
        return [self._at(coords) for coords in np.ndindex(*self._lanes.full_shape)]

    def __getitem__(self, device: int | Sequence[int]) -> NDArray[Any]:
        """The tensor of one device, by coordinates or by id."""
        self._engine.check_sends(self.mesh, "before its tensors are read")
        coords = self.mesh.coords(int(device)) if isinstance(device, int | np.integer) else device
        place = self.mesh.position(self.mesh.index(coords))
        return self._at(tuple(int(n) for n in np.unravel_index(place, self._lanes.full_shape)))

    def __iter__(self) -> Any:
        return iter(self.values())

    def _at(self, coords: tuple[int, ...]) -> NDArray[Any]:
        result = tensor_at(self._lanes, coords)
        result.flags.writeable = False
        return result

    @property
    def _engine(self) -> Engine:
        return engine_named(self.mesh.engine)

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
        rows = zip(self.values(), *(other.values() for other in others), strict=True)
        return PerDevice.of(stack(self.mesh, [host_array(function(*row)) for row in rows]))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = (options.pop("out", None) or (None,))[0]
        if out is not None and out is not self:
            raise ArrayError("out= is not supported for PerDevice values. Use the return value of the function.")
        if method != "__call__" or ufunc.signature is not None:  # a product or a reduction: device by device
            result = _each(getattr(ufunc, method), inputs, options)
            if out is self:
                self._lanes = result._lanes
            return result
        operands = [x if isinstance(x, PerDevice) else _everywhere(self.mesh, x) for x in inputs]
        for operand in operands:
            same_mesh(self.mesh, operand.mesh)
        lanes = aligned([operand._lanes for operand in operands])
        extents = common_extents(lanes, ufunc.__name__)
        results = ufunc(*(x if np.isscalar(x) else v.data for x, v in zip(inputs, lanes, strict=True)), **options)
        if isinstance(results, tuple):
            return tuple(PerDevice.of(lanes_from(self.mesh, lanes[0].axes, r, extents)) for r in results)
        result = PerDevice.of(lanes_from(self.mesh, lanes[0].axes, results, extents))
        if out is None:
            return result
        self._lanes = result._lanes  # v += 1: the variable gets a new value
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


def _everywhere(mesh: Mesh, value: object) -> PerDevice:
    tensor = host_array(value)
    data = tensor.reshape((*(1,) * len(mesh.axis_names), *tensor.shape))
    return PerDevice.of(Lanes(mesh, mesh.axis_names, data, (None,) * tensor.ndim))


def process_index(mesh: Mesh) -> PerDevice:
    """Each device's row-major position in the mesh.

    >>> [int(place) for place in process_index(Mesh(x=2, y=2)).values()]
    [0, 1, 2, 3]
    """
    return PerDevice.of(Lanes(mesh, mesh.axis_names, np.arange(mesh.size).reshape(mesh.shape), ()))


def process_coords(mesh: Mesh, axes: Axes = ()) -> PerDevice:
    """Each device's coordinates along the axes, in their order; along all axes by default.

    >>> process_coords(Mesh(x=2, y=2), ("y", "x"))[(0, 1)]
    array([1, 0])
    """
    named = mesh.group_axes(axes) or mesh.axis_names
    lanes = mesh.lanes(named)
    full = [mesh.axis(lane).size for lane in lanes]
    grids = np.indices(full)
    data = np.stack([grids[lanes.index(axis)] for axis in named], axis=-1)
    return PerDevice.of(Lanes(mesh, lanes, data, (None,)))
