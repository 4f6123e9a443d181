"""`Compiled`: code as one `jax.jit(shard_map(…))` over the mesh's devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardwright.engines.jax.checks import Check
from shardwright.engines.jax.devices import devices_of, jax_mesh
from shardwright.engines.jax.forms import Form, form_of, reformed, rows_of
from shardwright.engines.jax.inside import Inside
from shardwright.engines.jax.space import Weak
from shardwright.engines.jax.traced import traced
from shardwright.errors import MeshError
from shardwright.mesh import Mesh
from shardwright.plan import (
    Choice,
    Code,
    FromLocal,
    Fused,
    Local,
    LocalStep,
    Scan,
    Slot,
    Step,
    ToLocal,
    While,
    local_shapes,
    parts_of,
)
from shardwright.sharding import Layout

Kind = Any  # of a value: a Layout, the LocalShapes of a tensor per device, or the type of a Python scalar


class Compiled:
    """Code, compiled when it first runs: a function from the inputs' arrays to the outputs'."""

    def __init__(self, code: Code, by_rounds: bool = False) -> None:
        self.results = [kinds_of(code)[slot] for slot in code.outputs]
        known = (kind for kind in (*code.kinds, *self.results) if not isinstance(kind, type))
        self.mesh: Mesh = next(known).mesh
        self._code, self._by_rounds = code, by_rounds
        self._lanes = self.mesh.axis_names if by_rounds else lanes_of(code, self.mesh)
        self._checks: list[Check] = []
        self.jitted = self._jitted()
        self._waits = devices_of(self.mesh)[0].platform == "cpu"

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        with jax.enable_x64(True):
            made, found = self.jitted(*data)
        if self._waits:
            settled((made, found))
        for check, x in zip(self._checks, found, strict=True):
            check.fail(np.concatenate([np.asarray(shard.data) for shard in x.addressable_shards]))
        return tuple(made)

    def lower(self, *data: Any) -> Any:
        """JAX's lowering for arrays, or their shapes."""
        with jax.enable_x64(True):
            return self.jitted.lower(*data)

    def _form(self, kind: Kind) -> Form:
        return rows_of(form_of(kind)) if self._by_rounds else form_of(kind)

    def _jitted(self) -> Any:
        code, lanes = self._code, self._lanes
        given = [None if isinstance(kind, type) else self._form(kind) for kind in code.kinds]
        made = [self._form(kind) for kind in self.results]

        def body(*data: Any) -> Any:
            inside = Inside(self.mesh, lanes, self._by_rounds)
            shards = [_shard(x, form, kind) for x, form, kind in zip(data, given, code.kinds, strict=True)]
            outputs = traced(inside, code, shards)
            self._checks = inside.checks
            results = tuple(x[None] if form.front else x for x, form in zip(outputs, made, strict=True))
            return results, tuple(check.found[None] for check in inside.checks)

        mapped = jax.shard_map(
            body,
            mesh=jax_mesh(self.mesh, lanes),
            in_specs=tuple(PartitionSpec() if form is None else form.spec(lanes) for form in given),
            out_specs=(tuple(form.spec(lanes) for form in made), PartitionSpec(lanes)),
            check_vma=False,  # what devices hold alike is known from the plan
        )
        return jax.jit(
            mapped,
            in_shardings=tuple(None if form is None else form.sharding for form in given),
            out_shardings=(tuple(form.sharding for form in made), None),
        )


def moved_by_rounds(code: Code) -> Callable[..., tuple[Any, ...]]:
    """Code that is one move between shardings that cut an axis in ways that have no common cut."""
    compiled = Compiled(code, by_rounds=True)
    source, target = (form_of(kind) for kind in (code.kinds[0], compiled.results[0]))

    def run(data: Any) -> tuple[Any, ...]:
        (made,) = compiled(reformed(data, source, rows_of(source)))
        return (reformed(made, rows_of(target), target),)

    return run


def has_common_cut(code: Code) -> bool:
    """Whether the axes of a mesh can be cut as fine as all values and steps of code need."""
    try:
        lanes_of(code, next(kind for kind in kinds_of(code).values() if not isinstance(kind, type)).mesh)
    except MeshError:
        return False
    return True


def _shard(x: Any, form: Form | None, kind: Kind) -> Any:
    if form is None:
        return Weak(x, kind)
    return x[0] if form.front else x


def settled(data: Any) -> Any:
    """The data once it is computed.

    XLA's CPU devices share a few threads. Runs that wait for one another in collectives can take all of them, and then stop for
    ever; so on CPUs a run ends before the next one begins.
    """
    return jax.block_until_ready(data)


def kinds_of(code: Code) -> dict[Slot, Kind]:
    """What every value of code is."""
    kinds: dict[Slot, Kind] = dict(zip(code.inputs, code.kinds, strict=True))
    for line in code.instructions:
        kinds.update(zip(line.outputs, _results(line.what), strict=True))
    return kinds


def _results(what: Any) -> list[Kind]:
    if isinstance(what, Local):
        return list(what.results)
    if isinstance(what, Fused):
        return [step.there for step in what.steps]
    if isinstance(what, Step):
        return [what.there]
    if isinstance(what, ToLocal):
        return [local_shapes(what.layout)]
    if isinstance(what, FromLocal):
        return [what.layout]
    if isinstance(what, LocalStep):
        return [what.results]
    body = what.true if isinstance(what, Choice) else what.body
    inner = kinds_of(body)
    made = [inner[slot] for slot in body.outputs]
    if isinstance(what, Scan):
        return [*made[: what.carried], *(layout for layout, _ in what.stacked)]
    assert isinstance(what, Choice | While), what
    return made


def lanes_of(code: Code, mesh: Mesh) -> tuple[str, ...]:
    """The mesh's axes, cut as fine as any value or step of code needs."""
    return mesh.lanes(tuple(dict.fromkeys(_axes(code))))


def _axes(code: Code) -> list[str]:
    axes: list[str] = []
    for kind in kinds_of(code).values():
        if isinstance(kind, Layout):
            axes += kind.sharding.axes
    for line in code.instructions:
        what = line.what
        if isinstance(what, Local):
            axes += [axis for layout in what.operands for axis in layout.sharding.axes]
        elif isinstance(what, Fused):
            axes += [piece for step in what.steps for piece in step.pieces]
        elif isinstance(what, Step):
            axes += what.pieces
        elif isinstance(what, LocalStep):
            axes += what.axes
        for _, part in parts_of(what):
            axes += _axes(part)
    return axes
