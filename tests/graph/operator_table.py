"""Small models, one or more per operator: what must grow, what must be refused and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.growth_contract import Net, parameter, randn, tokens

Made = tuple[nn.Module, Any]


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        make: the model and its inputs.
        grows: the growable groups and their widths; a name that starts with "?" stands for any.
        reasons: texts that must occur in the reasons of frozen groups (or in the refusal).
        options: for `plan`.
        training: whether the train-mode outputs are comparable.
        norms: "batch" (only BatchNorm or none) or "other" (ε of norms remains in preserving mode).
    """

    name: str
    make: Callable[[], Made]
    grows: Mapping[str, int]
    reasons: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    training: bool = True
    norms: str = "batch"


ROWS: list[Row] = []


def row(
    grows: Mapping[str, int] | None = None,
    *reasons: str,
    training: bool = True,
    norms: str = "batch",
    **options: Any,
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        name = make.__name__
        ROWS.append(Row(name, make, grows or {}, reasons, options, training, norms))
        return make

    return register


IMAGE = (2, 3, 6, 6)


def chain(*layers: nn.Module, inputs: Any = None) -> Made:
    return nn.Sequential(*layers), randn(*IMAGE) if inputs is None else inputs


# Convolutions.


@row({"0": 9})
def conv1d() -> Made:
    return chain(nn.Conv1d(3, 9, 3), nn.ReLU(), nn.Conv1d(9, 4, 1), inputs=randn(2, 3, 8))


@row({"0": 9, "2": 7})
def conv2d() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(9, 7, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(7, 4, 1),
    )


@row({"0": 5})
def conv3d() -> Made:
    return chain(
        nn.Conv3d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv3d(5, 3, 2), inputs=randn(2, 2, 4, 4, 4)
    )


@row({"0": 6})
def conv2d_unbatched() -> Made:
    return chain(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1), inputs=randn(3, 6, 6))


@row({"0": 9})
def conv_circular_padding() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(9, 4, 3, padding="same", padding_mode="reflect"),
    )


@row({"0": 4})
def conv_grouped() -> Made:
    return chain(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 5, 1)
    )


@row({"0/2": 3, "2": 5})
def conv_grouped_by_size() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 10, 3, groups=2), nn.ReLU(), nn.Conv2d(10, 5, 1)
    )


@row({"stem": 10, "a/2": 4, "b": 4})
def resnext_block() -> Made:
    return Net(
        lambda self, x: self.head(
            (
                self.stem(x) + self.c(self.n2(self.b(self.n1(self.a(self.stem(x))).relu())).relu())
            ).relu()
        ),
        stem=nn.Conv2d(3, 10, 1),
        a=nn.Conv2d(10, 12, 1, bias=False),
        n1=nn.BatchNorm2d(12),
        b=nn.Conv2d(12, 12, 3, padding=1, groups=3, bias=False),
        n2=nn.BatchNorm2d(12),
        c=nn.Conv2d(12, 10, 1),
        head=nn.Conv2d(10, 4, 1),
    ), randn(*IMAGE)


@row({"0": 7})
def conv_depthwise() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 7, 3, groups=7), nn.ReLU(), nn.Conv2d(7, 5, 1)
    )


@row({"0": 6})
def conv_depthwise_multiplier() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 18, 3, groups=6), nn.ReLU(), nn.Conv2d(18, 5, 1)
    )


@row({"0": 7, "2": 5})
def conv_transposed() -> Made:
    return chain(
        nn.ConvTranspose2d(3, 7, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(7, 5, 3),
        nn.ReLU(),
        nn.Conv2d(5, 2, 1),
    )


@row({"0": 7})
def conv_transposed_1d() -> Made:
    return chain(
        nn.ConvTranspose1d(3, 7, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose1d(7, 5, 3),
        inputs=randn(2, 3, 5),
    )


@row({"0": 5})
def conv_transposed_3d() -> Made:
    return chain(
        nn.ConvTranspose3d(2, 5, 2),
        nn.ReLU(),
        nn.ConvTranspose3d(5, 3, 2),
        inputs=randn(2, 2, 3, 3, 3),
    )


@row({"0": 4})
def conv_transposed_grouped() -> Made:
    return chain(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 12, 3, groups=4),
        nn.ReLU(),
        nn.Conv2d(12, 5, 1),
    )


@row({"0/2": 5, "2": 7})
def conv_transposed_grouped_by_size() -> Made:
    return chain(
        nn.Conv2d(3, 10, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(10, 14, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(14, 5, 1),
    )


@row({"0": 7})
def conv_transposed_depthwise() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3),
        nn.ReLU(),
        nn.ConvTranspose2d(7, 7, 3, groups=7),
        nn.ReLU(),
        nn.Conv2d(7, 5, 1),
    )


# Linear, matrix products.


@row({"0": 9, "2": 7})
def mlp() -> Made:
    return chain(
        nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3), inputs=randn(5, 4)
    )


@row({"0": 9})
def mlp_without_bias() -> Made:
    return chain(
        nn.Linear(4, 9, bias=False), nn.GELU(), nn.Linear(9, 3, bias=False), inputs=randn(2, 5, 4)
    )


@row({"0": 9})
def linear_on_a_vector() -> Made:
    return chain(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(4))


@row({"a": 6})
def bilinear() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x), x), a=nn.Linear(4, 6), b=nn.Bilinear(6, 4, 3)
    ), randn(5, 4)


@row({"w1": 9})
def matmul_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.relu(x @ self.w1 + self.b) @ self.w2,
        w1=parameter(4, 9),
        b=parameter(9),
        w2=parameter(9, 3),
    ), randn(2, 5, 4)


@row({"w1": 9})
def addmm_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.mm(torch.relu(torch.addmm(self.b, x, self.w1)), self.w2),
        w1=parameter(4, 9),
        b=parameter(9),
        w2=parameter(9, 3),
    ), randn(5, 4)


@row({"w1/2": 8})
def bmm_with_experts() -> Made:
    # every expert reads all tokens; weights (expert, in, out)
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.bmm(x.unsqueeze(0).expand(3, -1, -1), self.w1).relu()
        return torch.bmm(hidden, self.w2).sum(0)

    return Net(forward, w1=parameter(3, 4, 8), w2=parameter(3, 8, 5)), randn(6, 4)


@row({"w1": 9})
def einsum_with_parameters() -> Made:
    return Net(
        lambda self, x: torch.einsum(
            "btf,of->bto", torch.einsum("bti,fi->btf", x, self.w1).relu(), self.w2
        ),
        w1=parameter(9, 4),
        w2=parameter(3, 9),
    ), randn(2, 5, 4)


@row({"q/2": 5, "v": 5})
def einsum_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (2, -1)) for p in (self.q, self.k, self.v))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))

    return Net(
        forward, q=nn.Linear(6, 10), k=nn.Linear(6, 10), v=nn.Linear(6, 10), o=nn.Linear(10, 6)
    ), randn(2, 5, 6)


@row({"a": 9})
def einsum_with_dots() -> Made:
    return Net(
        lambda self, x: torch.einsum("...f,of->...o", self.a(x).relu(), self.w2),
        a=nn.Linear(4, 9),
        w2=parameter(3, 9),
    ), randn(2, 5, 4)


@row({"u": 9, "v": 5})
def low_rank_weight() -> Made:
    return Net(
        lambda self, x: self.head(F.linear(x, self.u @ self.v).relu()),
        u=parameter(9, 5),
        v=parameter(5, 4),
        head=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"base": 9, "down": 6})
def lora() -> Made:
    return Net(
        lambda self, x: self.head((self.base(x) + self.up(self.down(x)) * 0.5).relu()),
        base=nn.Linear(4, 9),
        down=nn.Linear(4, 6, bias=False),
        up=nn.Linear(6, 9, bias=False),
        head=nn.Linear(9, 3),
    ), randn(5, 4)


# Norms.


@row({"0": 9})
def batch_norm_2d() -> Made:
    return chain(nn.Conv2d(3, 9, 3, bias=False), nn.BatchNorm2d(9), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"0": 9})
def batch_norm_1d() -> Made:
    return chain(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(6, 4))


@row({"0": 9})
def batch_norm_1d_sequence() -> Made:
    return chain(
        nn.Conv1d(4, 9, 1), nn.BatchNorm1d(9), nn.GELU(), nn.Conv1d(9, 3, 1), inputs=randn(6, 4, 5)
    )


@row({"0": 5})
def batch_norm_3d() -> Made:
    return chain(
        nn.Conv3d(2, 5, 1),
        nn.BatchNorm3d(5),
        nn.ReLU(),
        nn.Conv3d(5, 3, 1),
        inputs=randn(2, 2, 3, 3, 3),
    )


@row({"0": 9})
def batch_norm_plain() -> Made:
    return chain(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9, affine=False), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"0": 9}, norms="other")
