"""Rule makers by family: each gives an operation's factor rule for the operands' shapes and the attributes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwright.errors import OperationError
from shardwright.ops.rule import Rule, Shape, rule

Attrs = Mapping[str, Any]
Shapes = Sequence[Shape]
RuleMaker = Callable[[Shapes, Attrs], Rule]


def elementwise(name: str, linear: str = "") -> RuleMaker:
    """Element by element, broadcasting."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        side = attrs.get("scalars")  # x + 1 is not linear in a partial x, nor is 1 / x
        kind = "" if (side and linear == "add") or (side == "left" and linear == "over") else linear
        return rule(name, ", ".join(["..."] * len(shapes)) + " -> ...", shapes, linear=kind)

    return make


def checked(name: str) -> RuleMaker:
    """Element by element, after all devices check that their data is in range."""
    return lambda shapes, attrs: replace(elementwise(name)(shapes, attrs), agrees=True)


def kept(name: str) -> RuleMaker:
    """Element by element; the first operand stays where it is, and the others broadcast to it."""
    return lambda shapes, attrs: replace(elementwise(name)(shapes, attrs), keeps=True)


def dim_names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def reduced(name: str, reduction: str, linear: str = "") -> RuleMaker:
    """A reduction over dims."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = dim_names(len(shapes[0]))
        gone = set(attrs["axis"])
        kept = ["()" if i in gone else n for i, n in enumerate(names) if i not in gone or attrs.get("keepdims")]
        sums = {names[i]: reduction for i in gone}
        return rule(name, f"{' '.join(names)} -> {' '.join(kept)}", shapes, sums=sums, linear=linear)

    return make


def along_whole(name: str, key: str = "axis", linear: str = "") -> RuleMaker:
    """Along one or more dims that must not be split; the other dims may be."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = dim_names(len(shapes[0]))
        axis = attrs[key]
        whole = [names[i] for i in ((axis,) if isinstance(axis, int) else axis)]
        text = " ".join(names)
        new = attrs.get("sizes")  # an fft may change the length
        if new is None:
            return rule(name, f"{text} -> {text}", shapes, whole=whole, linear=linear)
        result = [f"{n}'" if n in whole else n for n in names]
        sizes = {f"{w}'": size for w, size in zip(whole, new, strict=True)}
        return rule(name, f"{text} -> {' '.join(result)}", shapes, whole=[*whole, *sizes], sizes=sizes, linear=linear)

    return make


