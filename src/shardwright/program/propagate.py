"""Propagation: shardings flow from where they are known through factor rules, forward and backward, to a fixed point.

Inputs, constants and constraints are closed: they give and never take. All other values are open and take what their
neighbours propose, round by round: in a round every operation looks at the state before it and proposes, per factor,
the longest list of axes that one of its values has there; then each value takes what extends what it has. Conflicts are
settled by cost: axes of larger tensors, which cost more to move, flow to their fixed point first, and within a round the
larger tensor's proposal wins; equal ones are settled by the names of their axes. Integer inputs (token ids, labels,
positions) flow before all others: they are small, but what they say is where the batch is, and 1 MB of ids would lose to
1 GB of an embedding table. So the result does not depend on the order of nodes. What is taken is never given back: the
rounds end. `scattered` goes on from there: sums that devices share are split by their axes, which flow last.
"""

import copy
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from shardwright.mesh import Mesh, overlap
from shardwright.ops import Dims, Rule
from shardwright.plan import dims_of, homes
from shardwright.program.node import Apply, Constant, Constrain, Input, Node, Pick, Program, Settle, short_source
from shardwright.sharding import P, Sharding

Axes = tuple[str, ...]
AxesByDim = tuple[Axes, ...]

FIRST = 1 << 62  # the weight of what flows first: more bytes than any tensor has
LAST = 0  # and last


class Proposal(NamedTuple):
    """That a value split a dim by axes; the order is that of strength."""

    weight: int  # minus the bytes of the tensor that proposes it
    axes: Axes
    dim: int
    origin: str
    sizes: tuple[int, ...]  # of the tensor that each axis comes from


class Conflict(NamedTuple):
    """That a dim of a value has other axes than some origin proposes."""

    dim: int
    axes: Axes
    proposed: Axes
    origin: str

    def __str__(self) -> str:
        return f"dim {self.dim} is {_shown(self.axes)}, not {_shown(self.proposed)} as {self.origin} has it"


class Extension(NamedTuple):
    """That a value of an operation split a dim by axes that another one has; both by number."""

    value: int
    dim: int
    axes: Axes
    giver: int
    last: str  # the giver's last axis along the factor


class Operation:
    """A rule on values of known sizes: what it proposes for the axes that they have.

    Programs repeat operations, and layers have the same shardings, so answers are kept.
    """

    def __init__(self, rule: Rule, mesh: Mesh, dims: tuple[Dims, ...], values: tuple[Node, ...]) -> None:
        self.rule, self.mesh, self.dims = rule, mesh, dims
        self.shapes = [value.type.shape for value in values]
        self.sizes = [_bytes(value) for value in values]
        self._known: dict[tuple[AxesByDim, ...], list[Extension]] = {}

    def extensions(self, axes: tuple[AxesByDim, ...]) -> list[Extension]:
        """For each factor the longest list of axes that a value has, as proposals for the others."""
        known = self._known.get(axes)
        if known is None:
            known = self._known[axes] = self._extensions(axes)
        return known

    def _extensions(self, axes_by_value: tuple[AxesByDim, ...]) -> list[Extension]:
        rule, mesh = self.rule, self.mesh
        homed = [
            homes(rule, dims, mesh, axes, shape)
            for dims, axes, shape in zip(self.dims, axes_by_value, self.shapes, strict=True)
        ]
        best: dict[str, tuple[int, int, Axes, int]] = {}  # factor -> the strongest of (-length, -bytes, axes, value)
        for at, home in enumerate(homed):
            for factor, axes in home.items():
                if axes and factor not in rule.whole:
                    strength = (-len(axes), -self.sizes[at], axes, at)
                    best[factor] = min(best.get(factor, strength), strength)
        result = []
        for at, (home, dims, shape) in enumerate(zip(homed, self.dims, self.shapes, strict=True)):
            for d, dim in enumerate(dims):
                for factor in dim:  # one factor at a time, beside what the value has
                    if factor not in best or best[factor][2] == home.get(factor, ()):
                        continue
                    _, _, axes, giver = best[factor]
                    made = dims_of(mesh, (dim,), {**home, factor: axes}, rule.sizes)
                    if made is not None and mesh.axis_size(made[0]) <= shape[d]:
                        result.append(Extension(at, d, made[0], giver, axes[-1]))
        return result