def batch_norm_untracked() -> Made:
    return chain(
        nn.Conv2d(3, 9, 3),
        nn.BatchNorm2d(9, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(9, 4, 1),
    )


@row({"0": 9}, norms="other")
def layer_norm() -> Made:
    return chain(nn.Linear(4, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 3), inputs=randn(6, 4))


@row({"0": 9}, norms="other")
def layer_norm_plain() -> Made:
    return chain(
        nn.Linear(4, 9),
        nn.LayerNorm(9, elementwise_affine=False),
        nn.Linear(9, 3),
        inputs=randn(6, 4),
    )


@row({"0": 9}, norms="other")
def layer_norm_without_bias() -> Made:
    return chain(
        nn.Linear(4, 9), nn.LayerNorm(9, bias=False), nn.GELU(), nn.Linear(9, 3), inputs=randn(6, 4)
    )


@row({"0": 9}, norms="other")
def layer_norm_over_images() -> Made:
    return chain(nn.Conv2d(3, 9, 3), nn.LayerNorm((9, 4, 4)), nn.ReLU(), nn.Conv2d(9, 4, 1))


@row({"a": 9, "b": 6}, norms="other")
def layer_norm_twice_in_one_module() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(self.a(x), self.a.weight.shape[:1])
        return self.c(F.layer_norm(self.b(h.relu()), self.b.weight.shape[:1]))

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 6), c=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9}, norms="other")
def layer_norm_module_used_twice() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.n(self.a(x)).relu()
        return self.c(self.n(h + self.b(h)))

    return Net(
        forward, a=nn.Linear(4, 9), b=nn.Linear(9, 9), n=nn.LayerNorm(9), c=nn.Linear(9, 3)
    ), randn(5, 4)


@row({"0": 4}, norms="other")
def group_norm() -> Made:
    return chain(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))


@row({"0": 8}, norms="other")
def group_norm_of_one_group() -> Made:
    return chain(nn.Conv2d(3, 8, 3), nn.GroupNorm(1, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))


@row({"0": 7}, norms="other")
def group_norm_of_single_channels() -> Made:
    return chain(nn.Conv2d(3, 7, 3), nn.GroupNorm(7, 7), nn.ReLU(), nn.Conv2d(7, 4, 1))


@row({"0": 7}, norms="other")
def instance_norm() -> Made:
    return chain(
        nn.Conv2d(3, 7, 3), nn.InstanceNorm2d(7, affine=True), nn.ReLU(), nn.Conv2d(7, 4, 1)
    )


@row({"0": 7}, norms="other")
def instance_norm_tracked() -> Made:
    return chain(
        nn.Conv1d(3, 7, 1),
        nn.InstanceNorm1d(7, track_running_stats=True),
        nn.ReLU(),
        nn.Conv1d(7, 4, 1),
        inputs=randn(2, 3, 6),
    )


@row({"0": 9}, norms="other")
def rms_norm() -> Made:
    return chain(
        nn.Linear(4, 9), nn.RMSNorm(9, eps=1e-6), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4)
    )


@row({"0": 9}, norms="other")
def rms_norm_default_eps() -> Made:
    return chain(nn.Linear(4, 9), nn.RMSNorm(9), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4))


class HandRMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@row({"0": 9}, norms="other")
def rms_norm_by_hand() -> Made:
    return chain(nn.Linear(4, 9), HandRMSNorm(9), nn.SiLU(), nn.Linear(9, 3), inputs=randn(6, 4))


class ChannelsFirstNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@row({"0": 9}, norms="other")
def layer_norm_channels_first_by_hand() -> Made:
    return chain(nn.Conv2d(3, 9, 1), ChannelsFirstNorm(9), nn.ReLU(), nn.Conv2d(9, 3, 1))


@row(None, "operator")
def local_response_norm() -> Made:
    return chain(nn.Conv2d(3, 9, 1), nn.LocalResponseNorm(3), nn.ReLU(), nn.Conv2d(9, 3, 1))


@row({"a": 9}, norms="other")
def normalised_features() -> Made:
    return Net(
        lambda self, x: self.b(F.normalize(self.a(x), dim=-1)), a=nn.Linear(4, 9), b=nn.Linear(9, 3)
    ), randn(5, 4)


# Elementwise.

for _activation in (
    nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.ELU(),
    nn.SELU(), nn.CELU(), nn.Softplus(), nn.Softsign(), nn.Mish(), nn.LogSigmoid(), nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.Hardtanh(),
    nn.ReLU6(), nn.Threshold(0.1, 0.2), nn.Hardshrink(), nn.Softshrink(), nn.Tanhshrink(), nn.PReLU(), nn.RReLU(),
):  # fmt: skip
    ROWS.append(
        Row(
            f"activation_{_activation!r}",
            lambda a=_activation: chain(nn.Linear(4, 7), a, nn.Linear(7, 3), inputs=randn(5, 4)),  # type: ignore[misc]
            {"0": 7},
            training=not isinstance(_activation, nn.RReLU),
        )
    )


@row({"0": 7})
def prelu_per_channel() -> Made:
    return chain(nn.Conv2d(3, 7, 1), nn.PReLU(7), nn.Conv2d(7, 3, 1))


@row({"0": 5})
def glu() -> Made:
    return chain(nn.Conv2d(3, 10, 1), nn.GLU(1), nn.Conv2d(5, 3, 1))


@row({"gate": 9})
def swiglu() -> Made:
    return Net(
        lambda self, x: self.down(F.silu(self.gate(x)) * self.up(x)),
        gate=nn.Linear(4, 9),
        up=nn.Linear(4, 9),
        down=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 5})
def gated_halves() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x).chunk(2, -1)
        return self.b(a * b.sigmoid())

    return Net(forward, a=nn.Linear(4, 10), b=nn.Linear(5, 3)), randn(5, 4)


@row({"a": 5})
def gate_by_slices_in_code() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        half = h.shape[-1] // 2
        return self.b(h[..., :half] * h[..., half:])

    return Net(forward, a=nn.Linear(4, 10), b=nn.Linear(5, 3)), randn(5, 4)


@row({"a": 7})
def arithmetic() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        h = 2 * h - 0.5 * torch.tanh(h) + 1.0
        h = h / (1 + h.abs()) - (3 - h) ** 2 + torch.exp(-h * h) * torch.where(h > 0, h, 0.1 * h)
        return self.b(torch.maximum(h, self.c(x)).clamp(-3, 3))

    return Net(forward, a=nn.Linear(4, 7), b=nn.Linear(7, 3), c=nn.Linear(4, 7)), randn(5, 4)


@row({"a": 7})
def broadcast_between_layouts() -> Made:
    return Net(
        lambda self, x: self.b(
            (self.a(x) + self.c(x.mean((2, 3)))[:, :, None, None]).relu() * self.s(x)
        ),
        a=nn.Conv2d(3, 7, 1),
        c=nn.Linear(3, 7),
        s=nn.Conv2d(3, 1, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def in_place_arithmetic() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        g = self.g(x).relu()
        h = h.clone()
        h.add_(g)
        h.mul_(g)
        h.relu_()
        return self.b(h)

    return Net(forward, a=nn.Linear(4, 7), g=nn.Linear(4, 7), b=nn.Linear(7, 3)), randn(5, 4)


@row({"stem": 8, "a": 7})
def in_place_product_of_scaled_gates() -> Made:
    # h is used after h.mul_(g), without the value that mul_ returns
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        h = self.a(x)
        h.mul_(self.g(x).relu())
        return self.b(h.relu())

    return Net(
        forward,
        stem=nn.Linear(4, 8, bias=False),
        a=nn.Linear(8, 7, bias=False),
        g=nn.Linear(8, 7, bias=False),
        b=nn.Linear(7, 3, bias=False),
    ), randn(5, 4)


@row({"a": 5, "a/2": 4})
def slice_assignment() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).clone()
        g = self.g(x)
        h[:, : g.shape[1]] = g
        return self.b(h.relu())

    return Net(forward, a=nn.Linear(4, 9), g=nn.Linear(4, 5), b=nn.Linear(9, 3)), randn(5, 4)


@row({"a/2": 5})
def slice_addition() -> Made:
    # Temporal-shift-like: part of the channels gets something added in place
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).clone()
        h[:, :4] += 1.0
        return self.b(h.relu())

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3)), randn(5, 4)


# Pooling, interpolation, reductions.

for _pool in (
    nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(2),
    nn.AdaptiveAvgPool2d((None, 2)),
    nn.MaxPool2d(3, 2, 1), nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Upsample(size=(5, 5), mode="bicubic"), nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1),
    nn.ConstantPad2d(1, 0.5), nn.CircularPad2d(1), nn.Dropout(0.0), nn.Dropout2d(0.0), nn.Identity(),
    nn.AlphaDropout(0.0),
):  # fmt: skip
    ROWS.append(
        Row(
            f"layer_{_pool!r}",
            lambda a=_pool: chain(nn.Conv2d(3, 7, 1), a, nn.Conv2d(7, 3, 1)),  # type: ignore[misc]
            {"0": 7},
        )
    )


@row({"0": 7})
def lp_pool() -> Made:
    return chain(nn.Conv2d(3, 7, 1), nn.ReLU(), nn.LPPool2d(2, 2), nn.Conv2d(7, 3, 1))


