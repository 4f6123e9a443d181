"""Operations: every device computes on its own tensor, with torch; shardings follow from the rules of the table."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own usage

from shardwright.arrays import PerDevice
from shardwright.engines.lanes import Lanes, stack
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.ops import OPS, Attrs, rule
from shardwright.plan import Problem, problem_of, result_without_moves
from shardwright.sharding import Sharding, layout_of
from shardwright.ttnn.blockfloat import TILE
from shardwright.ttnn.calls import operation
from shardwright.ttnn.dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, DataType, as_numpy, as_torch, held_as, in_blocks
from shardwright.ttnn.errors import TtnnIndexError, fatal
from shardwright.ttnn.memory import MemoryConfig
from shardwright.ttnn.tensors import Tensor, as_blocks, device_tensors, to_device

Local = Callable[..., torch.Tensor]


def _each(function: Local, operands: Sequence[Tensor], dtype: DataType) -> PerDevice:
    """Applies a function to the tensors of each device; equal inputs are computed once."""
    mesh = operands[0].mesh
    for other in operands[1:]:
        if other.mesh != mesh:
            raise fatal("Tensors are on different mesh devices", f"One is on {mesh}, the other on {other.mesh}.")
    lanes = [t.value.lanes for t in operands]
    plain = all(lane.axes == mesh.axis_names for lane in lanes)
    long = [
        any(n > 1 for n in sizes) for sizes in zip(*(lane.data.shape[: len(mesh.shape)] for lane in lanes), strict=True)
    ]
    uneven = any(e is not None for lane in lanes for e in lane.extents)
    tensors = [device_tensors(t) for t in operands]
    if not plain or uneven:
        long = [True] * len(mesh.shape)
    grid = np.arange(mesh.size).reshape(mesh.shape)
    made: dict[tuple[int, ...], Any] = {}
    for at in itertools.product(*(range(n) if some else (0,) for n, some in zip(mesh.shape, long, strict=True))):
        place = int(grid[at])
        local = function(*(_working(t[place], o.dtype) for t, o in zip(tensors, operands, strict=True)))
        made[at] = in_blocks(held_as(as_numpy(local.contiguous()), dtype), dtype)
    return _stacked(mesh, made, long)


def _working(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """A tensor in the dtype for computing: float32 for floats, an index dtype for integers."""
    if tensor.dtype.is_floating_point:
        return tensor.float()
    return tensor.long() if dtype in (DataType.UINT16, DataType.UINT32, DataType.UINT8, DataType.INT32) else tensor


def _stacked(mesh: Mesh, made: dict[tuple[int, ...], Any], long: Sequence[bool]) -> PerDevice:
    shapes = {x.shape for x in made.values()}
    if len(shapes) > 1:
        every = [
            made[tuple(i if some else 0 for i, some in zip(at, long, strict=True))] for at in np.ndindex(*mesh.shape)
        ]
        return PerDevice.of(stack(mesh, every))
    sizes = tuple(n if some else 1 for n, some in zip(mesh.shape, long, strict=True))
    data = np.stack(list(made.values())).reshape((*sizes, *next(iter(shapes))))
    return PerDevice.of(Lanes(mesh, mesh.axis_names, data, (None,) * (data.ndim - len(sizes))))


Place = tuple[Sharding, tuple[int, ...]] | None  # the sharding of one tensor and its shape, if the devices hold one


def _known(name: str, attrs: Attrs, operands: Sequence[Any]) -> Place:
    """The place of a table operation's result; None if a device lacks data for its own part."""
    if any(isinstance(t, Tensor) and t.sharding is None for t in operands):
        return None
    kinds = [
        (layout_of(t.sharding, t.global_shape), t.value.dtype) if isinstance(t, Tensor) and t.sharding else t
        for t in operands
    ]
    try:
        problem, _ = problem_of(OPS[name], kinds, attrs)
        results = result_without_moves(problem)
    except ShardwrightError:  # the global shapes don't match, though the local shapes may
        return None
    return None if results is None else (results[0], problem.rule.out_shape(0))


def _along(tensor: Tensor, dims: Sequence[int]) -> Place:
    """The place of a result of the operand's shape; None if a dim that the operation combines is split."""
    return (
        _known("fftn", Attrs(axis=tuple(d % len(tensor.shape) for d in dims)), (tensor,)) if _settled(tensor) else None
    )


