"""Operations of linalg and tosa that xDSL lacks, or that it reads in fewer forms than MLIR prints.

Every named operation of linalg has the same shape here: inputs, outputs, results, and in the generic form a body, which the
name makes redundant.
"""

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects import builtin as b
from xdsl.dialects.linalg.ops import YieldOp
from xdsl.ir import Attribute, Block, ParametrizedAttribute, Region, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    var_operand_def,
    var_region_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

# -- arith ------------------------------------------------------------------------------------------------------------


class _Select(IRDLOperation):
    """`arith.select`, whose condition may be a tensor."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """The type of the condition is written only where it is a tensor."""
        position = parser.pos
        values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        if parser.parse_optional_punctuation(","):
            types.append(parser.parse_type())
        kind, test = types[-1], types[0] if len(types) == 2 else b.i1
        operands = parser.resolve_operands(values, [test, kind, kind], position)
        return cls.create(operands=operands, result_types=[kind], attributes=attributes)


PREDICATES = {
    "cmpi": "eq ne slt sle sgt sge ult ule ugt uge".split(),
    "cmpf": "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split(),
}


class _Compare(IRDLOperation):
    """`arith.cmpi` and `arith.cmpf`, also of tensors."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """`ogt, %a, %b fastmath<nnan> : tensor<4xf32>`."""
        known = PREDICATES[cls.name.split(".")[1]]
        position, name = parser.pos, parser.parse_identifier()
        if name not in known:
            parser.raise_error(f"unknown predicate {name!r}; use one of {', '.join(known)}", position)
        parser.parse_punctuation(",")
        first = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        second = parser.parse_unresolved_operand()
        if parser.parse_optional_keyword("fastmath"):
            arith.FastMathFlagsAttr.parse_parameter(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        result = b.TensorType(b.i1, kind.get_shape()) if isinstance(kind, b.TensorType) else b.i1
        return cls.create(
            operands=parser.resolve_operands([first, second], [kind, kind], position),
            result_types=[result],
            properties={"predicate": b.IntegerAttr(known.index(name), b.i64)},
            attributes=attributes,
        )


def _compare(name: str) -> Any:
    members = {
        "name": f"arith.{name}",
        "lhs": operand_def(),
        "rhs": operand_def(),
        "predicate": prop_def(b.IntegerAttr.constr(b.i64)),
        "fastmath": opt_prop_def(),
        "result": result_def(),
    }
    return irdl_op_definition(type(f"{name.title()}Op", (_Compare,), members))


CASTS = "extf truncf sitofp uitofp fptosi fptoui extsi extui trunci index_cast index_castui".split()


class _Cast(IRDLOperation):
    """A conversion, also of tensors: `%x to_nearest_even fastmath<contract> : tensor<4xf32> to tensor<4xf16>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Rounding modes and flags are read and mean nothing here."""
        value = parser.parse_unresolved_operand()
        for word in ("to_nearest_even", "downward", "upward", "toward_zero", "to_nearest_away", "nneg"):
            parser.parse_optional_keyword(word)
        if parser.parse_optional_keyword("fastmath"):
            arith.FastMathFlagsAttr.parse_parameter(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        before = parser.parse_type()
        parser.parse_characters("to")
        after = parser.parse_type()
        return cls.create(operands=[parser.resolve_operand(value, before)], result_types=[after], attributes=attributes)


def _cast(name: str) -> Any:
    members = {
        "name": f"arith.{name}",
        "input": operand_def(),
        "result": result_def(),
        **{flag: opt_prop_def() for flag in ("fastmath", "roundingmode", "nonNeg", "overflowFlags")},
    }
    return irdl_op_definition(type(f"{name.title()}Op", (_Cast,), members))


def _select() -> Any:
    members = {
        "name": "arith.select",
        "condition": operand_def(),
        "true_value": operand_def(),
        "false_value": operand_def(),
        "result": result_def(),
    }
    return irdl_op_definition(type("SelectOp", (_Select,), members))


class _Flagged(IRDLOperation):
    """An operation on values of one type: `%a, %b fastmath<nnan> : tensor<4xf32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Tests, such as math.isnan, give i1."""
        position = parser.pos
        values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        words = "to" if cls.name == "math.clampf" else ""
        if words and parser.parse_optional_keyword("to"):  # `%x to [%low, %high]`
            values += parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        if parser.parse_optional_keyword("fastmath"):
            arith.FastMathFlagsAttr.parse_parameter(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        result = kind
        if cls.name.startswith("math.is"):
            result = b.TensorType(b.i1, kind.get_shape()) if isinstance(kind, b.TensorType) else b.i1
        operands = parser.resolve_operands(values, [kind] * len(values), position)
        return cls.create(operands=operands, result_types=[result], attributes=attributes)


def _flagged(name: str, count: int) -> Any:
    operands = {f"operand{at}": operand_def() for at in range(count)}
    members = {"name": name, **operands, "result": result_def(), "fastmath": opt_prop_def()}
    return irdl_op_definition(type(f"{name.title().replace('.', '')}Op", (_Flagged,), members))


ARITH: list[Any] = [_select(), _compare("cmpi"), _compare("cmpf"), *map(_cast, CASTS)]
ARITH.append(_flagged("arith.remf", 2))
MATH: list[Any] = [_flagged(f"math.{name}", 1) for name in ("isfinite", "isinf", "isnan", "isnormal", "erfc")]
MATH.append(_flagged("math.clampf", 3))

# -- tensor -----------------------------------------------------------------------------------------------------------


def _tensor_op(name: str, text: str, **fields: Any) -> Any:
    members = {"name": f"tensor.{name}", **fields, "assembly_format": text}
    return irdl_op_definition(type(f"Tensor{name.title()}Op", (IRDLOperation,), members))


TENSOR: list[Any] = [
    _tensor_op(
        "bitcast", "$source attr-dict `:` type($source) `to` type($result)", source=operand_def(), result=result_def()
    ),
    _tensor_op("rank", "$tensor attr-dict `:` type($tensor)", tensor=operand_def(), result=result_def(b.IndexType())),
]

# -- linalg -----------------------------------------------------------------------------------------------------------

UNARY = "abs ceil erf exp floor log negf reciprocal round rsqrt sqrt square tanh copy".split()
BINARY = "add sub mul div div_unsigned max min powf select".split()
WINDOWS = {  # dims of the input, of the filter, and of the result; what combines a window
    "conv_1d": ("w", "w", "w", "sum"),
    "conv_2d": ("hw", "hw", "hw", "sum"),
    "conv_1d_nwc_wcf": ("nwc", "wcf", "nwf", "sum"),
    "conv_1d_ncw_fcw": ("ncw", "fcw", "nfw", "sum"),
    "conv_2d_nhwc_hwcf": ("nhwc", "hwcf", "nhwf", "sum"),
    "conv_2d_nhwc_fhwc": ("nhwc", "fhwc", "nhwf", "sum"),
    "conv_2d_nchw_fchw": ("nchw", "fchw", "nfhw", "sum"),
    "conv_3d_ndhwc_dhwcf": ("ndhwc", "dhwcf", "ndhwf", "sum"),
    "depthwise_conv_1d_nwc_wc": ("nwc", "wc", "nwc", "sum"),
    "depthwise_conv_2d_nhwc_hwc": ("nhwc", "hwc", "nhwc", "sum"),
    "pooling_nwc_sum": ("nwc", "w", "nwc", "sum"),
    "pooling_nwc_max": ("nwc", "w", "nwc", "max"),
    "pooling_nhwc_sum": ("nhwc", "hw", "nhwc", "sum"),
    "pooling_nhwc_max": ("nhwc", "hw", "nhwc", "max"),
    "pooling_nhwc_min": ("nhwc", "hw", "nhwc", "min"),
    "pooling_nchw_sum": ("nchw", "hw", "nchw", "sum"),
    "pooling_nchw_max": ("nchw", "hw", "nchw", "max"),
    "pooling_ndhwc_max": ("ndhwc", "dhw", "ndhwc", "max"),
}
PRODUCTS = {  # as einsum writes them
    "matmul": "mk,kn->mn",
    "matmul_transpose_a": "km,kn->mn",
    "matmul_transpose_b": "mk,nk->mn",
    "batch_matmul": "bmk,bkn->bmn",
    "batch_matvec": "bmk,bk->bm",
    "matvec": "mk,k->m",
    "vecmat": "k,kn->n",
    "dot": "k,k->",
}


def _group(parser: Parser, name: str) -> list[Any]:
    """`ins(%a, %b : type, type)`."""
    position = parser.pos
    parser.parse_characters(name)
    parser.parse_punctuation("(")
    values = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    parser.parse_punctuation(":")
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    parser.parse_punctuation(")")
    return list(parser.resolve_operands(values, types, position))


def _segments(ins: Sequence[Any], outs: Sequence[Any]) -> Attribute:
    return b.DenseArrayBase.from_list(b.i32, [len(ins), len(outs)])


class _Named(IRDLOperation):
    """A named operation on tensors: `ins(…) outs(…) -> …`."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """The form with `ins` and `outs`."""
        front = parser.parse_optional_attr_dict()
        ins, outs = _group(parser, "ins"), _group(parser, "outs")
        results: list[Attribute] = []
        if parser.parse_optional_punctuation("->"):
            found = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            results = [parser.parse_type()] if found is None else list(found)
        return cls.create(
            operands=[*ins, *outs],
            result_types=results,
            properties={"operandSegmentSizes": _segments(ins, outs)},
            attributes=front,
        )


class _Reduce(IRDLOperation):
    """`linalg.reduce`, with a body or with the short form `{ arith.addf }`."""

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        """Both forms."""
        short = None
        if parser.parse_optional_punctuation("{"):
            short = parser.parse_identifier()
            parser.parse_optional_attr_dict()
            parser.parse_punctuation("}")
        ins, outs = _group(parser, "ins"), _group(parser, "outs")
        parser.parse_keyword("dimensions")
        parser.parse_punctuation("=")
        dims = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        if short is None:
            entry = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
            body = parser.parse_region(entry)
        else:
            body = _combined(parser, short, [x.type.get_element_type() for x in (*ins, *outs)])
        return cls.create(
            operands=[*ins, *outs],
            result_types=[x.type for x in outs],
            properties={"dimensions": b.DenseArrayBase.from_list(b.i64, dims)},
            regions=[body],
        )


def _combined(parser: Parser, name: str, types: Sequence[Attribute]) -> Region:
    """The body that a short form stands for."""
    known = {op.name: op for op in arith.Arith.operations}
    if name not in known or len(types) != 2:
        parser.raise_error(f"{name} is not an operation of arith on two values: write the body out")
    block = Block(arg_types=types)
    made = known[name].create(operands=block.args, result_types=[types[0]])
    block.add_ops([made, YieldOp(made.results[0])])
    return Region(block)


def _linalg(name: str) -> Any:
    members = {
        "name": f"linalg.{name}",
        "inputs": var_operand_def(),
        "outputs": var_operand_def(),
        "res": var_result_def(),
        "bodies": var_region_def(),
        "cast": opt_prop_def(),
        "indexing_maps": opt_prop_def(),
        "strides": opt_prop_def(),
        "dilations": opt_prop_def(),
        "irdl_options": (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict()),
    }
    return irdl_op_definition(type(f"{name.title()}Op", (_Named,), members))


def _reduce() -> Any:
    members = {
        "name": "linalg.reduce",
        "values": var_operand_def(),
        "res": var_result_def(),
        "body": region_def(),
        "dimensions": prop_def(b.DenseArrayBase.constr(b.i64)),
    }
    return irdl_op_definition(type("ReduceOp", (_Reduce,), members))


LINALG: list[Any] = [*map(_linalg, (*UNARY, *BINARY, *PRODUCTS, *WINDOWS)), _reduce()]

# -- tosa -------------------------------------------------------------------------------------------------------------

ELEMENTWISE = """add sub mul maximum minimum pow exp log tanh sigmoid abs negate reciprocal rsqrt floor ceil sin cos
erf identity greater greater_equal equal select logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
bitwise_xor bitwise_not clamp cast""".split()
REDUCED = "reduce_sum reduce_max reduce_min reduce_product reduce_prod reduce_all reduce_any".split()
OTHERS = "matmul transpose reshape const const_shape concat reverse slice pad tile".split()
FIELDS = """start size multiples min_val max_val min_int max_int min_fp max_fp axis shift perms new_shape value values nan_mode
input1_zp output_zp a_zp b_zp quantization_info""".split()


@irdl_attr_definition
class TosaShape(ParametrizedAttribute, TypeAttribute):
    """`!tosa.shape<2>`: sizes that operations take as an operand."""

    name = "tosa.shape"
    rank: b.IntAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """The rank."""
        parser.parse_punctuation("<")
        rank = parser.parse_integer()
        parser.parse_punctuation(">")
        return (b.IntAttr(rank),)

    def print_parameters(self, printer: Printer) -> None:
        """The rank."""
        printer.print_string(f"<{self.rank.data}>")


def _tosa(name: str) -> Any:
    members = {
        "name": f"tosa.{name}",
        "inputs": var_operand_def(),
        "output": result_def(),
        **{field: opt_prop_def() for field in FIELDS},
        "irdl_options": (ParsePropInAttrDict(),),
        "assembly_format": "$inputs attr-dict `:` functional-type($inputs, $output)",
    }
    return irdl_op_definition(type(f"Tosa{name.title()}Op", (IRDLOperation,), members))


TOSA: list[Any] = list(map(_tosa, (*ELEMENTWISE, *REDUCED, *OTHERS)))
TOSA_TYPES: list[Any] = [TosaShape]
