"""The ttnn front end: tensors to a mesh and back against one copy, and the block formats."""

import time

import torch
from harness import ratio, report

import shardwright.ttnn as ttnn


def main() -> None:
    device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    host = torch.randn(4096, 4096)
    mappers = {
        "ShardTensorToMesh": (ttnn.ShardTensorToMesh(device, dim=0), ttnn.ConcatMeshToTensor(device, dim=0)),
        "ShardTensorToMesh, columns": (ttnn.ShardTensorToMesh(device, dim=1), ttnn.ConcatMeshToTensor(device, dim=1)),
        "ShardTensor2dMesh": (
            ttnn.ShardTensor2dMesh(device, dims=(0, 1)),
            ttnn.ConcatMesh2dToTensor(device, dims=(0, 1)),
        ),
    }
    for name, (mapper, composer) in mappers.items():
        x = ttnn.from_torch(host, mesh_mapper=mapper)
        ratio(
            f"from_torch of 64 MiB, {name}",
            lambda m=mapper: ttnn.from_torch(host, mesh_mapper=m),
            host.clone,
            1.2,
            rounds=11,
        )
        ratio(
            f"to_torch of 64 MiB, {name}",
            lambda x=x, c=composer: ttnn.to_torch(x, mesh_composer=c),
            host.clone,
            1.2,
            rounds=11,
        )
    for dtype in (ttnn.bfloat8_b, ttnn.bfloat4_b):
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            ttnn.from_torch(host, dtype)
            best = min(best, time.perf_counter() - start)
        report(
            f"{dtype.value} of 64 MiB, seconds for 100 MB",
            best * 100e6 / (host.numel() * 4),
            1,
            "s",
            f"{host.numel() * 4 / best / 1e6:.0f} MB/s",
        )
    ttnn.close_mesh_device(device)


if __name__ == "__main__":
    main()