def _settled(tensor: Tensor) -> bool:
    return tensor.sharding is not None and not tensor.sharding.partial


def _samples(operands: Sequence[Tensor], result: PerDevice) -> Place:
    """The place of the result of an operation on independent samples; None if other dims are split."""
    if any(not _settled(t) for t in operands):
        return None
    names = [[f"{i}.{d}" for d in range(len(t.global_shape))] for i, t in enumerate(operands)]
    names[0][0] = "b"
    made = [f"r{d}" for d in range(len(result.lanes.local_shape) - 1)]
    whole = [name for some in (*names, made) for name in some if name != "b"]
    text = f"{', '.join(' '.join(some) for some in names)} -> b {' '.join(made)}"
    sizes = dict(zip(made, result.lanes.local_shape[1:], strict=True))
    shapes = [t.global_shape for t in operands]
    fitted = rule("samples", text, shapes, whole=whole, sizes=sizes)
    problem = Problem(fitted, [t.sharding for t in operands if t.sharding], shapes, [t.value.dtype for t in operands])
    results = result_without_moves(problem)
    return None if results is None else (results[0], fitted.out_shape(0))


def _reduced(tensor: Tensor, dims: Sequence[int], keepdim: bool, linear: bool) -> Place:
    """The place of sums over dims; averages are only known if the dims are not split."""
    attrs = Attrs(axis=tuple(dims), keepdims=keepdim, dtype=tensor.value.dtype)
    place = _known("sum", attrs, (tensor,))
    if place is None or tensor.sharding is None or (not linear and place[0].partial != tensor.sharding.partial):
        return None
    return place


def _op(function: Local, operands: Sequence[Tensor], where: Any, options: dict[str, Any]) -> Tensor:
    first = operands[0]
    dtype = options.get("dtype") or first.dtype
    made = _each(function, operands, dtype)
    place = where(made) if callable(where) else where
    if place is not None and layout_of(*place).local_shape != tuple(made.lanes.local_shape):
        place = None  # the local results are not the shards of that tensor
    memory = options.get("memory_config") or first.memory_config()
    changes = {"dtype": dtype, "memory": memory, "layout": TILE_LAYOUT if dtype.is_block else first.layout}
    return first.like(made, place[0] if place else None, place[1] if place else None, **changes)


def _binary(name: str, rule_name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Tensor]:
    def run(a: Tensor, b: Any, *, activation: str | None = None, **options: Any) -> Tensor:
        act = _activation(activation)
        if isinstance(b, Tensor):
            place = None if activation else _known(rule_name, Attrs(), (a, b))
            return _op(lambda x, y: act(function(x, y)), (a, b), place, options)
        if isinstance(b, float) and a.dtype.value[:4] in ("uint", "int3") and "dtype" not in options:
            raise fatal(
                f"{a.dtype.value} and the float {b} would truncate the result",
                "Pass dtype=ttnn.float32, or typecast first.",
            )
        place = None if activation and not _settled(a) else _known(rule_name, Attrs(), (a, b))
        return _op(lambda x: act(function(x, b)), (a,), place, options)

    run.__name__ = name
    run.__doc__ = f"`{name}` of every element; operands broadcast, and the second may be a scalar."
    return operation("The shapes must broadcast; the second operand may be a scalar.")(run)


_FLOATS = "Elements must be floats: use ttnn.typecast first."


def _mapped(name: str, function: Local, tensor: Tensor, options: dict[str, Any]) -> Tensor:
    return _op(function, (tensor,), _known("negative" if name == "neg" else "exp", Attrs(), (tensor,)), options)


def _unary(name: str, function: Local) -> Callable[..., Tensor]:
    def run(tensor: Tensor, **options: Any) -> Tensor:
        return _mapped(name, function, tensor, options)

    run.__name__ = name
    run.__doc__ = f"`{name}` of every element."
    return operation(_FLOATS)(run)


