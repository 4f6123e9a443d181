shard.grid @g(shape = 2x4)
func.func @mlp(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>, %v: tensor<32x8xf32>, %b: tensor<32xf32>) -> tensor<8x8xf32> {
  %s0 = shard.sharding @g split_axes = [[0]] : !shard.sharding
  %s1 = shard.sharding @g split_axes = [[], [1]] : !shard.sharding
  %s2 = shard.sharding @g split_axes = [[1]] : !shard.sharding
  %xs = shard.shard %x to %s0 : tensor<8x16xf32>
  %ws = shard.shard %w to %s1 : tensor<16x32xf32>
  %vs = shard.shard %v to %s2 : tensor<32x8xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x32xf32>
  %i = linalg.fill ins(%zero : f32) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
  %h = linalg.matmul ins(%xs, %ws : tensor<8x16xf32>, tensor<16x32xf32>) outs(%i : tensor<8x32xf32>) -> tensor<8x32xf32>
  %bb = linalg.broadcast ins(%b : tensor<32xf32>) outs(%e : tensor<8x32xf32>) dimensions = [0]
  %hb = arith.addf %h, %bb : tensor<8x32xf32>
  %zeros = arith.constant dense<0.0> : tensor<8x32xf32>
  %a = arith.maximumf %hb, %zeros : tensor<8x32xf32>
  %o = tensor.empty() : tensor<8x8xf32>
  %oi = linalg.fill ins(%zero : f32) outs(%o : tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = linalg.matmul ins(%a, %vs : tensor<8x32xf32>, tensor<32x8xf32>) outs(%oi : tensor<8x8xf32>) -> tensor<8x8xf32>
  %ys = shard.shard %y to %s0 : tensor<8x8xf32>
  return %ys : tensor<8x8xf32>
}
func.func @softmax(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %s = shard.sharding @g split_axes = [[0], [1]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<8x16xf32>
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %e1 = tensor.empty() : tensor<8xf32>
  %m0 = linalg.fill ins(%low : f32) outs(%e1 : tensor<8xf32>) -> tensor<8xf32>
  %m = linalg.reduce { arith.maximumf } ins(%xs : tensor<8x16xf32>) outs(%m0 : tensor<8xf32>) dimensions = [1]
  %e = tensor.empty() : tensor<8x16xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} ins(%xs, %m : tensor<8x16xf32>, tensor<8xf32>) outs(%e : tensor<8x16xf32>) {
  ^bb0(%in: f32, %max: f32, %out: f32):
    %t = arith.subf %in, %max : f32
    %p = math.exp %t : f32
    linalg.yield %p : f32
  } -> tensor<8x16xf32>
  %z0 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<8xf32>) -> tensor<8xf32>
  %z = linalg.reduce { arith.addf } ins(%d : tensor<8x16xf32>) outs(%z0 : tensor<8xf32>) dimensions = [1]
  %zb = linalg.broadcast ins(%z : tensor<8xf32>) outs(%e : tensor<8x16xf32>) dimensions = [1]
  %y = arith.divf %d, %zb : tensor<8x16xf32>
  return %y : tensor<8x16xf32>
}
func.func @loop(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c5 = arith.constant 5 : index
  %s = shard.sharding @g split_axes = [[0], [1]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<8x8xf32>
  %r = scf.for %i = %c0 to %c5 step %c1 iter_args(%a = %xs) -> (tensor<8x8xf32>) {
    %b = arith.addf %a, %xs : tensor<8x8xf32>
    scf.yield %b : tensor<8x8xf32>
  }
  %e = tensor.extract %r[%c1, %c0] : tensor<8x8xf32>
  %z = arith.constant 0.0 : f32
  %p = arith.cmpf ogt, %e, %z : f32
  %q = scf.if %p -> (tensor<8x8xf32>) {
    %n = arith.negf %r : tensor<8x8xf32>
    scf.yield %n : tensor<8x8xf32>
  } else {
    scf.yield %r : tensor<8x8xf32>
  }
  return %q : tensor<8x8xf32>
}
