"""Models of timm, mostly the smallest of each family, on the smallest images that they take."""

from functools import partial
from typing import Any

from torch import nn

from scripts.models.entry import Entry, images
from tests.third_party import import_or_skip


def _create(name: str, **settings: Any) -> nn.Module:
    return import_or_skip("timm").create_model(name, pretrained=False, num_classes=10, **settings)


def _entry(
    name: str, size: int = 64, sized: bool = False, quick: Any = None, **others: Any
) -> Entry:
    """`sized`: the model is built for one image size, which has to be told."""
    settings = {"img_size": size} if sized else {}
    small = None if quick is None else partial(_create, name, **settings, **quick)
    return Entry("timm", name, partial(_create, name, **settings), images(size), small, **others)


ENTRIES = (
    _entry("vit_tiny_patch16_224", sized=True, quick={"depth": 2}),
    _entry("deit3_small_patch16_224", sized=True),
    _entry("swin_tiny_patch4_window7_224", 112, sized=True),
    _entry("mixer_s32_224", sized=True),
    _entry("resmlp_12_224", sized=True),
    _entry("convnextv2_atto", seed_share=0.35),
    _entry("efficientformer_l1", 224),
    _entry("ghostnet_100"),
    _entry("levit_128s", 224),
    _entry("mobilevit_xxs"),
    # Every convolution standardises its weight over the width it reads, so none of these widths can grow.
    _entry("nf_resnet26", expect="refused", because="aten.batch_norm"),
    _entry("regnetx_002"),
    _entry("res2net50_26w_4s"),
    _entry("selecsls42"),
    _entry("tf_efficientnetv2_b0"),
    _entry("xcit_nano_12_p16_224", 112),
    _entry("poolformer_s12", seed_share=0.45),
    _entry("hrnet_w18_small"),
    _entry("dla34"),
    _entry("resnetv2_50"),
    _entry("cait_xxs24_224", sized=True),
    _entry("coat_lite_tiny", sized=True, seed_share=0.6),
    _entry("pit_ti_224", 224),
    # Its attention over channels needs heads × head size to equal a sum of two widths at every stage.
    _entry("edgenext_xx_small", expect="refused", because="the code of 'stages.1.blocks.1.xca'"),
    _entry("repvgg_a0"),
    _entry("seresnet18", fast=True),
    _entry("skresnet18"),
    _entry("vovnet39a"),
)
