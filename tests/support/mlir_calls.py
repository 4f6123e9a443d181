"""What processes run in tests/multiprocess/test_mlir.py: functions of an MLIR file with one device a process."""

import numpy as np

import shardwright as sw

TEXT = """
mesh.mesh @m(shape = 2x2)
func.func @local(%x: tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>) {
  %i = mesh.process_multi_index on @m axes = [1] : index
  %c0 = arith.constant 0 : index
  %p = arith.cmpi eq, %i, %c0 : index
  %r = scf.if %p -> (tensor<4xf32>) {
    %n = arith.negf %x : tensor<4xf32>
    scf.yield %n : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  %y = mesh.all_gather %r on @m mesh_axes = [1] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
  %s = mesh.send %x on @m mesh_axes = [0] destination = [1] : (tensor<4xf32>) -> tensor<4xf32>
  %t = mesh.recv %x on @m mesh_axes = [0] source = [0] : (tensor<4xf32>) -> tensor<4xf32>
  return %y, %t : tensor<8xf32>, tensor<4xf32>
}
func.func @loop(%x: tensor<4xf32>) -> tensor<4xf32> {
  %z = arith.constant dense<0.0> : tensor<f32>
  %limit = arith.constant 300.0 : f32
  %y = scf.while (%a = %x) : (tensor<4xf32>) -> tensor<4xf32> {
    %s = linalg.reduce { arith.addf } ins(%a : tensor<4xf32>) outs(%z : tensor<f32>) dimensions = [0]
    %t = mesh.all_reduce %s on @m mesh_axes = [1] : tensor<f32> -> tensor<f32>
    %e = tensor.extract %t[] : tensor<f32>
    %p = arith.cmpf olt, %e, %limit : f32
    scf.condition(%p) %a : tensor<4xf32>
  } do {
  ^bb0(%b: tensor<4xf32>):
    %r = mesh.all_reduce %b on @m mesh_axes = [1] : tensor<4xf32> -> tensor<4xf32>
    scf.yield %r : tensor<4xf32>
  }
  return %y : tensor<4xf32>
}
func.func @global(%x: tensor<8x4xf32>) -> tensor<8x8xf32> {
  %xs = mesh.shard %x to <@m, [[0], [1]]> : tensor<8x4xf32>
  %e = tensor.empty() : tensor<4x8xf32>
  %t = linalg.transpose ins(%xs : tensor<8x4xf32>) outs(%e : tensor<4x8xf32>) permutation = [1, 0]
  %z = tensor.empty() : tensor<8x8xf32>
  %y = linalg.matmul ins(%xs, %t : tensor<8x4xf32>, tensor<4x8xf32>) outs(%z : tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}"""


def loop():
    """A loop that the rows of the mesh leave after different numbers of rounds."""
    function = sw.mlir.loads(TEXT, engine="torch")["loop"]
    made = function(sw.PerDevice(function.mesh, [np.arange(4, dtype=np.float32) + 10 * i for i in range(4)]))
    return [x.tolist() for x in made.values()]


def both_views():
    """The results of both functions, read in every process."""
    functions = sw.mlir.loads(TEXT, engine="torch")
    mesh = functions["local"].mesh
    gathered, passed = functions["local"](
        sw.PerDevice(mesh, [np.arange(4, dtype=np.float32) + 10 * i for i in range(4)])
    )
    product = functions["global"](np.arange(32, dtype=np.float32).reshape(8, 4))
    return [x.tolist() for x in gathered.values()], [x.tolist() for x in passed.values()], np.asarray(product).tolist()
