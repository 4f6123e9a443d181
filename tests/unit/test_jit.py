"""sjit: what it accepts, what it keeps, what it refuses; rules; annotations; the errors of a peer that ours must not have."""

import copy
import dataclasses
import functools
import gc
import threading
import weakref

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P, nn
from shardwright.errors import ArrayError, ProgramError, ShardingError, TraceError
from shardwright.rules import FSDPShardingRule, PolicyShardingRule, TreePathShardingRule

MESH = sw.Mesh(data=2, model=4)
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((8, 4)), RNG.standard_normal((4, 12))


def linear(x, w):
    """x times w."""
    return x @ w


# -- calls ----------------------------------------------------------------------------------------------------------------


def test_host_tensors_are_laid_out_as_asked_and_results_too():
    step = sw.sjit(linear, mesh=MESH, in_shardings=(P("data"), P(None, "model")), out_shardings=P("data"))
    y = step(X, W)
    assert y.sharding == sw.Sharding(MESH, P("data", None))
    np.testing.assert_allclose(np.asarray(y), X @ W)
    assert (step.__name__, step.__doc__, step.cache_size()) == ("linear", "x times w.", 1)


def test_what_is_not_said_is_inferred():
    step = sw.sjit(linear, mesh=MESH, in_shardings=(None, P(None, "model")))
    program = step.lower(X, W).program
    assert [str(node.type) for node in program.inputs] == ["f64[8,4]", "f64[4,12@model]"]
    assert step(X, W).sharding.spec == P(None, "model")
    x = sw.shard(X, MESH, P("data"))
    assert step(x, W).sharding.spec == P("data", "model")  # an array lies where it lies


def test_open_inputs_get_what_flows_back_to_them():
    step = sw.sjit(lambda x: snp.tanh(x), mesh=MESH, out_shardings=P("model"))
    lowered = step.lower(X)
    assert [node.type.sharding.spec for node in lowered.program.inputs] == [P(None, None)]
    inner = sw.sjit(lambda x: sw.with_sharding_constraint(snp.tanh(x), P("model")), mesh=MESH).lower(X)
    assert [node.type.sharding.spec for node in inner.program.inputs] == [P("model", None)]


def test_trees_keywords_numbers_and_none():
    def fn(tree, *, scale=1.0, extra=None, name="a"):
        out = {"y": tree["x"][0] * scale, "name": name, "none": extra, "n": 3}
        return out if extra is None else {**out, "extra": extra + 1}

    step = sw.sjit(fn, mesh=MESH)
    made = step({"x": [X, None]}, scale=2.0)
    assert_same(made["y"], X * 2)
    assert (made["name"], made["none"], made["n"]) == ("a", None, 3)
    assert_same(step({"x": [X]}, scale=3.0, extra=X)["extra"], X + 1)
    assert step.cache_size() == 2
    step({"x": [X, None]}, scale=2.0)
    assert step.cache_size() == 2


def test_static_arguments_in_every_form():
    def fn(x, times, function=np.tanh, *, mode="add"):
        y = function(x) if callable(function) else x
        return y + times if mode == "add" else y * times

    expected = np.tanh(X) + 3
    for options in (
        {"static_argnums": 1},
        {"static_argnums": (2, 1)},
        {"static_argnums": -2},
        {"static_argnames": "times"},
        {"static_argnames": ("mode", "function")},
    ):
        step = sw.sjit(fn, mesh=MESH, **options)
        np.testing.assert_allclose(np.asarray(step(X, 3, np.tanh, mode="add")), expected)
        np.testing.assert_allclose(np.asarray(step(X, times=3)), expected)
    with pytest.raises(
        ProgramError, match=r"static_argnums: 7 is no argument of fn\(x, times, function\), which has 3"
    ):
        sw.sjit(fn, static_argnums=7)
    with pytest.raises(ProgramError, match="static_argnames: fn has no parameter 'tims'"):
        sw.sjit(fn, static_argnames="tims")
    with pytest.raises(ProgramError, match="static argument 'times' is a list, which can't be hashed"):
        sw.sjit(fn, mesh=MESH, static_argnums=1)(X, [3])


def test_the_key_is_everything_that_matters():
    step = sw.sjit(lambda x, n=1: x * n)
    x = sw.shard(X, MESH, P("data"))
    calls = [
        (x,), (x.reshard(P("model")),), (sw.shard(X.astype(np.float32), MESH, P("data")),),
        (sw.shard(X[:4], MESH, P("data")),), (x, 2), (x, 2.0), (x, True),
    ]  # fmt: skip
    for number, args in enumerate(calls, 1):
        made = step(*args)
        assert step.cache_size() == number
        assert_same(made, np.asarray(args[0]) * (args[1] if len(args) > 1 else 1))
    with sw.auto_sharding(lambda shape, mesh: P()):
        step(x)
    assert step.cache_size() == len(calls) + 1


