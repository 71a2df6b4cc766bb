"""The paper's settings (preset "paper"), and two that need no download (our defaults).

Costs in percent as published stand beside what our schedule gives (`growthring plan --recipe NAME`); those of
ImageNet MobileNetV1 and of WRN-28-1 were not explained by any rule that was tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from growthring import zoo
from growthring.train.recipe import ModelFunction, Recipe, change

MOMENTUM = {"momentum": 0.9, "weight_decay": 5e-4}
MOMENTUM_IMAGENET = {"momentum": 0.9, "weight_decay": 1e-4}


def _cifar(name: str, model: ModelFunction, classes: int, epochs: int, published: float) -> Recipe:
    return Recipe(
        name=name,
        model=model,
        model_options={"num_classes": classes},
        data=f"cifar{classes}",
        preset="paper",
        epochs=epochs,
        optimizer_options=MOMENTUM,
        published=published,
    )


def cifar10_resnet20() -> Recipe:
    """ResNet-20 on CIFAR-10, 160 epochs."""
    return _cifar("cifar10-resnet20", zoo.resnet20, 10, 160, 54.90)


def cifar10_vgg11() -> Recipe:
    """VGG-11 with BatchNorm on CIFAR-10, 160 epochs."""
    return _cifar("cifar10-vgg11", zoo.vgg11, 10, 160, 52.91)


def cifar10_mobilenetv1() -> Recipe:
    """MobileNetV1 on CIFAR-10, 160 epochs."""
    return _cifar("cifar10-mobilenetv1", zoo.mobilenetv1, 10, 160, 53.80)


def cifar100_resnet18() -> Recipe:
    """ResNet-18 on CIFAR-100, 200 epochs."""
    return _cifar("cifar100-resnet18", zoo.resnet18, 100, 200, 52.63)


def cifar100_stream_classes() -> Recipe:
    """ResNet-18 on CIFAR-100 whose classes come with the stages: 20, then 10 in each (the paper's appendix)."""
    return _stream(cifar100_resnet18(), "cifar100-stream-classes", "classes", published=65.36)


def cifar100_stream_data() -> Recipe:
    """ResNet-18 on a growing part of CIFAR-100: 20 %, 30 %, … drawn with replacement (the paper's appendix)."""
    return _stream(cifar100_resnet18(), "cifar100-stream-data", "data", published=65.36)


def _stream(recipe: Recipe, name: str, stream: str, **changes: Any) -> Recipe:
    """A recipe on growing data. The paper's costs are those without dynamic OSGD's extra passes (68.49 with)."""
    return change(recipe, {"name": name, "stream": stream, **changes})


def cifar100_stream_classes_small() -> Recipe:
    """The same stream of classes for a CPU: ResNet-8, 10,000 images of 16×16, minutes."""
    return _stream(_small_cifar100(), "cifar100-stream-classes-small", "classes")


def cifar100_stream_data_small() -> Recipe:
    """The same growing part of the data for a CPU: ResNet-8, 10,000 images of 16×16, minutes."""
    return _stream(_small_cifar100(), "cifar100-stream-data-small", "data")


def _small_cifar100() -> Recipe:
    """Its rate is the best of 0.1, 0.4 and 0.8 for growing and for full size (docs/streams.md)."""
    recipe = _trial("cifar100-small", width=24, side=16, num_train=10_000, epochs=40)
    classes = {"data": "cifar100", "model_options.num_classes": 100}
    return change(recipe, {**classes, "lr": 0.4, "lr_schedule": "linear"})


def cifar100_vgg19() -> Recipe:
    """VGG-19 with BatchNorm on CIFAR-100, 200 epochs."""
    return _cifar("cifar100-vgg19", zoo.vgg19, 100, 200, 52.08)


def cifar100_mobilenetv1() -> Recipe:
    """MobileNetV1 on CIFAR-100, 200 epochs."""
    return _cifar("cifar100-mobilenetv1", zoo.mobilenetv1, 100, 200, 52.90)


def imagenet_resnet50() -> Recipe:
    """ResNet-50 on ImageNet, 90 epochs, batch 256."""
    return Recipe(
        name="imagenet-resnet50",
        model=zoo.resnet50,
        model_options={"num_classes": 1000},
        data="imagenet",
        input_shape=(3, 224, 224),
        preset="paper",
        epochs=90,
        batch_size=256,
        optimizer_options=MOMENTUM_IMAGENET,
        published=60.12,
    )


def imagenet_mobilenetv1() -> Recipe:
    """MobileNetV1 on ImageNet, 90 epochs, batch 512."""
    return Recipe(
        name="imagenet-mobilenetv1",
        model=zoo.mobilenetv1,
        model_options={"num_classes": 1000, "stem_stride": 2},
        data="imagenet",
        input_shape=(3, 224, 224),
        preset="paper",
        epochs=90,
        batch_size=512,
        optimizer_options=MOMENTUM_IMAGENET,
        published=63.72,
    )


def cifar10_wrn28_1() -> Recipe:
    """WRN-28-1 on CIFAR-10, 160 epochs: the network of the comparison with GradMax."""
    return _cifar("cifar10-wrn28-1", zoo.wrn28_1, 10, 160, 58.24)


def _trial(name: str, width: int, side: int, num_train: int, epochs: int) -> Recipe:
    """ResNet-8 on few and small images: hours on a GPU become minutes on a CPU.

    New rings follow schedules of their own and rates are not adapted, which did best here (docs/comparing.md).
    """
    return Recipe(
        name=name,
        model=zoo.resnet8,
        model_options={"num_classes": 10, "width": width},
        data="cifar10",
        input_shape=(3, side, side),
        num_train=num_train,
        side=side,
        shift=side // 8,
        preset="paper",
        epochs=epochs,
        optimizer_options={
            **MOMENTUM,
            "rate_adaptation": None,
            "output_rate": False,
            "ring_schedule": "own",
        },
    )


def cifar10_small() -> Recipe:
    """ResNet-8 (16-32-64), CIFAR-10 at 16×16, 10,000 images: a network that is short of capacity."""
    return _trial("cifar10-small", width=16, side=16, num_train=10_000, epochs=60)


def cifar10_wide() -> Recipe:
    """ResNet-8 (64-128-256), CIFAR-10 at 8×8, 5,000 images: a network with capacity to spare."""
    recipe = _trial("cifar10-wide", width=64, side=8, num_train=5_000, epochs=50)
    # 50 epochs are no multiple of 20: first_epochs=2 would leave the last stage 21 epochs and cost 67 %.
    return change(recipe, {"first_epochs": 3, "epoch_growth": 0.15})


def demo() -> Recipe:
    """ResNet-8, with capacity to spare, on the embedded 8×8 digits: a minute or two on a laptop."""
    return Recipe(
        name="demo",
        model=zoo.resnet8,
        model_options={"num_classes": 10, "width": 48, "in_channels": 1},
        data="digits",
        input_shape=(1, 8, 8),
        shift=1,
        mirror=False,
        epochs=30,
        batch_size=64,
        lr=0.05,
        optimizer_options=MOMENTUM,
    )


def python_gpt() -> Recipe:
    """A small GPT on the bytes of Python's own sources: what `make demo` compares, in a few minutes."""
    return Recipe(
        name="python-gpt",
        model=zoo.GPT,
        model_options={
            "vocab_size": 256,
            "block_size": 64,
            "num_layers": 2,
            "num_heads": 8,
            "width": 128,
        },
        data="python",
        input_shape=(64,),
        num_train=400,
        epochs=16,
        batch_size=16,
        optimizer="adamw",
        lr=2e-3,  # the best of 1e-3, 2e-3, 4e-3 for full size
        warmup_steps=20,
        clip_norm=1.0,
        start=0.5,
    )


def shakespeare_gpt() -> Recipe:
    """A small GPT on the bytes of a text of your own, such as tinyshakespeare.txt (--data FILE)."""
    return change(
        python_gpt(),
        {
            "name": "shakespeare-gpt",
            "data": "text",
            "model_options.block_size": 128,
            "model_options.num_layers": 4,
            "model_options.dropout": 0.1,
            "input_shape": (128,),
            "num_train": None,
            "epochs": 10,
            "warmup_steps": 100,
        },
    )


def _transformer(
    name: str, data: str, vocab: int, model: dict[str, Any], **settings: Any
) -> Recipe:
    options = {"src_vocab_size": vocab, "tgt_vocab_size": vocab, "max_length": 256, **model}
    task = {"vocab_size": vocab, "max_length": min(128, options["max_length"])}
    common = {"optimizer": "adam", "label_smoothing": 0.1, "task_options": task}
    return Recipe(name, zoo.Transformer, options, data=data, **{**common, **settings})


def iwslt14_transformer() -> Recipe:
    """The paper's Transformer on IWSLT'14: d_model 64 to 512 and heads of 8 to 64 in 4 stages of 5 epochs.

    The paper's batch of 1500 is taken for tokens, 64 sentences: 1500 sentences would make 2,140 steps of 20 epochs,
    and its warm-up of 4000 steps would never end.
    """
    return _transformer(
        "iwslt14-transformer",
        "iwslt14",
        10_000,
        {},
        input_shape=(25, 25),
        preset="paper",
        epochs=20,
        batch_size=64,
        stages=4,
        start=0.125,
        schedule="doubling",
        growth=None,
        growth_at=(0.25, 0.5, 0.75),
        heads="size",
        lr=1e-3,
        optimizer_options={"betas": (0.9, 0.98), "eps": 1e-9},
        warmup_steps=4000,
        published=64.64,
    )


def multi30k_transformer() -> Recipe:
    """A small Transformer on Multi30k's captions, German to English: minutes on a CPU."""
    small = {"d_model": 128, "d_embed": 128, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return _transformer(
        "multi30k-transformer",
        "multi30k",
        4000,
        small,
        input_shape=(18, 17),
        epochs=10,
        batch_size=64,
        lr=2e-3,  # the best for growing a smaller one; all steps at full size want 1e-3 (docs/translation.md)
        optimizer_options={"betas": (0.9, 0.98)},
        warmup_steps=400,
    )


def tatoeba_transformer() -> Recipe:
    """A Transformer on Tatoeba's sentences, German to English."""
    medium = {"d_model": 256, "d_embed": 256, "num_encoder_layers": 3, "num_decoder_layers": 3}
    return _transformer(
        "tatoeba-transformer",
        "tatoeba",
        8000,
        medium,
        input_shape=(11, 11),
        epochs=10,
        batch_size=128,
        lr=1e-3,
        optimizer_options={"betas": (0.9, 0.98)},
        warmup_steps=1000,
    )


def numbers_transformer() -> Recipe:
    """A tiny Transformer on generated number words, German to English: what `make demo-translate` trains."""
    tiny = {"d_model": 64, "d_embed": 64, "num_heads": 4, "num_encoder_layers": 2}
    return _transformer(
        "numbers-transformer",
        "numbers",
        320,
        {**tiny, "num_decoder_layers": 2, "dropout": 0.0, "max_length": 64},
        input_shape=(12, 10),
        epochs=8,
        batch_size=64,
        lr=3e-3,
        optimizer_options={"betas": (0.9, 0.98)},
        warmup_steps=100,
        label_smoothing=0.0,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe().name: recipe
    for recipe in (
        cifar10_resnet20,
        cifar10_vgg11,
        cifar10_mobilenetv1,
        cifar100_resnet18,
        cifar100_vgg19,
        cifar100_mobilenetv1,
        cifar100_stream_classes,
        cifar100_stream_data,
        imagenet_resnet50,
        imagenet_mobilenetv1,
        cifar10_wrn28_1,
        cifar100_stream_classes_small,
        cifar100_stream_data_small,
        cifar10_small,
        cifar10_wide,
        demo,
        python_gpt,
        shakespeare_gpt,
        numbers_transformer,
        multi30k_transformer,
        tatoeba_transformer,
        iwslt14_transformer,
    )
}
