"""Every module of torch.nn in a small model: it grows exactly, or what it touches is frozen and says why."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import growthring as gr
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import Net, check_contract, make_plan, randn, tokens, widths

Made = tuple[nn.Module, Any]
Maker = Callable[[], Made]


def flat(layer: nn.Module, width: int = 8, after: int = 0) -> Maker:
    """Linear, the layer over (batch, width), Linear."""
    return lambda: (
        nn.Sequential(nn.Linear(4, width), layer, nn.Linear(after or width, 3)),
        randn(5, 4),
    )


def space(n: int, layer: nn.Module, channels: int = 6, after: int = 0) -> Maker:
    """A convolution, the layer over (batch, channels, n axes of 6), a convolution."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1]
    return lambda: (
        nn.Sequential(conv(2, channels, 1), layer, conv(after or channels, 3, 1)),
        randn(2, 2, *[6] * n),
    )


def beside(layer: nn.Module, function: Callable[..., torch.Tensor]) -> Maker:
    """The layer on the results of two linear layers; a head of its own grows in any case."""
    return lambda: (
        Net(
            lambda self, x: (function(self.layer, self.a(x), self.b(x)), self.d(self.c(x).relu())),
            layer=layer,
            a=nn.Linear(4, 8),
            b=nn.Linear(4, 8),
            c=nn.Linear(4, 7),
            d=nn.Linear(7, 3),
        ),
        randn(5, 4),
    )


def loss(layer: nn.Module) -> Maker:
    return beside(layer, lambda layer, a, b: layer(a, b))


def sequence(layer: nn.Module, first: int, last: int) -> Maker:
    """A recurrent layer or the like over (batch, time, first), which returns a tuple."""
    return lambda: (
        Net(
            lambda self, x: self.c(self.layer(self.a(x))[0]),
            a=nn.Linear(4, first),
            layer=layer,
            c=nn.Linear(last, 3),
        ),
        randn(2, 5, 4),
    )


def cell(layer: nn.Module, width: int) -> Maker:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        state = self.layer(self.a(x))
        return self.c(state[0] if isinstance(state, tuple) else state)

    return lambda: (
        Net(forward, a=nn.Linear(4, 6), layer=layer, c=nn.Linear(width, 3)),
        randn(5, 4),
    )


def unpooled(n: int) -> Maker:
    pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[n - 1](2, return_indices=True)
    back = (nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)[n - 1](2)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1]
    return lambda: (
        Net(
            lambda self, x: self.c(self.back(*self.pool(self.a(x)))),
            a=conv(2, 6, 1),
            pool=pool,
            back=back,
            c=conv(6, 3, 1),
        ),
        randn(2, 2, *[6] * n),
    )


def transformer(layer: nn.Module, two: bool = False) -> Maker:
    return lambda: (
        Net(
            lambda self, x: self.c(self.layer(*[self.a(x)] * (2 if two else 1))),
            a=nn.Linear(4, 12),
            layer=layer,
            c=nn.Linear(12, 3),
        ),
        randn(2, 5, 4),
    )


encoder_layer = nn.TransformerEncoderLayer(12, 2, 10, 0.0, batch_first=True)
decoder_layer = nn.TransformerDecoderLayer(12, 2, 10, 0.0, batch_first=True)

