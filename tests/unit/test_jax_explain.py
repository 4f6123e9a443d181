"""`sw.jax.explain` of functions that XLA compiles for eight virtual devices; expectations are worked out by hand."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardwright as sw
from shardwright.errors import MeshError, ProgramError, ShardingError
from shardwright.jax.explaining import JaxExplanation, explain_lowered

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
PERMUTED = Mesh(np.array(jax.devices())[[3, 1, 0, 2, 7, 6, 5, 4]].reshape(2, 4), ("x", "y"))
FILE = Path(__file__).name


def on(mesh, *spec):
    return NamedSharding(mesh, PartitionSpec(*spec))


def shaped(shape, *spec, mesh=MESH, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=on(mesh, *spec))


def steps(explanation):
    return [(row.collective, row.groups, row.bytes) for row in explanation.rows]


def line_of(function, text):
    """file:line of the line of a function that has a text."""
    start = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return f"{FILE}:{next(n for n, line in enumerate(lines[start - 1 :], start) if text in line)}"


# -- what XLA makes of sharded functions ------------------------------------------------------------------------------


def mlp(x, w1, w2):
    hidden = jax.nn.relu(x @ w1)
    return hidden @ w2  # the contraction is split


def test_a_tensor_parallel_mlp_has_one_all_reduce():
    """A device has 8 × 32 float32 of the result; a ring of 4 receives 2 · 1,024 · 3/4 B."""
    explanation = sw.jax.explain(
        jax.jit(mlp, out_shardings=on(MESH, "x")),
        shaped((16, 32), "x"),
        shaped((32, 64), None, "y"),
        shaped((64, 32), "y"),
    )
    assert steps(explanation) == [("all_reduce y", "2 × 4", 1536)]
    (row,) = explanation.rows
    assert row.source.startswith("/")
    assert row.cell("source") == line_of(mlp, "hidden @ w2")
    assert row.stack == "jit(mlp)/dot_general"
    assert (row.operands, row.results, row.lower_bound) == (("f32[8,32]",), ("f32[8,32]",), 1536)
    assert explanation.total_bytes == 1536
    assert isinstance(explanation, JaxExplanation)
    assert type(explanation).__mro__[1] is type(sw.explain(lambda a: a, sw.shard(np.ones(2), sw.Mesh(x=2), sw.P("x"))))


def test_two_row_parallel_layers_have_two_all_reduces():
    """Results of 16 × 64 and of 16 × 8 float32 on every device, over rings of 4 and of 2."""

    def layers(x, w1, w2):
        return lax.with_sharding_constraint(x @ w1, on(MESH, None, "x")) @ w2

    args = shaped((16, 32), None, "y"), shaped((32, 64), "y", None), shaped((64, 8), "x", None)
    jitted = jax.jit(layers, out_shardings=on(MESH))
    found = dict.fromkeys(row.collective for row in sw.jax.explain(jitted, *args).rows)
    last = sw.jax.explain(jitted, *args).rows[-1]
    assert list(found) == ["all_reduce y", "all_reduce x"]
    assert (last.operands, last.bytes) == (("f32[16,8]",), 2 * 512 // 2)


def test_fsdp_gathers_weights():
    """Weights of 128 × 512 float32, a quarter on each device of y: three quarters are received, 3 · 65,536 B."""
    train = jax.jit(lambda x, w: jnp.tanh(x @ w), out_shardings=on(MESH, "y"))
    explanation = sw.jax.explain(train, shaped((1024, 128), "y"), shaped((128, 512), "y"))
    assert steps(explanation) == [("all_gather y", "2 × 4", 3 * 32 * 512 * 4)]


BODIES = {  # a device has 8 × 8 float32, 256 B, but where the spec says otherwise
    "psum x": (lambda a: lax.psum(a, "x"), ("x", "y"), "all_reduce x", "4 × 2", 256),
    "psum y": (lambda a: lax.psum(a, "y"), ("x", "y"), "all_reduce y", "2 × 4", 384),
    "psum both": (lambda a: lax.psum(a, ("y", "x")), ("x", "y"), "all_reduce y,x", "1 × 8", 448),
    "pmax": (lambda a: lax.pmax(a, ("x", "y")), ("x", "y"), "all_reduce x,y", "1 × 8", 448),
    "ring": (
        lambda a: lax.ppermute(a, "y", [(i, (i + 1) % 4) for i in range(4)]),
        ("x", "y"),
        "permute y",
        "2 × 4",
        256,
    ),
    "swap": (lambda a: lax.ppermute(a, "y", [(0, 2), (2, 0)]), ("x", "y"), "permute y:(1)2", "4 × 2", 256),
    "gather": (lambda a: lax.all_gather(a, "x"), ("x", "y"), "all_gather x", "4 × 2", 256),
    "scatter": (lambda a: lax.psum_scatter(a, "y", tiled=True), (None, "y"), "reduce_scatter y", "2 × 4", 384),
    "turn": (lambda a: lax.all_to_all(a, "y", 0, 1, tiled=True), (None, "y"), "all_to_all y", "2 × 4", 384),
    "pairs": (
        lambda a: lax.psum(a, "y", axis_index_groups=[[0, 1], [2, 3]]),
        ("x", "y"),
        "all_reduce y:(2)2",
        "4 × 2",
        256,
    ),
}


@pytest.mark.parametrize("mesh", [MESH, PERMUTED], ids=["in order", "permuted"])
@pytest.mark.parametrize("name", BODIES)
def test_collectives_of_shard_map(name, mesh):
    body, spec, *expected = BODIES[name]
    inside = jax.shard_map(
        body, mesh=mesh, in_specs=PartitionSpec(*spec), out_specs=PartitionSpec(*spec), check_vma=False
    )
    explanation = sw.jax.explain(jax.jit(inside), shaped((16, 32), *spec, mesh=mesh))
    assert steps(explanation) == [tuple(expected)]
    assert explanation.findings == ()


def summed(a):
    mapped = jax.shard_map(
        lambda a: lax.psum(a, "y") / 4, mesh=MESH, in_specs=PartitionSpec("x", "y"), out_specs=PartitionSpec("x")
    )
    return jnp.tile(mapped(a), (1, 4))


def test_a_scan_counts_its_rounds():
    def rounds(a):
        return lax.scan(lambda c, _: (summed(c), None), a, length=5)[0]

    explanation = sw.jax.explain(jax.jit(rounds), shaped((16, 32), "x", "y"))
    reduces = [row for row in explanation.rows if row.collective == "all_reduce y"]
    assert [(row.bytes, row.times, row.inside) for row in reduces] == [(384, 5, "while body × 5: ")]
    assert explanation.total_bytes == sum(row.bytes * row.times for row in explanation.rows)

    def nested(a):
        return lax.fori_loop(0, 3, lambda _, c: rounds(c), a)

    inner = [
        row
        for row in sw.jax.explain(jax.jit(nested), shaped((16, 32), "x", "y")).rows
        if row.collective == "all_reduce y"
    ]
    assert [(row.times, row.inside) for row in inner] == [(15, "while body × 3: while body × 5: ")]


def test_a_loop_that_the_data_ends():
    def until(a):
        return lax.while_loop(lambda c: jnp.max(c) < 100, summed, a)

    explanation = sw.jax.explain(jax.jit(until), shaped((16, 32), "x", "y"))
    inside = {row.collective: row.inside for row in explanation.rows if "body" in row.inside}
    assert inside["all_reduce y"] == "while body × unknown: "
    assert "while condition × unknown: " in {row.inside for row in explanation.rows}
    assert any("how many rounds the loop runs is unknown" in note for note in explanation.notes)


def test_of_two_branches_the_dearer_counts():
    def choose(flag, a, b):
        return lax.cond(flag, lambda a, b: a @ b, lambda a, b: jnp.zeros((16, 64), np.float32), a, b)

    args = jax.ShapeDtypeStruct((), bool), shaped((16, 32), None, "y"), shaped((32, 64), "y", None)
    explanation = sw.jax.explain(jax.jit(choose, out_shardings=on(MESH)), *args)
    assert [(row.inside, row.bytes) for row in explanation.rows] == [("branch 1: ", 2 * 4096 * 3 // 4)]


# -- findings ---------------------------------------------------------------------------------------------------------

SOURCE, TARGET = ("y", None, "x"), (None, ("x", "y"), None)


def constrained(a):
    return lax.with_sharding_constraint(a, on(MESH, *TARGET))


def after_sin(a):
    b = jnp.sin(a)
    return lax.with_sharding_constraint(b, on(MESH, *TARGET)) * 2


CASES = {
    "constraint": jax.jit(constrained),
    "constraint after an operation": jax.jit(after_sin),
    "result": jax.jit(lambda a: a, out_shardings=on(MESH, *TARGET)),
    "inside of another function": jax.jit(lambda a: jax.jit(after_sin)(a) + 1),
    "shard_map": jax.jit(
        jax.shard_map(jnp.cos, mesh=MESH, in_specs=PartitionSpec(*TARGET), out_specs=PartitionSpec(*TARGET))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gather_of_the_whole_array_is_flagged(name):
    """16³ float32 are 16,384 B. XLA gathers all of it: 7/8. The target's shard has 2,048 B; a device has an eighth of it."""
    explanation = sw.jax.explain(CASES[name], shaped((16, 16, 16), *SOURCE))
    (finding,) = explanation.findings
    assert (finding.bytes, finding.planned_bytes) == (14_336, 1_792)
    assert (finding.gathered, finding.collectives) == ("f32[16,16,16]", ("all_gather x", "all_gather y"))
    assert explanation.total_bytes == 14_336
    text = str(explanation)
    assert "f32[16@y,16,16@x] → f32[16,16@(x,y),16]: XLA gathers f32[16,16,16] on every device" in text
    assert "14,336 B (all_gather x, all_gather y); shardwright's plan: 1,792 B (exchange y,x)." in text


