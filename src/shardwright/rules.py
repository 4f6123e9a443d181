"""Sharding rules: from the shapes, paths or names of a tree of arrays to the sharding of each array.

A rule gives a tree of `P`; `match_sharding_rule` makes shardings of it on a mesh. Paths are joined with '/'. An
array that a rule does not cover is an error that lists the paths; it is never silently replicated.
"""

import abc
import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.errors import ShardingError, ShardwrightError, TreeError
from shardwright.mesh import Mesh
from shardwright.sharding import P, Sharding, as_dtype
from shardwright.trees import flatten, paths_of, prefix, structure_of, unflatten


def is_array(leaf: Any) -> bool:
    """Whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


class ShardingRule(abc.ABC):
    """Chooses shardings for a tree of arrays: `spec(path, leaf, mesh)` gives the `P` of one array and the reason."""

    @abc.abstractmethod
    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        """The spec of a leaf, and the reason."""

    def matches(self, path: str) -> bool:
        """Whether the rule says anything of a path; those that place by shape do of all."""
        return True

    def check(self, paths: Sequence[str]) -> None:  # noqa: B027  # most rules fit every tree
        """Raises ShardingError if the rule does not fit a tree."""

    def apply(self, tree: Any, mesh: Mesh | None = None) -> Any:
        """A tree of `P`; None for leaves that are not arrays."""
        return unflatten(structure_of(tree), self.specs(tree, mesh))

    def specs(self, tree: Any, mesh: Mesh | None = None) -> list[P | None]:
        """The `P` of each leaf, in order; None for leaves that are not arrays."""
        return self.specs_of(paths_of(tree), flatten(tree)[0], mesh)

    def specs_of(self, paths: Sequence[str], leaves: Sequence[Any], mesh: Mesh | None) -> list[P | None]:
        """The spec of each leaf of a tree that is given by its paths and leaves; None for leaves that are not arrays."""
        pairs = list(zip(paths, leaves, strict=True))
        self.check([path for path, leaf in pairs if is_array(leaf)])
        return [self.spec(path, leaf, mesh)[0] if is_array(leaf) else None for path, leaf in pairs]

    def explain(self, tree: Any, mesh: Mesh | None = None) -> dict[str, str]:
        """The spec of each array and the reason, by path."""
        pairs = zip(paths_of(tree), flatten(tree)[0], strict=True)
        found = {path: self.spec(path, leaf, mesh) for path, leaf in pairs if is_array(leaf)}
        return {path: f"{spec}: {why}" for path, (spec, why) in found.items()}


class FSDPShardingRule(ShardingRule):
    """Splits large float tensors along one dim, the largest that the axis divides, and replicates the others.

    >>> import numpy as np
    >>> rule = FSDPShardingRule("data", min_fsdp_size=8)
    >>> rule.apply({"w": np.ones((6, 8), np.float32)}, Mesh(data=4))
    {'w': P(None, 'data')}

    Without a size and without a mesh it splits the dim with the largest power of two as a divisor. With a mesh it uses
    the size of the axis, so the axis always divides the dim.
    """

    def __init__(
        self, fsdp_axis_name: str = "fsdp", fsdp_axis_size: int | None = None, min_fsdp_size: int = 1048576
    ) -> None:
        self.fsdp_axis_name = fsdp_axis_name
        self.fsdp_axis_size = fsdp_axis_size
        self.min_fsdp_size = min_fsdp_size

    def __repr__(self) -> str:
        return f"FSDPShardingRule({self.fsdp_axis_name!r}, min_fsdp_size={self.min_fsdp_size})"

    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        shape = tuple(leaf.shape)
        if mesh is not None and self.fsdp_axis_name not in mesh.sizes:
            raise ShardingError(
                f"FSDPShardingRule splits along axis {self.fsdp_axis_name!r}; {mesh} has only "
                f"{', '.join(map(repr, mesh.sizes))}. Name one of those as fsdp_axis_name."
            )
        size = self.divisor(mesh)
        if not _is_float(leaf.dtype):
            return P(), f"{leaf.dtype} is not a float dtype"
        if math.prod(shape) < self.min_fsdp_size:
            return P(), f"{math.prod(shape):,} elements are fewer than min_fsdp_size={self.min_fsdp_size:,}"
        if size is None:
            powers = [n & -n for n in shape]
            if not powers or max(powers) == 1:
                return P(), "no dim has a factor of 2"
            return self._along(shape, powers.index(max(powers))), f"{max(powers)} is the largest power of two in a dim"
        fitting = [n if n % size == 0 else 0 for n in shape]
        if not fitting or max(fitting) == 0:
            return P(), f"no dim of {shape} is divisible by {size}"
        return self._along(shape, fitting.index(max(fitting))), f"{max(fitting)} is the largest dim divisible by {size}"

    def divisor(self, mesh: Mesh | None) -> int | None:
        """What must divide the dim that is split: the size of the axis; None if it is not known."""
        if mesh is None:
            return self.fsdp_axis_size
        size = mesh.sizes[self.fsdp_axis_name]
        if self.fsdp_axis_size not in (None, size):
            raise ShardingError(
                f"FSDPShardingRule was made for an axis of size {self.fsdp_axis_size}, but {self.fsdp_axis_name!r} of {mesh} "
                f"has {size}. Leave fsdp_axis_size out, or make it {size}."
            )
        return size

    def _along(self, shape: tuple[int, ...], dim: int) -> P:
        return P(*(self.fsdp_axis_name if d == dim else None for d in range(len(shape))))


class TreePathShardingRule(ShardingRule):
    """The first pattern found in a leaf's path gives its spec; scalars and single elements are replicated unless it gives a
    `Sharding`.

    >>> import numpy as np
    >>> rule = TreePathShardingRule(("kernel", P(None, "x")), ("bias", P()))
    >>> rule.apply({"dense": {"kernel": np.ones((2, 2)), "bias": np.ones(2)}})
    {'dense': {'kernel': P(None, 'x'), 'bias': P()}}

    A leaf that no pattern matches is an error unless `strict=False`, and a pattern that matches no leaf always is.
    """

    def __init__(self, *rules: Any, strict: bool = True) -> None:
        given = rules[0] if len(rules) == 1 and not isinstance(rules[0], tuple) else rules
        pairs = tuple(given.items() if isinstance(given, dict) else given)
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ShardingError(f"TreePathShardingRule takes (pattern, P(…)) pairs; got {pair!r}.")
        self.rules: tuple[tuple[str, P], ...] = tuple((pattern, spec) for pattern, spec in pairs)
        self.strict = strict
        self.search: Callable[[re.Pattern[str], str], object] = re.Pattern.search  # modules have other paths
        self._patterns = [_compiled(pattern) for pattern, _ in self.rules]
        self._digits = _alike_digits([pattern for pattern, _ in self.rules])

    def __repr__(self) -> str:
        return f"TreePathShardingRule({', '.join(map(repr, self.rules))})"

    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        number = self._first(path)
        if math.prod(leaf.shape) == 1 and not self._gives_sharding(number):
            return P(), "a single element"
        if number is not None:
            pattern, spec = self.rules[number]
            return spec, f"its path has {pattern!r}"
        if self.strict:
            raise self._unmatched(path)
        return P(), "no pattern matches it"

    def check(self, paths: Sequence[str]) -> None:
        """Raises ShardingError if a pattern is in no path."""
        self._check_used({self._first(path) for path in paths}, paths)

    def specs_of(self, paths: Sequence[str], leaves: Sequence[Any], mesh: Mesh | None) -> list[P | None]:
        """As the base class, for many leaves: paths that differ in digits that no pattern tells apart are searched once."""
        numbers: dict[bytes | str, int | None] = {}
        distinct: list[str] = []
        specs: list[P | None] = []
        unmatched, whole, digits = None, P(), self._digits
        for path, leaf in zip(paths, leaves, strict=True):
            if not is_array(leaf):
                specs.append(None)
                continue
            key = path if digits is None else path.encode("utf-8", "surrogatepass").translate(digits)
            number = numbers.get(key, -1)
            if number == -1:
                number = numbers[key] = self._first(path)
                distinct.append(path)
            single = math.prod(leaf.shape) == 1 and not self._gives_sharding(number)
            specs.append(whole if single or number is None else self.rules[number][1])
            if number is None and not single and unmatched is None:
                unmatched = path
        self._check_used(set(numbers.values()), distinct)
        if unmatched is not None and self.strict:
            raise self._unmatched(unmatched)
        return specs

    def unused(self, pattern: str, paths: Sequence[str]) -> None:
        """What happens to a pattern that no path has: an error."""
        raise ShardingError(
            f"The pattern {pattern!r} matches no leaf. The paths are {_listed(paths)}. Correct or remove it."
        )

    def _first(self, path: str) -> int | None:
        """The number of the first pattern that a path has."""
        return next((number for number, pattern in enumerate(self._patterns) if self.search(pattern, path)), None)

    def _gives_sharding(self, number: int | None) -> bool:
        """Whether a rule gives a sharding rather than a spec: it is meant for just its leaves."""
        return number is not None and isinstance(self.rules[number][1], Sharding)

    def _check_used(self, first: set[int | None], paths: Sequence[str]) -> None:
        """Every pattern must be in the path of a leaf, even if an earlier one always comes first."""
        for number, pattern in enumerate(self._patterns):
            if number not in first and not any(self.search(pattern, path) for path in paths):
                self.unused(pattern.pattern, paths)

    def matches(self, path: str) -> bool:
        """Whether some pattern is in a path."""
        return self._first(path) is not None

    def _unmatched(self, path: str) -> ShardingError:
        patterns = ", ".join(repr(pattern) for pattern, _ in self.rules)
        return ShardingError(
            f"No pattern of {patterns} matches the leaf {path!r}. Add one, such as ('.*', P()) as the last, or "
            f"pass strict=False to replicate such leaves."
        )


class PolicyShardingRule(ShardingRule):
    """A function of path and leaf gives the spec of each leaf.

    >>> import numpy as np
    >>> PolicyShardingRule(lambda path, leaf: P("x") if leaf.ndim else P()).apply([np.ones(4), np.float32(1)])
    [P('x'), P()]
    """

    def __init__(self, policy: Callable[[str, Any], P]) -> None:
        self.policy = policy

    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        given = self.policy(path, leaf)
        return P() if given is None else given, "chosen by the policy"


def match_sharding_rule(rule: Any, tree: Any, mesh: Mesh) -> Any:
    """The tree of shardings that a rule, a `P`, a `Sharding`, or a tree of them gives for a tree of arrays.

    >>> import numpy as np
    >>> match_sharding_rule(P("x"), {"a": np.ones(4)}, Mesh(x=2))
    {'a': Sharding(Mesh(x=2), P('x'))}
    """
    found = resolved(rule, tree, mesh, "match_sharding_rule")
    return unflatten(structure_of(tree), found)


def resolved_by_name(rule: Any, tensors: Mapping[str, Any], mesh: Mesh, what: str) -> dict[str, Sharding | None]:
    """The sharding of each tensor by its dotted name, such as 'layers.0.weight'; None for entries that are not tensors.

    Patterns are matched against the names themselves, those with '/' against paths such as 'layers/0/weight' too.
    """
    tree = {_path(name): tensor for name, tensor in tensors.items() if is_array(tensor)}
    if isinstance(rule, Mapping):
        rule = {_path(name): entry for name, entry in rule.items()}
    if isinstance(rule, TreePathShardingRule):
        rule = copy.copy(rule)
        rule.search = lambda pattern, path: (
            ("/" in pattern.pattern and pattern.search(path)) or pattern.search(path.replace("/", "."))
        )
    found = dict(zip(tree, resolved(rule, tree, mesh, what), strict=True))
    return {name: found.get(_path(name)) for name in tensors}


def _path(name: str) -> str:
    return name.replace(".", "/")


def resolved(rule: Any, tree: Any, mesh: Mesh, what: str, names: Sequence[str] | None = None) -> list[Sharding | None]:
    """The sharding of each leaf of a tree; None if the rule gives none or the leaf is not an array.

    One rule for the whole tree may match other `names` of the leaves than their paths.
    """
    if rule is None or isinstance(rule, P | Sharding | ShardingRule):
        return _for_all(rule, tree, mesh, what, "", names)
    try:
        entries = prefix(rule, tree)
    except TreeError:
        raise
    except ValueError as error:
        if not isinstance(rule, dict | list | tuple):
            raise ShardingError(
                f"{what}: got {rule!r}. Give a P, a Sharding, a rule, None, or a tree of them."
            ) from error
        raise ShardingError(
            f"{what}: the tree of shardings does not match the tree of arrays: {_drawn(rule)} against {_drawn(tree)}. "
            f"Give the same structure, or a prefix of it."
        ) from error
    found: dict[int, Sharding | None] = {}
    for entry, name, part, places in entries:
        found.update(zip(places, _for_all(entry, part, mesh, what, name), strict=True))
    return [found[at] for at in sorted(found)]


def _for_all(
    rule: Any, tree: Any, mesh: Mesh, what: str, lead: str, names: Sequence[str] | None = None
) -> list[Sharding | None]:
    """One rule for all leaves of a tree."""
    leaves = flatten(tree)[0]
    paths = paths_of(tree) if names is None else names
    if rule is None:
        return [None] * len(leaves)
    if isinstance(rule, ShardingRule):
        # Rules that define only `apply` see the whole tree.
        specs: Sequence[P | Sharding | None] = (
            rule.specs(tree, mesh) if names is None else rule.specs_of(names, leaves, mesh)
        )
    elif isinstance(rule, P | Sharding):
        specs = [rule if is_array(leaf) else None for leaf in leaves]
    else:
        raise ShardingError(f"{what}: got {rule!r}. Give a P, a Sharding, a rule, None, or a tree of them.")
    made: list[Sharding | None] = []
    for path, leaf, spec in zip(paths, leaves, specs, strict=True):
        if spec is None:
            made.append(None)
            continue
        try:
            sharding = spec if isinstance(spec, Sharding) else Sharding(mesh, spec)
            if sharding.mesh != mesh:
                raise ShardingError(f"it is on {sharding.mesh}, not on {mesh}.")
            made.append(sharding.for_shape(tuple(leaf.shape)))
        except ShardingError as error:
            where = "/".join(part for part in (lead, path) if part)
            raise ShardingError(f"{what}{f', leaf {where!r}' if where else ''}: {error}") from error
    return made


def _is_float(dtype: Any) -> bool:
    """Whether a dtype is real or complex floating point; of JAX's random keys and the like NumPy knows nothing."""
    try:
        known = as_dtype(dtype)
    except ShardwrightError:
        return False
    return known.kind not in "biu" and "int" not in known.name  # int4 has the kind of a structure


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ShardingError(f"The pattern {pattern!r} is not a valid regular expression: {error}.") from error


def _alike_digits(patterns: Sequence[str]) -> bytes | None:
    """A table that maps each digit to the first one that no pattern tells from it; None if that is not known.

    A pattern can tell two digits apart only if it names one that is not above the first and not below the second:
    with [2-4] the digits 0 and 1 are alike, 3 is alone, and 5 to 9 are alike. Paths that the table makes equal, such
    as those of 10,000 layers, therefore match alike. References to groups and escaped characters are not looked into.
    """
    text = "\n".join(patterns)
    if re.search(r"\\[0-9xuUN]|\(\?P=", text):
        return None
    table, first, previous = bytearray(range(256)), "0", False
    for digit in "0123456789":
        named = digit in text
        if named or previous:
            first = digit
        table[ord(digit)], previous = ord(first), named
    return bytes(table)


def _drawn(tree: Any) -> str:
    """The structure of a tree as text, with dots for its leaves."""
    text = str(structure_of(tree)).removeprefix("PyTreeSpec(").removesuffix(")").split(", namespace=")[0]
    shown = text.replace("*", "·")
    return shown if len(shown) <= 120 else f"{shown[:117]}…"


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(map(repr, paths[:20]))
    return f"{shown} and {len(paths) - 20} more" if len(paths) > 20 else shown or "none"
