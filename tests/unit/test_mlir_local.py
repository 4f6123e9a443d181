"""Functions in the local view: every operation of both dialects against NumPy, on every engine in one process."""

import numpy as np
import pytest

import oracle
import shardwright as sw
from helpers import assert_devices, assert_same, by_coords
from mlir_texts import COLLECTIVES, SHAPE, SIZES, collective, function, in_shard
from shardwright import collectives as c
from shardwright.errors import CollectiveError, MLIRError

ENGINES = ("numpy", "literal", "torch")
VALUES = [np.arange(72, dtype=np.float32).reshape(SHAPE) + 5 * place for place in range(12)]
EXPECTED = {
    "all_gather": lambda v: oracle.all_gather(v, SIZES, ("a1", "a0"), 0),
    "all_gather_last": lambda v: oracle.all_gather(v, SIZES, ("a2",), 1),
    "all_reduce": lambda v: oracle.all_reduce(v, SIZES, ("a1", "a2")),
    "all_reduce_wide": lambda v: oracle.all_reduce(v, SIZES, ("a0",), "max", np.float64),
    "all_reduce_average": lambda v: oracle.all_reduce(v, SIZES, ("a0", "a1"), "average"),
    "all_slice": lambda v: oracle.all_slice(v, SIZES, ("a1", "a0"), 1),
    "all_to_all": lambda v: oracle.all_to_all(v, SIZES, ("a1",), 0, 1),
    "all_to_all_same": lambda v: oracle.all_to_all(v, SIZES, ("a2", "a1"), 1, 1),
    "broadcast": lambda v: oracle.broadcast(v, SIZES, ("a0", "a2"), (1, 0)),
    "gather": lambda v: oracle.gather(v, SIZES, ("a1",), 1, (2,)),
    "reduce": lambda v: oracle.reduce(v, SIZES, ("a1",), (1,), "product"),
    "reduce_scatter": lambda v: oracle.reduce_scatter(v, SIZES, ("a1", "a0"), 1),
    "scatter": lambda v: oracle.scatter(v, SIZES, ("a0",), 0, (1,)),
    "shift": lambda v: oracle.shift(v, SIZES, ("a0", "a1"), "a1", 1, False),
    "shift_round": lambda v: oracle.shift(v, SIZES, ("a1",), "a1", -2, True),
}


def run(text, values, engine="numpy", name="f"):
    fn = sw.mlir.loads(text, engine=engine)[name]
    return fn.mesh, fn(sw.PerDevice(fn.mesh, values))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", COLLECTIVES)
def test_every_collective_gives_what_numpy_does(case, engine):
    line, kind = collective(case)
    text = function(line, kind)
    for spelled in (text, in_shard(text), in_shard(text).replace("scatter_axis", "scatter_dim")):
        mesh, made = run(spelled, VALUES, engine)
        expected = EXPECTED[case](by_coords(mesh, VALUES))
        assert_devices(mesh, made.values(), expected, exact=case not in ("reduce", "all_reduce_average"))


def test_literal_counts_what_explain_says():
    for case in COLLECTIVES:
        fn = sw.mlir.loads(function(*collective(case)))["f"]
        measured = sw.measure(fn, sw.PerDevice(fn.mesh, VALUES))
        assert [row.counted for row in measured.rows] == [row.bytes for row in fn.explain().rows]