@row({"0": 7})
def pools_1d() -> Made:
    return chain(
        nn.Conv1d(3, 7, 1),
        nn.MaxPool1d(2),
        nn.AvgPool1d(2),
        nn.AdaptiveMaxPool1d(1),
        nn.Conv1d(7, 3, 1),
        inputs=randn(2, 3, 8),
    )


@row({"0": 7})
def pools_3d() -> Made:
    return chain(
        nn.Conv3d(3, 7, 1),
        nn.MaxPool3d(2),
        nn.AvgPool3d(2),
        nn.AdaptiveAvgPool3d(1),
        nn.Conv3d(7, 3, 1),
        inputs=randn(2, 3, 4, 4, 4),
    )


@row({"a": 9})
def mean_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().mean((2, 3))),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 9})
def sum_and_max_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).sum(-1).amax(-1) + self.a(x).flatten(2).max(2)[0]),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def mean_over_channels() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).mean(1, keepdim=True)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 9, 1),
        c=nn.Conv2d(1, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def sum_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).sum(1), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 9, 1)
    ), randn(*IMAGE)


@row({"a": 7}, "aten.amax")
def max_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).amax(1), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 9, 1)
    ), randn(*IMAGE)


@row({"a": 7, "b": 9})
def variance_over_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()).var(-1), a=nn.Linear(4, 7), b=nn.Linear(7, 9)
    ), randn(5, 4)


@row({"a": 7}, "aten.softmax")
def softmax_over_channels() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).softmax(1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 9, 1),
        c=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def softmax_over_space() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).flatten(2).softmax(-1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv1d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.cumsum")
def cumulated_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).cumsum(-1)), a=nn.Linear(4, 7), b=nn.Linear(7, 3)
    ), randn(5, 4)


@row(None, "aten.amax")
def channel_and_spatial_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        s = torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)
        return self.b(h * self.s(s).sigmoid())

    return Net(
        forward, a=nn.Conv2d(3, 7, 1), s=nn.Conv2d(2, 1, 3, padding=1), b=nn.Conv2d(7, 3, 1)
    ), randn(*IMAGE)


@row({"a": 9, "s1": 5})
def squeeze_excite() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x).relu()
            * self.s2(self.s1(self.a(x).relu().mean((2, 3), keepdim=True)).relu()).sigmoid()
        ),
        a=nn.Conv2d(3, 9, 1),
        s1=nn.Conv2d(9, 5, 1),
        s2=nn.Conv2d(5, 9, 1),
        b=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row(None, "conv1d")
def efficient_channel_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        gate = self.c(h.mean((2, 3)).unsqueeze(1)).squeeze(1).sigmoid()
        return self.b(h * gate[:, :, None, None])

    return Net(
        forward, a=nn.Conv2d(3, 9, 1), c=nn.Conv1d(1, 1, 3, padding=1), b=nn.Conv2d(9, 3, 1)
    ), randn(*IMAGE)


# Cat, split, reshape.


@row({"a": 7, "b": 5})
def cat() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x), self.b(x), x], 1).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        c=nn.Conv2d(15, 3, 3),
    ), randn(*IMAGE)


@row({"a": 7})
def cat_of_one_tensor_twice() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x)] * 2, 1).relu()),
        a=nn.Conv2d(3, 7, 1),
        c=nn.Conv2d(14, 3, 3),
    ), randn(*IMAGE)


@row({"a": 7})
def cat_of_a_tensor_and_its_relu() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.c(self.n(torch.cat([h.relu(), (-h).relu()], 1)))

    return Net(forward, a=nn.Conv2d(3, 7, 1), n=nn.BatchNorm2d(14), c=nn.Conv2d(14, 3, 3)), randn(
        *IMAGE
    )


@row({"stem": 6, "a": 4, "b": 4})
def dense_block() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = torch.cat([h, self.a(self.n1(h).relu())], 1)
        h = torch.cat([h, self.b(self.n2(h).relu())], 1)
        return self.head(self.n3(h).relu().mean((2, 3)))

    return Net(
        forward,
        stem=nn.Conv2d(3, 6, 1),
        n1=nn.BatchNorm2d(6),
        a=nn.Conv2d(6, 4, 3, padding=1),
        n2=nn.BatchNorm2d(10),
        b=nn.Conv2d(10, 4, 3, padding=1),
        n3=nn.BatchNorm2d(14),
        head=nn.Linear(14, 3),
    ), randn(*IMAGE)


@row({"a": 7, "b": 5})
def cat_added_to_a_stream() -> Made:
    return Net(
        lambda self, x: self.d((torch.cat([self.a(x), self.b(x)], 1) + self.c(x)).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        c=nn.Conv2d(3, 12, 1),
        d=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def stack_and_flatten() -> Made:
    return Net(
        lambda self, x: self.c(torch.stack([self.a(x), self.b(x)], 2).flatten(1, 2).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        c=nn.Linear(14, 3),
    ), randn(5, 4)


@row({"a": 7})
def stack_and_sum() -> Made:
    return Net(
        lambda self, x: self.c(torch.stack([self.a(x), self.b(x)]).sum(0).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


class Splitting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = [6, 3]
        self.a, self.b, self.c = nn.Linear(4, 9), nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.a(x).split(self.sizes, -1)
        return self.b(left.relu()) + self.c(right.sigmoid())


@row({"a": 6, "a/2": 3})
def split_by_sizes() -> Made:
    return Splitting(), randn(5, 4)


@row({"a": 5})
def split_by_one_size() -> Made:
    class Equal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = 5
            self.a, self.b = nn.Linear(4, 15), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p, q, r = self.a(x).split(self.size, -1)
            return self.b(p.relu() * q.tanh() + r)

    return Equal(), randn(5, 4)


@row({"a": 6, "a/2": 5})
def chunk_of_odd_width() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).chunk(2, -1)
        return self.b(p.relu()) + self.c(q.tanh())

    return Net(forward, a=nn.Linear(4, 11), b=nn.Linear(6, 3), c=nn.Linear(5, 3)), randn(5, 4)


@row({"a/2": 5})
def slice_with_a_number() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, :4].relu()) + self.c(self.a(x)[:, 4:]),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
        c=nn.Linear(5, 3),
    ), randn(5, 4)


@row({"a": 2, "a/3": 2})
def narrow() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().narrow(1, 2, 5)),
        a=nn.Linear(4, 9),
        b=nn.Linear(5, 3),
    ), randn(5, 4)


@row(None, "aten.slice")
def strided_slice_of_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, ::2].relu()), a=nn.Linear(4, 8), b=nn.Linear(4, 3)
    ), randn(5, 4)


@row({"a": 9})
def select_a_token() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()[:, 0]), a=nn.Linear(4, 9), b=nn.Linear(9, 3)
    ), randn(2, 5, 4)


@row(None, "aten.select")
def select_a_channel() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[..., :1] * x) + self.a(x)[..., 2, None],
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
    ), randn(2, 5, 4)


@row({"0": 6, "3": 9})
def flatten_to_linear() -> Made:
    return chain(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 9), nn.ReLU(), nn.Linear(9, 3)
    )


@row({"a": 6})
def flatten_after_permute() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu().permute(0, 2, 3, 1).flatten(1)),
        a=nn.Conv2d(3, 6, 3),
        b=nn.Linear(96, 3),
    ), randn(*IMAGE)


@row({"0": 7})
def unflatten_to_image() -> Made:
    return chain(
        nn.Linear(4, 7 * 9),
        nn.ReLU(),
        nn.Unflatten(1, (7, 3, 3)),
        nn.Conv2d(7, 3, 1),
        inputs=randn(2, 4),
    )


@row({"a": 7})
def view_with_a_computed_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).view(x.shape[0], -1, 3, 3)),
        a=nn.Linear(4, 7 * 9),
        b=nn.Conv2d(7, 3, 1),
    ), randn(2, 4)


@row(None, "aten.reshape")
def view_that_mixes_channels_and_space() -> Made:
    # a reshape where a permute is meant: nobody's width
    return Net(
        lambda self, x: self.b(self.a(x).reshape(2, 36, 8)), a=nn.Conv2d(3, 8, 1), b=nn.Linear(8, 3)
    ), randn(*IMAGE)


@row({"a": 9})
def permutations() -> Made:
    return Net(
        lambda self, x: (
            self.b(self.a(x).flatten(2).transpose(1, 2).movedim(2, 0).relu().permute(1, 2, 0)).mT
        ),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 9})
def squeeze_and_expand() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x)
            .amax((2, 3), keepdim=True)
            .squeeze(3)
            .squeeze(2)[:, :, None]
            .expand(-1, -1, 4)
            .relu()
            .sum(2)
        ),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Linear(9, 3),
    ), randn(*IMAGE)


@row({"a": 6})
def channel_padding_shortcut() -> Made:
    # ResNet option A: the shortcut is padded with zero channels
    return Net(
        lambda self, x: self.c(
            (F.pad(self.a(x)[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + self.b(self.a(x).relu())).relu()
        ),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(6, 10, 3, stride=2, padding=1),
        c=nn.Conv2d(10, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7})
def repeat_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).repeat(1, 2).relu()), a=nn.Linear(4, 7), b=nn.Linear(14, 3)
    ), randn(5, 4)


