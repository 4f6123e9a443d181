"""shardwright.torch in one process: rules on modules and state dicts, placements by value, errors."""

import itertools

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard

import shardwright as sw
from shardwright import P, Sharding
from shardwright.errors import ArrayError, EngineError, MeshError, ShardingError
from shardwright.rules import FSDPShardingRule, PolicyShardingRule, TreePathShardingRule
from shardwright.torch import from_placements, gather_module, match_sharding_rule, shard_module, to_placements

CUBE = sw.Mesh(x=2, y=3, z=4)
SQUARE = sw.Mesh(x=2, y=2)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)])
        self.out = torch.nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight


def specs(rule, module, mesh=SQUARE):
    found = match_sharding_rule(rule, module, mesh)
    return {name: sharding and sharding.spec for name, sharding in found.items()}


# -- placements -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharding", "placements"),
    [
        (Sharding(CUBE), (Replicate(), Replicate(), Replicate())),
        (Sharding(CUBE, P(None, "y")), (Replicate(), Shard(1), Replicate())),
        (Sharding(CUBE, P("z", "x")), (Shard(1), Replicate(), Shard(0))),
        (Sharding(CUBE, P(("x", "y", "z"))), (Shard(0), Shard(0), Shard(0))),
        (Sharding(CUBE, P(("y", "x"))), (_StridedShard(0, split_factor=3), Shard(0), Replicate())),
        (
            Sharding(CUBE, P(None, ("z", "x", "y"))),
            (_StridedShard(1, split_factor=4), _StridedShard(1, split_factor=4), Shard(1)),
        ),
        (
            Sharding(CUBE, P(("z", "y", "x"))),
            (_StridedShard(0, split_factor=12), _StridedShard(0, split_factor=4), Shard(0)),
        ),
        (Sharding(CUBE, P(("y", "z"), None), partial="x"), (Partial("sum"), Shard(0), Shard(0))),
        (Sharding(CUBE, partial=("x", "z"), reduction="average"), (Partial("avg"), Replicate(), Partial("avg"))),
        (Sharding(CUBE, partial="y", reduction="max"), (Replicate(), Partial("max"), Replicate())),
        (Sharding(CUBE, partial="y", reduction="min"), (Replicate(), Partial("min"), Replicate())),
        (Sharding(CUBE, partial="y", reduction="product"), (Replicate(), Partial("product"), Replicate())),
        (Sharding(CUBE, P("y"), offsets={0: (0, 8, 16, 24)}), (Replicate(), Shard(0), Replicate())),  # the usual ones
    ],
)
def test_placements_and_shardings_are_converted_both_ways(sharding, placements):
    assert to_placements(sharding, (24, 24)) == placements
    assert from_placements(sharding.mesh, placements, (24, 24)) == sharding.for_shape((24, 24))
    assert from_placements(sharding.mesh, placements, 2).spec == sharding.for_shape((24, 24)).spec


def test_every_order_of_axes_comes_back():
    for sizes in itertools.product((2, 3, 4), repeat=3):
        mesh = sw.Mesh(sizes, ("x", "y", "z"))
        for count in range(4):
            for axes in itertools.permutations("xyz", count):
                sharding = Sharding(mesh, P(None, axes))
                assert from_placements(mesh, to_placements(sharding, 2), 2) == sharding


def test_an_axis_of_one_device_has_no_order():
    mesh = sw.Mesh(x=2, y=1)
    assert to_placements(Sharding(mesh, P(("y", "x"))), (5,)) == (Shard(0), Shard(0))  # uneven is fine: one axis cuts


def test_uneven_under_one_axis_is_torchs_chunks():
    for size in range(14):
        expected = [len(part) for part in torch.arange(size).chunk(4)] if size else []
        layout = sw.shard(np.arange(size), sw.Mesh(x=4), P("x"))
        assert [len(shard.data) for shard in layout.shards] == expected + [0] * (4 - len(expected))
        assert to_placements(layout.sharding, (size,)) == (Shard(0),)


