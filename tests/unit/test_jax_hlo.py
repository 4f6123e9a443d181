"""HLO text as XLA's backends print it, hand-made here: groups, collectives, loops, source lines. Figures are by hand."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.errors import ProgramError
from shardwright.jax.devices import Devices
from shardwright.jax.hlo import parse, tensors
from shardwright.jax.replica_groups import axes_of_groups, axes_of_pairs, parse_groups, parse_pairs
from shardwright.jax.walking import Walk
from shardwright.jax.xla_shardings import elements, sharding_of

MESH = sw.Mesh(x=2, y=4)
ON_MESH = Devices(1, 8, MESH, tuple(range(8)))


def module(*lines, more="", head="num_partitions=8"):
    """A module whose entry has some lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule jit_f, is_scheduled=true, {head}\n\n{more}\n\nENTRY %main (p: f32[4,16]) -> f32[4,16] {{\n{body}\n}}\n"


P0 = "%p = f32[4,16]{1,0} parameter(0)"
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}"""


def walk(*lines, devices=ON_MESH, **options):
    return Walk(parse(module(*lines, **options)), devices).whole()


def facts(part):
    return [(row.collective, row.groups, row.bytes) for row in part.rows]


# -- groups -----------------------------------------------------------------------------------------------------------

FORMS = {
    "{{0,1},{2,3}}": ((0, 1), (2, 3)),
    "{{3,1,0,2}}": ((3, 1, 0, 2),),
    "{}": (),
    "[2,4]<=[8]": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "[2,4]<=[4,2]T(1,0)": ((0, 2, 4, 6), (1, 3, 5, 7)),
    "[4,2]<=[2,2,2]T(1,2,0)": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=2,'b'=4] {'a'}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=2,'b'=4] {'b','a'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['a'=2,'b'=4] {'b':(1)2}": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'c'}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['x'=2,'y'=2], device_ids=(0,3,1,2) {'y'}": ((0, 3), (1, 2)),
    "mesh['<axis> d/e'=2,'z.w'=2] {'z.w'}": ((0, 1), (2, 3)),
}


@pytest.mark.parametrize("text", FORMS)
def test_groups_in_every_form(text):
    assert parse_groups(text) == FORMS[text]


@pytest.mark.parametrize("text", ["[2,2]<=[4]X", "{0,1}", "everyone", "mesh['a'=2]"])
def test_groups_in_an_unknown_form_are_refused(text):
    with pytest.raises(ProgramError, match=re.escape(f"the groups {text!r} are in an unknown form")):
        parse_groups(text)


def pieces_of(mesh):
    """Every axis and sub-axis, by trying all sizes."""
    found = []
    for name, size in mesh.sizes.items():
        for pre in range(1, size + 1):
            found += [(name, pre, n) for n in range(2, size + 1) if size % (pre * n) == 0]
    return [name if n == mesh.sizes[name] else f"{name}:({pre}){n}" for name, pre, n in found]


def lists_of_axes(mesh, most=3):
    """Every list of axes that don't overlap, in every order."""

    def grown(axes):
        yield axes
        if len(axes) < most:
            for piece in pieces_of(mesh):
                try:
                    mesh.group_axes((*axes, piece))
                    mesh.lanes((*axes, piece))
                except sw.errors.MeshError:
                    continue
                yield from grown((*axes, piece))

    return list(grown(()))


@pytest.mark.parametrize("sizes", [{"x": 2, "y": 4}, {"x": 6, "y": 2}, {"x": 2, "y": 1, "z": 2, "w": 2}, {"x": 12}])
def test_groups_along_axes_are_named_by_axes_that_have_them(sizes):
    mesh = sw.Mesh(sizes)
    for axes in lists_of_axes(mesh):
        groups = mesh.groups(*axes)
        named = axes_of_groups(groups, mesh)
        assert named is not None
        assert mesh.groups(*named) == groups, "in order, too"


@given(st.permutations(range(8)), st.sampled_from([2, 4, 8]))
def test_groups_that_no_axes_have_are_not_named(order, size):
    groups = [tuple(order[i : i + size]) for i in range(0, 8, size)]
    possible = {frozenset(map(frozenset, MESH.groups(*axes))) for axes in lists_of_axes(MESH)}
    named = axes_of_groups(groups, MESH)
    assert (named is not None) == (frozenset(map(frozenset, groups)) in possible)


