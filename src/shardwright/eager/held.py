"""`Held`: a sharded tensor as an engine holds it, a layout and data. What `Array` and the operations stand on."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from sys import getrefcount
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import Engine, Lanes, engine_of
from shardwright.errors import ArrayError, TraceError
from shardwright.mesh import Mesh
from shardwright.sharding import Layout, Sharding, as_dtype, describe, layout_of

tracer: ContextVar[Any] = ContextVar("tracer", default=None)  # the program that is being traced here

_numpys = lru_cache(as_dtype)  # the dtype of an engine's own arrays


class _Probe:
    def references(self) -> int:
        return getrefcount(self)


def _temporary() -> int:
    """How many references a method finds to an object that its call alone holds; 0 where a variable's object has as many."""
    variable = _Probe()
    found = _Probe().references()
    return found if found < variable.references() else 0


TEMPORARY = _temporary()


def _gone() -> Any:
    raise ArrayError("This array was a temporary value, and a reduction has taken its memory over.")


class Deferred:
    """A partial value of which only what it comes to is made; its summands are when they are looked at.

    Shared by all arrays that have it as their value.
    """

    __slots__ = ("_data", "_summands", "total", "waiting")

    def __init__(self, total: Any, summands: Callable[[], Any], waiting: int) -> None:
        self.total = total
        self._summands: Callable[[], Any] | None = summands
        self._data: Any = None
        self.waiting = waiting  # operations in a row that keep their operands until then

    def data(self) -> Any:
        """The shards, summand by summand."""
        if self._data is None:
            assert self._summands is not None
            self._data, self._summands, self.waiting = self._summands(), None, 0
        return self._data


