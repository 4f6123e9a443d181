"""From text to operations: xDSL's parser with the dialects of this package, positions, limits, and errors with a caret."""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, cached_property
from math import prod
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, linalg, math, scf, tensor, tosa
from xdsl.ir import Attribute, Dialect, Operation, TypeAttribute
from xdsl.parser import AttrParser, Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Span, Token
from xdsl.utils.mlir_lexer import KIND_BY_PUNCTUATION_SPELLING, MLIRLexer, MLIRTokenKind

from shardwright.errors import MLIRError
from shardwright.mlir.dialects import DIALECTS
from shardwright.mlir.named import ARITH, LINALG, MATH, TENSOR, TOSA, TOSA_TYPES

MOST_CHARACTERS = 64 * 2**20
LENIENT = ("tensor.expand_shape", "tensor.collapse_shape")  # xDSL refuses those to and from no dims, which are valid
CARRIERS = ("builtin.module", "func.func")  # of attributes that do not change what is computed
MOST_ELEMENTS = 2**24  # of a constant
MOST_DIMS = 64
MOST_BITS = 2**24  # of an integer type
MOST_NESTED = 64  # brackets and regions inside one another
LONGEST_LINE = 400  # characters of a source line that an error shows
_TOKENS = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|->|>=|[\[({<]|[\])}>]|"')
_DIMS = re.compile(rf"(?:(?:\d+|\?)x){{{MOST_DIMS + 1}}}")
_WIDTHS = re.compile(r"(?:(?<![\w.%@#$])|(?<=[\d?]x))[su]?i(\d{8,20})", re.ASCII)
_UNKNOWN = re.compile(r"(?:Operation|type|attribute) (\S+) is not registered")
_SYMBOL = re.compile(r"@[a-zA-Z_][\w$.]*(?![\w$.:])", re.ASCII)
_TENSOR = re.compile(r"tensor<[0-9x?]*[a-z]+[0-9]*>")
_BLANK = re.compile(r"(?:\s|//[^\n]*)*")
_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|[()]')
_RESULTS = re.compile(r"\s*(?:%[\w$.-]+(?::\d+)?(?:\s*,\s*%[\w$.-]+(?::\d+)?)*\s*=\s*)?")


