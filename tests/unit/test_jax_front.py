"""The JAX front end: `sjit` and its cache, contexts, meshes, and what is refused."""

import threading
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright as sw
import shardwright.jax as sj
from shardwright.errors import ArrayError, MeshError, ProgramError, ShardingError, ShardingWarning
from shardwright.jax.batches import _by_process

HELPER = sj.MeshShardingHelper((2, 4), ("x", "y"))
FSDP = sj.FSDPShardingRule("y", min_fsdp_size=16)


def specs(tree):
    return jax.tree.map(lambda x: x.sharding.spec, tree)


# -- one function for each kind of call ---------------------------------------------------------------------------------


def counted(**options):
    """A function of `sjit` and the list of what it was traced for."""
    traced = []

    def fn(x, mode="same"):
        traced.append((x["a"].shape, mode))
        return {"a": x["a"] * 2}

    return HELPER.sjit(fn, in_shardings=(FSDP,), out_shardings=FSDP, static_argnames="mode", **options), traced


def test_every_kind_of_call_is_traced_once_and_has_its_own_shardings():
    jitted, traced = counted()
    small, large, wide = (jnp.ones(shape) for shape in ((2, 4), (8, 16), (3, 32)))
    expected = [
        (small, "same", P()),
        (large, "same", P(None, "y")),
        (wide, "same", P(None, "y")),
        (large, "other", P(None, "y")),
    ]
    for _ in range(3):
        for x, mode, spec in expected:
            result = jitted({"a": x}) if mode == "same" else jitted({"a": x}, mode)
            assert result["a"].sharding == NamedSharding(HELPER.mesh, spec)
            np.testing.assert_array_equal(np.asarray(result["a"]), 2 * np.asarray(x))
    assert traced == [(x.shape, mode) for x, mode, _ in expected]


def test_equal_static_values_of_different_types_are_different():
    kinds = []
    jitted = HELPER.sjit(lambda x, s: kinds.append(type(s)) or x, static_argnums=1)
    for value in (1, True, 1.0, 1, True):
        jitted(jnp.ones(2), value)
    assert kinds == [int, bool, float]


def test_without_rules_jax_alone_keeps_kinds_apart():
    jitted = HELPER.sjit(lambda x: x, in_shardings=(P("x"),), out_shardings=P("x"))
    first = jitted.get_jitted_function_by_args(jnp.ones(2))
    assert jitted.get_jitted_function_by_args(jnp.ones((4, 4), int)) is first
    assert specs(jitted({"a": jnp.ones(4)})) == {"a": P("x")}


def test_keyword_arguments_are_arguments():
    def fn(a, b=2.0, *rest, c=3.0, **more):
        return a + 10 * b + sum(rest) + c + more.get("d", 0)

    jitted = HELPER.sjit(fn, in_shardings=(P("x"), None), args_sharding_constraint=(P("y"), P()))
    a = jnp.arange(4.0)
    for args, kwargs in (
        ((a,), {}), ((a, 1.0), {}), ((a,), {"b": 1.0}), ((), {"b": 1.0, "a": a}), ((a,), {"c": 5.0}), ((a,), {"d": 7.0}),
        ((), {"c": 1.0, "a": a, "d": 1.0}),
    ):  # fmt: skip
        np.testing.assert_allclose(np.asarray(jitted(*args, **kwargs)), np.asarray(fn(*args, **kwargs)))
    assert jitted.get_jitted_function_by_args(a, 1.0) is jitted.get_jitted_function_by_args(b=1.0, a=a)
    nothing = HELPER.sjit(fn, in_shardings=(None, None), args_sharding_constraint=(None, None), out_shardings=None)
    np.testing.assert_allclose(np.asarray(nothing(a)), np.asarray(fn(a)))
    assert jax.eval_shape(jitted, a).shape == jax.jit(jitted)(a).shape == (4,)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        jitted(c=1.0)
    many = HELPER.sjit(lambda *xs: xs[-1](xs[0]), static_argnums=-1, in_shardings=(P("x"), P("y")))
    assert many(jnp.ones(4), jnp.ones(4), jnp.sum) == 4


