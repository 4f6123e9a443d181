"""What sharding an 8B decoder over 64 GPUs will cost, known on a laptop: nothing is allocated.

Run: python examples/decoder.py
"""

import numpy as np

import shardwright as sw
from shardwright import P, nn

LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 32, 4096, 32, 8, 14336, 128256
BATCH, LENGTH = 32, 4096
RULES = sw.rules.TreePathShardingRule(
    ("q|k|v|gate|up", P(None, "tp")),  # by column, then
    ("out|down", P("tp", None)),  # by row: one all-reduce for both
    ("embedding|head", P("tp", None)),
    ("norm", P()),
)


def parameters(dtype=np.float16):
    """Shapes and dtypes of the weights."""

    def weight(*shape):
        return sw.ShapeDtype(shape, dtype)

    size = WIDTH // HEADS
    layer = {
        "norm1": weight(WIDTH),
        "q": weight(WIDTH, HEADS * size),
        "k": weight(WIDTH, KV_HEADS * size),
        "v": weight(WIDTH, KV_HEADS * size),
        "out": weight(HEADS * size, WIDTH),
        "norm2": weight(WIDTH),
        "gate": weight(WIDTH, HIDDEN),
        "up": weight(WIDTH, HIDDEN),
        "down": weight(HIDDEN, WIDTH),
    }
    return {
        "embedding": weight(VOCABULARY, WIDTH),
        "layers": [layer] * LAYERS,
        "norm": weight(WIDTH),
        "head": weight(VOCABULARY, WIDTH),
    }


def heads(x, count):
    return x.reshape((*x.shape[:2], count, -1)).transpose((0, 2, 1, 3))


def attention(x, w):
    q, k, v = heads(x @ w["q"], HEADS), heads(x @ w["k"], KV_HEADS), heads(x @ w["v"], KV_HEADS)
    mixed = nn.scaled_dot_product_attention(q, k, v, causal=True)
    return mixed.transpose((0, 2, 1, 3)).reshape((*x.shape[:2], -1)) @ w["out"]


def decoder(tokens, params):
    x = nn.embedding(params["embedding"], tokens)
    for w in params["layers"]:
        x = x + attention(nn.rms_norm(x, w["norm1"]), w)
        y = nn.rms_norm(x, w["norm2"])
        x = x + (nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
    return nn.rms_norm(x, params["norm"]) @ params["head"].T


def build():
    """The function and its arguments, for `shardwright plan examples/decoder.py:build --mesh dp=8,tp=8 --hardware h100`."""
    return decoder, sw.ShapeDtype((BATCH, LENGTH), np.int32), parameters()


def main(hardware="h100"):
    mesh = sw.Mesh(dp=8, tp=8, hardware=hardware)
    program = sw.sjit(decoder, mesh=mesh, in_shardings=(P("dp"), RULES))
    return program.lower(sw.ShapeDtype((BATCH, LENGTH), np.int32), parameters()).explain()


if __name__ == "__main__":
    explanation = main()
    print(explanation)
    sums = (2 * LAYERS + 1) * 2 * (BATCH // 8 * LENGTH * WIDTH * 2) * 7 // 8
    received = sum(row.bytes for row in explanation.collectives)
    print("no more bytes than two all-reduces a layer and one for the embedding:", received <= sums)
    with sw.strict():  # no weight is gathered
        reductions = [row for row in main().collectives if row.collective == "all_reduce tp"]
    print("two all-reduces a layer and one for the embedding under strict():", len(reductions) == 2 * LAYERS + 1)
    print("it fits:", bool(explanation.fits))
