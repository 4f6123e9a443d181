"""`sw.torch.load`: state, trees, control flow, dynamic sizes, names, source lines and errors, on modules of a few lines."""

import linecache
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as xp
from shardwright.errors import ModelError, ProgramError, ShardingError
from shardwright.rules import TreePathShardingRule
from shardwright.torch.aten import ROWS

P = sw.P
EVEN, UNEVEN = sw.Mesh(dp=2, tp=2), sw.Mesh(dp=1, tp=3)
MESHES = [EVEN, UNEVEN, sw.Mesh(dp=2, tp=2, engine="literal"), sw.Mesh(dp=1, tp=3, engine="literal")]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def assert_close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert np.asarray(got).dtype == expected.detach().numpy().dtype


class Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
        self.down = torch.nn.Linear(8, 6)
        self.register_buffer("scale", torch.arange(1.0, 7.0))

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return self.down(hidden) * self.scale


RULES = TreePathShardingRule((r"up\.", P("tp")), ("down/weight", P(None, "tp")), (".*", P()))


@pytest.fixture(scope="module")
def perceptron():
    torch.manual_seed(0)
    module, x = Perceptron(), torch.randn(5, 6)
    return module, x, sw.torch.load(module, x)


class Mean(torch.nn.Module):
    """Its graph has the size of the batch as a number."""

    def forward(self, x):
        return torch.relu(x).sum(0) / x.shape[0]


@pytest.mark.parametrize("shape", [(10, 4), (1, 4), (4,)])
def test_inputs_of_other_shapes_than_the_model_was_loaded_for_are_refused(shape):
    example = torch.ones(5, 4)
    module = torch.nn.Linear(4, 4)
    step = sw.torch.load_step(lambda model, parameters, x: model(parameters, x).mean(), module, example)
    for model in (sw.torch.load(Mean(), example), sw.torch.load(module, example), step):
        with pytest.raises(ModelError, match=re.escape(f"has shape {shape}; the model was loaded for (5, 4), and")):
            model.sjit(EVEN)(torch.ones(shape))