def test_groups_of_unequal_sizes_or_of_some_devices_are_not_along_axes():
    assert axes_of_groups([(0, 1, 2), (3, 4), (5, 6, 7)], MESH) is None
    assert axes_of_groups([(0, 1, 2, 3)], MESH) is None


def test_pairs_are_named_by_the_axes_that_they_cross():
    ring = [(row + i, row + (i + 1) % 4) for row in (0, 4) for i in range(4)]
    assert axes_of_pairs(ring, MESH) == ("y",)
    assert axes_of_pairs([(0, 4), (4, 0)], MESH) == ("x",)
    assert axes_of_pairs([(0, 1), (1, 0), (2, 3)], MESH) == ("y:(2)2",)
    assert axes_of_pairs([(0, 7)], MESH) == ("x", "y")
    assert parse_pairs("{{0,1},{1,0}}") == ((0, 1), (1, 0))
    with pytest.raises(ProgramError, match="not a list of source and target pairs"):
        parse_pairs("0->1")


# -- shardings --------------------------------------------------------------------------------------------------------

SHARDINGS = {
    "{replicated}": sw.P(None, None),
    "{devices=[2,4]<=[8]}": sw.P("x", "y"),
    "{devices=[8,1]<=[8]}": sw.P(("x", "y"), None),
    "{devices=[4,2]<=[2,4]T(1,0)}": sw.P("y", "x"),
    "{devices=[1,8]<=[2,4]T(1,0)}": sw.P(None, ("y", "x")),
    "{devices=[2,1,4]<=[8] last_tile_dim_replicate}": sw.P("x", None),
    "{devices=[2,1,4]<=[2,4]T(1,0) last_tile_dim_replicate}": sw.P("y:(1)2", None),
    "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dims={replicated}}": sw.P(None, "y"),
    "{mesh['a'=2,'b'=4], [{'b'}, {'a'}]}": sw.P("y", "x"),
    "{mesh['a'=2,'b'=4], [{}, {'b':(2)2}], replicated={'a'}}": sw.P(None, "y:(2)2"),
    "{mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)), [{'a'}, {}]}": sw.P("y", None),
    "{mesh['a'=2,'b'=4], replicated}": sw.P(None, None),
}


@pytest.mark.parametrize("text", SHARDINGS)
def test_shardings_of_xla_in_every_form(text):
    assert sharding_of(text, 2, ON_MESH) == sw.Sharding(MESH, SHARDINGS[text])


OTHERS = [
    "{manual}",
    "{maximal device=0}",
    "{unknown}",
    "",
    "{devices=[2,2,2]<=[8] last_tile_dims={manual}}",
    "{devices=[8]<=[8]}",
    "{devices=[2,2]<=[4]}",
    "{devices=[2,4]0,1,2,3,4,5,7,6}",
    "{mesh['a'=8], [{'a'}, {}], unreduced={'b'}}",
]


@pytest.mark.parametrize("text", OTHERS)
def test_shardings_that_are_not_along_axes_are_unknown(text):
    assert sharding_of(text, 2, ON_MESH) is None
    assert elements("{{replicated}, {devices=[2,4]<=[8]}}") == ["{replicated}", "{devices=[2,4]<=[8]}"]


def test_partitions_on_other_places():
    """Partition i is at place i ^ 1: of four in a row the neighbours are swapped, so y is read through the places."""
    swapped = Devices(1, 8, MESH, tuple(i ^ 1 for i in range(8)))
    assert sharding_of("{devices=[2,4]1,0,3,2,5,4,7,6}", 2, swapped) == sw.Sharding(MESH, sw.P("x", "y"))
    assert sharding_of("{devices=[2,4]<=[8]}", 2, swapped) is None
    # partitions 0 and 2 are places 1 and 3
    part = walk(
        P0, "ROOT %r = f32[4,16] collective-permute(%p), channel_id=1, source_target_pairs={{0,2}}", devices=swapped
    )
    assert part.rows[0].collective == "permute y:(1)2"


# -- collectives ------------------------------------------------------------------------------------------------------

