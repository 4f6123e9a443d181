"""Imported models over real processes, one device each."""

import pytest
import torch

import model_calls as calls
from model_checks import NEAR, error_of, loaded


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_outputs_are_torchs_on_four_processes(pool, tmp_path, name):
    module, inputs, expected, _ = loaded(name)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, inputs, strict=False).run_decompositions({}), path)
    for got in pool.run(calls.forward, str(path), inputs, timeout=180):
        assert error_of(got, expected) < NEAR
