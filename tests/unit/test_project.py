"""What holds of the project itself: import direction, import weight, exported names, the command line, the helpers."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
from helpers import assert_devices, assert_same
from shardwright.cli import main

SOURCE = Path(sw.__file__).parent

# A module may import those above its own line, never those beside or below it.
LAYERS = [
    ["errors", "caches", "garbage", "lines"],
    ["launching"],
    ["trees"],
    ["hardware"],
    ["mesh"],
    ["sharding"],
    ["collectives"],
    ["ops"],
    ["kernels"],
    ["plan"],
    ["engines"],
    ["eager"],
    ["arrays"],
    ["numpy"],
    ["random"],
    ["nn"],
    ["rules"],
    ["program"],
    ["planner"],
    ["xla"],
    ["imported"],
    ["jax", "mlir", "ttnn", "torch"],  # front ends: siblings
    ["viz"],
    ["demo"],
    ["__init__"],
    ["cli_hardware", "cli_mlir", "cli_models"],
    ["cli_plan"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def layer_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path):
    """Every module of ours that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "shardwright")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardwright":
            names = (f"shardwright.{alias.name}" for alias in node.names)
            yield from names if node.module == "shardwright" else (node.module,)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downward(path):
    own = layer_of(path)
    assert own in RANK, f"{own} has no place in the layers yet"
    for module in imports_of(path):
        parts = module.split(".")
        other = parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"
        assert other == own or RANK[other] < RANK[own], f"{own} imports {module}, which lies beside or above it"
        if other == own and path.name != "__init__.py":
            assert len(parts) > 2, f"{path} imports its own facade"


def test_import_is_light():
    code = "import sys, shardwright; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "jax", "xdsl", "rich", "ml_dtypes", "scipy", "multiprocessing"):
        assert f"'{heavy}'" not in loaded
    assert "'numpy'" in loaded


def test_front_ends_load_at_their_first_use():
    code = """
import sys, shardwright as sw
assert not {"shardwright.torch", "shardwright.jax", "jax", "xdsl"} & set(sys.modules) and not hasattr(sw, "tensorflow")
sys.modules["torch"] = sys.modules["jax"] = sys.modules["xdsl"] = None  # as if they were not installed
for name in ("torch", "ttnn", "jax", "mlir"):
    try:
        getattr(sw, name)
    except ModuleNotFoundError as error:
        print(error)
for name in ("torch", "jax"):
    try:
        __import__(f"shardwright.{name}")
    except ModuleNotFoundError as error:
        print(error)
del sys.modules["torch"], sys.modules["jax"]
print(sorted(set(sw.torch.__all__) & {"shard_module", "to_dtensor"}), sw.torch is sys.modules["shardwright.torch"])
print(sw.jax.MeshShardingHelper.__name__, sw.jax is sys.modules["shardwright.jax"], sw.jax.utils.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "shardwright.torch needs torch, which is not installed. Run: pip install 'shardwright[torch]'.",
        "shardwright.ttnn needs torch, which is not installed. Run: pip install 'shardwright[torch]'.",
        "shardwright.jax needs jax, which is not installed. Run: pip install 'shardwright[jax]'.",
        "shardwright.mlir needs xdsl, which is not installed. Run: pip install 'shardwright[mlir]'.",
        "shardwright.torch needs torch, which is not installed. Run: pip install 'shardwright[torch]'.",
        "shardwright.jax needs jax, which is not installed. Run: pip install 'shardwright[jax]'.",
        "['shard_module', 'to_dtensor'] True",
        "MeshShardingHelper True shardwright.jax.utils",
    ]
    assert not {"torch", "ttnn", "jax", "mlir"} & set(sw.__all__)


def test_the_exported_names_are_these():
    names = """
        Array ImplicitGatherError ImplicitGatherWarning Link Mesh P PerDevice ShapeDtype Sharding ShardwrightError
        auto auto_sharding checked collectives cond engine errors explain from_process_local from_shards gather hardware launch
        match_sharding_rule measure nn numpy picture plan_reshard process_coords process_index random replicate rules
        scan shard shard_map sjit strict while_loop with_sharding_annotation with_sharding_constraint
    """
    assert sorted(sw.__all__) == names.split()
    assert all(hasattr(sw, name) for name in sw.__all__)
    assert (SOURCE / "py.typed").exists()


def test_no_module_has_a_public_functions_name():
    functions = {name for name in sw.__all__ if callable(getattr(sw, name)) and not isinstance(getattr(sw, name), type)}
    modules = {path.stem for path in SOURCE.rglob("*.py")} | {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert len(functions) > 15
    assert functions & modules == set()


def test_every_error_is_a_shardwright_error():
    errors = [e for e in vars(sw.errors).values() if isinstance(e, type) and not issubclass(e, Warning)]
    assert all(issubclass(error, sw.ShardwrightError) for error in errors)


def test_the_demo_checks_itself(capsys):
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "The result is right." in printed
    assert "f32[16,30@model] on Mesh(data=2, model=4)" in printed


def test_the_command_line_explains_itself(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("demo", "run", "mlir"))


def test_the_package_is_the_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(sw.__version__)


def test_the_comparisons_can_fail():
    for actual, expected in (([1], [2]), ([1], [1, 2]), ([1], [1.0]), ([np.nan], [1.0])):
        with pytest.raises(AssertionError):
            assert_same(actual, expected)
    assert_same([np.nan], [np.nan])
    with pytest.raises(AssertionError, match=r"device \(1,\): 1 of 1 elements differ"):
        assert_devices(sw.Mesh(x=2), [[1], [2]], {(0,): [1], (1,): [3]})
    with pytest.raises(AssertionError):
        assert_devices(sw.Mesh(x=2), [[1]], {(0,): [1], (1,): [3]})
