"""What the tests of imported models share: models loaded once, rules for their names, and the comparison with torch."""

import functools
import os
import re

import numpy as np
import pytest
import torch

import shardwright as sw
from imported_models import built
from shardwright.rules import PolicyShardingRule

P = sw.P
MESHES = {
    "numpy-2x2": sw.Mesh(dp=2, tp=2),
    "numpy-3": sw.Mesh(tp=3),
    "literal-2x2": sw.Mesh(dp=2, tp=2, engine="literal"),
    "literal-3": sw.Mesh(tp=3, engine="literal"),
    "jax-2x2": sw.Mesh(dp=2, tp=2, engine="jax"),
}
COLUMNS = (
    r"q_proj|k_proj|v_proj|query|key|value|to_[qkv]|\.[qkv]\.|gate_proj|up_proj|fc1|wi|intermediate|c_fc|in_proj|net\.0"
)
ROWS = r"o_proj|out_proj|to_out|\.o\.|down_proj|fc2|wo|output\.dense|mlp\.c_proj|net\.2"
TABLES = r"embed_tokens|lm_head|wte|word_embeddings|shared|token_embedding"
NEAR = 2e-5  # of the largest element


def spec(path, leaf):
    """Matrices split as Megatron does, by columns, then by rows; convolutions by output channels; the rest on every device."""
    if leaf.ndim == 4 and leaf.shape[1] > 1:
        return P("tp")
    if leaf.ndim < 2 or leaf.ndim > 3:
        return P()
    experts = (None,) * (leaf.ndim - 2)
    name = path.replace("/", ".")
    if re.search(TABLES, name):
        return P("tp")
    turned = "c_fc" in name or "c_proj" in name or "c_attn" in name  # weights of GPT-2 are `in, out`
    if re.search(ROWS, name):
        return P(*experts, "tp", None) if turned else P(*experts, None, "tp")
    if re.search(COLUMNS, name):
        return P(*experts, None, "tp") if turned else P(*experts, "tp", None)
    return P()


RULES = PolicyShardingRule(spec)


@functools.cache
def loaded(name):
    """A model, its inputs, what torch computes, and the imported function."""
    module, inputs = built(name)
    with torch.no_grad():
        expected = module(*inputs).numpy()
        return module, inputs, expected, sw.torch.load(module, *inputs)


def placed(mesh, inputs):
    """Inputs with their batch split over dp, if the mesh has that."""
    split = P("dp") if "dp" in mesh.sizes else P()
    return [sw.shard(x, mesh, split if x.shape[0] > 1 else P()) for x in inputs]


def error_of(got, expected):
    """The largest difference, as a part of the largest element."""
    return float(np.abs(np.asarray(got) - expected).max() / np.abs(expected).max())


def check_forward(name, mesh):
    """The model's outputs on a mesh are torch's."""
    _, inputs, expected, model = loaded(name)
    got = model.sjit(mesh, RULES)(*placed(mesh, inputs))
    assert got.shape == expected.shape
    assert error_of(got, expected) < NEAR


# Where models gather activations under rules that leave convolutions whole: modules without their numbers, and why.
GATHERS = {
    "mixtral": {"model.model.layers.#.mlp.experts"},  # tokens are sorted by expert, over the whole batch
    "qwen3_moe": {"model.model.layers.#.mlp.experts"},
    "convnext": {
        "features.#.#.block.#"
    },  # two rows of 768 elements: cheaper to gather than to compute with idle devices
    "clip": {"model"},  # every image with every text of the batch
    "mamba": {"model.backbone.layers.#.mixer"},  # one projection gives two halves, which devices hold unlike
}
DENSE = PolicyShardingRule(lambda path, leaf: P() if leaf.ndim == 4 else spec(path, leaf))


def check_strict(name, mesh):
    """A model gathers nothing but weights unasked, or raises where it is listed to."""
    _, inputs, expected, model = loaded(name)
    arrays = placed(mesh, inputs)
    rows = model.explain(mesh, DENSE, *arrays).rows
    found = {re.sub(r"\d+", "#", row.stack) for row in rows if row.implicit}
    assert found == GATHERS.get(name, set())
    with sw.strict(weights=True):
        if found:
            with pytest.raises(sw.ImplicitGatherError, match="gathers dim"):
                model.sjit(mesh, DENSE).lower(*arrays)
        else:
            assert error_of(model.sjit(mesh, DENSE)(*arrays), expected) < NEAR


def check_sources(name, folder):
    """Every step has a line of the model's own files and the path of a module."""
    _, inputs, _, model = loaded(name)
    rows = model.explain(MESHES["numpy-2x2"], RULES, *placed(MESHES["numpy-2x2"], inputs)).rows
    files = {row.source.rpartition(":")[0] for row in rows}
    assert all(os.path.exists(file) for file in files)
    assert any(folder in file for file in files)
    assert not any(f"{os.sep}torch{os.sep}" in file for file in files)
    assert sum(bool(row.stack) for row in rows) > 0.9 * len(rows)


# -- training ------------------------------------------------------------------------------------------------------------


def next_token_step(model, parameters, ids):
    """Loss, gradients and an update of a causal language model."""

    def loss(values):
        logits = model(values, ids)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    gradients, value = torch.func.grad_and_value(loss)(parameters)
    return {name: p - 0.1 * gradients[name] for name, p in parameters.items()}, value


def square_step(model, parameters, x):
    """Loss, gradients and an update of a model whose outputs are to be small."""
    gradients, value = torch.func.grad_and_value(lambda values: model(values, x).square().mean())(parameters)
    return {name: p - 0.1 * gradients[name] for name, p in parameters.items()}, value


STEPS = {"llama": next_token_step, "gpt2": next_token_step, "vit": square_step}


@functools.cache
def loaded_step(name):
    """A training step of a model, its inputs, and what torch computes."""
    module, inputs = built(name)
    step = STEPS[name]
    trained = sw.torch.load_step(step, module, *inputs)
    parameters = {key: torch.from_numpy(value.copy()) for key, value in trained.parameters.items()}
    call = lambda values, *args: torch.func.functional_call(module, values, args, tie_weights=True)  # noqa: E731
    return inputs, step(call, parameters, *inputs), trained


def check_training(name, mesh):
    """The loss and all new parameters are torch's."""
    inputs, (expected, loss), trained = loaded_step(name)
    new, value = trained.sjit(mesh, RULES)(*placed(mesh, inputs))
    assert abs(float(value) - float(loss)) < 1e-5 * abs(float(loss))
    assert set(new) == set(expected)
    for key, wanted in expected.items():
        np.testing.assert_allclose(np.asarray(new[key]), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert max(np.abs(wanted.numpy() - trained.parameters[key]).max() for key, wanted in expected.items()) > 1e-4
