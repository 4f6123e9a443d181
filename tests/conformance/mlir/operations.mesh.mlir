mesh.mesh @mesh0(shape = 2x3x4)
func.func @f(%a: tensor<6x8xf32>) -> (tensor<18x8xf32>, tensor<6x8xf64>, tensor<2x8xf32>, tensor<3x16xf32>, tensor<6x8xf32>, tensor<12x8xf32>, tensor<6x8xf32>, tensor<2x8xf64>, tensor<3x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>, index, index) {
  %0:2 = mesh.mesh_shape @mesh0 axes = [0, 1] : index, index
  %1:3 = mesh.process_multi_index on @mesh0 : index, index, index
  %2 = mesh.process_linear_index on @mesh0 : index
  %3 = mesh.all_gather %a on @mesh0 mesh_axes = [1] gather_axis = 0 : tensor<6x8xf32> -> tensor<18x8xf32>
  %4 = mesh.all_reduce %a on @mesh0 mesh_axes = [1, 0] reduction = <max> : tensor<6x8xf32> -> tensor<6x8xf64>
  %5 = mesh.all_slice %a on @mesh0 mesh_axes = [1] slice_axis = 0 : tensor<6x8xf32> -> tensor<2x8xf32>
  %6 = mesh.all_to_all %a on @mesh0 mesh_axes = [0] split_axis = 0 concat_axis = 1 : tensor<6x8xf32> -> tensor<3x16xf32>
  %7 = mesh.broadcast %a on @mesh0 mesh_axes = [0] root = [1] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %8 = mesh.gather %a on @mesh0 mesh_axes = [0] gather_axis = 0 root = [1] : (tensor<6x8xf32>) -> tensor<12x8xf32>
  %10 = mesh.reduce %a on @mesh0 mesh_axes = [1] reduction = <max> root = [2] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %11 = mesh.reduce_scatter %a on @mesh0 mesh_axes = [1] reduction = <max> scatter_axis = 0 : tensor<6x8xf32> -> tensor<2x8xf64>
  %12 = mesh.scatter %a on @mesh0 mesh_axes = [0] scatter_axis = 0 root = [1] : (tensor<6x8xf32>) -> tensor<3x8xf32>
  %13 = mesh.send %a on @mesh0 mesh_axes = [0] destination = [1] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %9 = mesh.recv %a on @mesh0 mesh_axes = [0] source = [0] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %14 = mesh.shift %a on @mesh0 mesh_axes = [0, 1] shift_axis = 1 offset = 2 rotate : tensor<6x8xf32> -> tensor<6x8xf32>
  return %3, %4, %5, %6, %7, %8, %10, %11, %12, %9, %14, %2, %1#1 : tensor<18x8xf32>, tensor<6x8xf64>, tensor<2x8xf32>, tensor<3x16xf32>, tensor<6x8xf32>, tensor<12x8xf32>, tensor<6x8xf32>, tensor<2x8xf64>, tensor<3x8xf32>, tensor<6x8xf32>, tensor<6x8xf32>, index, index
}
