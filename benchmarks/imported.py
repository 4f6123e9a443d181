"""Imported models: what loading and explaining 32 layers takes, and a small Llama on the numpy engine against torch itself.

Runs in a process with one thread, which NumPy's BLAS must be told before it is imported. Needs the extra `models`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import best_of, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def measured() -> list[tuple[str, float, float, str, str]]:
    """Name, figure, goal, unit and detail of each benchmark."""
    import torch

    import shardwright as sw
    from imported_models import decoder, prepare
    from shardwright import P
    from shardwright.rules import TreePathShardingRule

    prepare()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    rules = TreePathShardingRule(
        ("embed_tokens|lm_head|[qkv]_proj|gate_proj|up_proj", P("tp")),
        ("o_proj|down_proj", P(None, "tp")),
        ("norm", P()),
    )
    with torch.device("meta"):
        large = decoder("Llama", num_hidden_layers=32, hidden_size=4096, intermediate_size=14336).eval()
        ids = torch.empty((8, 2048), dtype=torch.int64)
    exported = torch.export.export(large, (ids,), strict=False).run_decompositions({})
    mesh = sw.Mesh(dp=8, tp=8, hardware="h100")
    start = time.process_time()
    model = sw.torch.load(exported)
    lowered = model.bind(mesh, rules, inputs=P("dp")).lower(ids)
    loaded = time.process_time()
    steps = len(lowered.explain().rows)
    explained = time.process_time()
    figures = [
        (
            "32 layers of Llama: load, trace and partition",
            loaded - start,
            3.0,
            "s",
            f"{len(exported.graph.nodes)} nodes",
        ),
        ("32 layers of Llama: explain", explained - loaded, 1.0, "s", f"{steps} steps"),
    ]
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 16}
    small = decoder("Llama", **sizes, num_key_value_heads=16, vocab_size=2048, max_position_embeddings=256).eval()
    tokens = torch.randint(0, 2000, (8, 128))
    virtual = sw.Mesh(dp=2, tp=2)
    step = sw.torch.load(small, tokens).sjit(virtual, rules)
    array = sw.shard(tokens, virtual, P("dp"))
    ours, theirs = best_of(lambda: step(array), lambda: small(tokens), rounds=9)
    detail = f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms"
    figures.append(
        ("Llama of 2 layers, width 1,024, 1,024 tokens, on 2×2 numpy devices", ours / theirs, 1.15, "×", detail)
    )
    return figures


def main() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"benchmarks/imported.py failed:\n{run.stderr}")
    for figure in json.loads(run.stdout.splitlines()[-1]):
        report(*figure)


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":
        print(json.dumps(measured()))
    else:
        main()
