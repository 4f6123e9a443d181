"""Moves between devices as text: permutations and exchanges with the plan's bytes, halos, ends of transfers that differ between
devices; and what LLVM 19 has no operation or attribute for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import shardwright as sw
from helpers import assert_devices, assert_same, by_coords, held_by
from shardwright import collectives as c
from shardwright import mlir
from shardwright import numpy as snp
from shardwright.errors import MLIRError
from shardwright.mlir.writing_exchange import coloured, completed

P = sw.P
ONLY_LATER = ("mesh.sharding", "mesh.update_halo", "mesh.neighbors_linear_indices", "mesh.shard_shape")


def lowered(fn, mesh, placed, shape):
    step = sw.sjit(fn, mesh=mesh, in_shardings=placed)
    host = 1 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return step.lower(host), host, step(host)


def padded(tensor, shape):
    made = np.full(shape, 777, tensor.dtype)
    made[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return made


def check_local(low, host, wanted, dialect="shard"):
    """The local view of a program on one sharded argument gives the shards of its result; its text, and its bytes."""
    text = mlir.dumps(low.program, dialect, "local")
    given = sw.shard(host, low.program.inputs[0].type.sharding)
    for engine in ("numpy", "literal"):
        fn = mlir.loads(text, engine=engine)["main"]
        assert mlir.dumps(fn.program, dialect, "local") == text
        shards = [padded(tensor, given.layout.local_shape) for tensor in held_by(given)]
        for tensor, expected in zip(fn(sw.PerDevice(fn.mesh, shards)).values(), held_by(wanted), strict=True):
            assert_same(tensor[tuple(slice(0, n) for n in expected.shape)], expected)
    return text, fn.explain().total_bytes


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 4), (4, 8)])
@pytest.mark.parametrize(
    ("source", "target"),
    [(P(("x", "y")), P(("y", "x"))), (P("x", "y"), P("y", "x")), (P(None, ("y", "x")), P(None, ("x", "y")))],
)
def test_a_permutation_moves_what_is_planned(sizes, source, target):
    mesh = sw.Mesh(sizes, ("x", "y"))
    low, host, wanted = lowered(lambda v: v.reshard(target), mesh, source, (32, 32))
    for dialect in ("shard", "mesh"):
        text, moved = check_local(low, host, wanted, dialect)
        assert moved == low.explain().total_bytes
        assert "all_gather" not in text


@pytest.mark.parametrize("shape", [(16, 8), (7, 5), (9, 11)])
def test_exchanges_take_as_many_rounds_as_the_busiest_device_has_messages(shape):
    mesh = sw.Mesh(x=2, y=4)
    for source, target in (
        (P("x", "y"), P("y", "x")),
        (P(("x", "y")), P("y")),
        (P("y"), P("x", "y")),
        (P(("y", "x")), P("x")),
    ):
        low, host, wanted = lowered(lambda v, target=target: v.reshard(target), mesh, source, shape)
        _, moved = check_local(low, host, wanted)
        # a device may send to two that want its shard; of uneven shards padding travels too
        assert moved <= (2 if shape == (16, 8) else 3) * low.explain().total_bytes


@pytest.mark.parametrize("fn", [lambda v: snp.roll(v, 3, axis=0), lambda v: v[::-1], lambda v: v[5:]])
def test_rows_of_other_devices_along_two_axes(fn):
    mesh = sw.Mesh(x=2, y=3)
    for source in (P(("x", "y")), P(("y", "x"))):
        low, host, wanted = lowered(fn, mesh, source, (18, 4))
        _, moved = check_local(low, host, wanted)
        assert moved == low.explain().total_bytes


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_rounds_are_as_few_as_the_busiest_device_has_messages(case):
    count, pairs = case
    rounds = coloured(sorted(pairs), count)
    assert sorted(pair for own in rounds for pair in own) == sorted(pairs)
    assert len(rounds) == max((sum(p[end] == n for p in pairs) for end in (0, 1) for n in range(count)), default=0)
    for own in rounds:
        for end in (0, 1):
            assert len({pair[end] for pair in own}) == len(own)
        to = completed(own, count)
        assert sorted(to) == list(range(count))
        assert all(to[sender] == receiver for sender, receiver in own)


def test_meshes_of_many_devices():
    low, *_ = lowered(lambda v: v.reshard(P(("y", "x"))), sw.Mesh(x=32, y=32), P(("x", "y")), (1024, 2))
    text = mlir.dumps(low.program, view="local")
    assert mlir.loads(text)["main"].explain().total_bytes == low.explain().total_bytes == 8
    huge = transfer("%i#1, %i#0", "%i#1, %i#0", mesh="128x128")
    with pytest.raises(MLIRError, match=r"may differ between 16,384 devices; it is worked out for 4,096 at most"):
        _ = mlir.loads(huge)["f"].program


# -- halos and offsets -------------------------------------------------------------------------------------------------

CUTS = [{"halo": {0: (1, 2)}}, {"offsets": {0: [0, 2, 12]}}, {"halo": {0: (0, 1)}, "offsets": {0: [0, 5, 12]}}]


@pytest.mark.parametrize("dialect", ["shard", "mesh"])
@pytest.mark.parametrize("cuts", CUTS)
def test_halos_and_offsets_of_annotations_come_back(cuts, dialect):
    mesh = sw.Mesh(a0=2, a1=3)
    target = sw.Sharding(mesh, P("a0", "a1"), **cuts)
    low, host, wanted = lowered(lambda v: sw.with_sharding_constraint(v, target), mesh, P("a0"), (12, 5))
    text = mlir.dumps(low.program, dialect)
    assert not any(name in text for name in ONLY_LATER)
    fn = mlir.loads(text)["main"]
    assert mlir.dumps(fn.program, dialect) == text
    assert fn.program.outputs[0].type.sharding is low.program.outputs[0].type.sharding
    for tensor, expected in zip(held_by(fn(host)), held_by(wanted), strict=True):
        assert_same(tensor, expected)


@pytest.mark.parametrize("dialect", ["shard", "mesh"])
@pytest.mark.parametrize("sizes", [(12, 4), (11, 5)])
@pytest.mark.parametrize("spec", [P(("x", "y")), P("y"), P("x", "y")])
def test_a_halo_beyond_a_border_is_zeros(spec, sizes, dialect):
    mesh = sw.Mesh(x=2, y=2)
    target = sw.Sharding(mesh, spec, halo={0: (1, 1)})
    low, host, wanted = lowered(lambda v: sw.with_sharding_constraint(v, target), mesh, spec, sizes)
    _, moved = check_local(low, host, wanted, dialect)
    assert moved <= 2 * low.explain().total_bytes


def mesh_shard(more, shape="9x4"):
    return f"""
