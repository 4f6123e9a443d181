"""Every row of the table of imported operations, against torch, on sharded operands: even on 2×2, uneven on 3 devices."""

import numpy as np
import pytest
import torch

import shardwright as sw
from shardwright.torch.aten import ROWS
from shardwright.torch.graphs import Frame, Graph
from torch_cases import CASES

P = sw.P
MESHES = {"2x2": sw.Mesh(x=2, y=2, engine="literal"), "3": sw.Mesh(z=3, engine="literal")}
BY_DATA = {"empty_like.default", "new_empty.default", "new_empty_strided.default"}  # their elements are unspecified
ELSEWHERE = {"sym_size.default"}  # all sizes at once


def operation(name):
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def specs(mesh, tensor, number):
    """The first dim of even operands and the last of odd ones is split, on 2×2 both are."""
    if not tensor.ndim:
        return P()
    if "x" in mesh.sizes:
        return P("x", *[None] * (tensor.ndim - 2), "y") if tensor.ndim > 1 else P("x")
    dim = 0 if number % 2 == 0 else tensor.ndim - 1
    return P(*["z" if d == dim else None for d in range(tensor.ndim)])


def as_function(name, args, named, host=()):
    """One node of a graph as a function, and the tensors it takes; operands in `host` are constants."""
    graph, tensors, owner = torch.fx.Graph(), [], torch.nn.Module()

    def placed(x):
        if isinstance(x, torch.Tensor):
            node = graph.placeholder(f"x{len(tensors)}")
            node.meta["val"] = x
            tensors.append(x)
            return node
        return type(x)(map(placed, x)) if isinstance(x, list | tuple) else x

    template = placed(args), {key: placed(x) for key, x in named.items()}
    node = graph.call_function(operation(name), *template)
    expected = operation(name)(*args, **named)
    node.meta["val"] = expected
    graph.output((node,))
    known = {f"x{at}": tensors[at] for at in host}
    loaded = Graph(graph, owner, known)
    assert not loaded.unknown
    return loaded, [x for at, x in enumerate(tensors) if at not in host], expected


def run(loaded, tensors, mesh):
    def function(*arrays):
        (result,) = loaded.run(arrays, Frame(mesh))
        return result

    arrays = [sw.shard(x, mesh, specs(mesh, x, at)) for at, x in enumerate(tensors)]
    return sw.sjit(function, mesh=mesh)(*arrays)


def assert_as_torch(got, expected, name):
    if isinstance(expected, list | tuple):
        for one, other in zip(got, expected, strict=True):
            if one is not None:
                assert_as_torch(one, other, name)
        return
    if not isinstance(expected, torch.Tensor):
        assert got == expected
        return
    host = np.asarray(got)
    wanted = expected.detach().numpy()
    assert host.dtype == wanted.dtype, (name, host.dtype, wanted.dtype)
    assert host.shape == wanted.shape
    near = 2e-3 if wanted.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(host, wanted, rtol=near, atol=near)


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError):
        assert_as_torch(np.ones(3, np.float32), torch.zeros(3), "")
    with pytest.raises(AssertionError):
        assert_as_torch(np.ones(3), torch.ones(3), "")


def parameters():
    """Every case on 3 devices; on 2×2 every third of those whose function has not run on these operands under another name."""
    seen = set()
    for at, (name, args, named) in enumerate(CASES):
        yield pytest.param(name, args, named, "3", id=f"{at}-{name}-3")
        same = ROWS[f"aten.{name}"].call, id(args)
        if same not in seen and len(seen) % 3 == 0:
            yield pytest.param(name, args, named, "2x2", id=f"{at}-{name}-2x2")
        seen.add(same)


@pytest.mark.parametrize(("name", "args", "named", "mesh"), list(parameters()))
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_an_operation_is_as_torch_has_it(name, args, named, mesh):
    loaded, tensors, expected = as_function(name, args, named)
    assert_as_torch(run(loaded, tensors, MESHES[mesh]), expected, name)


def test_every_row_has_a_case():
    named = {name for name, _, _ in CASES} | BY_DATA | ELSEWHERE
    missing = {key.removeprefix("aten.") for key in ROWS if key.startswith("aten.")} - named
    assert not missing
