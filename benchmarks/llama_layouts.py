"""Prints the table of docs/models.md: Llama-3-8B and 70B from meta tensors, under three sets of rules."""

import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

import shardwright as sw
from shardwright import P
from shardwright.rules import TreePathShardingRule

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

LENGTH = 4096  # tokens of a sequence; there is one sequence a device
SIZES: dict[str, dict[str, int]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
COLUMNS, ROWS, TABLES = "[qkv]_proj|gate_proj|up_proj", "o_proj|down_proj", "embed_tokens|lm_head"
LAYOUTS: dict[str, tuple[Any, P]] = {
    "Megatron": (
        TreePathShardingRule((TABLES, P("tp")), (COLUMNS, P("tp")), (ROWS, P(None, "tp")), ("norm", P())),
        P("dp"),
    ),
    "FSDP": (TreePathShardingRule(("norm", P()), (".*", P(("dp", "tp")))), P(("dp", "tp"))),
    "2-D": (
        TreePathShardingRule((f"{TABLES}|{COLUMNS}", P("tp", "dp")), (ROWS, P("dp", "tp")), ("norm", P())),
        P("dp"),
    ),
}


def exported(size: str, batch: int) -> Any:
    """A Llama of a size without memory, and its token ids."""
    from imported_models import decoder, prepare

    prepare()
    options = {**SIZES[size], "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
    with torch.device("meta"), torch.no_grad():
        module = decoder("Llama", **options).to(torch.bfloat16).eval()
        ids = torch.empty((batch, LENGTH), dtype=torch.int64)
        return torch.export.export(module, (ids,), strict=False).run_decompositions({}), ids


def textbook(name: str, size: str, mesh: sw.Mesh, weights: float) -> float:
    """Bytes that a device receives by hand: Megatron reduces activations twice a layer, FSDP gathers all weights."""
    sizes, tp, devices = SIZES[size], mesh.sizes["tp"], mesh.size
    if name == "FSDP":
        return weights * (devices - 1) / devices
    tokens = LENGTH * devices // mesh.sizes["dp"]  # of a device's part of the batch
    reduced = 2 * (tp - 1) / tp * tokens * sizes["hidden_size"] * 2  # bytes of one all_reduce
    total = reduced * (2 * sizes["num_hidden_layers"] + 1)  # and one for the table of embeddings
    return total if name == "Megatron" else total + weights / tp * (1 - 1 / mesh.sizes["dp"])


def planned() -> None:
    """The plans of both models within the memory of a chip, and the checks of their proofs."""
    print("| model | mesh | time | over the bound | received | held | planning | check |")
    print("|---|---|---|---|---|---|---|---|")
    for size in SIZES:
        for devices in (64, 512):
            program, ids = exported(size, devices)
            model, mesh = sw.torch.load(program), sw.Mesh(dp=devices // 8, tp=8, hardware="h100")
            start = time.process_time()
            plan = sw.auto(model, mesh, ids, fixed={"input_ids": P("dp")})
            seconds = time.process_time() - start
            start = time.process_time()
            plan.certificate.check()
            check = time.process_time() - start
            cells = (
                size, f"dp={devices // 8}, tp=8", f"{plan.time * 1e3:.0f} ms", f"{100 * plan.gap:.2g} %",
                f"{plan.explain().total_bytes / 1e6:.0f} MB", f"{plan.memory / 1e9:.1f} GB", f"{seconds:.1f} s",
                f"{check:.2f} s",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    if sys.argv[1:] == ["planned"]:
        planned()
    else:
        layouts()
    print(f"\nmemory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def layouts() -> None:
    """The table of rules written by hand."""
    print(
        "| model | mesh | rules | time | of it communication | received | by hand | held | fits 80 GB | load, lower, explain |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for size in SIZES:
        for devices in (64, 512):
            program, ids = exported(size, devices)
            start = time.process_time()
            model = sw.torch.load(program)
            loaded = time.process_time() - start
            weights = sum(value.size * value.dtype.itemsize for value in model.parameters.values())
            for name, (rules, inputs) in LAYOUTS.items():
                mesh = sw.Mesh(dp=devices // 8, tp=8, hardware="h100")
                start = time.process_time()
                found = model.explain(mesh, rules, ids, inputs=inputs)
                seconds = time.process_time() - start
                cells = (
                    size, f"dp={devices // 8}, tp=8", name, f"{found.seconds('ideal') * 1e3:.0f} ms",
                    f"{found.communication_time * 1e3:.0f} ms", f"{found.total_bytes / 1e9:.1f} GB",
                    f"{textbook(name, size, mesh, weights) / 1e9:.1f} GB", f"{found.peak_bytes / 1e9:.1f} GB",
                    "yes" if found.fits else "no", f"{loaded + seconds:.1f} s",
                )  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