_ACTIVATIONS: dict[str, Local] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def _activation(name: str | None) -> Local:
    if name is not None and name not in _ACTIVATIONS:
        raise fatal(f"The activation {name!r} is unknown", f"Use one of {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name] if name is not None else lambda x: x


add = _binary("add", "add", torch.add)
subtract, sub = (_binary(name, "subtract", torch.sub) for name in ("subtract", "sub"))
multiply, mul = (_binary(name, "multiply", torch.mul) for name in ("multiply", "mul"))
divide, div = (_binary(name, "divide", torch.div) for name in ("divide", "div"))
maximum, minimum = _binary("maximum", "maximum", torch.maximum), _binary("minimum", "minimum", torch.minimum)
relu, gelu, silu, tanh, sigmoid = (
    _unary(name, _ACTIVATIONS[name]) for name in ("relu", "gelu", "silu", "tanh", "sigmoid")
)
exp, sqrt, rsqrt, neg = (
    _unary(n, f) for n, f in (("exp", torch.exp), ("sqrt", torch.sqrt), ("rsqrt", torch.rsqrt), ("neg", torch.neg))
)


_PRODUCT = "The width of the first tensor must be equal to the height of the second tensor"


@operation(f"{_PRODUCT}.")
def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False, **options: Any) -> Tensor:
    """Matrix products. If the inner dim is split, each device computes a partial sum: reduce it with a collective."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x.mT if transpose_a else x, y.mT if transpose_b else y)

    place: Any = None
    if not (transpose_a or transpose_b) and len(a.shape) > 1 and len(b.shape) > 1:

        def place(made: PerDevice) -> Any:
            return _known("einsum", Attrs(name="matmul", text="... m k, ... k n -> ... m n"), (a, b))

    return _op(product, (a, b), place, options)


@operation(f"{_PRODUCT}, and the bias must broadcast to the product.")
def linear(
    a: Tensor, weight: Tensor, *, bias: Tensor | None = None, activation: str | None = None, **options: Any
) -> Tensor:
    """a @ weight + bias, then an optional activation; the weight is `in, out`."""
    act = _activation(activation)
    made = matmul(a, weight, **options)
    if bias is not None:
        made = add(made, bias, **options)
    return made if activation is None else _mapped(activation, act, made, options)


@operation("Give a dim of the tensor.")
def softmax(tensor: Tensor, dim: int = -1, **options: Any) -> Tensor:
    """Exponentials divided by their sum along a dim of each device's tensor."""
    at = _dim_of(tensor, dim)
    return _op(lambda x: torch.softmax(x, at), (tensor,), _along(tensor, (at,)), options)


@operation(_FLOATS)
def layer_norm(
    tensor: Tensor, *, epsilon: float = 1e-12, weight: Tensor | None = None, bias: Tensor | None = None, **options: Any
) -> Tensor:
    """Mean 0 and variance 1 along the last dim, then scaled and shifted.

    Weight and bias have as many elements as the last dim on each device: `…, dim`, or `1, 1, dim/32, 32` in row-major
    layout.
    """
    return _normed(lambda x: F.layer_norm(x, x.shape[-1:], eps=epsilon), tensor, weight, bias, options)


@operation(_FLOATS)
def rms_norm(
    tensor: Tensor, *, epsilon: float = 1e-12, weight: Tensor | None = None, bias: Tensor | None = None, **options: Any
) -> Tensor:
    """Divided by the root of the mean square along the last dim, then scaled and shifted; weights as of `layer_norm`."""

    def normed(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon)

    return _normed(normed, tensor, weight, bias, options)


def _normed(norm: Local, tensor: Tensor, weight: Tensor | None, bias: Tensor | None, options: dict[str, Any]) -> Tensor:
    last = _dim_of(tensor, -1)
    others = [other for other in (weight, bias) if other is not None]

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        rows = [_row(y, other, x.shape[-1]) for y, other in zip(rest, others, strict=True)]
        made = norm(x)
        if weight is not None:
            made = made * rows[0]
        return made if bias is None else made + rows[-1]

    whole = all(_settled(other) and other.shape == other.global_shape for other in others)
    return _op(run, (tensor, *others), _along(tensor, (last,)) if whole else None, options)


