"""Small helpers for JAX programs: random keys that split themselves, float dtypes by name, trees with named leaves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardwright.errors import ShardwrightError

_FLOATS: dict[str, Any] = {
    "bf16": jnp.bfloat16,
    "bfloat16": jnp.bfloat16,
    "fp16": jnp.float16,
    "float16": jnp.float16,
    "fp32": jnp.float32,
    "float32": jnp.float32,
    "fp64": jnp.float64,
    "float64": jnp.float64,
}


class JaxRNG:
    """A random key that splits itself at every call.

    >>> rng = JaxRNG.from_seed(0)
    >>> rng().shape, len(rng(3)), sorted(rng(["params", "dropout"]))
    ((2,), 3, ['dropout', 'params'])

    It has state: inside a function that JAX compiles make one from a key that is an argument.
    """

    global_rng_generator: "ClassVar[JaxRNG | None]" = None

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    @classmethod
    def from_seed(cls, seed: int) -> "JaxRNG":
        """One that starts from a seed."""
        return cls(jax.random.PRNGKey(seed))

    def __call__(self, keys: int | Iterable[str] | None = None) -> Any:
        """A new key; for an int that many in a tuple; for names a dict with one for each."""
        names = None if keys is None or isinstance(keys, int) else list(keys)
        count = 1 if keys is None else keys if isinstance(keys, int) else len(names or ())
        self.rng, *fresh = jax.random.split(self.rng, count + 1)
        if names is not None:
            return dict(zip(names, fresh, strict=True))
        return fresh[0] if keys is None else tuple(fresh)

    @classmethod
    def init_global_rng(cls, seed: int) -> None:
        """Seeds the one that `next_rng` uses."""
        cls.global_rng_generator = cls.from_seed(seed)

    @classmethod
    def next_rng(cls, *args: Any, **kwargs: Any) -> Any:
        """Calls the global one."""
        if cls.global_rng_generator is None:
            raise ShardwrightError("The global random key is not set. Call JaxRNG.init_global_rng(seed) first.")
        return cls.global_rng_generator(*args, **kwargs)


def get_float_dtype_by_name(dtype: str) -> Any:
    """The float dtype of a name: bf16, fp16, fp32, fp64, or the long names."""
    if dtype not in _FLOATS:
        raise KeyError(f"{dtype!r} is not a float dtype. Use one of {', '.join(_FLOATS)}.")
    return _FLOATS[dtype]


def float_tensor_to_dtype(tensor: Any, dtype: Any) -> Any:
    """The tensor with a dtype if it has a float dtype now, else itself; None and '' change nothing."""
    if dtype is None or (isinstance(dtype, str) and not dtype):
        return tensor
    target = get_float_dtype_by_name(dtype) if isinstance(dtype, str) else dtype
    return tensor.astype(target) if getattr(tensor, "dtype", None) in tuple(_FLOATS.values()) else tensor


def float_to_dtype(tree: Any, dtype: Any) -> Any:
    """A tree whose float tensors have a dtype; others stay as they are."""
    return jax.tree_util.tree_map(lambda tensor: float_tensor_to_dtype(tensor, dtype), tree)


def key_name(key: Any) -> str:
    """The name of one step of a path in a pytree.

    >>> key_name(jax.tree_util.GetAttrKey("params")), key_name(jax.tree_util.SequenceKey(2))
    ('params', '2')
    """
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def tree_path_to_string(path: Sequence[Any], sep: str | None = None) -> Any:
    """The names along a path of a pytree, joined by `sep`, or as a tuple."""
    names = tuple(map(key_name, path))
    return names if sep is None else sep.join(names)


def flatten_tree(xs: Any, is_leaf: Callable[[Any], bool] | None = None, sep: str | None = None) -> dict[Any, Any]:
    """The leaves of a pytree by path.

    >>> flatten_tree({"a": 1, "b": [2, 3]}, sep="/")
    {'a': 1, 'b/0': 2, 'b/1': 3}
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(xs, is_leaf=is_leaf)
    return {tree_path_to_string(path, sep): leaf for path, leaf in leaves}


def named_tree_map(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    sep: str | None = None,
) -> Any:
    """`jax.tree.map` with a function that gets the path of each leaf too, first.

    >>> named_tree_map(lambda path, x: f"{path}={x}", {"a": [1, 2]}, sep="/")
    {'a': ['a/0=1', 'a/1=2']}
    """

    def on_leaf(path: Sequence[Any], *leaves: Any) -> Any:
        return f(tree_path_to_string(path, sep), *leaves)

    return jax.tree_util.tree_map_with_path(on_leaf, tree, *rest, is_leaf=is_leaf)


def print_pytree_structure(tree: Any, sep: str = "/", is_leaf: Callable[[Any], bool] | None = None) -> None:
    """Prints path, shape and dtype of every leaf.

    >>> print_pytree_structure({"w": jnp.ones((2, 3)), "name": "mlp"})
    name: shape: none, dtype: none
    w: shape: (2, 3), dtype: float32
    """
    for path, leaf in flatten_tree(tree, is_leaf, sep).items():
        print(f"{path}: shape: {getattr(leaf, 'shape', 'none')}, dtype: {getattr(leaf, 'dtype', 'none')}")
