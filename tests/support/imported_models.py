"""Small randomly initialised models as people write them: builders that give a module and its example inputs."""

import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

Built = tuple[torch.nn.Module, tuple[Any, ...]]
MODELS: dict[str, Callable[[], Built]] = {}

DECODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def built(name: str) -> Built:
    """A model in inference mode with its example inputs, the same at every call."""
    prepare()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that models come from
        module, inputs = MODELS[name]()
    return module.eval(), inputs


def _model(build: Callable[[], Built]) -> Callable[[], Built]:
    MODELS[build.__name__] = build
    return build


class Output(torch.nn.Module):
    """A model whose forward pass gives one tensor."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.model, *inputs)


class Decoder(torch.nn.Module):
    """A causal language model from token ids to logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 90, shape)


def _transformer(name: str, config: str, attention: str = "sdpa", **options: Any) -> torch.nn.Module:
    import transformers

    made = getattr(transformers, config)(**options)
    model: torch.nn.Module = getattr(transformers, name)._from_config(made, attn_implementation=attention)
    return model


def decoder(family: str, attention: str = "sdpa", **options: Any) -> torch.nn.Module:
    """A decoder of a family of transformers, of the small size unless told otherwise."""
    return Decoder(_transformer(f"{family}ForCausalLM", f"{family}Config", attention, **{**DECODER, **options}))


@_model
def llama() -> Built:
    return decoder("Llama"), (_ids(2, 12),)


@_model
def qwen2() -> Built:
    return decoder("Qwen2"), (_ids(2, 12),)


@_model
def qwen3() -> Built:
    return decoder("Qwen3", head_dim=8), (_ids(2, 12),)


@_model
def mixtral() -> Built:
    return decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2), (_ids(2, 12),)


@_model
def qwen3_moe() -> Built:
    options = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return decoder("Qwen3Moe", **options), (_ids(2, 12),)


@_model
def gemma2() -> Built:
    return decoder("Gemma2", "eager", head_dim=8), (_ids(2, 12),)


@_model
def gpt2() -> Built:
    sizes = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return Decoder(_transformer("GPT2LMHeadModel", "GPT2Config", "eager", **sizes)), (_ids(2, 12),)


@_model
def bert() -> Built:
    sizes = {name: size for name, size in DECODER.items() if name != "num_key_value_heads"}
    model = _transformer("BertModel", "BertConfig", **sizes)
    return Output(model, lambda m, ids: m(input_ids=ids).last_hidden_state), (_ids(2, 12),)


@_model
def t5() -> Built:
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = _transformer("T5ForConditionalGeneration", "T5Config", **sizes)
    call = lambda m, ids, targets: m(input_ids=ids, decoder_input_ids=targets, use_cache=False).logits  # noqa: E731
    return Output(model, call), (_ids(2, 12), _ids(2, 8))


@_model
def vit() -> Built:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = _transformer("ViTModel", "ViTConfig", **sizes, image_size=32, patch_size=8)
    return Output(model, lambda m, images: m(pixel_values=images).last_hidden_state), (torch.randn(2, 3, 32, 32),)


@_model
def whisper() -> Built:
    sizes = {
        "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 16,
        "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip
    model = _transformer("WhisperForConditionalGeneration", "WhisperConfig", **sizes)
    call = lambda m, sound, ids: m(input_features=sound, decoder_input_ids=ids, use_cache=False).logits  # noqa: E731
    return Output(model, call), (torch.randn(2, 16, 32), _ids(2, 8))


@_model
def clip() -> Built:
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={
            **sizes,
            "vocab_size": 96,
            "max_position_embeddings": 32,
            "projection_dim": 32,
            "eos_token_id": 95,
        },
        vision_config={**sizes, "image_size": 32, "patch_size": 8, "projection_dim": 32},
        projection_dim=32,
    )
    call = lambda m, ids, images: m(input_ids=ids, pixel_values=images).logits_per_image  # noqa: E731
    return Output(transformers.CLIPModel(config), call), (_ids(2, 12), torch.randn(2, 3, 32, 32))


@_model
def mamba() -> Built:
    sizes = {"vocab_size": 96, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
    return Decoder(_transformer("MambaForCausalLM", "MambaConfig", "eager", **sizes)), (_ids(2, 8),)


@_model
def resnet50() -> Built:
    import torchvision

    return torchvision.models.resnet50(), (torch.randn(2, 3, 32, 32),)


@_model
def convnext() -> Built:
    import torchvision

    return torchvision.models.convnext_tiny(), (torch.randn(2, 3, 32, 32),)


@_model
def efficientnet() -> Built:
    import timm

    return timm.create_model("efficientnet_b0"), (torch.randn(2, 3, 32, 32),)


@_model
def swin() -> Built:
    import timm

    options = {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    return timm.create_model("swin_tiny_patch4_window7_224", **options), (torch.randn(2, 3, 56, 56),)


@_model
def unet() -> Built:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    inputs = torch.randn(2, 4, 8, 8), torch.tensor([3]), torch.randn(2, 5, 16)
    return Output(model, lambda m, images, times, texts: m(images, times, texts).sample), inputs


@_model
def dit() -> Built:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    call = lambda m, images, times, labels: m(images, timestep=times, class_labels=labels).sample  # noqa: E731
    return Output(model, call), (torch.randn(2, 4, 8, 8), torch.tensor([3, 4]), torch.tensor([1, 2]))


# -- packages ----------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Declare torchvision's compiled operations, which only detection runs: without them it can't be imported.

    Its wheels on PyPI are linked against CUDA, which a CPU build of torch does not bring. Other packages import it too.
    """
    if _DECLARED:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    for name in ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.define(f"_{name}_backward(Tensor x) -> Tensor")
    _DECLARED.append(library)  # operations live as long as the library that declares them


_DECLARED: list[Any] = []
