"""Plans against what others published: bounds of matrix products, Megatron, fully sharded weights, the batch rule; and against
propagation on the cases of test_propagation."""

import math
from collections import Counter

import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, ShapeDtype, nn

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")


# -- matrix products (Al Daas et al., arXiv 2205.13407) ---------------------------------------------------------------


def product_mesh(**sizes):
    """Chips slow enough that all of them must compute, links without latency: after that bytes decide."""
    chip = sw.hardware.Chip({"float32": 1e11}, 1e30, 1e30)
    hardware = sw.hardware.Hardware("slow", chip, (sw.hardware.Level(sw.Link()),), "for tests")
    return sw.Mesh(sizes, hardware=hardware, links={axis: sw.Link("switch", 1e9, 1e-12, 0.0) for axis in sizes})


def product(a, b):
    return a @ b


def spread_product(mesh, m, n, k, more=0):
    """The best plan of an m×k by k×n product whose operands are spread over all devices, which may hold some elements more
    than the smallest shards."""
    plan = sw.auto(product, mesh, ShapeDtype((m, k), "float32"), ShapeDtype((k, n), "float32"))
    return plan._search.solved({}, sum(min(some) for some in plan.found.model.held.values()) + 4 * more)


def bound_of(m, n, k, devices):
    """Elements that a device receives at least: what it works on, less its part of all three matrices."""
    m, n, k = sorted((m, n, k), reverse=True)
    if devices <= m / n:
        touched = n * k + m * (n + k) / devices
    elif devices <= m * n / k**2:
        touched = 2 * math.sqrt(m * n * k**2 / devices) + m * n / devices
    else:
        touched = 3 * (m * n * k / devices) ** (2 / 3)
    return touched - (m * n + m * k + n * k) / devices


@pytest.mark.parametrize(
    ("sizes", "elements"), [({"x": 4}, 1_080_000), ({"x": 2, "y": 2}, 1_080_000), ({"x": 12, "y": 3}, 760_000)]
)
def test_products_attain_the_bound(sizes, elements):
    devices = math.prod(sizes.values())
    assert bound_of(9600, 2400, 600, devices) == pytest.approx(elements)
    found = spread_product(product_mesh(**sizes), 9600, 2400, 600)
    assert found.explanation.total_bytes == 4 * elements
    assert found.solution.held == 4 * (9600 * 600 + 600 * 2400) // devices


@pytest.mark.parametrize(
    ("more", "held", "elements"), [(0, 14_100, 225_000), (149, 14_100, 225_000), (150, 14_250, 216_000)]
)
def test_a_product_on_512_devices_comes_near_the_bound(more, held, elements):
    """Blocks of 300×300×300 receive 210,937.5 at best, but 600 columns over 16 devices are blocks of 38, the last of 30: a
    device holds 300×38 of A, the one with 300×30 receives the other 81,000 of its 90,000. The smallest shards, 150×75, are not
    part of what each device works on."""
    assert bound_of(9600, 2400, 600, 512) == pytest.approx(210_937.5)
    found = spread_product(product_mesh(x=32, y=8, z=2), 9600, 2400, 600, more)
    assert found.explanation.total_bytes == 4 * elements
    assert found.solution.held == 4 * held


def test_a_cube_on_a_cube_attains_the_bound():
    """A's columns, B's rows and the result's reduction each cross one axis of 4×4×4; a matrix has its rows split by y, then by
    x, or by z, then by another: orders that are not the mesh's."""
    assert bound_of(4096, 4096, 4096, 64) == pytest.approx(2_359_296)
    found = spread_product(product_mesh(x=4, y=4, z=4), 4096, 4096, 4096)
    assert found.explanation.total_bytes == 4 * 2_359_296
    assert found.solution.held == 4 * 2 * 4096**2 // 64


# -- the batch rule (the scaling book) --------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "limited_by_compute"), [(0.85, False), (1.1, True)])
def test_gathered_weights_are_hidden_from_a_batch_of_flops_over_bandwidth(part, limited_by_compute):
    """On a TPU v5p, 459 TFLOP/s and 2 × 90 GB/s along an axis, that is 2,550 tokens a chip."""
    flops, bandwidth, chips = 459e12, 180e9, 16
    tokens = flops / bandwidth
    assert tokens == pytest.approx(2550)
    chip = sw.hardware.Chip({"bfloat16": flops}, 1e30, 1e30)
    hardware = sw.hardware.Hardware("v5p", chip, (sw.hardware.Level(sw.Link()),), "for tests")
    mesh = sw.Mesh(dp=chips, hardware=hardware, links={"dp": sw.Link("switch", bandwidth, 0.0, 0.0)})
    x = ShapeDtype((round(part * tokens) * chips, 8192), "bfloat16")
    w = ShapeDtype((8192, 8192), "bfloat16")
    explanation = sw.auto(product, mesh, x, w, fixed={"a": P("dp"), "b": P("dp")}).explain()
    assert [row.operands for row in explanation.collectives] == [("bf16[8192@dp,8192]",)]  # the weight alone moves
    assert (explanation.compute_time > explanation.communication_time) == limited_by_compute


