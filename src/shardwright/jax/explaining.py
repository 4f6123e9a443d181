"""`explain` for JAX: the collectives that XLA compiled a function to, as the table that `sw.explain` gives."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh as JaxMesh

from shardwright.errors import MeshError, ProgramError
from shardwright.jax.devices import Devices, abstract, devices_of
from shardwright.jax.findings import Finding, find
from shardwright.jax.hlo import Module, parse
from shardwright.jax.walking import Walk
from shardwright.mesh import Mesh
from shardwright.program import Explanation, machine_of


@dataclass(frozen=True)
class Memory:
    """Bytes that one device holds for a compiled function, as XLA's memory analysis says."""

    arguments: int
    outputs: int
    temporaries: int
    aliased: int  # of the outputs: in the memory of donated arguments
    reported_peak: int | None  # what the backend calls its peak; that of CPUs leaves temporaries out

    @property
    def peak(self) -> int:
        """Bytes that are allocated while the function runs, or the reported peak if that is more."""
        allocated = self.arguments + self.outputs + self.temporaries - self.aliased
        return max(allocated, self.reported_peak or 0)

    def __str__(self) -> str:
        shared = f" ({self.aliased:,} B of them in donated arguments)" if self.aliased else ""
        return (
            f"memory of a device: arguments {self.arguments:,} B, outputs {self.outputs:,} B{shared}, "
            f"temporaries {self.temporaries:,} B, peak {self.peak:,} B"
        )


@dataclass(frozen=True)
class JaxExplanation(Explanation):
    """The collectives of a function that XLA compiled, what memory it needs, and where a plan of ours would move less."""

    memory: Memory | None = None
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return self.full()  # collectives are few, and their name stacks would be cut


def explain(fn: Any, *args: Any, mesh: Mesh | JaxMesh | None = None, **kwargs: Any) -> JaxExplanation:
    """What the devices send one another in a jitted function, read from what XLA compiles it to.

    >>> import jax
    >>> print(explain(jax.jit(lambda x: x + 1), jax.ShapeDtypeStruct((8,), "float32")).notes[0])
    compiled for one device: nothing is sent

    `fn` is `jax.jit(f)` or anything with `lower`. Arguments are arrays, or shapes and dtypes with shardings
    (`jax.ShapeDtypeStruct`, `sw.ShapeDtype`): nothing runs and nothing is allocated. `mesh` names the axes and has the links
    that times come from; by default it is that of the arguments' shardings, or of the compiled function's, with default links.
    Without any, groups are shown by their sizes. What a custom call sends by itself is not in the text, so not in the table.
    """
    if not hasattr(fn, "lower"):
        raise ProgramError(
            f"explain takes a jitted function, which has .lower; got {fn!r}. Write explain(jax.jit(f), …)."
        )
    if mesh is not None and not isinstance(mesh, Mesh | JaxMesh):
        raise MeshError(f"mesh= takes a shardwright Mesh or a jax.sharding.Mesh; got {type(mesh).__name__}.")
    given = jax.tree.map(abstract, (args, kwargs))
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(given)]
    return explain_lowered(fn.lower(*given[0], **given[1]), mesh=mesh, shardings=shardings)


def explain_lowered(lowered: Any, mesh: Mesh | JaxMesh | None = None, shardings: Sequence[Any] = ()) -> JaxExplanation:
    """The explanation of what `jax.jit(f).lower(…)` gave; `shardings` are those of the arguments."""
    compiled, before, missing = _compiled(lowered)
    module = parse(compiled.as_text())
    devices = devices_of(module, compiled, mesh, shardings)
    part = Walk(module, devices).whole()
    findings = find(before, part.rows, devices) if before is not None and part.rows else ()
    memory = _memory(compiled.memory_analysis())
    notes = [*_headline(devices, bool(part.rows)), *part.notes, *map(str, findings)]
    notes += [missing] if missing and part.rows else []
    notes += [str(memory)] if memory is not None else ["memory: this backend has no memory analysis"]
    peak = memory.peak if memory is not None else 0
    time = part.time if devices.mesh is not None else None
    machine = None if devices.mesh is None else machine_of(devices.mesh)
    return JaxExplanation(
        part.rows, peak, part.bytes, time, tuple(notes), memory=memory, findings=findings, machine=machine
    )


def _headline(devices: Devices, sends: bool) -> Iterator[str]:
    if devices.count == 1:
        yield "compiled for one device: nothing is sent"
    elif not sends:
        yield f"compiled for {devices.count} devices, without collectives: nothing is sent"
    elif devices.mesh is None:
        yield (
            f"the mesh of the {devices.count} devices is unknown: groups are shown by their sizes; "
            f"pass mesh= to see axes and times"
        )


def _compiled(lowered: Any) -> tuple[Any, Module | None, str]:
    """The compiled function, its module from before XLA's partitioner, and why that is missing if it is.

    XLA writes that module only to a file.
    """
    why = "reshards are not compared with plans: "
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled = lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd-partitioning"})
        except jax.errors.JaxRuntimeError as error:
            return lowered.compile(), None, f"{why}the backend says {str(error).splitlines()[0]}"
        files = sorted(Path(folder).glob("*before_spmd-partitioning*.txt"))
        if not files:
            return (
                compiled,
                None,
                (
                    f"{why}XLA gave no module from before its partitioner. If JAX's compilation cache answered, start with "
                    f"jax.config.update('jax_enable_compilation_cache', False)."
                ),
            )
        try:
            return compiled, parse(files[-1].read_text()), ""
        except ProgramError as error:
            return compiled, None, f"{why}{error}"


def _memory(stats: Any) -> Memory | None:
    if stats is None:
        return None
    arguments, outputs, temporaries, aliased = (
        int(getattr(stats, f"{name}_size_in_bytes")) for name in ("argument", "output", "temp", "alias")
    )
    return Memory(arguments, outputs, temporaries, aliased, getattr(stats, "peak_memory_in_bytes", None))
