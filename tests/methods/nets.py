"""Small networks of every kind that the growth methods meet, and what their tests do with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import growthring as gr
from growthring import zoo
from tests.growth_contract import call, in_dtype, make_plan, perturb, randn, tokens

Made = tuple[nn.Module, Any]


def mlp(widths=(9, 7), inputs=5, outputs=3, act=nn.Tanh) -> Made:
    layers, size = [], inputs
    for width in widths:
        layers += [nn.Linear(size, width), act()]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs)), randn(6, inputs)


def conv_bn() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 11, 3, stride=2),
        nn.BatchNorm2d(11, affine=False),
        nn.ReLU(),
        nn.Conv2d(11, 4, 1),
    ), randn(4, 3, 6, 6)


def resnet8() -> Made:
    """Three stages of one block: both downsampling shortcuts are 1×1 convolutions."""
    return zoo.resnet8(num_classes=4, width=6, in_channels=3), randn(4, 3, 8, 8)


def wrn() -> Made:
    """Pre-activation blocks: the stream is read behind a norm, and by the next block as it is."""
    return zoo.WideResNet((2, 1), (6, 6, 10), 4), randn(4, 3, 8, 8)


class Dense(nn.Module):
    """Each layer reads everything before it, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6 + 5 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(6 + 5 * i, 5, 3, padding=1) for i in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=False):
            parts.append(conv(norm(torch.cat(parts, 1)).relu()))
        return self.head(self.norms[2](torch.cat(parts, 1)).relu().mean((2, 3)))


class Inception(nn.Module):
    """Branches of different widths, concatenated; one is the pooled input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 5, 3, padding=1)
        self.b2 = nn.Conv2d(5, 7, 3, padding=1)
        self.norm, self.mix = nn.BatchNorm2d(18), nn.Conv2d(18, 9, 1)
        self.head = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, 3, 1, 1)
        h = torch.cat([self.a(x).relu(), self.b2(self.b(x).relu()).relu(), pooled], 1)
        return self.head(self.mix(self.norm(h)).relu().amax((2, 3)))


def conv_flatten() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 9, 10),
        nn.ReLU(),
        nn.Linear(10, 4),
    ), randn(4, 3, 6, 6)


def mobilenet() -> Made:
    return zoo.MobileNetV1((6, 10, 12), (1, 1, 2), num_classes=4), randn(4, 3, 6, 6)


def grouped() -> Made:
    """As many groups as before, each wider; and a layer between two of them."""
    return nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(10, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
    ), randn(4, 3, 6, 6)


def more_groups() -> Made:
    """The number of groups grows, each as wide as before."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 4, 1)
    ), randn(4, 3, 6, 6)


