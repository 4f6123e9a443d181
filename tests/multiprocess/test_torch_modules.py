"""shardwright.torch on four real processes: cuts, gathers, training, and torch's own code on sharded modules."""

import copy
import itertools
import math
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardwright as sw
from shardwright import P
from shardwright.errors import MeshError, ShardingError
from shardwright.rules import TreePathShardingRule

SQUARE = sw.Mesh(x=2, y=2)
LINE = sw.Mesh(x=4)


class Tied(torch.nn.Module):
    """An embedding whose weight is the output's too, a layer in between, and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(12, 8)
        self.mid = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 12, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, tokens):
        return self.out(torch.relu(self.mid(self.embed(tokens))) * self.scale)


RULES = TreePathShardingRule((r"embed\.weight|out\.weight", P(None, "x")), ("mid/weight", P("y", "x")), (".*", P()))


def seeded(make):
    torch.manual_seed(0)
    return make()


def placed(tensor, sharding):
    """A tensor that all processes have as a DTensor, by torch's own function."""
    mesh = sw.torch.to_device_mesh(sharding.mesh)
    return distribute_tensor(tensor, mesh, sw.torch.to_placements(sharding, tensor.shape), src_data_rank=None)


def replicated(tensor, mesh):
    return placed(tensor, sw.Sharding(mesh))


def refused(error, call, *args):
    with pytest.raises(error) as info:
        call(*args)
    return str(info.value)


# -- meshes -------------------------------------------------------------------------------------------------------------


def device_meshes():
    mesh = sw.Mesh(x=2, y=2, devices=(0, 2, 1, 3), engine="torch")
    made = sw.torch.to_device_mesh(mesh)
    assert sw.torch.to_device_mesh(sw.Mesh(x=2, y=2, devices=(0, 2, 1, 3), engine="torch")) is made
    assert sw.torch.from_device_mesh(made) == mesh
    assert made.get_coordinate() == mesh.coords(dist.get_rank())
    part = sw.torch.from_device_mesh(made["y"])
    whole = sw.torch.from_device_mesh(made, engine="numpy")
    assert whole == sw.Mesh(x=2, y=2, devices=(0, 2, 1, 3))
    named = sw.torch.from_device_mesh(made, ["a", "b"])
    large = refused(MeshError, sw.torch.to_device_mesh, sw.Mesh(x=8))
    small = sw.torch.to_device_mesh(sw.Mesh(x=2))  # every rank takes part in making it
    assert small.mesh.tolist() == [0, 1]
    return made.mesh.tolist(), part.device_ids, named.axis_names, large


def test_a_mesh_and_its_device_mesh_are_converted_both_ways(pool):
    results = pool.run(device_meshes)
    assert [ranks for ranks, *_ in results] == [[[0, 2], [1, 3]]] * 4
    assert [part for _, part, *_ in results] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert results[0][2] == ("a", "b")
    assert results[0][3] == (
        "Mesh(x=8) has device ids up to 7, but the process group has 4 ranks, 0 to 3. Start 8 processes, or use a mesh of "
        "at most 4 devices."
    )


def ranks_without_a_device():
    module = torch.nn.Linear(2, 4)
    if dist.get_rank() < 2:
        return sw.torch.shard_module(module, sw.Mesh(x=2), P("x")).weight.to_local().shape
    text = refused(MeshError, sw.torch.shard_module, module, sw.Mesh(x=2), P("x"))
    assert not isinstance(module.weight, DTensor)
    return text


def test_ranks_beyond_the_mesh_are_told_which_ranks_it_has(pool):
    results = pool.run(ranks_without_a_device)
    assert results[:2] == [(2, 2), (2, 2)]
    assert results[3].startswith("Rank 3 has no device in Mesh(x=2): its ranks are 0, 1.")


# -- cuts -----------------------------------------------------------------------------------------------------------------


def shardings_of(mesh, ndim):
    """All ways to put the axes of a mesh on dims, or on none, in every order."""
    for homes in itertools.product(range(-1, ndim), repeat=len(mesh.axis_names)):
        dims = [[a for a, home in zip(mesh.axis_names, homes, strict=True) if home == d] for d in range(ndim)]
        for orders in itertools.product(*(itertools.permutations(axes) for axes in dims)):
            yield sw.Sharding(mesh, P(*orders))


