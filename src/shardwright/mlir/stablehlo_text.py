"""StableHLO text, parsed by the MLIR of jaxlib, which reads both forms; errors become ours, with line and caret.

Values of attributes are turned into Python's here, so that nothing else sees the bindings' types.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from shardwright.errors import MLIRError, ShardwrightError
from shardwright.mlir.parsing import Source

_WRITTEN = re.compile(r"\b(?:stablehlo|chlo|sdy|mhlo)\.\w")
_NUMBER = re.compile(r"true|false|0x[0-9A-Fa-f]+|[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?)")
_PLACE = re.compile(r'loc\("([^"]*)":(\d+):(\d+)\)')
_DTYPES = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "ui8": "uint8", "ui16": "uint16",
    "ui32": "uint32", "ui64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip


def is_stablehlo(text: str) -> bool:
    """Whether a text is StableHLO, or its sharding dialects."""
    return _WRITTEN.search(text) is not None


@cache
def _context() -> Any:
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext  # func and the like have no registration of their own
        from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "StableHLO is parsed by jaxlib, which is not installed. Run: pip install 'shardwright[jax]'.", name="jaxlib"
        ) from error
    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for register in (
        stablehlo.register_dialect,
        chlo.register_dialect,
        sdy.register_dialect,
        mhlo.register_mhlo_dialect,
    ):
        register(context)
    return context


class _Place(NamedTuple):
    filename: str
    start_line: int
    start_col: int


class Text:
    """A parsed text: its module, and where operations are."""

    def __init__(self, text: str, file: str) -> None:
        self.source = Source(text, file)
        self.source.check_size()
        context = _context()
        from jaxlib.mlir import ir

        with context:
            try:
                self.module = ir.Module.parse(text)
            except ir.MLIRError as error:
                first = error.error_diagnostics[0]
                raise self.source.error(_sentence(first.message), self._offset(first.location) or 0) from error

    def error(self, message: str, op: Any) -> MLIRError:
        """An error at an operation."""
        offset = self._offset(op.location)
        if offset is None:  # the text says that it is from elsewhere
            offset = max(self.source.text.find(op.name), 0)
        return self.source.error(message, offset)

    @contextlib.contextmanager
    def blamed(self, op: Any) -> Iterator[None]:
        """Inside, errors of the library become errors at an operation."""
        try:
            yield
        except MLIRError:
            raise
        except ShardwrightError as error:
            raise self.error(str(error), op) from error

    def line_of(self, op: Any) -> str:
        """Where an operation is from: the file and line that it says, or its line of this text."""
        for location in _files(op.location):
            if location.filename != "-":
                return f"{location.filename}:{location.start_line}"
            return f"{self.source.file}:{location.start_line}"
        return ""

    def _offset(self, location: Any) -> int | None:
        for found in _files(location):
            if found.filename == "-":
                lines = self.source.text.split("\n")[: found.start_line - 1]
                return sum(len(line) + 1 for line in lines) + found.start_col - 1
        return None


def _files(location: Any) -> Iterator[Any]:
    """The places in files that a location comes to."""
    kind = type(location).__name__
    if kind == "FileLineColLoc":
        yield location
    elif kind == "NameLoc":
        yield from _files(location.child_loc)
    elif kind == "CallSiteLoc":
        yield from _files(location.callee)
    elif kind == "FusedLoc":
        for part in location.locations:
            yield from _files(part)
    elif found := _PLACE.fullmatch(str(location)):  # of an error, without a type of its own
        yield _Place(found.group(1), int(found.group(2)), int(found.group(3)))


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


# -- types and attributes ------------------------------------------------------------------------------------------------


def dtype_of(name: str) -> "np.dtype[Any] | None":
    """The dtype of an element type by its name; None for an unknown name."""
    known = _DTYPES.get(name)
    if known == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return None if known is None else np.dtype(known)


def kind_of(text: Text, value: Any, op: Any) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """The shape and the dtype of a tensor value."""
    shape, element = _tensor(str(value.type))
    dtype = None if shape is None else dtype_of(element)
    if shape is None or dtype is None:
        raise text.error(f"Values of type {value.type} are not supported. Use tensors of static shape.", op)
    return shape, dtype


_TENSOR = re.compile(r"tensor<((?:\d+x)*)([^,]+?)(?:, .*)?>")


def _tensor(text: str) -> tuple[tuple[int, ...] | None, str]:
    found = _TENSOR.fullmatch(text)
    if found is None or "?" in text:
        return None, ""
    return tuple(int(n) for n in found.group(1).split("x") if n), found.group(2)


def integers(op: Any, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """The integers of an attribute, whatever it is written as."""
    if name not in op.attributes:
        return tuple(default)
    attribute = op.attributes[name]
    try:
        return tuple(int(n) for n in np.asarray(attribute).reshape(-1))
    except (TypeError, ValueError):
        return tuple(int(n) for n in attribute)


def integer(op: Any, name: str, default: int = 0) -> int:
    """The integer of an attribute."""
    return int(op.attributes[name].value) if name in op.attributes else default


def constant(op: Any) -> Any:
    """The elements of a constant; one element repeated takes no memory."""
    shape, element = _tensor(str(op.results[0].type))
    dtype = dtype_of(element)
    assert shape is not None
    assert dtype is not None
    try:
        attribute = op.attributes["value"]
        if attribute.is_splat:
            return np.broadcast_to(np.asarray(attribute, dtype).reshape(-1)[0], shape)
        return np.array(attribute, dtype).reshape(shape)
    except TypeError:  # the bindings don't know all element types
        return _written(str(op), shape, dtype)


def _written(text: str, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Any:
    """The elements of `dense<…>` from its text."""
    body = text[text.index("dense<") + 6 : text.rindex("> :")]
    if body.startswith('"0x'):
        elements = np.frombuffer(bytes.fromhex(body[3:-1]), dtype)
    else:
        part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
        elements = np.array([_element(token, part) for token in _NUMBER.findall(body)], part)
        elements = elements.view(dtype) if dtype.kind == "c" else elements
    return np.broadcast_to(elements[0], shape) if elements.size == 1 else elements.reshape(shape)


def _element(token: str, dtype: "np.dtype[Any]") -> Any:
    if token.startswith("0x"):  # the bits of a float
        return np.array(int(token, 16), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(token == "true" if token in ("true", "false") else float(token))