GLOBAL = "channel_id=1, use_global_device_ids=true"
# 4 × 16 float32 are 256 B a device.
COLLECTIVES = [
    (f"all-gather(%p), replica_groups=[2,4]<=[8], dimensions={{0}}, {GLOBAL}", "all_gather y", 768),
    (
        f"all-gather(f32[4,16]{{1,0}} %p), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={{0}}, {GLOBAL}",
        "all_gather x",
        256,
    ),
    (f"all-reduce(%p), replica_groups={{}}, to_apply=%add, {GLOBAL}", "all_reduce x,y", 448),
    ("all-reduce(%p), channel_id=1, replica_groups={{0}}, to_apply=%add", "all_reduce x,y", 448),
    ("all-reduce(%p), replica_groups={{0}}, to_apply=%add", "all_reduce", 0),  # of replicas, of which there is one
    (
        f"reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={{0}}, to_apply=%add, {GLOBAL}",
        "reduce_scatter y",
        192,
    ),
    ("all-to-all(%p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={1}", "all_to_all x", 128),
    ("collective-permute(%p), channel_id=1, source_target_pairs={{0,4},{4,0}}", "permute x", 256),
    ("collective-permute(%p), channel_id=1, source_target_pairs={{0,0},{4,4}}", "permute", 0),
    ("collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}", "broadcast y", 256),
    ("collective-reduce(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", "reduce y", 256),
]


@pytest.mark.parametrize(("text", "collective", "received"), COLLECTIVES)
def test_bytes_and_axes_of_every_collective(text, collective, received):
    part = walk(P0, f"ROOT %r = f32[4,16]{{1,0}} {text}", more=ADD)
    (row,) = part.rows
    assert (row.collective, row.bytes) == (collective, received)
    assert (part.bytes, part.notes) == (row.bytes, ())
    assert row.lower_bound == row.bytes, "all of these are at their bounds"


def test_a_pair_of_start_and_done_counts_once():
    part = walk(
        P0,
        "%s = (f32[4,16]{1,0}, f32[16,16]{1,0}) all-gather-start(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, "
        'use_global_device_ids=true, backend_config={"collective_backend_config":{"is_sync":false}}',
        "%g = f32[16,16]{1,0} all-gather-done(%s)",
        "%t = f32[4,16]{1,0} all-reduce-start(%p), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add, "
        "use_global_device_ids=true",
        "%u = f32[4,16]{1,0} all-reduce-done(%t)",
        "%v = (f32[4,16]{1,0}, f32[4,16]{1,0}, u32[], u32[]) collective-permute-start(%p), channel_id=3, "
        "source_target_pairs={{0,1},{1,0}}",
        "%w = f32[4,16]{1,0} collective-permute-done(%v)",
        "%a = ((f32[4,16]{1,0}), f32[1,16]{1,0}, u32[]) reduce-scatter-start(%p), channel_id=4, replica_groups=[2,4]<=[8], "
        "dimensions={0}, use_global_device_ids=true, to_apply=%add",
        "%b = ((f32[4,16]{1,0}), f32[1,16]{1,0}, u32[]) reduce-scatter-update(%a)",
        "ROOT %c = f32[1,16]{1,0} reduce-scatter-done(%b)",
        more=ADD,
    )
    assert facts(part) == [
        ("all_gather y", "2 × 4", 768),
        ("all_reduce x", "4 × 2", 256),
        ("permute y:(2)2", "4 × 2", 256),
        ("reduce_scatter y", "2 × 4", 192),
    ]
    assert [row.results for row in part.rows] == [("f32[16,16]",), ("f32[4,16]",), ("f32[4,16]",), ("f32[1,16]",)]


WRAPPED = """
%wrapped (q: f32[4,16]) -> f32[4,16] {
  %q = f32[4,16]{1,0} parameter(0)
  ROOT %t = f32[4,16]{1,0} all-to-all(%q), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}, execution_thread="main"
"""