def cuts(meshes, shapes):
    """Parts cut by layouts: torch's own cut is the same, and torch reads every one of them back."""
    checked = 0
    for mesh in meshes:
        devices = sw.torch.to_device_mesh(mesh)
        place = mesh.position(dist.get_rank())
        for shape in shapes:
            whole = torch.arange(math.prod(shape)).reshape(shape)
            for sharding in shardings_of(mesh, len(shape)):
                if any(len(axes) > 1 and n % mesh.size for axes, n in zip(sharding.dims, shape, strict=True)):
                    assert "uneven shards" in refused(ShardingError, sw.torch.to_placements, sharding, shape)
                    continue
                placements = sw.torch.to_placements(sharding, shape)
                module = torch.nn.Module()
                module.register_buffer("w", whole)
                sw.torch.shard_module(module, mesh, sharding)
                assert module.w.placements == placements
                expected = sw.shard(whole.numpy(), sharding).shards[place].data
                np.testing.assert_array_equal(module.w.to_local().numpy(), expected)
                by_torch = distribute_tensor(whole, devices, placements, src_data_rank=None)
                assert torch.equal(by_torch.to_local(), module.w.to_local())
                assert torch.equal(module.w.full_tensor(), whole)
                assert sw.torch.from_placements(mesh, placements, shape) == sharding.for_shape(shape)
                checked += 1
    return checked


def test_parts_are_torchs_and_are_read_back(pool):
    counts = pool.run(cuts, [SQUARE, sw.Mesh(x=2, y=2, devices=(0, 2, 1, 3))], [(8, 4), (5, 3)])
    assert counts == [2 * (11 + 7)] * 4  # of 11 shardings, four put both axes on an uneven dim
    assert pool.run(cuts, [LINE], [(size, 2) for size in (0, 1, 5, 6, 8, 9)]) == [18] * 4


def silently_wrong(size):
    """What torch makes of an uneven dim under two axes once mesh dims are flattened: the reason for the refusal."""
    devices = sw.torch.to_device_mesh(sw.Mesh(p=2, q=2))
    devices._flatten("pq")
    whole = torch.arange(3 * size).reshape(size, 3)
    split = distribute_tensor(whole, devices, [Shard(0)] * 2, src_data_rank=None)
    module = torch.nn.Module()
    module.register_buffer("w", split)
    return (
        len(split.to_local()),
        torch.equal(split.full_tensor(), whole),
        refused(ShardingError, sw.torch.gather_module, module) if size % 4 else "",
    )


def test_uneven_under_two_axes_is_refused_because_torch_reads_it_back_wrongly(pool):
    results = pool.run(silently_wrong, 5)
    assert [rows for rows, *_ in results] == [2, 1, 1, 1]  # shardwright has 2, 2, 1, 0
    assert not any(right for _, right, _ in results)  # where this becomes right, the refusal has one reason less
    assert results[0][2].startswith(
        "gather_module, 'w': Dim 0 of size 5 is split by the axes p, q into 4 uneven shards."
    )
    assert all(right for _, right, _ in pool.run(silently_wrong, 8))


def descending():
    """What torch makes of ranks that do not ascend: the reason for the other refusal."""
    devices = DeviceMesh("cpu", [3, 2, 1, 0], mesh_dim_names=("x",))
    module = torch.nn.Module()
    module.register_buffer("w", distribute_tensor(torch.arange(4), devices, [Shard(0)], src_data_rank=None))
    plain = torch.nn.Linear(2, 4)
    return (
        module.w.full_tensor().tolist(),
        refused(MeshError, sw.torch.gather_module, module),
        refused(MeshError, sw.torch.from_dtensor, module.w),
        refused(MeshError, sw.torch.shard_module, plain, devices, P("x")),
        refused(MeshError, sw.torch.shard_module, plain, sw.Mesh(x=4, devices=(3, 2, 1, 0)), P("x")),
    )


def test_ranks_that_do_not_ascend_are_refused_because_torch_sorts_them(pool):
    values, *texts = pool.run(descending)[0]
    assert values == [3, 2, 1, 0]  # where this becomes 0, 1, 2, 3, the refusal has lost its reason
    assert texts[0].startswith("gather_module, 'w': The device ids of Mesh(x=4, devices=(3, 2, 1, 0), engine='torch')")
    for text in texts:
        assert "do not ascend along axis 'x'. torch.distributed sorts the ranks of every group" in text


