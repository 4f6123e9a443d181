"""Seconds of a partitioned program, for the check of a certificate: loops and choices are laid out by the library, which is a
fact, and every step of what follows is priced here.

Computations take what the roofline of a chip says: the work of the busiest device, or the bytes that it touches. A loop takes
what its body takes, so often as it runs (once where that depends on data); a choice takes what the dearer side takes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from shardwright.mesh import Mesh
from shardwright.ops import Op
from shardwright.plan import Each, Fused, LocalStep, Step
from shardwright.planner.repriced_steps import seconds_of_fused, seconds_of_local, seconds_of_steps
from shardwright.program.node import Compute, Cond, Node, Program, Rounds, Type, programs_in
from shardwright.sharding import Sharding


def seconds_of_program(program: Program) -> float:
    """Of all steps of a program, one after the other."""
    return sum([_seconds(node, program.mesh) for node in program.nodes])


def _seconds(node: Node, mesh: Mesh) -> float:
    what = node.what
    if isinstance(what, Step):
        return seconds_of_steps([what])
    if isinstance(what, Fused):
        return seconds_of_fused(what.steps)
    if isinstance(what, LocalStep):
        return seconds_of_local(what)
    if isinstance(what, Compute | Each):
        return _computed(node, mesh)
    inside = [seconds_of_program(part) for part in programs_in(what).values()]
    if isinstance(what, Cond):
        return max(inside)
    return sum(inside) * (what.rounds if isinstance(what, Rounds) else 1)


def _computed(node: Node, mesh: Mesh) -> float:
    """A local computation; the one that gives the results of an operation counts with all that the operation holds."""
    plan: Any = node.plan
    if plan is None:
        touched = sum([_bytes(x.type) for x in node.nodes]) + sum([_bytes(kind) for kind in node.types])
        return touched / mesh.hardware.chip.memory_bandwidth
    problem, strategy = plan.problem, plan.strategy
    results = [(problem.rule.out_shape(at), kind.dtype) for at, kind in enumerate(node.types)]
    arrays = [*zip(problem.shapes, problem.dtypes, strict=True), *results]
    held = zip(strategy.operands + strategy.results, arrays, strict=True)
    touched = sum([local_size(there, shape) * dtype.itemsize for there, (shape, dtype) in held])
    return roofline(mesh, plan.op, problem.rule, strategy.placement, touched, problem.work_dtype)


def roofline(mesh: Mesh, op: Op, rule: Any, placement: Any, touched: float, dtype: Any) -> float:
    """Seconds of a local computation: of its work on the busiest device, or of the bytes that it touches."""
    chip, sizes = mesh.hardware.chip, dict(rule.factors)
    for axis, factor in placement.items():
        if factor in sizes:
            sizes[factor] = -(-sizes[factor] // (mesh.sizes.get(axis) or mesh.axis(axis).size))
    return max(op.work(rule, sizes) / chip.flops_of(dtype), touched / chip.memory_bandwidth)


def local_size(sharding: Sharding, shape: Sequence[int], halo: bool = False) -> int:
    """Elements of the largest shard."""
    total, mesh = 1, sharding.mesh
    for dim, n in enumerate(shape):
        cuts = sharding.offsets_of(dim)
        axes = sharding.dims[dim] if dim < len(sharding.dims) else ()
        blocks = math.prod([mesh.sizes.get(axis) or mesh.axis(axis).size for axis in axes])
        most = max(b - a for a, b in pairwise(cuts)) if cuts else -(-n // blocks)
        total *= most + sum(sharding.halo_of(dim)) if halo else most
    return total


def _bytes(kind: Type) -> int:
    """What a device holds of a value at most."""
    elements = math.prod(kind.shape) if kind.sharding is None else local_size(kind.sharding, kind.shape, halo=True)
    return elements * kind.dtype.itemsize
