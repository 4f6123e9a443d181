"""MLIR: errors with a place, purity, control flow that differs between devices, hostile files, the command line."""

import json
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from mlir_texts import collective, function, in_shard
from shardwright import mlir
from shardwright.cli import main
from shardwright.errors import MLIRError

T = "tensor<2xf32>"


def local(body, mesh="2x4", result=T):
    return function(body, result, mesh=mesh, argument=f"%x: {T}")


def load(body, **options):
    return mlir.loads(local(body), **options)["f"]


def on_devices(fn):
    made = fn(sw.PerDevice(fn.mesh, [np.full(2, place, np.float32) for place in range(fn.mesh.size)]))
    return [float(tensor[0]) for tensor in made.values()]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_has_file_line_column_source_and_caret():
    line = "%y = mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 0 : tensor<2xf32> -> tensor<1xf32>"
    with pytest.raises(MLIRError) as caught:
        mlir.loads(local(line, result="tensor<1xf32>"), file="model.mlir")
    error = caught.value
    assert (error.file, error.line, error.column) == ("model.mlir", 3, 8)
    assert str(error) == (
        "model.mlir:3:8: Operand dimension size 2 is not divisible by collective device group size 4 for tensor axis 0. "
        f"Pad it to 4.\n  {line}\n       ^"
    )


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("func.func @f(", "", (1, 14)),
        ("mesh.mesh @m(shape = 2", "", (1, 23)),
        ('mesh.mesh @m(shape = 2) {a = "open}', "The string is not closed", (1, 30)),
        ("%0 = foo.bar : i32", "'foo.bar' is unknown", (1, 6)),
        (local("%y = mesh.nothing %x"), "'mesh.nothing' is unknown", (3, 8)),
        (local("%y = arith.addf %x, %q : tensor<2xf32>"), "values used but not defined", (6, 1)),
        (
            local("%y = arith.addf %x, %z : tensor<2xf32>\n  %z = arith.negf %x : tensor<2xf32>"),
            "operand #1 does not",
            (3, 8),
        ),
        (
            local("%y = mesh.all_reduce %x on @m mesh_axes = [70000] : tensor<2xf32> -> tensor<2xf32>"),
            "70000 does not fit its type",
            (3, 46),
        ),
        (
            local("%y = mesh.all_reduce %x on @m reduction = <mean> : tensor<2xf32> -> tensor<2xf32>"),
            "unknown reduction",
            (3, 50),
        ),
    ],
)
def test_text_that_does_not_parse_has_a_place(text, message, place):
    (error,) = mlir.verify(text)
    assert message in error.message
    assert (error.line, error.column) == place, error
    assert str(error).splitlines()[-1].strip() == "^"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = math.erfc %x : tensor<2xf32>", r"'math.erfc' is not supported"),
        (
            "%y = mesh.all_reduce %x on @m mesh_axes = [0] reduction = <generic> : tensor<2xf32> -> tensor<2xf32>",
            "The reduction generic",
        ),
        (
            "%i = mesh.process_multi_index on @m axes = [1] : index\n"
            "  %y = mesh.broadcast %x on @m mesh_axes = [1] root = [%i] : (tensor<2xf32>, index) -> tensor<2xf32>",
            r"The root differs between devices: \[0, 1, 2, 3\]",
        ),
        (
            "%y = mesh.send %x on @m mesh_axes = [1] destination = [0] : (tensor<2xf32>) -> tensor<2xf32>",
            r"send over .* has no matching recv",
        ),
        (
            "%s = mesh.shard %x to <@m, [[0]]> : tensor<2xf32>\n"
            "  %y = mesh.all_reduce %s on @m mesh_axes = [0] : tensor<2xf32> -> tensor<2xf32>",
            r"annotations of the global view beside 'mesh.all_reduce' of the local view",
        ),
        ("%y = func.call @g(%x) : (tensor<2xf32>) -> tensor<2xf32>", r"'@g' could not be found in symbol table"),
        (
            "%y = func.call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>",
            r"call one another more than 32 deep: @f may call itself",
        ),
    ],
)
def test_what_can_not_run_is_an_error_at_its_line(body, message):
    with pytest.raises(MLIRError, match=message) as caught:
        _ = load(body).program
    assert caught.value.line >= 2
    assert "^" in str(caught.value)


