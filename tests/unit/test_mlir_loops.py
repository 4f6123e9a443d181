"""MLIR's loops and choices of the local view: each device decides on its own data, and what is printed is read again."""

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same, held_by
from mlir_texts import function, in_shard
from shardwright import mlir
from shardwright.errors import MLIRError, ProgramError

T = "tensor<2xf32>"
ENGINES = ["numpy", "literal", "torch", "jax"]

# Doubles a tensor while its sum, perhaps reduced over axes, is below 100; {body} may add a collective.
WHILE = """%z = arith.constant dense<0.0> : tensor<f32>
  %limit = arith.constant 100.0 : f32
  %y = scf.while (%a = %x) : (tensor<2xf32>) -> tensor<2xf32> {{
    %s = linalg.reduce {{ arith.addf }} ins(%a : tensor<2xf32>) outs(%z : tensor<f32>) dimensions = [0]
    {reduced}
    %e = tensor.extract %t[] : tensor<f32>
    %p = arith.cmpf olt, %e, %limit : f32
    scf.condition(%p) %a : tensor<2xf32>
  }} do {{
  ^bb0(%b: tensor<2xf32>):
    %d = arith.addf %b, %b : tensor<2xf32>
    {body}
    scf.yield %r : tensor<2xf32>
  }}{says}"""
OWN = "%t = arith.addf %s, %z : tensor<f32>"
PLAIN = "%r = arith.addf %d, %x : tensor<2xf32>"

# A step that changes nothing: without collectives a function is in the global view.
AROUND = f"\n  %w = mesh.shift %y on @m mesh_axes = [1] shift_axis = 1 offset = 4 rotate : {T} -> {T}"


def reduced(axes):
    return f"%t = mesh.all_reduce %s on @m mesh_axes = {axes} : tensor<f32> -> tensor<f32>"


def collected(axes):
    return f"%r = mesh.all_reduce %d on @m mesh_axes = {axes} reduction = <max> : {T} -> {T}"


def load(test=OWN, body=PLAIN, says="", engine="numpy"):
    text = function(WHILE.format(reduced=test, body=body, says=says) + AROUND, T, mesh="2x4", argument=f"%x: {T}")
    return mlir.loads(text.replace("return %y", "return %w"), engine=engine)["f"]


def given(fn):
    return [np.array([place + 1, 2 * place], np.float32) for place in range(fn.mesh.size)]


def on_devices(fn):
    return fn(sw.PerDevice(fn.mesh, given(fn))).values()


def by_hand(shards, groups, body):
    """The loop on every device, whose condition sums over its group."""
    state = list(shards)
    while True:
        sums = [sum(state[other].sum() for other in groups(place)) for place in range(8)]
        if not any(total < 100 for total in sums):
            return state
        after = [body(state, place) for place in range(8)]
        state = [after[place] if sums[place] < 100 else state[place] for place in range(8)]