def test_methods_bind_and_each_object_has_its_own():
    class Layer:
        def __init__(self, w):
            self.w = w

        @sw.sjit
        def forward(self, x):
            """Forward."""
            return x @ self.w

    one, other = Layer(sw.shard(W, MESH, P())), Layer(sw.shard(2 * W, MESH, P()))
    x = sw.shard(X, MESH, P("data"))
    np.testing.assert_allclose(np.asarray(one.forward(x)), X @ W)
    np.testing.assert_allclose(np.asarray(other.forward(x)), X @ W * 2)
    assert one.forward.__name__ == "forward"
    assert one.forward.__doc__ == "Forward."
    assert one.forward.cache_size() == 1


def test_captured_arrays_are_read_anew():
    w = sw.shard(np.ones((8, 4)), MESH, P("data"))
    step = sw.sjit(lambda x: x + w)
    x = sw.shard(X, MESH, P("data"))
    assert_same(step(x), X + 1)
    w += 1
    assert_same(step(x), X + 2)


def test_programs_nest():
    inner = sw.sjit(lambda x: snp.tanh(x) + 1)
    outer = sw.sjit(lambda x: inner(x) * 2)
    np.testing.assert_allclose(np.asarray(outer(sw.shard(X, MESH, P("data")))), (np.tanh(X) + 1) * 2)
    assert inner.cache_size() == 0


def test_donated_arrays_are_gone():
    x = sw.shard(X, MESH, P("data"))
    y = sw.sjit(lambda x, y: x + y, donate_argnums=0)(x, x.again())
    assert_same(y, X + X)
    with pytest.raises(ArrayError, match=r"was donated as argument 0 of <lambda>: its memory is no longer its own"):
        np.asarray(x)


def test_a_decorator_with_and_without_arguments():
    @sw.sjit(mesh=MESH, in_shardings=P("data"))
    def double(x):
        return x * 2

    assert double(X).sharding.spec == P("data", None)


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_values_are_not_known_while_tracing():
    x = sw.shard(X, MESH, P("data"))
    with pytest.raises(
        TraceError, match=r"not known while the program is traced .* use sw.cond, sw.while_loop or sw.scan"
    ):
        sw.sjit(lambda x: x if snp.sum(x) > 0 else -x)(x)
    with pytest.raises(TraceError, match=r"test_jit.py:\d+"):
        sw.sjit(lambda x: np.asarray(x))(x)
    with pytest.raises(sw.errors.OperationError, match="data-dependent shape"):
        sw.sjit(lambda x: snp.unique_values(x))(x)
    with pytest.raises(TraceError, match="all_reduce on an array while a program is traced"):
        sw.sjit(lambda x: sw.collectives.all_reduce(x, "data"))(x)


def test_programs_need_a_mesh_and_one_only():
    with pytest.raises(ProgramError, match="no argument is an Array, and no mesh is given"):
        sw.sjit(linear)(X, W)
    with MESH:
        assert sw.sjit(linear)(X, W).mesh == MESH
    other = sw.shard(W, sw.Mesh(x=2), P())
    with pytest.raises(sw.ShardwrightError, match=r"another mesh|different meshes"):
        sw.sjit(lambda x: x @ other)(sw.shard(X, MESH, P()))
    with pytest.raises(ProgramError, match=r"in_shardings has 3 entries for 2 arguments, 2 of them not static"):
        sw.sjit(linear, mesh=MESH, in_shardings=(P(), P(), P()))(X, W)
    with pytest.raises(ShardingError, match=r"out_shardings: .* has 3 entries, but the tensor of shape \(8, 12\)"):
        sw.sjit(linear, mesh=MESH, out_shardings=P(None, None, "data"))(X, W)
    with pytest.raises(ProgramError, match="explain traces what a function does with its arguments"):
        sw.explain(lambda: 1)


def test_arguments_that_the_function_does_not_take_are_named_before_their_shardings():
    step = sw.sjit(linear, mesh=MESH, in_shardings=(P("data"), P()))
    for args, message in (((X,), "missing a required argument: 'w'"), ((X, W, W), "too many positional arguments")):
        with pytest.raises(TypeError, match=rf"linear\(x, w\): {message}"):
            step(*args)


@pytest.mark.parametrize(
    ("x", "what"),
    [([1.0, 2.0, 3.0], "3 Python numbers in a list"), (2.0, "a Python number"), ({"a": 1}, "a Python number")],
)
def test_numbers_where_an_array_is_to_be_split_are_refused(x, what):
    """A list would be a tree of static numbers, and its entry of in_shardings would be ignored."""
    with pytest.raises(ProgramError, match=rf"argument 0: P\('data'\) splits an array; got {what}, and these are"):
        sw.sjit(lambda x, w: w, mesh=MESH, in_shardings=(P("data"), None))(x, W)
    assert sw.sjit(lambda x, w: w, mesh=MESH, in_shardings=(None, P("data")))(x, W).shape == W.shape
    assert sw.sjit(lambda x, w: w, mesh=MESH, in_shardings=P("data"))(x, W).sharding.spec == P("data", None)