def test_negative_dims_are_counted_from_the_end():
    assert from_placements(SQUARE, (Shard(-1), Replicate()), (4, 6)).spec == P(None, "x")


@pytest.mark.parametrize(
    ("sharding", "shape", "text"),
    [
        (
            Sharding(SQUARE, P(("x", "y"))),
            (5, 3),
            "Dim 0 of size 5 is split by the axes x, y into 4 uneven shards. DTensor would cut it axis by axis, into other "
            "blocks than shardwright's blocks of 2, and its full_tensor() can be wrong. Pad the dim to 8, split it by one "
            "axis, or merge the axes: a mesh with one axis of size 4 in their place.",
        ),
        (Sharding(SQUARE, P("x"), halo={0: 1}), (8,), "has a halo, which a DTensor can't hold"),
        (Sharding(SQUARE, P("x"), halo={0: 1}), 1, "has a halo, which a DTensor can't hold"),
        (
            Sharding(SQUARE, P("x"), offsets={0: (0, 1, 8)}),
            (8,),
            "has explicit offsets; the shards of a DTensor are blocks of ceil(size / shards). Reshard to P('x') first.",
        ),
        (
            Sharding(sw.Mesh(x=4), P("x:(1)2")),
            (8,),
            "P('x:(1)2') splits by the sub-axis 'x:(1)2'; DTensor shards along entire mesh dims.",
        ),
        (
            Sharding(SQUARE, P(), partial="x", reduction="bitwise_or"),
            (8,),
            "has a pending bitwise_or; DTensor has sum, average, max, min, product. Reduce it first",
        ),
        (Sharding(SQUARE, P(None, "x")), (8,), "P(None, 'x') has 2 entries, but the tensor of shape (8,) has 1 dim."),
        (P("x"), (8,), "to_placements takes a Sharding and a shape; got P."),
    ],
)
def test_what_dtensors_cannot_hold_is_refused(sharding, shape, text):
    with pytest.raises(ShardingError) as error:
        to_placements(sharding, shape)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("placements", "shape", "text"),
    [
        ((Shard(0),), (4,), "1 placements (Shard(dim=0)) for Mesh(x=2, y=2), which has 2 axes: give one per axis."),
        ((Shard(0), Shard(0)), (6,), "Dim 0 of size 6 is split by the axes x, y into 4 uneven shards."),
        ((Shard(2), Replicate()), (4, 4), "split dim 2, but the tensor has 2 dims. Use a dim from -2 to 1."),
        (
            (Partial("sum"), Partial("max")),
            (4,),
            "A Sharding has one pending reduction; got sum along x, max along y. Reduce one first, with redistribute.",
        ),
        ((Partial("bor"), Replicate()), (4,), "Partial('bor') along axis 'x' has no counterpart"),
        ((_MaskPartial("sum"), Replicate()), (4,), "along axis 'x' has no counterpart in a Sharding."),
        (
            (_StridedShard(0, split_factor=4), Shard(0)),
            (8,),
            "have a stride of 4 along axis 'x', which no order of the axes of Mesh(x=2, y=2) gives.",
        ),
    ],
)
def test_placements_without_a_sharding_are_refused(placements, shape, text):
    with pytest.raises(ShardingError) as error:
        from_placements(SQUARE, placements, shape)
    assert text in str(error.value)


