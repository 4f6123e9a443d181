"""Functions of StableHLO text as functions on sharded arrays: walked once, while traced, by the table of operations."""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardwright import xla
from shardwright.arrays import Array, ShapeDtype
from shardwright.errors import MLIRError, ShardwrightError
from shardwright.lines import located
from shardwright.mesh import Mesh
from shardwright.mlir.stablehlo_operations import OPERATIONS
from shardwright.mlir.stablehlo_shardings import hlo_mesh, hlo_spec, shardy_mesh, shardy_spec
from shardwright.mlir.stablehlo_text import Text, kind_of
from shardwright.program import (
    SJIT,
    Explanation,
    Program,
    cond,
    current_trace,
    explain,
    scan,
    while_loop,
    with_sharding_constraint,
)
from shardwright.sharding import P
from shardwright.xla import Value

RETURNS = ("func.return", "stablehlo.return", "sdy.return")


class StableModule:
    """A parsed module: its functions, its mesh."""

    def __init__(self, text: str, file: str, engine: str, device: str | None) -> None:
        self.text, self.engine, self.device = Text(text, file), engine, device
        top = [op.operation for op in self.text.module.body.operations]
        self.functions = {_symbol(op): op for op in top if op.name == "func.func"}
        self._meshes = {_symbol(op): op for op in top if op.name == "sdy.mesh"}
        self._check(top)

    def _check(self, top: Sequence[Any]) -> None:
        """Raises one error at the first operation that is not supported; its text names all of them."""
        unknown: dict[str, Any] = {}
        pending = list(top)
        while pending:
            op = pending.pop(0)
            if op.name not in OPERATIONS and op.name not in _STRUCTURE and op.name not in ("func.func", "sdy.mesh"):
                unknown.setdefault(op.name, op)
            pending += [each.operation for region in op.regions for block in region.blocks for each in block.operations]
        for op in unknown.values():
            names = ", ".join(f"'{name}'" for name in unknown)
            raise self.text.error(f"{names} {'are' if len(unknown) > 1 else 'is'} not supported.", op)

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the text: Shardy's, or one that the tiles of mhlo.sharding are along, or one device."""
        found = {}
        for op in self._meshes.values():
            axes = shardy_mesh(op.attributes["mesh"])
            if axes:
                found[tuple(axes.items())] = op
        if len(found) > 1:
            raise self.text.error("The text has several meshes. A module runs on one.", list(found.values())[1])
        if found:
            return self._mesh(dict(next(iter(found))))
        attributes: Any = self.text.module.operation.attributes
        count = int(attributes["mhlo.num_partitions"].value) if "mhlo.num_partitions" in attributes else 1
        texts = [str(entry) for op in self.functions.values() for entry in self._all_shardings(op)]
        return self._mesh(hlo_mesh(texts, count))

    def _mesh(self, axes: dict[str, int]) -> Mesh:
        return Mesh(tuple(axes.values()), tuple(axes), engine=self.engine, device=self.device)

    def _all_shardings(self, function: Any) -> list[Any]:
        entries = [*_entries(function, "arg_attrs"), *_entries(function, "res_attrs")]
        found = [entry["mhlo.sharding"] for entry in entries if "mhlo.sharding" in entry]
        pending = [each.operation for block in function.regions[0].blocks for each in block.operations]
        for op in pending:
            if "mhlo.sharding" in op.attributes:
                found.append(op.attributes["mhlo.sharding"])
            pending += [each.operation for region in op.regions for block in region.blocks for each in block.operations]
        return found

    def spec_in(self, attributes: Any, rank: int, mesh: Mesh) -> P | None:
        """The spec that an argument, a result or an operation is annotated with; None if it is not."""
        if "sdy.sharding" in attributes:
            return shardy_spec(attributes["sdy.sharding"])
        if "mhlo.sharding" in attributes:
            return hlo_spec(str(attributes["mhlo.sharding"]).strip('"'), rank, mesh)
        return None


def _symbol(op: Any) -> str:
    return str(op.attributes["sym_name"].value)


def _entries(function: Any, name: str) -> list[Any]:
    return list(function.attributes[name]) if name in function.attributes else []


