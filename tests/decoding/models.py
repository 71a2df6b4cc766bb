"""Small models to decode with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from growthring import zoo

PAD, BOS, EOS, VOCAB = 0, 1, 2, 13
SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}


def transformer(seed: int = 0, sharpness: float = 20.0, **kwargs: object) -> zoo.Transformer:
    """A random model whose distributions are far from flat, so that rounding decides nothing."""
    sizes: dict[str, object] = {
        "d_model": 16,
        "num_heads": 2,
        "d_embed": 8,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_length": 40,
        "generator": torch.Generator().manual_seed(seed),
    }
    model = zoo.Transformer(VOCAB, VOCAB, **(sizes | kwargs))  # type: ignore[arg-type]
    with torch.no_grad():
        model.output.weight.mul_(sharpness)
    return model


def gpt(seed: int = 0, sharpness: float = 10.0, **kwargs: object) -> zoo.GPT:
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "block_size": 12,
        "num_layers": 2,
        "num_heads": 2,
        "width": 16,
        "dropout": 0.1,
        "tied": False,
        "generator": torch.Generator().manual_seed(seed),
    }
    model = zoo.GPT(**(sizes | kwargs))  # type: ignore[arg-type]
    with torch.no_grad():
        model.output.weight.mul_(sharpness)
        model.position_embedding.weight.mul_(sharpness)
        for block in model.blocks:
            block.attention.qkv.weight.mul_(sharpness)
    return model


def sentences(lengths: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Source tokens (B, S) with eos at their ends, and the padding mask."""
    src = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(src, lengths, strict=True):
        row[:length] = torch.randint(3, VOCAB, (length,), generator=generator)
        row[length - 1] = EOS
    return src, src == PAD


class Table(nn.Module):
    """The next token's logits depend on source[0] and the whole target so far, by a hash; `wide` tokens only."""

    def __init__(self, vocab: int, usable: list[int], seed: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.vocab, self.usable, self.seed, self.scale = vocab, usable, seed, scale

    def logits(self, first: int, prefix: tuple[int, ...]) -> Tensor:
        seed = (
            hash((self.seed, first, prefix)) % 2**31
        )  # of whole numbers: the same in each process
        drawn = torch.randn(self.vocab, generator=torch.Generator().manual_seed(seed))
        found = torch.full((self.vocab,), -torch.inf)
        found[self.usable] = self.scale * drawn[self.usable]
        return found

    def forward(self, src: Tensor, tgt: Tensor, src_padding_mask: Tensor | None = None) -> Tensor:
        rows = [
            torch.stack([self.logits(int(s[0]), tuple(t[: i + 1].tolist())) for i in range(len(t))])
            for s, t in zip(src, tgt, strict=True)
        ]
        return torch.stack(rows)


class Fixed(nn.Module):
    """Logits that depend on the position alone, (T, V); the last row goes on."""

    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor(logits))

    def forward(self, src: Tensor, tgt: Tensor, src_padding_mask: Tensor | None = None) -> Tensor:
        places = torch.arange(tgt.shape[1]).clamp(max=len(self.table) - 1)
        return self.table[places].expand(len(tgt), -1, -1)
