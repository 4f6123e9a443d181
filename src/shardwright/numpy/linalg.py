"""Linear algebra: products with any sharding; decompositions gather split matrices and keep batch dims split."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shardwright.arrays import Array
from shardwright.eager import apply
from shardwright.eager import matmul as matmul_operator
from shardwright.errors import OperationError
from shardwright.numpy.common import Axis, array, axes_of, axis_of, integer, operands
from shardwright.numpy.common import arrays as lifted
from shardwright.numpy.elementwise import astype
from shardwright.numpy.moves import matrix_transpose, moveaxis, reshape
from shardwright.numpy.statistics import _reduce, sum
from shardwright.ops import Attrs


def matmul(x1: Any, x2: Any, /) -> Array:
    """Products of matrices in the last two dims, as `x1 @ x2`."""
    a, b = operands("matmul", x1, x2)
    result: Array = matmul_operator(a, b)
    if result is NotImplemented:
        raise OperationError("matmul takes arrays, not scalars.")
    return result


def einsum(subscripts: str, /, *arrays: Any) -> Array:
    """Products summed over the letters that are not in the result: `einsum("bij,bjk->bik", x, y)`."""
    terms, right = _parsed(subscripts)
    left, given = ",".join(terms), lifted("einsum", *arrays)
    letters = [c for c in right if c != "."]
    if len(set(letters)) < len(letters) or not set(letters) <= set(left) or ("..." in left and "..." not in right):
        raise OperationError(
            f"einsum: the result {right!r} must name letters of {left!r} once each, and keep its '...'."
        )
    if len(terms) != len(given):
        raise OperationError(f"einsum: {subscripts!r} has {len(terms)} operands; got {len(given)}.")
    for i, term in enumerate(terms):
        if len(term.replace("...", "")) > given[i].ndim or ("." not in term and len(term) < given[i].ndim):
            raise OperationError(
                f"einsum: {term!r} of {subscripts!r} does not fit an operand of shape {given[i].shape}."
            )
        for letter in dict.fromkeys(term):
            if term.count(letter) > 1 and letter != ".":
                given[i], terms[i] = _diagonals(given[i], terms[i], letter)
    text = ", ".join(_spaced(term) for term in terms) + " -> " + _spaced(right)
    kind = np.result_type(*(x.dtype for x in given))
    same = [x if x.dtype == kind else astype(x, kind) for x in given]
    result: Array = apply("einsum", same, Attrs(name="einsum", text=text))
    return result


def _parsed(subscripts: Any) -> tuple[list[str], str]:
    """The terms of the operands and of the result; without an arrow the letters that occur once, in order."""
    if not isinstance(subscripts, str):
        raise OperationError(
            f"einsum: the first argument is a string such as 'ij,jk->ik'; got {type(subscripts).__name__}."
        )
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term):
            raise OperationError(
                f"einsum: {term!r} of {subscripts!r} is invalid. A term has letters and at most one '...'; '->' occurs once."
            )
    if not arrow:
        right = "..." * ("..." in left) + "".join(sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1))
    return terms, right


def _spaced(term: str) -> str:
    return " ".join(term.replace("...", "…")).replace("…", "...")


def _diagonals(x: Array, term: str, letter: str) -> tuple[Array, str]:
    """The elements whose indices along a repeated letter are equal."""
    places = [i for i, c in enumerate(term) if c == letter]
    if "." in term:
        raise OperationError(
            f"einsum: {term!r} repeats {letter!r} and has '...', which is not supported. Take the diagonal first."
        )
    if len({x.shape[i] for i in places}) > 1:
        sizes = " and ".join(str(x.shape[i]) for i in places)
        raise OperationError(f"einsum: {term!r} repeats {letter!r}, whose dims have different sizes: {sizes}.")
    while len(places) > 1:
        x = diagonal(moveaxis(x, places[:2], (-2, -1)))
        rest = [c for i, c in enumerate(term) if i not in places[:2]]
        term = "".join(rest) + letter
        places = [i for i, c in enumerate(term) if c == letter]
    return x, term


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Array:
    """Products summed over several dims of both operands."""
    a, b = lifted("tensordot", x1, x2)
    if not isinstance(axes, Iterable):
        count = integer("tensordot", "axes", axes)
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise OperationError(
                f"tensordot: axes={count} dims of operands of shapes {a.shape} and {b.shape}; give 0 to {min(a.ndim, b.ndim)}."
            )
        left, right = tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    elif len(both := tuple(axes)) == 2:
        left, right = axes_of("tensordot", both[0], a.ndim), axes_of("tensordot", both[1], b.ndim)
    else:
        raise OperationError(f"tensordot: axes={axes}; give an integer, or the dims of both operands.")
    if len(left) != len(right):
        raise OperationError(
            f"tensordot: axes gives {len(left)} dims of the first operand and {len(right)} of the second. Give equally many."
        )
    names_a = [f"k{left.index(i)}" if i in left else f"a{i}" for i in range(a.ndim)]
    names_b = [f"k{right.index(i)}" if i in right else f"b{i}" for i in range(b.ndim)]
    result = [n for n in (*names_a, *names_b) if not n.startswith("k")]
    text = f"{' '.join(names_a)}, {' '.join(names_b)} -> {' '.join(result)}"
    made: Array = apply("einsum", (a, b), Attrs(name="tensordot", text=text))
    return made


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Products of vectors along a dim, the first conjugated."""
    a, b = (moveaxis(x, axis_of("vecdot", axis, x.ndim), -1) for x in lifted("vecdot", x1, x2))
    if a.dtype.kind == "c":
        a = apply("conj", (a,))
    result: Array = apply("einsum", (a, b), Attrs(name="vecdot", text="... k, ... k -> ..."))
    return result