def partials():
    rank = dist.get_rank()
    result = {}
    for name in ("sum", "average", "max", "min", "product"):
        sharding = sw.Sharding(SQUARE, P("y"), partial="x", reduction=name)
        placements = sw.torch.to_placements(sharding, (2,))
        local = torch.tensor([float(rank + 2)])
        made = DTensor.from_local(local, sw.torch.to_device_mesh(SQUARE), placements, run_check=False)
        result[name] = made.full_tensor().tolist()
        assert sw.torch.from_placements(SQUARE, made.placements, (2,)) == sharding
    return result


def test_partial_placements_mean_the_same_reductions(pool):
    shards = [np.array([float(rank + 2)]) for rank in range(4)]
    for result in pool.run(partials):
        for name, values in result.items():
            array = sw.from_shards(SQUARE, sw.Sharding(SQUARE, P("y"), partial="x", reduction=name), shards)
            assert values == np.asarray(array).tolist(), name


# -- modules --------------------------------------------------------------------------------------------------------------


def there_and_back():
    module = seeded(Tied)
    module.mid.bias.requires_grad_(False)
    module.mid.weight.tag = "kept"
    module(torch.arange(6)).sum().backward()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert sw.torch.shard_module(module, SQUARE, RULES) is module
    assert all(isinstance(tensor, DTensor) for tensor in module.state_dict().values())
    assert isinstance(module.mid.weight, torch.nn.Parameter)
    assert module.out.weight is module.embed.weight
    assert module.mid.weight.tag == "kept"
    assert (module.mid.weight.requires_grad, module.mid.bias.requires_grad) == (True, False)
    local = tuple(module.mid.weight.to_local().shape), tuple(module.mid.weight.grad.to_local().shape)
    assert module.mid.weight.to_local().untyped_storage().nbytes() == 4 * 4 * 4  # not a view of the full weight
    again = refused(ShardingError, sw.torch.shard_module, module, SQUARE, RULES)
    assert sw.torch.gather_module(module) is module
    assert module.out.weight is module.embed.weight
    assert not module.mid.bias.requires_grad
    for name, tensor in module.state_dict().items():
        assert not isinstance(tensor, DTensor)
        assert torch.equal(tensor, before[name])
    for name, parameter in module.named_parameters():
        assert (name in grads) == (parameter.grad is not None)
        if name in grads:
            assert torch.equal(parameter.grad, grads[name])
    return local, again


def test_a_module_is_sharded_in_place_and_gathered_again(pool):
    for local, again in pool.run(there_and_back):
        assert local == ((4, 4), (4, 4))
        assert again.startswith("shard_module: 'embed.weight' is a DTensor already, with placements")


def train(kind, steps):
    """The largest difference between parameters trained in parts and at once."""
    tokens = torch.arange(24).reshape(8, 3) % 12
    module, alone = seeded(Tied), seeded(Tied)
    sw.torch.shard_module(module, SQUARE, RULES)
    inputs = placed(tokens, sw.Sharding(SQUARE, P("y")))
    losses = []
    for net, x in ((module, inputs), (alone, tokens)):
        options = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.05, **options)
        history = []
        for _ in range(steps):
            optimizer.zero_grad()
            logits = net(x)
            loss = (logits - 0.25).square().mean()
            loss.backward()
            optimizer.step()
            history.append(float(loss.full_tensor() if isinstance(loss, DTensor) else loss))
        losses.append(history)
    assert all(isinstance(p, DTensor) and isinstance(p.grad, DTensor) for p in module.parameters())
    assert module.out.weight is module.embed.weight
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[1][-1] < 0.8 * losses[1][0]
    trained = sw.torch.gather_module(module).state_dict()
    return max(float((trained[name] - value).abs().max()) for name, value in alone.state_dict().items())


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_training_in_parts_equals_training_at_once(pool, kind):
    assert max(pool.run(train, kind, 6)) < 2e-4


def meta():
    with torch.device("meta"):
        module = torch.nn.Linear(4, 8)
    sw.torch.shard_module(module, LINE, P("x"))
    assert module.weight.to_local().is_meta
    module.to_empty(device="cpu")
    with torch.no_grad():
        module.weight.fill_(2.0)
    assert module.weight.to_local().shape == (2, 4)
    return module.weight.full_tensor().sum().item()


def test_meta_parameters_stay_meta_until_each_process_makes_its_part(pool):
    assert pool.run(meta) == [64.0] * 4


# -- torch's own code -------------------------------------------------------------------------------------------------------


