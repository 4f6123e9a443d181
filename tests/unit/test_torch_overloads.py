"""Every overload beside the operations that models were found to use, loaded as a module and run on sharded inputs."""

import inspect
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import shardwright as sw
from shardwright.errors import ModelError
from torch_overloads import CALLS

P = sw.P
MESH = sw.Mesh(x=2, y=2, engine="literal")

OPERATIONS = """
    add linear view mul unsqueeze transpose clone slice expand embedding _assert_tensor_metadata arange
    scaled_dot_product_attention mean pow index cat _to_copy le layer_norm silu _unsafe_view alias sub conv2d rsqrt gelu neg
    __and__ cumsum new_ones cos sin diff ne eq div split permute matmul softmax exp zeros where sum ge adaptive_avg_pool2d
    select _native_batch_norm_legit_no_training relu sigmoid _grouped_mm tanh topk sort floor_divide histc empty_like
    index_put conv1d group_norm pad unbind roll type_as addmm min lt log full_like t squeeze split_with_sizes softplus stack
    gt gather abs zeros_like repeat argmax max_pool2d upsample_nearest2d einsum
""".split()  # and getitem, which is Python's: every overload with several results has it

OTHERS = {
    "index.Tensor_hacked_twin": "TorchScript's, for index.Tensor",
    "index_put.hacked_twin": "TorchScript's, for index_put",
    "einsum.sublist": "TorchScript's, for einsum",
    "split.default": "TorchScript's, for split.sizes",
    "addmm.dtype": "on CUDA alone",
    "where.default": "a shape that depends on data",
    "split.sizes": "torch.export writes split_with_sizes instead; a row, tested in test_torch_operations.py",
    "_unsafe_view.default": "inside of decompositions alone; a row, tested in test_torch_operations.py",
}
REFUSED = {  # calls that can't be imported, and what the error says
    "where.default": (lambda x: torch.where(x > 0)[0] + 1, r"aten\.where\.default"),
    "index.Tensor by a mask of an input": (lambda x: x[x > 0], r"x\[mask\] .* has a data-dependent shape"),
    "scaled_dot_product_attention with dropout": (
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        r"dropout_p=0\.5: .* model\.eval",
    ),
    "max_pool2d with its indices": (
        lambda image: F.max_pool2d(image, 2, return_indices=True),
        r"aten\.max_pool2d_with_indices\.default",
    ),
}

_random = torch.Generator().manual_seed(7)


def _floats(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=_random, dtype=torch.float64).to(dtype)


def _integers(low, high, *shape):
    return torch.randint(low, high, shape, generator=_random)


OPERANDS = {  # calls name what they take
    "x": _floats(4, 6),
    "y": _floats(4, 6),
    "row": _floats(6),
    "column": _floats(4, 1),
    "p": torch.rand(4, 6, generator=_random) + 0.5,
    "d": _floats(4, 6, dtype=torch.float64),
    "h": _floats(4, 6, dtype=torch.float16),
    "i": _integers(-9, 10, 4, 6),
    "j": _integers(1, 5, 4, 6),
    "b": _integers(0, 2, 4, 6) > 0,
    "c": _integers(0, 2, 6) > 0,
    "number": torch.tensor(1.5),
    "z": _floats(4, 6, dtype=torch.complex64) * (1 - 2j),
    "sq": _floats(4, 4),
    "rows": torch.tensor([0, 3, 1, 2]),
    "empty": torch.zeros(0, 6),
    "ids": _integers(0, 4, 4, 2),
    "table": _floats(4, 8),
    "cube": _floats(4, 2, 6),
    "ones": _floats(4, 1, 6, 1),
    "matrix": _floats(6, 8),
    "batch": _floats(4, 6, 8),
    "weight": _floats(8, 6),
    "bias": _floats(8),
    "q": _floats(2, 4, 6, 8),
    "k": _floats(2, 4, 10, 8),
    "v": _floats(2, 4, 10, 8),
    "k2": _floats(2, 2, 10, 8),
    "v2": _floats(2, 2, 10, 8),
    "seen": (_integers(0, 3, 6, 10) > 0).index_fill(1, torch.tensor([0]), True),
    "added": _floats(2, 1, 6, 10),
    "image": _floats(2, 4, 8, 6),
    "kernel": _floats(8, 4, 3, 3),
    "grouped": _floats(8, 2, 3, 3),
    "channels": _floats(8),
    "four": _floats(4),
    "variance": torch.rand(4, generator=_random) + 0.5,
    "signal": _floats(2, 4, 10),
    "taps": _floats(8, 4, 3),
    "few": _floats(8, 2, 3),
    "experts": _floats(3, 8, 16, dtype=torch.bfloat16),
    "tokens": _floats(12, 8, dtype=torch.bfloat16),
    "ends": torch.tensor([4, 8, 12], dtype=torch.int32),
}


