"""The fields of operations as Python values, whatever the spelling."""

from typing import Any

from xdsl.dialects import builtin as b
from xdsl.ir import Operation, SSAValue

from shardwright.errors import ShardwrightError
from shardwright.mlir.dialects import DYNAMIC, MESH, SHARD, word

Shape = tuple[int, ...]


def dialect_of(op: Operation) -> str:
    """The dialect of an operation."""
    return op.name.partition(".")[0]


def short_name(op: Operation) -> str:
    """The name of an operation of the mesh or shard dialect in the words of `mesh`; "" for other dialects."""
    dialect, _, name = op.name.partition(".")
    if dialect not in (MESH, SHARD):
        return ""
    other = "grid" if dialect == SHARD else "cluster"  # LLVM 18 names meshes clusters
    return {other: "mesh", f"{other}_shape": "mesh_shape"}.get(name, name)


def field(op: Operation, name: str) -> Any:
    """An attribute of an operation by its `mesh` name; None if it is absent."""
    spelled = word(name, dialect_of(op))
    return op.properties.get(spelled, op.attributes.get(spelled))


def is_uniform(op: Operation) -> bool:
    """Whether an scf.if or scf.while says that all devices decide alike."""
    return "uniform" in op.attributes


def integers(attribute: Any) -> tuple[int, ...]:
    """The integers of an array attribute; () without one."""
    if attribute is None:
        return ()
    if isinstance(attribute, b.DenseArrayBase):
        return tuple(int(n) for n in attribute.get_values())
    return tuple(n.value.data for n in attribute)


def integer(attribute: Any) -> int:
    """The value of an integer attribute."""
    value: int = attribute.value.data
    return value


def axes(op: Operation, name: str = "mesh_axes") -> tuple[int, ...]:
    """The axes that an operation names."""
    return integers(field(op, name))


def axis_lists(attribute: Any) -> tuple[tuple[int, ...], ...]:
    """The axes of each dim, without trailing dims that are not split: `[[]]` is a sharding of a tensor without dims too."""
    lists = [integers(part) for part in attribute.axes]
    while lists and not lists[-1]:
        lists.pop()
    return tuple(lists)


def scatter_dim(op: Operation) -> int:
    """The scattered dim, in either spelling."""
    known = {**op.attributes, **op.properties}
    return integer(known["scatter_axis"] if "scatter_axis" in known else known["scatter_dim"])


def mesh_name(op: Operation) -> str:
    """The symbol of the mesh that an operation refers to."""
    name: str = field(op, "mesh").root_reference.data
    return name


def shape_of(value: SSAValue) -> Shape:
    """The sizes of a tensor; DYNAMIC where a size is `?`."""
    kind: Any = value.type
    return tuple(kind.get_shape())


def is_tensor(value: SSAValue) -> bool:
    """Whether a value is a ranked tensor or buffer."""
    return isinstance(value.type, b.TensorType | b.MemRefType)


def mixed(static: Any, dynamic: Any) -> list[Any]:
    """A list of integers and values: `[1, %n]`."""
    numbers, values = integers(static), list(dynamic)
    if numbers.count(DYNAMIC) > len(values):
        raise ShardwrightError(
            f"{numbers.count(DYNAMIC)} entries of a list are operands, but there are {len(values)}. Give an operand for each."
        )
    given = iter(values)
    return [next(given) if n == DYNAMIC else n for n in numbers]