def test_a_finding_names_its_line():
    (finding,) = sw.jax.explain(CASES["constraint"], shaped((16, 16, 16), *SOURCE)).findings
    place = line_of(constrained, "with_sharding_constraint")
    assert str(finding).startswith(f"{place} jit(constrained)/sharding_constraint: ")
    (plan, times), *_ = finding.plans
    assert (plan.algorithm, times) == ("direct", 1)


def test_findings_inside_of_loops_count_their_rounds():
    def back_and_forth(a):
        def body(c, _):
            there = lax.with_sharding_constraint(jnp.sin(c), on(MESH, *TARGET))
            return lax.with_sharding_constraint(jnp.cos(there), on(MESH, *SOURCE)), None

        return lax.scan(body, a, length=5)[0]

    findings = sw.jax.explain(jax.jit(back_and_forth), shaped((16, 16, 16), *SOURCE)).findings
    assert sorted((f.bytes, f.planned_bytes) for f in findings if "while/body" in f.stack) == [(5 * 14_336, 5 * 1_792)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((None, "y"), ("y", None)),  # an all_to_all
        (("y", None), (None, None)),  # a gather that the target needs
        ((None, None), ("x", "y")),  # a slice
        (("x", "y"), ("x", None)),
    ],
)
def test_changes_that_xla_does_well_are_not_flagged(source, target):
    jitted = jax.jit(lambda a: lax.with_sharding_constraint(a, on(MESH, *target)))
    explanation = sw.jax.explain(jitted, shaped((16, 32), *source))
    plan = sw.plan_reshard((16, 32), np.float32, sw.Mesh(x=2, y=4), sw.P(*source), sw.P(*target))
    assert explanation.findings == ()
    assert explanation.total_bytes == plan.bytes_received