def test_options_of_jit_reach_it():
    def fn(state, x):
        return jax.tree.map(lambda s: s + x, state)

    for options in ({"donate_argnums": 0}, {"donate_argnames": "state"}, {"donate_argnums": (-2,)}):
        jitted = HELPER.sjit(fn, in_shardings=(P("x"), P()), out_shardings=P("x"), **options)
        state = HELPER.apply_shard_and_gather_fns(
            HELPER.make_shard_and_gather_fns([jnp.ones(4)], P("x"))[0], [jnp.ones(4)]
        )
        for _ in range(3):
            old, state = state, jitted(state, 1.0)
            assert old[0].is_deleted()
        assert state[0].tolist() == [4.0] * 4
    kept = HELPER.sjit(lambda x, unused: x, keep_unused=True).lower(jnp.ones(4), jnp.ones(2))
    assert len(kept.compile().input_shardings[0]) == 2
    assert "arg1" in kept.as_text()
    with pytest.raises(TypeError, match="no_such_option"):
        HELPER.sjit(lambda x: x, no_such_option=1)(1.0)


def test_abstract_arguments_and_ahead_of_time_compilation():
    abstract = {"a": jax.ShapeDtypeStruct((8, 1 << 40), jnp.float32)}
    jitted, _ = counted()
    assert jitted.lower(abstract).out_info["a"].shape == (8, 1 << 40)
    compiled = jitted.lower({"a": jax.ShapeDtypeStruct((8, 16), jnp.float32)}).compile()
    np.testing.assert_array_equal(np.asarray(compiled({"a": jnp.ones((8, 16))})["a"]), np.full((8, 16), 2.0))
    assert compiled.output_shardings["a"].spec == P(None, "y")


def test_errors_of_the_function_come_through():
    def fn(x, fail=False):
        if fail:
            raise KeyError("from the function")
        return x

    jitted = HELPER.sjit(fn, in_shardings=(FSDP,), static_argnums=1)
    jitted(jnp.ones((4, 8)))
    for _ in range(2):
        with pytest.raises(KeyError, match="from the function"):
            jitted(jnp.ones((4, 8)), True)
    np.testing.assert_array_equal(np.asarray(jitted(jnp.ones((4, 8)))), np.ones((4, 8)))
    other = jax.device_put(jnp.ones((4, 8)), NamedSharding(HELPER.mesh, P("x")))
    with pytest.raises(ValueError, match="does not match the sharding on the respective arg"):
        jitted(other)


def test_transformations_of_jax():
    @partial(HELPER.sjit, in_shardings=(FSDP,))
    def fn(x):
        return sj.with_sharding_constraint(jnp.sin(x), P("x")) * 2

    x = jnp.arange(32.0).reshape(4, 8)
    np.testing.assert_allclose(jax.grad(lambda x: fn(x).sum())(x), 2 * np.cos(np.asarray(x)), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: fn(x) + 1)(x), 2 * np.sin(np.asarray(x)) + 1, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(fn)(x[None]), 2 * np.sin(np.asarray(x))[None], rtol=1e-5)


def test_rules_of_derivatives_are_inside_the_mesh():
    @jax.custom_vjp
    def square(x):
        return x * x

    def forward(x):
        return sj.with_sharding_constraint(x * x, P("x")), x

    square.defvjp(forward, lambda x, g: (2 * x * g,))
    np.testing.assert_array_equal(jax.grad(lambda x: HELPER.sjit(square)(x).sum())(jnp.ones(4)), np.full(4, 2.0))


def test_several_threads_use_helpers_at_once():
    results = {}

    def work(number):
        helper = sj.MeshShardingHelper((2, -1), ("a", f"b{number}"))
        jitted = helper.sjit(
            lambda x: sj.with_sharding_annotation(x + 1, "n"), annotation_shardings={"n": P(f"b{number}")}
        )
        for size in (4, 8, 12):
            shared({"a": jnp.ones((size, 16))})
            results[number, size] = jitted(jnp.ones(size)).sharding.spec, sj.get_global_mesh()

    shared, traced = counted()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {(n, size): (P(f"b{n}"), None) for n in range(6) for size in (4, 8, 12)}
    assert {shape for shape, _ in traced} == {(4, 16), (8, 16), (12, 16)}


# -- nothing is silent ------------------------------------------------------------------------------------------------------


