"""The networks that discovery and growth are timed on: ResNet-50 and GPT-2 with 124M parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from growthring import zoo


def _resnet50(seed: int) -> tuple[nn.Module, Any]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(2, 3, 224, 224, generator=generator)
    return zoo.resnet50(generator=generator), images


def _tokens(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 50257, (2, 64), generator=generator)


def _gpt2(seed: int) -> tuple[nn.Module, Any]:
    generator = torch.Generator().manual_seed(seed)
    return zoo.gpt2_124m(generator=generator), _tokens(generator)


def _gpt2_transformers(seed: int) -> tuple[nn.Module, Any]:
    transformers = importlib.import_module("transformers")
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    tokens = _tokens(torch.Generator().manual_seed(seed))
    return model, {"input_ids": tokens, "use_cache": False}


# name -> seed -> (model, example inputs)
NETWORKS: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {
    "ResNet-50 (zoo)": _resnet50,
    "GPT-2 124M (zoo)": _gpt2,
    "GPT-2 124M (transformers)": _gpt2_transformers,
}