def test_collectives_inside_of_async_calls_and_fusions():
    part = walk(
        P0,
        "%s = ((f32[4,16]{1,0}), f32[4,16]{1,0}, s32[]) async-start(%p), calls=%wrapped",
        "%u = ((f32[4,16]{1,0}), f32[4,16]{1,0}, s32[]) async-update(%s), calls=%wrapped",
        "%d = f32[4,16]{1,0} async-done(%u), calls=%wrapped",
        "%f = f32[4,16]{1,0} fusion(%d), kind=kCustom, calls=%wrapped",
        "ROOT %c = f32[4,16]{1,0} call(%f), to_apply=%wrapped",
        more=WRAPPED,
    )
    assert facts(part) == [("all_to_all y", "2 × 4", 192)] * 3
    assert part.bytes == 3 * 192


def test_combined_collectives_are_one_row():
    part = walk(
        P0,
        "%q = bf16[8]{0} parameter(1)",
        "ROOT %r = (f32[4,16]{1,0}, f32[4,16]{1,0}, bf16[8]{0}) all-reduce(%p, /*index=1*/%p, %q), channel_id=1, "
        "replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add",
        more=ADD,
    )
    (row,) = part.rows
    assert row.operands == ("2 × f32[4,16]", "bf16[8]")
    assert row.bytes == 384 + 384 + 24, "2 · n · 3/4 of 256, 256 and 16 B"


def test_small_dtypes_and_padded_layouts():
    assert [tensor.bytes for tensor in tensors("(s4[3]{0:T(8,128)}, f8e4m3fn[5], pred[2,2], c128[], token[])")] == [
        2,
        5,
        4,
        16,
        0,
    ]
    with pytest.raises(ProgramError, match="unknown dtype"):
        _ = tensors("quaternion[4]")[0].bytes
    with pytest.raises(ProgramError, match="a size without a bound"):
        tensors("f32[?,4]")


def test_uneven_rings_are_counted_by_chunks():
    """37 float32 over 8 devices: chunks of 5 and one of 2, so the busiest receives (2 · 37 - 5 - 2) · 4 B."""
    text = "ROOT %r = f32[37]{0} all-reduce(%q), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=%add"
    assert walk("%q = f32[37]{0} parameter(0)", text, more=ADD).rows[0].bytes == 268


def test_ragged_exchanges_show_the_most():
    operands = ", ".join(["%p", "%o", "%i", "%i", "%i", "%i"])
    part = walk(
        P0,
        "%o = f32[6,16]{1,0} parameter(1)",
        "%i = s32[4]{0} parameter(2)",
        f"ROOT %r = f32[6,16]{{1,0}} ragged-all-to-all({operands}), channel_id=1, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}",
    )
    (row,) = part.rows
    assert (row.collective, row.bytes, row.lower_bound) == ("ragged_all_to_all y", 384, None)
    assert part.notes == ("ragged_all_to_all y: how much is received depends on the data; 384 B is the most.",)


def test_a_permute_that_xla_took_apart():
    part = walk(
        P0,
        "%t = token[] after-all()",
        "%recv = (f32[4,16]{1,0}, u32[], token[]) recv(%t), channel_id=7, "
        'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2},{2,3}}"}',
        "%send = (f32[4,16]{1,0}, u32[], token[]) send(%p, %t), channel_id=7",
        "%rd = (f32[4,16]{1,0}, token[]) recv-done(%recv), channel_id=7",
        "%sd = token[] send-done(%send), channel_id=7",
        "%out = (f32[4,16]{1,0}, u32[], token[]) send(%p, %t), channel_id=9, is_host_transfer=true",
        "ROOT %g = f32[4,16]{1,0} get-tuple-element(%rd), index=0",
    )
    assert facts(part) == [("permute y", "2 × 4", 256)]


def test_groups_of_replicas_and_of_replicas_with_their_partitions():
    """Two replicas of four partitions; device = replica · 4 + partition, so x is the replicas."""
    both = Devices(2, 4, MESH, tuple(range(8)))
    head = "replica_count=2, num_partitions=4"
    lines = ["%r = f32[4,16] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add"]
    lines += ["%s = f32[4,16] all-reduce(%p), channel_id=1, replica_groups={{0},{1}}, to_apply=%add"]
    lines += ["%t = f32[4,16] all-to-all(%p), channel_id=2, replica_groups={{0,1},{2,3}}, dimensions={0}"]
    part = Walk(parse(module(P0, *lines, more=ADD, head=head)), both).whole()
    assert [row.collective for row in part.rows] == ["all_reduce x", "all_reduce y", "all_to_all y:(2)2"]