def test_annotations_that_nothing_uses_warn_once():
    meanings = {"hidden": P("x"), "hiden": P("y"), "open": None}
    jitted = HELPER.sjit(lambda x: sj.with_sharding_annotation(x, "hidden"), annotation_shardings=meanings)
    with pytest.warns(ShardingWarning, match="names 'hiden', which the function does not use"):
        jitted(jnp.ones(4))
    assert jitted(jnp.ones(8)).sharding.spec == P("x")  # no second warning


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"in_shardings": (P("x"), P("x"))}, r"in_shardings of fn has 2 entries, but the call has 1 arguments"),
        ({"in_shardings": ()}, r"in_shardings of fn has 0 entries, but the call has 1 arguments"),
        ({"args_sharding_constraint": (P(), P())}, r"args_sharding_constraint of fn has 2 entries"),
        (
            {"in_shardings": {"x": P("x")}},
            r"in_shardings of fn: got \{'x': P\('x',\)\}. Give one rule or spec, or a tuple",
        ),
        ({"in_shardings": (P("z"),)}, r"leaf '0': P\('z',\) names axis 'z'; the mesh has only 'x', 'y'"),
        (
            {"in_shardings": (P("y"),)},
            r"splits dim 0 of an array of shape \(6,\) in 4 parts, and 6 is not divisible by 4. JAX only",
        ),
        ({"in_shardings": ("x",)}, r"got 'x'. Give a rule, a jax.P, a sw.P, a NamedSharding, None, or a pytree"),
        ({"in_shardings": ([P(), P()],)}, r"the tree of shardings is not a prefix of the tree of arrays"),
        ({"out_shardings": [FSDP, P()]}, r"out_shardings of fn: the tree of shardings is not a prefix"),
        (
            {"in_shardings": (P("x", "x"),)},
            r"leaf '0': P\('x', 'x'\) has 2 entries, but the array of shape \(6,\) has 1 dim\.",
        ),
        ({"static_argnums": 3}, r"static_argnums: 3 is not an argument of fn\(x\), which has 1"),
        ({"static_argnames": "y"}, r"static_argnames: fn has no argument 'y'; it has x"),
        ({"donate_argnames": "y"}, r"donate_argnames: fn has no argument 'y'"),
        ({"static_argnums": 0}, r"fn: a static argument is a ArrayImpl, which can't be hashed"),
    ],
)
def test_mistakes_in_the_arguments_of_sjit(options, match):
    def fn(x):
        return x

    with pytest.raises((ShardingError, ProgramError), match=match):
        HELPER.sjit(fn, **options)(jnp.ones(6))


def test_an_axis_twice_and_unconstrained_dims():
    with pytest.raises(ShardingError, match=r"match_sharding_rule: P\('x', 'x'\) uses axis 'x' 2 times"):
        HELPER.match_sharding_rule(P("x", "x"), jnp.ones((4, 4)))
    spec = P(P.UNCONSTRAINED, "y")
    assert HELPER.match_sharding_rule(sj.PolicyShardingRule(lambda path, leaf: spec), jnp.ones((3, 4))).spec == spec


def test_shardings_that_are_given_stay():
    own = NamedSharding(HELPER.mesh, P("y"))
    assert HELPER.match_sharding_rule({"a": own}, {"a": [jnp.ones(4), 1, "text"]}) == {"a": [own, own, None]}
    assert HELPER.sjit(lambda x: x, in_shardings=(own,), out_shardings=own)(jnp.ones(4)).sharding == own


# -- meshes -----------------------------------------------------------------------------------------------------------------


def test_sizes_of_axes():
    assert sj.MeshShardingHelper([-1, 2], ["x", "y"]).axis_dims == (4, 2)
    assert repr(sj.MeshShardingHelper([8], ["x"])) == "MeshShardingHelper((8,), ('x',))"
    for dims, match in (
        ((-1, -1), r"axis_dims \(-1, -1\): sizes are positive, and one may be -1"),
        ((0, 8), r"sizes are positive"),
        ((3, -1), r"needs a multiple of 3 devices, but there are 8"),
        ((2, 4, 1), r"axis_dims \(2, 4, 1\) has 3 entries and axis_names \('x', 'y'\) has 2"),
    ):
        with pytest.raises(MeshError, match=match):
            sj.MeshShardingHelper(dims, ("x", "y"))


