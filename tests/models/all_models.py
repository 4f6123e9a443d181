"""Every imported model against torch, for `make test-models`: forward on four meshes, and under `strict`."""

import pytest

from imported_models import MODELS
from model_checks import MESHES, STEPS, check_forward, check_sources, check_strict, check_training

FOLDERS = {
    "resnet50": "torchvision",
    "convnext": "torchvision",
    "efficientnet": "timm",
    "swin": "timm",
    "unet": "diffusers",
    "dit": "diffusers",
}


@pytest.mark.parametrize("mesh", ["numpy-2x2", "numpy-3", "literal-2x2", "literal-3"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_outputs_are_torchs(name, mesh):
    check_forward(name, MESHES[mesh])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_what_is_gathered_unasked_is_listed(name):
    check_strict(name, MESHES["numpy-2x2"])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_steps_have_lines_of_the_models_own_file(name):
    check_sources(name, FOLDERS.get(name, "transformers"))


@pytest.mark.parametrize("mesh", ["numpy-2x2", "numpy-3", "literal-2x2", "literal-3"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_training_steps_are_torchs(name, mesh):
    check_training(name, MESHES[mesh])