# -- purity ------------------------------------------------------------------------------------------------------------


def test_pure_collectives_are_shared_and_dropped_and_transfers_never():
    reduce = "= mesh.all_reduce %x on @m mesh_axes = [1] : tensor<2xf32> -> tensor<2xf32>"
    pair = """%s{0} = mesh.send %x on @m mesh_axes = [1] destination = [1] : (tensor<2xf32>) -> tensor<2xf32>
  %r{0} = mesh.recv %x on @m mesh_axes = [1] source = [0] : (tensor<2xf32>) -> tensor<2xf32>
  """
    rest = f"%a {reduce}\n  %b {reduce}\n  %y = arith.addf %a, %b : {T}\n  %d = arith.negf %y : {T}"
    body = pair.format(1) + pair.format(2) + rest
    program = load(body).program
    written = program.show("written")
    assert written.count("all_reduce(") == 2
    assert "(asked for again)" in written
    assert "(no output needs it)" in written
    assert written.splitlines()[-1] == "spared: 1 asked for again, 1 that no output needs"
    assert (program.shared, program.dead) == (1, 1)
    final = program.show()
    assert final.count("all_reduce(") == 1
    assert "negative(" not in final
    assert final.count("permute(") == 2  # equal transfers, whose results nothing reads
    text = mlir.dumps(program)
    assert (text.count("shard.send"), text.count("shard.recv"), text.count("shard.all_reduce")) == (2, 2, 1)


# -- control flow that differs between devices -------------------------------------------------------------------------

BRANCHES = """%i = mesh.process_multi_index on @m axes = [1] : index
  %c = arith.constant {at} : index
  %p = arith.cmpi eq, %i, %c : index
  %y = scf.if %p -> (tensor<2xf32>) {{
    {one}
    scf.yield %u : tensor<2xf32>
  }} else {{
    {two}
    scf.yield %v : tensor<2xf32>
  }}"""
NEGATED = "= arith.negf %x : tensor<2xf32>"
REDUCED = "= mesh.all_reduce %x on @m mesh_axes = [0] : tensor<2xf32> -> tensor<2xf32>"
SENT = "= mesh.send %x on @m mesh_axes = [1] destination = [{}] : (tensor<2xf32>) -> tensor<2xf32>"
RECEIVED = "= mesh.recv %x on @m mesh_axes = [1] source = [{}] : (tensor<2xf32>) -> tensor<2xf32>"


def branches(one, two, at=0):
    return BRANCHES.format(one=f"%u {one}", two=f"%v {two}", at=at)


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
def test_branches_run_per_device(engine):
    fn = load(branches(NEGATED, "= arith.addf %x, %x : tensor<2xf32>", at=2), engine=engine)
    assert on_devices(fn) == [0, 2, -2, 6, 8, 10, -6, 14]
    both = load(branches(f"{REDUCED}", f"= mesh.all_reduce %x on @m mesh_axes = [0] : {T} -> {T}"), engine=engine)
    assert on_devices(both) == [4, 6, 8, 10, 4, 6, 8, 10]
    passed = load(branches(SENT.format(2), RECEIVED.format(0)), engine=engine)
    assert on_devices(passed) == [0, 0, 0, 0, 4, 0, 4, 0]


def test_branches_that_come_to_different_collectives_are_refused():
    with pytest.raises(MLIRError, match=r"Then: all_reduce \[0\] \(line 7\). Else: none"):
        _ = load(branches(REDUCED, NEGATED)).program
    other = "= mesh.all_reduce %x on @m mesh_axes = [1] : tensor<2xf32> -> tensor<2xf32>"
    with pytest.raises(MLIRError, match=r"Then: all_reduce \[0\] \(line 7\). Else: all_reduce \[1\] \(line 10\)"):
        _ = load(branches(REDUCED, other)).program
    with pytest.raises(MLIRError, match=r"Then: send \[1\] \(line 7\). Else: none"):
        _ = load(branches(SENT.format(1), NEGATED)).program


