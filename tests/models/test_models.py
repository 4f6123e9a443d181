"""A few imported models against torch: forward, under `strict`, on JAX's devices, trained. `make test-models` has all."""

import pytest

from model_checks import MESHES, check_forward, check_sources, check_strict, check_training

NAMES = ["llama", "gpt2", "bert", "vit"]
ENGINES = ["numpy-2x2", "literal-3"]


@pytest.mark.parametrize("mesh", ENGINES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_outputs_are_torchs(name, mesh):
    check_forward(name, MESHES[mesh])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_gathered_unasked(name):
    check_strict(name, MESHES["numpy-2x2"])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_outputs_are_torchs_on_jaxs_devices(name):
    check_forward(name, MESHES["jax-2x2"])


@pytest.mark.parametrize(
    ("name", "folder"), [("llama", "transformers/models/llama"), ("vit", "transformers/models/vit")]
)
def test_steps_have_lines_of_the_models_own_file(name, folder):
    check_sources(name, folder)


def test_a_training_step_is_torchs():
    check_training("gpt2", MESHES["numpy-2x2"])
