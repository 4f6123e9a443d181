"""`Array`: the global view, one tensor and a sharding; and how tensors come onto a mesh and back to the host."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import AllReduce, Collective, ReduceScatter, UpdateHalo
from shardwright.engines import Lanes, Stacked, engine_named
from shardwright.errors import ArrayError
from shardwright.mesh import Mesh
from shardwright.per_device import PerDevice, host_array
from shardwright.sharding import Layout, P, Sharding, describe, layout_of
from shardwright.shards import Shard, Shards


class Array:
    """A tensor that lies on the devices of a mesh as its sharding says. Immutable: operations give new arrays.

    >>> x = shard(np.arange(12).reshape(4, 3), Mesh(data=2, model=4), P("data"))
    >>> x.shape, x.sharding.spec, x.shards[4].index, x.shards[4].data
    ((4, 3), P('data', None), (slice(2, 4, None), slice(0, 3, None)), array([[ 6,  7,  8],
           [ 9, 10, 11]]))

    Make one with `shard`, `replicate` or `from_shards`.
    """

    __slots__ = ("__weakref__", "_data", "_layout")

    _layout: Layout
    _data: NDArray[Any]

    def __init__(self) -> None:
        raise ArrayError("An Array is made by sw.shard(host, mesh, P(…)), sw.replicate or sw.from_shards.")

    @classmethod
    def of(cls, layout: Layout, data: NDArray[Any]) -> "Array":
        """The array whose shards an engine holds in lanes, as a layout says."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = data
        return self

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of its elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole tensor."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor, once."""
        return self.size * self.dtype.itemsize

    @property
    def sharding(self) -> Sharding:
        """Where its parts lie."""
        return self._layout.sharding

    @property
    def mesh(self) -> Mesh:
        """The mesh it lies on."""
        return self._layout.mesh

    @property
    def layout(self) -> Layout:
        """Its sharding applied to its shape."""
        return self._layout

    @property
    def lanes(self) -> Lanes:
        """Its shards as the engine holds them."""
        return Lanes(self.mesh, self._layout.lanes, self._data, self._layout.extents)

    @property
    def shards(self) -> Sequence[Shard]:
        """What each device holds, in the order of the devices."""
        return Shards(self._layout, self._data)

    @property
    def _engine(self) -> Stacked:
        return engine_named(self.mesh.engine)

    # -- to other places ----------------------------------------------------------------------------------------------

    def reshard(self, target: "Sharding | P") -> "Array":
        """The same tensor laid out as `target` says; a partial value is reduced unless the target keeps it partial.

        >>> x = shard(np.arange(4), Mesh(x=2), P("x"))
        >>> x.reshard(P(None)).sharding
        Sharding(Mesh(x=2), P(None))
        """
        sharding = target if isinstance(target, Sharding) else Sharding(self.mesh, target)
        layout = layout_of(sharding, self.shape)
        return Array.of(layout, self._engine.reshard(self._data, self._layout, layout))

    def numpy(self) -> NDArray[Any]:
        """The whole tensor on the host, as `np.asarray(x)` gives it."""
        return self._host()

    def _host(self) -> NDArray[Any]:
        """The whole tensor, reduced; a read-only view where no copy is needed."""
        data = self._data
        if self._layout.partial_lanes:
            data = self._engine.reduce(data, self._layout.partial_lanes, self.sharding.reduction)
        whole = self._engine.join(data, self._layout).reshape(self.shape)
        whole.flags.writeable = False
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self._host()
        if dtype is not None and np.dtype(dtype) != whole.dtype:
            if copy is False:
                raise ValueError(
                    f"{self.dtype} can't become {np.dtype(dtype)} without a copy, and copy=False forbids one."
                )
            return whole.astype(dtype)
        if copy is False and not np.shares_memory(whole, self._data):
            raise ValueError(f"The shards of {self._summary()} are joined by a copy, and copy=False forbids one.")
        return whole.copy() if copy else whole

    __array_ufunc__ = None  # NumPy leaves x + array to us instead of gathering behind the user's back

    def apply_collective(self, collective: Collective) -> "Array":
        """Run a collective on the shards, where the result is a sharded tensor again."""
        if isinstance(collective, UpdateHalo):
            collective.on(self.sharding, self.shape)
            return Array.of(self._layout, self._engine.run(collective, self.lanes).data)
        bound = collective.bind(self.mesh, self.shape, self.dtype, uneven=True)
        target = layout_of(bound.on(self.sharding, self.shape), self.shape)
        data = self._data
        if isinstance(bound, AllReduce | ReduceScatter) and bound.dtype is not None:
            data = data.astype(bound.dtype)
        return Array.of(target, self._engine.reshard(data, self._layout, target))

    # -- reading: a partial value is reduced first --------------------------------------------------------------------

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self._host().item()

    def tolist(self) -> Any:
        """The whole tensor as nested lists."""
        return self._host().tolist()

    def __float__(self) -> float:
        return float(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __index__(self) -> int:
        return operator.index(self._scalar())

    def _scalar(self) -> Any:
        if self.size != 1:
            raise ArrayError(f"Only an array of one element is a number; this one has shape {self.shape}.")
        return self._host().reshape(())[()]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("An array without dims has no length.")
        return self.shape[0]

    def __iter__(self) -> "Iterator[Array]":
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> "Array":
        """Ints, slices, `...` and None; dims taken whole keep their axes, the others are whole on every device."""
        entries = index if isinstance(index, tuple) else (index,)
        for entry in entries:
            if not (entry is None or entry is Ellipsis or isinstance(entry, int | np.integer | slice)):
                raise ArrayError(
                    f"An array is indexed by integers, slices, ... and None; got {entry!r}. "
                    f"For anything else index the tensor on the host: np.asarray(x)[…]."
                )
        result = self._host()[index]
        return shard(result, self.mesh, P(*_kept_axes(entries, self.sharding)), copy=False)

    def __eq__(self, other: object) -> "Array":  # type: ignore[override]  # element by element, as NumPy does
        return self._compare(np.equal, other)

    def __ne__(self, other: object) -> "Array":  # type: ignore[override]
        return self._compare(np.not_equal, other)

    def __lt__(self, other: object) -> "Array":
        return self._compare(np.less, other)

    def __le__(self, other: object) -> "Array":
        return self._compare(np.less_equal, other)

    def __gt__(self, other: object) -> "Array":
        return self._compare(np.greater, other)

    def __ge__(self, other: object) -> "Array":
        return self._compare(np.greater_equal, other)

    __hash__ = None  # type: ignore[assignment]

    def _compare(self, compare: Callable[[Any, Any], Any], other: object) -> "Array":
        if isinstance(other, Array) and other.mesh != self.mesh:
            raise ArrayError(
                f"Arrays on different meshes don't mix: {self._summary()} and {other._summary()}. "
                f"Bring both onto one mesh first: x.reshard(Sharding(mesh, P(…)))."
            )
        result = compare(self._host(), other._host() if isinstance(other, Array) else other)
        lead = ((),) * (result.ndim - self.ndim)
        spec = P(*lead, *self.sharding.dims) if result.shape[len(lead) :] == self.shape else P()
        return shard(result, self.mesh, spec, copy=False)

    def _summary(self) -> str:
        return f"{describe(self.sharding, self.shape, self.dtype)} on {self.mesh}"

    def __repr__(self) -> str:
        values = np.array2string(self._host(), separator=", ", prefix="Array(")
        return f"Array({values}, {self._summary()})"

    def __str__(self) -> str:
        return str(self._host())


def _kept_axes(index: tuple[Any, ...], sharding: Sharding) -> list[tuple[str, ...]]:
    """The axes of the dims that survive an index: those taken whole keep theirs."""
    used = sum(entry is not None and entry is not Ellipsis for entry in index)
    rest = [slice(None)] * (len(sharding.dims) - used)
    entries: list[Any] = []
    for entry in index if Ellipsis in index else (*index, Ellipsis):
        entries += rest if entry is Ellipsis else [entry]
    dims = iter(sharding.dims)
    kept: list[tuple[str, ...]] = []
    for entry in entries:
        axes = () if entry is None else next(dims)
        if entry is None or isinstance(entry, slice):
            kept.append(axes if entry == slice(None) else ())
    return kept


def as_sharding(mesh: "Mesh | Sharding", spec: "P | Sharding | None" = None) -> Sharding:
    """What users may write for a sharding: a mesh and a spec, or a sharding."""
    if isinstance(mesh, Sharding):
        if spec is not None:
            raise ArrayError(f"Give a Sharding alone, or a mesh and a spec; got {mesh} and {spec}.")
        return mesh
    if isinstance(spec, Sharding):
        if spec.mesh != mesh:
            raise ArrayError(f"The sharding is for {spec.mesh}, but the mesh given is {mesh}. Use one of them.")
        return spec
    return Sharding(mesh, P() if spec is None else spec)


def shard(host: object, mesh: "Mesh | Sharding", spec: "P | Sharding | None" = None, *, copy: bool = True) -> Array:
    """Lay a host tensor on a mesh, as a spec or a sharding says.

    >>> shard(np.arange(6.0), Mesh(x=4), P("x")).shards[2].data  # blocks of ceil(6 / 4) = 2
    array([4., 5.])

    The array owns its data. `copy=False` shares the host's memory where shards are even, for hosts that won't change.
    """
    if isinstance(host, Array):
        raise ArrayError(f"This is an Array already: {host._summary()}. Use x.reshard(…) to lay it out anew.")
    sharding = as_sharding(mesh, spec)
    whole = host_array(host)
    layout = layout_of(sharding, whole.shape)
    if copy and layout.is_even and np.shares_memory(whole, host if isinstance(host, np.ndarray) else whole):
        whole = whole.copy(order="K")
    engine = engine_named(layout.mesh.engine)
    joined = whole.reshape((*(1,) * len(layout.lanes), *whole.shape))
    return Array.of(layout, engine.cut(engine.apart(joined, layout), layout))


def replicate(host: object, mesh: Mesh, *, copy: bool = True) -> Array:
    """Lay a host tensor on a mesh whole: every device holds all of it (and on virtual devices they share one copy).

    >>> replicate([1, 2], Mesh(x=4)).shards[3].data
    array([1, 2])
    """
    return shard(host, mesh, P(), copy=copy)


def gather(x: Array) -> NDArray[Any]:
    """The whole tensor on the host: the inverse of `shard`, the same as `np.asarray(x)`."""
    return x.numpy()


def from_shards(
    mesh: "Mesh | Sharding",
    spec: "P | Sharding",
    shards: Sequence[object] | PerDevice,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """The array whose shards are given, one per device in the order of the devices.

    >>> np.asarray(from_shards(Mesh(x=2), P("x"), [[1, 2, 3], [4]]))
    array([1, 2, 3, 4])

    Sizes follow from the shards and need not be even; `shape` only confirms them. Devices that hold the same part
    must agree on it.
    """
    sharding = as_sharding(mesh, spec)
    tensors = [host_array(value) for value in (shards.values() if isinstance(shards, PerDevice) else shards)]
    layout = _layout_from(sharding, tensors, shape)
    data = np.zeros((*layout.full_shape, *layout.local_shape), tensors[0].dtype)
    for place, tensor in zip(np.ndindex(*layout.full_shape), tensors, strict=True):
        data[(*place, *map(slice, tensor.shape))] = tensor
    return Array.of(layout, same_where_shared(data, layout, "from_shards"))


def same_where_shared(data: NDArray[Any], layout: Layout, name: str) -> NDArray[Any]:
    """One copy of what devices share; where they don't hold the same, that is an error."""
    shared = [i for i, n in enumerate(layout.lane_shape) if n == 1 and data.shape[i] > 1]
    if not shared:
        return data
    first = data[tuple(slice(0, 1) if i in shared else slice(None) for i in range(data.ndim))]
    alike = (data == first) | ((data != data) & (first != first))  # NaN is the same as NaN here
    if not bool(alike.all()):
        axes = ", ".join(repr(layout.lanes[i]) for i in shared)
        count = data.size - int(np.count_nonzero(alike))
        raise ArrayError(
            f"{name}: {layout.sharding} says devices along {axes} hold the same, but {count} of {data.size} elements "
            f"differ from the first device's. Name the axis in a dim, make it partial, or broadcast the values first."
        )
    return first


def _layout_from(sharding: Sharding, tensors: list[NDArray[Any]], shape: tuple[int, ...] | None) -> Layout:
    """The layout that shards of these shapes have."""
    mesh = sharding.mesh
    if len(tensors) != mesh.size:
        raise ArrayError(f"{mesh} has {mesh.size} devices, but {len(tensors)} shards were given: give one per device.")
    ndim = tensors[0].ndim
    for place, tensor in enumerate(tensors):
        if tensor.ndim != ndim or tensor.dtype != tensors[0].dtype:
            raise ArrayError(
                f"Shards must be alike: shard 0 is {tensors[0].dtype} with {ndim} dims, shard {place} is "
                f"{tensor.dtype} with {tensor.ndim}."
            )
    padded = Sharding(mesh, P(*sharding.dims, *((),) * (ndim - len(sharding.dims))))
    probe = layout_of(padded, (0,) * ndim)
    sizes = np.array([tensor.shape for tensor in tensors], np.int64).reshape(mesh.size, ndim)
    offsets: dict[int, list[int]] = {}
    for dim in range(ndim):
        low, high = sharding.halo_of(dim) if dim < len(sharding.dims) else (0, 0)
        held = np.full(probe.dims[dim].parts, -1)
        held[probe.shard_places[:, dim]] = sizes[:, dim] - low - high
        wrong = np.flatnonzero(held[probe.shard_places[:, dim]] != sizes[:, dim] - low - high)
        if len(wrong) or (held < 0).any():
            place = int(wrong[0]) if len(wrong) else int(np.argmin(sizes[:, dim]))
            raise ArrayError(
                f"Shard {place} has shape {tensors[place].shape}, which does not fit {sharding}: along dim {dim} it "
                f"has {sizes[place, dim]} rows where other devices that hold the same part have another number."
            )
        offsets[dim] = [0, *np.cumsum(held).tolist()]
    total = tuple(cuts[-1] for cuts in offsets.values())
    if shape is not None and total != tuple(shape):
        raise ArrayError(f"The shards make a tensor of shape {total}, but shape={tuple(shape)} was given.")
    split = {dim: cuts for dim, cuts in offsets.items() if dim < len(sharding.dims)}
    if sharding.offsets and any(sharding.offsets_of(dim) not in ((), tuple(cuts)) for dim, cuts in split.items()):
        raise ArrayError(f"The shards begin at {split}, but {sharding} says otherwise.")
    return layout_of(sharding.replace(offsets=split), total)