def as_text(name: str, text: str, sums: str = "", whole: str = "", linear: str = "") -> RuleMaker:
    """A rule given by its text."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        sizes = attrs.get("sizes")
        return rule(
            name,
            text,
            shapes,
            sums=dict.fromkeys(sums.split(), "sum"),
            whole=whole,
            linear=linear,
            sizes=dict(sizes) if sizes else None,
        )

    return make


def tolerant(name: str, result: str) -> RuleMaker:
    """Matrices, with an optional tolerance for each."""
    return lambda shapes, attrs: rule(name, f"... m n{', ...' * (len(shapes) - 1)} -> {result}", shapes, whole="m n")


def einsum(shapes: Shapes, attrs: Attrs) -> Rule:
    left, right = attrs["text"].split("->")
    used = dict.fromkeys(left.replace(",", " ").split())
    sums = {factor: "sum" for factor in used if factor != "..." and factor not in right.split()}
    return rule(attrs["name"], attrs["text"], shapes, sums=sums, linear="mul")


def permute_dims(shapes: Shapes, attrs: Attrs) -> Rule:
    names = dim_names(len(shapes[0]))
    return rule(
        "permute_dims", f"{' '.join(names)} -> {' '.join(names[i] for i in attrs['axes'])}", shapes, linear="move"
    )


def reshape(shapes: Shapes, attrs: Attrs) -> Rule:
    """Dims that end at the same element form a block; inside a block dims are products of common factors."""
    old, new = shapes[0], attrs["shape"]
    if math.prod(old) != math.prod(new):
        raise OperationError(
            f"reshape: a tensor of shape {old} has {math.prod(old)} elements, the shape {new} {math.prod(new)}."
        )
    sizes: dict[str, int] = {}
    whole: list[str] = []
    dims_old: list[tuple[str, ...]] = [()] * len(old)
    dims_new: list[tuple[str, ...]] = [()] * len(new)
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            sizes[f"r{len(sizes)}"] = old[i]
            dims_old[i] = dims_new[j] = (f"r{len(sizes) - 1}",)
            i, j = i + 1, j + 1
            continue
        start_i, start_j = i, j
        a, b = 1, 1
        while (i, j) == (start_i, start_j) or a != b:  # grow the smaller side until both hold the same elements
            if not math.prod(old):
                i, j = len(old), len(new)  # no elements: the remaining dims are one block
                break
            if i < len(old) and (a <= b or j == len(new)):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        factor_block(old[start_i:i], new[start_j:j], dims_old, dims_new, start_i, start_j, sizes, whole)
    return Rule((tuple(dims_old),), (tuple(dims_new),), sizes, whole=frozenset(whole), linear="move")


def factor_block(
    old: Shape,
    new: Shape,
    dims_old: list[tuple[str, ...]],
    dims_new: list[tuple[str, ...]],
    at_old: int,
    at_new: int,
    sizes: dict[str, int],
    whole: list[str],
) -> None:
    """Cuts a block into factors at the dim boundaries of both shapes, if these divide one another."""

    def ends(shape: Shape) -> list[int]:
        total, result = 1, []
        for size in reversed(shape):
            total *= size
            result.append(total)
        return result

    total = math.prod(old)
    marks = sorted({1, *ends(old), *ends(new)}, reverse=True)
    nested = 0 < total == math.prod(new) and all(a % b == 0 for a, b in itertools.pairwise(marks))
    for shape, dims, at in ((old, dims_old, at_old), (new, dims_new, at_new)):
        below = total
        for place, size in enumerate(shape):
            if not nested:
                name = f"r{len(sizes)}"
                sizes[name] = size
                whole.append(name)
                dims[at + place] = (name,)
                continue
            outer, below = below, below // size
            inside = [m for m in marks if below <= m <= outer]
            dims[at + place] = tuple(block_factor(at_old, a, b, sizes) for a, b in itertools.pairwise(inside))


def block_factor(block: int, high: int, low: int, sizes: dict[str, int]) -> str:
    name = f"r{block}:{high}:{low}"
    sizes[name] = high // low
    return name


def broadcast_to(shapes: Shapes, attrs: Attrs) -> Rule:
    new = attrs["shape"]
    names = [f"b{i}" for i in range(len(new))]
    lead = len(new) - len(shapes[0])
    dims, whole = [], []
    for at, size in enumerate(new):
        own = shapes[0][at - lead] if at >= lead else None
        if own is None or own != size:
            if own not in (None, 1):
                raise OperationError(
                    f"broadcast_to: shape {shapes[0]} does not broadcast to {new}: size {own} meets size {size}."
                )
            whole.append(names[at])
        if own is not None:
            dims.append((names[at],) if own == size else ())
    sizes = dict(zip(names, new, strict=True))
    return Rule((tuple(dims),), (tuple((n,) for n in names),), sizes, whole=frozenset(whole), linear="move")


def moved_rows(name: str) -> RuleMaker:
    """Dims whose rows come from known rows of the operand; attrs: maps, one RowMap or None per dim."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = dim_names(len(shapes[0]))
        rows = {n: m for n, m in zip(names, attrs["maps"], strict=True) if m is not None}
        return rule(name, f"{' '.join(names)} -> {' '.join(names)}", shapes, rows=rows, linear="move")

    return make


