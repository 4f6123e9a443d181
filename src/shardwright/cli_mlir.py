"""The commands on files of MLIR: `shardwright run`, and `shardwright mlir verify`, `partition` and `convert`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardwright as sw
from shardwright.arrays import PerDevice
from shardwright.errors import MLIRError
from shardwright.sharding import Sharding


def add_commands(commands: Any) -> None:
    """The parsers of these commands; each sets `call`."""
    run = commands.add_parser("run", help="run a function of an MLIR file on a virtual mesh")
    run.add_argument("file", help="a file of the mesh or shard dialect")
    run.add_argument("--function", help="its name; not needed if the file has one")
    run.add_argument("--input", nargs="*", default=[], metavar="A.npy", help="one for each argument; a ramp by default")
    run.add_argument("--output", metavar="OUT.npz", help="where results are stored, as result0, result1, …")
    run.add_argument("--engine", default="numpy", help="numpy (default), literal, torch or jax")
    run.add_argument("--explain", action="store_true", help="print every step and what it costs, before the results")
    run.set_defaults(call=_run)
    _add_reading(run)
    group = commands.add_parser("mlir", help="check and rewrite MLIR files").add_subparsers(
        dest="action", required=True
    )
    verify = group.add_parser("verify", help="list what is wrong with a file")
    partition = group.add_parser("partition", help="print what each device runs, with collectives")
    convert = group.add_parser("convert", help="print a file in another dialect")
    convert.add_argument("--to", choices=("shard", "mesh"), required=True, help="shard (LLVM 22) or mesh (LLVM 19)")
    for parser, call in ((verify, _verify), (partition, _partition), (convert, _convert)):
        parser.add_argument("file")
        parser.set_defaults(call=call)
        if parser is not verify:
            _add_reading(parser)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of commands that read functions."""
    parser.add_argument(
        "--mesh-shape", action="append", default=[], metavar="NAME=2x4", help="the sizes of a mesh whose shape has `?`"
    )
    parser.add_argument(
        "--view",
        choices=("global", "local"),
        help="of functions with neither collectives nor annotations; global by default",
    )


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MLIRError(f"{file} is not a text in UTF-8: {error.reason} at byte {error.start}.") from error


def _functions(arguments: argparse.Namespace) -> dict[str, Any]:
    functions: dict[str, Any] = sw.mlir.loads(
        _text(arguments.file),
        file=arguments.file,
        engine=getattr(arguments, "engine", "numpy"),
        mesh_shapes=dict(map(_mesh_shape, arguments.mesh_shape)),
        view=arguments.view,
    )
    return functions


def _mesh_shape(given: str) -> tuple[str, tuple[int, ...]]:
    """`name=2x4`."""
    name, _, sizes = given.removeprefix("@").partition("=")
    try:
        return name, tuple(map(int, sizes.split("x")))
    except ValueError as error:
        raise MLIRError(f"--mesh-shape {given} is not a name and sizes. Write it as NAME=2x4.") from error


def _verify(arguments: argparse.Namespace) -> int:
    found = sw.mlir.verify(_text(arguments.file), file=arguments.file)
    for error in found:
        print(error)
    if not found:
        print(f"{arguments.file}: nothing is wrong.")
    return 1 if found else 0


def _partition(arguments: argparse.Namespace) -> int:
    functions = _functions(arguments)
    _note_shardings(arguments.file, functions)
    dialect = sw.mlir.dialect_of(_text(arguments.file))
    print(sw.mlir.dumps({name: f.program for name, f in functions.items()}, dialect, "local"), end="")
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    functions = _functions(arguments)
    _note_shardings(arguments.file, functions)
    print(sw.mlir.dumps({name: f.program for name, f in functions.items()}, arguments.to), end="")
    return 0


def _note_shardings(file: str, functions: dict[str, Any]) -> None:
    """Say which results the text leaves out: programs compute tensors, no shardings."""
    for name, function in functions.items():
        for at in getattr(function, "sharding_results", ()):  # StableHLO has none
            print(f"{file}: result {at} of @{name} is a sharding, which the text leaves out.", file=sys.stderr)


# -- run --------------------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    function = _chosen(_functions(arguments), arguments.function)
    kinds = function.argument_types
    if arguments.input and len(arguments.input) != len(kinds):
        raise MLIRError(
            f"@{function.__name__} takes {len(kinds)} arguments, but {len(arguments.input)} --input were given."
        )
    files = zip(arguments.input, kinds, strict=True) if arguments.input else ()
    given = [_loaded(function, file, shape) for file, (shape, _) in files] or [_ramp(function, *kind) for kind in kinds]
    if arguments.explain:
        print(function.specialised(*(x.shape for x in given)).explain())
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    for at, result in enumerate(results):
        print(f"result {at}:\n{result}")
    if arguments.output:
        stored = {f"result{at}": _host(result) for at, result in enumerate(results)}
        np.savez(arguments.output, **stored)
    return 0


def _chosen(functions: dict[str, Any], name: str | None) -> Any:
    known = ", ".join(functions) or "none"
    if name is None:
        if len(functions) != 1:
            raise MLIRError(f"The file has the functions {known}. Choose one with --function.")
        (name,) = functions
    if name not in functions:
        raise MLIRError(f"There is no function {name!r}. The file has {known}.")
    return functions[name]


def _loaded(function: Any, file: str, shape: Sequence[int]) -> Any:
    """An argument from a file: the tensor, or in the local view, with one more dim first, one for each device."""
    try:
        host = np.load(file, allow_pickle=False)
    except (EOFError, ValueError) as error:
        raise MLIRError(f"{file} can't be read as a .npy file: {error}.") from error
    if not isinstance(host, np.ndarray):
        raise MLIRError(f"{file} holds several arrays. Store each argument in a .npy file of its own.")
    if function.is_local and host.ndim == len(shape) + 1:
        if len(host) != function.mesh.size:
            raise MLIRError(
                f"{file} has shape {host.shape}: the first dim is not the number of devices, {function.mesh.size}."
            )
        return PerDevice(function.mesh, list(host))
    return host


def _ramp(function: Any, shape: Sequence[int], dtype: Any) -> Any:
    """0, 1, 2, …: in the local view counted on from device to device."""
    if any(n < 0 for n in shape):
        raise MLIRError(f"@{function.__name__} has sizes that are `?`. Give its arguments with --input.")
    size, devices = int(np.prod(shape)), function.mesh.size if function.is_local else 1
    whole = np.arange(devices * size).astype(dtype).reshape(devices, *shape)
    return PerDevice(function.mesh, list(whole)) if function.is_local else whole[0]


def _host(result: Any) -> Any:
    if isinstance(result, Sharding):
        return np.asarray(str(result))
    return np.stack(result.values()) if isinstance(result, PerDevice) else np.asarray(result)
