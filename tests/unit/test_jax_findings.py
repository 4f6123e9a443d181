"""Which changes of sharding are compared with plans: hand-made modules from before and after XLA's partitioner.

The change is y of dim 0 → y of dim 1 of 16 × 16 float32 on Mesh(x=2, y=4): 256 B a shard, of which a plan receives 3/4, so
192 B. Gathering all of it receives 768 B.
"""

import pytest

import shardwright as sw
from shardwright.jax.devices import Devices
from shardwright.jax.findings import find
from shardwright.jax.hlo import parse
from shardwright.jax.walking import Walk

MESH = sw.Mesh(x=2, y=4)
DEVICES = Devices(1, 8, MESH, tuple(range(8)))
ROWS = "sharding={devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
COLUMNS = "sharding={devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"
AT = 'metadata={op_name="jit(f)/sin" source_file="/me/f.py" source_line=3}'
ELSEWHERE = AT.replace("=3", "=4")
PARAMETER = f"%p = f32[16,16] parameter(0), {ROWS}"
SIN = f"%s = f32[16,16] sine(%p), {COLUMNS}, {AT}"
GATHER = (
    "%g = f32[16,16] all-gather(%q), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true, "
    + AT
)
LOCAL = "%q = f32[4,16] parameter(0)"


def module(lines, more=""):
    body = "\n".join(lines)
    return parse(f"HloModule m, num_partitions=8\n{more}\nENTRY %main (p: f32[16,16]) -> f32[16,16] {{\n{body}\n}}\n")


def found(before, after, more="", after_more="", devices=DEVICES):
    rows = Walk(module(after, after_more), devices).whole().rows
    assert rows
    return find(module(before, more), rows, devices)


def figures(findings):
    return [(f.bytes, f.planned_bytes, f.gathered) for f in findings]


def test_a_change_and_its_gather():
    (finding,) = found([PARAMETER, SIN], [LOCAL, GATHER])
    assert figures([finding]) == [(768, 192, "f32[16,16]")]
    assert str(finding) == (
        "f.py:3 jit(f)/sin: f32[16@y,16] → f32[16,16@y]: XLA gathers f32[16,16] on every device, which the target does not "
        "need: 768 B (all_gather y); shardwright's plan: 192 B (all_to_all y)."
    )


def test_collectives_of_other_lines_do_not_count():
    assert found([PARAMETER, SIN], [LOCAL, GATHER.replace("=3", "=4")]) == ()
    assert figures(found([PARAMETER, SIN], [LOCAL, GATHER, GATHER.replace("%g", "%h").replace("=3", "=4")])) == [
        (768, 192, "f32[16,16]")
    ]


@pytest.mark.parametrize(
    "other",
    [
        "%d = f32[16,16] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, ",
        "%d = f32[16,16] reverse(%p), dimensions={0}, ",
        '%d = f32[16,16] custom-call(%p), custom_call_target="anything", ',
        "%d = f32[16,16] cosine(%p), sharding={devices=[2,2,2]<=[8] last_tile_dims={manual}}, ",
        "%d = f32[16,16] cosine(%p), sharding={devices=[8,1]0,1,2,3,4,5,7,6}, ",
        "%d = f32[16,16] call(%p), to_apply=%main, sharding={devices=[8,1]<=[8]}, ",
    ],
)
def test_lines_where_something_else_may_send_are_left_out(other):
    if "call(" in other and "custom" not in other:
        other = other.replace("%main", "%inner")
    more = f"%inner (a: f32[16,16]) -> f32[16,16] {{\n  ROOT %a = f32[16,16] parameter(0), {ROWS}\n}}"
    assert found([PARAMETER, SIN, other + AT], [LOCAL, GATHER], more) == ()
    assert len(found([PARAMETER, SIN, other + ELSEWHERE], [LOCAL, GATHER], more)) == 1


@pytest.mark.parametrize(
    "still",
    [
        "%c = f32[16,16] broadcast(%z), dimensions={}, " + COLUMNS + ", " + AT,
        '%c = f32[4,16] custom-call(%s), custom_call_target="SPMDFullToShardShape", sharding={manual}, ' + AT,
        f"%c = f32[16,16] add(%s, %s), {COLUMNS}, {AT}",
        f"%c = f32[] add(%z, %z), {AT}",
    ],
)
def test_what_sends_nothing_hides_nothing(still):
    assert figures(found([PARAMETER, "%z = f32[] constant(1)", SIN, still], [LOCAL, GATHER])) == [
        (768, 192, "f32[16,16]")
    ]


def test_several_changes_at_one_line_are_one_finding():
    second = SIN.replace("%s", "%t").replace("sine", "cosine").replace("f32", "bf16")
    values = [PARAMETER, PARAMETER.replace("%p", "%o").replace("(0)", "(1)").replace("f32", "bf16"), SIN]
    (finding,) = found([*values, second.replace("%p", "%o")], [LOCAL, GATHER])
    assert (finding.bytes, finding.planned_bytes) == (768, 192 + 96)
    assert "f32[16@y,16] → f32[16,16@y] and 1 more: XLA" in str(finding)