class Source:
    """A file of MLIR: its text, its operations, and where each begins."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.starts: dict[Operation, int] = {}

    def error(self, message: str, where: "Operation | int") -> MLIRError:
        """An error at an operation or at an offset of the text."""
        if isinstance(where, Operation):
            at: Operation | None = where
            while at is not None and at not in self.starts:
                at = at.parent_op()
            start = self.starts.get(at, 0) if at is not None else 0
            matched = _RESULTS.match(self.text, start)
            where = matched.end() if matched else start
        begin = self.text.rfind("\n", 0, where) + 1
        end = self.text.find("\n", where)
        source = self.text[begin : end if end >= 0 else len(self.text)]
        first = max(0, where - begin - LONGEST_LINE // 2) if len(source) > LONGEST_LINE else 0
        line, column = self.text.count("\n", 0, where) + 1, where - begin + 1
        error = MLIRError(message, self.file, line, column, source)
        if first or len(source) > LONGEST_LINE:  # a line of a megabyte: only the part around the caret is shown
            part = source[first : first + LONGEST_LINE]
            error.args = (f"{self.file}:{line}:{column}: {message}\n{part}\n{' ' * (column - 1 - first)}^",)
        return error

    def line_of(self, op: Operation) -> str:
        """The file and the line of an operation, for `explain`."""
        return f"{self.file}:{self.line_number(op)}"

    def line_number(self, op: Operation) -> int:
        """The line of an operation, from 1."""
        return bisect_right(self._breaks, self.starts.get(op, 0) - 1) + 1

    @cached_property
    def _breaks(self) -> list[int]:
        """Where lines end."""
        return [match.start() for match in re.finditer("\n", self.text)]

    def parsed(self) -> builtin.ModuleOp:
        """The module; every failure is an MLIRError."""
        self.check_size()
        if _BLANK.match(self.text).end() == len(self.text):  # type: ignore[union-attr]  # it matches nothing too
            what = "has comments alone" if self.text.strip() else "is empty"
            raise self.error(f"The text {what}, so there is nothing to read. Write a func.func, or check the file.", 0)
        parser: _Locating | None = None
        try:
            parser = _Locating(_context(), self)
            module = parser.parse_module()
        except ParseError as error:
            raise self._unparsed(error) from error
        except struct.error as error:
            assert parser is not None
            raise self._too_large(parser.pos) from error
        except RecursionError as error:
            raise self.error("The text is nested too deeply to be parsed. Flatten it.", 0) from error
        except Exception as error:  # the parser's own checks of numbers raise ValueError, struct.error and others
            where = 0 if parser is None else min(parser.pos, len(self.text))
            raise self.error(_sentence(_first_line(error)), where) from error
        return module

    def _unparsed(self, error: ParseError) -> MLIRError:
        """An error of the parser; one about a name that it does not know is put at the name."""
        unknown = _UNKNOWN.search(error.msg)
        if unknown is None:
            message = f"This can't be read{error.msg}" if error.msg.startswith(" in ") else error.msg
            return self.error(_sentence(message), error.span.start)
        name = unknown.group(1)
        where = max(self.text.rfind(name, 0, error.span.start + len(name)), 0)
        return self.error(f"'{name[:80]}' is unknown. docs/mlir.md lists the operations that are read.", where)

    def _too_large(self, end: int) -> MLIRError:
        """An integer that does not fit its type: the largest of the last list before the error."""
        begin = max(self.text.rfind("[", 0, end), self.text.rfind("<", 0, end), 0)
        numbers = list(re.finditer(r"-?\d+", self.text[begin:end]))
        worst = max(numbers, key=lambda number: len(number.group()), default=None)
        if worst is None:
            return self.error("An integer does not fit its type.", end)
        return self.error(f"{worst.group()[:40]} does not fit its type. Use a smaller integer.", begin + worst.start())

    def checked(self, module: builtin.ModuleOp) -> Iterator[MLIRError]:
        """What the definitions of operations refuse: operands, attributes, types."""
        for op in module.walk():
            for name, attribute in op.attributes.items():
                if "." not in name and op.name not in CARRIERS and isinstance(attribute, builtin.UnregisteredAttr):
                    yield self.error(f"'{op.name}' op has the attribute '{name}', which is not read. Remove it.", op)
            if op.name in LENIENT:
                continue
            try:
                op.verify(verify_nested_ops=False)
            except VerifyException as error:
                yield self.error(f"'{op.name}' op {_sentence(_first_line(error))}", op)
            except Exception as error:  # a definition that fails on values it did not expect
                yield self.error(f"'{op.name}' op can't be verified: {_sentence(_first_line(error))}", op)

    def check_size(self) -> None:
        """Raises MLIRError if the text is too long, has too many dims or is nested too deeply."""
        if len(self.text) > MOST_CHARACTERS:
            raise MLIRError(
                f"{self.file} has {len(self.text):,} characters; at most {MOST_CHARACTERS:,} are read. Split the file, or "
                f"load large constants from arrays."
            )
        dims = _DIMS.search(self.text)
        if dims is not None:
            raise self.error(f"A shape has more than {MOST_DIMS} dims. Join some.", dims.start())
        for width in _WIDTHS.finditer(self.text):
            if int(width[1]) >= MOST_BITS:
                raise self.error(
                    f"An integer type has {width[1][:20]} bits. MLIR has less than {MOST_BITS:,}.", width.start()
                )
        depth = 0
        for token in _TOKENS.finditer(self.text):
            text = token.group()
            if len(text) > 1:
                continue
            if text == '"':
                raise self.error("The string is not closed on this line. Add the closing quote.", token.start())
            depth += 1 if text in "[({<" else -1
            if depth > MOST_NESTED:
                raise self.error(
                    f"Brackets are nested more than {MOST_NESTED} deep. Flatten the program: put inner regions in functions.",
                    token.start(),
                )


class _Lexer(MLIRLexer):
    """xDSL's lexer, with one look for the tokens that most of a file consists of: words, values and punctuation."""

    _common = re.compile(r"\s*(?:([a-zA-Z_][\w$.]*)|(%[a-zA-Z_$.\-][\w$.\-]*|%[0-9]+)|([:,()\[\]<>=}]))", re.ASCII)
    _kinds = (MLIRTokenKind.BARE_IDENT, MLIRTokenKind.PERCENT_IDENT)

    def lex(self) -> Token[MLIRTokenKind, str]:
        """The next token."""
        found = self._common.match(self.input.content, self.pos)
        if found is None:
            return super().lex()
        number: int = found.lastindex  # type: ignore[assignment]
        kind = self._kinds[number - 1] if number < 3 else KIND_BY_PUNCTUATION_SPELLING[found.group(3)]
        self.pos = found.end()
        return Token(kind, Span(found.start(number), self.pos, self.input))