def test_groups_that_are_not_along_axes_say_so():
    text = f"ROOT %r = f32[4,16] all-reduce(%p), replica_groups={{{{0,3}},{{1,2}},{{4,7}},{{5,6}}}}, {GLOBAL}"
    part = walk(P0, text + ", to_apply=%add", more=ADD)
    assert facts(part) == [("all_reduce {0,3},{1,2},{4,7},{5,6}", "4 × 2", 256)]
    assert "are not along axes of Mesh(x=2, y=4)" in part.notes[0]
    uneven = text.replace("{{0,3},{1,2},{4,7},{5,6}}", "{{0,1,2},{3,4,5},{6,7}}")
    assert walk(P0, uneven + ", to_apply=%add", more=ADD).rows[0].groups == "3 of 2 to 3"


def test_without_a_mesh_groups_are_sizes():
    text = "all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add"
    permute = "collective-permute(%r), channel_id=1, source_target_pairs={{0,1},{1,0},{2,2}}"
    part = walk(P0, f"%r = f32[4,16] {text}", f"ROOT %s = f32[4,16] {permute}", more=ADD, devices=Devices(1, 8))
    assert facts(part) == [("all_reduce", "2 × 4", 384), ("permute", "2 messages", 256)]
    assert all(row.time is None for row in part.rows)


# -- nothing is dropped -----------------------------------------------------------------------------------------------

UNKNOWN = {
    "collective-shuffle(%p), channel_id=1": "not known here",
    "all-broadcast(%p)": "not known here",
    "mystery(%p), replica_groups={{0,1}}": "not known here",
    'custom-call(%p), custom_call_target="ring", backend_config={"replica_groups":[[0,1]]}': "not known here",
    "all-gather(%p), channel_id=1, replica_groups=<everyone>, dimensions={0}, use_global_device_ids=true": "in an unknown form",
    "all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}": "names replica 1, but the module has 1 replicas",
    "all-reduce(%gone), channel_id=1, replica_groups={}": "reads gone, which that computation does not define",
    "collective-permute(%p), channel_id=1, source_target_pairs={{0,1}}, slice_sizes={{1,2}}": "not counted yet",
    "collective-permute(%p), channel_id=1": "does not say between which devices",
    "send(%p), channel_id=3": "nothing in the module receives what it sends",
    "all-gather-done(%p)": "not known here",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_can_not_be_read_is_a_visible_row(text):
    part = walk(P0, f"ROOT %r = f32[4,16]{{1,0}} {text}")
    (row,) = part.rows
    opcode = text.partition("(")[0]
    assert (row.collective, row.bytes, row.cell("bytes"), row.groups) == (f"unknown {opcode}", None, "?", "?")
    assert part.notes[0].startswith(f"{opcode} r is not counted: ")
    assert UNKNOWN[text] in part.notes[0]


def test_collectives_of_computations_that_nothing_calls_are_shown():
    part = walk("ROOT %p = f32[4,16]{1,0} parameter(0)", more=WRAPPED)
    assert [(row.inside, row.times) for row in part.rows] == [("wrapped, which nothing calls: ", 0)]


def test_a_users_names_are_no_collectives():
    name = 'metadata={op_name="jit(replica_groups)/channel_id/add"}'
    assert walk(P0, f"ROOT %r = f32[4,16]{{1,0}} add(%p, %p), {name}").rows == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no ENTRY computation"),
        ("HloModule m\nENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(1)", "main has no end"),
        ("HloModule m\nENTRY %main () -> f32[] {\n  what is this\n}", "line 3 is not an instruction: what is this"),
        ("HloModule m\nENTRY %main () -> f32[] {\n  %c = f32[]\n}", "line 3 has no operation after its type"),
        ("HloModule m\nENTRY %main () -> f32[] {\n  %c = f32[] add(%a, {1\n}", "a bracket is never closed"),
        ("HloModule m\n%c = f32[] constant(1)\n", "line 2 is an instruction outside of a computation"),
    ],
)
def test_texts_that_are_not_modules_are_refused(text, message):
    with pytest.raises(ProgramError, match=message):
        parse(text)


