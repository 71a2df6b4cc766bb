"""Tasks: networks of any width, batches for training, and the loss on what was held out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from growthring.train.measure import predictions
from growthring.zoo import mlp8
from growthring.zoo.gpt import GPT
from growthring.zoo.resnet import resnet8
from growthring.zoo.vgg import VGG
from scripts.trials.cifar import augment, load_cifar

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Something to learn.

    Attributes:
        build: a network of a width, with weights from a generator.
        example: inputs for `gr.plan`, of two examples.
        batch: so many examples, drawn with a generator; as they are, or augmented where the task has that.
        held_out: batches for the validation loss.
        optimizer: "adamw" or "sgd".
        lr: a rate to begin tuning with.
        batch_size: examples in a step.
        warmup: share of a run over which the rate rises.
    """

    build: Callable[[int, torch.Generator], nn.Module]
    example: Tensor
    batch: Callable[[int, torch.Generator, bool], Batch]
    held_out: list[Batch]
    optimizer: str
    lr: float
    batch_size: int
    warmup: float = 0.02

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross entropy."""
        inputs, targets = batch
        return functional.cross_entropy(
            predictions(model(inputs)).flatten(0, -2), targets.flatten()
        )

    @torch.no_grad()
    def validate(self, model: nn.Module, quickly: bool = False) -> tuple[float, float]:
        """Mean cross entropy and accuracy of what was held out, or of a part of it."""
        model.eval()
        loss, right, count = 0.0, 0, 0
        for inputs, targets in self.held_out[:2] if quickly else self.held_out:
            outputs, targets = predictions(model(inputs)).flatten(0, -2), targets.flatten()
            loss += float(functional.cross_entropy(outputs, targets, reduction="sum"))
            right += int((outputs.argmax(-1) == targets).sum())
            count += targets.numel()
        model.train()
        return loss / count, right / count


@functools.cache
def _text(root: Path) -> Tensor:
    data = (root / "tinyshakespeare.txt").read_bytes()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def gpt(root: Path, context: int = 64, num_layers: int = 3) -> Task:
    """A small GPT on the bytes of tinyshakespeare; its last tenth is held out."""

    def build(width: int, generator: torch.Generator) -> nn.Module:
        return GPT(256, context, num_layers, max(1, width // 16), width, generator=generator)

    return _language(root, build, context)


def llama(root: Path, context: int = 64, num_layers: int = 3) -> Task:
    """A small Llama of transformers on the same bytes: RMSNorm, rotary positions, two heads share their keys."""
    from transformers import LlamaConfig, LlamaForCausalLM  # a library for tests only

    def build(width: int, generator: torch.Generator) -> nn.Module:
        heads = max(2, width // 16)
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=num_layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            use_cache=False,
        )
        with torch.random.fork_rng(devices=[]):  # it takes no generator
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            return LlamaForCausalLM(config)

    return _language(root, build, context)


def _language(root: Path, build: Callable[[int, torch.Generator], nn.Module], context: int) -> Task:
    text = _text(root)
    split = len(text) * 9 // 10
    train, test = text[:split], text[split:]
    offsets = torch.arange(context + 1)

    def batch(size: int, generator: torch.Generator, is_plain: bool = False) -> Batch:
        starts = torch.randint(len(train) - context, (size, 1), generator=generator)
        windows = train[starts + offsets]
        return windows[:, :-1], windows[:, 1:]

    starts = torch.linspace(0, len(test) - context - 1, 1024).long()[:, None]
    windows = test[starts + offsets]
    held_out = [(w[:, :-1], w[:, 1:]) for w in windows.split(128)]
    return Task(build, windows[:2, :-1], batch, held_out, "adamw", 3e-3, 16, warmup=0.05)


@functools.cache
def _images(root: Path, count: int, side: int, name: str) -> dict[str, Tensor]:
    return load_cifar(root, count, side, name)


def _cifar(
    root: Path,
    build: Callable[[int, torch.Generator], nn.Module],
    flat: bool = False,
    lr: float = 0.1,
    name: str = "cifar10",
    count: int = 10_000,
) -> Task:
    data = _images(root, count, 8, name)
    images, labels = data["train_images"], data["train_labels"]

    def batch(size: int, generator: torch.Generator, is_plain: bool = False) -> Batch:
        chosen = torch.randint(len(images), (size,), generator=generator)
        picked = images[chosen] if is_plain else augment(images[chosen], generator)
        return (picked.flatten(1) if flat else picked), labels[chosen]

    test = data["test_images"].flatten(1) if flat else data["test_images"]
    held_out = list(zip(test.split(1000), data["test_labels"].split(1000), strict=True))
    return Task(build, test[:2], batch, held_out, "sgd", lr, 64)


def resnet(root: Path) -> Task:
    """ResNet-8 on 10,000 images of CIFAR-10 at 8 × 8; its width is that of the first stage."""

    def build(width: int, generator: torch.Generator) -> nn.Module:
        return resnet8(num_classes=10, width=width, generator=generator)

    return _cifar(root, build)


def resnet100(root: Path) -> Task:
    """ResNet-8 on all images of CIFAR-100 at 8 × 8: many classes, and data that is hardly seen twice."""

    def build(width: int, generator: torch.Generator) -> nn.Module:
        return resnet8(num_classes=100, width=width, generator=generator)

    return _cifar(root, build, name="cifar100", count=50_000)


def vgg(root: Path) -> Task:
    """A VGG of four convolutions (w, 2w, 4w, 4w) on 10,000 images of CIFAR-10 at 8 × 8."""

    def build(width: int, generator: torch.Generator) -> nn.Module:
        widths = [[width], [2 * width], [4 * width, 4 * width]]
        return VGG(widths, num_classes=10, generator=generator)

    return _cifar(root, build, lr=0.05)


def mlp(root: Path) -> Task:
    """The 8-layer MLP on the same images."""

    def build(width: int, generator: torch.Generator) -> nn.Module:
        return mlp8(width=width, in_features=192, generator=generator)

    return _cifar(root, build, flat=True, lr=0.05)


TASKS: dict[str, Callable[[Path], Task]] = {
    "gpt": gpt,
    "llama": llama,
    "resnet": resnet,
    "resnet100": resnet100,
    "vgg": vgg,
    "mlp": mlp,
}
