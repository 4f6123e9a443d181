"""Texts of the mesh dialect for tests, and their spelling in the shard dialect."""

import re

SIZES = {"a0": 2, "a1": 3, "a2": 2}
SHAPE = (6, 12)

# One collective a line: name, what follows `mesh.<name> %x on @m `, result type; `(…)` where operands are in brackets.
COLLECTIVES = {
    "all_gather": ("mesh_axes = [1, 0] gather_axis = 0", "36x12xf32"),
    "all_gather_last": ("mesh_axes = [2] gather_axis = 1", "6x24xf32"),
    "all_reduce": ("mesh_axes = [1, 2]", "6x12xf32"),
    "all_reduce_wide": ("mesh_axes = [0] reduction = <max>", "6x12xf64"),
    "all_reduce_average": ("mesh_axes = [0, 1] reduction = <average>", "6x12xf32"),
    "all_slice": ("mesh_axes = [1, 0] slice_axis = 1", "6x2xf32"),
    "all_to_all": ("mesh_axes = [1] split_axis = 0 concat_axis = 1", "2x36xf32"),
    "all_to_all_same": ("mesh_axes = [2, 1] split_axis = 1 concat_axis = 1", "6x12xf32"),
    "broadcast": ("mesh_axes = [0, 2] root = [1, 0]", "(6x12xf32"),
    "gather": ("mesh_axes = [1] gather_axis = 1 root = [2]", "(6x36xf32"),
    "reduce": ("mesh_axes = [1] reduction = <product> root = [1]", "(6x12xf32"),
    "reduce_scatter": ("mesh_axes = [1, 0] scatter_axis = 1", "6x2xf32"),
    "scatter": ("mesh_axes = [0] scatter_axis = 0 root = [1]", "(3x12xf32"),
    "shift": ("mesh_axes = [0, 1] shift_axis = 1 offset = 1", "6x12xf32"),
    "shift_round": ("mesh_axes = [1] shift_axis = 1 offset = -2 rotate", "6x12xf32"),
}


def collective(case):
    """The line of a case: `%y = mesh.all_gather %x on …`, and the type of its result."""
    name = re.match("(all_gather|all_reduce|all_slice|all_to_all|reduce_scatter|[a-z]+)", case).group()
    middle, result = COLLECTIVES[case]
    source = "tensor<6x12xf32>"
    kind = f"tensor<{result.strip('(')}>"
    return f"%y = mesh.{name} %x on @m {middle} : {f'({source})' if result[0] == '(' else source} -> {kind}", kind


def function(body, result, name="f", mesh="2x3x2", argument="%x: tensor<6x12xf32>"):
    """A module with one function, whose last value is %y."""
    return f"mesh.mesh @m(shape = {mesh})\nfunc.func @{name}({argument}) -> {result} {{\n  {body}\n  return %y : {result}\n}}\n"


def in_shard(text):
    """A text of the mesh dialect as LLVM 22 writes it."""
    text = text.replace("mesh.mesh_shape", "shard.grid_shape").replace("mesh.mesh ", "shard.grid ")
    text = text.replace("mesh_axes", "grid_axes").replace("!mesh.", "!shard.").replace(" mesh.", " shard.")
    return re.sub(r"reduction = <(\w+)>", r"reduction = \1", text)