# -- loops and branches -----------------------------------------------------------------------------------------------

REDUCE = (
    "%r = f32[4,16] all-reduce(%x), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add"
)


def loop(start="0", step="1", direction="LT", end="5", config="", counter="add(%i, %k)", test="%i, %n"):
    """The computations of a loop and the lines that run it."""
    more = f"""{ADD}
%body (t: (s32[], f32[4,16])) -> (s32[], f32[4,16]) {{
  %t = (s32[], f32[4,16]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[4,16] get-tuple-element(%t), index=1
  {REDUCE}
  %k = s32[] constant({step})
  %j = s32[] {counter}
  ROOT %o = (s32[], f32[4,16]) tuple(%j, %r)
}}
%less (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %l = pred[] compare(%a, %b), direction={direction}
}}
%cond (t: (s32[], f32[4,16])) -> pred[] {{
  %t = (s32[], f32[4,16]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant({end})
  ROOT %c = pred[] fusion({test}), kind=kLoop, calls=%less
}}"""
    lines = [
        P0,
        f"%z = s32[] constant({start})",
        "%zc = s32[] copy(%z)",
        "%in = (s32[], f32[4,16]) tuple(%zc, %p)",
        f"%w = (s32[], f32[4,16]) while(%in), condition=%cond, body=%body{config}",
        "ROOT %out = f32[4,16] get-tuple-element(%w), index=1",
    ]
    return lines, more


KNOWN = ', backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0","step":"1"}}'
QUOTED = r', backend_config="{\"known_trip_count\":{\"n\":\"9\"}}"'
TRIPS = [
    ({"config": KNOWN}, 7),
    ({"config": QUOTED}, 9),
    ({}, 5),
    ({"direction": "LE"}, 6),
    ({"start": "3", "step": "4", "end": "12"}, 3),  # 3, 7, 11
    ({"start": "10", "step": "-2", "direction": "GT", "end": "3"}, 4),  # 10, 8, 6, 4
    ({"start": "10", "step": "-2", "direction": "GE", "end": "4"}, 4),
    ({"direction": "GT", "test": "%n, %i"}, 5),
    ({"start": "9"}, 0),
    ({"step": "-1"}, None),
    ({"direction": "NE"}, None),
    ({"counter": "multiply(%i, %k)"}, None),
    ({"counter": "add(%i, %i)"}, None),
    ({"start": "1.5"}, None),
]


@pytest.mark.parametrize(("options", "trips"), TRIPS, ids=str)
def test_loops_are_counted_by_their_trips(options, trips):
    lines, more = loop(**options)
    part = walk(*lines, more=more)
    (row,) = part.rows
    assert row.bytes == 384
    if trips is None:
        assert (row.inside, row.times, part.bytes) == ("while body × unknown: ", 1, 384)
        assert part.notes == ("w: how many rounds the loop runs is unknown; its bytes are those of one.",)
    else:
        assert (row.inside, row.times, part.bytes) == (f"while body × {trips}: ", trips, 384 * trips)
        assert part.notes == ()


def test_nested_loops_multiply_and_conditions_run_once_more():
    lines, more = loop(config=KNOWN)
    outer = """
%again (x: f32[4,16]) -> f32[4,16] {
  %p = f32[4,16] parameter(0)
LINES
}
%test (x: f32[4,16]) -> pred[] {
  %x = f32[4,16] parameter(0)
  REDUCE
  ROOT %c = pred[] custom-call(%r), custom_call_target="small"
}"""
    inner = "\n".join(f"  {line}" for line in lines[1:])
    outer = outer.replace("LINES", inner).replace("REDUCE", REDUCE)
    config = ', backend_config={"known_trip_count":{"n":"3"}}'
    part = walk(P0, f"ROOT %v = f32[4,16] while(%p), condition=%test, body=%again{config}", more=more + outer)
    assert [(row.inside, row.times) for row in part.rows] == [
        ("while condition × 4: ", 4),
        ("while body × 3: while body × 7: ", 21),
    ]
    assert part.bytes == 25 * 384