class _BitsOfElement(AttrParser._TensorLiteralElement):
    """An element of a constant by its bits."""

    def to_type(self, parser: AttrParser, type: Any) -> Any:
        """The float that has the bits; an integer as it is."""
        if not isinstance(type, builtin.AnyFloat):
            return super().to_type(parser, type)
        width = type.bitwidth
        if not 0 <= self.value < 2**width:  # type: ignore[operator]
            parser.raise_error(f"{self.span.text[:40]} has more bits than {type}", self.span)
        small = isinstance(type, builtin.BFloat16Type)  # the upper half of a float of 32 bits
        whole, real = {16: ("H", "e"), 32: ("I", "f"), 64: ("Q", "d")}[32 if small else width]
        bits = self.value << 16 if small else self.value  # type: ignore[operator]
        return struct.unpack(f"<{real}", struct.pack(f"<{whole}", bits))[0]


class _Locating(Parser):
    """xDSL's parser, which also notes where operations begin."""

    def __init__(self, context: Context, source: Source) -> None:
        super().__init__(context, "", source.file)
        self._parser_state = ParserState(_Lexer(Input(source.text, source.file)))
        self._starts, self._text = source.starts, source.text
        self._types: dict[str, TypeAttribute | None] = {}
        self._symbols: dict[str, Attribute | None] = {}

    def parse_optional_type(self) -> TypeAttribute | None:
        """A type; tensor types that were read before are looked up, since most of a file's tokens are parts of them."""
        start = self._current_token.span.start
        simple = _TENSOR.match(self._text, start)
        if simple is None:
            return super().parse_optional_type()
        if simple.group() not in self._types:
            self._types[simple.group()] = super().parse_optional_type()
        else:
            self._resume_from(simple.end())
        return self._types[simple.group()]

    def parse_optional_attribute(self) -> Attribute | None:
        """An attribute; names of symbols that were read before are looked up too."""
        simple = _SYMBOL.match(self._text, self._current_token.span.start)
        if simple is None:
            return super().parse_optional_attribute()
        if simple.group() not in self._symbols:
            self._symbols[simple.group()] = super().parse_optional_attribute()
        else:
            self._resume_from(simple.end())
        return self._symbols[simple.group()]

    def parse_optional_location(self) -> Any:
        """A location, which is passed over: it may name aliases that the end of the file defines."""
        if not self.parse_optional_characters("loc"):
            return None
        start, depth = self._current_token.span.start, 0
        for token in _BRACKETS.finditer(self._text, start):
            depth += {"(": 1, ")": -1}.get(token.group(), 0)
            if depth < 1:
                break
        if self._text[start : start + 1] != "(" or depth:
            self.raise_error("Expected a location in brackets, such as (unknown)")
        self._resume_from(token.end())
        return builtin.UnknownLoc()

    def _parse_tensor_literal_element(self) -> Any:
        """An element of a constant; xDSL takes the bits of a float, 0x7F800000, for an integer."""
        made = super()._parse_tensor_literal_element()
        return _BitsOfElement(made.is_negative, made.value, made.span) if made.span.text[:2] == "0x" else made

    def _parse_dense_literal_type(self) -> Any:
        """The type of a constant, whose elements are then held one by one, also where all are equal."""
        kind: Any = super()._parse_dense_literal_type()
        count = prod(kind.get_shape())
        if count > MOST_ELEMENTS:
            self.raise_error(
                f"a constant of {count:,} elements is too large, at most {MOST_ELEMENTS:,} are read; use linalg.fill or "
                f"tensor.splat for one element repeated, and an argument for data"
            )
        return kind

    def parse_operation(self) -> Operation:
        """An operation, and where it begins."""
        start = self._current_token.span.start
        op = super().parse_operation()
        self._starts[op] = start
        return op


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not set(line.strip()) <= set("^-")]
    return lines[0] if lines else type(error).__name__


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


class _Context(Context):
    """Knows the dialects that are read; attributes of others, which modules and functions may carry, are kept as text."""

    def get_optional_attr(self, name: str) -> Any:
        """The class of an attribute; None if a dialect that is read has no such attribute."""
        found = super().get_optional_attr(name)
        if found is not None or self.get_optional_dialect(name.partition(".")[0]) is not None:
            return found
        return builtin.UnregisteredAttr.with_name_and_type(name, False)


@cache
def _context() -> Context:
    context = _Context()
    plain = [builtin.Builtin, func.Func, scf.Scf, *DIALECTS.values()]
    more: list[tuple[Dialect, list[Any], list[Any]]] = [(dialect, [], []) for dialect in plain]
    more += [
        (arith.Arith, ARITH, []),
        (math.Math, MATH, []),
        (tensor.Tensor, TENSOR, []),
        (linalg.Linalg, LINALG, []),
        (tosa.TOSA, TOSA, TOSA_TYPES),
    ]
    for dialect, operations, attributes in more:
        known = [op for op in dialect.operations if op.name not in {mine.name for mine in operations}]
        context.load_dialect(Dialect(dialect.name, [*known, *operations], [*dialect.attributes, *attributes]))
    return context
