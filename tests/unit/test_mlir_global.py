"""Functions in the global view: annotations propagated and partitioned by the library's own passes; text and back."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from helpers import assert_close, assert_devices, assert_same, by_coords, held_by
from mlir_texts import function, in_shard
from shardwright import mlir, nn
from shardwright import numpy as snp
from shardwright.errors import MLIRError

GLOBALS = (Path(__file__).parent.parent / "conformance" / "mlir" / "globals.shard.mlir").read_text()
RNG = np.random.default_rng(0)
ENGINES = ("numpy", "literal", "torch")


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def round_trip(program, dialect="shard", view=None):
    """The text of a program, which must be the text of the program that it is read as."""
    text = mlir.dumps(program, dialect, view)
    assert mlir.dumps(mlir.loads(text)["main"].program, dialect, view) == text
    return text


@pytest.mark.parametrize("engine", ENGINES)
def test_annotated_functions_give_what_numpy_does(engine):
    fns = mlir.loads(GLOBALS, engine=engine)
    x, w, v, b = draw(8, 16), draw(16, 32), draw(32, 8), draw(32)
    y = fns["mlp"](x, w, v, b)
    assert_close(y, np.maximum(x @ w + b, 0) @ v, 64)
    assert y.sharding.spec == sw.P("a0", None)
    assert [row.collective for row in fns["mlp"].explain().collectives] == ["all_reduce a1"]
    e = np.exp(x - x.max(1, keepdims=True))
    assert_close(fns["softmax"](x), e / e.sum(1, keepdims=True))
    z = draw(8, 8)
    assert_close(fns["loop"](z), 6 * z if z[1, 0] <= 0 else -6 * z)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_partitioned_text_runs_on_shards(engine):
    fn = mlir.loads(GLOBALS)["mlp"]
    text = mlir.dumps({"mlp": fn.program}, "mesh", "local")
    local = mlir.loads(text, engine=engine)["mlp"]
    hosts = [draw(8, 16), draw(16, 32), draw(32, 8), draw(32)]
    layouts = [node.type.sharding for node in fn.program.inputs]
    shards = [
        sw.PerDevice(local.mesh, held_by(sw.shard(host, sharding)))
        for host, sharding in zip(hosts, layouts, strict=True)
    ]
    expected = held_by(fn(*hosts))
    for tensor, wanted in zip(local(*shards).values(), expected, strict=True):
        assert_close(tensor, wanted, 64)


# -- every change of sharding ------------------------------------------------------------------------------------------

SPLITS = ["[[]]", "[[0]]", "[[1]]", "[[], [0]]", "[[], [1]]", "[[0], [1]]", "[[1], [0]]", "[[0, 1]]", "[[1, 0]]"]
SPLITS += ["[[], [0, 1]]", "[[], [1, 0]]"]


def test_all_121_changes_of_sharding_are_right():
    """Upstream gets 39 of these pairs right (LLVM 19 and 22) or 57 (24); the rest have wrong shapes, crash or are wrong."""
    lines = ["mesh.mesh @m(shape = 2x4)"]
    for number, (one, other) in enumerate(product(SPLITS, SPLITS)):
        lines.append(
            f"func.func @f{number}(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{\n"
            f"  %a = mesh.shard %x to <@m, {one}> : tensor<8x16xf32>\n"
            f"  %b = mesh.shard %a to <@m, {other}> annotate_for_users : tensor<8x16xf32>\n"
            f"  return %b : tensor<8x16xf32>\n}}"
        )
    fns = mlir.loads("\n".join(lines), engine="literal")
    host = np.arange(128, dtype=np.float32).reshape(8, 16)
    programs = {name: fn.program for number, (name, fn) in enumerate(fns.items()) if number % 4 == 0}
    locals_ = mlir.loads(mlir.dumps(programs, "shard", "local"))
    for (name, fn), (one, other) in zip(fns.items(), product(SPLITS, SPLITS), strict=True):
        given, wanted = (sw.shard(host, fn.mesh, sw.P(*spec_of(text))) for text in (one, other))
        made = fn(host)
        assert made.sharding is wanted.sharding, (one, other)
        for tensor, expected in zip(held_by(made), held_by(wanted), strict=True):
            assert_same(tensor, expected)
        if name in locals_ and locals_[name].is_local:  # a change without communication has no collectives
            per_device = locals_[name](sw.PerDevice(locals_[name].mesh, held_by(given)))
            assert_devices(fn.mesh, per_device.values(), by_coords(fn.mesh, held_by(wanted)))


def spec_of(text):
    return [tuple(f"a{axis}" for axis in axes) for axes in eval(text)]


# -- shardings ---------------------------------------------------------------------------------------------------------


def annotated(sharding, shape="9x4", dialect="shard", mesh="2x3"):
    if dialect == "mesh":
        line = f"%y = mesh.shard %x to <@m, {sharding}> : tensor<{shape}xf32>"
    else:
        line = f"%s = mesh.sharding @m split_axes = {sharding} : !mesh.sharding\n"
        line += f"  %y = mesh.shard %x to %s : tensor<{shape}xf32>"
    text = function(line, f"tensor<{shape}xf32>", mesh=mesh, argument=f"%x: tensor<{shape}xf32>")
    return in_shard(text) if dialect == "shard" else text


def sizes(fn, shape):
    return [tensor.shape[0] for tensor in held_by(fn(np.zeros(shape, np.float32)))]


@pytest.mark.parametrize("engine", ENGINES)
def test_uneven_dims_are_cut_as_the_dialect_cuts_them(engine):
    fn = mlir.loads(annotated("[[0]]"), engine=engine)["f"]
    assert sizes(fn, (9, 4)) == [4, 4, 4, 5, 5, 5]  # upstream's partition gives every device 4 and loses a row
    assert sizes(mlir.loads(annotated("[[1]]", "11x4"), engine=engine)["f"], (11, 4)) == [3, 4, 4] * 2
    host = np.arange(36, dtype=np.float32).reshape(9, 4)
    assert_same(np.asarray(fn(host)), host)


def test_offsets_say_where_shards_begin():
    text = annotated("[[0, 1]] sharded_dims_offsets = [0, 1, 3, 3, 5, 8, 9]")
    assert sizes(mlir.loads(text)["f"], (9, 4)) == [1, 2, 0, 2, 3, 1]
    (error,) = mlir.verify(annotated("[[0, 1]] sharded_dims_offsets = [0, 1, 3, 3, 5, 9]"))
    assert "must be 7 offsets, one more than shards for each; got 6" in error.message  # 2 · 3 shards, not 2 + 3
    (error,) = mlir.verify(annotated("[[0]] sharded_dims_offsets = [0, 4, 8]"))
    assert "sharded dims offsets of dim 0 end at 8, but its size is 9" in error.message
    assert round_trip(mlir.loads(text)["f"].program)


@pytest.mark.parametrize("engine", ENGINES)
def test_halos_of_shardings_are_filled(engine):
    text = annotated("[[], [1]] halo_sizes = [1, 2]", "4x12")
    fn = mlir.loads(text, engine=engine)["f"]
    host = np.arange(48, dtype=np.float32).reshape(4, 12)
    made = fn(host)
    padded = np.pad(host, ((0, 0), (1, 2)))
    for place, tensor in enumerate(held_by(made)):
        at = 4 * (place % 3)
        assert_same(tensor, padded[:, at : at + 7])
    assert "halo_sizes = [1, 2]" in round_trip(fn.program)


def test_partial_axes_of_the_attribute():
    text = """