def test_a_transfer_between_branches_needs_its_ends_on_them():
    with pytest.raises(MLIRError, match=r"Device 1 is the source of a transfer, but it takes the branch with the recv"):
        _ = load(branches(SENT.format(2), RECEIVED.format(1))).program
    with pytest.raises(
        MLIRError, match=r"Device 0 is the destination of a transfer, but it takes the branch with the send"
    ):
        _ = load(branches(SENT.format(0), RECEIVED.format(0))).program


COUNTED = """%c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant {} : index
  %y = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x) -> (tensor<2xf32>) {{
    {}
    scf.yield %b : tensor<2xf32>
  }}"""


@pytest.mark.parametrize("engine", ["numpy", "literal", "torch"])
def test_loops_of_the_local_view_are_loops_of_the_program(engine):
    reduced = "%b = mesh.all_reduce %a on @m mesh_axes = [0] : tensor<2xf32> -> tensor<2xf32>"
    fn = load(COUNTED.format(2, reduced), engine=engine)
    assert on_devices(fn) == [8, 12, 16, 20] * 2
    assert mlir.dumps(fn.program).count("shard.all_reduce") == 1
    assert len(load(COUNTED.format(10**9, reduced)).program.nodes) < 5


def test_a_loop_of_the_local_view_whose_counter_is_read_is_unrolled():
    rooted = "%b = mesh.broadcast %a on @m mesh_axes = [1] root = [%i] : (tensor<2xf32>, index) -> tensor<2xf32>"
    assert on_devices(load(COUNTED.format(3, rooted))) == [0] * 4 + [4] * 4
    with pytest.raises(
        MLIRError, match=r"The loop has 1,000,000,000 rounds; in the local view at most 10,000 are unrolled"
    ):
        _ = load(COUNTED.format(10**9, rooted)).program


def test_integers_divide_and_compare_as_mlir_says():
    body = """%q = arith.divsi %a, %b : tensor<6xi32>
  %r = arith.remsi %a, %b : tensor<6xi32>
  %f = arith.floordivsi %a, %b : tensor<6xi32>
  %c = arith.ceildivsi %a, %b : tensor<6xi32>
  %u = arith.divui %a, %b : tensor<6xi32>
  %p = arith.cmpi ult, %a, %b : tensor<6xi32>
  %y = arith.extui %p : tensor<6xi1> to tensor<6xi32>
  return %q, %r, %f, %c, %u, %y : """ + ", ".join(["tensor<6xi32>"] * 6)
    result = f"({', '.join(['tensor<6xi32>'] * 6)})"
    text = f"func.func @f(%a: tensor<6xi32>, %b: tensor<6xi32>) -> {result} {{\n  {body}\n}}"
    a, b = np.array([7, -7, 7, -7, 6, -6], np.int32), np.array([2, 2, -2, -2, 3, 3], np.int32)
    made = [np.asarray(x).tolist() for x in mlir.loads(text)["f"](a, b)]
    unsigned = a.view(np.uint32) // b.view(np.uint32)
    assert made[:4] == [[3, -3, -3, 3, 2, -2], [1, -1, 1, -1, 0, 0], [3, -4, -4, 3, 2, -2], [4, -3, -3, 4, 2, -2]]
    assert made[4] == unsigned.view(np.int32).tolist()
    assert made[5] == (a.view(np.uint32) < b.view(np.uint32)).astype(int).tolist()


# -- hostile files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mesh.mesh @m(shape = 10000x1000)", r"has 10,000,000 devices; at most 1,048,576 are possible"),
        ("mesh.mesh @m(shape = 99999999999999999999)", r""),
        (
            local("%y = mesh.all_reduce %x on @m mesh_axes = [1000000000] : tensor<2xf32> -> tensor<2xf32>"),
            r"1000000000",
        ),
        ("(" * 10_000, r"Brackets are nested more than 64 deep"),
        ("func.func @f() { " * 5000, r"Brackets are nested more than 64 deep"),
        ('"' + "a" * 100_000, r"The string is not closed"),
        ("x" * 200_000, r""),
        ("mesh.mesh @m(shape = " + "2x" * 100_000, r""),
        ("", r"The text is empty"),
        ("\0\xff", r""),
        ("func.func @f(%x: tensor<2xi4294967296>) { return }", r"An integer type has 4294967296 bits"),
        ("func.func @f(%x: i1000000000) { return }", r"An integer type has 1000000000 bits"),
    ],
)
def test_hostile_files_end_in_errors_soon(text, message):
    begin = time.process_time()
    (error,) = mlir.verify(text)
    assert message in error.message or not message
    assert len(str(error)) < 2000
    assert time.process_time() - begin < 5