def multiplier() -> Made:
    """A depthwise convolution with three filters per channel."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 18, 3, groups=6), nn.ReLU(), nn.Conv2d(18, 4, 1)
    ), randn(4, 3, 6, 6)


def transposed() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 9, 3), nn.ReLU(), nn.ConvTranspose2d(9, 7, 3), nn.ReLU(), nn.Conv2d(7, 4, 1)
    ), randn(4, 3, 6, 6)


class PreNorm(nn.Module):
    """A residual stream with pre-norms and a norm at its end."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.a, self.n = nn.Linear(5, 9), norm(9)
        self.up, self.down = nn.Linear(9, 13), nn.Linear(13, 9)
        self.n2, self.head = norm(9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = h + self.down(F.gelu(self.up(self.n(h))))
        return self.head(self.n2(h))


def gpt() -> Made:
    net = zoo.GPT(11, 8, num_layers=2, num_heads=2, width=16, tied=False)
    return net, tokens(3, 6)


def transformer() -> Made:
    net = zoo.Transformer(
        11, 9, d_model=12, d_ffn=20, num_heads=2, d_embed=8, num_encoder_layers=1,
        num_decoder_layers=1, dropout=0.0, max_length=16,
    )  # fmt: skip
    return net, (tokens(3, 6), tokens(3, 5, high=9))


class Heads(nn.Module):
    """torch's own attention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.head(self.attention(h, h, h, need_weights=False)[0])


def encoder_layer(norm_first: bool) -> Made:
    layer = nn.TransformerEncoderLayer(
        16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    net = nn.Sequential(nn.Linear(5, 16), layer, nn.Linear(16, 3))
    return net, randn(4, 6, 5)


class Shared(nn.Module):
    """One layer, used three times, and one used on two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.again = nn.Linear(5, 9), nn.Linear(9, 9)
        self.branch, self.head = nn.Linear(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        for _ in range(3):
            h = torch.tanh(self.again(h))
        return self.head(self.branch(h).tanh() * self.branch(-h).sigmoid())


NETS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "conv_bn": conv_bn,
    "resnet8": resnet8,
    "wrn": wrn,
    "dense": lambda: (Dense(), randn(4, 3, 5, 5)),
    "inception": lambda: (Inception(), randn(4, 3, 5, 5)),
    "conv_flatten": conv_flatten,
    "mobilenet": mobilenet,
    "grouped": grouped,
    "more_groups": more_groups,
    "multiplier": multiplier,
    "transposed": transposed,
    "layer_norm": lambda: (PreNorm(nn.LayerNorm), randn(6, 5)),
    "rms_norm": lambda: (PreNorm(nn.RMSNorm), randn(6, 5)),
    "gpt": gpt,
    "transformer": transformer,
    "multihead": lambda: (Heads(), randn(4, 6, 5)),
    "encoder_post": lambda: encoder_layer(False),
    "encoder_pre": lambda: encoder_layer(True),
    "shared": lambda: (Shared(), randn(6, 5)),
}


@cache
def plan_of(net: str, dtype: torch.dtype = torch.float64, stages: int = 3) -> gr.Plan:
    """The plan of a network; only ever read."""
    if dtype != torch.float64:
        return in_dtype(plan_of(net, stages=stages), dtype)
    return planned(NETS[net], stages)


def planned(make: Callable[[], Made], stages: int = 2, **options: Any) -> gr.Plan:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, inputs = make()
        return make_plan(net, inputs, stages=stages, **options)


def seed_of(plan: gr.Plan, seed: int = 1) -> nn.Module:
    """A seed model with values of its own in every tensor, as training would leave it."""
    model = plan.build_seed()
    perturb(model, seed)
    return model


def grower_of(model: nn.Module, plan: gr.Plan, method: Any, **options: Any) -> gr.Grower:
    given = {"noise": 0.0, "generator": torch.Generator().manual_seed(3)} | options
    return gr.Grower(model, plan, method=method, **given)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def train(model: nn.Module, plan: gr.Plan, optimizer: Any, steps: int = 3, seed: int = 0) -> None:
    """Steps on random targets for the plan's inputs, shaken a little."""
    g = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for out in call(model, shaken(plan.example_inputs, g)):
            target = torch.randn(out.shape, generator=g).to(out)
            loss = loss + (out - target).square().mean()
        loss.backward()
        optimizer.step()


def shaken(inputs: Any, g: torch.Generator) -> Any:
    """Inputs with some noise, where they are numbers."""
    if isinstance(inputs, tuple):
        return tuple(shaken(x, g) for x in inputs)
    if not inputs.is_floating_point():
        return inputs
    return inputs + torch.randn(inputs.shape, generator=g).to(inputs)


def parents(old: Tensor, new: Tensor) -> Tensor:
    """Which row of `old` each row of `new` equals, found by comparing them; they must all be there."""
    same = (new.flatten(1)[:, None] == old.flatten(1)[None]).all(2)
    assert bool((same.sum(1) == 1).all()), "a row that copies none, or several"
    return same.double().argmax(1)


def batches_of(
    shape: tuple[int, ...], outputs: int, num: int = 4, size: int = 8, seed: int = 0, dtype=None
) -> list[tuple[Tensor, Tensor]]:
    """Batches of random inputs and class labels."""
    g = torch.Generator().manual_seed(seed)
    dtype = dtype or torch.float64
    return [
        (
            torch.randn(size, *shape, generator=g, dtype=torch.float64).to(dtype),
            torch.randint(0, outputs, (size,), generator=g),
        )
        for _ in range(num)
    ]


def mean_loss(model: nn.Module, batches: Any, loss: Callable[..., Tensor]) -> float:
    """Mean over the batches, in eval mode, of a copy."""
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        values = [float(loss(twin(x), y)) for x, y in batches]
    return sum(values) / len(values)


def modules_of(model: nn.Module, *types: type[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    return ((n, m) for n, m in model.named_modules() if isinstance(m, types))


Segment = tuple[
    int | None, int
]  # a group and its entries per unit, or None and a number of entries


def segments(plan: gr.Plan) -> dict[tuple[str, int], tuple[str, list[Segment]]]:
    """(tensor, axis) -> its role, and what it is made of: growing widths, blocks of them, fixed numbers."""
    found: dict[tuple[str, int], tuple[str, list[Segment]]] = {}
    for group in plan.groups.growable:
        for m in group.members:
            terms = m.structure.split(" + ")
            role, line = found.setdefault((m.tensor, m.axis), (m.role, [(None, 0)] * len(terms)))
            assert role == m.role and len(line) == len(terms)
            for k, term in enumerate(terms):
                outer, _, inner = term.partition("·")
                if outer == "w":
                    line[k] = (group.key, int(inner or 1))
                elif line[k][0] is None:
                    line[k] = (None, int(term))
    return found


def places(line: list[Segment], widths: Any, sources: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Which entry each entry of a grown axis copies, and how many copies of it there are."""
    index, counts, start = [], [], 0
    for group, number in line:
        if group is None:
            index.append(start + torch.arange(number))
            counts.append(torch.ones(number, dtype=torch.long))
            start += number
            continue
        source = sources[group]
        index.append(start + (source[:, None] * number + torch.arange(number)).flatten())
        counts.append(torch.bincount(source)[source].repeat_interleave(number))
        start += widths[group] * number
    return torch.cat(index), torch.cat(counts)


def split_by_hand(
    plan: gr.Plan,
    model: nn.Module,
    sources: dict[int, Tensor],
    moves: dict[str, Tensor] | None = None,
    offsets: dict[int, Tensor] | None = None,
) -> nn.Module:
    """The full-size model made of copies of a seed's units, by the book and by nothing of the library.

    Args:
        plan: of two stages.
        model: at stage 0.
        sources: group -> which unit each unit copies.
        moves: weight -> v, of the old weight's shape.
        offsets: group -> how far along v each unit goes.
    """
    tensors, moves = tensors_of(model), dict(moves or {})
    widths, found = plan.stage_widths[0], segments(plan)
    for (name, axis), (role, line) in found.items():
        index, counts = places(line, widths, sources)
        shape = [-1] + [1] * (tensors[name].dim() - 1 - axis)
        divisor = counts.reshape(shape) if role == "reads" else 1
        for held in (tensors, moves):
            if name in held:
                held[name] = held[name].index_select(axis, index) / divisor
    for name, v in moves.items():
        ((group, number),) = found[name, 0][1]
        far = offsets[group].repeat_interleave(number)
        tensors[name] = tensors[name] + far.reshape([-1] + [1] * (v.dim() - 1)) * v
    wide = copy.deepcopy(plan.model)
    wide.load_state_dict(tensors)
    return wide


def marked(names, fast):
    """Parameters of a test, those that are not among the fast ones marked slow."""
    return [pytest.param(n, marks=() if n in fast else pytest.mark.slow) for n in names]