mesh.mesh @m(shape = 2x4)
func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x8xf32>) -> tensor<8x8xf32> {
  %xs = mesh.shard %x to <@m, [[], [1]]> : tensor<8x16xf32>
  %ws = mesh.shard %w to <@m, [[1]]> : tensor<16x8xf32>
  %e = tensor.empty() : tensor<8x8xf32>
  %m = linalg.matmul ins(%xs, %ws : tensor<8x16xf32>, tensor<16x8xf32>) outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>
  %p = mesh.shard %m to <@m, [[]], partial = sum[1]> : tensor<8x8xf32>
  %r = mesh.shard %p to <@m, [[0]]> annotate_for_users : tensor<8x8xf32>
  return %r : tensor<8x8xf32>
}"""
    x, w = draw(8, 16), draw(16, 8)
    for engine in ENGINES:
        fn = mlir.loads(text, engine=engine)["f"]
        assert_close(fn(x, w), x @ w, 64)
    steps = [row.collective.split()[0] for row in fn.explain().rows if row.collective]
    assert steps == ["all_slice", "all_reduce"]  # the value stays partial until it is resharded
    assert "partial = sum[1]" in round_trip(fn.program, "mesh")
    text = round_trip(fn.program, "shard")  # LLVM 22 has no partial axes: it keeps the attribute and reads replication
    assert 'split_axes = [[]] {partial = "sum[1]"} : !shard.sharding' in text
    again = mlir.loads(text)["main"]
    assert_close(again(x, w), x @ w, 64)
    assert [row.collective.split()[0] for row in again.explain().rows if row.collective] == steps
    (error,) = mlir.verify(text.replace("sum[1]", "total[1]"))
    assert "partial is 'total[1]'; write it as \"sum[1]\"" in error.message


def test_the_sharding_of_an_annotated_value_can_be_read():
    text = """