mesh.mesh @m(shape = 2x3)
func.func @f(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{
  %y = mesh.shard %x to <@m, [[0]]> {{{more}}} : tensor<{shape}xf32>
  return %y : tensor<{shape}xf32>
}}"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("sharded_dims_offsets = [0, 4]", "there must be 3 offsets, one more than shards for each; got 2"),
        ("sharded_dims_offsets = [0, 4, 8]", "sharded dims offsets of dim 0 end at 8, but its size is 9"),
        ("sharded_dims_offsets = [0, 9, 4]", "begin with 0 and never decrease; got [0, 9, 4]"),
        ("halo_sizes = [1]", "there must be 2 sizes, low and high of each; got 1"),
        ("halo_sizes = [1, -1]", "halo sizes are 0 or more; got [1, -1]"),
        ('halo_sizes = "wide"', 'halo_sizes is "wide"; write it as a list of integers'),
        ("sharded_dims_offsets = [0, 4.0, 9]", "write it as a list of integers, such as [0, 4, 9]"),
    ],
)
def test_wrong_halos_and_offsets_of_llvm_19_are_named(more, message):
    (error,) = mlir.verify(mesh_shard(more))
    assert message in error.message
    assert error.line == 4


LATER = """
shard.grid @m(shape = 2x3)
func.func @f(%x: tensor<6x12xf32>) -> (tensor<6x12xf32>, tensor<6x12xf32>, index, index, index, index) {
  %i:2 = shard.process_multi_index on @m : index, index
  %h = shard.update_halo %x on @m split_axes = [[0], [1]] halo_sizes = [1, 2, 1, 0] : tensor<6x12xf32>
  %g = shard.update_halo %x on @m split_axes = [[], [1, 0]] halo_sizes = [2, 1] : tensor<6x12xf32>
  %n:2 = shard.neighbors_linear_indices on @m[%i#0, %i#1] split_axes = [1, 0] : index, index
  %s = shard.sharding @m split_axes = [[0], [1]] sharded_dims_offsets = [0, 3, 9, 0, 1, 2, 11] : !shard.sharding
  %z:2 = shard.shard_shape dims = [9, 11] sharding = %s device = [%i#0, %i#1] : index, index
  return %h, %g, %n#0, %n#1, %z#0, %z#1 : tensor<6x12xf32>, tensor<6x12xf32>, index, index, index, index
}"""


