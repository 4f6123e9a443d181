shard.grid @mesh0(shape = 2x3x4)
func.func @f(%a: tensor<6x8xf32>) -> (index, index, tensor<6x8xf32>, index, tensor<18x8xf32>, tensor<6x8xf64>, tensor<2x8xf32>, tensor<3x16xf32>, tensor<6x8xf32>, tensor<12x8xf32>, tensor<6x8xf32>, tensor<2x8xf64>, tensor<3x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>, index, index) {
  %0:2 = shard.grid_shape @mesh0 axes = [0, 1] : index, index
  %1:3 = shard.process_multi_index on @mesh0 : index, index, index
  %2 = shard.process_linear_index on @mesh0 : index
  %3 = shard.all_gather %a on @mesh0 grid_axes = [1] gather_axis = 0 : tensor<6x8xf32> -> tensor<18x8xf32>
  %4 = shard.all_reduce %a on @mesh0 grid_axes = [1, 0] reduction = max : tensor<6x8xf32> -> tensor<6x8xf64>
  %5 = shard.all_slice %a on @mesh0 grid_axes = [1] slice_axis = 0 : tensor<6x8xf32> -> tensor<2x8xf32>
  %6 = shard.all_to_all %a on @mesh0 grid_axes = [0] split_axis = 0 concat_axis = 1 : tensor<6x8xf32> -> tensor<3x16xf32>
  %7 = shard.broadcast %a on @mesh0 grid_axes = [0] root = [1] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %8 = shard.gather %a on @mesh0 grid_axes = [0] gather_axis = 0 root = [1] : (tensor<6x8xf32>) -> tensor<12x8xf32>
  %10 = shard.reduce %a on @mesh0 grid_axes = [1] reduction = max root = [2] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %11 = shard.reduce_scatter %a on @mesh0 grid_axes = [1] reduction = max scatter_axis = 0 : tensor<6x8xf32> -> tensor<2x8xf64>
  %12 = shard.scatter %a on @mesh0 grid_axes = [0] scatter_axis = 0 root = [1] : (tensor<6x8xf32>) -> tensor<3x8xf32>
  %13 = shard.send %a on @mesh0 grid_axes = [0] destination = [1] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %9 = shard.recv %a on @mesh0 grid_axes = [0] source = [0] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %14 = shard.shift %a on @mesh0 grid_axes = [0, 1] shift_axis = 1 offset = 2 rotate : tensor<6x8xf32> -> tensor<6x8xf32>
  %c1 = arith.constant 1 : index
  %sh = shard.sharding @mesh0 split_axes = [[0], [1, 2]] halo_sizes = [1, 1, 0, 0] : !shard.sharding
  %so = shard.sharding @mesh0 split_axes = [[1]] sharded_dims_offsets = [0, 2, 3, 7] : !shard.sharding
  %nb:2 = shard.neighbors_linear_indices on @mesh0[%1#0, %1#1, %1#2] split_axes = [1] : index, index
  %ss:2 = shard.shard_shape dims = [7, 24] sharding = %so device = [%1#0, %1#1, %1#2] : index, index
  %uh = shard.update_halo %a on @mesh0 split_axes = [[0], [1]] halo_sizes = [1, 1, 0, 2] : tensor<6x8xf32>
  %sz:2 = shard.shard_shape dims = [8, 24] sharding = %sh device = [0, %c1, 1] : index, index
  return %nb#0, %ss#0, %uh, %sz#1, %3, %4, %5, %6, %7, %8, %10, %11, %12, %9, %14, %2, %1#1 : index, index, tensor<6x8xf32>, index, tensor<18x8xf32>, tensor<6x8xf64>, tensor<2x8xf32>, tensor<3x16xf32>, tensor<6x8xf32>, tensor<12x8xf32>, tensor<6x8xf32>, tensor<2x8xf64>, tensor<3x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>, index, index
}