def test_lists_of_numbers_are_no_arrays_for_constraints_and_parts_of_a_batch():
    with (
        MESH,
        pytest.raises(ArrayError, match="none of the 4 leaves is an array or a tensor; lists of numbers are trees"),
    ):
        sw.with_sharding_constraint([1, 2, 3, 4], P("data"))
    with pytest.raises(
        ArrayError, match=r"batch_dim=0 is not a dim of a part of shape \(\)\. A number has none, and a list"
    ):
        sw.from_process_local([[1, 2], [3, 4]], MESH)
    with MESH:
        mixed = sw.with_sharding_constraint({"w": np.ones(4), "heads": 4}, P("data"))
        assert (mixed["w"].sharding.spec, mixed["heads"]) == (P("data"), 4)


def test_strict_programs_refuse_gathers():
    x = sw.shard(np.ones((8, 8)), MESH, P("data"))
    step = sw.sjit(lambda x: snp.linalg.det(x))
    step(x)
    with sw.strict(), pytest.raises(sw.ImplicitGatherError, match=r"det gathers dim 0 .*test_jit.py:\d+"):
        step(x)


# -- constraints and annotations --------------------------------------------------------------------------------------------


def test_constraints_inside_and_outside():
    x = sw.shard(X, MESH, P("data"))
    assert sw.with_sharding_constraint([x], P("model"))[0].sharding.spec == P("model", None)
    with pytest.raises(ArrayError, match="the tree has no Array, and there is no mesh"):
        sw.with_sharding_constraint(X, P("model"))
    with MESH:
        assert sw.with_sharding_constraint(X, P("model")).sharding.spec == P("model", None)
    step = sw.sjit(lambda x: sw.with_sharding_constraint({"a": x * 2}, {"a": P(None, "model")}))
    assert step(x)["a"].sharding.spec == P(None, "model")
    both = sw.sjit(lambda x: x, in_shardings=P("data"), args_sharding_constraint=P("model"), mesh=MESH)
    assert both(X).sharding.spec == P("model", None)
    assert [row.collective.split()[0] for row in both.lower(X).explain().rows] == ["exchange"]


def test_annotations_are_bound_at_jit_time():
    def fn(x):
        return sw.with_sharding_annotation(snp.tanh(x), "hidden") + 1

    x = sw.shard(X, MESH, P("data"))
    assert sw.sjit(fn, annotation_shardings={"hidden": P("model")})(x).sharding.spec == P("model", None)
    assert sw.sjit(fn, annotation_shardings={"hidden": None})(x).sharding.spec == P("data", None)
    with pytest.raises(ProgramError, match=r"names 'hiden', which the function never uses; it uses 'hidden'"):
        sw.sjit(fn, annotation_shardings={"hidden": P(), "hiden": P()})(x)
    with pytest.raises(ProgramError, match=r"uses the annotation 'hidden', but annotation_shardings has 'hiden'"):
        sw.sjit(fn, annotation_shardings={"hiden": P()})(x)
    with pytest.raises(TraceError, match="The annotation 'hidden' stands outside of sjit"):
        fn(x)


# -- rules ----------------------------------------------------------------------------------------------------------------


def test_fsdp_takes_the_largest_dim_that_divides_and_says_why():
    rule = FSDPShardingRule("model", min_fsdp_size=16)
    tree = {
        "w": np.ones((6, 8), np.float32),
        "odd": np.ones((5, 7), np.float32),
        "small": np.ones(3, np.float32),
        "ids": np.ones((8, 8), np.int64),
        "tie": np.ones((8, 8), np.float16),
        "scalar": np.float32(1),
    }
    made = sw.match_sharding_rule(rule, tree, MESH)
    assert {name: sharding.spec for name, sharding in made.items()} == {
        "w": P(None, "model"), "odd": P(None, None), "small": P(None), "ids": P(None, None),
        "tie": P("model", None), "scalar": P(),
    }  # fmt: skip
    why = rule.explain(tree, MESH)
    assert why["w"] == "P(None, 'model'): 8 is the largest dim divisible by 4"
    assert why["odd"] == "P(): no dim of (5, 7) is divisible by 4"
    assert why["small"] == "P(): 3 elements are fewer than min_fsdp_size=16"
    assert why["ids"] == "P(): int64 is not a float dtype"
    assert FSDPShardingRule("model", min_fsdp_size=1).apply(np.ones((6, 8))) == P(None, "model")
    with pytest.raises(ShardingError, match=r"splits along axis 'fsdp'; .* has only 'data', 'model'"):
        sw.match_sharding_rule(FSDPShardingRule(min_fsdp_size=1), tree, MESH)
    with pytest.raises(ShardingError, match=r"made for an axis of size 8, but 'model' .* has 4"):
        sw.match_sharding_rule(FSDPShardingRule("model", 8, 1), tree, MESH)


