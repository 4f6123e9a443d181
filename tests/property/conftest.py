"""Every property holds on every engine: the same bodies, on meshes of each; on NumPy also with blocks so small that arrays of a
few elements are worked on in several."""

import pytest
from hypothesis import settings

import strategies
from shardwright.engines import blocks, chains, direct, rows

BLOCKS = "numpy, small blocks"
SHARE = {
    "numpy": 2,
    BLOCKS: 8,
    "literal": 4,
    "torch": 8,
    "jax": 100,
}  # how many times fewer examples than a test asks for
LEAST = {"jax": 2}  # examples, where not 5: every one is compiled


@pytest.fixture(autouse=True, params=list(SHARE))
def engine(request, monkeypatch):
    monkeypatch.setattr(strategies, "ENGINE", [request.param.partition(",")[0]])
    if request.param == BLOCKS:
        small = {"BLOCK": 4, "LEAST": 2, "MOST": 16, "GELU_BLOCK": 4, "ALONE": 8}
        for module in (blocks, chains, direct, rows):
            for name in small.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, small[name])
    used = getattr(request.function, "_hypothesis_internal_use_settings", None)
    if used is not None and SHARE[request.param] > 1:
        fewer = settings(used, max_examples=max(used.max_examples // SHARE[request.param], LEAST.get(request.param, 5)))
        monkeypatch.setattr(request.function, "_hypothesis_internal_use_settings", fewer)
    return request.param