@pytest.mark.parametrize("names", ["branch_computations={%one, %two}", "true_computation=%one, false_computation=%two"])
def test_of_branches_the_dearer_counts(names):
    branch = (
        "%{} (x: f32[4,16]) -> f32[4,16] {{\n  %x = f32[4,16] parameter(0)\n{}\n  ROOT %o = f32[4,16] copy(%x)\n}}\n"
    )
    more = (
        ADD
        + "\n"
        + branch.format("one", f"  {REDUCE}")
        + branch.format("two", "  " + REDUCE.replace("[2,4]<=[8]", "{}"))
    )
    part = walk(P0, "%i = s32[] parameter(1)", f"ROOT %c = f32[4,16] conditional(%i, %p, %p), {names}", more=more)
    assert [(row.inside, row.bytes) for row in part.rows] == [("branch 0: ", 384), ("branch 1: ", 448)]
    assert part.bytes == 448


# -- source lines -----------------------------------------------------------------------------------------------------

TABLES = """
FileNames
1 "/home/me/train.py"
2 "/usr/lib/python3/site-packages/flax/linear.py"

FunctionNames
1 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=2 end_column=9}
2 {file_name_id=2 function_name_id=1 line=99 end_line=99 column=2 end_column=9}

StackFrames
"""
STACKS = {  # the printed parents count from 1, or from 0
    "1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}": "/home/me/train.py:12",
    "1 {file_location_id=1 parent_frame_id=0}\n2 {file_location_id=2 parent_frame_id=1}": "/home/me/train.py:12",
    "1 {file_location_id=1}\n2 {file_location_id=2}": "/usr/lib/python3/site-packages/flax/linear.py:99",
}


@pytest.mark.parametrize("stack", STACKS)
def test_the_source_is_the_users_line(stack):
    where = 'metadata={op_name="jit(f)/Dense/dot_general" stack_frame_id=2}'
    text = f"ROOT %r = f32[4,16] all-reduce(%p), channel_id=1, replica_groups={{}}, to_apply=%add, {where}"
    (row,) = walk(P0, text, more=TABLES + stack + "\n\n" + ADD).rows
    assert (row.source, row.stack) == (STACKS[stack], "jit(f)/Dense/dot_general")


def test_the_older_form_of_metadata():
    where = r'metadata={op_type="add" op_name="jit(f)/a \"b\" {c}" source_file="/home/me/my, code.py" source_line=7}'
    text = f"ROOT %r = f32[4,16] all-reduce(%p), channel_id=1, replica_groups={{}}, to_apply=%add, {where}"
    (row,) = walk(P0, text, more=ADD).rows
    assert (row.source, row.stack) == ("/home/me/my, code.py:7", 'jit(f)/a "b" {c}')
    assert walk(P0, text.replace(where, "channel=1"), more=ADD).rows[0].source == ""


def test_times_are_those_of_the_links():
    """y: a launch of 1 µs, 768 B both ways around at 1 GB/s each. x, a faster link: 2 µs, 256 B one way at 4 GB/s."""
    slow, fast = sw.Link(bandwidth=1e9, latency=1e-6, hop=0.0), sw.Link(bandwidth=4e9, latency=2e-6, hop=0.0)
    mesh = sw.Mesh(x=2, y=4, links={"x": fast, "y": slow})
    lines = [
        f"%a = f32[16,16] all-gather(%p), replica_groups=[2,4]<=[8], dimensions={{0}}, {GLOBAL}",
        f"%b = f32[8,16] all-gather(%p), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={{0}}, {GLOBAL}",
        f"%c = f32[4,16] all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, {GLOBAL}",
        f"%d = f32[4,16] all-reduce(%p), replica_groups={{{{0,3}},{{1,2}},{{4,7}},{{5,6}}}}, to_apply=%add, {GLOBAL}",
    ]
    part = walk(P0, *lines, devices=Devices(1, 8, mesh, tuple(range(8))), more=ADD)
    # The third receives 384 B both ways. The last is not along axes: two devices on the slowest link, 256 B one way.
    expected = [1e-6 + 384e-9, 2e-6 + 64e-9, 1e-6 + 192e-9, 1e-6 + 256e-9]
    np.testing.assert_allclose([row.time for row in part.rows], expected)
    np.testing.assert_allclose(part.time, sum(expected))