def test_paths_choose_and_mistakes_are_listed():
    tree = {"dense": {"kernel": np.ones((4, 8)), "bias": np.ones(8)}, "scale": np.ones(1)}
    rule = TreePathShardingRule(("kernel$", P(None, "model")), ("bias", P("model")))
    made = sw.match_sharding_rule(rule, tree, MESH)
    assert made["dense"]["kernel"].spec == P(None, "model")
    assert made["scale"].spec == P(None)
    with pytest.raises(
        ShardingError, match=r"The pattern 'kernle' matches no leaf. The paths are 'dense/kernel', 'dense/bias'"
    ):
        TreePathShardingRule(("kernle", P()), ("bias", P())).apply(tree)
    with pytest.raises(ShardingError, match=r"No pattern of 'kernel' matches the leaf 'dense/bias'"):
        TreePathShardingRule(("kernel", P())).apply(tree)
    loose = TreePathShardingRule(("kernel", P("model")), strict=False)
    assert loose.apply(tree)["dense"]["bias"] == P()
    with pytest.raises(ShardingError, match=r"leaf 'dense/bias': .* has 2 entries, but the tensor of shape \(8,\)"):
        sw.match_sharding_rule(PolicyShardingRule(lambda path, leaf: P(None, "model")), tree, MESH)


def test_rules_and_trees_of_rules_work_everywhere():
    weights = {"w": W, "b": np.ones(12)}
    rule = TreePathShardingRule(("w", P(None, "model")), ("b", P("model")))
    step = sw.sjit(
        lambda x, p: {"y": x @ p["w"] + p["b"], "p": p},
        mesh=MESH,
        in_shardings=(P("data"), rule),
        out_shardings={"y": None, "p": FSDPShardingRule("model", min_fsdp_size=1)},
    )
    made = step(X, weights)
    np.testing.assert_allclose(np.asarray(made["y"]), X @ W + 1)
    assert made["y"].sharding.spec == P("data", "model")
    assert made["p"]["w"].sharding.spec == P(None, "model")
    mixed = sw.match_sharding_rule({"w": rule, "b": P()}, {"w": {"w": W, "b": W}, "b": W}, MESH)
    assert mixed["w"]["w"].spec == P(None, "model")
    assert mixed["b"].spec == P(None, None)
    with pytest.raises(ShardingError, match="Give a P, a Sharding, a rule, None, or a tree of them"):
        sw.match_sharding_rule("data", W, MESH)
    with pytest.raises(ShardingError, match="the tree of shardings does not match the tree of arrays"):
        sw.match_sharding_rule({"w": P()}, [W], MESH)
    assert sw.match_sharding_rule(P(), {"n": 3, "w": W}, MESH)["n"] is None


# -- a peer's ten errors, each by its number ----------------------------------------------------------------------------------


def test_1_static_numbers_in_any_order_with_constraints_on_arguments():
    step = sw.sjit(
        lambda f, n, x, y: f(x) * n - y,
        mesh=MESH,
        static_argnums=(1, 0),
        args_sharding_constraint=(P("data"), P("model")),
    )
    made = step(snp.tanh, 3, X, X + 1)
    np.testing.assert_allclose(np.asarray(made), np.tanh(X) * 3 - (X + 1))
    traced = step.lower(snp.tanh, 3, X, X + 1).program.show("traced")
    assert "constraint(%0" in traced
    assert traced.index("P('data', None)") < traced.index("P('model', None)")


def test_2_rules_are_applied_to_every_new_shape():
    step = sw.sjit(lambda x: x, mesh=MESH, in_shardings=FSDPShardingRule("model", min_fsdp_size=32))
    assert step(np.ones((4, 4))).sharding.spec == P(None, None)
    assert step(np.ones((16, 4))).sharding.spec == P("model", None)
    assert step(np.ones((4, 16))).sharding.spec == P(None, "model")


def test_3_none_for_one_argument_is_inferred():
    assert sw.sjit(linear, mesh=MESH, in_shardings=(P("data"), None))(X, W).sharding.spec == P("data", None)


def test_4_keywords_negative_numbers_and_strings():
    def fn(x, how="tanh", factor=1):
        return getattr(snp, how)(x) * factor

    step = sw.sjit(fn, mesh=MESH, static_argnums=-2, out_shardings=P("data"))
    np.testing.assert_allclose(np.asarray(step(X, how="tanh", factor=2)), np.tanh(X) * 2)
    assert step(x=X, how="tanh").sharding.spec == P("data", None)