# Modules whose model grows beyond the parts that do not touch it.
GROWS: dict[str, Maker] = {
    **{f"{k}Pool{n}d": space(n, getattr(nn, f"{k}Pool{n}d")(2))
       for k in ("Avg", "Max", "AdaptiveAvg", "AdaptiveMax") for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": space(n, getattr(nn, f"BatchNorm{n}d")(6)) for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": space(n, getattr(nn, f"InstanceNorm{n}d")(6, affine=True))
       for n in (1, 2, 3)},
    **{f"LPPool{n}d": space(n, getattr(nn, f"LPPool{n}d")(2, 2)) for n in (1, 2, 3)},
    **{f"{k}Pad{n}d": space(n, getattr(nn, f"{k}Pad{n}d")(1, *((0.5,) if k == "Constant" else ())))
       for k in ("Circular", "Constant", "Reflection", "Replication", "Zero") for n in (1, 2, 3)},
    **{f"Conv{n}d": space(n, getattr(nn, f"Conv{n}d")(6, 5, 2), after=5) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": space(n, getattr(nn, f"ConvTranspose{n}d")(6, 5, 2), after=5)
       for n in (1, 2, 3)},
    **{name: flat(getattr(nn, name)()) for name in (
        "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity",
        "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus",
        "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Flatten",
    )},
    **{f"MaxUnpool{n}d": unpooled(n) for n in (1, 2, 3)},
    "Bilinear": lambda: (
        Net(lambda self, x: self.c(self.b(self.a(x), x).relu()),
            a=nn.Linear(4, 6), b=nn.Bilinear(6, 4, 5), c=nn.Linear(5, 3)), randn(5, 4)),
    "AlphaDropout": flat(nn.AlphaDropout(0.0)),
    "ChannelShuffle": space(2, nn.ChannelShuffle(2)),
    "Dropout": flat(nn.Dropout(0.0)),
    "Dropout1d": space(1, nn.Dropout1d(0.0)),
    "Dropout2d": space(2, nn.Dropout2d(0.0)),
    "Dropout3d": space(3, nn.Dropout3d(0.0)),
    "FeatureAlphaDropout": space(2, nn.FeatureAlphaDropout(0.0)),
    "Embedding": lambda: (nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 3)), tokens(2, 5, high=9)),
    "EmbeddingBag": lambda: (
        nn.Sequential(nn.EmbeddingBag(9, 8), nn.Linear(8, 3)), tokens(2, 5, high=9)),
    "Fold": lambda: (
        nn.Sequential(nn.Conv1d(2, 24, 1), nn.Fold((4, 4), 2, stride=2), nn.Conv2d(6, 3, 1)),
        randn(2, 2, 4)),
    "GLU": flat(nn.GLU(), 14, 7),
    "GroupNorm": space(2, nn.GroupNorm(3, 6)),
    "LayerNorm": flat(nn.LayerNorm(8)),
    "Linear": flat(nn.Linear(8, 8)),
    "MultiheadAttention": lambda: (
        Net(lambda self, x: self.c(self.m(*[self.a(x)] * 3)[0]),
            a=nn.Linear(4, 12), m=nn.MultiheadAttention(12, 2, batch_first=True), c=nn.Linear(12, 3)),
        randn(2, 5, 4)),
    "PixelShuffle": space(2, nn.PixelShuffle(2), 20, 5),
    "PixelUnshuffle": space(2, nn.PixelUnshuffle(2), 5, 20),
    "RMSNorm": flat(nn.RMSNorm(8)),
    "RReLU": flat(nn.RReLU(0.2, 0.2)),
    "SyncBatchNorm": space(2, nn.SyncBatchNorm(6)),
    "Threshold": flat(nn.Threshold(0.1, 0.2)),
    "Transformer": transformer(nn.Transformer(12, 2, 1, 1, 10, 0.0, batch_first=True), two=True),
    "TransformerDecoder": transformer(nn.TransformerDecoder(decoder_layer, 1), two=True),
    "TransformerDecoderLayer": transformer(decoder_layer, two=True),
    "TransformerEncoder": transformer(nn.TransformerEncoder(encoder_layer, 1)),
    "TransformerEncoderLayer": transformer(encoder_layer),
    "Unflatten": lambda: (
        nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 4)), nn.Flatten(), nn.Linear(12, 3)),
        randn(5, 4)),
    "Unfold": lambda: (
        Net(lambda self, x: self.c(self.u(self.a(x)).transpose(1, 2)),
            a=nn.Conv2d(2, 6, 1), u=nn.Unfold(2), c=nn.Linear(24, 3)), randn(2, 2, 4, 4)),
    "Upsample": space(2, nn.Upsample(scale_factor=2)),
    "UpsamplingBilinear2d": space(2, nn.UpsamplingBilinear2d(scale_factor=2)),
    "UpsamplingNearest2d": space(2, nn.UpsamplingNearest2d(scale_factor=2)),
    "Softmax2d": lambda: (
        nn.Sequential(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.Softmax2d()), randn(2, 2, 4, 4)),
    "Sequential": flat(nn.Sequential(nn.ReLU())),
}  # fmt: skip

