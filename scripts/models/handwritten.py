"""Models written here to be odd: what users write themselves, and what must be refused."""

import torch
from torch import nn
from torch.nn import functional as F

from scripts.models.entry import Entry, images, tokens


class NanoBlock(nn.Module):
    """A block as nanoGPT writes it: fused projection, sizes from the input's shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.n_embd = heads, width
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(self.n_embd, dim=2)
        q, k, v = (z.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 64, heads: int = 8) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        self.h = nn.ModuleList(NanoBlock(width, heads) for _ in range(2))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        pos = torch.arange(0, idx.shape[1], dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Skips are concatenated; one way up interpolates, the other is a transposed convolution."""

    def __init__(self, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.down1 = _double_convolution(3, width)
        self.down2 = _double_convolution(width, 2 * width)
        self.middle = _double_convolution(2 * width, 4 * width)
        self.up2 = _double_convolution(6 * width, 2 * width)
        self.raise1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up1 = _double_convolution(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.avg_pool2d(b, 2))
        c = F.interpolate(c, size=b.shape[-2:], mode="bilinear", align_corners=False)
        b = self.up2(torch.cat([c, b], dim=1))
        return self.head(self.up1(torch.cat([self.raise1(b), a], dim=1)))


class DenseMLP(nn.Module):
    """Each layer reads everything before it."""

    def __init__(self, inputs: int = 6, width: int = 16, depth: int = 4, classes: int = 5) -> None:
        super().__init__()
        sizes = [inputs + width * i for i in range(depth + 1)]
        self.layers = nn.ModuleList(nn.Linear(n, width) for n in sizes[:-1])
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.tanh(layer(x))], dim=-1)
        return self.head(x)


class SharedTowers(nn.Module):
    """One encoder called twice, its features compared by product and difference."""

    def __init__(self, inputs: int = 6, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(3 * width, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self.encoder(left), self.encoder(right)
        return self.head(torch.cat([a * b, (a - b).abs(), a + b], dim=-1))


class HyperNetwork(nn.Module):
    """The weight of a layer is another network's output, and its width is a number in the code."""

    def __init__(self, inputs: int = 6, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.randn(8))
        self.weights = nn.Linear(8, width * inputs)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weights(torch.fft.rfft(self.code).abs().repeat(2)[:8]).view(16, 6)
        return self.head(torch.relu(F.linear(x, weight)))


class RecurrentClassifier(nn.Module):
    """The last state of an LSTM, read by one layer."""

    def __init__(self, vocabulary: int = 32, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.table(ids))[0][:, -1])


class RecurrentWithHead(RecurrentClassifier):
    """The same with a wider head."""

    def __init__(self, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 4))


class Undecided(nn.Module):
    """Branches on the values of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.a(x) if x.sum() > 0 else self.b(x)))


def _vectors(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 6, generator=generator)


def _two_vectors(generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    return _vectors(generator), _vectors(generator)


ENTRIES = (
    Entry("handwritten", "nanoGPT", NanoGPT, tokens(64), fast=True, trains=True),
    Entry("handwritten", "U-Net", UNet, images(16), fast=True, trains=True),
    Entry("handwritten", "dense MLP", DenseMLP, _vectors, seed_share=0.35, fast=True, trains=True),
    Entry(
        "handwritten",
        "shared towers",
        SharedTowers,
        _two_vectors,
        seed_share=0.3,
        fast=True,
        trains=True,
    ),
    Entry(
        "handwritten",
        "hypernetwork",
        HyperNetwork,
        _vectors,
        expect="refused",
        because="aten.fft_rfft",
        fast=True,
    ),
    Entry(
        "handwritten",
        "LSTM classifier",
        RecurrentClassifier,
        tokens(32),
        fast=True,
    ),
    Entry(
        "handwritten",
        "LSTM with an MLP head",
        RecurrentWithHead,
        tokens(32),
        seed_share=0.8,
        fast=True,
        trains=True,
    ),
    Entry(
        "handwritten",
        "branch on data",
        Undecided,
        _vectors,
        expect="refused",
        because="branches on the values of tensors",
        fast=True,
    ),
)