@row({"a": 7})
def repeat_interleave_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).repeat_interleave(2, 1).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(14, 3),
    ), randn(5, 4)


@row({"a": 7})
def roll_space() -> Made:
    return Net(
        lambda self, x: self.b(torch.roll(self.a(x), (1, 2), (2, 3))),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.roll")
def roll_channels() -> Made:
    return Net(
        lambda self, x: self.b(torch.roll(self.a(x), 1, 1)),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.flip")
def flip_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).flip(1)), a=nn.Conv2d(3, 7, 1), b=nn.Conv2d(7, 3, 1)
    ), randn(*IMAGE)


@row({"0": 5})
def pixel_shuffle() -> Made:
    return chain(nn.Conv2d(3, 20, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(5, 3, 1))


@row({"0": 5})
def pixel_unshuffle() -> Made:
    return chain(nn.Conv2d(3, 5, 1), nn.PixelUnshuffle(2), nn.ReLU(), nn.Conv2d(20, 3, 1))


@row({"0": 5})
def channel_shuffle() -> Made:
    return chain(nn.Conv2d(3, 10, 1), nn.ChannelShuffle(2), nn.ReLU(), nn.Conv2d(10, 3, 1))


@row({"b": 5})
def channel_shuffle_by_hand() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        b, c, height, width = h.shape
        h = h.view(b, 2, c // 2, height, width).transpose(1, 2).reshape(b, c, height, width)
        return self.c(self.b(h).relu())

    return Net(
        forward, a=nn.Conv2d(3, 10, 1), b=nn.Conv2d(10, 10, 1, groups=2), c=nn.Conv2d(10, 3, 1)
    ), randn(*IMAGE)


@row({"stem": 6})
def shuffle_unit() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        left, right = h.chunk(2, 1)
        right = self.n(self.b(self.a(right).relu())).relu()
        h = torch.cat([left, right], 1)
        b, c, height, width = h.shape
        h = (
            h.view(b, 2, c // 2, height, width)
            .transpose(1, 2)
            .contiguous()
            .view(b, c, height, width)
        )
        return self.head(h)

    return Net(
        forward,
        stem=nn.Conv2d(3, 12, 1),
        a=nn.Conv2d(6, 6, 1),
        b=nn.Conv2d(6, 6, 3, padding=1, groups=6),
        n=nn.BatchNorm2d(6),
        head=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.index")
def index_channels() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, [0, 2, 4]]), a=nn.Linear(4, 7), b=nn.Linear(3, 3)
    ), randn(5, 4)


@row({"a": 7})
def index_tokens() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x)[:, [0, 2]].relu()), a=nn.Linear(4, 7), b=nn.Linear(7, 3)
    ), randn(2, 5, 4)


@row(None, "aten.gather")
def gather_channels() -> Made:
    return Net(
        lambda self, x, i: self.b(self.a(x).gather(1, i)), a=nn.Linear(4, 7), b=nn.Linear(3, 3)
    ), (randn(5, 4), tokens(5, 3, high=2))


@row({"a": 7})
def maxout() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).unflatten(1, (-1, 2)).amax(-1)),
        a=nn.Linear(4, 14),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a/2": 7})
def sum_of_two_halves() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).unflatten(1, (2, -1)).sum(1).relu()),
        a=nn.Linear(4, 14),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 7})
def outer_product_features() -> Made:
    return Net(
        lambda self, x: self.c(
            (self.a(x).relu()[:, :, None] * self.b(x).relu()[:, None, :]).flatten(1)
        ),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        c=nn.Linear(35, 3),
    ), randn(5, 4)


@row(None, "a (6)")
def gram_matrix() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).flatten(2)
        return self.b((h @ h.mT).flatten(1))

    return Net(forward, a=nn.Conv2d(3, 6, 1), b=nn.Linear(36, 3)), randn(*IMAGE)


@row(None, "itself")
def inner_product_with_itself() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return h @ h.mT

    return Net(forward, a=nn.Linear(4, 6)), randn(2, 5, 4)


@row({"a": 6})
def similarity_of_two_towers() -> Made:
    return Net(
        lambda self, x, y: self.a(x).relu() @ self.b(y).T, a=nn.Linear(4, 6), b=nn.Linear(5, 6)
    ), (randn(3, 4), randn(7, 5))


# Tables, tokens, parameters, buffers.


@row({"e": 9})
def embedding() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x).relu()), e=nn.Embedding(10, 9), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"e": 9})
def embedding_with_padding() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x)), e=nn.Embedding(10, 9, padding_idx=0), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"e": 9})
def embedding_scaled_by_width() -> Made:
    return Net(
        lambda self, x: self.b(
            (self.e(x) * math.sqrt(self.e.weight.shape[1]) + self.p[: x.shape[1]]).relu()
        ),
        e=nn.Embedding(10, 9),
        p=parameter(5, 9),
        b=nn.Linear(9, 3),
    ), tokens(2, 5)


@row({"e": 9}, "embedding_bag")
def embedding_bag() -> Made:
    return Net(
        lambda self, x: self.b(self.e(x)), e=nn.EmbeddingBag(10, 9), b=nn.Linear(9, 3)
    ), tokens(2, 5)


@row({"e": 9, "m1": 7})
def tied_embedding() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.n(self.e(x) + self.m2(self.m1(self.e(x)).relu())))

    net = Net(
        forward,
        e=nn.Embedding(10, 9),
        m1=nn.Linear(9, 7),
        m2=nn.Linear(7, 9),
        n=nn.LayerNorm(9),
        head=nn.Linear(9, 10, bias=False),
    )
    net.head.weight = net.e.weight
    return net, tokens(2, 5)


@row(None, "only 'a.weight' writes it")
def tied_autoencoder() -> Made:
    return Net(
        lambda self, x: F.linear(self.a(x).relu(), self.a.weight.t()), a=nn.Linear(4, 9)
    ), randn(5, 4)


@row({"a": 9})
def layer_used_twice() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.b(self.a(x).relu()).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 9),
        c=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"p": 9, "b": 7})
def layer_used_twice_on_different_streams() -> Made:
    return Net(
        lambda self, x, y: (
            self.c(self.b(self.p(x).relu()).relu()) + self.d(self.b(self.q(y).relu()).tanh())
        ),
        p=nn.Linear(4, 9),
        q=nn.Linear(5, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
        d=nn.Linear(7, 3),
    ), (randn(5, 4), randn(5, 5))


@row({"patch": 8})
def class_token_and_positions() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.shape[0], -1, -1), h], 1) + self.pos
        return self.head(self.n(h)[:, 0])

    return Net(
        forward,
        patch=nn.Conv2d(3, 8, 3, stride=3),
        cls=nn.Parameter(torch.zeros(1, 1, 8)),
        pos=parameter(1, 5, 8),
        n=nn.LayerNorm(8),
        head=nn.Linear(8, 3),
    ), randn(*IMAGE)


@row({"a": 9, "b": 7})
def layer_scale() -> Made:
    return Net(
        lambda self, x: self.d(self.a(x) + self.g * self.c(F.gelu(self.b(self.a(x))))),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 9),
        g=nn.Parameter(torch.full((9,), 1e-2)),
        d=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 9})
def learned_temperature() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() * self.t.exp() + self.s),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
        t=nn.Parameter(torch.zeros(())),
        s=nn.Parameter(torch.zeros(1)),
    ), randn(5, 4)


class Buffered(nn.Module):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 9), nn.Linear(9, 7), nn.Linear(7, 3)
        self.register_buffer("mask", (torch.arange(9) % 2).double(), persistent=persistent)
        self.register_buffer("table", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu() * self.mask + self.table).relu())


@row({"b": 7}, "buffer 'mask'")
def buffer_over_a_width() -> Made:
    return Buffered(True), randn(5, 4)


@row({"b": 7}, "buffer 'mask'")
def buffer_over_a_width_not_persistent() -> Made:
    return Buffered(False), randn(5, 4)