def test_collectives_that_xla_combined_or_that_are_unknown_are_left_out():
    combined = GATHER.replace("f32[16,16] all", "(f32[16,16], f32[16,16]) all").replace("(%q)", "(%q, %q)")
    assert found([PARAMETER, SIN], [LOCAL, combined]) == ()
    unknown = GATHER.replace("%g", "%h").replace("all-gather", "all-shuffle")
    assert found([PARAMETER, SIN], [LOCAL, GATHER, unknown]) == ()


def test_tuples_are_compared_element_by_element():
    own = "sharding={{replicated}, " + COLUMNS.removeprefix("sharding=") + "}"
    pair = f"%t = (f32[16,16], f32[16,16]) tuple(%p, %p), {own}, {AT}"
    (finding,) = found([PARAMETER, pair], [LOCAL, GATHER, GATHER.replace("%g", "%h")])
    assert (finding.bytes, finding.planned_bytes) == (2 * 768, 768 + 192)
    picked = f"%e = f32[16,16] get-tuple-element(%t), index=1, {ROWS}, {ELSEWHERE}"
    assert len(found([PARAMETER, pair, picked], [LOCAL, GATHER.replace("=3", "=4")])) == 1
    nested = picked.replace("(%t)", "(%n)").replace("index=1", "index=0")
    tuples = f"%n = ((f32[16,16], f32[16,16]), f32[16,16]) tuple(%t, %p), {AT}"
    assert found([PARAMETER, pair, tuples, nested], [LOCAL, GATHER.replace("=3", "=4")]) == ()


LOOP = """
%cond (a: f32[16,16]) -> pred[] {
  %a = f32[16,16] parameter(0), sharding={replicated}
  ROOT %c = pred[] custom-call(%a), custom_call_target="until"
}
%body (a: SHAPE) -> SHAPE {
  LINES
}"""


def test_loops_count_on_both_sides():
    """Before: 6 rounds. After: XLA has unrolled two rounds into one, so two gathers run 3 times."""
    config = ', backend_config={"known_trip_count":{"n":"N"}}'
    lines = "\n".join([PARAMETER, SIN])
    more = LOOP.replace("LINES", lines)
    while_ = f"%w = f32[16,16] while(%p), condition=%cond, body=%body, {ROWS}, {ELSEWHERE}"
    after_more = LOOP.replace("LINES", "\n".join([LOCAL, GATHER, GATHER.replace("%g", "%h")]))
    after = "%w = f32[4,16] while(%q), condition=%cond, body=%body"
    known = [PARAMETER, while_ + config.replace("N", "6")]
    unrolled = [LOCAL, after + config.replace("N", "3")]
    assert figures(found(known, unrolled, more, after_more)) == [(6 * 768, 6 * 192, "f32[16,16]")]
    once = LOOP.replace("LINES", "\n".join([LOCAL, GATHER]))
    assert figures(found([PARAMETER, while_], [LOCAL, after], more, once)) == [(768, 192, "f32[16,16]")]
    # the rounds were unknown before, so what runs six times can't be compared
    assert found([PARAMETER, while_], [LOCAL, after + config.replace("N", "6")], more, once) == ()


def test_branches_take_their_operands_as_they_are():
    more = f"%one (a: f32[16,16]) -> f32[16,16] {{\n  {PARAMETER}\n  {SIN}\n}}"
    choice = f"%c = f32[16,16] conditional(%i, %p), branch_computations={{%one}}, {COLUMNS}, {AT}"
    before = [PARAMETER, "%i = s32[] parameter(1)", choice]
    assert figures(found(before, [LOCAL, GATHER], more)) == [(768, 192, "f32[16,16]")]
    assert found(before, [LOCAL, GATHER], more.replace(ROWS, "sharding={replicated}")) == ()


def test_names_of_called_computations_follow_those_of_their_callers():
    inner = SIN.replace('"jit(f)/sin"', '"sin"')
    more = f"%inner (a: f32[16,16]) -> f32[16,16] {{\n  {PARAMETER}\n  {inner}\n}}"
    call = f'%c = f32[16,16] call(%p), to_apply=%inner, {COLUMNS}, metadata={{op_name="jit(f)"}}'
    assert figures(found([PARAMETER, call], [LOCAL, GATHER], more)) == [(768, 192, "f32[16,16]")]


def test_nothing_is_compared_without_a_mesh_or_for_dtypes_that_numpy_lacks():
    assert found([PARAMETER, SIN], [LOCAL, GATHER], devices=Devices(1, 8)) == ()
    for dtype, count in {"s4": 0, "f3e1m1": 0, "token": 0, "f8e4m3fn": 1, "u16": 1, "c64": 1, "pred": 1}.items():
        lines = [PARAMETER.replace("f32", dtype), SIN.replace("f32", dtype)]
        assert len(found(lines, [LOCAL, GATHER])) == count, dtype


def test_more_bytes_without_a_gather_are_a_finding_too():
    """Two permutes of a shard receive 512 B."""
    permute = f"= f32[4,16] collective-permute(%q), channel_id=1, source_target_pairs={{{{0,1}}}}, {AT}"
    (finding,) = found([PARAMETER, SIN], [LOCAL, f"%a {permute}", f"%b {permute}"])
    assert (finding.bytes, finding.planned_bytes, finding.gathered) == (512, 192, "")
    assert "XLA moves more: 512 B (permute y:(2)2, permute y:(2)2); shardwright's plan: 192 B" in str(finding)
