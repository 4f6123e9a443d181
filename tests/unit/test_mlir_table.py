"""Every operation of the dialects in one table: in both spellings and in the pretty and the generic form it is verified, run
against NumPy on every device, and printed as it is read. Below it every known defect of upstream, with what is right."""

from io import StringIO

import numpy as np
import pytest
from xdsl.printer import Printer

import oracle
import shardwright as sw
from helpers import assert_devices, assert_same, by_coords, held_by
from mlir_texts import in_shard
from shardwright import mlir
from shardwright.mlir.parsing import Source

SIZES = {"a0": 2, "a1": 3}
MESH = "mesh.mesh @m(shape = 2x3)\n"
K = "tensor<6x12xf32>"
VALUES = [np.arange(72, dtype=np.float32).reshape(6, 12) % 11 + place for place in range(6)]
COORDS = [(i, j) for i in range(2) for j in range(3)]


def reduction(name, kind="i32"):
    """An all_reduce along both axes; bitwise ones on integers."""
    cast = f"%c = arith.fptosi %x : {K} to tensor<6x12x{kind}>\n  " if kind == "i32" else ""
    value, kind = ("%c", "tensor<6x12xi32>") if cast else ("%x", K)
    line = f"{cast}%y = mesh.all_reduce {value} on @m mesh_axes = [1, 0] reduction = <{name}> : {kind} -> {kind}"
    dtype = np.int32 if cast else np.float32
    return (
        line,
        kind,
        lambda v: oracle.all_reduce({d: x.astype(dtype) for d, x in v.items()}, SIZES, ("a1", "a0"), name),
    )


def known(function):
    """What each device says of itself."""
    return lambda v: {coords: np.int64(function(*coords)) for coords in v}