HUGE = """
func.func @f(%x: tensor<1000000000000xi8>) -> tensor<1000000000000xi8> {{
  %e = tensor.empty() : tensor<1000000000000xi8>
  %y = linalg.generic {{indexing_maps = [affine_map<(d0) -> ({})>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}}
    ins(%x : tensor<1000000000000xi8>) outs(%e : tensor<1000000000000xi8>) {{
  ^bb0(%p: i8, %o: i8):
    {}
    linalg.yield %p : i8
  }} -> tensor<1000000000000xi8>
  return %y : tensor<1000000000000xi8>
}}"""


def test_maps_and_counters_of_huge_tensors_are_not_listed():
    assert mlir.loads(HUGE.format("-d0 + 999999999999", ""))["f"].program.outputs[0].type.shape == (10**12,)
    with pytest.raises(MLIRError, match=r"Rows 0 to 1000000000000 of dim 0 are read, which has 1000000000000"):
        _ = mlir.loads(HUGE.format("(d0 + 3) mod 1000000000001", ""))["f"].program
    with pytest.raises(MLIRError, match=r"counts 1,000,000,000,000 rows; at most 4,194,304 are"):
        _ = mlir.loads(HUGE.format("d0", "%n = linalg.index 0 : index"))["f"].program


def nested(depth, start):
    """Loops in one another; what they carry differs between devices only after a round if `start` is a constant."""
    lines = [
        "%c0 = arith.constant 0 : index",
        "%c1 = arith.constant 1 : index",
        f"%k = arith.constant dense<1.0> : {T}",
    ]
    for d in range(depth):
        lines.append(f"%r{d} = scf.for %i{d} = %c0 to %c1 step %c1 iter_args(%a{d} = {start}) -> ({T}) {{")
    lines.append(f"%z = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate : {T} -> {T}")
    for d in reversed(range(depth)):
        lines += [f"scf.yield {'%z' if d == depth - 1 else f'%r{d + 1}'} : {T}", "}"]
    return "\n".join(lines) + f"\n%y = arith.addf %r0, %k : {T}"


@pytest.mark.parametrize("start", ["%x", "%k"])
def test_loops_deep_in_one_another_take_no_more_time_than_their_text(start):
    begin = time.process_time()
    fn = load(nested(50, start))
    assert on_devices(fn) == [5, 6, 7, 8, 1, 2, 3, 4]
    assert time.process_time() - begin < 5


FOLDER = Path(__file__).parent.parent / "conformance" / "mlir"
FILES = [path.read_text() for path in sorted((*FOLDER.glob("*.mlir"), *FOLDER.glob("*.generic")))]
FILES += [
    entry["ours"] for entry in json.loads((FOLDER / "written.json").read_text()).values() if "scf." in entry["ours"]
]
TOKENS = re.compile(r"%?[\w.#@!]+|\s+|.")
HOSTILE = "-1 1000000000 99999999999999999999 ? tensor<?xf32> index { } [[ nan i1 10000000x".split()


def check_hostile(text):
    """Errors have a place; what has none has programs, or errors with one."""
    errors = mlir.verify(text)
    assert all(error.line >= 1 and "^" in str(error) and len(str(error)) < 4000 for error in errors)
    for fn in mlir.loads(text).values() if not errors else ():
        try:
            assert fn.program is not None
        except MLIRError as error:
            assert "^" in str(error) or "@" in str(error)  # noqa: PT017


@pytest.mark.parametrize("number", range(len(FILES)))
def test_files_with_other_tokens_are_errors_or_programs(number):
    rng = random.Random(number)
    tokens = TOKENS.findall(FILES[number])
    for _ in range(20):
        mutated = list(tokens)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mutated))
            if rng.random() < 0.4:
                del mutated[at]
            else:
                mutated[at] = rng.choice([*tokens, *HOSTILE])
        check_hostile("".join(mutated))