def test_sizes_that_were_exported_as_open_may_be_others():
    exported = torch.export.export(Mean(), (torch.ones(5, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    step, x = sw.torch.load(exported).sjit(EVEN), torch.randn(8, 4)
    assert_close(step(x), Mean()(x))
    with pytest.raises(ModelError, match=r"the model was loaded for \(any size, 4\)"):
        step(torch.ones(8, 3))


def test_inputs_of_another_kind_of_elements_are_refused_and_others_converted(perceptron):
    module, x, model = perceptron
    step = model.sjit(EVEN)
    assert_close(step(x.double()), module(x))
    with pytest.raises(ModelError, match="The input 'x' has dtype bool; the model was loaded for float32"):
        step(x > 0)
    taken = sw.torch.load(torch.nn.Embedding(9, 4), torch.zeros(3, dtype=torch.int64)).sjit(EVEN)
    assert taken(torch.zeros(3, dtype=torch.int32)).shape == (3, 4)
    with pytest.raises(ModelError, match="has dtype float32; the model was loaded for int64"):
        taken(torch.zeros(3))


class Signed(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def test_a_module_that_decides_by_elements_is_refused_with_its_line():
    line = Signed.forward.__code__.co_firstlineno + 1
    with pytest.raises(
        ModelError, match=rf"Signed can't be exported: it decides by elements of a tensor \({__file__}:{line}\)"
    ):
        sw.torch.load(Signed(), torch.ones(3))


def test_lists_in_place_of_a_tensor_are_refused_in_a_line(perceptron):
    with pytest.raises(ModelError, match="a list of numbers is a tree, not a tensor") as caught:
        perceptron[2].sjit(EVEN)([[1.0] * 6] * 50)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_module_runs_as_torch_runs_it(perceptron, mesh):
    module, x, model = perceptron
    step = model.sjit(mesh, RULES, inputs=P("dp"))
    assert_close(step(x), module(x))
    assert_close(step(x.numpy()), module(x))
    shardings = model.shardings(mesh, RULES)
    arrays = {name: sw.shard(value, shardings[name]) for name, value in model.parameters.items()}
    assert_close(model(arrays, sw.shard(x, mesh, P())), module(x))  # eagerly


def test_parameters_have_torchs_names_and_share_its_memory(perceptron):
    module, _, model = perceptron
    assert list(model.parameters) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    assert np.shares_memory(model.parameters["up.weight"], module.up.weight.detach().numpy())
    assert repr(model) == "Perceptron(parameters, x): 4 parameters"


def test_rules_match_names_with_dots_and_paths_with_slashes(perceptron):
    _, _, model = perceptron
    found = {name: sharding.spec for name, sharding in model.shardings(EVEN, RULES).items()}
    assert found == {
        "up.weight": P("tp", None),
        "up.bias": P("tp"),
        "down.weight": P(None, "tp"),
        "down.bias": P(None),
    }
    with pytest.raises(ShardingError, match=r"pattern 'sideways' matches no leaf"):
        model.bind(EVEN, TreePathShardingRule(("sideways", P()), (".*", P())))


def test_modules_of_torchs_own_have_its_lines_and_their_module_paths():
    module, x = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.ones(4, 3, 8)
    rows = sw.torch.load(module, x).explain(EVEN, None, x, inputs=P("dp")).rows
    assert {row.stack for row in rows} >= {"self_attn", "linear1", "linear2", "norm1", "norm2"}
    assert all(row.source.startswith(f"{Path(torch.__file__).parent}/nn/") for row in rows), {
        row.source for row in rows
    }


def test_explain_has_the_models_own_lines_and_module_paths(perceptron):
    _, x, model = perceptron
    explanation = model.explain(EVEN, RULES, x, inputs=P("dp"))
    assert explanation.collectives[0].collective in ("all_reduce tp", "reduce_scatter tp")
    for row in explanation.rows:
        file, _, line = row.source.rpartition(":")
        assert file == __file__, row.source
        assert re.search(r"relu|down", linecache.getline(file, int(line)))
    assert {row.stack for row in explanation.rows} >= {"up", "down"}
    assert "name stack" in explanation.full()
    step = model.bind(EVEN, RULES, inputs=P("dp"))
    assert sw.explain(step, x).total_bytes == explanation.total_bytes == step.lower(x).explain().total_bytes
    assert sw.measure(step, x).collectives[0].counted == explanation.collectives[0].bytes


def test_meta_parameters_can_be_explained_and_not_run():
    with torch.device("meta"):
        module, x = Perceptron(), torch.empty(4, 6)
    model = sw.torch.load(module, x)
    assert model.parameters["up.weight"] == sw.ShapeDtype((8, 6), "float32")
    assert list(model.parameters) == [
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
        "scale",
    ]  # its values are unknown
    explanation = model.explain(EVEN, RULES, x, inputs=P("dp"))
    assert explanation.collectives[0].collective in ("all_reduce tp", "reduce_scatter tp")
    with pytest.raises(ProgramError, match=r"no elements for 'up.weight', 'up.bias', 'down.weight' and 2 more"):
        model.sjit(EVEN, RULES)(np.ones((4, 6), np.float32))


def test_an_exported_program_is_loaded_as_it_is(perceptron):
    module, x, _ = perceptron
    model = sw.torch.load(torch.export.export(module, (x,)))
    assert_close(model.sjit(EVEN, RULES)(x), module(x))
    with pytest.raises(ModelError, match="has its example inputs already"):
        sw.torch.load(torch.export.export(module, (x,)), x)
    with pytest.raises(ModelError, match="exported for torch tensors; got ndarray"):
        sw.torch.load(torch.nn.Linear(4, 4), np.zeros((2, 4), np.float32))
    with pytest.raises(ModelError, match="takes a module or an ExportedProgram; got int"):
        sw.torch.load(3)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(9, 6)
        self.head = torch.nn.Linear(6, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids) + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_tied_weights_are_one_parameter_and_constants_are_lifted(mesh):
    torch.manual_seed(0)
    module, ids = Tied(), torch.tensor([[1, 8, 3], [0, 2, 5]])
    model = sw.torch.load(module, ids)
    assert list(model.parameters) == ["table.weight"]
    step = model.sjit(mesh, {"table.weight": P("tp")}, inputs={"ids": P("dp")})
    assert_close(step(ids), module(ids))


class Trees(torch.nn.Module):
    def forward(self, pair, named, *, scale, offset=None):
        a, b = pair
        shifted = a if offset is None else a + offset
        return {"sum": shifted + b, "parts": [named["x"] * scale, (named["y"], 3)]}, shifted.sum()


def test_trees_of_inputs_and_outputs():
    a, b, x, y = torch.randn(4, 6), torch.randn(4, 6), torch.randn(3), torch.randn(2)
    model = sw.torch.load(Trees(), (a, b), {"x": x, "y": y}, scale=torch.tensor(2.0))
    assert model.inputs == ("pair", "named", "scale")
    step = model.sjit(EVEN)
    got, total = step((a, b), {"x": x, "y": y}, scale=torch.tensor(2.0))
    expected, expected_total = Trees()((a, b), {"x": x, "y": y}, scale=torch.tensor(2.0))
    assert_close(got["sum"], expected["sum"])
    assert_close(got["parts"][0], expected["parts"][0])
    assert_close(got["parts"][1][0], expected["parts"][1][0])
    assert got["parts"][1][1] == 3
    assert_close(total, expected_total)
    with pytest.raises(ModelError, match="was exported for inputs"):
        step((a, b, b), {"x": x, "y": y}, scale=torch.tensor(2.0))
    with pytest.raises(ProgramError, match="has no input 'other'; its inputs are 'pair', 'named', 'scale'"):
        model.bind(EVEN, inputs={"other": P()})


def test_planning_gets_arguments_without_elements_and_names(perceptron):
    _, x, model = perceptron
    call = model.planned(x)
    assert call.names == (
        "parameters/up.weight",
        "parameters/up.bias",
        "parameters/down.weight",
        "parameters/down.bias",
        "x",
    )
    assert call.arguments[1] == sw.ShapeDtype((5, 6), "float32")
    assert sw.explain(sw.sjit(call.function, mesh=EVEN), *call.arguments).rows


class Spare(torch.nn.Module):
    """A part that is not called, a buffer and an input that nothing reads."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(8, 8), torch.nn.Linear(8, 500)
        self.register_buffer("original", torch.ones(9))

    def forward(self, x, unread=None):
        return self.used(x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_no_operation_reads_is_not_placed_counted_or_planned(device):
    with torch.device(device):
        module, inputs = Spare(), (torch.ones(4, 8), torch.ones(3))
    model, mesh = sw.torch.load(module, *inputs), sw.Mesh(tp=2)
    names = {"used.weight", "used.bias", "spare.weight", "spare.bias"}
    assert set(model.parameters) == names | ({"original"} if device == "meta" else set())
    explanation = model.explain(mesh, None, *inputs)
    assert explanation.use.parameters == (8 * 8 + 8) * 4
    assert set(model.shardings(mesh, TreePathShardingRule(("used", P("tp")), ("spare", P())))) == set(model.parameters)
    call = model.planned(*inputs)
    assert call.names == ("parameters/used.weight", "parameters/used.bias", "x", "unread")
    plan = sw.auto(model, mesh, *inputs)
    assert [line.partition(":")[0] for line in str(plan).splitlines()[:-1]] == [*call.names[:-1]]
    assert plan.explain().use.parameters <= (8 * 8 + 8) * 4
    if device == "cpu":
        expected = module(*inputs).detach()
        np.testing.assert_allclose(np.asarray(model.sjit(mesh)(*inputs)), expected, rtol=1e-5)
        with mesh:
            np.testing.assert_allclose(np.asarray(model(model.parameters, *inputs)), expected, rtol=1e-5)


def test_a_step_that_leaves_parameters_out_does_not_place_them():
    def loss(model, parameters, x):
        return model(parameters, x).sum()

    module, x = Spare(), torch.ones(4, 8)
    step = sw.torch.load_step(loss, module, x)
    assert "spare.weight" in step.parameters
    assert step.planned(x).names == ("parameters/used.weight", "parameters/used.bias", "x")
    np.testing.assert_allclose(np.asarray(step.sjit(EVEN)(x)), module(x).sum().item(), rtol=1e-5)


def test_the_rules_of_a_plan_place_the_model(perceptron):
    _, x, model = perceptron
    plan = sw.auto(model, EVEN, x)
    found = model.shardings(EVEN, plan.rules("parameters"))
    assert {f"parameters/{name}": place for name, place in found.items()} == {
        name: place for name, place in plan.places.items() if name != "x"
    }


class Choice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6))

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: (y * self.weight,), lambda y: (y - self.weight.sin(),), (x,))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_choice_takes_the_branch_that_data_asks_for(mesh):
    torch.manual_seed(0)
    module, x = Choice(), torch.ones(4, 6)
    model = sw.torch.load(module, x)
    step = model.sjit(mesh, {"weight": P("tp")}, inputs=P("dp"))
    for value in (x, -x):
        assert_close(step(value)[0], module(value)[0])
    assert any("cond" in row.inside for row in step.lower(x).explain().rows)


class Sized(torch.nn.Module):
    def forward(self, x):
        places = torch.arange(x.shape[1], dtype=x.dtype)
        return (x * places).reshape(-1), x.new_ones(x.shape[0], 2)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_dynamic_sizes_are_those_of_the_inputs(mesh):
    batch, length = torch.export.Dim("batch", min=2), torch.export.Dim("length", min=2)
    exported = torch.export.export(Sized(), (torch.ones(3, 4),), dynamic_shapes=({0: batch, 1: length},))
    step = sw.torch.load(exported).sjit(mesh, inputs=P("dp"))
    for shape in ((3, 4), (5, 7)):
        x = torch.randn(shape)
        for got, expected in zip(step(x), Sized()(x), strict=True):
            assert_close(got, expected)


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.i0(x)


class Strange(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Bessel()

    def forward(self, x):
        return self.inner(torch.linalg.eigvals(x).abs()) + self.inner(x.diagonal())


def test_all_unknown_operations_are_named_at_once():
    with pytest.raises(ModelError) as caught:
        sw.torch.load(Strange(), torch.eye(3))
    text = str(caught.value)
    assert "Strange uses 2 operations that can't be imported" in text
    assert f"aten.special_i0.default, 2 times: first in inner, {__file__}:" in text
    assert "aten.linalg_eigvals.default" in text
    assert "@sw.torch.register" in text


@torch.library.custom_op("shardwright_tests::shrink", mutates_args=())
def shrink(x: torch.Tensor, width: float) -> torch.Tensor:
    return torch.nn.functional.softshrink(x, width)


@shrink.register_fake
def _(x, width):
    return torch.empty_like(x)


class Shrink(torch.nn.Module):
    def forward(self, x):
        return shrink(x, 0.5)


def test_an_operation_can_be_registered():
    x = torch.randn(5, 6)
    with pytest.raises(ModelError, match=r"shardwright_tests.shrink.default: first in .*test_torch_import.py"):
        sw.torch.load(Shrink(), x)

    @sw.torch.register(torch.ops.shardwright_tests.shrink)
    def shrunk(x, width):
        return xp.sign(x) * xp.maximum(xp.abs(x) - width, 0)

    try:
        assert_close(sw.torch.load(Shrink(), x).sjit(UNEVEN, inputs=P(None, "tp"))(x), Shrink()(x))
    finally:
        del ROWS["shardwright_tests.shrink.default"]
    with pytest.raises(ModelError, match=r"takes an operation of torch.ops or its name"):
        sw.torch.register(3)


def test_a_registered_function_with_another_shape_is_an_error():
    sw.torch.register("shardwright_tests::shrink")(lambda x, width: x[:1])
    try:
        with pytest.raises(ModelError, match=r"the row gives shape \(1, 6\), torch \(5, 6\)") as caught:
            sw.torch.load(Shrink(), torch.ones(5, 6)).sjit(EVEN)(torch.ones(5, 6))
        assert __file__ in caught.value.__notes__[0]
    finally:
        del ROWS["shardwright_tests.shrink.default"]


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand(6)


def test_training_mode_and_random_numbers_are_refused():
    with pytest.raises(ModelError, match=r"changes .*running_mean.* in place"):
        sw.torch.load(torch.nn.BatchNorm1d(6), torch.ones(4, 6))
    with pytest.raises(ModelError, match=r"aten.rand.default \(random numbers\)"):
        sw.torch.load(Noisy(), torch.ones(4, 6))
    model = sw.torch.load(torch.nn.Dropout(0.3), torch.ones(4, 6))
    with pytest.raises(ModelError, match=r"dropout with p=0.3 in training.*model.eval\(\)"):
        model.sjit(EVEN)(torch.ones(4, 6))
    eager = sw.torch.load(torch.nn.Dropout(0.3).eval(), torch.ones(4, 6))
    assert_close(eager.sjit(EVEN)(torch.ones(4, 6)), torch.ones(4, 6))


class Masked(torch.nn.Module):
    def forward(self, x):
        size = x.shape[-1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        return (x @ x.mT + mask).softmax(-1)


def test_what_needs_no_input_is_torchs_and_computed_once():
    x = torch.randn(2, 6, 6)
    model = sw.torch.load(Masked(), x)
    step = model.sjit(EVEN, inputs=P("dp"))
    assert_close(step(x), Masked()(x))
    assert not [row for row in step.lower(x).explain().rows if row.operation in ("triangle", "fill")]


class Half(torch.nn.Module):
    def forward(self, x, n):
        return x.softmax(-1), n / 2, n * 0.5 + True, (n > 1.5).sum(), torch.where(n > 0, x, 0)


def test_dtypes_are_torchs():
    x, n = torch.randn(4, 6).to(torch.bfloat16), torch.arange(24).reshape(4, 6)
    step = sw.torch.load(Half(), x, n).sjit(EVEN, inputs=P("dp", "tp"))
    expected = Half()(x, n)
    for got, wanted in zip(step(x, n), expected, strict=True):
        assert str(got.dtype) == str(wanted.dtype).removeprefix("torch.")
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted.double().numpy(), rtol=1e-2)


def test_a_model_without_a_mesh_says_what_it_needs(perceptron):
    _, x, model = perceptron
    with pytest.raises(ModelError, match=r"runs on a mesh: pass arrays, use model.sjit"):
        model(model.parameters, x)
    with EVEN:
        assert model(model.parameters, x).shape == (5, 6)


# -- operations that torch takes apart ----------------------------------------------------------------------------------


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def distances(x, y):
    return torch.nn.functional.cosine_similarity(x, y), torch.nn.functional.huber_loss(x, y)


TAKEN_APART = {
    "lstm": (torch.nn.LSTM(6, 8, batch_first=True), (4, 5, 6)),
    "gru": (torch.nn.GRU(6, 8, num_layers=2, batch_first=True), (4, 5, 6)),
    "unfold": (torch.nn.Unfold(2), (4, 3, 4, 5)),
    "fold": (torch.nn.Fold((4, 6), 2, stride=2), (4, 12, 6)),
    "weight_norm": (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 8)), (4, 6)),
    "rot90": (Called(torch.rot90), (4, 6)),
    "distances": (Called(distances), (4, 6), (4, 6)),
    "bce": (Called(lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(x, y.sigmoid())), (4, 6), (4, 6)),
    "nan_to_num": (Called(lambda x: torch.nan_to_num(torch.where(x > 0, torch.nan, x), 0.5)), (4, 6)),
}


@pytest.mark.parametrize("mesh", [MESHES[0], MESHES[3]], ids=str)
@pytest.mark.parametrize("name", TAKEN_APART)
def test_operations_without_a_row_are_taken_apart_by_torch(name, mesh):
    module, *shapes = TAKEN_APART[name]
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=rng) for shape in shapes]
    spec = P("dp", "tp") if mesh.sizes["dp"] > 1 else P("tp")
    made = sw.torch.load(module, *inputs).sjit(mesh, None, inputs=spec)(*inputs)
    expected = module(*inputs)
    leaves = torch.utils._pytree.tree_leaves
    for got, want in zip(leaves(made), leaves(expected), strict=True):
        assert_close(got, want)


class Turned(torch.nn.Module):
    def forward(self, x):
        sizes = torch.linalg.det(x)
        return torch.rot90(sizes[:, None])


def test_what_torch_takes_apart_in_vain_is_named_as_the_model_has_it():
    with pytest.raises(ModelError) as caught:
        sw.torch.load(Turned(), torch.ones(2, 4, 4))
    assert "Turned uses 1 operation that can't be imported:\n  aten.linalg_det.default: first in" in str(caught.value)


def test_a_training_step_takes_apart_what_has_no_row():
    def step(model, parameters, x, y):
        def loss(p):
            return torch.nn.functional.huber_loss(model(p, x), y)

        return torch.func.grad_and_value(loss)(parameters)

    module, x, y = torch.nn.Linear(6, 4), torch.linspace(-2, 2, 24).reshape(4, 6), torch.ones(4, 4)
    with torch.enable_grad():
        trained = sw.torch.load_step(step, module, x, y=y)
        expected = step(lambda p, x: torch.func.functional_call(module, p, (x,)), dict(module.named_parameters()), x, y)
    grads, loss = trained.sjit(EVEN, None, inputs=P("dp"))(x, y=y)
    assert_close(loss, expected[1])
    for name, grad in expected[0].items():
        assert_close(grads[name], grad)