def test_5_names_docs_and_methods():
    assert sw.sjit(linear).__wrapped__ is linear


def test_6_mistyped_names_and_constraints_without_a_mesh_are_errors():
    with pytest.raises(ProgramError):
        sw.sjit(lambda x: sw.with_sharding_annotation(x, "a"), mesh=MESH, annotation_shardings={"b": P()})(X)
    with pytest.raises(ArrayError):
        sw.with_sharding_constraint(X, P("data"))


def test_7_long_specs_and_leaves_that_are_no_arrays():
    with pytest.raises(ShardingError, match=r"in_shardings, argument 0: .* has 3 entries"):
        sw.sjit(lambda x: x, mesh=MESH, in_shardings=P(None, None, "data"))(X)
    rule = FSDPShardingRule("model", min_fsdp_size=1)
    made = sw.sjit(lambda t: t["x"] * t["n"], mesh=MESH, in_shardings=(rule,))({"x": X, "n": 2, "s": "text"})
    assert_same(made, X * 2)


def test_8_fsdp_without_a_size_divides_and_leaves_integers_whole():
    rule = FSDPShardingRule("model", min_fsdp_size=1)
    assert rule.apply({"x": np.ones((6, 10))}, MESH) == {"x": P()}
    assert rule.apply({"x": np.ones((8, 16), np.int32)}, MESH) == {"x": P()}


def test_9_part_of_the_devices_and_batches_that_do_not_divide():
    part = sw.Mesh(data=-1, model=2, devices=6)
    assert part.shape == (3, 2)
    odd = np.ones((7, 4))
    assert_same(sw.sjit(lambda x: x * 2, mesh=part, in_shardings=P("data"))(odd), odd * 2)


def test_10_threads_do_not_see_each_others_meshes_and_rows_keep_their_order():
    permuted = sw.Mesh({"data": 4}, devices=[3, 1, 0, 2])
    x = sw.sjit(lambda x: x + 0, mesh=permuted, in_shardings=P("data"))(np.arange(8.0))
    assert_same(x, np.arange(8.0))
    results = {}

    def work(name, mesh):
        step = sw.sjit(lambda x: sw.with_sharding_constraint(snp.tanh(x), P(*mesh.axis_names[:1])), mesh=mesh)
        results[name] = [step(np.ones((8, n + 1))).mesh for n in range(20)]

    meshes = {f"axis{i}": sw.Mesh({f"axis{i}": 2}) for i in range(4)}
    threads = [threading.Thread(target=work, args=item) for item in meshes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: set(found) for name, found in results.items()} == {name: {mesh} for name, mesh in meshes.items()}


def test_a_model_step_keeps_its_numbers():
    def loss(params, x, labels):
        h = nn.gelu(nn.layer_norm(x) @ params["up"]) @ params["down"]
        return nn.cross_entropy(h, labels)

    rng = np.random.default_rng(1)
    params = {"up": rng.standard_normal((4, 16)), "down": rng.standard_normal((16, 5))}
    labels = rng.integers(0, 5, 8)
    step = sw.sjit(loss, mesh=MESH, in_shardings=({"up": P(None, "model"), "down": P("model")}, P("data"), P("data")))
    whole = {name: sw.replicate(value, MESH) for name, value in params.items()}
    expected = loss(whole, sw.replicate(X, MESH), sw.replicate(labels, MESH))
    np.testing.assert_allclose(float(step(params, X, labels)), float(expected), rtol=1e-12)


# -- cases that were once wrong ---------------------------------------------------------------------------------------


def vector():
    return sw.shard(np.arange(8.0), sw.Mesh(x=4), P("x"))


def test_updates_in_place_change_the_functions_own_variables():
    def plus(x):
        x += 1
        return x * 2

    def masked(x):
        x[x > 3] = 0
        return x

    assert_same(sw.sjit(plus)(vector()), (np.arange(8.0) + 1) * 2)
    assert sw.sjit(masked)(vector()).tolist() == [0, 1, 2, 3, 0, 0, 0, 0]

    def body(carry, row):
        carry += row
        return carry, None

    table = sw.shard(np.arange(8.0).reshape(4, 2), sw.Mesh(x=4), P(None, "x"))
    assert sw.sjit(lambda t: sw.scan(body, t[0] * 0, t)[0])(table).tolist() == [12, 16]

    def sums(x):
        total = snp.zeros(8)
        for n in range(3):
            total += x * float(n)
        return total

    assert_same(sw.sjit(sums)(vector()), np.arange(8.0) * 3)


def test_slices_are_assigned_inside_programs():
    def fn(x):
        x[1:3] = 2.0
        x[-1] = 7.5
        x[::-3] = -1.0
        return x

    expected = np.arange(8.0)
    fn(expected)
    with sw.strict():
        assert_same(sw.sjit(fn)(vector()), expected)
        assert_same(fn(vector()), expected)