def _row(weight: torch.Tensor, tensor: Tensor, size: int) -> torch.Tensor:
    """A norm's weight as one row: of the last dim's size, or in row-major layout rows of 32 with padding at the end."""
    count = weight.numel()
    rows = tensor.layout is ROW_MAJOR_LAYOUT and weight.shape[-1:] == (TILE,) and count == -(-size // TILE) * TILE
    if not rows and (count != size or weight.shape[-1:] != (size,)):
        raise fatal(
            f"A weight or bias of {list(weight.shape)} in {tensor.layout.value} layout does not fit a last dim of {size}",
            f"Give […, {size}], or [1, 1, {-(-size // TILE)}, {TILE}] in ttnn.ROW_MAJOR_LAYOUT.",
        )
    return weight.reshape(-1)[:size]


@operation("Indices must be integers below the number of rows of a weight of two dims.")
def embedding(indices: Tensor, weight: Tensor, **options: Any) -> Tensor:
    """Rows of a table by index."""
    options.setdefault("dtype", weight.dtype)
    return _op(
        lambda i, w: F.embedding(i, w), (indices, weight), lambda made: _samples((indices, weight), made), options
    )


@operation("The weight is out, in / groups, height, width; the bias has out elements; the kernel fits.", host=True)
def conv2d(
    *,
    input_tensor: Tensor,
    weight_tensor: Tensor,
    device: Any = None,
    in_channels: int,
    out_channels: int,
    batch_size: int,
    input_height: int,
    input_width: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias_tensor: Tensor | None = None,
    return_output_dim: bool = False,
    **options: Any,
) -> Any:
    """A convolution of images `1, 1, batch·height·width, channels` or `batch, height, width, channels`.

    The weight is `out, in, height, width`. Sizes are per device. Host tensors are put on `device`.
    """

    flat = _flat(input_tensor, (input_height, input_width, in_channels))

    def run(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        image = x.reshape(-1, input_height, input_width, in_channels).permute(0, 3, 1, 2)
        made = F.conv2d(image, w, rest[0].reshape(-1) if rest else None, stride, padding, dilation, groups)
        return made.permute(0, 2, 3, 1)

    given = (t for t in (input_tensor, weight_tensor, bias_tensor) if t is not None)
    operands = [t if device is None or t.device() is not None else to_device(t, device) for t in given]
    sizes: list[int] = []

    def images(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        made = run(x, w, *rest)
        sizes[:] = made.shape[1:3]
        return made.reshape(1, 1, -1, out_channels) if flat else made

    made = _op(images, operands, lambda value: None if flat else _samples(operands, value), options)
    return (made, tuple(sizes)) if return_output_dim else made


def _flat(tensor: Tensor, image: tuple[int, int, int]) -> bool:
    """Whether images have the form `1, 1, batch·height·width, channels`; raises an error for incomplete images."""
    shape = tuple(tensor.shape)
    if len(shape) == 4 and shape[1:] == image:
        return False
    if len(shape) == 4 and shape[:2] == (1, 1) and shape[3] == image[2] and shape[2] % (image[0] * image[1]) == 0:
        return True
    raise fatal(
        f"{list(shape)} on a device does not hold images of height, width and channels {list(image)}",
        "Split the batch only, and give the sizes of one image.",
    )


@operation("The window must fit in the padded image.")
def max_pool2d(
    input_tensor: Tensor,
    batch_size: int,
    input_h: int,
    input_w: int,
    channels: int,
    kernel_size: Any,
    stride: Any,
    padding: Any = 0,
    dilation: Any = 1,
    **options: Any,
) -> Tensor:
    """The maximum of each window, of images in the form that `conv2d` takes."""

    flat = _flat(input_tensor, (input_h, input_w, channels))

    def run(x: torch.Tensor) -> torch.Tensor:
        image = x.reshape(-1, input_h, input_w, channels).permute(0, 3, 1, 2)
        made = F.max_pool2d(image, kernel_size, stride, padding, dilation).permute(0, 2, 3, 1)
        return made.reshape(1, 1, -1, channels) if flat else made

    return _op(run, (input_tensor,), lambda value: None if flat else _samples((input_tensor,), value), options)


@operation("Images are batch, height, width, channels.")
def global_avg_pool2d(tensor: Tensor, **options: Any) -> Tensor:
    """The average over height and width of images `batch, height, width, channels`."""
    return _op(lambda x: x.mean((1, 2), keepdim=True), (tensor,), lambda value: _samples((tensor,), value), options)


@operation("Give the shape of one device's tensor.", host=True)
def reshape(tensor: Tensor, shape: Sequence[int], **options: Any) -> Tensor:
    """Another shape for each device's tensor; one size may be -1. Devices with fewer samples keep their number."""
    sizes, total = tuple(int(n) for n in shape), math.prod(tensor.shape)
    known = math.prod(n for n in sizes if n != -1)
    fits = known == total if -1 not in sizes else sizes.count(-1) == 1 and known > 0 and total % known == 0
    if not fits:
        raise fatal(
            f"{list(tensor.shape)} has {total} elements on a device, which don't fit the shape {list(sizes)}",
            "Give the shape of one device's tensor.",
        )
    full = tuple(total // known if n == -1 else n for n in sizes)
    split = tensor.sharding is not None and not any(tensor.sharding.dims[1:]) and bool(full) and bool(tensor.shape)
    whole = split and full[0] == tensor.shape[0]

    def run(x: torch.Tensor) -> torch.Tensor:
        return x.reshape((x.shape[0], *full[1:]) if whole else full)

    return _op(run, (tensor,), (lambda made: _samples((tensor,), made)) if whole else None, options)


@operation("Give every dim once.")
def permute(tensor: Tensor, dims: Sequence[int], **options: Any) -> Tensor:
    """Dims in another order."""
    order = tuple(_dim_of(tensor, d) for d in dims)
    return _op(
        lambda x: x.permute(order), (tensor,), lambda _: _known("permute_dims", Attrs(axes=order), (tensor,)), options
    )


@operation("All dimensions must be the same size except for the dimension along which tensors are joined.")
def concat(tensors: Sequence[Tensor], dim: int = 0, **options: Any) -> Tensor:
    """Tensors joined along a dim."""
    at = _dim_of(tensors[0], dim)
    return _op(
        lambda *x: torch.cat(x, dim), tuple(tensors), lambda _: _known("concat", Attrs(axis=at), tensors), options
    )


@operation("Give different dims of the tensor.")
def sum(tensor: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    """The sum over a dim of each device's tensor."""
    dims = _dims_of(tensor, dim)
    return _op(
        lambda x: x.sum(dims, keepdim=keepdim), (tensor,), lambda value: _reduced(tensor, dims, keepdim, True), options
    )


@operation("Give different dims of a tensor of floats.")
def mean(tensor: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    """The average over a dim of each device's tensor."""
    dims = _dims_of(tensor, dim)
    return _op(
        lambda x: x.mean(dims, keepdim=keepdim),
        (tensor,),
        lambda value: _reduced(tensor, dims, keepdim, False),
        options,
    )


def _dim_of(tensor: Tensor, dim: int) -> int:
    rank = len(tensor.shape)
    if not -rank <= dim < rank:
        advice = f"Use dims from {-rank} to {rank - 1}." if rank else "A scalar has no dims."
        raise fatal(f"dim {dim} is out of range for {rank} dims", advice)
    return dim % rank


def _dims_of(tensor: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(len(tensor.shape)))
    return tuple(_dim_of(tensor, d) for d in ((dim,) if isinstance(dim, int) else dim))


def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Frees a tensor's memory; the tensor can't be read afterwards."""
    tensor.gone = True
    if tensor.owner is not None:
        tensor.owner.tensors.discard(tensor)


def as_local(tensor: Tensor) -> list[torch.Tensor]:
    """Every device's tensor, for inspection."""
    return [as_torch(np.array(x)) for x in tensor.value.values()]


@operation("Give a ttnn tensor.", host=True)
def zeros_like(tensor: Tensor, *, memory_config: MemoryConfig | None = None, **options: Any) -> Tensor:
    """Zeros with the shape, dtype and sharding of another tensor."""
    place = (tensor.sharding, tensor._global) if tensor.sharding is not None else None
    return _op(torch.zeros_like, (tensor,), place, {**options, "memory_config": memory_config})


@operation("Give indices and slices.", host=True)
def __getitem__(tensor: Tensor, index: Any) -> Tensor:  # noqa: N807  # a method of Tensor
    """The same part of every device's tensor."""
    try:
        made = as_blocks(tensor.value.map(lambda x: x[index]), tensor.dtype)
    except IndexError as error:
        raise TtnnIndexError(
            f"The index {index!r} is not within {list(tensor.shape)} on each device. Give indices within that shape."
        ) from error
    whole = tensor.sharding is not None and tensor.sharding.is_replicated
    return tensor.like(made, Sharding(tensor.mesh) if whole else None, made.lanes.shapes()[0] if whole else None)


_METHODS = {"add": add, "sub": sub, "mul": mul, "truediv": div, "matmul": matmul, "getitem": __getitem__}
for _name, _function in _METHODS.items():
    setattr(Tensor, f"__{_name}__", _function)  # x + y, as in the real ttnn