# Modules that freeze what they touch, or cannot be analysed: `REFUSED` has those that leave nothing to grow.
FREEZES: dict[str, Maker] = {
    **{name: loss(getattr(nn, name)()) for name in (
        "BCEWithLogitsLoss", "HuberLoss", "L1Loss", "MSELoss", "MultiLabelSoftMarginLoss",
        "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "CosineSimilarity", "PairwiseDistance",
        "HingeEmbeddingLoss",
    )},
    "CosineEmbeddingLoss": beside(
        nn.CosineEmbeddingLoss(), lambda layer, a, b: layer(a, b, torch.ones(5))),
    **{name: beside(getattr(nn, name)(), lambda layer, a, b: layer(a, torch.arange(5)))
       for name in ("CrossEntropyLoss", "MultiMarginLoss")},
    "KLDivLoss": beside(
        nn.KLDivLoss(reduction="batchmean"),
        lambda layer, a, b: layer(a.log_softmax(1), b.softmax(1))),
    "MarginRankingLoss": beside(
        nn.MarginRankingLoss(), lambda layer, a, b: layer(a, b, torch.ones(5, 8))),
    "BCELoss": beside(nn.BCELoss(), lambda layer, a, b: layer(a.sigmoid(), b.sigmoid())),
    "NLLLoss": beside(nn.NLLLoss(), lambda layer, a, b: layer(a.log_softmax(1), torch.arange(5))),
    "GaussianNLLLoss": beside(
        nn.GaussianNLLLoss(), lambda layer, a, b: layer(a, b, torch.ones(5, 8))),
    "CTCLoss": beside(
        nn.CTCLoss(), lambda layer, a, b: layer(
            a[:, None].log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2]))),
    "MultiLabelMarginLoss": beside(
        nn.MultiLabelMarginLoss(), lambda layer, a, b: layer(a, torch.zeros(5, 8, dtype=torch.int64))),
    "TripletMarginLoss": beside(nn.TripletMarginLoss(), lambda layer, a, b: layer(a, b, a * b)),
    "TripletMarginWithDistanceLoss": beside(
        nn.TripletMarginWithDistanceLoss(), lambda layer, a, b: layer(a, b, a * b)),
    "AdaptiveLogSoftmaxWithLoss": beside(
        nn.AdaptiveLogSoftmaxWithLoss(8, 6, [3]), lambda layer, a, b: layer.log_prob(a)),
    "LogSoftmax": flat(nn.LogSoftmax(1)),
    "Softmax": flat(nn.Softmax(1)),
    "Softmin": flat(nn.Softmin(1)),
    "LocalResponseNorm": space(2, nn.LocalResponseNorm(2)),
    "CrossMapLRN2d": space(2, nn.CrossMapLRN2d(2)),
    "FractionalMaxPool2d": space(2, nn.FractionalMaxPool2d(2, 3)),
    "FractionalMaxPool3d": space(3, nn.FractionalMaxPool3d(2, 3)),
    "GRU": sequence(nn.GRU(6, 8, batch_first=True), 6, 8),
    "LSTM": sequence(nn.LSTM(6, 8, batch_first=True), 6, 8),
    "RNN": sequence(nn.RNN(6, 8, batch_first=True), 6, 8),
    "GRUCell": cell(nn.GRUCell(6, 8), 8),
    "LSTMCell": cell(nn.LSTMCell(6, 8), 8),
    "RNNCell": cell(nn.RNNCell(6, 8), 8),
}  # fmt: skip

REFUSED = {
    "SoftMarginLoss": "torch.export cannot trace Net: .*soft_margin_loss",
    "GaussianNLLLoss": "branches on the values of tensors",
    "CTCLoss": "torch.export cannot trace Net: .*ctc_loss",
    "LogSoftmax": "'aten.log_softmax' in '1' combines its entries",
    "Softmax": "'aten.softmax' in '1' combines its entries",
    "Softmin": "'aten.softmax' in '1' combines its entries",
    "LocalResponseNorm": "'aten.avg_pool3d' in '1' pools over it",
    "CrossMapLRN2d": "'aten.resize_as_' in '1' has no axis rule",
    "FractionalMaxPool2d": "'aten.fractional_max_pool2d' in '1' has no axis rule",
    "FractionalMaxPool3d": "'aten.fractional_max_pool3d' in '1' has no axis rule",
}

NOT_LAYERS = {
    "Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "NLLLoss2d", "ParameterDict",
    "ParameterList", "RNNBase", "RNNCellBase",
}  # fmt: skip


def test_every_module_of_torch_is_here() -> None:
    known = {*GROWS, *FREEZES, *NOT_LAYERS}
    found = {
        name
        for name, item in vars(nn).items()
        if inspect.isclass(item) and issubclass(item, nn.Module) and not name.startswith("Lazy")
    }
    # LinearCrossEntropyLoss is not in every version of torch that is supported
    assert found - known <= {"LinearCrossEntropyLoss"}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWS)
def test_module_grows_exactly(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = GROWS[name]()
    plan = make_plan(model, inputs, stages=3)
    assert widths(plan)
    check_contract(plan, "off", 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FREEZES if n not in REFUSED])
def test_what_a_module_does_not_freeze_grows_exactly(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = FREEZES[name]()
    plan = make_plan(model, inputs, stages=3)
    assert widths(plan)
    assert all(g.frozen.text for g in plan.groups if g.frozen is not None)
    check_contract(plan, "off", 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_module_is_refused_with_the_reason(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = FREEZES[name]()
    with pytest.raises(gr.GrowthError, match=REFUSED[name]):
        make_plan(model, inputs, stages=3)
