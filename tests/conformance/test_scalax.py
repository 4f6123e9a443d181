"""`shardwright.jax` against scalax in the same process: equal where scalax is right, corrected where it is not."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scalax.sharding as theirs
import scalax.utils as their_utils
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright.jax as ours
from shardwright.errors import ArrayError, MeshError, ShardingError, ShardingWarning

BOTH = pytest.mark.parametrize("module", [ours, theirs], ids=["ours", "scalax"])
SHAPE = jax.ShapeDtypeStruct


def helper_of(module, dims=(2, 4), names=("x", "y")):
    return module.MeshShardingHelper(dims, names)


def parameters():
    """A tree with every kind of node that flax and optax make."""

    def layer():
        return {"attn": {"kernel": jnp.ones((16, 32)), "bias": jnp.ones(32)}, "norm": {"scale": jnp.ones(16)}}

    def init():
        odd, scalar = [jnp.ones((7, 9)), jnp.ones((1, 1))], jnp.float32(1)
        params = {"embed": jnp.ones((64, 16)), "layers_0": layer(), "layers_11": layer(), "odd": odd, "scalar": scalar}
        return TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))

    return jax.eval_shape(init)


def equal(a, b):
    assert jax.tree_util.tree_structure(a) == jax.tree_util.tree_structure(b)
    assert jax.tree_util.tree_leaves(a) == jax.tree_util.tree_leaves(b)


# -- the same -----------------------------------------------------------------------------------------------------------


def test_every_name_is_there():
    public = {name for name in vars(theirs) if name[0].isupper() or name.startswith(("get_", "with_"))}
    public -= {"List", "Union", "Optional", "Mapping", "Callable", "ClassVar"}
    assert public >= {"MeshShardingHelper", "SJITCompiledFunction", "get_global_mesh", "PartitionSpec"}
    assert public <= set(ours.__all__)
    for name in {name for name in dir(theirs.MeshShardingHelper) if not name.startswith("_")}:
        assert hasattr(ours.MeshShardingHelper, name)
    for name in {name for name in dir(theirs.SJITCompiledFunction) if not name.startswith("_")} - {"call_fn"}:
        assert hasattr(ours.SJITCompiledFunction, name)
    for name, value in vars(their_utils).items():
        if getattr(value, "__module__", "") == "scalax.utils":
            assert hasattr(ours.utils, name)


PATTERNS = {
    "names": ((".*embed", P("x", "y")), ("attn/kernel", P(None, "y")), (".*", P())),
    "digits": (
        ("layers_0/.*kernel", P("x")),
        (r"layers_1\d/attn/kernel", P("y")),
        ("layers_[0-4]", P(None)),
        ("", P()),
    ),
    "first of several": (("kernel", P("x")), ("attn", P("y")), ("mu|nu", P("x")), ("^params", P()), ("$", P())),
    "group": ((r"(\d)\1", P("x")), (r"(?P<a>n)o(?P=a)*rm", P("y")), ("", P())),
    "anchored": (("^opt_state/0/(mu|nu)/embed", P("y", "x")), ("bias$", P("x")), ("odd/0", P()), ("", P(None))),
}


@pytest.mark.filterwarnings("ignore::shardwright.errors.ShardingWarning")
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_choose_alike(name):
    tree = parameters()
    equal(
        ours.TreePathShardingRule(*PATTERNS[name]).apply(tree), theirs.TreePathShardingRule(*PATTERNS[name]).apply(tree)
    )


@pytest.mark.parametrize("rules", [(("attn/kernel", P("x", "y")),), ()])
def test_leaves_that_no_pattern_matches(rules):
    tree = {"attn": {"kernel": jnp.ones((4, 4))}, "other": jnp.ones(3)}
    for module in (ours, theirs):
        with pytest.raises(ValueError, match="other"):
            module.TreePathShardingRule(*rules).apply({"other": tree["other"]} if not rules else tree)
    equal(*(module.TreePathShardingRule(*rules, strict=False).apply(tree) for module in (ours, theirs)))


@pytest.mark.parametrize("size", [None, 1, 2, 4, 3])
@pytest.mark.parametrize("least", [1, 64, 1024])
def test_fsdp_chooses_alike(size, least):
    shapes = [(), (1,), (64,), (8, 64), (64, 8), (12, 36), (36, 12), (16, 16), (2, 3, 32), (9, 6), (0, 4), (48, 48, 2)]
    tree = [SHAPE(shape, np.float32) for shape in shapes]
    rules = [module.FSDPShardingRule("fsdp", size, least) for module in (ours, theirs)]
    equal(*(rule.apply(tree) for rule in rules))


def test_policies_see_alike():
    seen, tree = {}, parameters()
    for module in (ours, theirs):
        found = seen[module] = []

        def policy(path, leaf, found=found):
            found.append((path, leaf.shape, leaf.dtype))
            return P("x") if leaf.ndim else P()

        seen[module, "result"] = module.PolicyShardingRule(policy).apply(tree)
    assert seen[ours] == seen[theirs]
    equal(seen[ours, "result"], seen[theirs, "result"])


def test_match_sharding_rule_gives_the_same():
    rule = {"a": "rule", "b": P("x"), "c": [P(), P("y")]}
    tree = {
        "a": {"kernel": jnp.ones((8, 8)), "bias": jnp.ones(8)},
        "b": {"w": jnp.ones(4)},
        "c": [jnp.ones(2), jnp.ones(4)],
    }
    found = []
    for module in (ours, theirs):
        rules = {**rule, "a": module.TreePathShardingRule(("kernel", P("x", "y")), ("bias", P("y")))}
        found.append(helper_of(module).match_sharding_rule(rules, tree))
    equal(*found)


@BOTH
def test_one_program(module):
    """What scalax can do in one function; its results are compared with plain jax."""
    helper = helper_of(module)
    rule = module.TreePathShardingRule(("w", P("x", "y")), ("b", P("y")))

    @partial(
        helper.sjit,
        in_shardings=[rule, P("x")],
        out_shardings=(rule, P()),
        args_sharding_constraint=[rule, P(("x", "y"))],
        annotation_shardings={"hidden": P("x", "y")},
        donate_argnums=(0,),
    )
    def step(params, x):
        assert module.get_global_mesh_helper() is helper
        assert module.get_global_mesh() is helper.mesh
        assert module.get_global_annotation_shardings() == {"hidden": P("x", "y")}
        hidden = module.with_sharding_annotation(x @ params["w"], "hidden")
        hidden = module.with_sharding_constraint(hidden, P("x", "y")) + params["b"]
        return jax.tree.map(lambda p: p * 2, params), jnp.sum(hidden)

    def params():
        return {"w": jnp.arange(32.0).reshape(4, 8), "b": jnp.ones(8)}

    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    new, total = step(params(), x)
    assert float(total) == float((x @ np.arange(32.0).reshape(4, 8) + 1).sum())
    assert new["w"].sharding == NamedSharding(helper.mesh, P("x", "y"))
    assert new["b"].sharding == NamedSharding(helper.mesh, P("y"))
    assert step.lower(params(), x).compile()(params(), x)[1] == total
    assert step.get_jitted_function_by_args(params(), x)(params(), x)[1] == total
    assert module.get_global_mesh() is None


@BOTH
@pytest.mark.parametrize("subset", [None, "x", ("y",), ("x", "y"), ("y", "x")])
@pytest.mark.parametrize("axis", [0, 1])
def test_batches(module, subset, axis):
    helper = helper_of(module)
    data = {"a": np.arange(256).reshape(16, 16), "b": jnp.arange(256.0).reshape(16, 16)}
    result = helper.local_data_to_global_array(data, axis, subset)
    named = ("x", "y") if subset is None else subset
    for name, array in data.items():
        np.testing.assert_array_equal(np.asarray(result[name]), np.asarray(array))
        assert result[name].sharding == NamedSharding(helper.mesh, P(*[None] * axis, named))


@BOTH
def test_shard_and_gather(module):
    helper = helper_of(module)
    tree = {"kernel": np.arange(64.0, dtype=np.float32).reshape(8, 8), "bias": np.ones(8, np.float32)}
    rule = module.TreePathShardingRule(("kernel", P("x", "y")), ("bias", P()))
    shard_fns, gather_fns = helper.make_shard_and_gather_fns(tree, rule)
    sharded = helper.apply_shard_and_gather_fns(shard_fns, tree)
    assert sharded["kernel"].sharding == NamedSharding(helper.mesh, P("x", "y"))
    gathered = helper.apply_shard_and_gather_fns(gather_fns, sharded)
    assert all(type(array) is np.ndarray for array in gathered.values())
    jax.tree.map(np.testing.assert_array_equal, gathered, tree)


@BOTH
def test_contexts(module):
    helper, other = helper_of(module), helper_of(module, (8,), ("z",))
    with helper.get_context(annotation_shardings={"a": P("x")}) as context:
        assert module.MeshShardingContext.get_global_context() is context
        with other.get_context():
            assert module.MeshShardingHelper.get_global_mesh() == other.mesh
            assert module.get_global_annotation_shardings() is None
        x = module.with_sharding_annotation(jnp.ones(8), "a")
        assert x.sharding == NamedSharding(helper.mesh, P("x"))
    assert module.get_global_mesh_helper() is None
    assert module.MeshShardingContext.get_global_context() is None


@BOTH
def test_a_rule_may_define_apply_alone(module):
    class LastDim(module.ShardingRule):
        def apply(self, pytree):
            return jax.tree.map(lambda x: P(*[None] * (x.ndim - 1), "y"), pytree)

    helper = helper_of(module)
    tree = {"a": jnp.ones((3, 8)), "b": jnp.ones(4)}
    found = helper.match_sharding_rule(LastDim(), tree)
    assert {name: sharding.spec for name, sharding in found.items()} == {"a": P(None, "y"), "b": P("y")}
    out = helper.sjit(lambda t: t, out_shardings=LastDim())(tree)
    assert out["a"].sharding.spec == P(None, "y")


def test_utilities_agree(capsys):
    a, b = (module.JaxRNG.from_seed(3) for module in (ours.utils, their_utils))
    for keys in (None, 3, ["params", "dropout"], None):
        jax.tree.map(np.testing.assert_array_equal, a(keys), b(keys))
    tree = parameters()
    arrays = {"a": np.ones(3, np.float32), "b": np.ones(2, np.int8), "c": 1.5}
    for dtype in (None, "bf16", jnp.float16):
        results = [m.float_to_dtype(arrays, dtype) for m in (ours.utils, their_utils)]
        equal(*(jax.tree.map(lambda x: str(getattr(x, "dtype", x)), result) for result in results))
    for sep in (None, "/", "."):
        assert list(ours.utils.flatten_tree(tree, sep=sep)) == list(their_utils.flatten_tree(tree, sep=sep))
    printed = []
    for module in (ours.utils, their_utils):
        module.print_pytree_structure({"state": tree, "name": "model"})
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    named = [
        m.named_tree_map(lambda path, x, y: (path, x + y), {"a": [1, 2]}, {"a": [3, 4]}, sep="/")
        for m in (ours.utils, their_utils)
    ]
    assert named[0] == named[1] == {"a": [("a/0", 4), ("a/1", 6)]}


# -- scalax's ten bugs: ours has none ---------------------------------------------------------------------------------------


def test_1_static_arguments_in_any_order():
    def fn(a, b, x):
        return a - b + x

    def run(module):
        jitted = helper_of(module).sjit(fn, static_argnums=(1, 0), args_sharding_constraint=(P("x"),))
        return np.asarray(jitted(10.0, 1.0, jnp.zeros(4)))

    np.testing.assert_array_equal(run(ours), np.full(4, 9.0))
    assert not np.array_equal(run(theirs), np.full(4, 9.0))  # the arguments are permuted


def test_2_rules_are_resolved_for_the_arguments_at_hand():
    def spec_of_second(module, small, large):
        rule = module.FSDPShardingRule("y", 4, min_fsdp_size=64)
        jitted = helper_of(module).sjit(
            lambda t: jax.tree.map(lambda x: x + 1, t), in_shardings=(rule,), out_shardings=rule
        )
        jitted(small)
        return jax.tree.map(lambda x: x.sharding.spec, jitted(large))

    assert spec_of_second(ours, jnp.ones((4, 4)), jnp.ones((64, 64))) == P("y", None)
    assert spec_of_second(theirs, jnp.ones((4, 4)), jnp.ones((64, 64))) == P()  # silently replicated
    assert spec_of_second(ours, {"a": jnp.ones((8, 16))}, jnp.ones((16, 8))) == P("y", None)
    with pytest.raises(ValueError, match="structure"):
        spec_of_second(theirs, {"a": jnp.ones((8, 16))}, jnp.ones((16, 8)))


def test_3_none_for_one_argument_leaves_it_to_xla():
    def run(module):
        jitted = helper_of(module).sjit(
            lambda state, x: (state, x * 2), in_shardings=(None, P("x")), out_shardings=(None, P("x")),
            args_sharding_constraint=(None, P("y")),
        )  # fmt: skip
        return jitted({"w": jnp.ones(3)}, jnp.ones(8))

    assert run(ours)[1].sharding.spec == P("x")
    with pytest.raises(TypeError):
        run(theirs)


def test_4_keyword_arguments_and_all_kinds_of_statics():
    def fn(x, mode, *, scale=1.0):
        return x * scale if mode == "scale" else x

    helper = helper_of(ours)
    for static in (1, -1, (1,), [-1]):
        jitted = helper.sjit(fn, in_shardings=(P("x"),), out_shardings=P("x"), static_argnums=static)
        for result in (jitted(jnp.ones(4), "scale", scale=3.0), jitted(mode="scale", scale=3.0, x=jnp.ones(4))):
            np.testing.assert_array_equal(np.asarray(result), np.full(4, 3.0))
        np.testing.assert_array_equal(np.asarray(jitted(jnp.ones(4), "same")), np.ones(4))
    for names in ("mode", ("mode",)):
        jitted = helper.sjit(fn, in_shardings=(P("x"),), static_argnames=names)
        np.testing.assert_array_equal(np.asarray(jitted(jnp.ones(4), mode="scale", scale=2.0)), np.full(4, 2.0))
    peer = helper_of(theirs)
    for options in ({"static_argnums": 1}, {"static_argnums": (1,), "out_shardings": P("x")}):
        with pytest.raises(TypeError):
            peer.sjit(lambda x, mode: x, **options)(jnp.ones(4), "scale")


def test_5_functions_keep_their_names_and_methods_bind():
    class Model:
        def __init__(self, module):
            self.factor = 3.0
            self.module = module

        def double(self, x):
            """Doubles."""
            return x * self.factor

    def bound(module):
        kind = type(
            "Bound",
            (Model,),
            {"double": helper_of(module).sjit(Model.double, in_shardings=(P("x"),), static_argnums=(0,))},
        )
        return kind(module).double

    np.testing.assert_array_equal(np.asarray(bound(ours)(jnp.ones(4))), np.full(4, 3.0))
    np.testing.assert_array_equal(np.asarray(bound(ours).lower(jnp.ones(4)).compile()(jnp.ones(4))), np.full(4, 3.0))
    assert (bound(ours).__name__, bound(ours).__doc__) == ("double", "Doubles.")
    with pytest.raises((TypeError, IndexError)):
        bound(theirs)(jnp.ones(4))


def test_6_names_and_constraints_without_a_meaning_are_errors():
    def annotated(module, **options):
        return helper_of(module).sjit(lambda x: module.with_sharding_annotation(x, "hiden"), **options)(jnp.ones(8))

    for options in ({}, {"annotation_shardings": {"hidden": P("x")}}):
        annotated(theirs, **options)
        with pytest.raises(
            ShardingError, match=r"'hiden' is not in annotation_shardings: (there are none|it has 'hidden')"
        ):
            annotated(ours, **options)
    assert annotated(ours, annotation_shardings={"hiden": None}).shape == (8,)  # the explicit ways
    with ours.optional_shardings():
        assert annotated(ours).shape == (8,)
        assert ours.with_sharding_constraint(jnp.ones(8), P("x")).shape == (8,)
    theirs.with_sharding_constraint(jnp.ones(8), P("x"))
    with pytest.raises(ShardingError, match="there is no mesh"):
        ours.with_sharding_constraint(jnp.ones(8), P("x"))


def test_7_long_specs_and_leaves_that_are_not_arrays():
    tree = {"a": jnp.ones(8), "n": 3, "name": "mlp"}
    helper = helper_of(ours)
    with pytest.raises(
        ShardingError, match=r"leaf 'a': P\('x', 'y'\) has 2 entries, but the array of shape \(8,\) has 1 dim"
    ):
        helper.match_sharding_rule(P("x", "y"), {"a": tree["a"]})
    assert helper_of(theirs).match_sharding_rule(P("x", "y"), tree)["a"].spec == P("x", "y")  # unchecked
    for name in ("TreePathShardingRule", "FSDPShardingRule"):
        rules = [getattr(m, name)(*([("", P("x"))] if name[0] == "T" else ["x", 2, 1])) for m in (ours, theirs)]
        found = helper.match_sharding_rule(rules[0], tree)
        assert (found["a"].spec, found["n"].spec, found["name"]) == (P("x"), P(), None)
        with pytest.raises(AttributeError):
            rules[1].apply(tree)


def test_8_fsdp_divides_and_splits_floats_only():
    tree = {"w": SHAPE((3, 6), np.float32), "odd": SHAPE((5, 7), np.float32), "ids": SHAPE((8, 8), np.int32)}
    mine, peer = (m.FSDPShardingRule("y", min_fsdp_size=1) for m in (ours, theirs))
    found = helper_of(ours).match_sharding_rule(mine, tree)
    assert {name: sharding.spec for name, sharding in found.items()} == {"w": P(), "odd": P(), "ids": P()}
    assert peer.apply(tree) == {"w": P(None, "y"), "odd": P("y", None), "ids": P("y", None)}  # 6, 5 rows over 4 devices
    with pytest.raises(
        ShardingError, match=r"splits dim 0 of an array of shape \(6,\) in 4 parts, and 6 is not divisible"
    ):
        helper_of(ours).match_sharding_rule(P("y"), jnp.ones(6))


def test_9_meshes_on_some_devices_and_sizes_that_are_left_out():
    some = ours.MeshShardingHelper((2, -1), ("x", "y"), devices=jax.devices()[2:6])
    assert some.axis_dims == (2, 2)
    assert set(some.mesh.devices.flat) == set(jax.devices()[2:6])
    result = some.sjit(lambda x: x + 1, in_shardings=(P("x"),), out_shardings=P("x", "y"))(np.zeros((2, 2), np.float32))
    assert result.sharding.device_set == set(jax.devices()[2:6])
    assert ours.MeshShardingHelper((2, -1), ("x", "y")).axis_dims == (2, 4)
    assert theirs.MeshShardingHelper((2, -1), ("x", "y")).axis_dims == (2, -1)
    with pytest.raises(MeshError, match=r"needs 4 devices, but there are 8"):
        ours.MeshShardingHelper((2, 2), ("x", "y"))
    with pytest.raises(ArrayError, match=r"leaf 'a': 6 rows are not divisible by the 4 parts along y"):
        helper_of(ours).local_data_to_global_array({"a": np.ones((6, 2))}, mesh_axis_subset="y")
    rows = helper_of(ours).local_data_to_global_array(np.arange(4), mesh_axis_subset="x")  # fewer rows than devices
    np.testing.assert_array_equal(np.asarray(rows), np.arange(4))
    with pytest.raises(ValueError, match="equal division"):
        helper_of(theirs).local_data_to_global_array(np.arange(4), mesh_axis_subset="x")


def test_10_threads_have_contexts_of_their_own():
    def seen_by_thread(module):
        seen = []
        with helper_of(module).get_context():
            thread = threading.Thread(target=lambda: seen.append(module.get_global_mesh()))
            thread.start()
            thread.join()
        return seen[0]

    assert seen_by_thread(ours) is None
    assert seen_by_thread(theirs) is not None


def test_10_rows_keep_their_order_on_a_mesh_that_permutes_devices():
    def rows(module):
        helper = helper_of(module, (8,), ("x",))
        helper._mesh = jax.sharding.Mesh(np.array(jax.devices())[[3, 1, 0, 2, 7, 5, 6, 4]], ("x",))
        return np.asarray(helper.local_data_to_global_array(np.arange(16)))

    np.testing.assert_array_equal(rows(ours), np.arange(16))
    assert not np.array_equal(rows(theirs), np.arange(16))


def test_a_constraint_that_does_not_divide_warns():
    with pytest.warns(
        ShardingWarning, match=r"splits dim 0 .* in 4 parts, and 6 is not divisible by 4. JAX leaves the dim whole"
    ):
        result = helper_of(ours).sjit(lambda x: ours.with_sharding_constraint(x, P("y")))(jnp.ones(6))
    assert result.sharding.spec == P()