def outer(x1: Any, x2: Any, /) -> Array:
    """All products of two vectors' elements."""
    a, b = lifted("outer", x1, x2)
    if a.ndim != 1 or b.ndim != 1:
        raise OperationError(f"outer takes vectors; got shapes {a.shape} and {b.shape}. Flatten with reshape(x, -1).")
    result: Array = reshape(a, (-1, 1)) * reshape(b, (1, -1))
    return result


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Cross products of vectors of three elements."""
    a, b = lifted("cross", x1, x2)
    if any(x.shape[axis_of("cross", axis, x.ndim)] != 3 for x in (a, b)):
        raise OperationError(f"cross: the dim must have size 3; got shapes {a.shape} and {b.shape} along {axis}.")
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    turned = np.array([1, 2, 0]), np.array([2, 0, 1])
    result = a[..., turned[0]] * b[..., turned[1]] - a[..., turned[1]] * b[..., turned[0]]
    return moveaxis(result, -1, axis if axis < 0 else axis + result.ndim - a.ndim)


def _matrix(name: str, x: Any) -> Array:
    """The only operand of an operation, checked to have at least two dims."""
    a = array(name, x)
    if a.ndim < 2:
        raise OperationError(f"{name} takes matrices, at least two dims; got shape {a.shape}.")
    return a


def _matrices(name: str, x: Any, **attrs: Any) -> Any:
    return apply(name, (_matrix(name, x),), Attrs(**attrs))


def _square(name: str, x: Any, **attrs: Any) -> Any:
    a = array(name, x)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise OperationError(f"{name} takes square matrices; got shape {a.shape}.")
    return apply(name, (a,), Attrs(**attrs))


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """The Cholesky factor."""
    result: Array = _square("cholesky", x, upper=upper)
    return result


def det(x: Any, /) -> Array:
    """Determinants."""
    result: Array = _square("det", x)
    return result


def inv(x: Any, /) -> Array:
    """Inverses."""
    result: Array = _square("inv", x)
    return result


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Pseudo-inverses."""
    return _tolerant("pinv", x, rtol)


