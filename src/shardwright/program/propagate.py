"""Propagation: shardings flow from where they are known through factor rules, forward and backward, to a fixed point.

Inputs, constants and constraints are closed: they give and never take. All other values are open and take what their
neighbours propose, round by round: in a round every operation looks at the state before it and proposes, per factor,
the longest list of axes that one of its values has there; then each value takes what extends what it has. Conflicts are
settled by cost: axes of larger tensors, which cost more to move, flow to their fixed point first, and within a round the
larger tensor's proposal wins; equal ones are settled by the names of their axes. So the result does not depend on the
order of nodes. What is taken is never given back: the rounds end.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardwright.mesh import Mesh, overlap
from shardwright.ops import Dims, Rule
from shardwright.plan import dims_of, homes
from shardwright.program.node import Apply, Constrain, Node, Pick, Program, Settle, short_source
from shardwright.sharding import P, Sharding

Axes = tuple[str, ...]


class Proposal(NamedTuple):
    """That a value split a dim by axes; the order is that of strength."""

    weight: int  # minus the bytes of the tensor that proposes it
    axes: Axes
    dim: int
    origin: str
    sizes: tuple[int, ...]  # of the tensor that each axis comes from


class Propagation:
    """Where every value of a program is to lie, and why."""

    def __init__(self, program: Program, fixed: Mapping[Node, Sharding], order: Iterable[Node] | None = None) -> None:
        self.program, self.mesh = program, program.mesh
        self.dims: dict[Node, list[Axes]] = {}
        self.closed: set[Node] = set()
        self.origins: dict[Node, dict[str, str]] = {}
        self.conflicts: dict[Node, list[str]] = {}
        self._from: dict[Node, dict[str, int]] = {}  # for each value and axis the bytes of the tensor it comes from
        self.nodes = list(program.nodes if order is None else order)
        self._names = dict(zip(program.inputs, program.names, strict=True))
        for node in self.nodes:
            said = node.what.sharding if isinstance(node.what, Constrain) else None
            known = fixed.get(node) or node.type.sharding or said
            self.dims[node] = [()] * len(node.type.shape)
            if known is not None:
                self.closed.add(node)
                self.dims[node] = [tuple(axes) for axes in known.dims]
                axes = [a for axes in known.dims for a in axes]
                self.origins[node] = dict.fromkeys(axes, self._named(node))
                self._from[node] = dict.fromkeys(axes, _bytes(node))
        self._known_rules: dict[Node, list[tuple[Rule, list[tuple[Node, Dims]]]]] = {}
        self._sizes: dict[Node, int] = {}
        self._run()

    def _named(self, node: Node) -> str:
        if node in self._names:
            return self._names[node]
        return f"{node.title} at {short_source(node.source)}" if node.source else node.title

    def wanted(self, node: Node) -> Sharding | None:
        """Where a value is to lie; None where nothing says so."""
        dims = self.dims[node]
        return Sharding(self.mesh, P(*dims)) if any(dims) or node in self.closed else None

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        users = self.program.users
        near = {node: (node, *node.nodes, *users[node]) for node in self.nodes}
        for least in sorted({size for some in self._from.values() for size in some.values()}, reverse=True):
            active = {n for node, some in self._from.items() if least in some.values() for n in near[node]}
            while active:
                proposals: dict[Node, list[Proposal]] = {}
                for node in active:
                    for value, proposal in self._proposed(node, least):
                        proposals.setdefault(value, []).append(proposal)
                changed = [value for value, some in proposals.items() if self._take(value, sorted(set(some)))]
                active = {n for value in changed for n in near[value]}

    def _flowing(self, value: Node, least: int) -> list[Axes]:
        """The axes of a value that come from tensors large enough for now: per dim those before the first that does not."""
        known = self._from.get(value)
        if known is None or min(known.values(), default=least) >= least:
            return self.dims[value]
        result = []
        for axes in self.dims[value]:
            count = next((i for i, axis in enumerate(axes) if known[axis] < least), len(axes))
            result.append(axes[:count])
        return result

    def _proposed(self, node: Node, least: int) -> Iterator[tuple[Node, Proposal]]:
        """What an operation proposes for its operands and results."""
        known = self._known_rules.get(node)
        if known is None:
            known = self._known_rules[node] = list(self._rules(node))
        for rule, values in known:
            homed = [
                (value, dims, homes(rule, dims, self.mesh, self._flowing(value, least), value.type.shape))
                for value, dims in values
            ]
            best: dict[str, tuple[int, Axes, Node]] = {}
            for value, _, home in homed:
                for factor, axes in home.items():
                    if not axes or factor in rule.whole:
                        continue
                    weight = -self._size(value)
                    longest = best.get(factor)
                    if longest is None or (-len(axes), weight, axes) < (-len(longest[1]), longest[0], longest[1]):
                        best[factor] = (weight, axes, value)
            for value, dims, home in homed:
                if value in self.closed or all(home.get(factor, ()) == axes for factor, (_, axes, _) in best.items()):
                    continue
                yield from self._extensions(rule, node, value, dims, home, best)

    def _extensions(
        self,
        rule: Rule,
        node: Node,
        value: Node,
        dims: Dims,
        home: Mapping[str, Axes],
        best: Mapping[str, tuple[int, Axes, Node]],
    ) -> Iterator[tuple[Node, Proposal]]:
        """Each factor's best axes, as proposals for one value: one factor at a time, beside what the value has."""
        for at, dim in enumerate(dims):
            for factor in dim:
                if factor not in best or best[factor][1] == home.get(factor, ()):
                    continue
                weight, axes, giver = best[factor]
                made = dims_of(self.mesh, (dim,), {**home, factor: axes}, rule.sizes)
                if made is not None and self.mesh.axis_size(made[0]) <= value.type.shape[at]:
                    sizes = tuple(self._size_of(giver, value, axis) for axis in made[0])
                    origin = self.origins.get(giver, {}).get(axes[-1], node.title)
                    yield value, Proposal(weight, tuple(made[0]), at, origin, sizes)

    def _size(self, value: Node) -> int:
        size = self._sizes.get(value)
        if size is None:
            size = self._sizes[value] = _bytes(value)
        return size

    def _size_of(self, giver: Node, value: Node, axis: str) -> int:
        """The bytes of the tensor that an axis comes from; of a piece of an axis, that of the axis."""
        for node in (giver, value):
            for known, size in self._from.get(node, {}).items():
                if known == axis or _overlaps(self.mesh, axis, (known,)):
                    return size
        return _bytes(giver)

    def _rules(self, node: Node) -> Iterator[tuple[Rule, list[tuple[Node, Dims]]]]:
        """A node's rule with the values it speaks of; results of several are their picks."""
        if isinstance(node.what, Constrain | Settle):
            names = [f"d{i}" for i in range(len(node.type.shape))]
            dims = tuple((name,) for name in names)
            sizes = dict(zip(names, node.type.shape, strict=True))
            yield Rule((dims,), (dims,), sizes), [(node.nodes[0], dims), (node, dims)]
        elif isinstance(node.what, Apply):
            rule = node.what.rule
            values = list(zip(node.nodes, rule.inputs, strict=True))
            if len(node.types) == 1:
                values.append((node, rule.outputs[0]))
            yield rule, values
        elif isinstance(node.what, Pick) and isinstance(node.nodes[0].what, Apply):
            several, rule = node.nodes[0], node.nodes[0].what.rule
            values = list(zip(several.nodes, rule.inputs, strict=True))
            yield rule, [*values, (node, rule.outputs[node.what.which])]

    def _take(self, value: Node, proposals: list[Proposal]) -> bool:
        """Take the proposals that extend what a value has, strongest first."""
        changed = False
        for proposal in proposals:
            old = self.dims[value][proposal.dim]
            wanted = next(
                (proposal.axes[:n] for n in range(len(proposal.axes), len(old), -1) if self._fits(value, proposal, n)),
                old,
            )
            if wanted != old:
                sizes = dict(zip(wanted, proposal.sizes, strict=False))
                self.dims[value][proposal.dim] = wanted
                self.origins.setdefault(value, {}).update(dict.fromkeys(wanted[len(old) :], proposal.origin))
                self._from.setdefault(value, {}).update({a: sizes[a] for a in wanted[len(old) :]})
                changed = True
            if wanted[: len(proposal.axes)] != proposal.axes:
                text = (
                    f"dim {proposal.dim} is {_shown(wanted)}, not {_shown(proposal.axes)} as {proposal.origin} has it"
                )
                known = self.conflicts.setdefault(value, [])
                if text not in known:
                    known.append(text)
        return changed

    def _fits(self, value: Node, proposal: Proposal, count: int) -> bool:
        """Whether the first of a proposal's axes extend what a value has."""
        old, axes = self.dims[value][proposal.dim], proposal.axes[:count]
        if axes[: len(old)] != old:
            return False
        used = [a for some in self.dims[value] for a in some]
        added = axes[len(old) :]
        return not any(_overlaps(self.mesh, a, used) for a in added) and self.mesh.share_a_cut((*used, *added))


def _shown(axes: Axes) -> str:
    return "whole" if not axes else f"@{','.join(axes)}"


def _overlaps(mesh: Mesh, axis: str, others: Iterable[str]) -> bool:
    return any(overlap(mesh.axis(axis), mesh.axis(other)) for other in others)


def _bytes(node: Node) -> int:
    total = node.type.dtype.itemsize
    for n in node.type.shape:
        total *= n
    return total