def test_what_a_matmul_moves_is_not_taken_for_a_reshard():
    """The weights' gather belongs to the product, whose operands have no sharding that they must go to."""
    args = shaped((1024, 128), "y"), shaped((128, 512), "y")
    assert sw.jax.explain(jax.jit(lambda x, w: x @ w, out_shardings=on(MESH, "y")), *args).findings == ()


# -- what is said around the table ------------------------------------------------------------------------------------


def test_one_device_and_no_collectives_say_so():
    alone = sw.jax.explain(jax.jit(lambda a: a + 1), jax.ShapeDtypeStruct((8,), np.float32))
    assert alone.rows == ()
    assert "compiled for one device: nothing is sent" in str(alone)
    local = sw.jax.explain(jax.jit(lambda a: a + 1), shaped((8, 8), "x"))
    assert (local.rows, local.total_bytes) == ((), 0)
    assert "compiled for 8 devices, without collectives: nothing is sent" in str(local)


def test_memory_is_xlas():
    """A device has 8 × 8 of 16 × 32 float32, 256 B; the result is donated the argument's memory."""
    explanation = sw.jax.explain(jax.jit(lambda a: a * 2, donate_argnums=0), shaped((16, 32), "x", "y"))
    memory = explanation.memory
    assert (memory.arguments, memory.outputs, memory.aliased) == (256, 256, 256)
    assert explanation.peak_bytes == memory.peak == 256 + memory.temporaries
    assert "memory of a device: arguments 256 B, outputs 256 B (256 B of them in donated arguments)" in str(explanation)
    whole = sw.jax.explain(CASES["constraint"], shaped((16, 16, 16), *SOURCE)).memory
    assert whole.temporaries >= 16_384, "the gathered array"
    assert whole.peak == 2 * 2048 + whole.temporaries