class Held:
    """A tensor on the devices of a mesh: its layout, and its shards as the mesh's engine holds them.

    On engines that fuse, a partial result is what it comes to; its summands take memory only once they are looked at.
    """

    __slots__ = ("__weakref__", "_data", "_dtype", "_later", "_layout")

    traces: ClassVar[bool] = False  # whether its elements are unknown, because a program is being traced
    reads: ClassVar[int] = 0  # how often a tensor was brought to the host

    _layout: Layout
    _data: Any
    _dtype: "np.dtype[Any]"
    _later: Deferred  # where the data is None

    @classmethod
    def of(cls, layout: Layout, data: Any) -> Self:
        """The array whose shards an engine holds, as a layout says."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = data
        dtype = data.dtype
        self._dtype = dtype if isinstance(dtype, np.dtype) else _numpys(dtype)
        return self

    @classmethod
    def deferred(cls, layout: Layout, total: Any, summands: Callable[[], Any], waiting: int) -> Self:
        """A partial array, given by what it comes to; `summands()` makes its shards."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = None
        self._dtype = total.dtype if isinstance(total.dtype, np.dtype) else _numpys(total.dtype)
        self._later = Deferred(total, summands, waiting)
        return self

    @property
    def waiting(self) -> int:
        """How many operations in a row wait until this array is needed."""
        return self._later.waiting if self._data is None else 0

    def total(self) -> Any:
        """The data of the tensor once it is reduced."""
        if not self._layout.partial_lanes:
            return self.data
        data, layout = self._reduced()
        return data if layout.is_plain else self._engine.total(data, layout)  # type: ignore[attr-defined]  # of engines that fuse

    def beside(self, value: Any) -> Any:
        """Converts the other operand to an array or scalar; NotImplemented if impossible."""
        return NotImplemented

    def become(self, other: "Held") -> None:
        """Take another's value: the variable changes, data that others see does not."""
        if tracer.get() is not None:
            raise TraceError(
                f"{self.summary()} comes from outside of the function that is traced, and would be changed while that is "
                f"traced, not when it runs. Write x = x + … and return the new value."
            )
        self._layout, self._dtype, self._data = other._layout, other._dtype, other._data
        if other._data is None:
            self._later = other._later

    def give_away(self, what: str) -> None:
        """Let the data go; who reads it afterwards is told that it was donated."""
        summary = self.summary()

        def gone() -> Any:
            raise ArrayError(
                f"{summary} was donated as {what}: its memory is no longer its own. Use the result instead."
            )

        self._data, self._later = None, Deferred(None, gone, 0)

    @property
    def data(self) -> Any:
        """The shards, as the engine holds them."""
        data = self._data
        if data is None:
            data = self._data = self._later.data()
        return data

    def _reduced(self) -> tuple[Any, Layout]:
        """The shards with a deferred reduction done, and their layout."""
        layout = self._layout
        total = self._later.total if self._data is None and layout.partial_lanes else None
        if total is None:
            return self.data, layout
        return total, layout.settled

    def reduced(self) -> Self:
        """The same tensor with its reduction done."""
        if not self._layout.partial_lanes:
            return self
        return self._same(self.of(self._layout.settled, self.placed(self._layout.settled)))

    def again(self) -> Self:
        """A new array sharing this data; assigning to one leaves the other unchanged."""
        result = object.__new__(type(self))
        result._layout, result._dtype, result._data = self._layout, self._dtype, self._data
        if self._data is None:
            result._later = self._later
        return self._same(result)

    def copied(self) -> Self:
        """The same tensor in memory of its own."""
        return self._same(self.of(self._layout, self._engine.copy(self.data)))

    def host(self) -> NDArray[Any]:
        """The whole tensor on the host, reduced; may share memory with the shards."""
        Held.reads += 1
        self.looked_at()
        data, layout = self._reduced()
        return self._engine.whole(data, layout)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._engine.processes > 1:
            raise ArrayError(
                f"{self.summary()} is spread over processes, and each has only its own shard: it can't be pickled. "
                f"Use np.asarray(x), on all ranks together."
            )
        self.looked_at()
        return _rebuilt, (type(self), self.sharding, self.shape, self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of its elements."""
        return self._dtype

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
        return self.size * self._dtype.itemsize

    @property
    def sharding(self) -> Sharding:
        """Which device holds which part."""
        return self._layout.sharding

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold it."""
        return self._layout.mesh

    @property
    def layout(self) -> Layout:
        """Its sharding applied to its shape."""
        return self._layout

    @property
    def lanes(self) -> Lanes:
        """Its shards as a tensor per device."""
        self.looked_at()
        return self._engine.lanes(self.data, self._layout)

    def _same(self, result: Self) -> Self:
        """An array with this one's value, laid out in its own way: so a program that is being traced knows it."""
        trace = tracer.get()
        if trace is not None:
            trace.moved(self, result)
        return result

    def looked_at(self) -> None:
        """A program that is being traced depends on the elements of this array."""
        trace = tracer.get()
        if trace is not None:
            trace.read(self)

    @property
    def version(self) -> Any:
        """An object that is another one after the variable has changed."""
        return self._later if self._data is None else self._data

    @property
    def _engine(self) -> Engine:
        return engine_of(self._layout.mesh)

    def placed(self, target: Layout, last: bool = False) -> Any:
        """The shards as another layout has them. If this is the `last` use of the array, its memory is the engine's."""
        source = self._layout
        if source is target:
            return self.data
        if last and source.partial_lanes and self._data is not None:
            return self._engine.move(self._handed_over(), source, target)
        if source.partial_lanes and self._data is None and not target.partial_lanes:
            return self._engine.move(*self._reduced(), target)
        return self._engine.move(self.data, source, target)

    def _handed_over(self) -> Any:
        """The shards, which this array holds no longer."""
        data, self._data, self._later = self._data, None, Deferred(None, _gone, 0)
        return data

    def summary(self) -> str:
        """Its type and mesh, for errors and pictures."""
        return f"{describe(self._layout.sharding, self.shape, self.dtype)} on {self.mesh}"


def _rebuilt(cls: type[Held], sharding: Sharding, shape: tuple[int, ...], data: Any) -> Held:
    return cls.of(layout_of(sharding, shape), data)