def checkpoint(folder):
    import torch.distributed.checkpoint as dcp

    module = sw.torch.shard_module(seeded(Tied), SQUARE, RULES)
    expected = seeded(Tied).state_dict()
    dcp.save(module.state_dict(), checkpoint_id=folder)
    other = sw.torch.shard_module(Tied(), LINE, TreePathShardingRule(("weight", P("x")), (".*", P())))
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    for name, tensor in sw.torch.gather_module(other).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_checkpoint_of_torch_is_loaded_on_another_mesh(pool, tmp_path):
    pool.run(checkpoint, str(tmp_path))


def fully_sharded(whole_mesh):
    """Tensor parallel by rules along tp, FSDP2 along dp; with one mesh for both, or with parts of a DeviceMesh."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import DataParallelMeshDims, fully_shard

    mesh = sw.Mesh(dp=2, tp=2)
    devices = sw.torch.to_device_mesh(mesh)
    module, alone = (
        seeded(lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))) for _ in range(2)
    )
    rules = TreePathShardingRule((r"0\.", P("tp")), (r"1\.weight", P(None, "tp")), (".*", P()))
    if whole_mesh:
        sw.torch.shard_module(module, mesh, rules)
        fully_shard(module, mesh=devices, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    else:
        sw.torch.shard_module(module, devices["tp"], rules)
        fully_shard(module, mesh=devices["dp"])
    x = torch.linspace(-1, 1, 32).reshape(8, 4)
    row = mesh.coords(dist.get_rank())[0]
    part = x[4 * row : 4 * row + 4]
    own = devices if whole_mesh else devices["tp"]
    own = DTensor.from_local(part, own, [Replicate()] * own.ndim, run_check=False)  # FSDP averages over dp itself
    for net, batch in ((module, own), (alone, x)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    text = refused(sw.errors.ArrayError, sw.torch.gather_module, module)
    trained = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(trained[name], value)
    return text


@pytest.mark.parametrize("whole_mesh", [False, True])
def test_fully_shard_goes_on_top_of_rules(pool, whole_mesh):
    texts = pool.run(fully_sharded, whole_mesh)
    assert texts[0].startswith("gather_module: the module is managed by fully_shard")


def errors():
    module = seeded(Tied)
    before = list(module.parameters())
    texts = [
        refused(ShardingError, sw.torch.shard_module, module, SQUARE, TreePathShardingRule(("embed", P("x")))),
        refused(ShardingError, sw.torch.shard_module, torch.nn.Linear(2, 6), SQUARE, P(("x", "y"))),
    ]
    assert all(p is q for p, q in zip(module.parameters(), before, strict=True))
    masked = DTensor.from_local(torch.ones(2), sw.torch.to_device_mesh(LINE), [Partial("sum")], run_check=False)
    assert sw.torch.from_placements(LINE, masked.placements, 1).partial == ("x",)
    return texts


def test_errors_leave_the_module_as_it_was(pool):
    unmatched, uneven = pool.run(errors)[0]
    assert unmatched.startswith("No pattern of 'embed' matches the leaf 'mid/weight'")
    assert uneven.startswith("shard_module, 'weight': Dim 0 of size 6 is split by the axes x, y into 4 uneven shards.")
    assert "Pad the dim to 8" in uneven


def untouched():
    module = copy.deepcopy(seeded(Tied))
    kept = {"mid.bias": None, **dict.fromkeys(["embed.weight", "out.weight", "mid.weight", "scale"], P())}
    sw.torch.shard_module(module, LINE, kept)
    return type(module.mid.bias.data).__name__, type(module.mid.weight.data).__name__


def test_what_a_rule_gives_none_for_is_left(pool):
    assert pool.run(untouched) == [("Tensor", "DTensor")] * 4


def from_variables():
    """A process group is made from torchrun's variables when it is needed."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: os.environ.pop(name) for name in names}
    module = torch.nn.Linear(4, 4)
    alone = sw.torch.shard_module(module, sw.Mesh(x=2), P("x"))["weight"]  # without a group
    os.environ.update(kept)
    sw.torch.shard_module(module, sw.Mesh(x=2), P("x"))
    assert (dist.get_rank(), dist.get_backend()) == (int(kept["RANK"]), "gloo")
    return type(alone).__name__, tuple(module.weight.to_local().shape), tuple(module.weight.full_tensor().shape)


def test_torchruns_variables_make_the_process_group():
    assert sw.launch(from_variables, processes=2, timeout=120) == [("Array", (2, 4), (4, 4))] * 2
