"""Primitives that JAX itself writes as functions of others: random keys and some special functions, as jaxprs."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax._src.lax import special  # JAX lowers these primitives by the functions here, which have no public names

SPECIAL: dict[str, Callable[..., Any]] = {
    "bessel_i0e": special.bessel_i0e_impl,
    "igamma": special.igamma_impl,
    "igammac": special.igammac_impl,
    "igamma_grad_a": special.igamma_grad_a_impl,
    "regularized_incomplete_beta": special.regularized_incomplete_beta_impl,
}
KEPT = ("random_wrap", "random_unwrap", "copy", "optimization_barrier", "scan", "while", "cond", "device_put")
RANDOM = ("random_bits", "random_split", "random_fold_in", "random_seed")


def is_key(aval: Any) -> bool:
    """Whether a value is an array of random keys: its elements are held as rows of uint32."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key))


def data_of(aval: Any) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """The shape and the dtype that a value is held in."""
    if is_key(aval):
        return (*aval.shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32)
    return tuple(aval.shape), np.dtype(aval.dtype)


def implementation_of(eqn: Any) -> Any:
    """The implementation of random keys that an equation works with; None if it works with none."""
    for aval in (*(v.aval for v in eqn.invars), *(v.aval for v in eqn.outvars)):
        if hasattr(aval, "dtype") and is_key(aval):
            return aval.dtype._impl
    return None


def expansion(eqn: Any) -> Any:
    """The closed jaxpr of the equations that one stands for; None if it stands for itself."""
    name = eqn.primitive.name
    if name in SPECIAL:
        kinds = tuple((tuple(v.aval.shape), np.dtype(v.aval.dtype)) for v in eqn.invars)
        return _special(name, kinds)
    if name in RANDOM:
        kinds = tuple(data_of(v.aval) for v in eqn.invars)
        return _random(name, implementation_of(eqn), kinds, tuple(sorted(_plain(eqn.params).items())))
    if name not in KEPT and any(is_key(v.aval) for v in eqn.invars if hasattr(v.aval, "dtype")):
        return _moved(eqn)
    return None


def _moved(eqn: Any) -> Any:
    """A primitive that moves whole keys, for each of the words that a key consists of."""
    keys = [is_key(v.aval) for v in eqn.invars]

    def run(*operands: Any) -> Any:
        return eqn.primitive.bind(*operands, **eqn.params)

    mapped = jax.vmap(run, in_axes=[-1 if key else None for key in keys], out_axes=-1)
    return _traced(mapped, [data_of(v.aval) for v in eqn.invars])


def _plain(params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key in ("bit_width", "shape")}


def _traced(function: Callable[..., Any], kinds: Sequence[Any]) -> Any:
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(*kind) for kind in kinds))


@lru_cache(maxsize=256)
def _special(name: str, kinds: tuple[Any, ...]) -> Any:
    def run(*operands: Any) -> Any:
        try:
            return SPECIAL[name](*operands, dtype=operands[0].dtype)
        except TypeError:
            return SPECIAL[name](*operands)

    return _traced(run, kinds)


@lru_cache(maxsize=256)
def _random(name: str, impl: Any, kinds: tuple[Any, ...], params: tuple[tuple[str, Any], ...]) -> Any:
    """The equations of one operation on keys, which are vmapped over the keys of an array."""
    options = dict(params)
    functions: dict[str, Callable[..., Any]] = {
        "random_bits": lambda key: impl.random_bits(key, options["bit_width"], tuple(options["shape"])),
        "random_split": lambda key: impl.split(key, tuple(options["shape"])),
        "random_fold_in": lambda key, number: impl.fold_in(key, number),
        "random_seed": lambda seed: impl.seed(seed),
    }
    function = functions[name]
    depth = len(kinds[0][0]) - (0 if name == "random_seed" else len(impl.key_shape))
    for _ in range(depth):
        function = jax.vmap(function)
    return _traced(function, kinds)
