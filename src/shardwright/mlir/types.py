"""Types of MLIR as dtypes and shapes, and back."""

from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.ir import Attribute

from shardwright.errors import MLIRError

_FLOATS: dict[type, str] = {
    b.Float16Type: "float16",
    b.Float32Type: "float32",
    b.Float64Type: "float64",
    b.BFloat16Type: "bfloat16",
}
_WIDTHS = (8, 16, 32, 64)


def dtype_of(kind: Attribute) -> "np.dtype[Any] | None":
    """The dtype of an element type; None if there is no such dtype. Integers without a sign are signed."""
    if isinstance(kind, b.IndexType):
        return np.dtype(np.int64)
    if isinstance(kind, b.ComplexType):
        inner = dtype_of(kind.element_type)
        return (
            None if inner is None or inner.name not in ("float32", "float64") else np.result_type(inner, np.complex64)
        )
    if isinstance(kind, b.IntegerType):
        width, unsigned = kind.width.data, kind.signedness.data is b.Signedness.UNSIGNED
        if width == 1:
            return np.dtype(bool)
        return np.dtype(f"{'u' if unsigned else ''}int{width}") if width in _WIDTHS else None
    name = _FLOATS.get(type(kind))
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  # registers the name
        except ModuleNotFoundError as error:
            raise MLIRError("bf16 needs the extra dtypes: pip install 'shardwright[dtypes]'.") from error
    return None if name is None else np.dtype(name)


def element_of(kind: Attribute) -> Attribute:
    """The element type of a tensor, or a scalar's own type."""
    return kind.get_element_type() if isinstance(kind, b.TensorType | b.MemRefType) else kind


def sizes_of(kind: Attribute) -> tuple[int, ...]:
    """The sizes of a tensor type; () for a scalar."""
    return tuple(kind.get_shape()) if isinstance(kind, b.TensorType | b.MemRefType) else ()


def encoding_of(kind: Attribute) -> Attribute | None:
    """What a tensor type says beside shape and elements, such as a sharding; None if it says nothing."""
    if not isinstance(kind, b.TensorType) or isinstance(kind.encoding, b.NoneAttr):
        return None
    return kind.encoding


def unread_encoding(kind: Attribute) -> str:
    """Why a type with an encoding is refused."""
    return f"{kind} has an encoding, which is not read. Annotate the value instead: mesh.shard %x to <@mesh, [[0]]>."


def is_sharding(kind: Attribute) -> bool:
    """Whether a type is that of shardings, `!shard.sharding`."""
    return kind.name in ("mesh.sharding", "shard.sharding")


def type_name(dtype: "np.dtype[Any]") -> str:
    """The element type of a dtype, as MLIR writes it.

    >>> [type_name(np.dtype(name)) for name in ("float32", "bool", "int16", "uint8", "complex64")]
    ['f32', 'i1', 'i16', 'ui8', 'complex<f32>']
    """
    if dtype.kind == "b":
        return "i1"
    if dtype.name == "bfloat16":
        return "bf16"
    if dtype.kind == "c":
        return f"complex<f{dtype.itemsize * 4}>"
    letter = {"f": "f", "i": "i", "u": "ui"}.get(dtype.kind)
    if letter is None:
        raise MLIRError(f"MLIR has no element type for {dtype}. Convert with astype first.")
    return f"{letter}{dtype.itemsize * 8}"


def tensor_name(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> str:
    """A tensor type, as MLIR writes it.

    >>> tensor_name((4, 6), np.dtype("float32")), tensor_name((), np.dtype("int64"))
    ('tensor<4x6xf32>', 'tensor<i64>')
    """
    return f"tensor<{''.join(f'{n}x' for n in shape)}{type_name(dtype)}>"