# -- decoders ---------------------------------------------------------------------------------------------------------

LAYERS, ROWS, LENGTH, D, H, KV, F, V = 4, 16, 8192, 4096, 32, 8, 14336, 128256
LINKS = {"dp": sw.Link("line", 50e9), "tp": sw.Link("switch", 400e9, 1e-6)}
MESH = sw.Mesh(dp=8, tp=8, hardware="h100", links=LINKS)
SHAPES = {
    "n1": (D,), "wq": (D, H, D // H), "wk": (D, KV, D // H), "wv": (D, KV, D // H), "wo": (H, D // H, D),
    "n2": (D,), "wg": (D, F), "wu": (D, F), "wd": (F, D),
}  # fmt: skip
COLUMNS, ROWS_SPLIT = P(None, "tp"), P("tp")
MEGATRON = dict.fromkeys(["wq", "wk", "wv", "wg", "wu", "head"], COLUMNS) | dict.fromkeys(
    ["embed", "wo", "wd"], ROWS_SPLIT
)
TWO_D = dict.fromkeys(["wq", "wk", "wv", "wg", "wu", "head"], P("dp", "tp"))
TWO_D |= {"embed": P("tp", "dp"), "wo": P("tp", None, "dp"), "wd": P("tp", "dp")}
FSDP = dict.fromkeys(["embed", "wq", "wk", "wv", "wg", "wu", "wd", "head"], P(("dp", "tp"))) | {"wo": P("dp", "tp")}
HAND = {"Megatron": MEGATRON, "2-D": TWO_D, "FSDP": FSDP}


def decoder(ids, p):
    x = nn.embedding(p["embed"], ids)
    for w in p["layers"]:
        h = nn.rms_norm(x, w["n1"])
        q, k, v = (snp.einsum("bsd,dhe->bhse", h, w[name]) for name in ("wq", "wk", "wv"))
        x = x + snp.einsum("bhse,hed->bsd", nn.scaled_dot_product_attention(q, k, v, causal=True), w["wo"])
        h = nn.rms_norm(x, w["n2"])
        gated = nn.silu(snp.einsum("bsd,df->bsf", h, w["wg"])) * snp.einsum("bsd,df->bsf", h, w["wu"])
        x = x + snp.einsum("bsf,fd->bsd", gated, w["wd"])
    return snp.einsum("bsd,dv->bsv", nn.rms_norm(x, p["norm"]), p["head"])


def arguments(layers=LAYERS):
    def weight(shape):
        return ShapeDtype(shape, "bfloat16")

    p = {"embed": weight((V, D)), "norm": weight((D,)), "head": weight((D, V))}
    p["layers"] = [{name: weight(shape) for name, shape in SHAPES.items()} for _ in range(layers)]
    return ShapeDtype((ROWS, LENGTH), "int64"), p


def by_hand(specs, layers=LAYERS):
    """Every weight by name."""
    placed = {f"p/{name}": specs.get(name, P()) for name in ("embed", "norm", "head")}
    return placed | {f"p/layers/{n}/{name}": specs.get(name, P()) for n in range(layers) for name in SHAPES}


@pytest.fixture(scope="module")
def free():
    """The batch is split along dp, all else is open, and memory is that of the chip."""
    return sw.auto(decoder, MESH, *arguments(), fixed={"ids": P("dp")})


@pytest.fixture(scope="module")
def within(free):
    """For each placement by hand: its plan, and the best plan that holds no more."""
    found = {}
    for name, specs in HAND.items():
        inputs = {
            free._inputs[n]: sw.Sharding(MESH, s).for_shape(free._inputs[n].type.shape)
            for n, s in by_hand(specs).items()
        }
        hand = free._search.unlimited.best(inputs)
        found[name] = hand, free._search.solved({}, hand.solution.held)
    return found


def placed(free, found, name):
    return {found.placed(free._inputs[f"p/layers/{n}/{name}"]).spec for n in range(LAYERS)}


def test_with_memory_to_spare_weights_are_whole_and_sequences_split(free):
    assert {free.places[f"p/layers/{n}/{name}"].spec for n in range(LAYERS) for name in ("wg", "wd")} == {P(None, None)}
    assert free.gap < 1e-9
    assert not [
        row
        for row in free.explain().collectives
        if row.collective.startswith(("all_reduce", "reduce_scatter")) and row.bytes > 1e6
    ]


@pytest.mark.parametrize("name", HAND)
def test_no_placement_by_hand_is_better_at_its_memory(name, free, within):
    hand, best = within[name]
    assert best.solution.held <= hand.solution.held
    assert free.time <= best.bound * (1 + 1e-9)
    assert best.bound <= best.time <= hand.time
    assert best.time <= best.bound * 1.001
    (row,) = free.compare({name: by_hand(HAND[name])}).rows[1:]
    assert row.time == pytest.approx(hand.time, rel=1e-9)
    assert free.bound <= row.time


def test_within_megatrons_memory_its_columns_and_rows_are_found(free, within):
    """autoparallel published the same for LLaMA3-8B: w1 and w3 by column, w2 by row, wo sequence parallel."""
    _, best = within["Megatron"]
    assert placed(free, best, "wg") == placed(free, best, "wu") == {P(None, "tp")}
    assert placed(free, best, "wd") == {P("tp", None)}
    results = [row.results[0] for row in best.explanation.rows if row.operation == "einsum"]
    assert results.count(f"bf16[{ROWS}@dp,{LENGTH}@tp,{D}]") == LAYERS  # of wo; that of wd is reduce-scattered
    scattered = Counter(row.collective for row in best.explanation.collectives if row.bytes > 1e6)
    assert scattered["reduce_scatter tp"] == LAYERS
    assert scattered["all_reduce tp"] == 0


@pytest.mark.parametrize("name", ["2-D", "FSDP"])
def test_in_little_memory_weights_are_spread_over_all_devices_and_gathered(name, free, within):
    _, best = within[name]
    for weight in ("wq", "wk", "wv", "wo", "wg", "wu", "wd"):
        (spec,) = placed(free, best, weight)
        assert [axis for dim in spec for axis in dim] == ["dp", "tp"]
    moved = [row for row in best.explanation.collectives if row.bytes > 1e6]
    along_dp = [row for row in moved if "dp" in row.collective and row.operands[0].startswith(f"bf16[{ROWS}")]
    assert len(along_dp) <= 1  # the batch stays: from the embedding's width at most
    assert sum(row.collective.startswith("all_gather") and "dp" in row.collective for row in moved) >= 7 * LAYERS


def test_a_loop_over_layers_is_laid_out_by_its_batch_too():
    """The stacked weights are larger than the batch, which must have its turn."""

    def net(x, layers):
        return sw.scan(lambda h, w: (h + snp.tanh(h @ w["up"]) @ w["down"], None), x, layers)[0]

    x, layers = (
        ShapeDtype((4096, 1024), "float32"),
        {"up": ShapeDtype((8, 1024, 4096), "float32"), "down": ShapeDtype((8, 4096, 1024), "float32")},
    )
    mesh = sw.Mesh(dp=2, tp=4, hardware="h100")
    plan = sw.auto(net, mesh, x, layers)
    assert plan.certificate.check()
    for spec in (P("dp"), P("tp"), P(("dp", "tp"))):
        assert plan.time <= sw.auto(net, mesh, x, layers, fixed={"x": spec}).time * (1 + 1e-9)
    for row in plan.compare(
        {"batch": {"x": P("dp")}, "columns": {"x": P("dp"), "layers/up": P(None, None, "tp")}}
    ).rows:
        assert row.time >= plan.bound * (1 - 1e-9)


def test_equal_layers_of_a_decoder_are_placed_alike(free, within):
    for found in (free.found, *(best for _, best in within.values())):
        for name in SHAPES:
            assert len(placed(free, found, name)) == 1


@pytest.mark.parametrize("layers", [2, 12])
def test_megatron_by_hand_needs_no_more_than_two_all_reduces_a_layer_and_one_for_the_embedding(layers):
    """What weights alone say; where values between them lie is the plan's, and it may take a scatter and a gather for each."""
    plan = sw.auto(decoder, MESH, *arguments(layers), fixed={"ids": P("dp")} | by_hand(MEGATRON, layers))
    whole = ROWS // 8 * LENGTH * D * 2
    received = sum(row.bytes for row in plan.explain().collectives)
    assert received <= (2 * layers + 1) * 2 * whole * 7 // 8
    assert plan.certificate.check()


# -- propagation alone ------------------------------------------------------------------------------------------------


def propagated(mesh, specs, layers):
    ids, p = arguments(layers)
    names = {"ids": P("dp")} | by_hand(specs, layers)

    def put(x, name):
        return ShapeDtype(x.shape, x.dtype, sw.Sharding(mesh, names[name]))

    lists = [{n: put(x, f"p/layers/{at}/{n}") for n, x in w.items()} for at, w in enumerate(p["layers"])]
    given = {name: put(p[name], f"p/{name}") for name in ("embed", "norm", "head")} | {"layers": lists}
    plan = sw.auto(decoder, mesh, ids, p, fixed=names, memory=1e15)
    return sw.explain(decoder, put(ids, "ids"), given).time / plan.time


def test_fully_sharded_weights_by_propagation_are_near_the_plan():
    mesh = sw.Mesh(dp=8, hardware="h100", links={"dp": LINKS["dp"]})
    along_dp = dict.fromkeys(["embed", "wq", "wk", "wv", "wo", "wg", "wu", "wd", "head"], P("dp"))
    assert 1 <= propagated(mesh, along_dp, 12) <= 1.15


@pytest.mark.parametrize(
    ("specs", "most"), [(MEGATRON, 1.15), (TWO_D, 1.15), (FSDP, 1.5)], ids=["Megatron", "2-D", "FSDP"]
)
def test_propagation_is_near_a_plan_of_the_same_inputs_and_never_better(specs, most):
    """Sums are scattered, so that devices don't compute norms twice; weights are gathered, and the batch stays."""
    assert 1 - 1e-9 <= propagated(MESH, specs, 12) <= most