@row({"g": 9})
def weight_scaled_by_a_parameter() -> Made:
    return Net(
        lambda self, x: self.b(F.linear(x, self.w * self.g[:, None]).relu()),
        w=parameter(9, 4),
        g=parameter(9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.mul")
def weight_scaled_by_its_fan_in() -> Made:
    class Equalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v, self.w = parameter(9, 4), parameter(7, 9), parameter(3, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for w in (self.u, self.v, self.w):
                x = F.linear(x, w * (1 / math.sqrt(w.shape[1]))).tanh()
            return x

    return Equalised(), randn(5, 4)


@row({"w": 7})
def weight_sliced_in_code() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        d = self.w.shape[0] // 2
        return self.b(
            F.linear(x, self.w[:d], self.s[:d]).relu() * F.linear(x, self.w[d:], self.s[d:])
        )

    return Net(forward, w=parameter(14, 4), s=parameter(14), b=nn.Linear(7, 3)), randn(5, 4)


@row({"u": 5, "v": 7})
def weights_concatenated_in_code() -> Made:
    return Net(
        lambda self, x: self.b(F.linear(x, torch.cat([self.u, self.v])).relu()),
        u=parameter(5, 4),
        v=parameter(7, 4),
        b=nn.Linear(12, 3),
    ), randn(5, 4)


@row({"a": 6, "a/2": 8}, norms="other")
def weight_standardised() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        w = self.a.weight
        w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
        return self.b(F.linear(F.linear(x, self.z.weight).relu(), w).relu())

    return Net(forward, z=nn.Linear(4, 8), a=nn.Linear(8, 6), b=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9})
def softmax_of_a_parameter() -> Made:
    return Net(
        lambda self, x: (
            sum(w * f(x) for w, f in zip(self.mix.softmax(0), (self.a, self.b), strict=True))
            @ self.w
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 9),
        mix=parameter(2),
        w=parameter(9, 3),
    ), randn(5, 4)


# Attention.


class Attention(nn.Module):
    """nanoGPT's: a fused projection, `C // self.n_head` in the code."""

    def __init__(self, width: int, n_head: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = n_head, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


@row({"e": 24, "attn.c_attn/2": 8, "up": 48}, norms="other")
def nano_gpt() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.e(x) + self.p.weight[: x.shape[1]]
        h = h + self.attn(self.n1(h))
        h = h + self.down(F.gelu(self.up(self.n2(h))))
        return self.head(self.n3(h))

    return Net(
        forward,
        e=nn.Embedding(10, 24),
        p=nn.Embedding(6, 24),
        attn=Attention(24, 3),
        n1=nn.LayerNorm(24),
        n2=nn.LayerNorm(24),
        n3=nn.LayerNorm(24),
        up=nn.Linear(24, 48),
        down=nn.Linear(48, 24),
        head=nn.Linear(24, 10, bias=False),
    ), tokens(2, 5)


@row({"?": 12, "?2": 4}, norms="other")
def nano_gpt_with_small_heads() -> Made:
    # three heads of four: a quarter of a head would be one wide
    return Net(
        lambda self, x: self.o(self.attn(self.i(x))),
        i=nn.Linear(5, 12),
        attn=Attention(12, 3),
        o=nn.Linear(12, 3),
    ), randn(2, 4, 5)


@row({"i": 12, "attn.c_attn": 6, "attn.c_proj": 12}, norms="other")
def nano_gpt_by_head_count() -> Made:
    return Net(
        lambda self, x: self.o(self.attn(self.i(x))),
        i=nn.Linear(5, 12),
        attn=Attention(12, 6),
        o=nn.Linear(12, 3),
    ), randn(2, 4, 5)


class HandAttention(nn.Module):
    """Separate projections, logits scaled by hand, a causal mask."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.v = (nn.Linear(width, heads * size) for _ in range(3))
        self.o = nn.Linear(heads * size, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, self.size).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        logits = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = logits.masked_fill(mask, float("-inf")).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, self.heads * self.size))


@row({"a.q/2": 7, "a.v": 7})
def attention_by_hand() -> Made:
    return Net(
        lambda self, x: self.c(x + self.a(x)), a=HandAttention(6, 2, 7), c=nn.Linear(6, 3)
    ), randn(2, 4, 6)


@row({"a.q": 7})
def attention_by_hand_more_heads() -> Made:
    return Net(
        lambda self, x: self.c(x + self.a(x)), a=HandAttention(6, 7, 2), c=nn.Linear(6, 3)
    ), randn(2, 4, 6)


@row({"i": 16, "a.q": 4})
def attention_sizes_coincide() -> Made:
    # batch, tokens, heads and head size are all four
    return Net(
        lambda self, x: self.c(self.i(x) + self.a(self.i(x))),
        i=nn.Linear(16, 16),
        a=HandAttention(16, 4, 4),
        c=nn.Linear(16, 4),
    ), randn(4, 4, 16)


@row({"a.q": 4}, heads="count")
def attention_by_head_count_on_request() -> Made:
    return Net(
        lambda self, x: self.c(x + self.a(x)), a=HandAttention(6, 4, 6), c=nn.Linear(6, 3)
    ), randn(2, 4, 6)


@row({"q": 9, "v": 7})
def cross_attention() -> Made:
    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x)[:, None], self.k(y)[:, None], self.v(y)[:, None]
        return self.o(F.scaled_dot_product_attention(q, k, v, scale=0.3).squeeze(1))

    return Net(
        forward, q=nn.Linear(6, 9), k=nn.Linear(5, 9), v=nn.Linear(5, 7), o=nn.Linear(7, 3)
    ), (randn(2, 4, 6), randn(2, 3, 5))


@row({"stem": 16, "qkv/2": 8, "proj": 16})
def attention_qkv_unbind() -> Made:
    # timm's: reshape to (3, heads, size), permute, unbind
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            self.qkv, self.proj, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)
            self.stem = nn.Linear(5, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            b, n, c = x.shape
            qkv = (
                self.qkv(x)
                .reshape(b, n, 3, self.num_heads, c // self.num_heads)
                .permute(2, 0, 3, 1, 4)
            )
            q, k, v = qkv.unbind(0)
            x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
            return self.head(self.proj(x))

    return Block(), randn(2, 4, 5)


@row({"qkv/2": 6})
def attention_qkv_interleaved() -> Made:
    # GPT-NeoX: (heads, 3, size), then chunk of the last axis
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.size = 2, 6
            self.qkv, self.proj = nn.Linear(5, 36), nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = self.qkv(x).view(b, n, self.heads, 3 * self.size).transpose(1, 2).chunk(3, -1)
            return self.proj(
                F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1)
            )

    return Block(), randn(2, 4, 5)


class GroupedQuery(nn.Module):
    def __init__(self, repeat: bool, heads: int = 4, size: int = 6) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.repeat = heads, heads // 2, size, repeat
        self.q, self.k = nn.Linear(5, heads * size), nn.Linear(5, heads * size // 2)
        self.v, self.o = nn.Linear(5, heads * size // 2), nn.Linear(heads * size, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(b, n, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(x).view(b, n, self.kv_heads, self.size).transpose(1, 2)
        if self.repeat:
            times = self.heads // self.kv_heads
            k = (
                k[:, :, None]
                .expand(b, self.kv_heads, times, n, self.size)
                .reshape(b, self.heads, n, self.size)
            )
            v = v.repeat_interleave(times, 1)
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


@row({"q/2": 6, "v": 6})
def grouped_query_attention() -> Made:
    return GroupedQuery(False), randn(2, 4, 5)


@row({"q/2": 6, "v": 6})
def grouped_query_attention_by_repetition() -> Made:
    return GroupedQuery(True), randn(2, 4, 5)


@row({"q": 5}, heads="count")
def grouped_query_attention_by_head_count() -> Made:
    return GroupedQuery(False, 10), randn(2, 4, 5)


@row({"q": 5}, heads="count")
def grouped_query_attention_by_repetition_head_count() -> Made:
    return GroupedQuery(True, 10), randn(2, 4, 5)


class Rotary(nn.Module):
    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.v = (nn.Linear(5, heads * size) for _ in range(3))
        self.o = nn.Linear(heads * size, 3)
        self.register_buffer("freq", 100.0 ** (-torch.arange(0, size, 2) / size), persistent=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), self.freq.to(x.dtype))
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, self.size).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v)
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


@row({"q": 5}, "freq")
def rotary_embedding() -> Made:
    return Rotary(5, 4), randn(2, 4, 5)


class LearnedFrequencies(nn.Module):
    """Rotary frequencies computed in forward: values depend on the head size."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 8
        self.q, self.k, self.v, self.o = (
            nn.Linear(5, 8),
            nn.Linear(5, 8),
            nn.Linear(5, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        freq = 100.0 ** (-torch.arange(0, self.size, 2, dtype=x.dtype) / self.size)
        angle = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), freq)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

        def rotate(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        return self.o(
            F.scaled_dot_product_attention(rotate(self.q(x)), rotate(self.k(x)), self.v(x))
        )


@row({"v": 8})
def rotary_embedding_computed_in_forward() -> Made:
    return LearnedFrequencies(), randn(2, 4, 5)


@row({"v": 7}, norms="other")
def attention_with_qk_norm() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.nq(self.q(x)), self.nk(self.k(x)), self.v(x)
        return self.o(F.scaled_dot_product_attention(q, k, v))

    return Net(
        forward,
        q=nn.Linear(5, 6),
        k=nn.Linear(5, 6),
        v=nn.Linear(5, 7),
        o=nn.Linear(7, 3),
        nq=nn.RMSNorm(6, eps=1e-6),
        nk=nn.RMSNorm(6, eps=1e-6),
    ), randn(2, 4, 5)


@row({"v": 7})
def linear_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        return self.o(q @ (k.mT @ v))

    return Net(
        forward, q=nn.Linear(5, 6), k=nn.Linear(5, 6), v=nn.Linear(5, 7), o=nn.Linear(7, 3)
    ), randn(2, 4, 5)


@row({"?": 24, "?2": 8}, norms="other")
def multihead_attention() -> Made:
    return Net(
        lambda self, x: self.o(self.a(self.i(x), self.i(x), self.i(x), need_weights=False)[0]),
        i=nn.Linear(5, 24),
        a=nn.MultiheadAttention(24, 3, batch_first=True),
        o=nn.Linear(24, 3),
    ), randn(2, 4, 5)


@row({"?": 24, "?2": 8}, norms="other")
def multihead_attention_with_weights() -> Made:
    return Net(
        lambda self, x, y: self.o(self.a(self.i(x), y, y)[0]),
        i=nn.Linear(5, 24),
        a=nn.MultiheadAttention(24, 3, kdim=6, vdim=6, batch_first=True),
        o=nn.Linear(24, 3),
    ), (randn(2, 4, 5), randn(2, 3, 6))


@row({"i": 16, "a.self_attn.in_proj_weight/2": 8, "a.linear1": 20}, norms="other")
def transformer_encoder_layer() -> Made:
    return Net(
        lambda self, x: self.o(self.a(self.i(x))),
        i=nn.Linear(5, 16),
        a=nn.TransformerEncoderLayer(16, 2, 20, dropout=0.0, batch_first=True),
        o=nn.Linear(16, 3),
    ), randn(2, 4, 5)


@row({"i": 16, "a.self_attn.in_proj_weight/2": 8, "a.linear1": 20}, norms="other")
def transformer_encoder_layer_norm_first() -> Made:
    return Net(
        lambda self, x: self.o(self.a(self.i(x))),
        i=nn.Linear(5, 16),
        a=nn.TransformerEncoderLayer(16, 2, 20, dropout=0.0, norm_first=True, activation="gelu"),
        o=nn.Linear(16, 3),
    ), randn(4, 2, 5)


@row({"i": 16, "?": 8, "?2": 8, "a.linear1": 20}, norms="other")
def transformer_decoder_layer() -> Made:
    return Net(
        lambda self, x, y: self.o(self.a(self.i(x), self.i(y))),
        i=nn.Linear(5, 16),
        a=nn.TransformerDecoderLayer(16, 2, 20, dropout=0.0, batch_first=True),
        o=nn.Linear(16, 3),
    ), (randn(2, 4, 5), randn(2, 3, 5))


@row({"stem": 16, "qkv/2": 8}, norms="other")
def window_attention() -> Made:
    # Swin: windows by reshape, roll, a table of relative positions
    class Swin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.n = nn.Linear(3, 16), nn.LayerNorm(16)
            self.num_heads = 2
            self.qkv, self.proj, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)
            self.table = parameter(9, 2)
            grid = torch.stack(
                torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
            ).flatten(1)
            relative = (grid[:, :, None] - grid[:, None, :]) + 1
            self.register_buffer("index", relative[0] * 3 + relative[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            b, h, w, c = x.shape
            y = torch.roll(self.n(x), (-1, -1), (1, 2))
            y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
            qkv = (
                self.qkv(y)
                .reshape(-1, 4, 3, self.num_heads, c // self.num_heads)
                .permute(2, 0, 3, 1, 4)
            )
            q, k, v = qkv[0], qkv[1], qkv[2]
            bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1)
            weights = (q * (c // self.num_heads) ** -0.5 @ k.mT + bias).softmax(-1)
            y = self.proj((weights @ v).transpose(1, 2).reshape(-1, 4, c))
            y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            return self.head(x + torch.roll(y, (1, 1), (1, 2)))

    return Swin(), randn(2, 4, 4, 3)


# Recurrent layers and computed weights.


@row({"a": 6, "b": 7})
def lstm() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x)[0]).relu()),
        a=nn.LSTM(4, 6, batch_first=True),
        b=nn.Linear(6, 7),
        c=nn.Linear(7, 3),
    ), randn(2, 5, 4)


@row({"a": 6, "b": 7})
def gru() -> Made:
    return Net(
        lambda self, x: self.c(self.b(self.a(x)[0]).relu()),
        a=nn.GRU(4, 6),
        b=nn.Linear(6, 7),
        c=nn.Linear(7, 3),
    ), randn(2, 5, 4)


@row({"a": 6})
def lstm_cell() -> Made:
    return Net(lambda self, x: self.c(self.a(x)[0]), a=nn.LSTMCell(4, 6), c=nn.Linear(6, 3)), randn(
        5, 4
    )


@row({"a": 9, "b": 7})
def weight_norm() -> Made:
    net = Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
    )
    nn.utils.parametrizations.weight_norm(net.a)
    return net, randn(5, 4)


@row({"b": 7}, "the parametrization _SpectralNorm")
def spectral_norm() -> Made:
    net = Net(
        lambda self, x: self.c(self.b(self.a(x).relu()).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 7),
        c=nn.Linear(7, 3),
    )
    nn.utils.parametrizations.spectral_norm(net.a)
    return net, randn(5, 4)


@row({"d1.0": 5, "d2.0": 7, "mid.0": 9, "up2": 7, "u2.0": 7, "up1": 5, "u1.0": 5})
def unet() -> Made:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()

            def block(i: int, o: int) -> nn.Module:
                return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

            self.d1, self.d2, self.mid = block(3, 5), block(5, 7), block(7, 9)
            self.up2, self.u2 = nn.ConvTranspose2d(9, 7, 2, stride=2), block(14, 7)
            self.up1, self.u1 = nn.ConvTranspose2d(7, 5, 2, stride=2), block(10, 5)
            self.head = nn.Conv2d(5, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.d1(x)
            b = self.d2(F.max_pool2d(a, 2))
            c = self.mid(F.max_pool2d(b, 2))
            y = self.u2(torch.cat([self.up2(c), b], 1))
            return self.head(self.u1(torch.cat([self.up1(y), a], 1)))

    return UNet(), randn(2, 3, 8, 8)


@row({"a": 9, "b": 7})
def residual_without_norm() -> Made:
    return Net(
        lambda self, x: self.d(self.a(x) + self.c(self.b(self.a(x)).relu())),
        a=nn.Conv2d(3, 9, 1),
        b=nn.Conv2d(9, 7, 3, padding=1),
        c=nn.Conv2d(7, 9, 1),
        d=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"a": 9, "c": 7}, norms="other")
def convnext_block() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        y = self.n(self.b(h).permute(0, 2, 3, 1))
        y = self.d(F.gelu(self.c(y))) * self.g
        return self.head(h + y.permute(0, 3, 1, 2))

    return Net(
        forward,
        a=nn.Conv2d(3, 9, 1),
        b=nn.Conv2d(9, 9, 3, padding=1, groups=9),
        n=nn.LayerNorm(9),
        c=nn.Linear(9, 7),
        d=nn.Linear(7, 9),
        g=nn.Parameter(1e-2 * torch.ones(9)),
        head=nn.Conv2d(9, 3, 1),
    ), randn(*IMAGE)


@row({"i": 9, "t1": 7})
def mixer_over_tokens() -> Made:
    return Net(
        lambda self, x: self.o(self.i(x) + self.t2(F.gelu(self.t1(self.i(x).mT))).mT),
        i=nn.Linear(5, 9),
        t1=nn.Linear(4, 7),
        t2=nn.Linear(7, 4),
        o=nn.Linear(9, 3),
    ), randn(2, 4, 5)


@row({"i": 9}, norms="other")
def adaptive_layer_norm() -> Made:
    def forward(self: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        h = self.i(x)
        scale, shift = self.m(c).chunk(2, -1)
        return self.o(self.n(h) * (1 + scale[:, None]) + shift[:, None])

    return Net(
        forward,
        i=nn.Linear(5, 9),
        n=nn.LayerNorm(9, elementwise_affine=False),
        m=nn.Linear(4, 18),
        o=nn.Linear(9, 3),
    ), (randn(2, 4, 5), randn(2, 4))


@row({"a": 7})
def film() -> Made:
    def forward(self: Any, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        h = self.n(self.a(x))
        scale, shift = self.m(c)[..., None, None].chunk(2, 1)
        return self.b((h * scale + shift).relu())

    return Net(
        forward, a=nn.Conv2d(3, 7, 1), n=nn.BatchNorm2d(7), m=nn.Linear(4, 14), b=nn.Conv2d(7, 3, 1)
    ), (randn(*IMAGE), randn(2, 4))


@row({"a": 9})
def soft_mixture_of_experts() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        experts = torch.stack([f(x) for f in (self.a, self.b)], -1)
        return self.o((experts * gates.unsqueeze(-2)).sum(-1).relu())

    return Net(
        forward, gate=nn.Linear(4, 2), a=nn.Linear(4, 9), b=nn.Linear(4, 9), o=nn.Linear(9, 3)
    ), randn(5, 4)


@row({"a": 9})
def two_outputs() -> Made:
    def forward(self: Any, x: torch.Tensor) -> dict[str, Any]:
        h = self.a(x).relu()
        return {"logits": self.b(h), "aux": [self.c(h)]}

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3), c=nn.Linear(9, 2)), randn(5, 4)


@row({"b": 6}, "output")
def features_as_output() -> Made:
    def forward(self: Any, x: torch.Tensor) -> Any:
        h = self.a(x).relu()
        return self.c(self.b(h).relu()), h

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 6), c=nn.Linear(6, 3)), randn(5, 4)


