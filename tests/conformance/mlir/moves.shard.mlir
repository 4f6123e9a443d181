shard.grid @m(shape = 2x3)

// The axes of a dim in another order: every device sends its shard to one other.
func.func @permute(%x: tensor<12x2xf32>) -> tensor<12x2xf32> {
  %s = shard.sharding @m split_axes = [[0, 1]] : !shard.sharding
  %a = shard.shard %x to %s : tensor<12x2xf32>
  %t = shard.sharding @m split_axes = [[1, 0]] : !shard.sharding
  %b = shard.shard %a to %t annotate_for_users : tensor<12x2xf32>
  return %b : tensor<12x2xf32>
}

// Two dims swap their axes, and nothing divides their sizes.
func.func @exchange(%x: tensor<7x5xf32>) -> tensor<7x5xf32> {
  %s = shard.sharding @m split_axes = [[0], [1]] : !shard.sharding
  %a = shard.shard %x to %s : tensor<7x5xf32>
  %t = shard.sharding @m split_axes = [[1], [0]] : !shard.sharding
  %b = shard.shard %a to %t annotate_for_users : tensor<7x5xf32>
  return %b : tensor<7x5xf32>
}

// Halos along two axes, beside another halo.
func.func @halo(%x: tensor<12x6xf32>) -> tensor<12x6xf32> {
  %s = shard.sharding @m split_axes = [[0, 1]] : !shard.sharding
  %a = shard.shard %x to %s : tensor<12x6xf32>
  %t = shard.sharding @m split_axes = [[0, 1]] halo_sizes = [1, 2] : !shard.sharding
  %b = shard.shard %a to %t annotate_for_users : tensor<12x6xf32>
  return %b : tensor<12x6xf32>
}

// Where shards begin, and a halo on shards of different sizes.
func.func @offsets(%x: tensor<9xf32>) -> tensor<9xf32> {
  %s = shard.sharding @m split_axes = [[1]] sharded_dims_offsets = [0, 2, 7, 9] : !shard.sharding
  %a = shard.shard %x to %s : tensor<9xf32>
  %t = shard.sharding @m split_axes = [[0]] halo_sizes = [1, 0] {sharded_dims_offsets = [0, 6, 9]} : !shard.sharding
  %b = shard.shard %a to %t annotate_for_users : tensor<9xf32>
  return %b : tensor<9xf32>
}

// Every device names its own ends; a halo along two axes, for the tensors of devices.
func.func @ends(%x: tensor<5xf32>) -> (tensor<5xf32>, tensor<5xf32>) {
  %i:2 = shard.process_multi_index on @m : index, index
  %one = arith.constant 1 : index
  %up = arith.subi %one, %i#0 : index
  %s = shard.send %x on @m grid_axes = [0] destination = [%up] : (tensor<5xf32>, index) -> tensor<5xf32>
  %r = shard.recv %x on @m grid_axes = [0] source = [%up] : (tensor<5xf32>, index) -> tensor<5xf32>
  %h = shard.update_halo %r on @m split_axes = [[1, 0]] halo_sizes = [1, 1] : tensor<5xf32>
  return %r, %h : tensor<5xf32>, tensor<5xf32>
}
