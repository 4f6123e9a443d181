"""A model without memory is planned on 64 devices, and its plan is no slower than rules written by hand."""

import pytest
import torch

import shardwright as sw
from imported_models import decoder, prepare
from shardwright import P
from shardwright.rules import TreePathShardingRule


@pytest.fixture(scope="module")
def llama():
    prepare()
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
    with torch.device("meta"), torch.no_grad():
        module = decoder("Llama", **sizes, num_key_value_heads=8, vocab_size=2048).to(torch.bfloat16).eval()
        ids = torch.empty((64, 256), dtype=torch.int64)
        return sw.torch.load(module, ids), ids


@pytest.mark.filterwarnings("ignore")
def test_a_plan_on_64_devices_is_no_slower_than_rules_by_hand(llama):
    model, ids = llama
    mesh = sw.Mesh(dp=8, tp=8, hardware="h100")
    plan = sw.auto(model, mesh, ids, fixed={"input_ids": P("dp")})
    assert str(plan.places["input_ids"].spec) == "P('dp', None)"
    read = {
        name for name in model.parameters if not name.endswith("original_inv_freq")
    }  # no operation reads that buffer
    assert len(read) == len(model.parameters) - 1
    assert set(plan.places) == {f"parameters/{name}" for name in read} | {"input_ids"}
    assert plan.bound <= plan.time * (1 + 1e-9)
    tables, columns, rows = "embed_tokens|lm_head", "[qkv]_proj|gate_proj|up_proj", "o_proj|down_proj"
    megatron = TreePathShardingRule((f"{tables}|{columns}", P("tp")), (rows, P(None, "tp")), ("norm", P()))
    fully = TreePathShardingRule(("norm", P()), (".*", P("dp")))
    for rules in (megatron, fully):
        by_hand = model.explain(mesh, rules, ids, inputs=P("dp"))
        assert plan.time <= by_hand.seconds("none") * (1 + 1e-9)
        assert plan.memory <= mesh.hardware.chip.memory