@pytest.mark.parametrize("splitting", [False, True])
def test_mesh_axis_splitting_reaches_jax(monkeypatch, splitting):
    seen = []

    def create(shape, devices, *, allow_split_physical_axes):
        seen.append((shape, len(devices), allow_split_physical_axes))
        return np.array(devices).reshape(shape)

    monkeypatch.setattr(mesh_utils, "create_device_mesh", create)
    assert sj.MeshShardingHelper((4, 2), ("x", "y"), splitting).mesh.shape == {"x": 4, "y": 2}
    assert seen == [((4, 2), 8, splitting)]


def test_batches_say_what_is_wrong(monkeypatch):
    with pytest.raises(ArrayError, match=r"leaf 'step': batch_axis=0 is not a dim of an array of shape \(\)"):
        HELPER.local_data_to_global_array({"step": 3, "x": np.ones(8)})
    with pytest.raises(ArrayError, match=r"mesh_axis_subset names 'z'; the mesh has only 'x', 'y'"):
        HELPER.local_data_to_global_array(np.ones(8), mesh_axis_subset="z")
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(ArrayError, match=r"process 1 has no device in the mesh, whose processes are \[0\]"):
        HELPER.local_data_to_global_array(np.ones(8))
    uneven = SimpleNamespace(devices=np.array([SimpleNamespace(process_index=number) for number in (0, 0, 1)]))
    with pytest.raises(ArrayError, match=r"have 2, 1 devices in it, and rows must move between them"):
        _by_process(uneven, [0, 1], 0, 4)


def test_batches_on_some_devices_and_along_the_last_dim():
    some = sj.MeshShardingHelper((2, 2), ("x", "y"), devices=jax.devices()[2:6])
    rows = some.local_data_to_global_array({"a": np.arange(8.0)}, mesh_axis_subset=("y", "x"))["a"]
    held = {shard.device.id: np.asarray(shard.data).tolist() for shard in rows.addressable_shards}
    assert held == {2: [0, 1], 3: [4, 5], 4: [2, 3], 5: [6, 7]}
    last = HELPER.local_data_to_global_array(np.arange(16).reshape(2, 8), batch_axis=-1)
    assert last.sharding.spec == P(None, ("x", "y"))