# Name: lines that give %y from a device's %x, the type of %y, and what every device has then.
OPERATIONS = {
    "all_gather": (f"%y = mesh.all_gather %x on @m mesh_axes = [1, 0] gather_axis = 1 : {K} -> tensor<6x72xf32>",
                   "tensor<6x72xf32>", lambda v: oracle.all_gather(v, SIZES, ("a1", "a0"), 1)),
    "all_reduce": (f"%y = mesh.all_reduce %x on @m mesh_axes = [1] : {K} -> tensor<6x12xf64>", "tensor<6x12xf64>",
                   lambda v: oracle.all_reduce(v, SIZES, ("a1",), "sum", np.float64)),
    "all_slice": (f"%y = mesh.all_slice %x on @m mesh_axes = [1, 0] slice_axis = 0 : {K} -> tensor<1x12xf32>",
                  "tensor<1x12xf32>", lambda v: oracle.all_slice(v, SIZES, ("a1", "a0"), 0)),
    "all_to_all": (f"%y = mesh.all_to_all %x on @m mesh_axes = [1] split_axis = 1 concat_axis = 0 : {K} -> tensor<18x4xf32>",
                   "tensor<18x4xf32>", lambda v: oracle.all_to_all(v, SIZES, ("a1",), 1, 0)),
    "broadcast": (f"%y = mesh.broadcast %x on @m mesh_axes = [1, 0] root = [2, 1] : ({K}) -> {K}", K,
                  lambda v: oracle.broadcast(v, SIZES, ("a1", "a0"), (2, 1))),
    "gather": (f"%y = mesh.gather %x on @m mesh_axes = [1] gather_axis = 0 root = [1] : ({K}) -> tensor<18x12xf32>",
               "tensor<18x12xf32>", lambda v: oracle.gather(v, SIZES, ("a1",), 0, (1,))),
    "reduce": (f"%y = mesh.reduce %x on @m mesh_axes = [0] reduction = <max> root = [1] : ({K}) -> {K}", K,
               lambda v: oracle.reduce(v, SIZES, ("a0",), (1,), "max")),
    "reduce_scatter": (f"%y = mesh.reduce_scatter %x on @m mesh_axes = [1] scatter_axis = 1 : {K} -> tensor<6x4xf32>",
                       "tensor<6x4xf32>", lambda v: oracle.reduce_scatter(v, SIZES, ("a1",), 1)),
    "scatter": (f"%y = mesh.scatter %x on @m mesh_axes = [0] scatter_axis = 1 root = [1] : ({K}) -> tensor<6x6xf32>",
                "tensor<6x6xf32>", lambda v: oracle.scatter(v, SIZES, ("a0",), 1, (1,))),
    "send, recv": (f"%s = mesh.send %x on @m mesh_axes = [1] destination = [2] : ({K}) -> {K}\n"
                   f"  %y = mesh.recv %x on @m mesh_axes = [1] source = [1] : ({K}) -> {K}", K,
                   lambda v: {d: v[d[0], 1] if d[1] == 2 else np.zeros((6, 12), np.float32) for d in v}),
    "shift": (f"%y = mesh.shift %x on @m mesh_axes = [0, 1] shift_axis = 1 offset = -1 : {K} -> {K}", K,
              lambda v: oracle.shift(v, SIZES, ("a0", "a1"), "a1", -1, False)),
    "shift rotate": (f"%y = mesh.shift %x on @m mesh_axes = [1] shift_axis = 1 offset = 2 rotate : {K} -> {K}", K,
                     lambda v: oracle.shift(v, SIZES, ("a1",), "a1", 2, True)),
    "update_halo": (f"%y = mesh.update_halo %x on @m split_axes = [[], [1]] halo_sizes = [2, 1] : {K}", K,
                    lambda v: oracle.update_halo(v, SIZES, ((), ("a1",)), ((2, 1),))),
    "mesh_shape": ("%l = mesh.process_linear_index on @m : index\n  %n:2 = mesh.mesh_shape @m : index, index\n"
                   "  %y = arith.muli %l, %n#1 : index", "index", known(lambda i, j: (3 * i + j) * 3)),
    "process_multi_index": ("%y = mesh.process_multi_index on @m axes = [1] : index", "index", known(lambda i, j: j)),
    "process_linear_index": ("%y = mesh.process_linear_index on @m : index", "index", known(lambda i, j: 3 * i + j)),
    "neighbors_linear_indices": (
        "%i:2 = mesh.process_multi_index on @m : index, index\n"
        "  %a:2 = mesh.neighbors_linear_indices on @m[%i#0, %i#1] split_axes = [1] : index, index\n"
        "  %c = arith.constant 10 : index\n  %b = arith.muli %a#0, %c : index\n  %y = arith.addi %b, %a#1 : index", "index",
        known(lambda i, j: 10 * (3 * i + j - 1 if j else -1) + (3 * i + j + 1 if j < 2 else -1))),
    "sharding, shard_shape": (
        "%i:2 = mesh.process_multi_index on @m : index, index\n"
        "  %s = mesh.sharding @m split_axes = [[1], [0]] : !mesh.sharding\n"
        "  %n:2 = mesh.shard_shape dims = [11, 9] sharding = %s device = [%i#0, %i#1] : index, index\n"
        "  %c = arith.constant 10 : index\n  %b = arith.muli %n#0, %c : index\n  %y = arith.addi %b, %n#1 : index", "index",
        known(lambda i, j: 10 * (3 if j == 0 else 4) + (4 if i == 0 else 5))),
    **{f"all_reduce {name}": reduction(name, "f32") for name in ("sum", "max", "min", "product", "average")},
    **{f"all_reduce {name}": reduction(name) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
}  # fmt: skip


def local(lines, kind):
    return f"{MESH}func.func @main(%x: {K}) -> {kind} {{\n  {lines}\n  return %y : {kind}\n}}\n"


def generic(text):
    """The generic form of a text."""
    stream = StringIO()
    Printer(stream, print_generic_format=True).print_op(Source(text, "").parsed())
    return stream.getvalue()


def spellings(text):
    """A text in both dialects and both forms."""
    both = {"mesh": text, "shard": in_shard(text)}
    return [(dialect, form(each)) for dialect, each in both.items() for form in (str, generic)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_of_the_local_view_in_every_spelling(name):
    lines, kind, expected = OPERATIONS[name]
    for dialect, text in spellings(local(lines, kind)):
        assert ('"builtin.module"' in text) == ('"func.func"' in text)
        assert mlir.verify(text) == []
        for engine in ("numpy", "literal"):
            fn = mlir.loads(text, engine=engine)["main"]
            made = fn(sw.PerDevice(fn.mesh, VALUES)).values()
            assert_devices(
                fn.mesh, made, expected(by_coords(fn.mesh, VALUES)), exact=not kind.endswith(("f32>", "f64>"))
            )
        for spelled in (dialect, "mesh" if dialect == "shard" else "shard"):
            printed = mlir.dumps(fn.program, spelled)
            assert mlir.dumps(mlir.loads(printed)["main"].program, spelled) == printed


# Name: lines that annotate %x as %y, as attribute or operation, and the rows that each device then has of it.
ANNOTATIONS = {
    "attribute": (f"%y = mesh.shard %x to <@m, [[1], [0]]> : {K}", {"mesh"},
                  lambda x, i, j: x[2 * j : 2 * j + 2, 6 * i : 6 * i + 6]),
    "attribute, partial": (f"%p = mesh.shard %x to <@m, [[1]], partial = sum[0]> : {K}\n"
                           f"  %y = mesh.shard %p to <@m, [[1]]> annotate_for_users : {K}", {"mesh"},
                           lambda x, i, j: x[2 * j : 2 * j + 2]),
    "operation": (f"%s = mesh.sharding @m split_axes = [[], [1, 0]] : !mesh.sharding\n  %y = mesh.shard %x to %s : {K}", None,
                  lambda x, i, j: x[:, 2 * (2 * j + i) : 2 * (2 * j + i) + 2]),
    "operation, for users": (
        f"%s = mesh.sharding @m split_axes = [[1]] : !mesh.sharding\n  %a = mesh.shard %x to %s : {K}\n"
        f"  %t = mesh.sharding @m split_axes = [[0], [1]] : !mesh.sharding\n"
        f"  %y = mesh.shard %a to %t annotate_for_users : {K}", None,
        lambda x, i, j: x[3 * i : 3 * i + 3, 4 * j : 4 * j + 4]),
    "operation, halos": (f"%s = mesh.sharding @m split_axes = [[], [1]] halo_sizes = [2, 1] : !mesh.sharding\n"
                         f"  %y = mesh.shard %x to %s : {K}", None,
                         lambda x, i, j: np.pad(x, ((0, 0), (2, 1)))[:, 4 * j : 4 * j + 7]),
    "operation, offsets": (f"%s = mesh.sharding @m split_axes = [[1]] sharded_dims_offsets = [0, 1, 1, 6] : !mesh.sharding\n"
                           f"  %y = mesh.shard %x to %s : {K}", None,
                           lambda x, i, j: x[[0, 1, 1][j] : [1, 1, 6][j]]),
    "get_sharding": (f"%s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding\n  %a = mesh.shard %x to %s : {K}\n"
                     f"  %t = mesh.get_sharding %a : {K} -> !mesh.sharding\n  %b = arith.addf %a, %a : {K}\n"
                     f"  %y = mesh.shard %b to %t : {K}", None, lambda x, i, j: 2 * x[3 * i : 3 * i + 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_every_annotation_of_the_global_view_in_every_spelling(name):
    lines, only, expected = ANNOTATIONS[name]
    host = VALUES[1]
    for dialect, text in spellings(local(lines, K)):
        if only and dialect not in only:
            continue
        assert mlir.verify(text) == []
        for engine in ("numpy", "literal"):
            fn = mlir.loads(text, engine=engine)["main"]
            for own, coords in zip(held_by(fn(host)), COORDS, strict=True):
                assert_same(own, expected(host, *coords))
        for spelled in ("mesh", "shard"):
            printed = mlir.dumps(fn.program, spelled)
            assert mlir.dumps(mlir.loads(printed)["main"].program, spelled) == printed


# -- defects of upstream ---------------------------------------------------------------------------------------------------

SHARDED = "%s = mesh.sharding @m split_axes = {} : !mesh.sharding\n  %y = mesh.shard %x to %s : {}"
NINE = "tensor<9x12xf32>"


def annotated(sharding, kind=K):
    return local(SHARDED.format(sharding, kind), kind).replace(f"%x: {K}", f"%x: {kind}")


def whole(text, host):
    return [tensor.shape for tensor in held_by(mlir.loads(text, engine="literal")["main"](host))]


# What upstream does, the text, and the error here ("" where upstream refuses what is right).
REPORTED = [
    ("offsets are counted by the sum of axis sizes", annotated("[[1, 0]] sharded_dims_offsets = [0, 1, 2, 3, 4, 5, 6]"), ""),
    ("so five are accepted", annotated("[[1, 0]] sharded_dims_offsets = [0, 1, 2, 3, 4, 6]"), "must be 7 offsets"),
    ("axes out of rank are accepted", annotated("[[5]]"), "axis index 5 is out of bounds"),
    ("dims out of rank are accepted", annotated("[[0], [], [1]]"), "tensor has 2 dims"),
    ("negative roots are accepted",
     local(f"%y = mesh.broadcast %x on @m mesh_axes = [1] root = [-1] : ({K}) -> {K}", K), "Got -1, but expected value"),
    ("halos wider than a shard are accepted",
     local(f"%y = mesh.update_halo %x on @m split_axes = [[0]] halo_sizes = [4, 4] : {K}", K), "halo"),
]  # fmt: skip


@pytest.mark.parametrize(("defect", "text", "message"), REPORTED, ids=[row[0] for row in REPORTED])
def test_the_verifier_has_not_the_defects_of_upstream(defect, text, message):
    for _, spelled in spellings(text):
        found = mlir.verify(spelled)
        assert [message in error.message for error in found] == ([True] if message else [])
        assert all(str(error).splitlines()[-1].strip() == "^" for error in found)


def test_nine_rows_over_two_devices_are_four_and_five():
    for _, text in spellings(annotated("[[0]]", NINE)):
        assert whole(text, np.zeros((9, 12), np.float32)) == [(4, 12)] * 3 + [(5, 12)] * 3


def test_the_sizes_of_a_dim_that_several_axes_split_count_all_of_them():
    lines = OPERATIONS["sharding, shard_shape"][0].replace("[[1], [0]]", "[[1, 0]]").replace("[11, 9]", "[13, 1]")
    for _, text in spellings(local(lines, "index")):
        fn = mlir.loads(text)["main"]
        made = [int(x) // 10 for x in fn(sw.PerDevice(fn.mesh, VALUES)).values()]
        assert made == [
            3 if (i, j) == (1, 2) else 2 for i, j in COORDS
        ]  # 13 = 2 · 5 + 3, the last of 6 shards has one more


def test_an_all_reduce_converts_first():
    lines = f"%c = arith.fptosi %x : {K} to tensor<6x12xi8>\n  %y = mesh.all_reduce %c on @m mesh_axes = [0, 1] : "
    text = local(f"{lines}tensor<6x12xi8> -> tensor<6x12xi32>", "tensor<6x12xi32>")
    for _, spelled in spellings(text):
        made = mlir.loads(spelled)["main"](np.full((6, 12), 100, np.float32))
        assert_same(made[0], np.full((6, 12), 600, np.int32))  # 600 does not fit i8


def test_a_gather_of_a_slice_stays():
    lines = (
        f"%s = mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 0 : {K} -> tensor<2x12xf32>\n"
        f"  %y = mesh.all_gather %s on @m mesh_axes = [1] gather_axis = 0 : tensor<2x12xf32> -> {K}"
    )
    for _, text in spellings(local(lines, K)):
        fn = mlir.loads(text)["main"]
        made = fn(sw.PerDevice(fn.mesh, VALUES)).values()
        for own, (i, _) in zip(made, COORDS, strict=True):
            assert_same(own, np.concatenate([VALUES[3 * i + j][2 * j : 2 * j + 2] for j in range(3)]))


def test_the_table_can_fail():
    lines, kind, expected = OPERATIONS["shift"]
    fn = mlir.loads(local(lines.replace("offset = -1", "offset = 1"), kind))["main"]
    with pytest.raises(AssertionError):
        assert_devices(fn.mesh, fn(sw.PerDevice(fn.mesh, VALUES)).values(), expected(by_coords(fn.mesh, VALUES)))
