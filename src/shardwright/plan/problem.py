"""`Problem`: an operation on operands of known shardings, the places that the pieces of mesh axes may take in it, and for each
choice of places a time that no strategy can beat.

Few of the choices are worth pricing in full; the bounds say which.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, product
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from shardwright.ops import Op, Rule
from shardwright.plan.factors import PARTIAL, Placement, cut_together, factors_with, homes, overlaps, pieces_of
from shardwright.plan.steps import is_even
from shardwright.sharding import Sharding, block_size

_STAY, _SLICE, _MOVE, _GATHER, _SCATTER, _REDUCE = range(6)  # what an operand does about an axis
_FREE = frozenset((_STAY, _SLICE))
NEGLIGIBLE = 0.05  # of the time of communication
MOST_IDLE = 4  # axes that nothing uses which are tried
MOST = 81  # placements looked at beyond those that keep every axis where some operand has it

Shape = tuple[int, ...]
Factors = tuple[str | None, ...]  # a factor, None or PARTIAL for each piece


class _Effect(NamedTuple):
    """What putting a piece of an axis to a factor does."""

    hops: float  # seconds of latency
    pace: float  # bytes per second that a device receives along the piece at most
    size: int  # of the piece
    acts: list[int]  # for each operand what it must do about the piece
    split: bool  # whether a result is split by it
    left: bool  # whether it is left to be reduced
    shared: bool  # whether devices along it share the work


class Problem:
    """An operation on operands that lie somewhere: the axes in use, cut into pieces, and where each may go."""

    def __init__(
        self,
        rule: Rule,
        operands: Sequence[Sharding],
        shapes: Sequence[Shape],
        dtypes: "Sequence[np.dtype[Any]]",
        wanted: Sequence[Sharding | None] = (),
        op: Op | None = None,
        made: "Sequence[np.dtype[Any]]" = (),
    ) -> None:
        self.rule, self.shapes, self.dtypes, self.given, self.op = rule, shapes, dtypes, operands, op
        self.asked = tuple(wanted)
        self.work_dtype = max(dtypes, key=lambda dtype: dtype.itemsize, default=np.dtype(np.int8))  # about
        self.made = tuple(made) or (self.work_dtype,) * len(rule.outputs)  # of results
        self.mesh = mesh = next(s for s in (*operands, *wanted) if s is not None).mesh
        used = [axis for sharding in operands for axis in sharding.axes]
        self.wanted = [s if s is not None and mesh.share_a_cut((*used, *s.axes)) else None for s in wanted]
        self.operands = cut_together(mesh, operands)
        given = [
            homes(rule, dims, mesh, s.dims, shape, s.offsets)
            for dims, s, shape in zip(rule.inputs, self.operands, shapes, strict=True)
        ]
        hints = [
            homes(rule, rule.outputs[i], mesh, s.dims, rule.out_shape(i), s.offsets)
            for i, s in enumerate(self.wanted)
            if s is not None
        ]
        self.homes = [*given, *hints]
        self.pieces = pieces_of(mesh, [*self.operands, *(s for s in self.wanted if s is not None)], self.homes)
        self.found = [{piece: factors_with(mesh, piece, home) for piece in self.pieces} for home in given]
        self.hinted = [{piece: factors_with(mesh, piece, home) for piece in self.pieces} for home in hints]
        self.partial = [{p for p in self.pieces if overlaps(mesh, p, s.partial)} for s in self.operands]
        self.seen: dict[tuple[str, ...], set[Factors]] = {}  # by the pieces that were placed
        self._factors: list[set[str | None]] = [set(chain(*dims)) for dims in rule.inputs]
        self._effects: dict[str, dict[str | None, _Effect]] = {}
        self._crossings: dict[str, tuple[float, float, int]] = {}
        self._moves: dict[tuple[str, ...], dict[Any, float]] = {}
        self.chip = mesh.hardware.chip

    @cached_property
    def launch(self) -> float:
        """Seconds that crossing a piece takes at least, beside hops and bytes."""
        return min([self.mesh.fabric((piece,)).launch for piece in self.pieces], default=0.0)

    @cached_property
    def _crowded(self) -> dict[str, set[str]]:
        """The factors that may be cut into more shards than they have rows, or anywhere, each with the pieces that may do so:
        those that operands or wanted results have there."""
        if self.rule.owners or any(s.offsets for s in (*self.operands, *self.wanted) if s is not None):
            return {factor: set(self.pieces) for factor in self.rule.sizes}
        mesh, sizes, places = self.mesh, self.rule.sizes, dict[str, set[str]]()
        for home in self.homes:
            for factor, axes in home.items():
                if axes:
                    places.setdefault(factor, set()).update(mesh.cut(axes, by=self.pieces))
        return {f: axes for f, axes in places.items() if math.prod([mesh.axis(a).size for a in axes]) > sizes[f]}

    @cached_property
    def _even(self) -> list[bool]:
        """For each operand whether its shards are equal blocks, where it lies and wherever a strategy may put it."""
        pieces = tuple([self.mesh.axis(piece).size for piece in self.pieces])
        return [
            factors.isdisjoint(self._crowded)
            and is_even(given, shape)
            and all(len(dim) != 1 or _divide(pieces, n) for n, dim in zip(shape, dims, strict=True))
            for given, shape, dims, factors in zip(
                self.given, self.shapes, self.rule.inputs, self._factors, strict=True
            )
        ]

    @cached_property
    def _local(self) -> list[float]:
        """For each operand a bound of the bytes of its shards: one can be larger than its even share of the whole."""
        mesh, result = self.mesh, []
        for given, cut, shape, dtype in zip(self.given, self.operands, self.shapes, self.dtypes, strict=True):
            held = {piece for axes in cut.dims for piece in mesh.cut(axes, by=self.pieces)}
            even = math.prod(shape) * dtype.itemsize / mesh.axis_size(tuple(held))
            result.append(min(given.local_size(shape) * dtype.itemsize, even))
        return result

    @cached_property
    def _out_bytes(self) -> float:
        """Bytes of all results, as they count where they are left to be reduced."""
        outs = [math.prod(self.rule.out_shape(at)) for at in range(len(self.rule.outputs))]
        return float(sum(outs) * self.work_dtype.itemsize)

    @cached_property
    def _whole_bytes(self) -> float:
        """Bytes of all operands and results."""
        shapes = [*self.shapes, *[self.rule.out_shape(at) for at in range(len(self.rule.outputs))]]
        arrays = zip(shapes, (*self.dtypes, *self.made), strict=True)
        return float(sum([math.prod(shape) * dtype.itemsize for shape, dtype in arrays]))

    @cached_property
    def _least_work(self) -> float:
        """Seconds that the work takes if all devices share it, all together."""
        work = work_of(self, {})
        if self.rule.selects is not None:  # n log n: the logarithm is less where shards are shorter
            work /= math.log2(max(self.rule.sizes[self.rule.selects[0]], 2))
        return work / self.chip.flops_of(self.work_dtype)

    def afresh(self) -> "Problem":
        """The same problem with nothing looked at yet."""
        return Problem(self.rule, self.given, self.shapes, self.dtypes, self.asked, self.op, self.made)

    @property
    def least_alternative(self) -> float:
        """The weight of any strategy that communicates, at least: a launch, and the work shared by all devices. Where other
        strategies may be free too, as without elements, the work alone."""
        shares = self.mesh.axis_size(tuple(self.pieces))
        touched = self._whole_bytes / self.chip.memory_bandwidth
        launch = (1 - NEGLIGIBLE) * self.launch if not self._crowded and all(self._local) else 0.0
        return launch + max(self._least_work, touched) / shares * 0.999999

    @property
    def keeps_partial(self) -> bool:
        """Whether partial operands may stay partial."""
        reductions = {s.reduction for s in self.operands if s.partial}
        return len(reductions) == 1 and self.rule.passes_partial(next(iter(reductions)))

    @property
    def idle_stages(self) -> Iterator[dict[str, list[str | None]]]:
        """Axes that nothing uses put to use: each in turn at any factor that is long enough, the others where they are."""
        used = {self.mesh.axis(axis).name for axis in self.pieces}
        idle = [axis for axis, n in self.mesh.sizes.items() if axis not in used and n > 1]
        settled = next(iter(self.stages))
        for axis in idle[:MOST_IDLE]:
            n = self.mesh.sizes[axis]
            fits: list[str | None] = [
                f for f, size in self.rule.sizes.items() if f not in self.rule.whole and size >= n
            ]
            if fits:
                yield {**{piece: known[:1] for piece, known in settled.items()}, axis: fits}

    @property
    def stages(self) -> Iterator[dict[str, list[str | None]]]:
        """Where each piece may go: first where operands have it, then where else, if that is not too much to look at."""
        if self.rule.keeps:
            yield {piece: [next(iter(self.found[0][piece]), None)] for piece in self.pieces}
            return
        stays_partial = self.keeps_partial
        options: dict[str, list[str | None]] = {}
        settled: dict[str, list[str | None]] = {}
        for piece in self.pieces:
            known_homes = (*self.found, *self.hinted)
            here: list[str | None] = [f for home in known_homes for f in home[piece] if f not in self.rule.whole]
            if stays_partial and any(piece in some for some in self.partial):
                here.append(PARTIAL)
            known = options[piece] = list(dict.fromkeys([*here, None]))
            in_place = here == [self.rule.prefix] or (self.rule.agrees and here and here != [PARTIAL])
            if in_place:  # shards pass on one row, or two numbers: nothing need be gathered
                known = options[piece] = here
            sure = len(known) == 2 and known[0] not in self.rule.sums and known[0] != PARTIAL
            settled[piece] = known[:1] if sure else known
        yield settled
        yield options
        others = [factor for factor in self.rule.sizes if factor not in self.rule.whole]
        wide = {piece: list(dict.fromkeys([*known, *others])) for piece, known in options.items()}
        if math.prod(len(some) for some in wide.values()) <= MOST:
            yield wide

    def in_place(self, stage: Mapping[str, list[str | None]]) -> Factors | None:
        """The only choice of a stage, if no operand moves for it and nothing is left to be reduced; its bound is 0."""
        for piece, some in stage.items():
            if len(some) != 1 or self._is_left(some[0]) or not _FREE.issuperset(self._acts(piece, some[0])):
                return None
        choice = tuple([some[0] for some in stage.values()])
        self.seen[tuple(stage)] = {choice}
        return choice

    def placements(self, stage: Mapping[str, list[str | None]], limit: float = math.inf) -> list[tuple[float, Factors]]:
        """The choices of a stage not seen yet, each with a time it can't beat, shortest first; none whose latencies alone
        take longer than `limit`."""
        effects = self._effects
        for piece, some in stage.items():
            known = effects.setdefault(piece, {})
            for factor in some:
                if factor not in known:
                    known[factor] = self._effect(piece, factor)
        if limit < math.inf:
            least = {piece: min(effects[piece][f].hops for f in some) for piece, some in stage.items()}
            room = limit - sum(least.values())
            stage = {p: [f for f in some if effects[p][f].hops - least[p] <= room] for p, some in stage.items()}
        seen = self.seen.setdefault(tuple(stage), set())
        new = [choice for choice in self._choices(stage) if choice not in seen]
        seen.update(new)
        return sorted(zip(self._bounds(tuple(stage), new), new, strict=True), key=itemgetter(0))

    def _is_left(self, factor: str | None) -> bool:
        """Whether pieces at a factor are left to be reduced."""
        return factor in self.rule.sums or factor == PARTIAL

    def _acts(self, piece: str, factor: str | None) -> list[int]:
        """For each operand what it must do about a piece that is put to a factor.

        A piece x that moves from dim d to dim e crosses x, if e is not crowded. Take the device with coordinate 1 along x and 0
        elsewhere. Its source shard lacks row 0 of d. Its target shard has that row, and is not empty: with t ≤ n shards along
        e, of ceil(n/t) < n/t + 1 rows, s ≤ t/x ≤ n/2 of them lie before it, and s · ceil(n/t) < n/x + s ≤ n. If e is crowded,
        all elements may lie with one device before and after.
        """
        acts, move = [], _STAY if piece in self._crowded.get(factor or "", ()) else _MOVE
        for at, (factors, found, partial) in enumerate(zip(self._factors, self.found, self.partial, strict=True)):
            has = factor in factors
            if found.get(piece):
                acts.append(_STAY if factor in found[piece] else move if has else _GATHER)
            elif piece in partial:
                stays = factor == PARTIAL or (self.rule.joins and at == 0 and factor in self.rule.sums)
                acts.append(_STAY if stays else _SCATTER if has else _REDUCE)
            else:
                acts.append(_SLICE if has else _STAY)
        return acts

    def _effect(self, piece: str, factor: str | None) -> _Effect:
        """What putting a piece to a factor does."""
        acts, left = self._acts(piece, factor), self._is_left(factor)
        moved = [act > _SLICE and local > 0 for act, local in zip(acts, self._local, strict=True)]
        crossed = (left and self._out_bytes > 0) + sum(moved)  # what has no elements costs nothing
        hops, pace, size = self._crossing(piece)
        return _Effect(crossed * hops, pace, size, acts, factor in self._split, left, factor in self.rule.sizes)

    @cached_property
    def _split(self) -> set[str | None]:
        """The factors that split a result."""
        return {factor for dims in self.rule.outputs for dim in dims for factor in dim}

    def _crossing(self, piece: str) -> tuple[float, float, int]:
        """Of a collective along a piece: seconds of latency at least, bytes per second that a device receives at most, and
        the devices. Pieces of an axis are crossed together in fewer hops, and with all the links of the axis."""
        known = self._crossings.get(piece)
        if known is None:
            mesh, size = self.mesh, self.mesh.axis(piece).size
            fabric = mesh.fabric((piece if piece in mesh.sizes else mesh.axis(piece).name,))
            least = fabric.hops if piece in mesh.sizes else 0.0
            full = any(link.kind == "full" for _, link in fabric.pieces)  # more devices have more links
            pace = 1 / (mesh.fabric(mesh.axis_names) if full else fabric).least_pace if fabric.levels else 0.0
            known = self._crossings[piece] = least, pace, size
        return known

    def _bounds(self, pieces: Sequence[str], choices: Sequence[Factors]) -> list[float]:
        """For each choice of factors for pieces a weight that no strategy can beat: all latencies, and the bytes and the work
        if all shards were even and all links of an operand were used at once.

        Choices are many and made of few parts: what each half of a choice does is added up once, and an operand's time is
        kept by what it does about every piece.
        """
        middle = len(pieces) // 2
        heads = {head: self._added(pieces, head, 0) for head in {choice[:middle] for choice in choices}}
        tails = {tail: self._added(pieces, tail, middle) for tail in {choice[middle:] for choice in choices}}
        moves, launch, work = self._moves.setdefault(tuple(pieces), {}), self.launch, self._least_work
        out_bytes = 0.0 if self.hinted else self._out_bytes  # else results may be sliced before they are reduced
        bounds = []
        for choice in choices:
            time, acts, parts, summands, shares, pace = heads[choice[:middle]]
            hops, other_acts, other_parts, other_summands, other_shares, other_pace = tails[choice[middle:]]
            time += hops
            for known in zip(acts, other_acts, strict=True):
                moved = moves.get(known)
                if moved is None:
                    moved = moves[known] = self._least_move(acts.index(known[0]), pieces, choice)
                time += moved
            pace += other_pace
            if pace and out_bytes:
                summands *= other_summands
                time += (summands - 1) / summands * out_bytes / (parts * other_parts * pace) + launch
            worked = (1 - NEGLIGIBLE) * time + work / (shares * other_shares)
            bounds.append(max(time, worked) * 0.999999)  # rounding must not make it more than the truth
        return bounds

    def _added(self, pieces: Sequence[str], factors: Factors, first: int) -> tuple[Any, ...]:
        """What putting pieces from number `first` on to factors does, all together: seconds of latency, for each operand its
        number and its acts, devices that split a result, that leave it to be reduced and that share the work, and the pace at
        which it is reduced."""
        hops, parts, summands, shares, pace = 0.0, 1, 1, 1, 0.0
        acts: list[tuple[int, ...]] = [(at,) for at in range(len(self.shapes))]
        for piece, factor in zip(pieces[first:], factors, strict=False):
            effect = self._effects[piece][factor]
            hops += effect.hops
            acts = [(*before, act) for before, act in zip(acts, effect.acts, strict=True)]
            parts *= effect.size if effect.split else 1
            shares *= effect.size if effect.shared else 1
            if effect.left:
                summands, pace = summands * effect.size, pace + effect.pace
        return hops, acts, parts, summands, shares, pace

    def _least_move(self, at: int, pieces: Sequence[str], choice: Factors) -> float:
        """Seconds, latencies aside, that bringing an operand into place takes at least.

        Slices come first and are free. Reducing then takes its share of what is left; the busiest device has no less than the
        even share. What a device has already of the v elements that it wants on average, however shards are cut:

        - Gathering over g devices: these want the same elements, and each holds others of them: v/g.
        - Moving m devices from dim d to dim e: they hold different rows of d and want the same of these; of e they want at most
          ceil(n/t) of n/t rows on average, less than twice as many if there are t ≤ n shards: 2v/m, and v/m if shards are even.

        All links along the pieces are used at once by gathers and reductions. An exchange takes as long as its busiest axis, of
        m devices 1 - 1/m of what they would hold evenly; along axes that stay in place too, if shards are not even.
        """
        size, along, local = [1, 1, 1, 1, 1, 1], 0.0, self._local[at]
        least, most = self.mesh.size, 1
        for piece, factor in zip(pieces, choice, strict=True):
            _, pace, n, acts, _, _, _ = self._effects[piece][factor]
            act = acts[at]
            size[act] *= n
            if act > _SLICE:
                along, least = along + pace, min(least, n)
            if act == _MOVE:
                most = max(most, n)
        if not along or not local:
            return 0.0
        local /= size[_SLICE]
        received = (1 - 1 / size[_SCATTER]) * local
        local /= size[_SCATTER]
        received += 2 * (1 - 1 / size[_REDUCE]) * local
        if self._even[at]:
            return (received + (size[_GATHER] - 1 / size[_MOVE]) * local) / along + self.launch
        received += (size[_GATHER] - min(2 / most, 1)) * local
        return received * (1 - 1 / least) / along + self.launch

    def _choices(self, stage: Mapping[str, list[str | None]]) -> Iterator[Factors]:
        """All choices; where there are too many, pieces that all operands have in the same places go together."""
        if math.prod(len(some) for some in stage.values()) <= MOST:
            yield from product(*stage.values())
            return
        known = (*self.found, *self.hinted)
        places = {p: (*(tuple(home[p]) for home in known), *(p in some for some in self.partial)) for p in stage}
        options = {places[piece]: some for piece, some in stage.items()}
        for choice in product(*options.values()):
            of = dict(zip(options, choice, strict=True))
            yield tuple(of[places[piece]] for piece in stage)


@lru_cache(maxsize=4096)
def _divide(sizes: tuple[int, ...], n: int) -> bool:
    """Whether as many pieces of some sizes as a dim has room for always cut it into equal parts."""
    products = {1}
    for size in sizes:
        products |= {size * known for known in products if size * known <= n}
    return not any(n % known for known in products)


def work_of(problem: Problem, placement: Placement) -> float:
    """Floating-point operations of the busiest device."""
    if problem.op is None:
        return 0.0
    sizes = dict(problem.rule.factors)
    for axis, factor in placement.items():
        if factor in sizes:
            sizes[factor] = int(block_size(sizes[factor], problem.mesh.axis(axis).size))
    return problem.op.work(problem.rule, sizes)