def test_name_stacks_are_a_column():
    def named(a):
        with jax.named_scope("attention"):
            return jnp.sum(a, axis=1)

    explanation = sw.jax.explain(jax.jit(named, out_shardings=on(MESH)), shaped((16, 32), None, "y"))
    assert explanation.rows[0].stack == "jit(named)/attention/reduce_sum"
    machine, axes, head, first, *_ = str(explanation).splitlines()
    assert machine.startswith("generic: ")
    assert "not your machine" in machine
    assert axes.startswith("axes: x=2")
    assert head.split() == ["source", "name", "stack", "step", "result", "groups", "bytes", "bound", "network"]
    assert first.split()[:3] == [line_of(named, "jnp.sum"), "jit(named)/attention/reduce_sum", "all_reduce"]
    assert "all_reduce y" in explanation._repr_html_()


def test_nothing_is_allocated():
    """2^34 float32 are 64 GiB."""
    before = len(jax.live_arrays())
    explanation = sw.jax.explain(
        jax.jit(lambda a: jnp.sum(a, axis=0), out_shardings=on(MESH)), shaped((2**17, 2**17), "x", "y")
    )
    assert len(jax.live_arrays()) == before
    assert explanation.memory.arguments == 2**36 // 8
    assert explanation.total_bytes == 2**15 * 4 + 3 * 2**15 * 4, "2 · n/2 for the sum over x, then three shards of y"


# -- arguments and meshes ---------------------------------------------------------------------------------------------


def total(a, scale=1, *, kind="sum"):
    return getattr(jnp, kind)(a) * scale


def test_arguments_of_every_kind():
    concrete = jax.device_put(np.ones((16, 32), np.float32), on(MESH, "x", "y"))
    ours = sw.ShapeDtype((16, 32), "float32", sw.Sharding(sw.Mesh(x=2, y=4), sw.P("x", "y")))
    array = sw.shard(np.ones((16, 32), np.float32), sw.Mesh(x=2, y=4), sw.P("x", "y"))
    jitted = jax.jit(total, static_argnames="kind", static_argnums=1)
    tables = [sw.jax.explain(jitted, a, 2, kind="max") for a in (concrete, shaped((16, 32), "x", "y"), ours, array)]
    assert len({str(table) for table in tables}) == 1
    assert {row.collective for row in tables[0].rows} == {"all_reduce x", "all_reduce y"}
    plain = sw.jax.explain(jitted, np.ones((16, 32), np.float32), 2)
    assert plain.rows == ()