class Propagation:
    """Where every value of a program is to lie, and why."""

    def __init__(self, program: Program, fixed: Mapping[Node, Sharding], order: Iterable[Node] | None = None) -> None:
        self.program, self.mesh = program, program.mesh
        self.users = program.users
        self.dims: dict[Node, AxesByDim] = {}
        self.closed: set[Node] = set()
        self.origins: dict[Node, dict[str, str]] = {}
        self.conflicts: dict[Node, dict[Conflict, None]] = {}
        self._from: dict[Node, dict[str, int]] = {}  # for each value and axis the weight of the tensor it comes from
        self._names = dict(zip(program.inputs, program.names, strict=True))
        self._shardings: dict[AxesByDim, Sharding] = {}
        self._taken: dict[tuple[AxesByDim, int, Axes], Axes] = {}
        nodes = list(program.nodes if order is None else order)
        for node in nodes:
            kind = node.type
            said = node.what.sharding if isinstance(node.what, Constrain) else None
            known = fixed.get(node) or kind.sharding or said
            if known is None:
                self.dims[node] = ((),) * len(kind.shape)
            else:
                self.closed.add(node)
                self.dims[node] = tuple(known.dims)
                axes = [a for axes in known.dims for a in axes]
                self.origins[node] = dict.fromkeys(axes, self._named(node))
                self._from[node] = dict.fromkeys(axes, _weight(node))
        self._operations: dict[Node, tuple[Operation, tuple[Node, ...]]] = {}
        self._find_operations(nodes)
        self._run()

    def _named(self, node: Node) -> str:
        if node in self._names:
            return self._names[node]
        return f"{node.title} at {short_source(node.source)}" if node.source else node.title

    def _find_operations(self, nodes: Iterable[Node]) -> None:
        alike: dict[tuple[Rule, int, tuple[int, ...]], Operation] = {}
        for node in nodes:
            found = _rule_of(node)
            if found is None:
                continue
            rule, result, values = found
            key = (rule, result, tuple([value.type.dtype.itemsize for value in values]))
            operation = alike.get(key)
            if operation is None:
                dims = rule.inputs if result < 0 else (*rule.inputs, rule.outputs[result])
                operation = alike[key] = Operation(rule, self.mesh, dims, values)
            self._operations[node] = operation, values

    def wanted(self, node: Node) -> Sharding | None:
        """Where a value is to lie; None where nothing says so."""
        dims = self.dims[node]
        if not any(dims) and node not in self.closed:
            return None
        known = self._shardings.get(dims)
        if known is None:
            known = self._shardings[dims] = Sharding(self.mesh, P(*dims))
        return known

    def flowed_first(self, node: Node) -> list[tuple[int, str]]:
        """The axes of a value that come from integer inputs, each with the dim that it splits."""
        known = self._from.get(node, {})
        return [(d, axis) for d, axes in enumerate(self.dims[node]) for axis in axes if known.get(axis) == FIRST]

    def are_scattered(self, node: Node, axes: Iterable[str]) -> bool:
        """Whether axes of a value are there only because sums are scattered."""
        known = self._from.get(node, {})
        return all(known.get(axis) == LAST for axis in axes)

    def scattered(self) -> "Propagation | None":
        """The same, but sums are scattered: a result that devices along some axes sum is split by these axes, along the first
        dim that they divide, and that flows last. None if there is no such result."""
        other = copy.copy(self)
        other.dims = dict(self.dims)
        other.origins = {node: dict(some) for node, some in self.origins.items()}
        other._from = {node: dict(some) for node, some in self._from.items()}
        other.conflicts = {}
        for node in self._operations:
            if isinstance(node.what, Apply) and len(node.types) == 1 and node not in self.closed:
                other._scatter(node)
        if other.dims == self.dims:
            return None
        other._flow(LAST)
        other.conflicts = self.conflicts  # proposals of scattered sums are no conflicts
        return other

    def _scatter(self, node: Node) -> None:
        """Splits a result by the axes that devices sum it over."""
        operation, values = self._operations[node]
        rule, shape = operation.rule, node.type.shape
        for at, value in enumerate(values[:-1]):
            home = homes(rule, operation.dims[at], self.mesh, self.dims[value], operation.shapes[at])
            for axis in [axis for factor in rule.sums for axis in home.get(factor, ())]:
                dims = self.dims[node]
                for dim, axes in enumerate(dims):
                    wanted = self._extended(dims, dim, (*axes, axis))
                    if wanted != axes and shape[dim] % self.mesh.axis_size(wanted) == 0:
                        self.dims[node] = (*dims[:dim], wanted, *dims[dim + 1 :])
                        self.origins.setdefault(node, {})[axis] = f"{self._named(node)}, scattered"
                        self._from.setdefault(node, {})[axis] = LAST
                        break

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        for least in sorted({size for some in self._from.values() for size in some.values()}, reverse=True):
            self._flow(least)

    def _flow(self, least: int) -> None:
        """Rounds of what comes from tensors of this weight, to the fixed point."""
        users, operations = self.users, self._operations
        changed = [node for node, some in self._from.items() if least in some.values()]
        flowing = _Flowing(self.dims, self._from, least)
        while changed:
            proposals: dict[Node, list[Proposal]] = {}
            near = dict.fromkeys([node for value in changed for node in (value, *value.nodes, *users[value])])
            for node in near:
                if node in operations:
                    self._propose(node, flowing, proposals)
            changed = [value for value, some in proposals.items() if self._take(value, sorted(some))]
            for value in changed:
                flowing.pop(value, None)

    def _propose(self, node: Node, flowing: "_Flowing", proposals: dict[Node, list[Proposal]]) -> None:
        """Adds what an operation proposes for its operands and results, if they can take any of it."""
        operation, values = self._operations[node]
        for at, dim, axes, by, last in operation.extensions(tuple([flowing[value] for value in values])):
            value, giver = values[at], values[by]
            if value not in self.closed:
                known = self.origins.get(giver)
                origin = known[last] if known is not None and last in known else node.title
                dims = self.dims[value]
                if self._extended(dims, dim, axes) == dims[dim]:
                    self._compare(value, dim, axes, origin)
                    continue
                size = operation.sizes[by]
                sizes = tuple([self._size_of(giver, value, axis, size) for axis in axes])
                proposals.setdefault(value, []).append(Proposal(-size, axes, dim, origin, sizes))

    def _size_of(self, giver: Node, value: Node, axis: str, default: int) -> int:
        """The weight of the tensor that an axis comes from; of a piece of an axis, that of the axis."""
        for node in (giver, value):
            known = self._from.get(node, {})
            if axis in known:
                return known[axis]
            for other, size in known.items():
                if _overlaps(self.mesh, axis, (other,)):
                    return size
        return default

    def _take(self, value: Node, proposals: list[Proposal]) -> bool:
        """Take the proposals that extend what a value has, strongest first."""
        before = self.dims[value]
        for proposal in proposals:
            dims, dim = self.dims[value], proposal.dim
            old, wanted = dims[dim], self._extended(dims, dim, proposal.axes)
            if wanted != old:
                sizes = dict(zip(wanted, proposal.sizes, strict=False))
                self.dims[value] = (*dims[:dim], wanted, *dims[dim + 1 :])
                self.origins.setdefault(value, {}).update(dict.fromkeys(wanted[len(old) :], proposal.origin))
                self._from.setdefault(value, {}).update({a: sizes[a] for a in wanted[len(old) :]})
            self._compare(value, dim, proposal.axes, proposal.origin)
        return self.dims[value] is not before

    def _compare(self, value: Node, dim: int, proposed: Axes, origin: str) -> None:
        """Notes it if a value does not have the axes that were proposed."""
        axes = self.dims[value][dim]
        if axes[: len(proposed)] != proposed:
            self.conflicts.setdefault(value, {})[Conflict(dim, axes, proposed, origin)] = None

    def _extended(self, dims: AxesByDim, dim: int, axes: Axes) -> Axes:
        """What a dim has after it took as many of the axes as fit beside those of all dims."""
        key = (dims, dim, axes)
        known = self._taken.get(key)
        if known is None:
            old = dims[dim]
            counts = range(len(axes), len(old), -1) if axes[: len(old)] == old else ()
            used = [a for some in dims for a in some]
            known = next((axes[:n] for n in counts if self._fits(used, axes[len(old) : n])), old)
            self._taken[key] = known
        return known

    def _fits(self, used: list[str], added: Axes) -> bool:
        return not any(_overlaps(self.mesh, a, used) for a in added) and self.mesh.share_a_cut((*used, *added))