@pytest.mark.parametrize("number", range(len(FILES)))
def test_files_that_end_early_are_errors_or_programs(number):
    for end in range(number, len(FILES[number]), 97):
        check_hostile(FILES[number][:end])


def test_files_that_are_too_long_are_not_read():
    (error,) = mlir.verify(" " * (64 * 2**20 + 1))
    assert "has 67,108,865 characters; at most 67,108,864 are read" in str(error)


def test_every_prefix_of_a_file_is_an_error_or_a_program():
    text = in_shard(local("%y = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<2xf32> -> tensor<2xf32>"))
    for end in range(0, len(text) - 2, 3):
        errors = mlir.verify(text[:end])
        assert all(error.line >= 1 and "^" in str(error) for error in errors)
        assert errors or mlir.loads(text[:end]) is not None


def test_large_constants_take_no_memory_until_they_run():
    huge = "tensor<1000000x1000000xf32>"
    with pytest.raises(MLIRError, match=r"a constant of 1,000,000,000,000 elements is too large, at most 16,777,216"):
        load(f"%c = arith.constant dense<1.0> : {huge}\n  %y = arith.negf %x : tensor<2xf32>")
    body = f"%e = tensor.empty() : {huge}\n  %n = arith.negf %e : {huge}\n  %y = arith.negf %x : tensor<2xf32>"
    assert len(load(body).program.nodes) == 2  # what is known and not used is never made


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.mlir"
    line, kind = collective("all_slice")
    path.write_text(function(line, kind))
    return path


def test_run_tries_a_file_on_a_ramp(file, tmp_path, capsys):
    out = tmp_path / "out.npz"
    for engine in ("numpy", "literal", "torch"):
        assert main(["run", str(file), "--engine", engine, "--explain", "--output", str(out)]) == 0
        printed = capsys.readouterr().out
        assert "model.mlir:3" in printed
        assert "(0, 0, 0): [[ 0.  1.]" in printed
        stored = np.load(out)["result0"]
        ramp = np.arange(12 * 72, dtype=np.float32).reshape(2, 3, 2, 6, 12)
        assert stored.shape == (12, 6, 2)
        np.testing.assert_array_equal(stored[7], ramp[1, 0, 1][:, 2:4])  # a1 = 0, a0 = 1: the second piece of six


def test_run_takes_inputs(file, tmp_path, capsys):
    given = tmp_path / "x.npy"
    np.save(given, np.ones((12, 6, 12), np.float32) * np.arange(12, dtype=np.float32)[:, None, None])
    assert main(["run", str(file), "--function", "f", "--input", str(given)]) == 0
    assert "(1, 2, 1): [[11. 11.]" in capsys.readouterr().out
    assert main(["run", str(file), "--function", "g"]) == 1
    assert "There is no function 'g'. The file has f." in capsys.readouterr().err
    assert main(["run", str(file), "--input", str(given), str(given)]) == 1
    assert "@f takes 1 arguments, but 2 --input were given" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.mlir")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["run", str(file), "--engine", "abacus"]) == 1
    assert "engine" in capsys.readouterr().err


MIXED = """
mesh.mesh @m(shape = 4)
func.func @f(%x: tensor<?x4xf32>, %v: tensor<4xf32>) -> (tensor<?x4xf32>, tensor<4xf32>) {
  %y = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<?x4xf32> -> tensor<?x4xf32>
  %z = mesh.all_reduce %v on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
  return %y, %z : tensor<?x4xf32>, tensor<4xf32>
}"""