def test_what_llvm_19_has_no_operation_for_is_written_by_others():
    fn = mlir.loads(LATER)["f"]
    text = mlir.dumps({"f": fn.program}, "mesh")
    assert not any(name in text for name in ONLY_LATER)
    assert "all_gather" not in text
    values = [np.arange(72, dtype=np.float32).reshape(6, 12) + 5 * place for place in range(6)]
    for engine in ("numpy", "literal"):
        again = mlir.loads(text, engine=engine)["f"]
        assert mlir.dumps({"f": again.program}, "mesh") == text
        one, other, *numbers = again(sw.PerDevice(again.mesh, values))
        sizes, v = {"a0": 2, "a1": 3}, by_coords(again.mesh, values)
        assert_devices(again.mesh, one.values(), oracle.update_halo(v, sizes, (("a0",), ("a1",)), ((1, 2), (1, 0))))
        assert_devices(again.mesh, other.values(), oracle.update_halo(v, sizes, ((), ("a1", "a0")), ((2, 1),)))
        assert [[int(n) for n in each.values()] for each in numbers] == [
            [-1, 3, 4, 0, 1, 2],
            [3, 4, 5, 1, 2, -1],
            [3, 3, 3, 6, 6, 6],
            [1, 1, 9] * 2,
        ]
    assert {row.collective.split()[0] for row in again.explain().collectives if row.bytes} == {"shift", "permute"}
    assert again.explain().total_bytes == 4 * ((6 * 12 - 3 * 11) + 6 * 3)  # every cell of a halo once


# -- transfers ---------------------------------------------------------------------------------------------------------


def transfer(destination, source, axes="[0, 1]", mesh="2x2", returned="%r"):
    given = f" source = [{source}]" if source else ""
    types = ["tensor<3xf32>", *["index"] * destination.count("%")], ["tensor<3xf32>", *["index"] * source.count("%")]
    return f"""
mesh.mesh @m(shape = {mesh})
func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {{
  %i:2 = mesh.process_multi_index on @m : index, index
  %one = arith.constant 1 : index
  %u = arith.subi %one, %i#0 : index
  %v = arith.subi %one, %i#1 : index
  %s = mesh.send %x on @m mesh_axes = {axes} destination = [{destination}] : ({", ".join(types[0])}) -> tensor<3xf32>
  %r = mesh.recv %x on @m mesh_axes = {axes}{given} : ({", ".join(types[1])}) -> tensor<3xf32>
  return {returned} : tensor<3xf32>
}}"""


VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
@pytest.mark.parametrize(
    ("destination", "source", "axes"),
    [
        ("%i#1, %i#0", "%i#1, %i#0", "[0, 1]"),
        ("%u, %i#1", "%u, %i#1", "[0, 1]"),
        ("%v, %i#0", "%i#1, %u", "[0, 1]"),
        ("%v", "%v", "[1]"),
        ("%v", "", "[1]"),
    ],
)
def test_every_device_may_name_its_own_ends(destination, source, axes, engine):
    fn = mlir.loads(transfer(destination, source, axes), engine=engine)["f"]
    expected = np.empty_like(VALUES)
    for place in range(4):
        i, j = divmod(place, 2)
        at = {"%i#0": i, "%i#1": j, "%u": 1 - i, "%v": 1 - j}
        ends = [at[name] for name in destination.split(", ")]
        expected[2 * i + ends[0] if axes == "[1]" else 2 * ends[0] + ends[1]] = VALUES[place]
    assert_same(np.stack(fn(sw.PerDevice(fn.mesh, VALUES)).values()), expected)
    assert fn.explain().total_bytes == 12
    text = mlir.dumps({"f": fn.program}, "mesh")
    assert (text.count("mesh.send"), text.count("mesh.recv")) == (1, 1)
    again = mlir.loads(text)["f"]
    assert mlir.dumps({"f": again.program}, "mesh") == text
    assert_same(np.stack(again(sw.PerDevice(again.mesh, VALUES)).values()), expected)


def test_a_transfer_that_nobody_reads_stays():
    fn = mlir.loads(transfer("%i#1, %i#0", "%i#1, %i#0", returned="%x"))["f"]
    assert fn.explain().total_bytes == 12
    assert mlir.dumps({"f": fn.program}).count("shard.recv") == 1


@pytest.mark.parametrize(
    ("destination", "source", "message"),
    [
        ("%i#1, %i#0", "%i#0, %i#1", r"device 1 waits for device 1, which sends to device 2"),
        ("0, %i#0", "%i#1, %i#0", r"which sends to device"),
        ("%i#1, %i#1", "", r"waits for device .*, which sends to device"),
    ],
)
def test_ends_that_do_not_match_are_refused(destination, source, message):
    with pytest.raises(MLIRError, match=message):
        _ = mlir.loads(transfer(destination, source))["f"].program


def test_ends_beyond_the_group_are_refused():
    text = transfer("%i#1, %i#0", "%i#1, %i#0", mesh="2x3")
    with pytest.raises(MLIRError, match=r"(?s)destination of device 2 \(2, 0\) is not in a group.*mesh.send"):
        _ = mlir.loads(text)["f"].program


def test_python_names_one_end_a_device_too():
    mesh = sw.Mesh(x=2, y=2)
    v = sw.PerDevice(mesh, VALUES)
    swapped = ((0, 0), (1, 0), (0, 1), (1, 1))
    c.send(v, ("x", "y"), swapped)
    assert_same(np.stack(c.recv(v, ("x", "y"), swapped).values()), VALUES[[0, 2, 1, 3]])
    with pytest.raises(sw.errors.CollectiveError, match=r"send: 2 destinations for 4 devices. Give one a device"):
        c.send(v, ("x", "y"), swapped[:2])


@pytest.mark.parametrize("pairs", [[(0, 2), (2, 1), (1, 0)], [(0, 1), (1, 2)], [(2, 0)], [(0, 0), (1, 2)]])
def test_permutes_of_devices_are_transfers(pairs):
    mesh = sw.Mesh(x=2, y=3)
    fn = sw.shard_map(lambda v: c.permute(v, "y", pairs), mesh, P("x", "y"), P("x", "y"))
    step = sw.sjit(fn, mesh=mesh, in_shardings=P("x", "y"))
    host = 1 + np.arange(24, dtype=np.float32).reshape(4, 6)
    low = step.lower(host)
    _, moved = check_local(low, host, step(host))
    assert moved == low.explain().total_bytes