def test_a_batch_does_not_share_memory_with_the_loaders_buffer():
    memory = np.zeros(8 * 4096 + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4  # aligned memory is what JAX would share
    buffer = memory[start : start + 8 * 4096].reshape(8, 4096)
    for subset in (None, "x", ()):
        x = HELPER.local_data_to_global_array(buffer, mesh_axis_subset=subset)
        buffer += 1
        assert float(x.max()) == float(x.min()) == float(buffer[0, 0]) - 1
        y = HELPER.make_shard_and_gather_fns(buffer, P(*[subset][: subset is not None]))[0](buffer)
        buffer += 1
        assert float(y.max()) == float(buffer[0, 0]) - 1


# -- streaming --------------------------------------------------------------------------------------------------------------


class OnDisk:
    """An array that can only be read in parts, and says how large they were."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, []

    def __getitem__(self, index):
        self.read.append(self.array[index].size)
        return self.array[index]


def test_sharding_reads_no_more_than_each_device_holds():
    tree = {
        "w": OnDisk(np.arange(64.0, dtype=np.float32).reshape(8, 8)),
        "b": OnDisk(np.ones(8, np.float32)),
        "name": "mlp",
    }
    rule = sj.TreePathShardingRule(("w", P("x", "y")), ("b", P("y")))
    shard_fns, gather_fns = HELPER.make_shard_and_gather_fns(tree, rule)
    sharded = HELPER.apply_shard_and_gather_fns(shard_fns, tree)
    assert tree["w"].read == [8] * 8
    assert tree["b"].read == [2] * 8
    assert (sharded["w"].sharding.spec, sharded["name"]) == (P("x", "y"), "mlp")
    gathered = HELPER.apply_shard_and_gather_fns(gather_fns, sharded)
    np.testing.assert_array_equal(gathered["w"], tree["w"].array)
    assert gathered["name"] == "mlp"
    again = HELPER.apply_shard_and_gather_fns(shard_fns, {"w": sharded["w"], "b": np.ones(8), "name": "mlp"})
    np.testing.assert_array_equal(np.asarray(again["w"]), tree["w"].array)
    key = jax.random.key(1)
    assert HELPER.make_shard_and_gather_fns(key, P())[1](key).dtype == key.dtype


# -- rules on both sides ----------------------------------------------------------------------------------------------------


def test_rules_of_shardwright_and_of_its_jax_are_the_same():
    tree = {"w": np.ones((8, 16), np.float32), "b": np.ones(8, np.float32)}
    mesh = sw.Mesh(x=2, y=4)
    pairs = (("w", sw.P(None, "y")), ("b", P("x")))
    for module in (sw.rules, sj):
        rule = module.TreePathShardingRule(*pairs)
        here, there = sw.match_sharding_rule(rule, tree, mesh), HELPER.match_sharding_rule(rule, tree)
        assert {name: s.spec for name, s in here.items()} == {"w": sw.P(None, "y"), "b": sw.P("x")}
        assert {name: s.spec for name, s in there.items()} == {"w": P(None, "y"), "b": P("x")}
    assert sj.TreePathShardingRule(*pairs).apply(tree) == {"w": P(None, "y"), "b": P("x")}
    assert (
        sj.FSDPShardingRule("y", min_fsdp_size=1).explain(tree, mesh)["w"]
        == "P(None, 'y'): 16 is the largest dim divisible by 4"
    )

    class Rows(sj.ShardingRule):
        def apply(self, pytree):
            return {name: P("x") for name in pytree}

    assert sw.match_sharding_rule(Rows(), tree, mesh)["w"].spec == sw.P("x", None)
    jitted = sw.sjit(lambda t: t["w"] + t["b"][:, None], mesh=mesh, in_shardings=(Rows(),))
    np.testing.assert_array_equal(np.asarray(jitted(tree)), np.full((8, 16), 2.0))
    with pytest.raises(ShardingError, match=r"has the sub-axis 'y:\(1\)2', and JAX's specs only name whole axes"):
        HELPER.match_sharding_rule(sw.P("y:(1)2"), jnp.ones(4))
    with pytest.raises(ShardingError, match="A rule gave 'x', which is not a spec"):
        HELPER.match_sharding_rule(sj.PolicyShardingRule(lambda path, leaf: "x"), jnp.ones(4))
    with pytest.raises(NotImplementedError, match="defines neither apply"):
        sj.ShardingRule().apply(tree)


def test_an_unused_pattern_warns_once():
    rule = sj.TreePathShardingRule(("kernle", P("x")), ("kernel", P()), ("w", P("y")), strict=False)
    tree = {"kernel": jnp.ones((4, 4)), "b": jnp.ones(3)}
    with pytest.warns(ShardingWarning) as record:
        rule.apply(tree)
    assert [str(w.message).split(";")[0] for w in record] == [
        "The pattern 'kernle' matches no leaf",
        "The pattern 'w' matches no leaf",
    ]
    HELPER.match_sharding_rule(rule, tree)  # no second warning
    with pytest.raises(ShardingError, match="'kernle' matches no leaf"):
        sw.rules.TreePathShardingRule(("kernle", sw.P("x")), (".*", sw.P())).apply(tree)


def test_sizes_given_to_fsdp_rules_are_used():
    tree = {"w": jnp.ones((6, 8)), "key": jax.random.key(0), "small": jnp.ones((2, 4), jnp.int4)}
    rule = sj.FSDPShardingRule("x", 4, min_fsdp_size=1)  # the axis has 2
    assert jax.tree.map(lambda s: s.spec, HELPER.match_sharding_rule(rule, tree)) == {
        "w": P(None, "x"),
        "key": P(),
        "small": P(),
    }
    with pytest.raises(ShardingError, match=r"splits along axis 'fsdp'; .* has only 'x', 'y'"):
        HELPER.match_sharding_rule(sj.FSDPShardingRule(min_fsdp_size=1), tree)


def test_constraints_of_a_derivative_rule_that_is_traced_beside_the_function_have_its_mesh():
    @jax.custom_vjp
    def square(x):
        return sj.with_sharding_constraint(x * x, P("x"))

    square.defvjp(lambda x: (sj.with_sharding_constraint(x * x, P("x")), x), lambda x, g: (2 * x * g,))
    total = HELPER.sjit(lambda x: square(x).sum())
    x = jnp.arange(8.0)
    for _ in range(2):
        np.testing.assert_array_equal(jax.grad(total)(x), 2 * x)
        assert total(x) == 140
