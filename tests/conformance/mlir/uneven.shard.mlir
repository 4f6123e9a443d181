shard.grid @m(shape = 2x3)

// 9 rows on 2 devices and 7 columns on 3: shards are padded, and padding is left out of the sums.
func.func @product(%x: tensor<9x7xf32>, %w: tensor<7x5xf32>) -> tensor<9x5xf32> {
  %s = shard.sharding @m split_axes = [[0], [1]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<9x7xf32>
  %t = shard.sharding @m split_axes = [[1]] : !shard.sharding
  %ws = shard.shard %w to %t : tensor<7x5xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<9x5xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<9x5xf32>) -> tensor<9x5xf32>
  %y = linalg.matmul ins(%xs, %ws : tensor<9x7xf32>, tensor<7x5xf32>) outs(%f : tensor<9x5xf32>) -> tensor<9x5xf32>
  %r = shard.sharding @m split_axes = [[0]] : !shard.sharding
  %ys = shard.shard %y to %r : tensor<9x5xf32>
  return %ys : tensor<9x5xf32>
}

// Rows of neighbours: a roll, a flip, and windows of three rows.
func.func @rows(%x: tensor<7x4xf32>, %k: tensor<3xf32>) -> (tensor<7x4xf32>, tensor<7x4xf32>, tensor<5x4xf32>) {
  %s = shard.sharding @m split_axes = [[1]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<7x4xf32>
  %e = tensor.empty() : tensor<7x4xf32>
  %roll = linalg.generic {indexing_maps = [affine_map<(i, j) -> ((i + 6) mod 7, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%xs : tensor<7x4xf32>) outs(%e : tensor<7x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<7x4xf32>
  %flip = linalg.generic {indexing_maps = [affine_map<(i, j) -> (6 - i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%xs : tensor<7x4xf32>) outs(%e : tensor<7x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  } -> tensor<7x4xf32>
  %zero = arith.constant dense<0.0> : tensor<5x4xf32>
  %windows = linalg.generic {indexing_maps = [affine_map<(i, j, w) -> (i + w, j)>, affine_map<(i, j, w) -> (w)>, affine_map<(i, j, w) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%xs, %k : tensor<7x4xf32>, tensor<3xf32>) outs(%zero : tensor<5x4xf32>) {
  ^bb0(%in: f32, %weight: f32, %out: f32):
    %p = arith.mulf %in, %weight : f32
    %q = arith.addf %out, %p : f32
    linalg.yield %q : f32
  } -> tensor<5x4xf32>
  return %roll, %flip, %windows : tensor<7x4xf32>, tensor<7x4xf32>, tensor<5x4xf32>
}

// Rounds that the data counts.
func.func @rounds(%x: tensor<8xf32>, %n: tensor<i64>) -> tensor<8xf32> {
  %s = shard.sharding @m split_axes = [[0]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<8xf32>
  %r:2 = scf.while (%i = %n, %a = %xs) : (tensor<i64>, tensor<8xf32>) -> (tensor<i64>, tensor<8xf32>) {
    %four = arith.constant dense<4> : tensor<i64>
    %c = arith.cmpi slt, %i, %four : tensor<i64>
    %f = tensor.extract %c[] : tensor<i1>
    scf.condition(%f) %i, %a : tensor<i64>, tensor<8xf32>
  } do {
  ^bb0(%i: tensor<i64>, %a: tensor<8xf32>):
    %one = arith.constant dense<1> : tensor<i64>
    %j = arith.addi %i, %one : tensor<i64>
    %b = arith.addf %a, %a : tensor<8xf32>
    scf.yield %j, %b : tensor<i64>, tensor<8xf32>
  }
  return %r#1 : tensor<8xf32>
}

// The largest of unsigned numbers; a row at a place that the data says.
func.func @data(%x: tensor<8xf32>, %u: tensor<8xui8>, %n: tensor<i64>) -> (tensor<8xui8>, tensor<8xf32>) {
  %s = shard.sharding @m split_axes = [[0]] : !shard.sharding
  %xs = shard.shard %x to %s : tensor<8xf32>
  %bits = tensor.bitcast %u : tensor<8xui8> to tensor<8xi8>
  %hundred = arith.constant dense<100> : tensor<8xi8>
  %most = arith.maxui %bits, %hundred : tensor<8xi8>
  %v = tensor.bitcast %most : tensor<8xi8> to tensor<8xui8>
  %k = tensor.extract %n[] : tensor<i64>
  %at = arith.index_cast %k : i64 to index
  %row = arith.constant dense<7.0> : tensor<1xf32>
  %put = tensor.insert_slice %row into %xs[%at] [1] [1] : tensor<1xf32> into tensor<8xf32>
  return %v, %put : tensor<8xui8>, tensor<8xf32>
}
