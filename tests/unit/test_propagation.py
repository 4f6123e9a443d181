"""What propagation leads to: communication as the textbook has it, for programs annotated as people write them.

Expected bytes are worked out by hand. p devices that gather or reduce-scatter n bytes receive n·(p - 1)/p each.
"""

from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.engines import engine_of

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")


# Chips whose computing takes no time, so that communication alone decides, and links as the textbook has them.
FREE = sw.hardware.Hardware(
    "free", sw.hardware.Chip({"float32": 1e30}, 1e30, 1e12), (sw.hardware.Level(sw.Link()),), "for tests"
)


def abstract(mesh, shape, spec, dtype="float32"):
    return sw.ShapeDtype(shape, dtype, sw.Sharding(mesh, spec))


# -- a Megatron block with sequence parallelism -----------------------------------------------------------------------

DP, TP, WIDTH, HEADS, FF, BATCH = 2, 4, 4096, 32, 16384, 8
BLOCK = sw.Mesh(dp=DP, tp=TP, hardware=FREE)


def block(x, p, causal=True):
    """Its input and its output lie between blocks, where the sequence is split."""
    x = sw.with_sharding_constraint(x, P("dp", "tp"))
    batch, length, width = x.shape
    h = nn.rms_norm(x, p["n1"])
    q, k, v = (
        snp.permute_dims(snp.reshape(h @ p[name], (batch, length, HEADS, width // HEADS)), (0, 2, 1, 3))
        for name in "qkv"
    )
    a = snp.permute_dims(nn.scaled_dot_product_attention(q, k, v, causal=causal), (0, 2, 1, 3))
    x = x + snp.reshape(a, (batch, length, width)) @ p["o"]
    x = x + nn.gelu(nn.rms_norm(x, p["n2"]) @ p["up"]) @ p["down"]
    return sw.with_sharding_constraint(x, P("dp", "tp"))


def block_weights():
    column, row, whole = P(None, "tp"), P("tp"), P()
    shapes = {"n1": ((WIDTH,), whole), "n2": ((WIDTH,), whole), "o": ((WIDTH, WIDTH), row)}
    shapes |= dict.fromkeys("qkv", ((WIDTH, WIDTH), column))
    shapes |= {"up": ((WIDTH, FF), column), "down": ((FF, WIDTH), row)}
    return {name: abstract(BLOCK, *kind) for name, kind in shapes.items()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("length", [512, 1024, 2048, 4096])
def test_a_megatron_block_with_sequence_parallelism_receives_no_more_than_the_textbook(length, blocks, causal):
    """The sequence is gathered before q, k, v and before the MLP, and scattered after the output and after the MLP."""
    activations = BATCH // DP * length * WIDTH * 4  # bytes, of the batch that a group of tp devices has
    textbook = blocks * 4 * activations * (TP - 1) // TP

    def fn(x, *weights):
        for p in weights:
            x = block(x, p, causal)
        return x

    x = abstract(BLOCK, (BATCH, length, WIDTH), P("dp", "tp"))
    explanation = sw.explain(fn, x, *[block_weights() for _ in range(blocks)])
    assert explanation.total_bytes <= textbook
    assert explanation.rows[-1].results == (f"f32[{BATCH}@dp,{length}@tp,{WIDTH}]",)


def test_the_textbook_figure_of_a_long_sequence():
    assert 4 * (BATCH // DP * 4096 * WIDTH * 4) * (TP - 1) // TP == 805_306_368


def test_a_tensor_is_gathered_once_for_four_products_that_would_each_gather_a_weight():
    """Gathering x takes 3 units, each weight 2: one by one that is 8."""
    mesh = sw.Mesh(tp=4, hardware=FREE, links=sw.Link(latency=1e-9, hop=0.0))
    x, w = abstract(mesh, (96, 64), P("tp")), abstract(mesh, (64, 64), P(None, "tp"))
    explanation = sw.explain(lambda x, a, b, c, d: (x @ a, x @ b, x @ c, x @ d), x, w, w, w, w)
    assert [(row.collective, row.bytes) for row in explanation.collectives] == [("all_gather tp", 96 * 64 * 4 * 3 // 4)]
    assert all(row.results == ("f32[96,64@tp]",) for row in explanation.rows if row.operation == "matmul")
    two = sw.explain(lambda x, a: x @ a, x, w)
    assert [(row.collective, row.bytes) for row in two.collectives] == [("all_gather tp", 64 * 64 * 4 * 3 // 4)]
    with sw.strict(), pytest.raises(sw.ImplicitGatherError, match=r"matmul gathers dim 0 of f32\[96@tp,64\]"):
        sw.explain(lambda x, a, b, c, d: (x @ a, x @ b, x @ c, x @ d), x, w, w, w, w)


# -- attention over split sequences -----------------------------------------------------------------------------------

ATTENTION = sw.Mesh(
    dp=2, tp=4, hardware=FREE, links=sw.Link(latency=0.0, hop=0.0), engine="literal"
)  # bytes alone decide
SPECS = [P("dp", None, "tp"), P("dp", "tp"), P(None, None, ("dp", "tp")), P(None, None, "tp"), P("dp")]


def counted_eagerly(fn, *args):
    """The result, reduced, and the bytes that the busiest device received."""
    with engine_of(ATTENTION).counting() as tally:
        out = fn(*args)
        out = out.reshard(out.sharding.replace(partial=()))
    return np.asarray(out), tally.busiest


@pytest.mark.parametrize(("heads", "causal"), [(8, True), (4, False)])
@pytest.mark.parametrize(("query", "key"), list(product(SPECS, SPECS)))
def test_attention_receives_no_more_in_a_program_than_eagerly(query, key, heads, causal):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(8, n, 32, 4)) for n in (8, heads, heads))
    placed = sw.shard(q, ATTENTION, query), sw.shard(k, ATTENTION, key), sw.shard(v, ATTENTION, key)
    program = sw.sjit(partial(nn.scaled_dot_product_attention, causal=causal))
    eager, received = counted_eagerly(partial(nn.scaled_dot_product_attention, causal=causal), *placed)
    result, rows = np.asarray(program(*placed)), sw.measure(program, *placed).rows
    assert sum(row.counted or 0 for row in rows) <= received
    k, v = (np.repeat(x, 8 // heads, axis=1) for x in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 2
    scores = np.exp(np.where(np.tri(32, dtype=bool) | (not causal), scores, -np.inf))
    expected = np.einsum("bhqk,bhkd->bhqd", scores / scores.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(eager, expected, rtol=1e-10, atol=1e-12)


def test_explain_says_where_a_program_departs_from_propagation_and_where_axes_come_from():
    mesh = sw.Mesh(tp=4)
    q, k, v = (abstract(mesh, (1, 32, 2048, 128), P(None, None, "tp")) for _ in range(3))

    def attention(q, k, v):
        """By operations on all scores, so that there is something to propagate."""
        return snp.einsum("bhqk,bhkd->bhqd", nn.softmax(snp.einsum("bhqd,bhkd->bhqk", q, k)), v)

    explanation = sw.explain(attention, q, k, v)
    # sequences become heads: each device has 1/4 of 32·2048·128·4 bytes, and receives 3/4 of that
    assert [(row.collective, row.bytes) for row in explanation.collectives] == [("all_to_all tp", 6_291_456)] * 3
    assert [row.origins for row in explanation.collectives] == [{"tp": "all_to_all, by cost"}] * 3
    assert explanation.rows[-1].origins == {"tp": "all_to_all, by cost"}
    (note,) = [note for note in explanation.notes if "as propagation wants it" in note]
    assert "einsum, f32[1,32@tp,2048,2048]: by cost, not f32[1,32,2048@tp,2048] as propagation" in note
    kept = sw.explain(lambda x, w: snp.tanh(x @ w), abstract(mesh, (8, 8), P("tp")), abstract(mesh, (8, 8), P()))
    assert [row.origins for row in kept.rows] == [{"tp": "x"}] * 2


def test_attention_holds_no_scores_and_moves_what_is_least():
    """Sequences become heads before one local step; the scores of 32 heads, 2048 queries and keys would be 134 MB a device."""
    mesh = sw.Mesh(tp=4)
    q, k, v = (abstract(mesh, (1, 32, 2048, 128), P(None, None, "tp")) for _ in range(3))
    explanation = sw.explain(lambda q, k, v: nn.scaled_dot_product_attention(q, k, v), q, k, v)
    assert [(row.collective, row.bytes) for row in explanation.collectives] == [("all_to_all tp", 6_291_456)] * 3
    shard = 32 * 2048 * 128 * 4 // 4
    # As they come, as they are moved, the result; at most three blocks of 2^20 scores and a mask; and twice the sums
    # of the 8 heads of a device: 128 numbers for each query, its largest score and its weight.
    assert 7 * shard < explanation.peak_bytes <= 7 * shard + 13 * 2**20 + 2 * 8 * 2048 * 130 * 4


# -- decoders: the batch is where the ids say -------------------------------------------------------------------------

LINKS = {"dp": sw.Link("line", 50e9), "tp": sw.Link("switch", 400e9, 1e-6)}
DECODER = sw.Mesh(dp=8, tp=8, hardware=FREE, links=LINKS)
LAYERS, ROWS, LENGTH, D, H, KV, F, V = 12, 16, 8192, 4096, 32, 8, 14336, 128256
SHAPES = {
    "n1": (D,), "wq": (D, H, D // H), "wk": (D, KV, D // H), "wv": (D, KV, D // H), "wo": (H, D // H, D),
    "n2": (D,), "wg": (D, F), "wu": (D, F), "wd": (F, D),
}  # fmt: skip
MEGATRON = {
    "embed": P("tp"), "wq": P(None, "tp"), "wk": P(None, "tp"), "wv": P(None, "tp"), "wo": P("tp"),
    "wg": P(None, "tp"), "wu": P(None, "tp"), "wd": P("tp"), "head": P(None, "tp"),
}  # fmt: skip
TWO_D = {
    "embed": P("tp", "dp"), "wq": P("dp", "tp"), "wk": P("dp", "tp"), "wv": P("dp", "tp"), "wo": P("tp", None, "dp"),
    "wg": P("dp", "tp"), "wu": P("dp", "tp"), "wd": P("tp", "dp"), "head": P("dp", "tp"),
}  # fmt: skip
FSDP = dict.fromkeys(["embed", "wq", "wk", "wv", "wo", "wg", "wu", "wd", "head"], P("dp"))


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


def explained_decoder(specs, layers=LAYERS):
    def weight(name, shape):
        return abstract(DECODER, shape, specs.get(name, P()), "bfloat16")

    p = {"embed": weight("embed", (V, D)), "norm": weight("norm", (D,)), "head": weight("head", (D, V))}
    p["layers"] = [{name: weight(name, shape) for name, shape in SHAPES.items()} for _ in range(layers)]
    return sw.explain(decoder, abstract(DECODER, (ROWS, LENGTH), P("dp"), "int64"), p)


def weight_seconds():
    """What gathering along dp takes, for weights that tp splits too: a layer's, and the head's."""
    sizes = [np.prod(shape) for shape in SHAPES.values() if len(shape) > 1]
    return sum(size * 2 / 8 * 7 / 8 / 50e9 + 7e-6 for size in sizes), D * V * 2 / 8 * 7 / 8 / 50e9 + 7e-6


def test_megatron_needs_two_all_reduces_a_layer_and_one_for_the_embedding():
    explanation = explained_decoder(MEGATRON)
    large = Counter(row.collective for row in explanation.collectives if row.bytes > 1000)
    assert large == {"all_reduce tp": 2 * LAYERS + 1}
    activations = ROWS // 8 * LENGTH * D * 2
    assert sum(row.bytes for row in explanation.collectives if row.bytes > 1000) == 25 * 2 * activations * 7 // 8


def test_two_dimensional_weights_are_gathered_and_the_batch_stays():
    """Along dp every weight is gathered; along tp Megatron's all-reduces, of which either half can be a gather or a scatter."""
    layer, head = weight_seconds()
    half = ROWS // 8 * LENGTH * D * 2 * 7 / 8 / 400e9 + 3e-6  # three hops of eight devices
    by_hand = LAYERS * (layer + 4 * half) + head + 2 * half
    explanation = explained_decoder(TWO_D)
    assert explanation.total_time <= 1.15 * by_hand
    assert by_hand == pytest.approx(0.0291, abs=0.0005)
    assert batch_moves(explanation) <= 1  # from the embedding's width to the batch


def test_fully_sharded_weights_are_gathered_and_the_batch_stays():
    explanation = explained_decoder(FSDP)
    gathered = [row for row in explanation.collectives if row.collective == "all_gather dp" and row.bytes > 1_000_000]
    sizes = sum(np.prod(shape) for shape in SHAPES.values() if len(shape) > 1)
    weights = LAYERS * sizes + 2 * D * V  # the embedding's table and the head
    assert sum(row.bytes for row in gathered) == weights * 2 * 7 // 8  # every weight once, and no activation
    assert batch_moves(explanation) <= 1


@pytest.mark.parametrize("layers", [1, 3])
def test_the_batch_stays_whatever_number_of_layers_has_weights_over_all_devices(layers):
    both = P(("dp", "tp"))
    specs = dict.fromkeys(["embed", "wq", "wk", "wv", "wg", "wu", "wd", "head"], both) | {"wo": P("dp")}
    assert batch_moves(explained_decoder(specs, layers)) <= 1


def batch_moves(explanation):
    """How many times activations are moved along dp; sums that a norm needs are smaller than 1 MB."""
    rows = [row for row in explanation.collectives if "dp" in row.collective and row.bytes > 1_000_000]
    return sum(row.operands[0].startswith(f"bf16[{ROWS}") for row in rows)


def test_a_large_table_does_not_take_the_batch_from_small_ids():
    mesh = sw.Mesh(dp=4)
    ids, table = abstract(mesh, (8, 16), P("dp"), "int32"), abstract(mesh, (1 << 16, 64), P(None, "dp"))
    program = sw.sjit(lambda ids, table: snp.tanh(nn.embedding(table, ids))).lower(ids, table).program
    assert "f32[8@dp,16,64] = tanh" in program.show("propagated")


def test_quantised_weights_are_not_taken_for_ids():
    mesh = sw.Mesh(dp=4)
    x, w = abstract(mesh, (64, 512, 64), P("dp")), abstract(mesh, (64, 64), P(None, "dp"), "int8")
    program = sw.sjit(lambda x, w: x @ w.astype("float32")).lower(x, w).program
    assert "f32[64@dp,512,64] = matmul" in program.show("propagated")