shard.grid @m(shape = 2x3)
func.func @f(%x: tensor<6x6xf32>, %y: tensor<6x6xf32>) -> tensor<6x6xf32> {
  %s = shard.sharding @m split_axes = [[1]] : !shard.sharding
  %a = shard.shard %x to %s : tensor<6x6xf32>
  %t = shard.get_sharding %a : tensor<6x6xf32> -> !shard.sharding
  %b = shard.shard %y to %t : tensor<6x6xf32>
  %c = arith.mulf %a, %b : tensor<6x6xf32>
  return %c : tensor<6x6xf32>
}"""
    fn = mlir.loads(text)["f"]
    x, y = draw(6, 6), draw(6, 6)
    assert_same(np.asarray(fn(x, y)), x * y)
    assert [str(node.type) for node in fn.program.inputs] == ["f32[6@a1,6]"] * 2


# -- Python programs as text -------------------------------------------------------------------------------------------


def test_python_programs_become_text_and_come_back():
    mesh = sw.Mesh(data=2, model=4)

    def block(x, w, b):
        h = nn.relu(x @ w + b)
        y = snp.sum(h * h, axis=1, keepdims=True) / 16
        return snp.where(h > 0.5, h, -h) / snp.sqrt(y + 1e-6)

    x, w, b = draw(8, 16), draw(16, 32), draw(32)
    step = sw.sjit(block, mesh=mesh, in_shardings=(sw.P("data"), sw.P(None, "model"), sw.P("model")))
    program = step.lower(x, w, b).program
    for dialect in ("shard", "mesh"):
        read = mlir.loads(round_trip(program, dialect))["main"]
        assert_close(read(x, w, b), np.asarray(step(x, w, b)), 64)
        local = mlir.loads(round_trip(program, dialect, "local"))["main"]
        placed = [
            sw.PerDevice(local.mesh, held_by(sw.shard(h, n.type.sharding)))
            for h, n in zip((x, w, b), program.inputs, strict=True)
        ]
        for tensor, expected in zip(local(*placed).values(), held_by(step(x, w, b)), strict=True):
            assert_close(tensor, expected, 64)


def test_functions_of_tensors_per_device_become_text():
    mesh = sw.Mesh(x=2, y=2)

    def fn(v):
        return sw.collectives.all_gather(np.exp(v) + 1, "y", 0) * 2

    step = sw.sjit(sw.shard_map(fn, mesh, sw.P("x", "y"), sw.P("x", None)), mesh=mesh)
    host = draw(4, 4)
    text = mlir.dumps(step.lower(host).program, view="local")
    assert "grid_axes = [1] gather_axis = 0 : tensor<2x2xf32> -> tensor<4x2xf32>" in text
    read = mlir.loads(text)["main"]
    v = sw.PerDevice(read.mesh, held_by(sw.shard(host, mesh, sw.P("x", "y"))))
    expected = np.concatenate([np.exp(t) + 1 for t in v.values()[:2]]) * 2
    assert_close(read(v).values()[0], expected)


def test_uneven_shards_are_padded_to_the_largest():
    mesh = sw.Mesh(x=4)
    step = sw.sjit(lambda x: snp.max(x) - x, mesh=mesh, in_shardings=sw.P("x"))
    x = -np.arange(1.0, 7.0)  # padding that counted, zeros, would win the maximum
    program = step.lower(x).program
    assert "sharded_dims_offsets = [0, 2, 4, 6, 6]" in mlir.dumps(program)
    for dialect in ("shard", "mesh"):
        local = mlir.loads(round_trip(program, dialect, "local"))["main"]
        shards = [[-1, -2], [-3, -4], [-5, -6], [777, 777]]
        made = local(sw.PerDevice(local.mesh, [np.array(shard, float) for shard in shards])).values()
        assert_same(np.concatenate(made[:3]), -1 - x)


def test_rows_of_neighbours_are_shifts_or_halos():
    mesh = sw.Mesh(x=4)
    roll = sw.sjit(lambda x: snp.roll(x, 1), mesh=mesh, in_shardings=sw.P("x")).lower(np.zeros(8, np.float32))
    text = round_trip(roll.program, "shard", "local")
    assert "shard.shift %0 on @grid0 grid_axes = [0] shift_axis = 0 offset = 1 rotate : tensor<1xf32>" in text
    assert "all_gather" not in text
    assert mlir.loads(text)["main"].explain().total_bytes == roll.explain().total_bytes == 4
    halo = sw.Sharding(mesh, sw.P("x"), halo={0: (1, 2)})
    step = sw.sjit(lambda x: sw.with_sharding_constraint(x, halo), mesh=mesh, in_shardings=sw.P("x"))
    program = step.lower(np.zeros(16, np.float32)).program
    assert "shard.update_halo %1 on @grid0 split_axes = [[0]] halo_sizes = [1, 2] : tensor<7xf32>" in round_trip(
        program, "shard", "local"
    )
    shifted = round_trip(program, "mesh", "local")  # LLVM 19 has no update_halo
    assert "offset = 1 :" in shifted
    assert "offset = -1 :" in shifted


def test_an_exchange_is_one_all_to_all_of_pieces():
    mesh = sw.Mesh(x=2, y=2)
    before, after = sw.P(None, ("y", "x")), sw.P(("x", "y"))
    step = sw.sjit(lambda v: v.reshard(after), mesh=mesh, in_shardings=before)
    x = draw(4, 8)
    lowered = step.lower(x)
    text = round_trip(lowered.program, "shard", "local")
    assert text.count("shard.all_to_all") == 1
    assert "all_gather" not in text
    local = mlir.loads(text)["main"]
    made = local(sw.PerDevice(local.mesh, held_by(sw.shard(x, mesh, before)))).values()
    for tensor, expected in zip(made, held_by(step(x)), strict=True):
        assert_same(tensor, expected)
    assert local.explain().total_bytes == lowered.explain().total_bytes == 24  # two elements from each of three devices


def test_a_value_that_becomes_partial_is_kept_by_one_device():
    mesh = sw.Mesh(x=2, y=2)
    partial = sw.Sharding(mesh, sw.P(), partial=("x",))
    step = sw.sjit(lambda v: sw.with_sharding_constraint(v, partial) * 2.0, mesh=mesh, in_shardings=sw.P())
    local = mlir.loads(round_trip(step.lower(np.ones(3)).program, "shard", "local"))["main"]
    for tensor in local(np.ones(3)).values():
        assert_same(tensor, np.full(3, 2.0))


def test_pieces_of_axes_are_axes_of_the_text():
    mesh = sw.Mesh(x=8, y=2)
    x = draw(8, 4)
    step = sw.sjit(lambda v: v * 2, mesh=mesh, in_shardings=sw.P("x:(2)2", "y"))
    text = round_trip(step.lower(x).program, "shard")
    assert "shape = 2x2x2x2" in text
    assert "split_axes = [[1], [3]]" in text
    assert_same(np.asarray(mlir.loads(text)["main"](x)), x * 2)
    odd = sw.sjit(lambda v, w: v, mesh=sw.Mesh(x=6), in_shardings=(sw.P("x:(1)2"), sw.P("x:(1)3")))
    with pytest.raises(MLIRError, match=r"of mesh axes don't nest"):
        mlir.dumps(odd.lower(np.zeros(6), np.zeros(6)).program)


@pytest.mark.parametrize("view", ["global", "local"])
def test_sorts_are_networks_of_comparisons(view):
    mesh = sw.Mesh(x=2)
    x = np.array([[3.0, np.nan, -1.0, 3.0, 0.0], [1.0, 1.0, 0.5, -2.0, np.inf]])
    for sorts, wanted in (
        (snp.sort, np.sort(x, axis=1)),
        (snp.argsort, np.argsort(x, axis=1, kind="stable")),
        (lambda v: snp.sort(v, descending=True), np.sort(x, axis=1)[:, ::-1]),
    ):
        program = sw.sjit(sorts, mesh=mesh, in_shardings=sw.P("x")).lower(x).program
        fn = mlir.loads(round_trip(program, "shard", view))["main"]
        made = (
            np.asarray(fn(x)) if view == "global" else np.concatenate([np.asarray(fn(row)) for row in np.split(x, 2)])
        )
        assert_same(made, wanted)


def test_what_has_no_text_says_so():
    mesh = sw.Mesh(x=4)
    long = sw.sjit(lambda x: snp.sort(x), mesh=mesh).lower(np.zeros(5000, np.float32)).program
    with pytest.raises(MLIRError, match=r"sort can't be written: it has 5,000 rows; MLIR has no sort"):
        mlir.dumps(long)
    inverse = sw.sjit(snp.linalg.inv, mesh=mesh).lower(np.eye(4)).program
    with pytest.raises(MLIRError, match=r"inv can't be written: it has no operation in MLIR"):
        mlir.dumps(inverse)
    python = sw.sjit(sw.shard_map(lambda v: v.map(lambda t: t * 2), mesh, sw.P("x"), sw.P("x")), mesh=mesh)
    with pytest.raises(MLIRError, match=r"is a Python function of each device's tensor"):
        mlir.dumps(python.lower(np.zeros(8)).program, view="local")
    with pytest.raises(MLIRError, match=r"There is no dialect 'stablehlo'"):
        mlir.dumps(inverse, "stablehlo")


# -- dynamic sizes -----------------------------------------------------------------------------------------------------


DYNAMIC = """
mesh.mesh @m(shape = 2x?)
func.func @f(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %one = arith.constant 1.0 : f32
  %ones = linalg.fill ins(%one : f32) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
  %s = arith.addf %x, %ones : tensor<?x4xf32>
  %y = mesh.all_gather %s on @m mesh_axes = [1] gather_axis = 0 : tensor<?x4xf32> -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}"""


def test_dynamic_sizes_are_specialised_by_what_is_given():
    fn = mlir.loads(DYNAMIC, mesh_shapes={"m": (2, 3)})["f"]
    for rows in (1, 5):
        made = fn(np.full((rows, 4), 2, np.float32))
        assert_same(made[0], np.full((3 * rows, 4), 3, np.float32))
    assert fn.specialised((5, 4)).explain().rows[-1].results == ("f32[15,4] per device",)
    with pytest.raises(MLIRError, match=r"@f has sizes that are `\?`, so there is no program yet.*\n.*func.func @f"):
        _ = fn.program
    with pytest.raises(MLIRError, match=r"argument 0 is tensor<\?x4xf32> per device; got shape \(5, 3\)"):
        fn.specialised((5, 3))
    with pytest.raises(MLIRError, match=r"(?s)The shape of @m has `\?`. Give its sizes: loads.*mesh.mesh @m"):
        mlir.loads(DYNAMIC)["f"](np.zeros((1, 4), np.float32))
    with pytest.raises(MLIRError, match=r"mesh_shapes gives \(4, 3\) for @m, whose shape is 2x\?"):
        mlir.loads(DYNAMIC, mesh_shapes={"m": (4, 3)})["f"](np.zeros((1, 4), np.float32))