class StableFunction:
    """A function of StableHLO text. Called with arrays it runs as a program on the mesh of the text.

    `sjit(mesh, rules)` gives it on another mesh, where rules on the names of its arguments (arg0, …) place them.
    """

    def __init__(self, module: StableModule, op: Any) -> None:
        self._module, self._op = module, op
        self.__name__ = _symbol(op)
        self.arguments = {
            f"arg{at}": ShapeDtype(*kind_of(module.text, argument, op))
            for at, argument in enumerate(op.regions[0].blocks[0].arguments)
        }
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in self.arguments])

    def __repr__(self) -> str:
        return f"<stablehlo function @{self.__name__}{self._op.attributes['function_type']}>"

    @property
    def mesh(self) -> Mesh:
        """The mesh of the text."""
        return self._module.mesh

    @property
    def program(self) -> Program:
        """The program that it runs as on the mesh of the text."""
        return self._program.lower(*self.arguments.values()).program

    @cached_property
    def _program(self) -> SJIT:
        return self.sjit()

    def explain(self, mesh: Mesh | None = None, rules: Any = None) -> Explanation:
        """What it does and costs, step by step; on the mesh of the text, or on another one with rules."""
        return explain(self.sjit(mesh, rules), *self.arguments.values())

    def sjit(self, mesh: Mesh | None = None, rules: Any = None, **options: Any) -> SJIT:
        """The function as one program; without a mesh on that of the text, its arguments placed as the text says."""
        on = self.mesh if mesh is None else mesh
        placed = self._annotated("arg_attrs", on) if mesh is None and rules is None else rules
        results = self._annotated("res_attrs", on) if mesh is None else []

        def run(*values: Any) -> Any:
            made = self._walked(on, values)
            for at, spec in enumerate(results):
                made[at] = made[at] if spec is None else with_sharding_constraint(made[at], spec)
            return made[0] if len(made) == 1 else tuple(made)

        run.__name__, run.__signature__ = self.__name__, self.__signature__  # type: ignore[attr-defined]
        return xla.silent(run, mesh=on, in_shardings=placed, **options)

    bind = sjit

    def _annotated(self, name: str, mesh: Mesh) -> tuple[P | None, ...]:
        kinds = self._op.attributes["function_type"].value
        types = kinds.inputs if name == "arg_attrs" else kinds.results
        entries = _entries(self._op, name) or [{}] * len(types)
        with self._module.text.blamed(self._op):
            return tuple(
                self._module.spec_in(entry, len(kind.shape), mesh) for entry, kind in zip(entries, types, strict=True)
            )

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) != len(self.arguments):
            raise MLIRError(f"@{self.__name__} takes {len(self.arguments)} arguments; got {len(arguments)}.")
        values = [
            x if isinstance(x, Array) else np.asarray(x, None if isinstance(x, np.ndarray | np.generic) else kind.dtype)
            for x, kind in zip(arguments, self.arguments.values(), strict=True)
        ]
        for at, (x, kind) in enumerate(zip(values, self.arguments.values(), strict=True)):
            if tuple(x.shape) != kind.shape or x.dtype != kind.dtype:
                raise MLIRError(
                    f"@{self.__name__}: argument {at} is {kind.dtype} of shape {kind.shape} in the text; got {x.dtype} of "
                    f"shape {tuple(x.shape)}."
                )
        if current_trace() is not None and any(getattr(x, "traces", False) for x in values):
            made = self._walked(next(x.mesh for x in values if isinstance(x, Array)), values)
            return made[0] if len(made) == 1 else tuple(made)
        return self._program(*values)

    def _walked(self, mesh: Mesh, values: Sequence[Any]) -> list[Any]:
        known = [x if isinstance(x, Array) else np.asarray(x) for x in values]
        with mesh, xla.shared_constants():
            return [xla.lifted(x) for x in Walk(self._module, mesh).function(self._op, known)]


