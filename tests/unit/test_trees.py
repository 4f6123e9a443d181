"""Trees that are nested too deeply: an error of ours, wherever they are given."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P
from shardwright.errors import TreeError
from shardwright.trees import flatten, paths_of, prefix, structure_of, unflatten, with_prefix

MESH = sw.Mesh(x=2)
X = sw.shard(np.ones((4, 4)), MESH, P("x"))
TOO_DEEP = (
    r"A tree of arrays is nested more than about 1,000 levels deep, or contains itself. Put its arrays in one list"
)
Pair = namedtuple("Pair", "first second")
KINDS = {
    "list": lambda tree: [tree],
    "tuple": lambda tree: (tree, None),
    "dict": lambda tree: {"a": tree},
    "ordered": lambda tree: OrderedDict(a=tree, b=1),
    "namedtuple": lambda tree: Pair(1.0, tree),
}
USES = {
    "argument": lambda tree: sw.sjit(lambda t: 1)(tree),
    "keyword": lambda tree: sw.sjit(lambda x, t: x)(X, t=tree),
    "result": lambda tree: sw.sjit(lambda x: tree)(X),
    "lower": lambda tree: sw.sjit(lambda t: t).lower(tree),
    "explain": lambda tree: sw.explain(lambda t: t, tree),
    "measure": lambda tree: sw.measure(lambda t: t, tree),
    "in_shardings": lambda tree: sw.sjit(lambda x: x, in_shardings=(tree,))(X),
    "out_shardings": lambda tree: sw.sjit(lambda x: x, out_shardings=tree)(X),
    "constraint": lambda tree: sw.with_sharding_constraint(tree, P()),
    "constraint in a program": lambda tree: sw.sjit(lambda x: sw.with_sharding_constraint(tree, P()))(X),
    "tree of specs": lambda tree: sw.with_sharding_constraint(X, tree),
    "annotation": lambda tree: sw.sjit(
        lambda x: sw.with_sharding_annotation(tree, "h"), annotation_shardings={"h": P()}
    )(X),
    "match_sharding_rule": lambda tree: sw.match_sharding_rule(P("x"), tree, MESH),
    "prefix of a rule": lambda tree: sw.match_sharding_rule([P("x")], [tree], MESH),
    "rule": lambda tree: sw.rules.FSDPShardingRule("x").apply(tree, MESH),
    "rule by path": lambda tree: sw.rules.TreePathShardingRule((".*", P("x"))).apply(tree, MESH),
    "rule by policy": lambda tree: sw.rules.PolicyShardingRule(lambda path, x: P()).apply(tree, MESH),
    "rule explained": lambda tree: sw.rules.FSDPShardingRule("x").explain(tree, MESH),
    "shard_map": lambda tree: sw.shard_map(lambda v: v, MESH, P(), P())(tree),
    "result of shard_map": lambda tree: sw.shard_map(lambda v: tree, MESH, P(), P())(X),
    "cond": lambda tree: sw.sjit(lambda x: sw.cond(snp.sum(x) > 0, lambda t: t, lambda t: t, tree))(X),
    "while_loop": lambda tree: sw.sjit(lambda x: sw.while_loop(lambda t: snp.sum(x) > 0, lambda t: t, tree))(X),
    "scan": lambda tree: sw.sjit(lambda x: sw.scan(lambda t, _: (t, None), tree, length=2))(X),
    "rows of scan": lambda tree: sw.scan(lambda t, row: (t, None), X, tree),
}


def nested(kind, depth):
    tree = X
    for _ in range(depth):
        tree = KINDS[kind](tree)
    return tree


@pytest.mark.parametrize(("kind", "depth"), [*((kind, 1_100) for kind in KINDS), ("list", 100_000), ("dict", 100_000)])
@pytest.mark.parametrize("use", USES)
def test_a_tree_too_deep_is_refused(use, kind, depth):
    with pytest.raises(TreeError, match=TOO_DEEP):
        USES[use](nested(kind, depth))


@pytest.mark.parametrize("use", [use for use in USES if use != "while_loop"])  # which would not end
def test_near_the_limit_a_tree_works_or_is_refused(use):
    for depth in range(990, 1_005):
        try:
            USES[use](nested("list", depth))
        except sw.ShardwrightError:
            continue


def test_a_tree_of_a_hundred_levels_works():
    tree = nested("dict", 100)
    assert flatten(sw.sjit(lambda t: t)(tree))[1] == structure_of(tree)
    assert flatten(sw.with_sharding_constraint(tree, P()))[0][0].sharding.spec == P(None, None)
    assert paths_of(tree) == ["/".join("a" * 100)]


def test_a_tree_that_contains_itself_is_refused():
    loop = [X]
    loop.append(loop)
    for use in ("argument", "constraint", "rule", "shard_map", "match_sharding_rule"):
        with pytest.raises(TreeError, match=TOO_DEEP):
            USES[use](loop)


def test_entries_of_a_prefix_meet_their_leaves():
    tree = {"b": [1, None], "a": (2, {"c": 3})}
    pairs, structure = with_prefix({"a": "A", "b": "B"}, tree)
    assert sorted(map(str, pairs)) == ["('A', 2)", "('A', 3)", "('B', 1)", "('B', None)"]
    assert unflatten(structure, [leaf for _, leaf in pairs]) == tree
    with pytest.raises(ValueError, match="the rule is a leaf"):
        prefix(P("x"), tree)
