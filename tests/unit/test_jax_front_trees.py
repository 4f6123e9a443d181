"""Pytrees of JAX: paths, patterns on many of them, and the memory that sharding one takes."""

import collections
import itertools
import random
import re
import subprocess
import sys
from typing import NamedTuple

import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import TreeError
from shardwright.jax.paths import leaves_with_paths
from shardwright.jax.utils import JaxRNG, flatten_tree, get_float_dtype_by_name


class Pair(NamedTuple):
    first: object
    second: object


@flax.struct.dataclass
class State:
    params: object
    name: str = flax.struct.field(pytree_node=False, default="mlp")


@jax.tree_util.register_pytree_node_class
class Unnamed:
    """A node that has no names for its children."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@pytest.mark.parametrize(
    "tree",
    [
        1,
        None,
        {},
        {"b": {"y": 1, "x": 2}, "a": [3, (4, None, 5)]},
        {2: 1, 1: {"k": 2}},
        collections.OrderedDict(z=1, a=[2]),
        collections.defaultdict(list, b=[1], a=[2, 3]),
        Pair({"w": 1}, [2, Pair(3, None)]),
        State(params=flax.core.freeze({"dense": {"kernel": 1, "bias": 2}})),
        Unnamed(1, {"a": Unnamed(2, 3)}, None),
        [Unnamed(), (), 1, "text", np.ones(2).shape, jnp.float32],
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_leaves_and_paths_are_those_of_jax(tree):
    paths, leaves = leaves_with_paths(tree)
    expected = flatten_tree(tree, sep="/")
    assert paths == list(expected)
    assert leaves == list(expected.values()) == jax.tree.leaves(tree)


def test_a_tree_that_contains_itself():
    tree = {}
    tree["again"] = tree
    with pytest.raises(TreeError, match="nested too deeply, or contains itself"):
        leaves_with_paths(tree)


PIECES = [
    "[0-9]",
    "[2-4]",
    "3",
    "/7",
    r"\d",
    r"\d$",
    "a",
    ".",
    "^a",
    "[^5]/",
    r"\w7",
    "(1|a)",
    "[a-z]",
    "[--5]",
    r"(\d)\1",
    r"\x31",
]


def test_patterns_on_paths_that_differ_in_digits():
    """Many patterns, each path searched once with re as the reference."""
    rng = random.Random(0)
    paths = ["".join(rng.choice("a/0123456789") for _ in range(rng.randint(0, 5))) for _ in range(400)]
    leaf = np.ones(4)
    for _ in range(150):
        patterns = ["".join(rng.choices(PIECES, k=rng.randint(1, 2))) for _ in range(rng.randint(1, 4))]
        rule = sw.rules.TreePathShardingRule(
            *((pattern, sw.P(str(number))) for number, pattern in enumerate(patterns)), ("", sw.P())
        )
        expected = [
            next((sw.P(str(number)) for number, pattern in enumerate(patterns) if re.search(pattern, path)), sw.P())
            for path in paths
        ]
        rule.unused = lambda pattern, paths: None
        assert rule.specs_of(paths, [leaf] * len(paths), None) == expected, patterns


def test_digits_that_no_pattern_tells_apart():
    def table(*patterns):
        rule = sw.rules.TreePathShardingRule(*((pattern, sw.P()) for pattern in patterns))
        return None if rule._digits is None else b"0123456789".translate(rule._digits).decode()

    assert table("kernel", r"\d+/bias") == "0000000000"
    assert table("[2-4]") == "0023455555"
    assert table("layer_0/", "x{2}") == "0123333333"
    assert table(r"(\d)\1") is table(r"\x33") is table("(?P<a>.)(?P=a)") is None


def test_unused_patterns_are_found_among_many_paths():
    searched = []
    rule = sw.rules.TreePathShardingRule(("kernel", sw.P()), ("b", sw.P()))
    rule.search = lambda pattern, path: searched.append(path) or pattern.search(path)
    rule.specs_of(
        [f"layer_{n:05}/{name}" for n, name in itertools.product(range(5000), ("kernel", "bias"))],
        [np.ones(2)] * 10000,
        None,
    )
    assert len(searched) == 3  # one path of each kind


def test_random_keys_and_dtypes_say_what_is_wrong(monkeypatch):
    monkeypatch.setattr(JaxRNG, "global_rng_generator", None)
    with pytest.raises(sw.ShardwrightError, match=r"Call JaxRNG.init_global_rng"):
        JaxRNG.next_rng()
    with pytest.raises(KeyError, match=r"'fp8' is not a float dtype. Use one of bf16"):
        get_float_dtype_by_name("fp8")


MEMORY = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
import shardwright.jax as sj

helper = sj.MeshShardingHelper((8,), ("x",))
shapes = {i: np.empty((1024, 1024), np.float32) for i in range(32)}
shards, gathers = helper.make_shard_and_gather_fns(shapes, sj.PartitionSpec("x"))
helper.apply_shard_and_gather_fns({0: shards[0]}, {0: np.ones((1024, 1024), np.float32)})
status = lambda: dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = lambda: int(status()["VmHWM"].split()[0]) / 1024  # unlike ru_maxrss it knows nothing of the parent process
tree = {i: np.ones((1024, 1024), np.float32) for i in range(32)}
before = peak()
sharded = helper.apply_shard_and_gather_fns(shards, tree)
placed = peak()
back = helper.apply_shard_and_gather_fns(gathers, sharded)
print(placed - before, peak() - placed)
"""


def test_sharding_and_gathering_need_one_copy():
    """128 MiB of host arrays: sharded they take as much again, and gathered too, with at most a leaf of 4 MiB beside them."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=120)
    sharded, gathered = map(float, done.stdout.split())
    assert 100 < sharded < 140
    assert 100 < gathered < 140