@row({"a": 9})
def infinite_outputs() -> Made:
    # masked logits are a legitimate output
    return Net(
        lambda self, x: self.b(self.a(x).relu()).masked_fill(
            torch.tensor([True, False, False]), float("-inf")
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.tanh")
def code_branches_on_width() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        if h.shape[-1] > 5:
            h = h.tanh()
        return self.b(h)

    return Net(forward, a=nn.Linear(4, 9), b=nn.Linear(9, 3)), randn(5, 4)


@row({"a": 9})
def divided_by_its_width() -> Made:
    return Net(
        lambda self, x: (
            self.b(self.a(x).relu() / self.a.weight.shape[0]) * self.b.weight.shape[1] ** 0.5
        ),
        a=nn.Linear(4, 9, bias=False),
        b=nn.Linear(9, 3, bias=False),
    ), randn(5, 4)


@row(None, "aten.mul")
def number_with_an_odd_law() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() * (1 + 1 / self.a.weight.shape[0])),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.add")
def number_added_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() + 1 / self.a.weight.shape[0]),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.add")
def whole_number_added_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() + self.a.weight.shape[0]),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.pow")
def power_depends_on_width() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu() ** self.a.weight.shape[0]),
        a=nn.Linear(4, 3),
        b=nn.Linear(3, 3),
    ), randn(5, 4)