def test_a_mesh_of_permuted_devices_of_ours():
    """Devices 0, 2, 4, 6 are the rows' first; the text has partitions, which are the mesh's places."""
    mesh = sw.Mesh(a=4, b=2, devices=[0, 1, 2, 3, 7, 6, 5, 4])
    struct = sw.ShapeDtype((16, 32), "float32", sw.Sharding(mesh, sw.P("a")))
    explanation = sw.jax.explain(jax.jit(lambda a: jnp.sum(a, axis=0)), struct)
    assert steps(explanation) == [("all_reduce a", "2 × 4", 2 * 32 * 4 * 3 // 4)]


def test_a_mesh_of_ones_own_names_axes_and_has_links():
    """y is q and r together. Of 1,536 B half come along each axis: at 1 GB/s, without latency."""
    mesh = sw.Mesh(p=2, q=2, r=2, links=sw.Link(bandwidth=1e9, latency=0.0, hop=0.0))
    args = shaped((16, 32), None, "y"), shaped((32, 16), "y", None)
    jitted = jax.jit(lambda a, b: a @ b, out_shardings=on(MESH))
    explanation = sw.jax.explain(jitted, *args, mesh=mesh)
    assert steps(explanation) == [("all_reduce q,r", "2 × 4", 1536)]
    assert explanation.total_time == pytest.approx(768e-9)
    turned = Mesh(np.array(jax.devices()).reshape(2, 4).T, ("m", "n"))
    assert steps(sw.jax.explain(jitted, *args, mesh=turned)) == [("all_reduce m", "2 × 4", 1536)]


def test_the_mesh_is_found_in_the_compiled_function():
    """The argument has no sharding; the function names a mesh inside."""
    explanation = sw.jax.explain(
        jax.jit(lambda a: jnp.sum(constrained(a))), jax.ShapeDtypeStruct((16, 16, 16), np.float32)
    )
    assert [row.collective for row in explanation.rows] == ["all_reduce x,y"]


def test_without_a_mesh_groups_are_sizes():
    lowered = jax.jit(lambda a: jnp.sum(a, axis=1), out_shardings=on(MESH)).lower(shaped((16, 32), None, "y"))

    class Unnamed:
        """A compiled function that tells nothing about shardings."""

        input_shardings = output_shardings = ()

        def __init__(self, compiled):
            self.as_text, self.memory_analysis = compiled.as_text, compiled.memory_analysis

    class Lowered:
        def compile(self, options=None):
            return Unnamed(lowered.compile())

    explanation = explain_lowered(Lowered())
    assert steps(explanation) == [("all_reduce", "2 × 4", 96)]
    assert (explanation.total_time, explanation.rows[0].time) == (None, None)
    assert "the mesh of the 8 devices is unknown: groups are shown by their sizes" in str(explanation)
    assert "XLA gave no module from before its partitioner" in str(explanation)
    assert "1 steps take an unknown time\na device receives 96 B and holds" in str(explanation)


def test_a_backend_without_the_option_still_explains():
    lowered = CASES["constraint"].lower(shaped((16, 16, 16), *SOURCE))

    class Refusing:
        def compile(self, options=None):
            if options:
                raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_dump_to'\nmore")
            return lowered.compile()

    explanation = explain_lowered(Refusing())
    assert (explanation.total_bytes, explanation.findings) == (14_336, ())
    assert "not compared with plans: the backend says INVALID_ARGUMENT: No such compile option: 'xla_dump_to'" in str(
        explanation
    )


def test_mistakes_are_named():
    argument, jitted = shaped((16, 32), "x"), jax.jit(jnp.sum)
    with pytest.raises(ProgramError, match=r"explain takes a jitted function.*Write explain\(jax.jit\(f\), …\)"):
        sw.jax.explain(lambda a: a, argument)
    with pytest.raises(MeshError, match=r"mesh= takes a shardwright Mesh or a jax\.sharding\.Mesh; got dict"):
        sw.jax.explain(jitted, argument, mesh={"x": 2})
    with pytest.raises(MeshError, match=r"Mesh\(x=2\) has 2 devices, but the function was compiled for 8"):
        sw.jax.explain(jitted, argument, mesh=sw.Mesh(x=2))
    with pytest.raises(MeshError, match=r"compiled for the devices \[0, 1, 2, 3, 4, 5, 6, 7\], but"):
        sw.jax.explain(jitted, argument, mesh=sw.Mesh(x=8, devices=range(8, 16)))
    with pytest.raises(MeshError, match="has device ids up to 15, but JAX has 8 devices"):
        sw.jax.explain(jitted, sw.ShapeDtype((16,), "float32", sw.Sharding(sw.Mesh(x=16), sw.P("x"))))
    mesh = sw.Mesh(x=8)
    for sharding, reason in (
        (sw.Sharding(mesh, sw.P("x:(1)2")), r"has the sub-axis 'x:\(1\)2', and JAX's specs only name whole axes"),
        (sw.Sharding(mesh, sw.P(None), partial="x"), "has a pending sum along x, which a NamedSharding can't say"),
    ):
        with pytest.raises(ShardingError, match=reason):
            sw.jax.explain(jitted, sw.ShapeDtype((16,), "float32", sharding))


def test_the_front_end_loads_at_its_first_use():
    code = """
import sys, shardwright as sw
assert "shardwright.jax" not in sys.modules
sys.modules["jax"] = None  # as if it were not installed
try:
    sw.jax
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "shardwright.jax needs jax, which is not installed. Run: pip install 'shardwright[jax]'.\n"
    assert "jax" not in sw.__all__
    assert partial(sw.jax.explain).func is sys.modules["shardwright.jax"].explain


def test_a_function_compiled_by_a_helper_is_explained():
    """The known case: XLA gathers a whole array of 16³ float32 twice, where an exchange brings each device what it lacks."""
    helper = sw.jax.MeshShardingHelper((2, 4), ("x", "y"))

    @partial(helper.sjit, in_shardings=(jax.P("y", None, "x"),), out_shardings=jax.P(None, ("x", "y"), None))
    def moved(a):
        return a * 1.0

    explanation = moved.explain(jax.ShapeDtypeStruct((16, 16, 16), "float32"))
    assert explanation.total_bytes == 14_336
    (finding,) = explanation.findings
    assert (finding.bytes, finding.planned_bytes) == (14_336, 1_792)
