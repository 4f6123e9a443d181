"""Every property holds on every engine: the same bodies, on meshes of each."""

import pytest

import strategies


@pytest.fixture(autouse=True, params=["numpy", "literal", "torch"])
def engine(request, monkeypatch):
    monkeypatch.setattr(strategies, "ENGINE", [request.param])
    return request.param