@pytest.mark.parametrize("engine", ENGINES)
def test_send_and_recv_are_one_transfer_in_every_group(engine):
    body = """%s = mesh.send %x on @m mesh_axes = [1] destination = [2] : (tensor<6x12xf32>) -> tensor<6x12xf32>
  %y = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<6x12xf32>) -> tensor<6x12xf32>"""
    mesh, made = run(function(body, "tensor<6x12xf32>"), VALUES, engine)
    v = by_coords(mesh, VALUES)
    expected = {d: v[d[0], 0, d[2]] if d[1] == 2 else np.zeros(SHAPE, np.float32) for d in v}
    assert_devices(mesh, made.values(), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_halos_come_from_neighbours_with_corners(engine):
    text = function(
        "%y = mesh.update_halo %x on @m split_axes = [[0], [1]] halo_sizes = [1, 2, 1, 0] : tensor<6x12xf32>",
        "tensor<6x12xf32>",
    )
    for spelled in (text, in_shard(text)):
        mesh, made = run(spelled, VALUES, engine)
        expected = oracle.update_halo(by_coords(mesh, VALUES), SIZES, (("a0",), ("a1",)), ((1, 2), (1, 0)))
        assert_devices(mesh, made.values(), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_questions_about_the_mesh(engine):
    text = """
mesh.mesh @m(shape = 2x3)
func.func @f() -> (index, index, index, index, index, index, index, index) {
  %n:2 = mesh.mesh_shape @m axes = [1, 0] : index, index
  %i:2 = mesh.process_multi_index on @m : index, index
  %j = mesh.process_multi_index on @m axes = [1] : index
  %l = mesh.process_linear_index on @m : index
  %d:2 = mesh.neighbors_linear_indices on @m[%i#0, %i#1] split_axes = [1] : index, index
  return %n#0, %n#1, %i#0, %j, %l, %d#0, %d#1, %i#1 : index, index, index, index, index, index, index, index
}"""
    for spelled in (text, in_shard(text)):
        fn = sw.mlir.loads(spelled, engine=engine)["f"]
        results = [[int(x) for x in result.values()] for result in fn()]
        assert results[:2] == [[3] * 6, [2] * 6]
        assert results[2:5] == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
        assert results[5:7] == [[-1, 0, 1, -1, 3, 4], [1, 2, -1, 4, 5, -1]]


def shard_shape(shape, dims, mesh="2x3"):
    text = f"""
shard.grid @m(shape = {mesh})
func.func @f() -> index {{
  %s = shard.sharding @m split_axes = {shape} : !shard.sharding
  %i:2 = shard.process_multi_index on @m : index, index
  %n = shard.shard_shape dims = [{dims}] sharding = %s device = [%i#0, %i#1] : index
  return %n : index
}}"""
    return [int(x) for x in sw.mlir.loads(text)["f"]().values()]


def test_shard_shape_gives_the_trailing_shards_one_more():
    assert shard_shape("[[0]]", 9) == [4, 4, 4, 5, 5, 5]
    assert shard_shape("[[1]]", 11) == [3, 4, 4, 3, 4, 4]


def test_shard_shape_counts_all_axes_of_a_dim():
    assert shard_shape("[[0, 1]]", 13) == [2, 2, 2, 2, 2, 3]  # upstream uses the first axis alone: 6 and 7
    assert shard_shape("[[0, 1]] sharded_dims_offsets = [0, 1, 3, 6, 6, 8, 9]", 9) == [1, 2, 3, 0, 2, 1]


def test_empty_axes_are_groups_of_one():
    for line in (
        "%y = mesh.all_gather %x on @m gather_axis = 0 : tensor<6x12xf32> -> tensor<6x12xf32>",
        "%y = mesh.all_reduce %x on @m : tensor<6x12xf32> -> tensor<6x12xf32>",
        "%y = mesh.broadcast %x on @m root = [] : (tensor<6x12xf32>) -> tensor<6x12xf32>",
    ):
        mesh, made = run(function(line, "tensor<6x12xf32>"), VALUES)
        assert_devices(mesh, made.values(), by_coords(mesh, VALUES))


# -- the dialect's document --------------------------------------------------------------------------------------------


def test_the_documents_groups():
    mesh = sw.Mesh((2, 3, 4, 5), ("i", "j", "k", "m"))
    groups = [{mesh.coords(d) for d in group} for group in mesh.groups(("i", "j"))]
    assert sorted(map(sorted, groups)) == sorted(
        sorted((i, j, k, m) for i in range(2) for j in range(3)) for k in range(4) for m in range(5)
    )
    (group,) = (g for g in groups if (1, 0, 2, 3) in g)
    assert (1, 1, 2, 3) in group
    assert (1, 0, 2, 4) not in group


def test_the_documents_order():
    mesh = sw.Mesh((2, 3, 4, 5), ("i", "j", "k", "m"))
    v = sw.PerDevice(mesh, [[place] for place in range(120)])
    gathered = c.all_gather(v, (3, 1), 0)[(0, 0, 0, 0)].tolist()
    at = {coords: gathered.index(mesh.index(coords)) for coords in ((0, 1, 0, 0), (0, 0, 0, 1), (0, 2, 0, 0))}
    assert at[0, 1, 0, 0] < at[0, 0, 0, 1]
    assert at[0, 1, 0, 0] < at[0, 2, 0, 0]
    text = function(
        "%y = mesh.all_gather %x on @m mesh_axes = [3, 1] gather_axis = 0 : tensor<1xi64> -> tensor<15xi64>",
        "tensor<15xi64>",
        mesh="2x3x4x5",
        argument="%x: tensor<1xi64>",
    )
    assert run(text, [[place] for place in range(120)])[1][(0, 0, 0, 0)].tolist() == gathered


def test_the_documents_in_group_device():
    mesh = sw.Mesh((2, 3, 4), ("i", "j", "k"))
    v = sw.PerDevice(mesh, [[place] for place in range(24)])
    made = c.broadcast(v, (0, 2), (1, 3))
    assert all(made[(i, g, k)][0] == mesh.index((1, g, 3)) for i in range(2) for g in range(3) for k in range(4))


# -- Python's collectives in the dialect's words -----------------------------------------------------------------------


def test_axes_by_number():
    mesh = sw.Mesh(x=2, y=3)
    v = sw.PerDevice(mesh, [np.arange(6) + place for place in range(6)])
    for one, other in (
        (c.all_reduce(v, 1), c.all_reduce(v, "y")),
        (c.all_gather(v, (1, 0), 0), c.all_gather(v, ("y", "x"), 0)),
        (c.shift(v, (0, 1), 1, 1, True), c.shift(v, ("x", "y"), "y", 1, True)),
        (c.update_halo(v, [(1,)], [1, 2]), c.update_halo(v, ["y"], [(1, 2)])),
    ):
        assert_devices(mesh, one.values(), by_coords(mesh, other.values()))
    with pytest.raises(CollectiveError, match=r"Axis 2 is out of range: the mesh has 2 axes, \('x', 'y'\). Use 0 to 1"):
        c.all_reduce(v, 2)
    with pytest.raises(CollectiveError, match=r"3 halo sizes \[1, 1, 2\] are not pairs"):
        c.update_halo(v, [(1,)], [1, 1, 2])


def test_values_are_printed_by_device():
    v = sw.PerDevice(sw.Mesh(x=2, y=1), [[1.5, 2], [3.0, 4]])
    assert str(v) == "PerDevice(f64[2] on Mesh(x=2, y=1))\n(0, 0): [1.5 2. ]\n(1, 0): [3. 4.]"
    assert str(sw.PerDevice(sw.Mesh(x=70), range(70))).endswith("… and 6 more devices")
    assert repr(v) == "PerDevice(f64[2] on Mesh(x=2, y=1))"


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_arguments_of_the_local_view():
    line, kind = collective("all_reduce")
    fn = sw.mlir.loads(function(line, kind))["f"]
    v = sw.PerDevice(fn.mesh, VALUES)
    same = fn(VALUES[0])  # one host tensor: every device has it
    assert_same(same[0], 6 * VALUES[0])
    shards = sw.shard(np.concatenate(VALUES), fn.mesh, sw.P(("a0", "a1", "a2")))
    assert_devices(fn.mesh, fn(shards).values(), by_coords(fn.mesh, fn(v).values()))
    with pytest.raises(MLIRError, match=r"argument 0 has dtype float64, but the text declares float32"):
        fn(VALUES[0].astype(np.float64))
    with pytest.raises(MLIRError, match=r"argument 0 is tensor<6x12xf32> per device; got shape \(3,\)"):
        fn(np.zeros(3, np.float32))
    with pytest.raises(MLIRError, match=r"@f takes 1 arguments; got 2"):
        fn(v, v)
    with pytest.raises(
        MLIRError, match=r"argument 0 is on Mesh\(x=12\), but the function runs on Mesh\(a0=2, a1=3, a2=2\)"
    ):
        fn(sw.PerDevice(sw.Mesh(x=12), VALUES))


def test_a_loaded_function_is_a_part_of_other_programs():
    line, kind = collective("all_reduce")
    fn = sw.mlir.loads(function(line, kind))["f"]
    mapped = sw.shard_map(lambda v: fn(v * 2), fn.mesh, sw.P(("a0", "a1", "a2")), sw.P(("a0", "a1", "a2")))
    host = np.concatenate(VALUES)
    expected = oracle.all_reduce(by_coords(fn.mesh, VALUES), SIZES, ("a1", "a2"))
    for made in (mapped(host), sw.sjit(mapped, mesh=fn.mesh)(host)):
        assert_same(np.asarray(made), np.concatenate([2 * expected[at] for at in np.ndindex(2, 3, 2)]))


def test_a_function_runs_on_the_devices_of_jax():
    """Six of JAX's eight devices: a gather, arithmetic, a reduction, a shift."""
    text = """
mesh.mesh @m(shape = 2x3)
func.func @f(%x: tensor<2x4xf32>) -> tensor<6x4xf32> {
  %g = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2x4xf32> -> tensor<6x4xf32>
  %a = arith.mulf %g, %g : tensor<6x4xf32>
  %r = mesh.all_reduce %a on @m mesh_axes = [0] reduction = max : tensor<6x4xf32> -> tensor<6x4xf32>
  %s = mesh.shift %r on @m mesh_axes = [1] shift_axis = 1 offset = 1 rotate : tensor<6x4xf32> -> tensor<6x4xf32>
  return %s : tensor<6x4xf32>
}
"""
    values = [np.arange(8, dtype=np.float32).reshape(2, 4) * (place + 1) for place in range(6)]
    sizes = {"a0": 2, "a1": 3}
    fn = sw.mlir.loads(text, engine="jax")["f"]
    by_device = by_coords(fn.mesh, values)
    gathered = {at: x * x for at, x in oracle.all_gather(by_device, sizes, ("a1",), 0).items()}
    reduced = oracle.all_reduce(gathered, sizes, ("a0",), "max")
    expected = oracle.shift(reduced, sizes, ("a1",), "a1", 1, True)
    assert_devices(fn.mesh, fn(sw.PerDevice(fn.mesh, values)), expected)