class _Flowing(dict[Node, AxesByDim]):
    """The axes of each value that come from tensors large enough for now: per dim those before the first that does not."""

    def __init__(self, dims: Mapping[Node, AxesByDim], sizes: Mapping[Node, Mapping[str, int]], least: int) -> None:
        self._dims, self._sizes, self._least = dims, sizes, least

    def __missing__(self, value: Node) -> AxesByDim:
        axes_by_dim, known, least = self._dims[value], self._sizes.get(value), self._least
        if known and min(known.values()) < least:
            counts = [
                next((i for i, axis in enumerate(axes) if known[axis] < least), len(axes)) for axes in axes_by_dim
            ]
            axes_by_dim = tuple([axes[:count] for axes, count in zip(axes_by_dim, counts, strict=True)])
        self[value] = axes_by_dim
        return axes_by_dim


def _rule_of(node: Node) -> tuple[Rule, int, tuple[Node, ...]] | None:
    """A node's rule, the number of the result that it has (-1 if it has several, which are its picks), and the values that
    the rule speaks of: operands, then the result."""
    what = node.what
    if isinstance(what, Apply):
        return (what.rule, 0, (*node.nodes, node)) if len(node.types) == 1 else (what.rule, -1, node.nodes)
    if isinstance(what, Constrain | Settle):
        return _same(node.type.shape), 0, (node.nodes[0], node)
    if isinstance(what, Pick) and isinstance(node.nodes[0].what, Apply):
        return node.nodes[0].what.rule, what.which, (*node.nodes[0].nodes, node)
    return None


@lru_cache(maxsize=1024)
def _same(shape: tuple[int, ...]) -> Rule:
    """The rule of a result that lies as its operand."""
    dims = tuple([(f"d{i}",) for i in range(len(shape))])
    return Rule((dims,), (dims,), {f"d{i}": n for i, n in enumerate(shape)})


def _shown(axes: Axes) -> str:
    return "whole" if not axes else f"@{','.join(axes)}"


def _overlaps(mesh: Mesh, axis: str, others: Iterable[str]) -> bool:
    return any(overlap(mesh.axis(axis), mesh.axis(other)) for other in others)


def _bytes(node: Node) -> int:
    total = node.type.dtype.itemsize
    for n in node.type.shape:
        total *= n
    return total


def _weight(node: Node) -> int:
    """How early the axes of a closed value flow: integer inputs first, the others by their bytes.

    Integers of 8 and 16 bits count by their bytes: they are quantised weights rather than indices.
    """
    dtype = node.type.dtype
    return (
        FIRST
        if isinstance(node.what, Input | Constant) and dtype.kind in "iu" and dtype.itemsize >= 4
        else _bytes(node)
    )