def row(place):
    return range(place // 4 * 4, place // 4 * 4 + 4)


def alone(place):
    return [place]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_device_leaves_a_loop_by_its_own_data(engine):
    fn = load(engine=engine)
    own = given(fn)
    expected = by_hand(own, alone, lambda state, place: state[place] * 2 + own[place])
    for made, wanted in zip(on_devices(fn), expected, strict=True):
        assert_same(made, wanted)
    assert len({tuple(x) for x in expected}) == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_leave_a_loop_together_and_other_groups_do_not(engine):
    fn = load(reduced([1]), collected([1]), engine=engine)
    expected = by_hand(given(fn), row, lambda state, place: np.max([state[other] * 2 for other in row(place)], axis=0))
    for made, wanted in zip(on_devices(fn), expected, strict=True):
        assert_same(made, wanted)


@pytest.mark.parametrize("dialect", ["shard", "mesh"])
@pytest.mark.parametrize(
    ("test", "body", "says"),
    [
        (OWN, PLAIN, ""),
        (reduced([1]), collected([1]), ""),
        (reduced([0, 1]), collected([0, 1]), " attributes {uniform}"),
    ],
)
def test_a_loop_that_depends_on_data_prints_as_it_is_read(test, body, says, dialect):
    fn = load(test, body)
    text = mlir.dumps(fn.program, dialect)
    assert f"}}{says}\n" in text
    assert ("uniform" in text) == bool(says)
    again = mlir.loads(text)["main"]
    assert mlir.dumps(again.program, dialect) == text
    for one, other in zip(on_devices(again), on_devices(fn), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(("test", "over"), [(OWN, [1]), (OWN, [0]), (reduced([1]), [0]), (reduced([0]), [0, 1])])
def test_a_collective_between_devices_that_may_leave_apart_is_refused(test, over):
    path = f"all_reduce {over} (line 14)"
    if test != OWN:
        path = f"all_reduce [{test.split('[')[1][0]}] (line 7) → {path}"
    with pytest.raises(MLIRError, match="Devices may leave this loop after different numbers of rounds") as caught:
        _ = load(test, collected(over)).program
    assert f"One more round: {path}. Leaving: none." in str(caught.value)
    assert caught.value.line == 5
    assert str(caught.value).splitlines()[-1].strip() == "^"


def test_text_may_say_that_all_devices_decide_alike_and_is_held_to_it():
    fn = load(OWN, collected([0, 1]), " attributes {uniform}")
    same = np.array([1, 2], np.float32)
    for made in fn(same).values():
        assert_same(made, same * 64)
    with pytest.raises(ProgramError, match=r"Of 8 devices \d decide otherwise than the rest"):
        fn(sw.PerDevice(fn.mesh, [np.full(2, 10 * place, np.float32) for place in range(8)]))


CHOICE = """%c = arith.constant 0 : index
  %e = tensor.extract %x[%c] : tensor<2xf32>
  %limit = arith.constant 3.0 : f32
  %p = arith.cmpf olt, %e, %limit : f32
  %y = scf.if %p -> (tensor<2xf32>) {{
    {}
    scf.yield %u : tensor<2xf32>
  }} else {{
    %v = arith.negf %x : tensor<2xf32>
    scf.yield %v : tensor<2xf32>
  }}{}"""


def choice(line, says="", engine="numpy"):
    text = function(CHOICE.format(line, says) + AROUND, T, mesh="2x4", argument=f"%x: {T}")
    return mlir.loads(text.replace("return %y", "return %w"), engine=engine)["f"]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_device_takes_a_branch_by_its_own_data(engine):
    fn = choice(f"%u = arith.addf %x, %x : {T}", engine=engine)
    for made, own in zip(on_devices(fn), given(fn), strict=True):
        assert_same(made, own + own if own[0] < 3 else -own)
    assert "scf.if" in mlir.dumps(fn.program)
    assert "uniform" not in mlir.dumps(fn.program)
    assert mlir.dumps(mlir.loads(mlir.dumps(fn.program))["main"].program) == mlir.dumps(fn.program)


def test_a_branch_with_a_collective_needs_devices_that_decide_alike():
    line = f"%u = mesh.all_reduce %x on @m mesh_axes = [1] : {T} -> {T}"
    with pytest.raises(MLIRError, match=r"Then: all_reduce \[1\] \(line 8\). Else: none"):
        _ = choice(line).program
    fn = choice(line, " {uniform}")
    low, high = np.array([1, 5], np.float32), np.array([4, 5], np.float32)
    for made in fn(low).values():
        assert_same(made, 4 * low)
    for made in fn(high).values():
        assert_same(made, -high)


def test_bounds_of_a_loop_may_depend_on_the_device():
    body = """%i = mesh.process_multi_index on @m axes = [1] : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %y = scf.for %k = %c0 to %i step %c1 iter_args(%a = %x) -> (tensor<2xf32>) {
    %b = arith.addf %a, %a : tensor<2xf32>
    scf.yield %b : tensor<2xf32>
  }"""
    fn = mlir.loads(function(body, T, mesh="2x4", argument=f"%x: {T}"))["f"]
    for place, (made, own) in enumerate(zip(on_devices(fn), given(fn), strict=True)):
        assert_same(made, own * 2 ** (place % 4))
    text = mlir.dumps(fn.program)
    assert mlir.dumps(mlir.loads(text)["main"].program) == text


def test_a_transfer_in_a_loop_stays_though_nothing_reads_it():
    body = """%c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %y = scf.for %k = %c0 to %c3 step %c1 iter_args(%a = %x) -> (tensor<2xf32>) {
    %s = mesh.send %a on @m mesh_axes = [1] destination = [1] : (tensor<2xf32>) -> tensor<2xf32>
    %r = mesh.recv %a on @m mesh_axes = [1] source = [0] : (tensor<2xf32>) -> tensor<2xf32>
    scf.yield %a : tensor<2xf32>
  }
  %z = arith.negf %x : tensor<2xf32>"""
    text = function(body, T, mesh="2x4", argument=f"%x: {T}").replace("return %y", "return %z")
    printed = mlir.dumps(mlir.loads(text)["f"].program)
    assert (printed.count("shard.send"), printed.count("shard.recv")) == (1, 1)
    alone = text.replace("    %r = mesh.recv %a on @m mesh_axes = [1] source = [0]", "    // ")
    with pytest.raises(MLIRError, match=r"has no matching recv .*by the end of a loop or a branch"):
        _ = mlir.loads(alone)["f"].program


@pytest.mark.parametrize("dialect", ["shard", "mesh"])
def test_what_is_written_of_arrays_is_read_where_the_data_decides(dialect):
    """A condition on a replicated argument: the text says nothing of where arguments lie, so it says that devices agree."""
    mesh = sw.Mesh(x=2, y=2)

    def fn(x, n):
        x = sw.while_loop(lambda s: snp.sum(s) < n, lambda s: snp.roll(s, 1, axis=0) * 2.0, x)
        return sw.cond(n > 10.0, lambda v: v - snp.max(v), lambda v: snp.flip(v, axis=0), x)

    step = sw.sjit(fn, mesh=mesh, in_shardings=(sw.P("x", "y"), sw.P()))
    host = np.arange(1.0, 25.0).reshape(4, 6)
    for limit in (np.float64(5), np.float64(5000)):
        text = mlir.dumps(step.lower(host, limit).program, dialect, "local")
        assert text.count("{uniform}") == 2
        read = mlir.loads(text)["main"]
        assert mlir.dumps(read.program, dialect, "local") == text
        made = read(sw.PerDevice(read.mesh, held_by(sw.shard(host, mesh, sw.P("x", "y")))), limit).values()
        for one, wanted in zip(made, held_by(step(host, limit)), strict=True):
            assert_same(one, wanted)


def test_both_spellings_of_a_loop_are_one_program():
    text = function(
        WHILE.format(reduced=reduced([1]), body=collected([1]), says=""), T, mesh="2x4", argument=f"%x: {T}"
    )
    assert mlir.dumps(mlir.loads(in_shard(text))["f"].program) == mlir.dumps(mlir.loads(text)["f"].program)
