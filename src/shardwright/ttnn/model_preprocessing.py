"""Parameters of a torch model as tensors for a mesh: by a custom preprocessor if given, else by the default ones."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from shardwright.ttnn.dtypes import TILE_LAYOUT, bfloat16
from shardwright.ttnn.errors import fatal
from shardwright.ttnn.tensors import Tensor, from_torch, to_device


class ParameterDict(dict[str, Any]):
    """A dict whose entries are also attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"There is no parameter {name!r}; there are {', '.join(map(repr, self)) or 'none'}.")


def preprocess_linear_weight(weight: torch.Tensor, *, dtype: Any = bfloat16, layout: Any = TILE_LAYOUT) -> Tensor:
    """A Linear's weight as `in, out`."""
    return from_torch(weight.detach().T.contiguous(), dtype, layout=layout)


def preprocess_linear_bias(bias: torch.Tensor, *, dtype: Any = bfloat16, layout: Any = TILE_LAYOUT) -> Tensor:
    """A Linear's bias as one row."""
    return from_torch(bias.detach().reshape(1, -1), dtype, layout=layout)


def _usual(model: torch.nn.Module, convert: bool) -> ParameterDict | None:
    """The parameters of a known module type; None for other types."""
    if not convert:
        return None
    if isinstance(model, torch.nn.Linear):
        made = ParameterDict(weight=preprocess_linear_weight(model.weight))
        if model.bias is not None:
            made["bias"] = preprocess_linear_bias(model.bias)
        return made
    if isinstance(model, torch.nn.LayerNorm) and model.weight is not None:
        made = ParameterDict(weight=preprocess_linear_bias(model.weight))
        if model.bias is not None:
            made["bias"] = preprocess_linear_bias(model.bias)
        return made
    if isinstance(model, torch.nn.Embedding):
        return ParameterDict(weight=from_torch(model.weight.detach(), bfloat16))
    return None


def _call(custom: Callable[..., Any], model: Any, name: str, convert: Callable[..., bool]) -> Any:
    known = inspect.signature(custom).parameters
    if len(known) < 2:
        raise fatal(
            "Custom preprocessor must have at least two parameters: model and name",
            f"{getattr(custom, '__name__', custom)} has {len(known)}.",
        )
    extra = {"ttnn_module_args": ParameterDict(), "convert_to_ttnn": convert}
    return custom(model, name, **{key: value for key, value in extra.items() if key in known})


def _tree(model: torch.nn.Module, name: str, custom: Callable[..., Any] | None, convert: Callable[..., bool]) -> Any:
    if custom is not None:
        given = _call(custom, model, name, convert)
        if given:
            return _as_parameters(given)
    known = _usual(model, convert(model, name))
    if known is not None:
        return known
    if isinstance(model, torch.nn.ModuleList):
        return [_tree(part, f"{name}.{i}" if name else str(i), custom, convert) for i, part in enumerate(model)]
    made = ParameterDict()
    for key, part in model.named_children():
        made[key] = _tree(part, f"{name}.{key}" if name else key, custom, convert)
    for key, parameter in model.named_parameters(recurse=False):
        plain = parameter.detach()
        floats = plain.dtype.is_floating_point and convert(model, name)
        made[key] = from_torch(plain, bfloat16 if floats else None) if convert(model, name) else plain
    return made


def _as_parameters(given: Any) -> Any:
    return ParameterDict({k: _as_parameters(v) for k, v in given.items()}) if isinstance(given, dict) else given


def preprocess_model_parameters(
    *,
    model_name: str | None = None,
    version: str | None = None,
    initialize_model: Callable[[], torch.nn.Module] | None = None,
    convert_to_ttnn: Callable[..., bool] | None = None,
    custom_preprocessor: Callable[..., Any] | None = None,
    device: Any = None,
    prefix: str = "",
) -> ParameterDict:
    """The parameters of a model as tensors; floats become bfloat16.

    Linear (weight transposed), LayerNorm and Embedding are converted to the form that devices need, others stay as they are.
    `custom_preprocessor(model, name[, ttnn_module_args][, convert_to_ttnn])` is called first, from the root on; its result
    replaces that part of the model. It gets a mapper by closure or from `ttnn.distribute`.
    """
    if initialize_model is None:
        raise fatal("initialize_model must be given", "Pass initialize_model=lambda: model.")
    model = initialize_model()
    model.eval()
    made = _tree(model, prefix, custom_preprocessor, convert_to_ttnn or (lambda *_: True))
    return made if device is None else _on(made, device)


def _on(tree: Any, device: Any) -> Any:
    if isinstance(tree, Tensor):
        return to_device(tree, device)
    if isinstance(tree, dict):
        return ParameterDict({key: _on(value, device) for key, value in tree.items()})
    return [_on(value, device) for value in tree] if isinstance(tree, list) else tree