def _tolerant(name: str, x: Any, rtol: Any) -> Array:
    if rtol is None or getattr(rtol, "ndim", 0) == 0:
        result: Array = _matrices(name, x, **({} if rtol is None else {"rtol": float(rtol)}))
        return result
    given: Array = apply(name, operands(name, x, rtol))
    return given


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Norms of matrices."""
    result: Array = _matrices("matrix_norm", x, ord=ord, keepdims=False)
    return reshape(result, (*result.shape, 1, 1)) if keepdims else result


def matrix_power(x: Any, n: int, /) -> Array:
    """The n-th power of matrices."""
    result: Array = _square("matrix_power", x, n=integer("matrix_power", "n", n))
    return result


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Ranks of matrices."""
    return _tolerant("matrix_rank", x, rtol)


def solve(x1: Any, x2: Any, /) -> Array:
    """Solutions y of x1 · y = x2; x2 is a vector or matrices."""
    a, b = lifted("solve", x1, x2)
    vector = b.ndim == 1
    if vector:
        b = reshape(b, (-1, 1))
    result: Array = apply("solve", (a, b))
    return reshape(result, result.shape[:-1]) if vector else result


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sums of diagonals."""
    return sum(diagonal(_matrix("trace", x), offset=offset), axis=-1, dtype=dtype)


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Diagonals of matrices."""
    a = _matrix("diagonal", x)
    m, n = a.shape[-2:]
    offset = integer("diagonal", "offset", offset)
    size = max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))
    result: Array = _matrices("diagonal", a, offset=offset, sizes=(("d", size),))
    return result


def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """Norms over dims; of integers in float64, as in NumPy."""
    a = array("vector_norm", x)
    if a.dtype.kind in "biu":
        a = astype(a, np.float64)
    dims = axes_of("vector_norm", axis, a.ndim)
    size = apply("abs", (a,))
    if ord == float("inf"):
        return _reduce("max", size, dims, keepdims) if a.size else sum(size, axis=dims, keepdims=keepdims)
    if ord == float("-inf"):
        return _reduce("min", size, dims, keepdims)
    kind = size.dtype
    if ord == 0:
        return astype(sum(size != 0, axis=dims, keepdims=keepdims), kind)
    if ord == 1:
        return sum(size, axis=dims, keepdims=keepdims)
    if ord == 2:
        return apply("sqrt", (sum(size * size, axis=dims, keepdims=keepdims),))
    return sum(size**ord, axis=dims, keepdims=keepdims) ** (1 / ord)


class EigResult(NamedTuple):
    """The result of `eig` and `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Array
    S: Array
    Vh: Array


def eig(x: Any, /) -> EigResult:
    """Eigenvalues and eigenvectors, complex."""
    return EigResult(*_square("eig", x))


def eigvals(x: Any, /) -> Array:
    """Eigenvalues, complex."""
    values: Array = _square("eigvals", x)
    return values


def eigh(x: Any, /) -> EigResult:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    return EigResult(*_square("eigh", x))


def eigvalsh(x: Any, /) -> Array:
    """Eigenvalues of symmetric matrices."""
    result: Array = _square("eigvalsh", x)
    return result


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """An orthogonal and an upper triangular factor."""
    a = _matrix("qr", x)
    if mode == "complete":
        return QRResult(*_matrices("qr_complete", a, mode="complete"))
    if mode != "reduced":
        raise OperationError(f"qr: mode is 'reduced' or 'complete', not {mode!r}.")
    return QRResult(*_matrices("qr", a, sizes=(("q", min(a.shape[-2:])),)))


def slogdet(x: Any, /) -> SlogdetResult:
    """Signs and logarithms of determinants."""
    return SlogdetResult(*_square("slogdet", x))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values and vectors."""
    a = _matrix("svd", x)
    sizes = (("q", min(a.shape[-2:])),)
    return SVDResult(*_matrices("svd_full" if full_matrices else "svd", a, full_matrices=full_matrices, sizes=sizes))


def svdvals(x: Any, /) -> Array:
    """Singular values."""
    a = _matrix("svdvals", x)
    result: Array = _matrices("svdvals", a, sizes=(("q", min(a.shape[-2:])),))
    return result


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "einsum", "inv", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd",
    "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
