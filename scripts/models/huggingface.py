"""Models of transformers at tiny sizes: every part of the architecture is there, only narrower and shallower."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from growthring.graph.trace import ExampleInputs
from scripts.models.entry import Entry, Inputs, images, tokens

VOCABULARY = 99
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHORT = {"max_position_embeddings": 32}
_GROUPED = {"num_key_value_heads": 4}
_VISION = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 8,
}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
}


def _make(kind: str, config: str, settings: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = pytest.importorskip("transformers")
        return getattr(library, kind)(getattr(library, config)(**settings))

    return build


def _two_sequences(generator: torch.Generator) -> ExampleInputs:
    first, second = tokens(VOCABULARY), tokens(VOCABULARY, 6)
    return {"input_ids": first(generator), "decoder_input_ids": second(generator)}


def _sound_and_text(generator: torch.Generator) -> ExampleInputs:
    sound = torch.randn(2, 8, 40, generator=generator)
    return {"input_features": sound, "decoder_input_ids": tokens(VOCABULARY, 6)(generator)}


def _entry(
    name: str,
    kind: str,
    config: str,
    settings: Mapping[str, Any],
    inputs: Inputs | None = None,
    **others: Any,
) -> Entry:
    inputs = inputs or tokens(VOCABULARY)
    return Entry("transformers", name, _make(kind, config, settings), inputs, **others)


ENTRIES = (
    _entry(
        "GPT-2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_positions": 32,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        fast=True,
        trains=True,
    ),
    _entry(
        "Llama",
        "LlamaForCausalLM",
        "LlamaConfig",
        {**_TEXT, **_GROUPED},
        trains=True,
    ),
    _entry("Mistral", "MistralForCausalLM", "MistralConfig", {**_TEXT, **_GROUPED}),
    _entry(
        "BERT (masked LM)",
        "BertForMaskedLM",
        "BertConfig",
        {**_TEXT, **_SHORT},
        trains=True,
    ),
    # Its output is the residual stream, so only what is inside the layers grows.
    _entry(
        "BERT (bare)",
        "BertModel",
        "BertConfig",
        {**_TEXT, **_SHORT},
        seed_share=0.45,
    ),
    _entry("ViT", "ViTForImageClassification", "ViTConfig", _VISION, images(32), trains=True),
    _entry(
        "T5 (tied)",
        "T5ForConditionalGeneration",
        "T5Config",
        _T5,
        _two_sequences,
        options={"outputs": ["logits"]},
    ),
    _entry(
        "T5 (untied, gated)",
        "T5ForConditionalGeneration",
        "T5Config",
        {**_T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
        _two_sequences,
        options={"outputs": ["logits"]},
    ),
    _entry("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", {**_TEXT, **_GROUPED}),
    _entry("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_TEXT, **_GROUPED, "head_dim": 8}),
    _entry("Gemma", "GemmaForCausalLM", "GemmaConfig", {**_TEXT, **_GROUPED, "head_dim": 8}),
    _entry("Phi", "PhiForCausalLM", "PhiConfig", _TEXT),
    _entry("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT),
    _entry(
        "Bloom",
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 8},
    ),
    _entry(
        "OPT",
        "OPTForCausalLM",
        "OPTConfig",
        {
            **{k: v for k, v in _TEXT.items() if k != "intermediate_size"},
            **_SHORT,
            "ffn_dim": 96,
            "word_embed_proj_dim": 64,
        },
    ),
    _entry(
        "DistilBERT",
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 64,
            "hidden_dim": 96,
            "n_layers": 2,
            "n_heads": 8,
            **_SHORT,
        },
    ),
    _entry(
        "BART",
        "BartForConditionalGeneration",
        "BartConfig",
        {**_SEQ2SEQ, **_SHORT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        _two_sequences,
        options={"outputs": ["logits"]},
    ),
    _entry(
        "CLIP (vision)",
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {**_VISION, "projection_dim": 16},
        images(32),
        options={"outputs": ["image_embeds"]},
    ),
    _entry(
        "Whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 16,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        _sound_and_text,
        options={"outputs": ["logits"]},
    ),
    _entry(
        "Mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_TEXT, **_GROUPED, "num_local_experts": 4},
        seed_share=0.95,  # transformers.grouped_mm_fallback has no rule: only the attention's heads grow
    ),
    _entry(
        "Mamba",
        "MambaForCausalLM",
        "MambaConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
)
