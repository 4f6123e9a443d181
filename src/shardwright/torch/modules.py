"""Modules sharded by rules: their parameters and buffers become DTensors, or arrays where there is one process."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from shardwright.arrays import Array, shard
from shardwright.engines.torch.processes import has_group
from shardwright.errors import ArrayError, MeshError, ShardingError, ShardwrightError
from shardwright.mesh import Mesh
from shardwright.rules import resolved_by_name
from shardwright.sharding import Sharding, layout_of
from shardwright.torch.meshes import check_ascending, from_device_mesh, own_place, to_device_mesh
from shardwright.torch.placements import from_placements, to_placements


def shard_module(module: torch.nn.Module, mesh: Mesh | DeviceMesh, rules: Any) -> Any:
    """Shards a module's parameters and buffers as rules say, and returns the module, or arrays if there is one process.

    >>> from shardwright.rules import TreePathShardingRule
    >>> from shardwright.sharding import P
    >>> rules = TreePathShardingRule((r"0\\.weight", P("model")), (".*", P()))
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU())
    >>> arrays = shard_module(model, Mesh(model=4), rules)
    >>> {name: array.sharding.spec for name, array in arrays.items()}
    {'0.weight': P('model', None), '0.bias': P(None)}

    With a process group, initialised or made from torchrun's variables, every parameter and buffer becomes a DTensor in
    place and the module is returned; make optimizers after that. Each process cuts its part from the parameters that
    it has and nothing is sent, so all processes must have the same ones: seed them alike, or load them. Parameters
    that are tied stay tied; requires_grad, gradients and attributes are kept. Parameters on the meta device stay there:
    `module.to_empty(device=…)` then makes this process's part alone. Inputs of the module must be DTensors too.

    Without a process group the module is unchanged and the result is {name: Array}, without a gradient.

    `rules` is a rule, a `P`, or {name: P}. Patterns are matched against names such as 'layers.0.weight', those with '/'
    against paths such as 'layers/0/weight' too; policies get paths with '/'. What a rule gives None for is left as
    it is. A DeviceMesh as `mesh`, such as `device_mesh["tp"]`, is used itself.
    """
    device_mesh = mesh if isinstance(mesh, DeviceMesh) else None
    named = from_device_mesh(mesh) if isinstance(mesh, DeviceMesh) else mesh
    if not isinstance(named, Mesh):
        raise MeshError(f"shard_module takes a Mesh or a DeviceMesh; got {type(named).__name__}.")
    tensors = _tensors(module)
    shardings = match_sharding_rule(rules, module, named)
    _check(tensors, shardings)
    if not has_group():
        return _arrays(tensors, shardings)
    if device_mesh is None:
        device_mesh = to_device_mesh(named)
    check_ascending(named)
    place = own_place(named)
    parts: dict[int, torch.Tensor] = {}
    for name, tensor in tensors.items():
        sharding = shardings[name]
        if sharding is None or id(tensor) in parts:
            continue
        try:
            part = _distributed(tensor, sharding, device_mesh, place)
            grad = None if tensor.grad is None else _distributed(tensor.grad, sharding, device_mesh, place)
        except ShardingError as error:
            raise ShardingError(f"shard_module, {name!r}: {error}") from error
        parts[id(tensor)] = _like(tensor, part, grad)
    _replace(module, parts)
    return module


def gather_module(module: torch.nn.Module) -> torch.nn.Module:
    """Makes DTensor parameters and buffers full tensors again, on every process, and returns the module.

    The inverse of `shard_module`, and a collective: every process of the group must call it. Plain parameters are left
    as they are. Modules under fully_shard are refused, because FSDP keeps its own record of their parameters.
    """
    if any(isinstance(part, FSDPModule) for part in module.modules()):
        raise ArrayError(
            "gather_module: the module is managed by fully_shard, which needs its parameters as they are. For full values "
            "use torch.distributed.checkpoint.state_dict.get_model_state_dict with "
            "StateDictOptions(full_state_dict=True)."
        )
    tensors = {name: tensor for name, tensor in _tensors(module).items() if isinstance(tensor, DTensor)}
    for name, tensor in tensors.items():
        _check_readable(name, tensor)
    full: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in full:
            with torch.no_grad():
                grad: Any = tensor.grad
                whole = tensor.full_tensor()
                grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
            full[id(tensor)] = _like(tensor, whole, grad)
    _replace(module, full)
    return module


def match_sharding_rule(
    rule: Any, module: torch.nn.Module | Mapping[str, Any], mesh: Mesh
) -> dict[str, Sharding | None]:
    """The sharding that a rule gives each parameter and buffer of a module, or each entry of a state dict, by name.

    >>> from shardwright.sharding import P
    >>> match_sharding_rule(P("x"), torch.nn.Linear(3, 4), Mesh(x=2))
    {'weight': Sharding(Mesh(x=2), P('x', None)), 'bias': Sharding(Mesh(x=2), P('x'))}

    None for entries that are not tensors. See `shard_module` for how names are matched.
    """
    tensors: Mapping[str, Any] = _tensors(module) if isinstance(module, torch.nn.Module) else module
    for name, tensor in tensors.items():
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ShardingError(
                f"match_sharding_rule, {name!r}: a lazy parameter has no shape yet. Run the module once on an input first."
            )
    return resolved_by_name(rule, tensors, mesh, "match_sharding_rule")


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; one that is tied has several names."""
    if not isinstance(module, torch.nn.Module):
        raise ArrayError(f"A module is needed; got {type(module).__name__}.")
    both: Iterator[tuple[str, torch.Tensor]] = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    return dict(both)