def test_older_torch_gets_no_strided_shards(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(
        ShardingError, match=r"torch 2\.9\.1\+cpu reads such DTensors back in ways that were not tested"
    ):
        to_placements(Sharding(SQUARE, P(("y", "x"))), (8,))


# -- meshes and arrays ------------------------------------------------------------------------------------------------------


def test_a_device_mesh_needs_a_process_group():
    with pytest.raises(EngineError, match=r"needs a process group, and this process is in none\. Start .* torchrun"):
        sw.torch.to_device_mesh(SQUARE)
    with pytest.raises(MeshError, match=r"Mesh\(x=2, devices=\(1, 0\)\) do not ascend along axis 'x'"):
        sw.torch.to_device_mesh(sw.Mesh(x=2, devices=(1, 0)))
    with pytest.raises(MeshError, match="to_device_mesh takes a Mesh; got int"):
        sw.torch.to_device_mesh(4)
    with pytest.raises(MeshError, match="from_device_mesh takes a DeviceMesh; got Mesh"):
        sw.torch.from_device_mesh(SQUARE)


def test_arrays_without_torch_tensors_are_refused():
    x = sw.shard(np.ones(4, np.float32), sw.Mesh(x=2), P("x"))
    with pytest.raises(ArrayError, match=r"f32\[4@x\] on Mesh\(x=2\) is on the engine 'numpy', which holds no torch"):
        sw.torch.to_dtensor(x)
    with pytest.raises(ArrayError, match="to_dtensor takes an Array; got Tensor"):
        sw.torch.to_dtensor(torch.ones(2))
    with pytest.raises(ArrayError, match=r"from_dtensor takes a DTensor; got Tensor\. Use sw.shard"):
        sw.torch.from_dtensor(torch.ones(2))


# -- rules on modules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    ["layers/0/weight", r"layers\.0\.weight", "layers.0.weight", r"^[^/]+/0/w", r"^[^.]+\.0\.w"],
)
def test_patterns_match_names_with_dots_or_slashes(pattern):
    found = specs(TreePathShardingRule((pattern, P("x", "y")), (".*", P())), Tied())
    assert found["layers.0.weight"] == P("x", "y")
    assert found["embed.weight"] == P(None, None)


def test_one_level_is_one_level_in_either_spelling():
    module = Tied()
    for pattern in (r"^[^/]+/weight$", r"^[^.]+\.weight$"):
        found = specs(TreePathShardingRule((pattern, P("x")), strict=False), module)
        assert [name for name, spec in found.items() if spec and spec[0]] == ["embed.weight", "out.weight"]


def test_a_rule_is_not_changed_by_being_used_on_a_module():
    rule = TreePathShardingRule((r"a\.b", P("x")))
    assert specs(rule, {"a.b": torch.ones(4)}) == {"a.b": P("x")}
    with pytest.raises(ShardingError, match="matches no leaf"):
        rule.apply({"a": {"b": np.ones(4)}})


def test_other_rules_see_tensors():
    module = Tied().to(torch.bfloat16)
    found = specs(FSDPShardingRule("x", min_fsdp_size=1), module)
    assert found["embed.weight"] == P("x", None)
    assert found["layers.1.num_batches_tracked"] == P()
    seen = []
    policy = PolicyShardingRule(lambda path, leaf: seen.append((path, leaf.requires_grad)))
    assert set(specs(policy, module).values()) == {P(), P(None), P(None, None)}
    assert ("layers/0/weight", True) in seen
    assert ("layers/1/running_mean", False) in seen