def test_run_tells_inputs_of_each_device_by_their_rank(tmp_path, capsys):
    """A 4x4 matrix is one tensor for the first argument, and one for each of four devices for the second."""
    text, square, row = tmp_path / "mixed.mlir", tmp_path / "square.npy", tmp_path / "row.npy"
    text.write_text(MIXED)
    np.save(square, np.arange(16, dtype=np.float32).reshape(4, 4))
    np.save(row, np.arange(4, dtype=np.float32))
    out = tmp_path / "out.npz"
    options = ["--output", str(out), "--explain"]
    assert main(["run", str(text), "--input", str(square), str(square), *options]) == 0
    assert "all_reduce" in capsys.readouterr().out
    stored = np.load(out)
    np.testing.assert_array_equal(stored["result0"][0], 4 * np.load(square))
    np.testing.assert_array_equal(stored["result1"][0], np.load(square).sum(0))
    assert main(["run", str(text), "--input", str(square), str(row), "--output", str(out)]) == 0
    np.testing.assert_array_equal(np.load(out)["result1"][2], 4 * np.load(row))
    capsys.readouterr()
    three = tmp_path / "three.npy"
    np.save(three, np.zeros((3, 4), np.float32))
    assert main(["run", str(text), "--input", str(square), str(three)]) == 1
    assert "three.npy has shape (3, 4): the first dim is not the number of devices, 4." in capsys.readouterr().err


def test_files_that_are_no_arguments_are_named(file, tmp_path, capsys):
    several, empty, noise = tmp_path / "several.npz", tmp_path / "empty.npy", tmp_path / "noise.mlir"
    np.savez(several, a=np.zeros(2))
    empty.write_bytes(b"")
    noise.write_bytes(b"\x9d\xff")
    for given, message in ((several, "holds several arrays"), (empty, "can't be read as a .npy file")):
        assert main(["run", str(file), "--input", str(given)]) == 1
        assert f"shardwright run: {given} {message}" in capsys.readouterr().err
    for command in (["run"], ["mlir", "verify"], ["mlir", "partition"], ["mlir", "convert", "--to", "mesh"]):
        assert main([*command, str(noise)]) == 1
        assert f"{noise} is not a text in UTF-8: invalid start byte at byte 0." in capsys.readouterr().err


def test_commands_without_what_they_need_exit_with_2(file, capsys):
    for command in (["run"], ["mlir"], ["mlir", "verify"], ["mlir", "convert", str(file)]):
        with pytest.raises(SystemExit) as caught:
            main(command)
        assert caught.value.code == 2
        assert "the following arguments are required" in capsys.readouterr().err
    assert main([]) == 0
    assert "usage: shardwright" in capsys.readouterr().out


@pytest.mark.parametrize("read", [mlir.loads, mlir.verify])
@pytest.mark.parametrize(("text", "shown"), [("a/b.mlir", "'a/b.mlir'"), (Path("b.mlir"), "PosixPath"), (b"", "bytes")])
def test_files_and_their_paths_are_not_their_text(read, text, shown):
    with pytest.raises(MLIRError, match=f"takes the text of a file; got {shown}. Read the file first"):
        read(text)


def test_what_is_not_a_program_can_not_be_written():
    step = sw.sjit(lambda x: x + x, mesh=sw.Mesh(x=2))
    lowered = step.lower(np.ones(4, np.float32))
    for what in (step, lowered, np.ones(4), {"f": step}):
        with pytest.raises(MLIRError, match=r"dumps writes a Program, or several by name; got \w+\. The program of a"):
            mlir.dumps(what)
    assert "@f(" in mlir.dumps({"f": lowered.program})


def test_mlir_verify_convert_and_partition(file, tmp_path, capsys):
    assert main(["mlir", "verify", str(file)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["mlir", "convert", "--to", "shard", str(file)]) == 0
    converted = tmp_path / "converted.mlir"
    converted.write_text(capsys.readouterr().out)
    assert "shard.all_slice %arg0 on @grid0 grid_axes = [1, 0] slice_axis = 1" in converted.read_text()
    assert main(["mlir", "convert", "--to", "mesh", str(converted)]) == 0
    assert main(["mlir", "partition", str(converted)]) == 0
    assert capsys.readouterr().out.endswith(converted.read_text())
    broken = tmp_path / "broken.mlir"
    broken.write_text(file.read_text().replace("mesh_axes = [1, 0]", "mesh_axes = [1, 7]"))
    assert main(["mlir", "verify", str(broken)]) == 1
    assert "0-based mesh axis index 7 is out of bounds" in capsys.readouterr().out
    assert main(["mlir", "partition", str(broken)]) == 1
    assert f"shardwright mlir: {broken}:3:8: 0-based mesh axis index 7" in capsys.readouterr().err
