"""What processes compare of a call: calls that do something else have other keys."""

import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.engines.calls import each_call, put_call, step_call, view_call, with_scalars
from shardwright.engines.coherence import key_of, with_values
from shardwright.plan import Fetch, element_step
from shardwright.sharding import layout_of

MESH = sw.Mesh(dp=2, tp=2, engine="torch")
HOST = np.arange(24.0).reshape(6, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [((2.0, 3.0), (3.0, 2.0)), ((2.0, 2.0), (5.0, 5.0)), ((1,), (1.0,)), ((1,), (True,)), ((0.0,), (-0.0,)), ((), (0,)),
     ((1.0, 1.0), (1.0,))],
)  # fmt: skip
def test_scalars_count_in_their_order(one, other):
    call = put_call(layout_of(sw.Sharding(MESH), (6, 4)), HOST.dtype, HOST.tobytes)
    assert with_scalars(call, one).key != with_scalars(call, other).key
    assert with_values(key_of("where"), one) != with_values(key_of("where"), other)


def test_rows_of_a_fetch_count():
    sharding = sw.Sharding(MESH, P("dp", "tp"))
    steps = [element_step(sharding, HOST.shape, HOST.dtype, place) for place in np.ndindex(2, 2)]
    assert {type(step) for step in steps} == {Fetch}
    assert len({step_call(step).key for step in steps}) == 4


def test_the_axes_and_the_order_of_a_meshs_devices_count():
    meshes = [MESH, sw.Mesh(tp=2, dp=2, engine="torch"), sw.Mesh(dp=2, tp=2, devices=(1, 0, 2, 3), engine="torch")]
    layouts = [layout_of(sw.Sharding(mesh, P("dp", "tp")), HOST.shape) for mesh in meshes]
    assert len({put_call(layout, HOST.dtype, HOST.tobytes).key for layout in layouts}) == 3


def test_tensors_per_device_and_what_is_done_with_them_count():
    dtype = ml_dtypes.bfloat16
    given = [view_call(MESH, [np.full(3, n, dtype)] * 4).key for n in range(3)]
    views = ["float64 on every device"]
    done = [each_call(MESH, "multiply", [*views, x], {}).key for x in (2.0, 3.0, np.array([2.0, 3.0]), np.array([2.0]))]
    options = [each_call(MESH, "add", views, {"where": value}).key for value in (True, False)]
    assert len({*given, *done, *options}) == 9


def test_programs_on_tensors_per_device_have_their_constants_in_the_fingerprint():
    mesh, prints = sw.Mesh(dp=2, tp=2), set()
    x = sw.shard(HOST, mesh, P("dp", "tp"))
    for factor in (2.0, 3.0, 2, np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.float32(2)):
        scaled = sw.sjit(sw.shard_map(lambda v, by=factor: v * by, mesh, P("dp", "tp"), P("dp", "tp")))
        prints.add(scaled.lower(x).program.fingerprint)
    assert len(prints) == 6
