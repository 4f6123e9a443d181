"""The `mesh` dialect (LLVM 18 to 21) and the `shard` dialect (LLVM 22 on), defined for xDSL's parser.

Both have the same operations under other names, so each operation is one row of a table. xDSL has a part of `shard`; these
rows replace it, so that both spellings have the same fields. Fields have the words of `mesh`; `word` translates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import builtin as b
from xdsl.dialects.utils import DimensionList, DynamicIndexList
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface

MESH, SHARD = "mesh", "shard"
DYNAMIC = -(2**63)  # stands for a size, coordinate or offset that is an operand, or for `?`
REDUCTIONS = "sum max min product average bitwise_and bitwise_or bitwise_xor generic".split()

_WORDS = {"mesh": "grid", "mesh_axes": "grid_axes", "mesh_shape": "grid_shape"}


def word(name: str, dialect: str) -> str:
    """A word of the `mesh` dialect in the spelling of a dialect.

    >>> word("mesh_axes", "shard"), word("mesh_axes", "mesh")
    ('grid_axes', 'mesh_axes')
    """
    return _WORDS.get(name, name) if dialect == SHARD else name


def _axes_list(parser: AttrParser) -> list[int]:
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)


def _integers(values: Sequence[int]) -> Attribute:
    return b.ArrayAttr([b.IntegerAttr(n, b.i64) for n in values])


class _Reduction(ParametrizedAttribute):
    """How values are combined: `max`, `<max>`."""

    kind: b.StringAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        bracket = parser.parse_optional_punctuation("<")
        kind = parser.parse_identifier()
        if kind not in REDUCTIONS:
            parser.raise_error(f"unknown reduction {kind!r}; use one of {', '.join(REDUCTIONS)}")
        if bracket:
            parser.parse_punctuation(">")
        return (b.StringAttr(kind),)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.kind.data}>")


class _AxesArray(ParametrizedAttribute):
    """Mesh axes for each dim: `[[0], [], [1, 2]]`."""

    axes: b.ArrayAttr[b.ArrayAttr[b.IntegerAttr]]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        lists = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _axes_list(parser))
        return (b.ArrayAttr([_integers(axes) for axes in lists]),)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(str([[n.value.data for n in axes] for axes in self.axes]))


class _ShardingAttr(ParametrizedAttribute):
    """A sharding as an attribute: `<@mesh0, [[0]], partial = sum[1]>`."""

    mesh: b.SymbolRefAttr
    axes: b.ArrayAttr[b.ArrayAttr[b.IntegerAttr]]
    partial: b.ArrayAttr[b.IntegerAttr]
    kind: b.StringAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        parser.parse_punctuation("<")
        name = parser.parse_symbol_name()
        lists: list[list[int]] = []
        partial: list[int] = []
        kind = "sum"
        if parser.parse_optional_punctuation(","):
            lists = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _axes_list(parser))
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("partial")
            parser.parse_punctuation("=")
            kind = _Reduction.parse_parameters(parser)[0].data  # type: ignore[attr-defined]
            partial = _axes_list(parser)
        parser.parse_punctuation(">")
        axes = b.ArrayAttr([_integers(axes) for axes in lists])
        return b.SymbolRefAttr(name), axes, _integers(partial), b.StringAttr(kind)

    def print_parameters(self, printer: Printer) -> None:
        lists = [[n.value.data for n in axes] for axes in self.axes]
        partial = [n.value.data for n in self.partial]
        more = f", partial = {self.kind.data}{partial}" if partial else ""
        printer.print_string(f"<@{self.mesh.root_reference.data}, {lists}{more}>")


def _attribute(dialect: str, base: type[ParametrizedAttribute], name: str) -> Any:
    members = {"name": f"{dialect}.{name}", "__annotations__": base.__annotations__}
    made = type(base.__name__.strip("_"), (base,), members)
    return irdl_attr_definition(made)


AXES = b.DenseArrayBase.constr(b.i16)
INTEGERS = b.DenseArrayBase.constr(b.i64)
INDEX = b.IntegerAttr.constr(b.IndexType())
TENSOR = b.TensorType.constr() | b.MemRefType.constr()


def _axes_default() -> Any:
    return b.DenseArrayBase.from_list(b.i16, [])


def _integers_default() -> Any:
    return b.DenseArrayBase.from_list(b.i64, [])


@irdl_custom_directive
class ScatterAxis(CustomDirective):
    """The scattered dim: LLVM 22 writes `scatter_axis = 0`, later versions `scatter_dim = 0`."""

    axis: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """Either spelling."""
        if not parser.parse_optional_keyword("scatter_dim"):
            parser.parse_keyword("scatter_axis")
        parser.parse_punctuation("=")
        self.axis.set(state, b.IntegerAttr(parser.parse_integer(), b.IndexType()))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """LLVM 22's spelling."""
        state.print_whitespace(printer)
        value: Any = self.axis.get(op)
        printer.print_string(f"scatter_axis = {value.value.data}")


