"""Functions of a file as callables: each is traced when it is first called, and runs as a program on the mesh's engine."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.ir import Operation

from shardwright.arrays import Array, PerDevice, shard
from shardwright.engines import engine_of
from shardwright.errors import MLIRError, ShardwrightError
from shardwright.mesh import Mesh
from shardwright.mlir.communication import LOCAL
from shardwright.mlir.dialects import DYNAMIC
from shardwright.mlir.fields import field, integers, mesh_name, short_name
from shardwright.mlir.parsing import Source
from shardwright.mlir.reading import Reader
from shardwright.mlir.text import with_default_offsets
from shardwright.mlir.types import (
    dtype_of,
    element_of,
    encoding_of,
    is_sharding,
    sizes_of,
    tensor_name,
    unread_encoding,
)
from shardwright.plan import LocalShapes
from shardwright.program import Explanation, Program, Type, code_of, current_trace, explained, layout, lower, trace
from shardwright.sharding import Layout, Sharding

Shapes = tuple[tuple[int, ...], ...]


class Module:
    """A verified file: its functions and its meshes."""

    def __init__(
        self,
        source: Source,
        parsed: b.ModuleOp,
        engine: str,
        device: str | None,
        mesh_shapes: Mapping[str, Any],
        view: str | None,
    ) -> None:
        self.source, self.parsed, self.engine, self.device, self.view = source, parsed, engine, device, view
        self._shapes = dict(mesh_shapes)
        self.meshes: dict[str, Operation] = {}
        self.functions: dict[str, Any] = {}
        for op in parsed.walk():
            if short_name(op) == "mesh":
                self.meshes[op.properties["sym_name"].data] = op  # type: ignore[attr-defined]
            elif op.name == "func.func":
                self.functions[op.properties["sym_name"].data] = op  # type: ignore[attr-defined]
        for name in set(self._shapes) - set(self.meshes):
            raise MLIRError(
                f"mesh_shapes names @{name}; the file has {', '.join(map('@{}'.format, self.meshes)) or 'none'}."
            )

    def operations(self, function: Operation, seen: tuple[str, ...] = ()) -> list[Operation]:
        """The operations of a function and of those it calls."""
        found = []
        for op in function.walk():
            found.append(op)
            if op.name == "func.call":
                callee = op.properties["callee"].root_reference.data  # type: ignore[attr-defined]
                if callee in self.functions and callee not in seen:
                    found += self.operations(self.functions[callee], (*seen, callee))
        return found

    def mesh_of(self, function: Operation) -> Mesh:
        """The mesh that a function runs on."""
        used: dict[str, Operation] = {}
        for op in self.operations(function):
            attribute = op.properties.get("shard") if short_name(op) == "shard" else None
            if attribute is not None:
                used.setdefault(attribute.mesh.root_reference.data, op)  # type: ignore[attr-defined]
            elif short_name(op) and field(op, "mesh") is not None:
                used.setdefault(mesh_name(op), op)
        if len(used) > 1:
            raise self.source.error(
                f"The function uses several meshes, {', '.join(f'@{name}' for name in used)}. A function runs on one.",
                list(used.values())[1],
            )
        name = next(iter(used), None) or (next(iter(self.meshes)) if len(self.meshes) == 1 else None)
        if name is None:
            return Mesh(a0=1, engine=self.engine, device=self.device)
        return self._mesh(name)

    def _mesh(self, name: str) -> Mesh:
        op = self.meshes[name]
        shape, given = integers(op.properties["shape"]), self._shapes.get(name)
        if given is not None:
            if len(given) != len(shape) or any(n not in (DYNAMIC, m) for n, m in zip(shape, given, strict=True)):
                shown = "x".join("?" if n == DYNAMIC else str(n) for n in shape)
                raise self.source.error(f"mesh_shapes gives {tuple(given)} for @{name}, whose shape is {shown}.", op)
            shape = tuple(given)
        if DYNAMIC in shape:
            raise self.source.error(
                f"The shape of @{name} has `?`. Give its sizes: loads(text, mesh_shapes={{{name!r}: (…)}}).", op
            )
        try:
            return Mesh(shape, [f"a{axis}" for axis in range(len(shape))], engine=self.engine, device=self.device)
        except ShardwrightError as error:
            raise self.source.error(str(error), op) from error


class Function:
    """A function of a file. In the local view it takes and gives a `PerDevice` for every tensor, in the global view arrays.

    A result that is a sharding is a `Sharding`. `program` and `explain()` need static shapes; with `?` in a type use
    `specialised`, or call it with arrays.
    """

    def __init__(self, module: Module, op: Any) -> None:
        self._module, self._op = module, op
        self.__name__ = op.properties["sym_name"].data
        self._ready: dict[Shapes, _Ready] = {}

    def __repr__(self) -> str:
        return f"<mlir function @{self.__name__}{self._op.properties['function_type']}>"

    @cached_property
    def is_local(self) -> bool:
        """Whether the function is in the local view: it has collectives, asks for the coordinates of its device, or has no
        annotations and `loads` was told so."""
        found = self._module.operations(self._op)
        local = next((op for op in found if short_name(op) in LOCAL), None)
        shards = next((op for op in found if short_name(op) == "shard"), None)
        if local is not None and shards is not None:
            raise self._module.source.error(
                f"The function has annotations of the global view beside '{local.name}' of the local view. Use one view in a "
                f"function.",
                shards,
            )
        view = self._module.view
        if (view == "global" and local is not None) or (view == "local" and shards is not None):
            raise self._module.source.error(
                f"The function is meant to be in the {view} view, but this is an operation of the other. Leave view out.",
                local or shards,  # type: ignore[arg-type]
            )
        return local is not None or view == "local"

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh that it runs on; its axes are named a0, a1, …"""
        return self._module.mesh_of(self._op)

    @property
    def program(self) -> Program:
        """The program that it runs as."""
        return self._for(self._declared()).program

    def explain(self) -> Explanation:
        """What it does and costs, step by step."""
        return explained(self.program)

    def specialised(self, *shapes: Sequence[int]) -> "Function":
        """The same function for arguments of these shapes, where types have `?`."""
        made = Function(self._module, self._op)
        fixed = tuple(tuple(shape) for shape in shapes)
        self._check_shapes(fixed)
        made._declared = lambda: fixed  # type: ignore[method-assign]
        return made

    @cached_property
    def argument_types(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of every argument; DYNAMIC where a size is `?`."""
        result = []
        for kind in self._op.properties["function_type"].inputs:
            dtype = dtype_of(element_of(kind))
            if encoding_of(kind) is not None:
                raise self._module.source.error(unread_encoding(kind), self._op)
            if dtype is None:
                raise self._module.source.error(
                    f"Arguments of type {kind} are not supported. Use tensors and numbers.", self._op
                )
            result.append((sizes_of(kind), dtype))
        return result

    @cached_property
    def sharding_results(self) -> tuple[int, ...]:
        """Which results are shardings: a call returns them as `Sharding`; a program, and so its text, has none."""
        kinds = self._op.properties["function_type"].outputs
        return tuple(at for at, kind in enumerate(kinds) if is_sharding(kind))

    def _declared(self) -> Shapes:
        shapes = tuple(shape for shape, _ in self.argument_types)
        if any(DYNAMIC in shape for shape in shapes):
            raise self._module.source.error(
                f"@{self.__name__} has sizes that are `?`, so there is no program yet. Call it with arrays, or give shapes: "
                f"fn.specialised((4, 6), …).program.",
                self._op,
            )
        return shapes

    def _check_shapes(self, shapes: Shapes) -> None:
        kinds = self.argument_types
        if len(shapes) != len(kinds):
            raise MLIRError(f"@{self.__name__} takes {len(kinds)} arguments; got {len(shapes)}.")
        for at, ((declared, dtype), shape) in enumerate(zip(kinds, shapes, strict=True)):
            if len(declared) != len(shape) or any(n not in (DYNAMIC, m) for n, m in zip(declared, shape, strict=True)):
                shown = tensor_name(declared, dtype).replace(str(DYNAMIC), "?")
                raise MLIRError(
                    f"@{self.__name__}: argument {at} is {shown}{' per device' if self.is_local else ''}; got shape {shape}."
                )

    def _for(self, shapes: Shapes) -> "_Ready":
        if shapes not in self._ready:
            self._ready[shapes] = _Ready(self, self._module, self._op, shapes)
        return self._ready[shapes]

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) != len(self.argument_types):
            raise MLIRError(f"@{self.__name__} takes {len(self.argument_types)} arguments; got {len(arguments)}.")
        kinds = self.argument_types
        values = [self._argument(at, x, dtype) for at, (x, (_, dtype)) in enumerate(zip(arguments, kinds, strict=True))]
        shapes = tuple(tuple(x.shape) for x in values)
        self._check_shapes(shapes)
        if current_trace() is not None and any(getattr(x, "traces", False) for x in values):
            reader = Reader(self._module.source, self._module.parsed, self.mesh, self.is_local)
            made = reader.call(self._op, values)
            return _bare([x if isinstance(x, Sharding) else reader.view.lifted(x) for x in made])
        return self._for(shapes)(values)

    def _argument(self, at: int, x: Any, dtype: Any) -> Any:
        """An argument as the view takes it."""
        if not isinstance(x, Array | PerDevice):
            host = np.asarray(x)
            if (
                host.ndim == 0
                and host.dtype.kind in "biuf"
                and dtype.kind in "biuf"
                and not isinstance(x, np.ndarray | np.generic)
            ):
                host = host.astype(dtype)  # a Python number
            x = PerDevice.of(engine_of(self.mesh).everywhere(self.mesh, host)) if self.is_local else host
        elif x.mesh != self.mesh:
            raise MLIRError(
                f"@{self.__name__}: argument {at} is on {x.mesh}, but the function runs on {self.mesh}. Use fn.mesh."
            )
        elif self.is_local and isinstance(x, Array):
            x = x.to_local(x.sharding) if x.traces else PerDevice.of(x.lanes)  # type: ignore[attr-defined]
        elif not self.is_local and isinstance(x, PerDevice):
            raise MLIRError(
                f"@{self.__name__} is in the global view: argument {at} is an array, not a PerDevice. If its types are "
                f"those of one device's tensors, read it by loads(text, view='local')."
            )
        if x.dtype != dtype:
            raise MLIRError(
                f"@{self.__name__}: argument {at} has dtype {x.dtype}, but the text declares {dtype}. Convert it first."
            )
        return x


class _Ready:
    """A function for arguments of known shapes: its program, and how it runs."""

    def __init__(self, function: Function, module: Module, op: Operation, shapes: Shapes) -> None:
        mesh, local = function.mesh, function.is_local
        reader = Reader(module.source, module.parsed, mesh, local)

        def flat(*values: Any) -> list[Any]:
            made = reader.call(op, values)
            self._shardings = {at: x for at, x in enumerate(made) if isinstance(x, Sharding)}
            if local:
                reader.view.trace.mailbox.check(mesh, "by the end of the function")
            return [reader.view.lifted(x) for at, x in enumerate(made) if at not in self._shardings]

        types = [
            Type(shape, dtype, None, LocalShapes(mesh, (shape,)) if local else None)
            for shape, (_, dtype) in zip(shapes, function.argument_types, strict=True)
        ]
        names = (
            [arg.name_hint or f"arg{at}" for at, arg in enumerate(op.regions[0].blocks[0].args)]
            if op.regions[0].blocks
            else []
        )
        try:
            traced, _ = trace(flat, types, mesh, names)
            self.program = lower(traced, [None] * len(types) if local else self._annotated(op, shapes, reader))
        except MLIRError:
            raise
        except ShardwrightError as error:
            raise module.source.error(str(error), op) from error
        self.mesh = mesh
        constants = list(self.program.constants)
        self._constants = [self.program.constants[node] for node in constants]
        code, _ = code_of(self.program, constants)
        self._kinds = code.kinds
        engine = engine_of(mesh)
        engine.check(mesh)
        self._run = engine.compile(code, mesh, "\n".join((function.__name__, *self.program.fingerprint)))
        self._results = [None if node.type.local else layout(node) for node in self.program.outputs]

    def _annotated(self, op: Operation, shapes: Shapes, reader: Reader) -> list[Sharding | None]:
        """Where arguments come in: as an annotation that is not for users says."""
        placed: list[Sharding | None] = []
        for argument, shape in zip(op.regions[0].block.args, shapes, strict=True):
            found: Sharding | None = None
            for use in argument.uses:
                if short_name(use.operation) == "shard" and use.index == 0 and found is None:
                    if use.operation.properties.get("annotate_for_users") is not None:
                        continue
                    found = with_default_offsets(reader.sharding_in(use.operation), shape)
            placed.append(found)
        return placed

    def __call__(self, values: Sequence[Any]) -> Any:
        """Run on arguments of the kinds that this was made for."""
        made = self._run(*map(_placed, [*values, *self._constants], self._kinds))
        results: list[Any] = [
            PerDevice.of(d) if out is None else Array.of(out, d) for out, d in zip(self._results, made, strict=True)
        ]
        for at, sharding in self._shardings.items():
            results.insert(at, sharding)
        return _bare(results)


def _placed(x: Any, wanted: Layout | LocalShapes) -> Any:
    """The data of an argument, where the program wants it."""
    if isinstance(wanted, LocalShapes):
        return x.lanes
    return x.placed(wanted) if isinstance(x, Array) else shard(x, wanted.sharding).data


def _bare(results: list[Any]) -> Any:
    """One result bare, several as a tuple."""
    return results[0] if len(results) == 1 else tuple(results)
