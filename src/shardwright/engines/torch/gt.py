"""GT's engine API on torch tensors: collectives between processes, over the groups and the transport of the torch engine.

Before data travels, the processes of a group compare what they ask for. Gloo itself would add tensors of different shapes
to wrong numbers, and end processes for different lengths.
"""

import math
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from shardwright.engines.coherence import key_of
from shardwright.engines.torch import transport
from shardwright.engines.torch.processes import Group, World
from shardwright.errors import CoherenceError, EngineError
from shardwright.lines import source_line
from shardwright.mesh import Axes, Mesh
from shardwright.plan import sub_blocks

Tensor = torch.Tensor

HEADER = 256  # bytes of a request's description
FLOATS_8 = tuple(dtype for name in dir(torch) if name.startswith("float8_") and (dtype := getattr(torch, name)))
# Torch does not add these; the sum of their bits as signed integers has the same bits.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class TorchProcess:
    """Collectives on the torch tensor of each process."""

    name = "torch"

    def __repr__(self) -> str:
        return "engine('torch')"

    def supports_distributed(self) -> bool:
        """Whether this PyTorch has torch.distributed."""
        return dist.is_available()

    def all_reduce_sum(self, tensor: Tensor, group: tuple[Mesh, Axes] | None = None) -> Tensor:
        """The sum of the tensors of a group's processes, on each of them."""
        call = _Call("all_reduce_sum", tensor, group)
        call.agree(tuple(tensor.shape))
        if not tensor.numel():
            return call.tensor.clone()
        return call.run(lambda data, over: transport.all_reduce(over, data, "sum", torch.add))

    def all_gather(self, tensor: Tensor, group: tuple[Mesh, Axes] | None = None) -> Tensor:
        """The tensors of a group's processes, concatenated along dim 0 in group order; their lengths may differ."""
        call = _Call("all_gather", tensor, group, has_rows=True)
        lengths = call.agree(("n", *tensor.shape[1:]))
        row = math.prod(tensor.shape[1:])
        if not row or not any(lengths):
            return call.tensor.new_empty((sum(lengths), *tensor.shape[1:]))

        def gather(data: Tensor, over: Group) -> Tensor:
            if len(set(lengths)) == 1:
                return transport.all_gather(over, data).flatten(0, 1)
            flat = data.reshape(-1)
            joined = transport.exchange(over, [flat] * len(lengths), [length * row for length in lengths])
            return joined.reshape(-1, *tensor.shape[1:])

        return call.run(gather, sums=False)

    def reduce_scatter(self, tensor: Tensor, group: tuple[Mesh, Axes] | None = None) -> Tensor:
        """This process's block of the sum: of n rows over k processes the first ones get ceil(n/k), the last ones the rest."""
        call = _Call("reduce_scatter", tensor, group, has_rows=True)
        call.agree(tuple(tensor.shape))
        bounds = list(sub_blocks(len(tensor), len(call.ranks)))
        if not tensor.numel():
            begin, end = bounds[call.ranks.index(call.world.rank)]
            return call.tensor[begin:end].clone()
        return call.run(
            lambda data, over: transport.reduce_scatter(over, [data[a:b] for a, b in bounds], "sum", torch.add)
        )


class _Call:
    """One call: its tensor without gradients, and the processes that take part."""

    def __init__(self, name: str, tensor: Tensor, group: object, has_rows: bool = False) -> None:
        self.name = name
        self.tensor = _checked(tensor, name, has_rows)
        self.world = World.current()
        self.ranks = _ranks(group, self.world)

    def agree(self, shape: tuple[Any, ...]) -> list[int]:
        """The lengths of all tensors along dim 0; CoherenceError if operations, dtypes or shapes (as given) differ."""
        dims = ", ".join(map(str, shape))
        request = f"{self.name} of {str(self.tensor.dtype).removeprefix('torch.')}[{dims}]"
        length = self.tensor.shape[0] if self.tensor.ndim else 1
        text = f"{length} {key_of(request)} {request}".encode()[:HEADER].ljust(HEADER)
        header = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        headers = self._guarded(lambda: transport.all_gather(self.world.group(self.ranks), header))
        texts = [bytes(row.tolist()).decode().rstrip() for row in headers]
        lengths, keys, requests = zip(*(text.split(" ", 2) for text in texts), strict=True)
        if len(set(keys)) > 1:
            told = "; ".join(f"rank {rank}: {asked}" for rank, asked in zip(self.ranks, requests, strict=True))
            usual = max(keys, key=keys.count)
            others = tuple(rank for rank, key in zip(self.ranks, keys, strict=True) if key != usual)
            raise CoherenceError(
                f"The processes of a group ask for different things{self._line()}. {told}. Make them the same.", others
            )
        return [int(length) for length in lengths]

    def run(self, collective: Any, sums: bool = True) -> Tensor:
        """The result of a collective on the data in a dtype that torch adds."""
        dtype, data = self.tensor.dtype, self.tensor.resolve_conj().resolve_neg().contiguous()

        def over(given: Tensor) -> Tensor:
            return self._guarded(lambda: collective(given, self.world.group(self.ranks, self.tensor.device.type)))

        if sums and dtype in FLOATS_8:
            return over(data.to(torch.float32)).to(dtype)  # rounded once
        if sums and dtype in SIGNED:
            return over(data.view(SIGNED[dtype])).view(dtype)
        return over(data)

    def _guarded(self, communicate: Any) -> Tensor:
        reports = self.world.reports
        if reports.error is not None:
            raise CoherenceError(str(reports.error), reports.error.ranks)
        try:
            return communicate()
        except RuntimeError as error:
            raise reports.lost(error, f"{self.name}{self._line()}") from error

    def _line(self) -> str:
        line = source_line()
        return f" ({line})" if line else ""


def _checked(tensor: object, name: str, has_rows: bool) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or hasattr(tensor, "to_local"):
        raise EngineError(
            f"{name} takes the dense torch tensor of this process; got {type(tensor).__name__}. Use torch.as_tensor(x), or "
            f"x.to_local() of a DTensor."
        )
    if has_rows and not tensor.ndim:
        raise EngineError(f"{name} works along dim 0; the tensor has no dims. Use tensor.reshape(1).")
    return tensor.detach()


def _ranks(group: object, world: World) -> tuple[int, ...]:
    """The ranks of a group in its order."""
    if group is None:
        return tuple(range(world.size))
    match group:
        case (Mesh() as mesh, str() | tuple() | list() as axes):
            world.check(mesh)
            named = mesh.group_axes((axes,) if isinstance(axes, str) else tuple(axes))
            return _ranks_along(mesh, named, world.rank)
    raise EngineError(
        f"group={group!r} is invalid. Give None for all processes, or a mesh and axes of it: group=(mesh, 'tp') or "
        f"group=(mesh, ('dp', 'tp'))."
    )


@lru_cache(maxsize=256)
def _ranks_along(mesh: Mesh, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
    return next(ranks for ranks in mesh.groups(axes) if rank in ranks)