def _check(tensors: Mapping[str, torch.Tensor], shardings: Mapping[str, Sharding | None]) -> None:
    """Refuse what can't be sharded, before anything changes."""
    names: dict[int, str] = {}
    for name, tensor in tensors.items():
        sharding = shardings[name]
        first = names.setdefault(id(tensor), name)
        if shardings[first] != sharding:
            raise ShardingError(
                f"shard_module: {first!r} and {name!r} are one tied tensor, but the rules give {_spec(shardings[first])} "
                f"and {_spec(sharding)}. Give both names the same."
            )
        if sharding is None:
            continue
        if isinstance(tensor, DTensor):
            raise ShardingError(
                f"shard_module: {name!r} is a DTensor already, with placements {tensor.placements}. Call gather_module first, "
                f"or change it with redistribute."
            )
        if sharding.partial:
            raise ShardingError(
                f"shard_module: {name!r} would be partial along {', '.join(sharding.partial)}. A parameter is split or "
                f"replicated: leave partial= out."
            )


def _spec(sharding: Sharding | None) -> Any:
    return None if sharding is None else sharding.spec


def _arrays(tensors: Mapping[str, torch.Tensor], shardings: Mapping[str, Sharding | None]) -> dict[str, Array]:
    """One process: each tensor as an array; tied names share one."""
    made: dict[int, Array] = {}
    result: dict[str, Array] = {}
    for name, tensor in tensors.items():
        sharding = shardings[name]
        if sharding is None:
            continue
        if tensor.is_meta:
            raise ShardingError(
                f"shard_module: {name!r} is on the meta device and has no elements to make an array of. Initialise the "
                f"module first: module.to_empty(device='cpu'), then its own initialisation or load_state_dict."
            )
        if id(tensor) not in made:
            made[id(tensor)] = shard(tensor, sharding)
        result[name] = made[id(tensor)]
    return result


def _distributed(tensor: torch.Tensor, sharding: Sharding, device_mesh: DeviceMesh, place: int) -> DTensor:
    """The DTensor of a tensor that every process has: this process's part is cut from it and nothing is sent."""
    shape = tuple(tensor.shape)
    placements = to_placements(sharding, shape)
    bounds = layout_of(sharding, shape).at(place).offsets
    part = tensor.detach()[tuple(slice(low, high) for low, high in bounds)]
    if not tensor.is_meta:
        part = part.to(device_mesh.device_type)
    own = part.clone(memory_format=torch.contiguous_format)  # the full tensor can be freed
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(own, device_mesh, placements, run_check=False, shape=tensor.shape, stride=stride)


def _like(old: torch.Tensor, data: torch.Tensor, grad: torch.Tensor | None) -> torch.Tensor:
    """A parameter or buffer with new data and the same requires_grad and attributes."""
    new: torch.Tensor = data
    if isinstance(old, torch.nn.Parameter):
        new = torch.nn.Parameter(data, requires_grad=old.requires_grad)
    elif old.requires_grad:
        new = data.requires_grad_()
    for name, value in vars(old).items():
        if name not in ("_local_tensor", "_spec") and name not in vars(new):
            setattr(new, name, value)
    if grad is not None:
        new.grad = grad
    return new


def _replace(module: torch.nn.Module, tensors: Mapping[int, torch.Tensor]) -> None:
    """Put new tensors in the place of old ones, given by id, under all their names."""
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for key, old in list(store.items()):
                if old is not None and id(old) in tensors:
                    setattr(part, key, tensors[id(old)])


def _check_readable(name: str, tensor: DTensor) -> None:
    """Refuse a DTensor whose full_tensor() can be wrong.

    Its ranks must ascend along mesh dims, and no uneven dim may have plain Shards along several mesh dims. With a
    _StridedShard among them torch gathers one mesh dim after the other, which is right.
    """
    names = tensor.device_mesh.mesh_dim_names or [f"dim{i}" for i in range(tensor.device_mesh.ndim)]
    mesh = from_device_mesh(tensor.device_mesh, names)
    try:
        check_ascending(mesh)
        if all(isinstance(placement, Shard | Replicate) for placement in tensor.placements):
            from_placements(mesh, tensor.placements, tuple(tensor.shape))
    except ShardwrightError as error:
        raise type(error)(f"gather_module, {name!r}: {error}") from error