def prefix(name: str) -> RuleMaker:
    """Along one dim, each row combined with all rows before it."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = dim_names(len(shapes[0]))
        return rule(name, f"{' '.join(names)} -> {' '.join(names)}", shapes, prefix=names[attrs["axis"]])

    return make


def top_k(shapes: Shapes, attrs: Attrs) -> Rule:
    """The k largest or smallest along a dim, and their places; where the dim is split, shards pass on k candidates each."""
    names, axis, k = dim_names(len(shapes[0])), attrs["axis"], attrs["k"]
    result = " ".join("k" if at == axis else name for at, name in enumerate(names))
    fitted = rule("top_k", f"{' '.join(names)} -> {result}, {result}", shapes, whole="k", sizes={"k": k})
    return replace(fitted, selects=(names[axis], k))


def concat(shapes: Shapes, attrs: Attrs) -> Rule:
    axis = attrs["axis"]
    names = dim_names(len(shapes[0]))
    texts = [" ".join(f"{n}.{i}" if at == axis else n for at, n in enumerate(names)) for i in range(len(shapes))]
    whole = [f"{names[axis]}.{i}" for i in range(len(shapes))] + [names[axis]]
    sizes = {names[axis]: sum(shape[axis] for shape in shapes)}
    return rule("concat", f"{', '.join(texts)} -> {' '.join(names)}", shapes, whole=whole, sizes=sizes, linear="add")


def take(shapes: Shapes, attrs: Attrs) -> Rule:
    names, axis = dim_names(len(shapes[0])), attrs["axis"]
    numbers = [f"i{n}" for n in range(len(shapes[1]))]
    result = [*names[:axis], *numbers, *names[axis + 1 :]]
    # Rows absent from a shard count as zero, so rows that are split leave a sum over the devices.
    return rule(
        "take",
        f"{' '.join(names)}, {' '.join(numbers)} -> {' '.join(result)}",
        shapes,
        sums={names[axis]: "sum"},
        linear="first",
    )


def pick(shapes: Shapes, attrs: Attrs) -> Rule:
    """One element along a dim for each place of the others; where the dim is split, devices that lack it count as zero."""
    names, axis = dim_names(len(shapes[0])), attrs["axis"]
    rest = " ".join(name for at, name in enumerate(names) if at != axis)
    return rule("pick", f"{' '.join(names)}, {rest} -> {rest}", shapes, sums={names[axis]: "sum"}, linear="first")


def assign(shapes: Shapes, attrs: Attrs) -> Rule:
    """x with other rows; attrs: maps, per dim None or the RowMap from the rows of the value to those of x they replace.

    The value has a dim for each of x's, of size 1 where it is broadcast. Its rows go to the devices that hold the rows that
    they replace, so x never moves.
    """
    names = dim_names(len(shapes[0]))
    sizes = dict(zip(names, shapes[0], strict=True))
    value: list[tuple[str, ...]] = []
    owners = {}
    for name, size, row_map in zip(names, shapes[1], attrs["maps"], strict=True):
        if size == 1 and (sizes[name] if row_map is None else row_map.size) != 1:
            value.append(())
        elif row_map is None:
            value.append((name,))
        else:
            owners[f"{name}'"] = (name, row_map)
            sizes[f"{name}'"] = size
            value.append((f"{name}'",))
    dims = tuple((name,) for name in names)
    return Rule((dims, tuple(value)), (dims,), sizes, whole=frozenset(owners), owners=owners, keeps=True)


def scatter(shapes: Shapes, attrs: Attrs) -> Rule:
    """x with elements replaced that index arrays name; attrs: dims, those that are indexed, one array for each.

    The value's first dim runs over the index arrays, the others are x's dims that are not indexed. Arrays and value
    go to every device, x never moves. Rows for places that x does not have are dropped.
    """
    names = dim_names(len(shapes[0]))
    rest = [name for at, name in enumerate(names) if at not in attrs["dims"]]
    value = [
        (name,) if size == shapes[0][names.index(name)] else () for name, size in zip(rest, shapes[1][1:], strict=True)
    ]
    first: tuple[str, ...] = ("i",) if shapes[1][0] == shapes[2][0] else ()
    dims = tuple((name,) for name in names)
    sizes = {**dict(zip(names, shapes[0], strict=True)), "i": shapes[2][0]}
    index: tuple[tuple[str, ...], ...] = (("i",),)
    return Rule(
        (dims, (first, *value), *(index,) * (len(shapes) - 2)), (dims,), sizes, whole=frozenset("i"), keeps=True
    )


SCATTERS = {"add": "sum", "mul": "product", "max": "max", "min": "min"}  # how a scatter combines: its reduction


def scatter_reduce(shapes: Shapes, attrs: Attrs) -> Rule:
    """x with the elements of updates combined into the places that index arrays name; attrs: op; dims, those that are
    indexed, one array for each; index and updates, the factors of their dims.

    Where a factor of the index arrays alone is split, each device combines its own updates and the results are left to be
    reduced; x joins that reduction once. Rows of x that another device holds are passed over.
    """
    names = dim_names(len(shapes[0]))
    index, updates = attrs["index"], attrs["updates"]
    points = {factor: SCATTERS[attrs["op"]] for factor in index.split() if factor not in names}
    text = f"{' '.join(names)}, {updates}{f', {index}' * (len(shapes) - 2)} -> {' '.join(names)}"
    fitted = rule("scatter_reduce", text, shapes, sums=points, linear="add" if attrs["op"] == "add" else "")
    return replace(fitted, joins=True, constants=frozenset(range(2, len(shapes))))


def take_along_axis(shapes: Shapes, attrs: Attrs) -> Rule:
    axis, names = attrs["axis"], dim_names(len(shapes[0]))
    other = [f"{n}'" if at == axis else n for at, n in enumerate(names)]
    for at, (a, b) in enumerate(zip(*shapes, strict=True)):
        if at != axis and a != b:  # a broadcast dim must not be split on either side
            other[at] = f"{names[at]}'"
    result = [
        a if b == a or (shapes[0][i] != 1 and i != axis) else b
        for i, (a, b) in enumerate(zip(names, other, strict=True))
    ]
    whole = [n for pair in zip(names, other, strict=True) if pair[0] != pair[1] for n in pair]
    return rule("take_along_axis", f"{' '.join(names)}, {' '.join(other)} -> {' '.join(result)}", shapes, whole=whole)


def attention(shapes: Shapes, attrs: Attrs) -> Rule:
    """Queries `… (h g) q d`, keys `… h s d`, values `… h s e` and perhaps a mask that broadcasts to `… (h g) q s`."""
    heads, shared = shapes[0][-3], shapes[1][-3]
    sizes = {"h": shared, "g": heads // shared} if heads != shared else {"h": heads}
    head = "(h g)" if heads != shared else "h"
    text = f"... {head} q d, ... h s d, ... h s e"
    if len(shapes) > 3:
        full = zip((head, "q", "s"), (heads, shapes[0][-2], shapes[1][-2]), strict=True)
        own = (1,) * (3 - len(shapes[3])) + shapes[3][-3:]
        dims = [factor if n == size else "()" for (factor, size), n in zip(full, own, strict=True)]
        text += f", {'... ' if len(shapes[3]) > 3 else ''}{' '.join(dims[max(3 - len(shapes[3]), 0) :])}"
    fitted = rule("attention", f"{text} -> ... {head} q e", shapes, sums={"s": "sum"}, whole="d", sizes=sizes)
    return replace(fitted, normalizes="s")


def windows(name: str) -> RuleMaker:
    """`b spatial… c`, and for a convolution `window… c o`; attrs: maps, one RowMap per spatial dim; groups."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        maps = attrs["maps"]
        places = [f"s{i}" for i in range(len(maps))]
        rows = dict(zip(places, maps, strict=True))
        text = f"b {' '.join(places)} c"
        if len(shapes) == 1:
            return rule(name, f"{text} -> {text}", shapes, rows=rows, fill="lowest" if name == "max_pool" else "zero")
        offsets = [f"w{i}" for i in range(len(maps))]
        if attrs["groups"] > 1:
            return rule(
                name,
                f"{text}, {' '.join(offsets)} i o -> b {' '.join(places)} o",
                shapes,
                rows=rows,
                whole=[*offsets, "c", "i", "o"],
            )
        return rule(
            name,
            f"{text}, {' '.join(offsets)} c o -> b {' '.join(places)} o",
            shapes,
            rows=rows,
            whole=offsets,
            sums={"c": "sum"},
            linear="mul",
        )

    return make


def from_places(name: str) -> RuleMaker:
    """Elements computed from their own indices only."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = dim_names(len(attrs["shape"]))
        return Rule((), (tuple((n,) for n in names),), dict(zip(names, attrs["shape"], strict=True)))

    return make


def elements_alike(shapes: Shapes, attrs: Attrs) -> Rule:
    """Operands of one shape and sharding, for a result with a data-dependent shape."""
    text = " ".join(dim_names(len(shapes[0])))
    return rule("elements", f"{', '.join([text] * len(shapes))} -> n", shapes, sizes={"n": 0})


def whole_operands(shapes: Shapes, attrs: Attrs) -> Rule:
    """Operands that are not split, for a result with a data-dependent shape."""
    names = [f"{i}.{d}" for i, shape in enumerate(shapes) for d in range(len(shape))]
    sizes = {f"{i}.{d}": n for i, shape in enumerate(shapes) for d, n in enumerate(shape)}
    inputs = tuple(tuple((f"{i}.{d}",) for d in range(len(shape))) for i, shape in enumerate(shapes))
    return Rule(inputs, (), sizes, whole=frozenset(names))