def test_rules_on_state_dicts_and_by_name():
    state = {**torch.nn.Linear(3, 4).state_dict(), "step": 3}
    assert specs(P("x"), state) == {"weight": P("x", None), "bias": P("x"), "step": None}
    by_name = {"weight": P("x", "y"), "bias": None}
    assert specs(by_name, torch.nn.Linear(3, 4)) == {"weight": P("x", "y"), "bias": None}
    nested = {f"0.{name}": spec for name, spec in by_name.items()}
    assert specs(nested, torch.nn.Sequential(torch.nn.Linear(3, 4)))["0.weight"] == P("x", "y")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            TreePathShardingRule(("weigth", P("x")), (".*", P())),
            "The pattern 'weigth' matches no leaf. The paths are 'weight'",
        ),
        (TreePathShardingRule(("weight", P("x"))), "No pattern of 'weight' matches the leaf 'bias'."),
        (P("z"), "match_sharding_rule, leaf 'weight': P('z') names axis 'z'; Mesh(x=2, y=2) has only 'x', 'y'."),
        (P(None, "x"), "leaf 'bias': P(None, 'x') has 2 entries, but the tensor of shape (4,) has 1 dim"),
        ({"weight": P("x")}, "the tree of shardings does not match the tree of arrays"),
        (Sharding(sw.Mesh(x=2), P("x")), "it is on Mesh(x=2), not on Mesh(x=2, y=2)."),
        ("x", "got 'x'. Give a P, a Sharding, a rule, None, or a tree of them."),
    ],
)
def test_errors_of_rules(rule, text):
    with pytest.raises(ShardingError) as error:
        match_sharding_rule(rule, torch.nn.Linear(3, 4), SQUARE)
    assert text in str(error.value)


def test_lazy_modules_are_refused():
    with pytest.raises(ShardingError, match=r"'weight': a lazy parameter has no shape yet\. Run the module once"):
        match_sharding_rule(P(), torch.nn.LazyLinear(3), SQUARE)
    with pytest.raises(ShardingError, match="'running_mean': a lazy parameter has no shape yet"):
        match_sharding_rule(P(), torch.nn.LazyBatchNorm1d(affine=False), SQUARE)


# -- shard_module in one process ----------------------------------------------------------------------------------------------


def test_one_process_gives_arrays_and_leaves_the_module():
    module = Tied()
    before = dict(module.named_parameters())
    rules = TreePathShardingRule(("embed|out", P(("y", "x"))), ("layers/0", P("x")), (".*", P()))
    arrays = shard_module(module, SQUARE, rules)
    assert list(arrays) == [
        *("embed.weight", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "out.weight"),
        *("layers.1.running_mean", "layers.1.running_var", "layers.1.num_batches_tracked"),
    ]
    assert arrays["out.weight"] is arrays["embed.weight"]
    assert arrays["embed.weight"].sharding == Sharding(SQUARE, P(("y", "x"), None))  # uneven: arrays hold everything
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(np.asarray(arrays[name]), tensor.numpy())
    assert all(module.get_parameter(name) is parameter for name, parameter in before.items())
    with torch.no_grad():
        module.layers[0].bias.fill_(7.0)
    assert not (np.asarray(arrays["layers.0.bias"]) == 7.0).any()  # arrays own their data
    assert gather_module(module) is module
    assert all(module.get_parameter(name) is parameter for name, parameter in before.items())


def test_tied_names_need_one_sharding():
    rules = TreePathShardingRule(("embed", P("x")), (".*", P()))
    text = r"'embed.weight' and 'out.weight' are one tied tensor, but the rules give P\('x', None\) and P\(None, None\)"
    with pytest.raises(ShardingError, match=text):
        shard_module(Tied(), SQUARE, rules)


def test_partial_and_meta_parameters_are_refused():
    linear = torch.nn.Linear(2, 2)
    with pytest.raises(ShardingError, match=r"'weight' would be partial along x\. A parameter is split or replicated"):
        shard_module(linear, SQUARE, Sharding(SQUARE, partial="x"))
    with pytest.raises(ShardingError, match=r"'weight' is on the meta device .* Initialise the module first"):
        shard_module(linear.to("meta"), SQUARE, P("x"))
    with pytest.raises(ArrayError, match="A module is needed; got dict"):
        shard_module({}, SQUARE, P())
    with pytest.raises(MeshError, match="shard_module takes a Mesh or a DeviceMesh; got int"):
        shard_module(linear, 4, P())


def test_what_a_rule_gives_none_for_is_left_out():
    assert list(shard_module(torch.nn.Linear(2, 2), SQUARE, {"weight": P("x"), "bias": None})) == ["weight"]