@row({"a": 9})
def tensor_made_from_the_width() -> Made:
    return Net(
        lambda self, x: self.b(
            self.a(x).relu() * torch.full((1,), self.a.weight.shape[0], dtype=x.dtype)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row(None, "aten.matmul")
def ones_of_the_width() -> Made:
    # ones @ W sums over the width
    return Net(
        lambda self, x: self.b(
            self.a(x).relu() @ torch.ones(self.a.weight.shape[0], 4, dtype=x.dtype)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 3),
    ), randn(5, 4)


@row({"a": 6})
def unfolded_patches() -> Made:
    return Net(
        lambda self, x: self.b(F.unfold(self.a(x), 3).mT), a=nn.Conv2d(3, 6, 1), b=nn.Linear(54, 3)
    ), randn(*IMAGE)


@row(None, "operator")
def pairwise_distances() -> Made:
    return Net(
        lambda self, x: torch.cdist(self.a(x), self.b(x)), a=nn.Linear(4, 6), b=nn.Linear(4, 6)
    ), randn(5, 4)


@row({"a": 6}, norms="other")
def cosine_similarity() -> Made:
    return Net(
        lambda self, x: F.cosine_similarity(self.a(x), self.b(x)),
        a=nn.Linear(4, 6),
        b=nn.Linear(4, 6),
    ), randn(5, 4)


@row({"a": 7})
def fourier_features() -> Made:
    return Net(
        lambda self, x: self.b(torch.cat([self.a(x).sin(), self.a(x).cos()], -1)),
        a=nn.Linear(4, 7),
        b=nn.Linear(14, 3),
    ), randn(5, 4)


@row({"a": 7})
def dead_branch_and_unused_layer() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(7, 3),
        unused=nn.Linear(7, 7),
    ), randn(5, 4)


# Combinations that go wrong easily.


@row({"stem": 8, "a": 7})
def in_place_gate_in_front_of_a_norm() -> Made:
    # the norm sees h after h.mul_(g), through the name that h had before
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu()
        h = self.a(x)
        h.mul_(self.g(x).relu())
        return self.b(self.n2(h).relu())

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1, bias=False),
        g=nn.Conv2d(8, 7, 1, bias=False),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"stem": 8, "a": 7})
def gate_in_front_of_a_norm() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu()
        return self.b(self.n2(self.a(x) * self.g(x).relu()).relu())

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1, bias=False),
        g=nn.Conv2d(8, 7, 1, bias=False),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"stem": 8, "a": 7})
def in_place_add_in_front_of_a_norm() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(self.stem(x)).relu_()
        h = self.a(x)
        h += self.g(x)
        torch.relu_(h)
        return self.b(self.n2(h))

    return Net(
        forward,
        stem=nn.Conv2d(3, 8, 1),
        n1=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 7, 1),
        g=nn.Conv2d(8, 7, 1),
        n2=nn.BatchNorm2d(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"q/2": 6})
def multi_query_attention() -> Made:
    class MultiQuery(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.size = 5, 6
            self.q, self.kv, self.o = nn.Linear(5, 30), nn.Linear(5, 12), nn.Linear(30, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q = self.q(x).view(b, n, self.heads, self.size).transpose(1, 2)
            k, v = self.kv(x).split(self.size, -1)
            y = F.scaled_dot_product_attention(
                q,
                k[:, None].expand(-1, self.heads, -1, -1),
                v[:, None].expand(-1, self.heads, -1, -1),
            )
            return self.o(y.transpose(1, 2).reshape(b, n, -1))

    return MultiQuery(), randn(2, 4, 5)


@row({"q": 4, "v": 4}, heads="count")
def attention_with_slopes_per_head() -> Made:
    # ALiBi: a number for every head, made in the code
    class Alibi(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 6
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 24),
                nn.Linear(5, 24),
                nn.Linear(5, 24),
                nn.Linear(24, 3),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = (
                f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            slopes = 2.0 ** -torch.arange(1, self.heads + 1, dtype=x.dtype)
            bias = -(torch.arange(n)[:, None] - torch.arange(n)).abs() * slopes[:, None, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
            return self.o(y.transpose(1, 2).reshape(b, n, -1))

    return Alibi(), randn(2, 4, 5)


@row({"?": 16, "?2": 8}, norms="other")
def attention_with_masks() -> Made:
    return Net(
        lambda self, x, m: self.o(
            self.a(self.i(x), self.i(x), self.i(x), key_padding_mask=m, need_weights=False)[0]
        ),
        i=nn.Linear(5, 16),
        a=nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True),
        o=nn.Linear(16, 3),
    ), (randn(2, 4, 5), torch.tensor([[False, False, True, True], [False, False, False, False]]))


@row(None, "aten.group_norm", norms="other")
def group_norm_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(3, 6, 1),
        n=nn.GroupNorm(4, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.group_norm", norms="other")
def group_norm_over_an_uneven_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 4, 1),
        n=nn.GroupNorm(3, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row(None, "aten.group_norm", norms="other")
def group_norm_across_a_concatenation() -> Made:
    # groups of six span both parts
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 4, 1),
        n=nn.GroupNorm(2, 12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 7, "b": 5}, norms="other")
def layer_norm_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.n(torch.cat([self.a(x), x, self.b(x)], 1)).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        n=nn.LayerNorm(16),
        c=nn.Linear(16, 3),
    ), randn(5, 4)


@row({"q/2": 7, "v": 7}, norms="other")
def layer_norm_over_heads() -> Made:
    class SubNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(14, 3),
            )
            self.n = nn.LayerNorm(14)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = (
                f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.o(self.n(y))

    return SubNorm(), randn(2, 4, 5)


@row({"q/2": 7, "v": 7}, norms="other")
def norm_of_values_per_head() -> Made:
    class ValueNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = 2
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(5, 14),
                nn.Linear(14, 3),
            )
            self.n = nn.RMSNorm(7, eps=1e-5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = (
                f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            return self.o(
                F.scaled_dot_product_attention(q, k, self.n(v)).transpose(1, 2).flatten(2)
            )

    return ValueNorm(), randn(2, 4, 5)


@row({"a": 7, "b": 5})
def depthwise_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.d(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 7, 1),
        b=nn.Conv2d(3, 5, 1),
        d=nn.Conv2d(12, 12, 3, groups=12),
        c=nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a": 6, "d": 5})
def grouped_over_a_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(self.d(torch.cat([self.a(x), self.b(x)], 1)).relu()),
        a=nn.Conv2d(3, 6, 1),
        b=nn.Conv2d(3, 6, 1),
        d=nn.Conv2d(12, 10, 3, groups=2),
        c=nn.Conv2d(10, 3, 1),
    ), randn(*IMAGE)


@row({"a": 5, "b": 3})
def flattened_concatenation() -> Made:
    return Net(
        lambda self, x: self.c(torch.cat([self.a(x), self.b(x)], 1).relu().flatten(1)),
        a=nn.Conv2d(3, 5, 3),
        b=nn.Conv2d(3, 3, 3),
        c=nn.Linear(128, 3),
    ), randn(*IMAGE)


@row({"a": 5})
def batch_norm_after_flatten() -> Made:
    return Net(
        lambda self, x: self.c(self.n(self.a(x).flatten(1)).relu()),
        a=nn.Conv2d(3, 5, 3),
        n=nn.BatchNorm1d(80),
        c=nn.Linear(80, 3),
    ), randn(*IMAGE)


@row({"i": 8})
def mixing_where_all_sizes_are_eight() -> Made:
    # batch, tokens, channels, hidden and classes: all eight
    return Net(
        lambda self, x: self.o((self.i(x) + self.t(self.i(x).mT).mT).relu()),
        i=nn.Linear(8, 8),
        t=nn.Linear(8, 8),
        o=nn.Linear(8, 8),
    ), randn(8, 8, 8)


class OneNumberForAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dim = 8
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x.view(-1, self.dim))
        return self.b(h.relu().view(-1, self.dim)).view(-1, self.dim)


