"""A batch that does not divide by the devices, on a T3K without one: padded, and uneven as it is."""

import torch

import shardwright.ttnn as ttnn

torch.manual_seed(0)
model, batch = torch.nn.Linear(16, 4), torch.randn(13, 16)
with ttnn.create_mesh_device(ttnn.MeshShape(2, 4)) as mesh_device:
    with ttnn.distribute(ttnn.ReplicateTensorToMesh(mesh_device)):
        parameters = ttnn.preprocess_model_parameters(initialize_model=lambda: model, device=mesh_device)
    shard, join = ttnn.ShardTensorToMesh(mesh_device, dim=0), ttnn.ConcatMeshToTensor(mesh_device, dim=0)

    padded = ttnn.from_torch(ttnn.pad_batch(batch, mesh_device), ttnn.bfloat16, device=mesh_device, mesh_mapper=shard)
    y = ttnn.linear(padded, parameters.weight, bias=parameters.bias)
    ttnn.synchronize_device(mesh_device)
    first = ttnn.unpad_batch(ttnn.to_torch(y, mesh_composer=join), len(batch))

    uneven = ttnn.from_torch(batch, ttnn.bfloat16, device=mesh_device, mesh_mapper=shard)
    ttnn.visualize_tensor(uneven, colour=False)
    z = ttnn.linear(uneven, parameters.weight, bias=parameters.bias)
    ttnn.synchronize_device(mesh_device)
    second = ttnn.to_torch(z, mesh_composer=join)

print(ttnn.check(mesh_device))
difference = (first - second).abs().max().item()
print(f"padded to 16 and uneven give the same: {difference == 0}")
print(f"close to torch on one device: {torch.allclose(second.float(), model(batch), atol=0.05)}")