@irdl_custom_directive
class Visibility(CustomDirective):
    """The visibility of a mesh, such as "private", which means nothing here."""

    def parse(self, parser: Parser, state: ParsingState) -> None:
        """A string, or nothing."""
        parser.parse_optional_str_literal()

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        """Nothing."""


@irdl_custom_directive
class OptionalIndexList(DynamicIndexList):
    """`[1, %n]`, or nothing, which is not the same as `[]`."""

    dynamic_position: VariadicOperandVariable
    static_position: AttributeVariable

    def set_empty(self, state: ParsingState) -> None:
        """The list is absent."""
        self.dynamic_position.set(state, [])


class _ShardOperation(IRDLOperation):
    """`shard %x to %sharding` or, in LLVM 18 and 19, `shard %x to <@mesh0, [[0]]>`; either with `annotate_for_users`."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Both forms."""
        of_attribute, of_sharding = _SHARDINGS[cls.dialect_name()]
        unresolved = parser.parse_unresolved_operand()
        parser.parse_characters("to")
        target = parser.parse_optional_unresolved_operand()
        properties: dict[str, Attribute] = {}
        if target is None:
            properties["shard"] = of_attribute.new(of_attribute.parse_parameters(parser))
        if parser.parse_optional_keyword("annotate_for_users"):
            properties["annotate_for_users"] = b.UnitAttr()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind_of_tensor = parser.parse_type()
        operands = [parser.resolve_operand(unresolved, kind_of_tensor)]
        if target is not None:
            operands.append(parser.resolve_operand(target, of_sharding()))
        return cls.create(
            operands=operands, result_types=[kind_of_tensor], properties=properties, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        """The operation is written by `dumps`, never by xDSL."""
        raise NotImplementedError


_SHARDINGS: dict[str, tuple[Any, Any]] = {}  # by dialect: shardings as an attribute, and the type of shardings


class _Maker:
    """Makes the operations of one spelling."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.reduction = _attribute(dialect, _Reduction, "partial")
        self.axes_array = _attribute(dialect, _AxesArray, "axisarray")
        self.sharding_attr = _attribute(dialect, _ShardingAttr, "shard")
        self.sharding_type = irdl_attr_definition(
            type("ShardingType", (ParametrizedAttribute, TypeAttribute), {"name": f"{dialect}.sharding"})
        )

    def op(self, name: str, format: str, base: type[IRDLOperation] = IRDLOperation, **fields: Any) -> Any:
        """An operation of the dialect; fields that are named after the mesh are spelled as the dialect does."""
        spelled = {word(key, self.dialect): value for key, value in fields.items()}
        text = format.replace("MESH_AXES", word("mesh_axes", self.dialect)).replace("MESH", word("mesh", self.dialect))
        members: dict[str, Any] = {
            "name": f"{self.dialect}.{word(name, self.dialect)}",
            **spelled,
            **({"assembly_format": text} if text else {}),
            "custom_directives": (DynamicIndexList, OptionalIndexList, DimensionList, ScatterAxis, Visibility),
        }
        return irdl_op_definition(type(f"{name.title().replace('_', '')}Op", (base,), members))

    def collective(self, name: str, middle: str = "", device: str = "", **fields: Any) -> Any:
        """A collective; with a device of the group its type is that of a function of operands."""
        ends = "functional-type(operands, results)" if device else "type($input) `->` type($result)"
        if device:
            optional = name == "recv"
            kind = "OptionalIndexList" if optional else "DynamicIndexList"
            listed = f"`{device}` `=` custom<{kind}>(${device}_dynamic, ${device})"
            middle += f" ({listed}^)?" if optional else f" {listed}"
            fields[device] = opt_prop_def(INTEGERS) if optional else prop_def(INTEGERS)
            fields[f"{device}_dynamic"] = var_operand_def(b.IndexType())
        return self.op(
            name,
            f"$input `on` $MESH (`MESH_AXES` `=` $MESH_AXES^)? {middle} attr-dict `:` {ends}",
            input=operand_def(TENSOR),
            mesh=prop_def(b.FlatSymbolRefAttr),
            mesh_axes=prop_def(AXES, default_value=_axes_default()),
            result=result_def(TENSOR),
            **fields,
        )

    def reduces(self) -> dict[str, Any]:
        """The field of a reduction; the default is a sum."""
        return {"reduction": prop_def(self.reduction, default_value=self.reduction(b.StringAttr("sum")))}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def collectives(self) -> list[Any]:
        """The operations that devices take part in together."""
        kind = "(`reduction` `=` $reduction^)?"
        scattered: dict[str, Any] = {
            "scatter_axis": opt_prop_def(INDEX),
            "scatter_dim": opt_prop_def(INDEX),
            "irdl_options": (ParsePropInAttrDict(),),
        }
        return [
            self.collective("all_gather", "`gather_axis` `=` $gather_axis", gather_axis=prop_def(INDEX)),
            self.collective("all_reduce", kind, **self.reduces()),
            self.collective("all_slice", "`slice_axis` `=` $slice_axis", slice_axis=prop_def(INDEX)),
            self.collective(
                "all_to_all",
                "`split_axis` `=` $split_axis `concat_axis` `=` $concat_axis",
                split_axis=prop_def(INDEX),
                concat_axis=prop_def(INDEX),
            ),
            self.collective("broadcast", device="root"),
            self.collective("gather", "`gather_axis` `=` $gather_axis", "root", gather_axis=prop_def(INDEX)),
            self.collective("recv", device="source"),
            self.collective("reduce", kind, "root", **self.reduces()),
            self.collective(
                "reduce_scatter", f"{kind} custom<ScatterAxis>($scatter_axis)", **scattered, **self.reduces()
            ),
            self.collective("scatter", "custom<ScatterAxis>($scatter_axis)", "root", **scattered),
            self.collective("send", device="destination"),
            self.collective(
                "shift",
                "`shift_axis` `=` $shift_axis `offset` `=` $offset (`rotate` $rotate^)?",
                shift_axis=prop_def(INDEX),
                offset=prop_def(b.IntegerAttr.constr(b.i64)),
                rotate=opt_prop_def(b.UnitAttr),
            ),
            self.op(
                "update_halo",
                "$destination `on` $MESH `split_axes` `=` $split_axes "
                "(`halo_sizes` `=` custom<DynamicIndexList>($halo_sizes, $static_halo_sizes)^)? attr-dict `:` type($result)",
                destination=operand_def(VarConstraint("T", TENSOR)),
                mesh=prop_def(b.FlatSymbolRefAttr),
                split_axes=prop_def(self.axes_array),
                halo_sizes=var_operand_def(b.i64),
                static_halo_sizes=prop_def(INTEGERS, default_value=_integers_default()),
                result=result_def(VarConstraint("T", TENSOR)),
            ),
        ]

    def queries(self) -> list[Any]:
        """The mesh itself, and questions about it."""
        axes: dict[str, Any] = {"axes": prop_def(AXES, default_value=_axes_default())}
        mesh: dict[str, Any] = {"mesh": prop_def(b.FlatSymbolRefAttr)}
        of_18 = ["cluster"] if self.dialect == MESH else []  # LLVM 18 has these names
        return [
            *(self.op(
                name,
                "custom<Visibility>() $sym_name `(` `shape` `=` custom<DimensionList>($shape) `)` attr-dict",
                sym_name=prop_def(b.SymbolNameConstraint()),
                shape=prop_def(INTEGERS),
                traits=traits_def(SymbolOpInterface()),
            ) for name in ("mesh", *of_18)),
            *(self.op(
                f"{name}_shape",
                "$MESH (`axes` `=` $axes^)? attr-dict `:` type($indices)",
                **mesh, **axes, indices=var_result_def(b.IndexType()),
            ) for name in ("mesh", *of_18)),
            self.op(
                "process_multi_index",
                "`on` $MESH (`axes` `=` $axes^)? attr-dict `:` type($indices)",
                **mesh, **axes, indices=var_result_def(b.IndexType()),
            ),
            self.op(
                "process_linear_index",
                "`on` $MESH attr-dict `:` type($result)",
                **mesh, result=result_def(b.IndexType()),
            ),
            self.op(
                "neighbors_linear_indices",
                "`on` $MESH `[` $device `]` `split_axes` `=` $split_axes attr-dict `:` type($down) `,` type($up)",
                **mesh,
                split_axes=prop_def(AXES),
                device=var_operand_def(b.IndexType()),
                down=result_def(b.IndexType()),
                up=result_def(b.IndexType()),
            ),
        ]  # fmt: skip

    def shardings(self) -> list[Any]:
        """Annotations of the global view."""
        sharding = self.sharding_type()
        return [
            self.op(
                "sharding",
                "$MESH `split_axes` `=` $split_axes (`partial` `=` $partial_type $partial_axes^)? "
                "(`halo_sizes` `=` custom<DynamicIndexList>($dynamic_halo_sizes, $static_halo_sizes)^)? "
                "(`sharded_dims_offsets` `=` "
                "custom<DynamicIndexList>($dynamic_sharded_dims_offsets, $static_sharded_dims_offsets)^)? "
                "attr-dict `:` type($result)",
                mesh=prop_def(b.FlatSymbolRefAttr),
                split_axes=prop_def(self.axes_array),
                partial_axes=opt_prop_def(AXES),
                partial_type=opt_prop_def(self.reduction),
                static_sharded_dims_offsets=prop_def(INTEGERS, default_value=_integers_default()),
                dynamic_sharded_dims_offsets=var_operand_def(b.i64),
                static_halo_sizes=prop_def(INTEGERS, default_value=_integers_default()),
                dynamic_halo_sizes=var_operand_def(b.i64),
                result=result_def(sharding),
                irdl_options=(AttrSizedOperandSegments(as_property=True),),
            ),
            self.op("get_sharding", "$source attr-dict `:` type($source) `->` type($result)",
                    source=operand_def(TENSOR), result=result_def(sharding)),
            self.op(
                "shard", "", _ShardOperation,
                src=operand_def(TENSOR),
                sharding=opt_operand_def(sharding),
                shard=opt_prop_def(self.sharding_attr),
                annotate_for_users=opt_prop_def(b.UnitAttr),
                result=result_def(TENSOR),
            ),
            self.op(
                "shard_shape",
                "`dims` `=` custom<DynamicIndexList>($dims_dynamic, $dims) `sharding` `=` $sharding "
                "`device` `=` custom<DynamicIndexList>($device_dynamic, $device) attr-dict `:` type($indices)",
                dims=prop_def(INTEGERS),
                dims_dynamic=var_operand_def(b.IndexType()),
                sharding=operand_def(sharding),
                device=prop_def(INTEGERS),
                device_dynamic=var_operand_def(b.IndexType()),
                indices=var_result_def(b.IndexType()),
                irdl_options=(AttrSizedOperandSegments(as_property=True),),
            ),
        ]  # fmt: skip


def _dialect(name: str) -> Dialect:
    maker = _Maker(name)
    _SHARDINGS[name] = maker.sharding_attr, maker.sharding_type
    attributes = [maker.reduction, maker.axes_array, maker.sharding_attr, maker.sharding_type]
    return Dialect(name, [*maker.queries(), *maker.shardings(), *maker.collectives()], attributes)


DIALECTS: Mapping[str, Dialect] = {name: _dialect(name) for name in (MESH, SHARD)}