def test_arrays_from_outside_are_not_changed_while_traced():
    w = vector()

    def fn(x):
        nonlocal w
        w += 1
        return x + w

    with pytest.raises(TraceError, match="comes from outside of the function that is traced"):
        sw.sjit(fn)(vector())
    assert_same(w, np.arange(8.0))


def test_inner_functions_read_outer_values_first():
    mesh = sw.Mesh(x=4)
    a, w = sw.shard(np.arange(16.0).reshape(4, 4), mesh, P("x")), sw.shard(np.eye(4) * 2, mesh, P())
    for fn in (
        lambda x, w: sw.scan(lambda c, _: (w @ c, None), x, length=3)[0],
        lambda x, w: sw.cond(x.sum() > 0, lambda a: w + a, lambda a: a - w, x),
        lambda x, w: sw.while_loop(lambda c: c.sum() < 1000, lambda c: w + c, x),
        lambda x, w: sw.scan(
            lambda c, _: (sw.scan(lambda d, _: (w * 0.5 + d, None), c, length=2)[0], None), x, length=2
        )[0],
    ):
        np.testing.assert_allclose(np.asarray(sw.sjit(fn)(a, w)), np.asarray(fn(a, w)))
    shown = sw.sjit(lambda x: sw.cond(x.sum() > 0, lambda: snp.sort(snp.exp(x)), lambda: x)).lower(vector()).program
    assert "sort" not in [node.op for node in shown.nodes]  # only the branch taken runs


def test_captured_arrays_are_read_anew_inside_loops():
    w = sw.shard(np.ones(8), sw.Mesh(x=4), P("x"))
    step = sw.sjit(lambda x: sw.scan(lambda c, _: (c + w, None), x, length=2)[0])
    assert_same(step(vector()), np.arange(8.0) + 2)
    w += 10
    assert_same(step(vector()), np.arange(8.0) + 22)


def test_calls_that_differ_have_programs_of_their_own():
    mesh = sw.Mesh(x=4)
    zeros, ones = (sw.shard(np.full(2, v), mesh, P()) for v in (0.0, 1.0))
    joined = sw.sjit(lambda d: snp.concat(list(d.values())))
    assert joined({"a": zeros, "b": ones}).tolist() == [0, 0, 1, 1]
    assert joined({"b": ones, "a": zeros}).tolist() == [1, 1, 0, 0]
    whole = sw.shard(np.arange(4), mesh, P("x"))
    scaled = sw.sjit(lambda x, s: x * s[0], static_argnums=1)
    assert [scaled(whole, s).dtype for s in ((1,), (1.0,))] == [np.int64, np.float64]
    signed = sw.sjit(lambda x, s: snp.copysign(x, s))
    assert [float(signed(vector(), s)[1]) for s in (0.0, -0.0)] == [1.0, -1.0]
    made = sw.sjit(lambda n: snp.ones(n))
    for other in (mesh, sw.Mesh(x=2, y=2)):
        with other:
            assert made(4).mesh == other
    often = sw.sjit(lambda x, s: x * s)
    for _ in range(3):
        often(vector(), float("nan"))
    assert often.cache_size() == 1


def test_branches_may_give_constants_and_numbers_stay_numbers():
    x = sw.shard(np.arange(8, dtype=np.float32), sw.Mesh(x=4), P("x"))
    assert float(sw.sjit(lambda x: sw.cond(x.sum() > 0, lambda a: snp.sum(a), lambda a: np.float32(0), x))(x)) == 28
    assert (
        sw.sjit(lambda x: sw.cond(x.sum() > 0, lambda x, s: x * s, lambda x, s: x + s, x, 2.0))(x).dtype == np.float32
    )
    done = sw.sjit(lambda x: sw.while_loop(lambda c: c[1], lambda c: (c[0] + 1, False), (x, True)))(x)
    assert_same(done[0], np.arange(8, dtype=np.float32) + 1)


def test_a_program_in_a_program_keeps_its_shardings_and_annotations():
    x = vector()
    inner = sw.sjit(lambda y: y * 2, out_shardings=P())
    assert sw.sjit(lambda x: inner(x))(x).sharding.spec == P(None)
    noted = sw.sjit(lambda y: sw.with_sharding_annotation(y, "h"), annotation_shardings={"h": P()})
    assert_same(sw.sjit(lambda x: noted(x) * 2)(x), np.arange(8.0) * 2)
    assert_same(sw.sjit(lambda x: sw.sjit(lambda: x * 2)())(x), np.arange(8.0) * 2)