class Walk:
    """Runs the operations of functions on values."""

    def __init__(self, module: StableModule, mesh: Mesh) -> None:
        self.module, self.text, self.mesh = module, module.text, mesh
        self.values: dict[Any, Value] = {}

    def function(self, op: Any, arguments: Sequence[Value]) -> list[Value]:
        """The results of a function."""
        return self.block(op.regions[0].blocks[0], arguments)

    def block(self, block: Any, arguments: Sequence[Value]) -> list[Value]:
        """What a block returns."""
        self.values.update(zip(block.arguments, arguments, strict=True))
        for each in block.operations:
            op = each.operation
            operands = [self.values[x] for x in op.operands]
            if op.name in RETURNS:
                return operands
            with located(self.text.line_of(op)), self.text.blamed(op):
                made = self._operation(op, operands)
                results = list(made) if isinstance(made, list | tuple) else [made]
                for result, value in zip(op.results, results, strict=True):
                    shape, dtype = kind_of(self.text, result, op)
                    assert tuple(value.shape) == shape, f"gives {tuple(value.shape)} instead of {shape}"
                    self.values[result] = self._annotated(op, xla.convert(value, dtype))
        return []

    def _annotated(self, op: Any, value: Value) -> Value:
        """A value where an annotation on its operation says it lies."""
        if op.name != "stablehlo.custom_call" or "mhlo.sharding" not in op.attributes:
            return value
        spec = self.module.spec_in(op.attributes, value.ndim, self.mesh)
        return value if spec is None else with_sharding_constraint(xla.lifted(value), spec)

    def _operation(self, op: Any, operands: list[Value]) -> Any:
        if op.name in _STRUCTURE:
            return _STRUCTURE[op.name](self, op, operands)
        function = OPERATIONS[op.name]
        if len(op.regions):
            return function(op, *operands, regions=[self._region(region) for region in op.regions])
        return function(op, *operands)

    def _region(self, region: Any) -> Callable[..., list[Value]]:
        return lambda *values: self.block(region.blocks[0], values)

    # -- structure --------------------------------------------------------------------------------------------------------

    def _call(self, op: Any, operands: list[Value]) -> list[Value]:
        return self.function(self.module.functions[str(op.attributes["callee"].value)], operands)

    def _constrained(self, op: Any, operands: list[Value]) -> Value:
        spec = shardy_spec(op.attributes["sharding"])
        return operands[0] if spec is None else with_sharding_constraint(xla.lifted(operands[0]), spec)

    def _while(self, op: Any, operands: list[Value]) -> list[Value]:
        test, body = (self._region(region) for region in op.regions)
        rounds = self._rounds(op, operands)
        start = tuple(map(xla.lifted, operands))

        def once(state: Any) -> tuple[Array, ...]:
            return tuple(map(xla.lifted, body(*state)))

        if rounds is None:
            return list(while_loop(lambda state: xla.lifted(test(*state)[0]), once, start))
        if not rounds:
            return list(operands)
        made, _ = scan(lambda state, _: (once(state), None), start, length=rounds)
        return list(made)

    def _rounds(self, op: Any, operands: list[Value]) -> int | None:
        """How often a loop runs, if its condition compares a counter that starts at a known number and rises by 1."""
        test, body = (region.blocks[0] for region in op.regions)
        inside = [each.operation for each in test.operations if each.operation.name != "stablehlo.constant"]
        compare = inside[0] if inside else op
        if [each.name for each in inside] != ["stablehlo.compare", "stablehlo.return"] or "LT" not in str(
            compare.attributes["comparison_direction"]
        ):
            return None
        counters = [at for at, argument in enumerate(test.arguments) if argument == compare.operands[0]]
        limit = self._known(compare.operands[1])
        if not counters or limit is None or not xla.is_known(operands[counters[0]]):
            return None
        (at,) = counters
        step = list(body.operations)[-1].operation.operands[at].owner
        added = getattr(step, "operation", step)
        if getattr(added, "name", "") != "stablehlo.add":
            return None
        others = [x for x in added.operands if x != body.arguments[at]]
        if len(others) != 1 or self._known(others[0]) != 1:
            return None
        return max(limit - int(operands[at]), 0)

    def _known(self, value: Any) -> int | None:
        """The integer that a value is, if it is a constant or known already."""
        owner = getattr(value.owner, "operation", value.owner)
        if getattr(owner, "name", "") == "stablehlo.constant":
            found = OPERATIONS["stablehlo.constant"](owner)
        else:
            found = self.values.get(value)
        return int(found) if xla.is_known(found) and found.ndim == 0 else None

    def _case(self, op: Any, operands: list[Value]) -> list[Value]:
        branches = [self._region(region) for region in op.regions]
        if op.name == "stablehlo.if":
            branches.reverse()
        which = xla.convert(operands[0], np.int32)
        if xla.is_known(which):
            number = int(which)
            return branches[number if 0 <= number < len(branches) else -1]()
        return list(self._chosen(which, branches))

    def _chosen(self, number: Value, branches: Sequence[Callable[..., list[Value]]]) -> tuple[Array, ...]:
        """The branch of a number; numbers out of range take the last."""
        if len(branches) == 1:
            return tuple(map(xla.lifted, branches[0]()))
        first = xla.ELEMENTWISE["equal"](number, np.asarray(0, np.int32))
        below = xla.ELEMENTWISE["subtract"](number, np.asarray(1, np.int32))
        made: tuple[Array, ...] = cond(
            first, lambda: tuple(map(xla.lifted, branches[0]())), lambda: self._chosen(below, branches[1:])
        )
        return made


_STRUCTURE: dict[str, Callable[..., Any]] = {
    "func.call": Walk._call,
    "sdy.sharding_constraint": Walk._constrained,
    "stablehlo.while": Walk._while,
    "stablehlo.case": Walk._case,
    "stablehlo.if": Walk._case,
    **dict.fromkeys(RETURNS, Walk._call),
}


def stablehlo_functions(text: str, file: str, engine: str, device: str | None) -> dict[str, StableFunction]:
    """The functions of a text by name."""
    module = StableModule(text, file, engine, device)
    try:
        return {name: StableFunction(module, op) for name, op in module.functions.items()}
    except MLIRError:
        raise
    except ShardwrightError as error:
        raise MLIRError(str(error)) from error
