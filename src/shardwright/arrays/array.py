"""`Array`: the global view, one tensor and a sharding; and how tensors come onto a mesh and back to the host."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from sys import getrefcount
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import shardwright.arrays.assignment as assignment
import shardwright.arrays.indexing as indexing
from shardwright.arrays.hosts import as_torch, host_array, is_torch, own_copy, torch_tensor
from shardwright.arrays.per_device import PerDevice, same_mesh
from shardwright.arrays.shards import Shard, Shards
from shardwright.collectives import AllReduce, Collective, ReduceScatter, UpdateHalo
from shardwright.eager import TEMPORARY, Held, operator_method, operators, tracer, unary
from shardwright.engines import engine_of
from shardwright.errors import ArrayError
from shardwright.mesh import Mesh
from shardwright.plan import relabelled
from shardwright.sharding import Layout, P, Sharding, as_dtype, check_partial, layout_of


class Array(Held):
    """A tensor that lies on the devices of a mesh as its sharding says.

    >>> x = shard(np.arange(12).reshape(4, 3), Mesh(data=2, model=4), P("data"))
    >>> x.shape, x.sharding.spec, x.shards[4].index, x.shards[4].data
    ((4, 3), P('data', None), (slice(2, 4, None), slice(0, 3, None)), array([[ 6,  7,  8],
           [ 9, 10, 11]]))

    Make one with `shard`, `replicate` or `from_shards`. Operations give new arrays. `x[…] = v` and `x += y` give the variable
    a new value, which every other name of it sees, as with NumPy; arrays made from it before keep theirs.
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise ArrayError("An Array is made by sw.shard(host, mesh, P(…)), sw.replicate or sw.from_shards.")

    @property
    def shards(self) -> Sequence[Shard]:
        """What each device holds, in the order of the devices."""
        self.looked_at()
        return Shards(self._layout, self.data)

    # -- to other places ----------------------------------------------------------------------------------------------

    def reshard(self, target: "Sharding | P", *, allow_device_permutation: bool = False) -> "Array":
        """The same tensor laid out as `target` says; a partial value is reduced unless the target keeps it partial.

        >>> x = shard(np.arange(4), Mesh(x=2), P("x"))
        >>> x.reshard(P(None)).sharding
        Sharding(Mesh(x=2), P(None))

        `sw.plan_reshard` says what moves. If `allow_device_permutation`, and the target's shards are the ones there are on
        other devices, nothing moves: the result lies on a mesh with its devices in another order.
        """
        # As in (x @ w).reshard(…): nothing can read it afterwards, but a program that is being traced.
        last = getrefcount(self) == TEMPORARY and tracer.get() is None
        sharding = target if isinstance(target, Sharding) else Sharding(self.mesh, target)
        check_partial(sharding, self.dtype, ArrayError)
        if allow_device_permutation:
            sharding = relabelled(self.sharding, sharding.for_shape(self.shape), self.shape) or sharding
        layout = layout_of(sharding, self.shape)
        return self._same(Array.of(layout, self.placed(layout, last)))

    def numpy(self) -> NDArray[Any]:
        """The whole tensor on the host, as `np.asarray(x)` gives it."""
        return self._host()

    def torch(self) -> Any:
        """The whole tensor as a torch tensor; shares memory where the engine holds it as one. To be read, not written to.

        >>> shard([1, 2], Mesh(x=2), P("x")).torch()
        tensor([1, 2])
        """
        self.looked_at()
        data, layout = self._reduced()
        if is_torch(data) and layout.is_plain and self._engine.processes == 1:
            return data
        return as_torch(self.host())

    def _host(self) -> NDArray[Any]:
        """The whole tensor, reduced; a read-only view where no copy is needed."""
        whole = self.host().view()
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
        if copy is False and not _shares_memory(whole, self.data):
            raise ValueError(f"The shards of {self.summary()} are joined by a copy, and copy=False forbids one.")
        return whole.copy() if copy else whole

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """`np.add(x, y)` and the like run the same rows as `x + y`; nothing is gathered behind the user's back."""
        ours = self.functions.get(ufunc) if method == "__call__" else None
        if ours is None:
            raise TypeError(_unknown(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")))
        values = [self.beside(x) for x in inputs]
        if any(x is NotImplemented for x in values):
            return NotImplemented
        return ours(*values, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """`np.sum(x)` and the like run functions of `shardwright.numpy`; new arrays (`like=x`) go to this array's mesh."""
        ours = self.functions.get(function)
        if ours is None:
            raise TypeError(_unknown(f"{function.__module__.replace('numpy', 'np', 1)}.{function.__name__}"))
        with self.mesh:
            return ours(*args, **options)

    namespace: ClassVar[Any]  # shardwright.numpy, which fills in both
    functions: ClassVar[Mapping[Any, Callable[..., Any]]]  # NumPy's function -> ours, which takes NumPy's arguments

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of the Array API standard for this array."""
        if api_version is not None and api_version > self.namespace.__array_api_version__:
            raise ValueError(f"The Array API {api_version} is newer than {self.namespace.__array_api_version__}.")
        return self.namespace

    @property
    def device(self) -> str:
        """The device, as the Array API standard sees it: the mesh. `sharding` says more."""
        return "mesh"

    def to_device(self, device: Any, /, *, stream: Any = None) -> "Array":
        """The array itself: it lies on its mesh. Use `reshard` to lay it out anew."""
        if device != "mesh" or stream is not None:
            raise ArrayError(f"Arrays lie on the devices of a mesh, not on {device!r}. Use x.reshard(…) to move one.")
        return self

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The whole tensor, copied unless copy=False; then it shares memory where its shards do. See `x.shards[i]` too."""
        whole = self.host()
        host = whole if copy is False else whole.copy()
        return host.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @property
    def T(self) -> "Array":  # noqa: N802  # the standard's name
        """A matrix transposed."""
        if self.ndim != 2:
            raise ArrayError(f"x.T is for two dims; shape {self.shape} has {self.ndim}. Use x.mT or permute_dims.")
        return self.mT

    @property
    def mT(self) -> "Array":  # noqa: N802  # the standard's name
        """The last two dims swapped."""
        result: Array = self.namespace.matrix_transpose(self)
        return result

    def apply_collective(self, collective: Collective) -> "Array":
        """Run a collective on the shards, where the result is a sharded tensor again."""
        self.looked_at()
        if isinstance(collective, UpdateHalo):
            collective.on(self.sharding, self.shape)
            return Array.of(
                self._layout, self._engine.from_lanes(self._engine.run(collective, self.lanes), self._layout)
            )
        bound = collective.bind(self.mesh, self.shape, self.dtype, uneven=True)
        target = layout_of(bound.on(self.sharding, self.shape), self.shape)
        if isinstance(bound, AllReduce | ReduceScatter) and bound.dtype is not None:
            data = self._engine.astype(self.data, bound.dtype)
            return Array.of(target, self._engine.move(data, self._layout, target))
        return Array.of(target, self.placed(target))

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

    def __contains__(self, value: Any) -> bool:
        """Whether any element is equal to the value, as NumPy has it: `(x == value).any()`."""
        found = self == value
        return bool(self.namespace.any(found)) if isinstance(found, Array) else bool(found)

    def __iter__(self) -> "Iterator[Array]":
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> "Array":
        """Elements as NumPy would give them; what is sliced stays where it lies."""
        return indexing.get(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        """The variable gets a new value; other arrays that share its data keep theirs."""
        self.become(assignment.put(self, index, value))

    __add__, __radd__, __iadd__ = operators("add")
    __sub__, __rsub__, __isub__ = operators("subtract")
    __mul__, __rmul__, __imul__ = operators("multiply")
    __truediv__, __rtruediv__, __itruediv__ = operators("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = operators("floor_divide")
    __mod__, __rmod__, __imod__ = operators("remainder")
    __pow__, __rpow__, __ipow__ = operators("pow")
    __and__, __rand__, __iand__ = operators("bitwise_and")
    __or__, __ror__, __ior__ = operators("bitwise_or")
    __xor__, __rxor__, __ixor__ = operators("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = operators("bitwise_left_shift")
    __rshift__, __rrshift__, __irshift__ = operators("bitwise_right_shift")
    __matmul__, __rmatmul__, __imatmul__ = operators("matmul")
    __eq__ = operator_method("equal")  # element by element, as NumPy does
    __ne__ = operator_method("not_equal")
    __lt__ = operator_method("less")
    __le__ = operator_method("less_equal")
    __gt__ = operator_method("greater")
    __ge__ = operator_method("greater_equal")
    __neg__, __pos__, __abs__, __invert__ = map(unary, ("negative", "positive", "abs", "bitwise_invert"))
    __hash__ = None  # type: ignore[assignment]

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> "Array":
        """As `shardwright.numpy.sum`."""
        result: Array = self.namespace.sum(self, axis=axis, dtype=dtype, keepdims=keepdims)
        return result

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Array":
        """As `shardwright.numpy.mean`."""
        result: Array = self.namespace.mean(self, axis=axis, keepdims=keepdims)
        return result

    def max(self, axis: Any = None, keepdims: bool = False) -> "Array":
        """As `shardwright.numpy.max`."""
        result: Array = self.namespace.max(self, axis=axis, keepdims=keepdims)
        return result

    def min(self, axis: Any = None, keepdims: bool = False) -> "Array":
        """As `shardwright.numpy.min`."""
        result: Array = self.namespace.min(self, axis=axis, keepdims=keepdims)
        return result

    def astype(self, dtype: Any) -> "Array":
        """As `shardwright.numpy.astype`."""
        result: Array = self.namespace.astype(self, dtype)
        return result

    def reshape(self, *shape: Any) -> "Array":
        """As `shardwright.numpy.reshape`; sizes may be given one by one."""
        result: Array = self.namespace.reshape(self, shape[0] if len(shape) == 1 else shape)
        return result

    def transpose(self, *axes: Any) -> "Array":
        """Dims in another order, given one by one or as a tuple; without arguments in reverse."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        result: Array = self.namespace.permute_dims(self, order or tuple(reversed(range(self.ndim))))
        return result

    def beside(self, value: Any) -> Any:
        """Converts the other operand: host tensors are replicated on its mesh, scalars stay; NotImplemented if impossible."""
        if isinstance(value, Array) or type(value) in _SCALARS:
            return value
        if isinstance(value, _HOST) or hasattr(value, "__array__"):
            return shard(value, self.mesh, P())
        return NotImplemented

    def __repr__(self) -> str:
        if self._engine.processes > 1:  # reading elements is a collective, and looking at a variable must not be one
            return f"Array({self.summary()})"
        values = np.array2string(self._host(), separator=", ", prefix="Array(")
        return f"Array({values}, {self.summary()})"

    def __str__(self) -> str:
        return str(self._host())


_SCALARS = {bool, int, float, complex, np.float64, np.complex128}
_HOST = (np.ndarray, np.generic, list, tuple, int, float, complex)  # numbers of other types too, as NumPy takes them


def _shares_memory(whole: NDArray[Any], data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return np.shares_memory(whole, data)
    return bool(whole.ctypes.data == data.data_ptr()) if hasattr(data, "data_ptr") else False


def _unknown(name: str) -> str:
    return (
        f"{name} does not work on sharded arrays. Use a function of shardwright.numpy, or the whole tensor on the host: "
        f"np.asarray(x)."
    )


def as_sharding(mesh: "Mesh | Sharding", spec: "P | Sharding | None" = None) -> Sharding:
    """What users may write for a sharding: a mesh and a spec, or a sharding."""
    if isinstance(mesh, P):
        raise ArrayError(f"{mesh} stands where the mesh belongs: write (…, mesh, {mesh}), or a Sharding alone.")
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
    if isinstance(host, dict) or not isinstance(mesh, Mesh | Sharding | P):
        what = (
            "a tree of arrays"
            if isinstance(host, dict)
            else f"a {type(host).__name__}, and the mesh a {type(mesh).__name__}"
        )
        raise ArrayError(
            f"shard takes one tensor, a mesh and a spec; this is {what}. For a tree write, inside `with mesh:`, "
            f"sw.with_sharding_constraint(tree, P(…) or a rule)."
        )
    if isinstance(host, Array):
        raise ArrayError(f"This is an Array already: {host.summary()}. Use x.reshard(…) to lay it out anew.")
    sharding = as_sharding(mesh, spec)
    engine = engine_of(sharding.mesh)
    engine.check(
        mesh if isinstance(mesh, Mesh) else sharding.mesh
    )  # shardings of equal meshes may share one with no time-out
    native = engine.native(host)
    whole: Any = host_array(host) if not native else torch_tensor(host) if is_torch(host) else host
    check_partial(sharding, as_dtype(whole.dtype), ArrayError)
    layout = layout_of(sharding, tuple(whole.shape))
    shares = not isinstance(host, list | tuple) and (is_torch(host) or not native)  # lists are copied already
    if copy and engine.keeps_host and shares:
        whole = own_copy(whole)
    return Array.of(layout, engine.put(whole, layout))


def replicate(host: object, mesh: Mesh, *, copy: bool = True) -> Array:
    """Lay a host tensor on a mesh whole: every device holds all of it (and on virtual devices they share one copy).

    >>> replicate([1, 2], Mesh(x=4)).shards[3].data
    array([1, 2])
    """
    return shard(host, mesh, P(), copy=copy)


def gather(x: Array) -> NDArray[Any]:
    """The whole tensor on the host: the inverse of `shard`, the same as `np.asarray(x)`."""
    if not isinstance(x, Array):
        raise ArrayError(f"gather takes an Array; got {type(x).__name__}.")
    return x.numpy()


def from_shards(
    mesh: "Mesh | Sharding",
    spec: Any,
    shards: Sequence[object] | PerDevice | None = None,
    shape: tuple[int, ...] | None = None,
) -> Array:
    """The array whose shards are given, one per device in the order of the devices.

    >>> np.asarray(from_shards(Mesh(x=2), P("x"), [[1, 2, 3], [4]]))
    array([1, 2, 3, 4])

    Sizes follow from the shards and need not be even; `shape` only confirms them. Devices that hold the same part
    must agree on it.
    """
    if isinstance(mesh, Sharding) and shards is None:
        spec, shards = None, spec  # a sharding alone, then the shards
    sharding = as_sharding(mesh, spec)
    if isinstance(shards, PerDevice):
        same_mesh(sharding.mesh, shards.mesh)
        shards = shards.values()
    tensors = [host_array(value.data if isinstance(value, Shard) else value) for value in shards or ()]
    layout = _layout_from(sharding, tensors, shape)
    check_partial(sharding, tensors[0].dtype, ArrayError)
    engine = engine_of(layout.mesh)
    if layout.lane_shape != layout.full_shape:  # some devices must hold the same
        engine.check_shared(engine.view(layout.mesh, tensors), layout, "from_shards")
    return Array.of(layout, engine.assemble(tensors, layout))


def _layout_from(sharding: Sharding, tensors: list[NDArray[Any]], shape: tuple[int, ...] | None) -> Layout:
    """The layout that shards of these shapes have."""
    mesh = sharding.mesh
    if len(tensors) != mesh.size:
        raise ArrayError(f"{mesh} has {mesh.size} devices, but {len(tensors)} shards were given: give one per device.")
    ndim = tensors[0].ndim
    if len(sharding.dims) > ndim:
        sharding.for_shape(tensors[0].shape)  # raises: the spec is longer than the rank
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
    if sharding.offsets and any(
        tuple(sharding.offsets_of(dim)) not in ((), tuple(cuts)) for dim, cuts in split.items()
    ):
        raise ArrayError(f"The shards begin at {split}, but {sharding} says otherwise.")
    return layout_of(sharding.replace(offsets=split), total)