def test_loops_count_as_often_as_they_run():
    x = sw.shard(np.arange(32.0).reshape(8, 4), sw.Mesh(x=4), P("x"))
    loop = sw.explain(lambda x: sw.scan(lambda c, _: (c + snp.sum(c, axis=0), None), x, length=10)[0], x)

    def unrolled(x):
        for _ in range(10):
            x = x + snp.sum(x, axis=0)
        return x

    assert loop.total_bytes == sw.explain(unrolled, x).total_bytes > 0
    assert "scan body × 10: all_reduce x" in loop.full()
    folded = [line.split() for line in str(loop).splitlines()]
    heading = folded.index("scan body × 10:".split())
    assert [line[1] for line in folded[heading + 1 : heading + 3]] == ["sum", "all_reduce"]
    both = sw.explain(lambda x: sw.cond(x.sum() > 0, lambda y: snp.sum(y), lambda y: snp.sum(y * 2), x), x)
    inside = [row.bytes for row in both.rows if row.inside]
    assert both.total_bytes == sum(row.bytes for row in both.rows) - sum(inside) // 2


def test_scanning_a_split_table_is_a_gather():
    table = sw.shard(np.ones((8, 4)), sw.Mesh(x=4), P("x"))
    step = sw.sjit(lambda t: sw.scan(lambda c, r: (c + r, None), snp.zeros(4), t)[0])
    assert "scan gathers dim 0 of f64[8@x,4]" in step.lower(table).explain().notes[0]
    with sw.strict(), pytest.raises(sw.ImplicitGatherError, match="scan gathers dim 0"):
        step(table)


def test_objects_of_any_kind_have_methods():
    @dataclasses.dataclass
    class Plain:
        scale: float

        @sw.sjit
        def run(self, x):
            return x * self.scale

    class Slotted:
        __slots__ = ("scale",)

        @sw.sjit
        def run(self, x):
            return x * self.scale

    slotted = Slotted()
    slotted.scale = 3.0
    one, other = Plain(2.0), Plain(2.0)
    other.scale = 4.0
    assert [float(o.run(vector())[1]) for o in (one, other, slotted)] == [2, 4, 3]
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_values_of_a_program_that_is_over_are_refused():
    kept = []
    sw.sjit(lambda x: (kept.append(x), x)[1])(vector())
    with pytest.raises(TraceError, match="belongs to a program whose tracing is over"):
        kept[0] + 1
    with pytest.raises(TraceError, match="belongs to a program whose tracing is over"):
        sw.sjit(lambda y: y + kept[0])(vector())


def test_errors_have_words():
    add = functools.partial(lambda a, b: a + b, 2)
    assert_same(sw.sjit(add)(vector()), np.arange(8.0) + 2)
    with pytest.raises(ProgramError, match="static_argnums: 7 is no argument"):
        sw.sjit(add, static_argnums=7)
    for value in (np.ones(2), ([1],)):
        with pytest.raises(ProgramError, match=r"static argument 's' is a \w+, which can't be hashed"):
            sw.sjit(lambda x, s: x, static_argnums=1)(vector(), value)
    with pytest.raises(ProgramError, match="in xs has no rows"):
        sw.scan(lambda c, r: (c, r), vector(), [1, 2])
    with pytest.raises(ShardingError, match="is not a valid regular expression"):
        TreePathShardingRule(("(", P())).apply({"a": np.ones(4)})
    with pytest.raises(sw.errors.OperationError, match=r"index works on the whole tensor .* Write it with where"):
        sw.sjit(lambda x: x[np.array([1, 3])[:, None], None, np.array([1])])(
            sw.shard(np.ones((8, 4)), sw.Mesh(x=4), P("x"))
        )
    with pytest.raises(ProgramError, match="a program is on one mesh"):
        sw.sjit(lambda a, b: (a, b))(vector(), sw.shard(np.ones(8), sw.Mesh(y=2), P("y")))


def test_small_things():
    rule = TreePathShardingRule(("w", P("model")), ("b", P()), strict=False)
    step = sw.sjit(lambda p, t: t @ p["w"] + p["b"], mesh=MESH, in_shardings=rule)
    assert_same(step({"w": np.ones((8, 4)), "b": np.ones(4)}, np.ones((2, 8))), np.full((2, 4), 9.0))
    ones = sw.sjit(lambda x: np.ones(3))
    ones(vector())[0] = 99
    assert ones(vector())[0] == 1
    given = vector()
    sw.sjit(lambda a: a + 1, donate_argnums=0)(a=given)
    with pytest.raises(ArrayError, match="was donated"):
        np.asarray(given)


