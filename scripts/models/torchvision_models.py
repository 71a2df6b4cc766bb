"""Models of torchvision. The table takes them as they are, on small images; the tests take fewer layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from scripts.models.entry import Entry, Inputs, images
from tests.third_party import import_or_skip


def _named(name: str, **settings: Any) -> nn.Module:
    library = import_or_skip("torchvision.models")
    return getattr(library, name)(weights=None, **settings)


def _resnet(block: str, layers: list[int], **settings: Any) -> nn.Module:
    resnet = import_or_skip("torchvision.models.resnet")
    return resnet.ResNet(getattr(resnet, block), layers, num_classes=10, **settings)


def _mobilenet_v2() -> nn.Module:
    setting = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]]
    return _named("mobilenet_v2", num_classes=10, inverted_residual_setting=setting)


def _mobilenet_v3() -> nn.Module:
    library = import_or_skip("torchvision.models.mobilenetv3")
    setting = [
        library.InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        library.InvertedResidualConfig(16, 3, 72, 24, False, "RE", 2, 1, 1.0),
        library.InvertedResidualConfig(24, 5, 96, 40, True, "HS", 2, 1, 1.0),
        library.InvertedResidualConfig(40, 5, 240, 40, True, "HS", 1, 1, 1.0),
    ]
    return library.MobileNetV3(setting, last_channel=128, num_classes=10)


def _densenet() -> nn.Module:
    library = import_or_skip("torchvision.models.densenet")
    return library.DenseNet(16, (2, 3, 2), 32, num_classes=10)


def _efficientnet() -> nn.Module:
    library = import_or_skip("torchvision.models.efficientnet")
    setting = [
        library.MBConvConfig(1, 3, 1, 32, 16, 1, 1.0, 1.0),
        library.MBConvConfig(6, 3, 2, 16, 24, 2, 1.0, 1.0),
        library.MBConvConfig(6, 5, 2, 24, 40, 2, 1.0, 1.0),
    ]
    return library.EfficientNet(setting, dropout=0.2, num_classes=10)


def _convnext() -> nn.Module:
    library = import_or_skip("torchvision.models.convnext")
    setting = [library.CNBlockConfig(32, 64, 1), library.CNBlockConfig(64, None, 2)]
    return library.ConvNeXt(setting, num_classes=10)


def _vit() -> nn.Module:
    library = import_or_skip("torchvision.models.vision_transformer")
    return library.VisionTransformer(32, 8, 2, 8, 64, 96, num_classes=10)


def _vgg() -> nn.Module:
    library = import_or_skip("torchvision.models.vgg")
    features = library.make_layers([16, "M", 32, "M", 64, 64, "M"], batch_norm=True)
    net = library.VGG(features, num_classes=10)
    net.classifier = nn.Sequential(
        nn.Linear(64 * 49, 64),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(64, 64),
        nn.ReLU(True),
        nn.Linear(64, 10),
    )
    return net


def _shufflenet() -> nn.Module:
    library = import_or_skip("torchvision.models.shufflenetv2")
    return library.ShuffleNetV2([2, 2, 2], [24, 48, 64, 96, 128], num_classes=10)


def _swin() -> nn.Module:
    library = import_or_skip("torchvision.models.swin_transformer")
    return library.SwinTransformer([4, 4], 32, [2, 2], [4, 8], [4, 4], num_classes=10)


def _entry(
    name: str,
    size: int = 64,
    quick: Callable[[], nn.Module] | None = None,
    quick_inputs: Inputs | None = None,
    settings: dict[str, Any] | None = None,
    **others: Any,
) -> Entry:
    build = partial(_named, name, **(settings or {}))
    return Entry("torchvision", name, build, images(size), quick, quick_inputs, **others)


ENTRIES = (
    _entry("resnet18", quick=partial(_resnet, "BasicBlock", [1, 2, 1, 1]), fast=True, trains=True),
    _entry("resnet50", quick=partial(_resnet, "Bottleneck", [1, 2, 1, 1])),
    _entry(
        "resnext50_32x4d",
        quick=partial(_resnet, "Bottleneck", [1, 2, 1, 1], groups=32, width_per_group=4),
    ),
    _entry("mobilenet_v2", quick=_mobilenet_v2, trains=True),
    _entry("mobilenet_v3_small", quick=_mobilenet_v3),
    _entry("densenet121", quick=_densenet, trains=True),
    _entry("efficientnet_b0", quick=_efficientnet),
    _entry("convnext_tiny", quick=_convnext),
    _entry(
        "vit_b_16",
        quick=_vit,
        quick_inputs=images(32),
        settings={"image_size": 64},
        trains=True,
    ),
    _entry("vgg11_bn", quick=_vgg, trains=True),
    _entry("shufflenet_v2_x1_0", quick=_shufflenet),
    _entry(
        "inception_v3",
        160,
        quick=partial(_named, "inception_v3", num_classes=10, aux_logits=False, init_weights=False),
        quick_inputs=images(80),
        # Its auxiliary head needs images of 299 pixels.
        settings={"init_weights": False, "aux_logits": False},
    ),
    _entry("swin_t", quick=_swin),
    # The auxiliary heads are reached in train mode only; their 1024 fixed features are most of the seed.
    _entry("googlenet", settings={"init_weights": False}, seed_share=0.6),
    _entry("squeezenet1_1"),
    _entry("mnasnet1_0"),
    _entry("regnet_y_400mf"),
    _entry("alexnet"),
)
