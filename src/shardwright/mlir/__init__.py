"""MLIR: programs of the mesh and shard dialects read, checked, run and written.

`loads` reads a file and gives its functions, `verify` lists what is wrong with one, `dumps` writes a program.
"""

from collections.abc import Mapping, Sequence

from shardwright.errors import MLIRError
from shardwright.mlir.functions import Function, Module
from shardwright.mlir.parsing import Source
from shardwright.mlir.verifying import problems

__all__ = ["Function", "loads", "verify"]


def loads(
    text: str,
    *,
    file: str = "<mlir>",
    engine: str = "numpy",
    device: str = "cpu",
    mesh_shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Function]:
    """The functions of a file of MLIR, by name; the text is verified first.

    >>> fns = loads('''
    ... mesh.mesh @m(shape = 4)
    ... func.func @f(%x: tensor<2xf32>) -> tensor<8xf32> {
    ...   %y = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    ...   return %y : tensor<8xf32>
    ... }''')
    >>> fns["f"].explain().rows[0].collective
    'all_gather a0'

    `mesh_shapes` gives the sizes of meshes whose shape has `?`; `engine` and `device` are those of the mesh.
    """
    source = Source(text, file)
    module = source.parsed()
    for error in (*source.checked(module), *problems(source, module)):
        raise error
    made = Module(source, module, engine, device, mesh_shapes or {})
    return {name: Function(made, op) for name, op in made.functions.items()}


def verify(text: str, *, file: str = "<mlir>") -> list[MLIRError]:
    """What is wrong with a file of MLIR: what the dialect's verifier reports, and what it misses; [] if nothing is.

    >>> print(verify("mesh.mesh @m(shape = 0x2)")[0].message)
    'mesh.mesh' op has an axis of size 0, so no device. Give every axis one device or more.
    """
    source = Source(text, file)
    try:
        module = source.parsed()
    except MLIRError as error:
        return [error]
    return [*source.checked(module), *problems(source, module)]