def test_numbers_out_of_range_are_refused_when_a_program_runs():
    table = np.arange(8.0).reshape(4, 2)
    for fn in (lambda t, i: nn.embedding(t, i), lambda t, i: t[i]):
        step = sw.sjit(fn, mesh=MESH, in_shardings=(P("model"), P()))
        assert_same(step(table, np.array([0, -1])), table[[0, -1]])
        with pytest.raises(IndexError, match=r"Index -9 is out of bounds for dim 0 of size 4"):
            step(table, np.array([3, -9]))
    step = sw.sjit(lambda x, y: nn.cross_entropy(x, y), mesh=MESH)
    with pytest.raises(sw.errors.OperationError, match="cross_entropy: 9 is not one of the 5 classes"):
        step(np.ones((2, 5)), np.array([1, 9]))


def test_a_strangers_mistakes_have_words():
    def block(x, p):
        return x * p["w"]

    params = {"w": np.ones((2, 4))}
    x = np.ones((2, 4))
    with pytest.raises(ProgramError, match=r"in_shardings names 'x', 'params'; the parameters are 'x', 'p'"):
        sw.sjit(block, mesh=MESH, in_shardings={"x": P(), "params": P()})(x, params)
    with pytest.raises(
        ShardingError, match=r"out_shardings: the tree of shardings does not match .*: \(·, ·\) against ·"
    ):
        sw.sjit(block, mesh=MESH, out_shardings=(P(), P()))(x, params)
    both = sw.sjit(block, mesh=MESH, in_shardings=(P("data"), P(None, "model")))
    assert both(x=x, p=params).sharding.spec == P("data", "model")
    with pytest.raises(
        ArrayError, match=r"shard takes one tensor, a mesh and a spec; this is a tree of arrays. For a tree write"
    ):
        sw.shard(params, MESH, P())
    with pytest.raises(ArrayError, match="this is a Mesh, and the mesh a ndarray"):
        sw.shard(MESH, x, P())
    assert repr(TreePathShardingRule([("w", P("x"))])) == "TreePathShardingRule(('w', P('x')))"
    assert TreePathShardingRule({"w": P("x")}).rules == (("w", P("x")),)
    with pytest.raises(ShardingError, match=r"takes \(pattern, P\(…\)\) pairs; got 'w'"):
        TreePathShardingRule(["w", P()])
    with pytest.raises(sw.ShardwrightError, match="The shape has ndarray entries, not integers"):
        sw.plan_reshard(np.ones((2, 2)), np.float32, MESH, P(), P())
    y = sw.shard(np.arange(6).reshape(1, 2, 3), MESH, P())
    assert_same(y.transpose((0, 2, 1)), np.arange(6).reshape(1, 2, 3).transpose(0, 2, 1))
    shown = sw.explain(lambda a: snp.sum(a), sw.shard(x, MESH, P("data")))
    assert [row.collective for row in shown.collectives] == ["all_reduce data"]
    assert "of communication" in str(shown)


# -- functions inside functions ---------------------------------------------------------------------------------------------


@sw.sjit
def clipped(v):
    v[v < 0] = 0
    return v


@sw.sjit
def raised(d):
    d["a"] += 1
    return d["a"]


same = sw.sjit(lambda x: x)


def written(x):
    y = same(x)
    y[0] = 9
    return x + 0, y


@pytest.mark.parametrize(
    "function",
    [lambda x: x + clipped(x), lambda x: raised({"a": x}) + x, lambda x: written(x)[0], lambda x: written(x)[1]],
)
def test_a_jitted_function_inside_another_leaves_its_callers_variables_alone(function):
    x = sw.shard(np.array([-1.0, 2.0, -3.0, 4.0]), MESH, P("model"))
    assert_same(sw.sjit(function)(x), np.asarray(function(x)))


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.ndarray, sw.ShapeDtype, int])
def test_types_are_static_arguments(kind):
    x = sw.shard(np.arange(4.0), MESH, P("model"))
    step = sw.sjit(lambda x, kind: x.astype(kind) if issubclass(kind, np.generic) else x)
    assert step(x, kind).dtype == (np.dtype(kind) if issubclass(kind, np.generic) else x.dtype)
    assert sw.explain(lambda x, kind: x + 1, x, kind).rows


def test_copies_inside_a_program_are_variables_of_their_own():
    def copied(x, copy):
        y = copy(x)
        y[0] = 7
        return x + 0, y

    x = sw.shard(np.arange(4.0), MESH, P("model"))
    for function in (copy.copy, copy.deepcopy, lambda x: copy.deepcopy({"a": x})["a"]):
        first, second = sw.sjit(copied)(x, function)
        assert_same(first, np.arange(4.0))
        assert_same(second, np.array([7.0, 1, 2, 3]))


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("made", "name"),
    [(Holder, "Holder"), (lambda x: {"a": x}.values(), "dict_values"), (lambda x: lambda: x, "function")],
)
def test_results_that_hide_arrays_are_refused(made, name):
    with pytest.raises(ProgramError, match=rf"returns a {name} with arrays inside, which the program does not see"):
        sw.sjit(lambda x: made(x * 2))(sw.shard(np.arange(4.0), MESH, P("model")))
