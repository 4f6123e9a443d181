"""MLIR: programs of the mesh and shard dialects read, checked, run and written.

`loads` reads a file and gives its functions, `verify` lists what is wrong with one, `dumps` writes a program.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import xdsl as _xdsl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shardwright.mlir needs xdsl, which is not installed. Run: pip install 'shardwright[mlir]'.", name="xdsl"
    ) from error

from xdsl.dialects.builtin import ModuleOp

from shardwright.errors import MLIRError
from shardwright.mlir.fields import short_name
from shardwright.mlir.functions import Function, Module
from shardwright.mlir.parsing import Source
from shardwright.mlir.stablehlo import StableFunction, stablehlo_functions
from shardwright.mlir.stablehlo_text import is_stablehlo
from shardwright.mlir.verifying import problems
from shardwright.mlir.writing import written
from shardwright.program import Program

__all__ = ["Function", "StableFunction", "dialect_of", "dumps", "loads", "verify"]


def dumps(program: Program | Mapping[str, Program], dialect: str = "shard", view: str | None = None) -> str:
    """The text of a program, or of several by name: `shard` as LLVM 22 reads it, `mesh` as LLVM 19 does.

    >>> import numpy as np, shardwright as sw
    >>> step = sw.sjit(lambda x: x + x, mesh=sw.Mesh(x=2), in_shardings=sw.P("x"))
    >>> print(dumps(step.lower(np.ones(4, np.float32)).program, view="local"))
    shard.grid @grid0(shape = 2)
    func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
      %0 = arith.addf %arg0, %arg0 : tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    <BLANKLINE>

    `view` is "global" (one tensor a value, with annotations) or "local" (one device's tensors, with collectives); by
    default programs on arrays are written in the global view.
    """
    programs = dict(program) if isinstance(program, Mapping) else {"main": program}
    for each in programs.values():
        if not isinstance(each, Program):
            raise MLIRError(
                f"dumps writes a Program, or several by name; got {type(each).__name__}. The program of a function is "
                f"sw.sjit(fn, mesh=…).lower(*args).program, that of a text fn.program."
            )
    parts = [written(each, dialect, view, name) for name, each in programs.items()]
    headers = list(
        dict.fromkeys(header for header, _ in parts)
    )  # each names its mesh @grid0, the next of them @grid1, …
    numbered = [_numbered(header, number) for number, header in enumerate(headers)]
    texts = [_numbered(text, headers.index(header)) for header, text in parts]
    return "\n".join([*numbered, *texts, ""])


def _numbered(text: str, number: int) -> str:
    """A text in which the mesh has another number."""
    return re.sub(r"@(grid|mesh)0\b", rf"@\g<1>{number}", text) if number else text


def loads(
    text: str,
    *,
    file: str = "<mlir>",
    engine: str = "numpy",
    device: str | None = None,
    mesh_shapes: Mapping[str, Sequence[int]] | None = None,
    view: str | None = None,
) -> dict[str, Any]:
    """The functions of a file of MLIR, by name, a `Function` each, or a `StableFunction`; the text is verified first.

    >>> fns = loads('''
    ... mesh.mesh @m(shape = 4)
    ... func.func @f(%x: tensor<2xf32>) -> tensor<8xf32> {
    ...   %y = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>
    ...   return %y : tensor<8xf32>
    ... }''')
    >>> fns["f"].explain().rows[0].collective
    'all_gather a0'

    `mesh_shapes` gives the sizes of meshes whose shape has `?`; `engine` and `device` are those of the mesh. `view` says how
    functions are meant that have neither collectives nor annotations: "local", one device's tensors, or "global", the default.
    """
    if view not in (None, "global", "local"):
        raise MLIRError(f"There is no view {view!r}. Use 'global' or 'local'.")
    _check_text(text, "loads")
    if is_stablehlo(text):
        return stablehlo_functions(text, file, engine, device)
    source = Source(text, file)
    module = source.parsed()
    for error in _found(source, module):
        raise error
    made = Module(source, module, engine, device, mesh_shapes or {}, view)
    return {name: Function(made, op) for name, op in made.functions.items()}


def _check_text(text: Any, what: str) -> None:
    """Raises where there is a file, or its path, in place of its text."""
    is_text = isinstance(text, str)
    if not is_text or (text.endswith(".mlir") and len(text.splitlines()) == 1):
        shown = repr(text) if is_text else type(text).__name__
        raise MLIRError(f"{what} takes the text of a file; got {shown}. Read the file first: Path(…).read_text().")


def verify(text: str, *, file: str = "<mlir>") -> list[MLIRError]:
    """What is wrong with a file of MLIR: what the dialect's verifier reports, and what it misses; [] if nothing is.

    >>> print(verify("mesh.mesh @m(shape = 0x2)")[0].message)
    'mesh.mesh' op has an axis of size 0, so no device. Give every axis one device or more.
    """
    _check_text(text, "verify")
    source = Source(text, file)
    try:
        module = source.parsed()
    except MLIRError as error:
        return [error]
    return _found(source, module)


def _found(source: Source, module: ModuleOp) -> list[MLIRError]:
    """The errors of a module; the rules of the dialect need operations that are well-formed."""
    return list(source.checked(module)) or list(problems(source, module))


def dialect_of(text: str) -> str:
    """The dialect that a file's mesh is defined in; "shard" if it defines none.

    >>> dialect_of("mesh.mesh @m(shape = 2)")
    'mesh'
    """
    return (
        "mesh"
        if any(short_name(op) and op.name.startswith("mesh.") for op in Source(text, "").parsed().walk())
        else "shard"
    )