@row(None, "does not follow another width")
def one_attribute_for_growing_and_fixed_sizes() -> Made:
    return OneNumberForAll(), randn(5, 8)


@row({"q": 9, "v": 7})
def causal_mask_in_a_buffer() -> Made:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 9),
                nn.Linear(5, 9),
                nn.Linear(5, 7),
                nn.Linear(7, 3),
            )
            self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = x.shape[1]
            logits = (self.q(x) @ self.k(x).transpose(-2, -1)) * (
                1.0 / math.sqrt(self.k.weight.shape[0])
            )
            logits = logits.masked_fill(self.bias[:, :n, :n] == 0, float("-inf"))
            return self.o(logits.softmax(-1) @ self.v(x))

    return Causal(), randn(2, 4, 5)


@row({"a": 7})
def tied_layers_transposed() -> Made:
    return Net(
        lambda self, x: F.conv_transpose2d(self.b(self.a(x).relu()).relu(), self.a.weight),
        a=nn.Conv2d(3, 7, 3),
        b=nn.Conv2d(7, 7, 1),
    ), randn(*IMAGE)


@row({"a": 9})
def stochastic_depth_and_scalar_gate() -> Made:
    return Net(
        lambda self, x: self.c(self.a(x) + self.s.tanh() * self.b(self.a(x)).relu()),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 9),
        s=parameter(1),
        c=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 7})
def parameter_added_to_an_image() -> Made:
    return Net(
        lambda self, x: self.b((self.a(x) + self.p).relu() * self.g.view(1, -1, 1, 1)),
        a=nn.Conv2d(3, 7, 1),
        p=parameter(1, 7, 6, 6),
        g=parameter(7),
        b=nn.Conv2d(7, 3, 1),
    ), randn(*IMAGE)


@row({"k": 9, "v": 7})
def learned_queries() -> Made:
    # perceiver: queries are a parameter with both axes
    return Net(
        lambda self, x: self.o(
            F.scaled_dot_product_attention(
                self.latent.expand(x.shape[0], -1, -1), self.k(x), self.v(x)
            )
        ),
        latent=parameter(1, 3, 9),
        k=nn.Linear(5, 9),
        v=nn.Linear(5, 7),
        o=nn.Linear(7, 3),
    ), randn(2, 4, 5)


@row({"a": 9})
def codebook_distances() -> Made:
    # |x - c|² written as a matmul and two sums
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return h.pow(2).sum(-1, keepdim=True) - 2 * h @ self.codes.t() + self.codes.pow(2).sum(-1)

    return Net(forward, a=nn.Linear(4, 9), codes=parameter(6, 9)), randn(5, 4)


@row({"a": 9})
def product_keys() -> Made:
    # scores against a learned table, softmax over the table, then values
    return Net(
        lambda self, x: (self.a(x) @ self.keys.t()).softmax(-1) @ self.values,
        a=nn.Linear(4, 9),
        keys=parameter(6, 9),
        values=parameter(6, 3),
    ), randn(5, 4)


@row({"a": 7})
def bidirectional_sum_of_projections() -> Made:
    return Net(
        lambda self, x: self.c(
            torch.addcmul(self.a(x), self.b(x), self.d(x), value=0.5)
            + torch.lerp(self.a(x), self.b(x), 0.3)
        ),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 7),
        d=nn.Linear(4, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"q": 9, "v": 7})
def logits_scaled_by_a_learned_width() -> Made:
    # a float attribute computed once: it does not follow the width, and need not
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (
                nn.Linear(5, 9),
                nn.Linear(5, 9),
                nn.Linear(5, 7),
                nn.Linear(7, 3),
            )
            self.scale = 9**-0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.o((self.q(x) * self.scale @ self.k(x).mT).softmax(-1) @ self.v(x))

    return Scaled(), randn(2, 4, 5)


@row({"a": 9})
def mean_pooled_by_a_matmul() -> Made:
    return Net(
        lambda self, x: self.b(
            torch.full((1, x.shape[1]), 1 / x.shape[1], dtype=x.dtype) @ self.a(x)
        ),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
    ), randn(2, 5, 4)


@row(None, "aten.matmul")
def sum_by_a_matmul_with_ones_like() -> Made:
    # ones_like of an activation contracted with another one of that width
    return Net(
        lambda self, x: self.a(x).relu() @ torch.ones_like(self.b(x)).mT,
        a=nn.Linear(4, 9),
        b=nn.Linear(4, 9),
    ), randn(2, 5, 4)


@row(None, "aten.einsum")
def power_sum_over_a_width_by_einsum() -> Made:
    return Net(
        lambda self, x: self.c(torch.einsum("bti->bt", self.a(x).relu())[..., None]),
        a=nn.Linear(4, 9),
        c=nn.Linear(1, 3),
    ), randn(2, 5, 4)


@row({"a": 9})
def diagonal_by_einsum() -> Made:
    return Net(
        lambda self, x: self.b(torch.einsum("bd,d->bd", self.a(x), self.g).relu()),
        a=nn.Linear(4, 9),
        g=parameter(9),
        b=nn.Linear(9, 3),
    ), randn(5, 4)


@row({"a": 7})
def tensor_product_by_einsum() -> Made:
    return Net(
        lambda self, x: self.c(torch.einsum("bi,bj->bij", self.a(x), self.b(x)).relu().flatten(1)),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        c=nn.Linear(35, 3),
    ), randn(5, 4)


@row({"a": 7, "w": 5})
def bilinear_form_by_matmul() -> Made:
    return Net(
        lambda self, x: (self.a(x) @ self.w) @ self.b(x).mT,
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        w=parameter(7, 5),
    ), randn(2, 5, 4)


@row({"v": 7, "v/2": 7})
def three_matrices_of_one_width() -> Made:
    return Net(
        lambda self, x: F.linear(x, self.u @ self.v @ self.w),
        u=parameter(3, 7),
        v=parameter(7, 7),
        w=parameter(7, 4),
    ), randn(5, 4)


@row(None, "used in two ways")
def weight_of_a_square_layer_symmetrised() -> Made:
    return Net(
        lambda self, x: self.c(F.linear(self.a(x).relu(), self.w + self.w.t()).relu()),
        a=nn.Linear(4, 7),
        w=parameter(7, 7),
        c=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 7})
def residual_square_of_a_stream() -> Made:
    return Net(
        lambda self, x: self.b(self.a(x) ** 2 + self.a(x) * self.a(x).detach()),
        a=nn.Linear(4, 7),
        b=nn.Linear(7, 3),
    ), randn(5, 4)


@row({"a": 7})
def rotation_of_two_halves_without_attention() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).chunk(2, -1)
        return self.b(torch.cat([-q, p], -1) + self.a(x))

    return Net(forward, a=nn.Linear(4, 14), b=nn.Linear(14, 3)), randn(5, 4)


@row({"?": 7})
def pairs_of_channels_rotated() -> Made:
    # interleaved rotary: (…, d/2, 2) unbound and stacked again
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        p, q = self.a(x).unflatten(-1, (-1, 2)).unbind(-1)
        return self.b(torch.stack([-q, p], -1).flatten(-2).relu())

    return Net(forward, a=nn.Linear(4, 14), b=nn.Linear(14, 3)), randn(5, 4)


@row({"e": 7, "f": 5})
def embedding_of_two_kinds_concatenated() -> Made:
    return Net(
        lambda self, x: self.b(torch.cat([self.e(x), self.f(x)], -1).relu()),
        e=nn.Embedding(10, 7),
        f=nn.Embedding(10, 5),
        b=nn.Linear(12, 3),
    ), tokens(2, 5)


@row({"e": 7})
def functional_embedding_read_twice() -> Made:
    return Net(
        lambda self, x: self.b(F.embedding(x, self.e) + self.e[0]),
        e=parameter(10, 7),
        b=nn.Linear(7, 3),
    ), tokens(2, 5)


@row({"a": 9})
def wide_and_deep_with_an_output_stream() -> Made:
    # a hidden layer of the width of the outputs is added to them
    return Net(
        lambda self, x: self.b(self.a(x).relu()) + self.c(x),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 3),
        c=nn.Linear(4, 3),
    ), randn(5, 4)


@row({"a": 9})
def input_added_to_a_layer() -> Made:
    # the stream is the model's input: frozen
    return Net(
        lambda self, x: self.c(x + self.b(self.a(x).relu())),
        a=nn.Linear(4, 9),
        b=nn.Linear(9, 4),
        c=nn.Linear(4, 3),
    ), randn(5, 4)