class Calls(torch.nn.Module):
    """The results of several calls, on operands by name."""

    def __init__(self, calls):
        super().__init__()
        self.calls = [(call, names_of(call)) for call in calls]
        self.names = list(dict.fromkeys(name for _, names in self.calls for name in names))

    def forward(self, *operands):
        by_name = dict(zip(self.names, operands, strict=True))
        return [call(*(by_name[name] for name in names)) for call, names in self.calls]


def names_of(call):
    """The operands that a call takes."""
    parameters = inspect.signature(call).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]


def split(tensor):
    """On 2×2 devices: the first and the last dim."""
    spec = P("x", *[None] * (tensor.ndim - 2), "y") if tensor.ndim > 1 else P("x") if tensor.ndim else P()
    return sw.shard(tensor, MESH, spec)


def flat(result):
    return [x for part in result for x in flat(part)] if isinstance(result, list | tuple) else [result]


def assert_alike(ours, theirs, what):
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
    near = 2e-3 if theirs.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(ours, theirs, rtol=near, atol=near, err_msg=what)


GROUP = 20  # overloads of one module: torch takes 0.3 s for a module, however small
GROUPS = [sorted(CALLS)[start : start + GROUP] for start in range(0, len(CALLS), GROUP)]


@pytest.mark.parametrize("overloads", GROUPS, ids=lambda group: f"{group[0]}..{group[-1]}")
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_calls_give_what_torch_gives(overloads):
    module = Calls([call for overload in overloads for call in CALLS[overload]])
    operands = [OPERANDS[name] for name in module.names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own tracing
        exported = torch.export.export(module, tuple(operands), strict=False).run_decompositions({})
    targets = {str(node.target) for node in exported.graph.nodes}
    assert {f"aten.{overload}" for overload in overloads} <= targets, "calls become other overloads"
    expected = module(*operands)
    results = sw.torch.load(exported).sjit(MESH)(*map(split, operands))
    owners = [(overload, at) for overload in overloads for at in range(len(CALLS[overload]))]
    for (overload, at), ours, theirs in zip(owners, results, expected, strict=True):
        for one, other in zip(flat(ours), flat(theirs), strict=True):
            assert_alike(np.asarray(one), other.numpy(), f"call {at} of {overload}")


def test_the_comparison_can_fail():
    for wrong in (np.zeros(3, np.float32), np.ones(3), np.ones((1, 3), np.float32)):
        with pytest.raises(AssertionError):
            assert_alike(wrong, np.ones(3, np.float32), "")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
def test_what_is_refused_is_refused_by_name(name):
    call, message = REFUSED[name]
    module = Calls([call])
    operands = [OPERANDS[name] for name in module.names]
    with pytest.raises(ModelError, match=message):
        sw.torch.load(module, *operands).sjit(MESH)(*map(split, operands))


def test_every_overload_is_called_or_listed_with_a_reason():
    reached = {overload for name in OPERATIONS for overload in overloads_of(name)}
    assert reached - set(OTHERS) == set(CALLS)
    assert set(OTHERS) <= reached


def overloads_of(name):
    """The overloads of an operation that take or make tensors and do not write into an argument: the rest are TorchScript's
    for Python's numbers, strings and lists, and those with `out=`, which a pure function can't have."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        kinds = [str(x.type) for x in (*schema.arguments, *schema.returns)]
        made = [str(x.type) for x in schema.returns]
        writes = any(x.alias_info is not None and x.alias_info.is_write for x in schema.arguments)
        if not writes and any("Tensor" in kind for kind in kinds) and (not made or "Tensor" in made[0]):
            yield f"{name}.{overload}"
