"""The notation of a sharded tensor, `f32[128@data,64] + sum{model}`, formatted and parsed.

type    := dtype "[" dim ("," dim)* "]" (" + " reduction "{" axis ("," axis)* "}")?
dim     := size ("@" axes ("/" offset)* ("~" low ":" high)?)?
axes    := axis | "(" axis ("," axis)* ")"
axis    := name | name ":(" pre ")" size
"""

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from shardwright.errors import ShardingError
from shardwright.mesh import Mesh
from shardwright.sharding.reductions import REDUCTIONS
from shardwright.sharding.sharding import Sharding
from shardwright.sharding.spec import P

_SHORT = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float16": "f16", "float32": "f32", "float64": "f64", "complex64": "c64",
    "complex128": "c128", "bfloat16": "bf16",
}  # fmt: skip
_LONG = {short: name for name, short in _SHORT.items()}
_NUMPYS = {*_SHORT, np.dtype(np.longdouble).name, np.dtype(np.clongdouble).name} - {"bfloat16"}

_AXIS = r"[^:@,+/~{}\[\]() ]+(?::\(\d+\)\d+)?"
_DIM = re.compile(
    rf"(?P<size>\d+)(?:@(?:(?P<one>{_AXIS})|\((?P<many>{_AXIS}(?:,{_AXIS})*)\))"
    r"(?P<offsets>(?:/\d+)*)(?:~(?P<low>\d+):(?P<high>\d+))?)?"
)
_TYPE = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\[\]]*)\](?: \+ (?P<reduction>\w+)\{(?P<partial>[^{}]*)\})?")


def dtype_name(dtype: object) -> str:
    """The short name of a dtype.

    >>> dtype_name(np.float32), dtype_name("uint8")
    ('f32', 'u8')
    """
    name: str = np.dtype(dtype).name  # type: ignore[call-overload]  # anything NumPy accepts as a dtype
    return _SHORT.get(name, name)


def as_dtype(dtype: Any) -> "np.dtype[np.generic]":
    """NumPy's dtype for what people write: its own, a name such as "bfloat16", torch's or JAX's.

    >>> as_dtype("bfloat16").itemsize
    2
    """
    try:
        return np.dtype(dtype)
    except TypeError:
        return parse_dtype(str(dtype).removeprefix("torch."))


def describe(sharding: Sharding, shape: tuple[int, ...], dtype: object, most: int | None = None) -> str:
    """The notation for a tensor of a shape and dtype under a sharding.

    >>> describe(Sharding(Mesh(data=2, model=4), P("data"), partial="model"), (128, 64), "float32")
    'f32[128@data,64] + sum{model}'

    Where a dim has more than `most` offsets, only the first of them and the last are shown; that text can't be parsed.
    """
    fitted = sharding.for_shape(shape)
    dims = []
    for at, size in enumerate(shape):
        axes, cuts, halo = fitted.dims[at], fitted.offsets_of(at), fitted.halo_of(at)
        text = str(size)
        if axes:
            text += "@" + (axes[0] if len(axes) == 1 else f"({','.join(axes)})")
        if most is None or len(cuts) <= most:
            text += "".join(f"/{cut}" for cut in cuts)
        else:
            text += "".join(f"/{cut}" for cut in cuts[: most - 1]) + f"/…/{cuts[-1]}"
        if halo != (0, 0):
            text += f"~{halo[0]}:{halo[1]}"
        dims.append(text)
    partial = f" + {fitted.reduction}{{{','.join(fitted.partial)}}}" if fitted.partial else ""
    return f"{dtype_name(dtype)}[{','.join(dims)}]{partial}"


def parse(text: str, mesh: Mesh) -> tuple[Sharding, tuple[int, ...], "np.dtype[np.generic]"]:
    """Parses the notation to a sharding on a mesh, a shape and a dtype.

    >>> parse("f32[128@data,64] + sum{model}", Mesh(data=2, model=4))
    (Sharding(Mesh(data=2, model=4), P('data', None), partial=('model',)), (128, 64), dtype('float32'))
    """
    whole = _TYPE.fullmatch(text)
    if whole is None:
        raise ShardingError(f"{text!r} is not a sharded tensor. Write it like 'f32[128@data,64] + sum{{model}}'.")
    shape, entries = [], []
    halo, offsets = {}, {}
    for at, piece in enumerate(_split_dims(whole["dims"])):
        dim = _DIM.fullmatch(piece)
        if dim is None:
            column = text.index(piece) if piece else whole.start("dims")
            raise ShardingError(
                f"Dim {at} of the sharded tensor is invalid; write it like 128, 128@data or 128@(x,y):\n"
                f"  {text}\n  {' ' * column}^"
            )
        shape.append(int(dim["size"]))
        entries.append(tuple(filter(None, (dim["one"] or dim["many"] or "").split(","))))
        if dim["offsets"]:
            offsets[at] = [int(cut) for cut in dim["offsets"][1:].split("/")]
        if dim["low"]:
            halo[at] = (int(dim["low"]), int(dim["high"]))
    reduction = whole["reduction"] or "sum"
    if reduction not in REDUCTIONS:
        raise ShardingError(f"{text!r} names the reduction {reduction!r}. Use one of {', '.join(REDUCTIONS)}.")
    sharding = Sharding(
        mesh,
        P(*entries),
        partial=tuple(filter(None, (whole["partial"] or "").split(","))),
        reduction=reduction,
        halo=halo,
        offsets=offsets,
    )
    return sharding.for_shape(tuple(shape)), tuple(shape), parse_dtype(whole["dtype"], text)


def _split_dims(text: str) -> list[str]:
    """Splits at the commas outside parentheses."""
    pieces, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    return pieces if text else []


def parse_dtype(name: str, text: str = "") -> "np.dtype[np.generic]":
    full = _LONG.get(name, name)
    if full in _NUMPYS:
        return np.dtype(full)
    small = getattr(import_module("ml_dtypes"), full, None) if find_spec("ml_dtypes") else None
    if isinstance(small, type) and issubclass(small, np.generic):
        return np.dtype(small)
    raise ShardingError(
        f"{text or name!r} names the unknown dtype {name!r}. Write f32, i8, bool, …; small floats such as bf16 "
        f"need ml_dtypes: pip install 'shardwright[dtypes]'."
    )
