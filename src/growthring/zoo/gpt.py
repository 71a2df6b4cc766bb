"""A GPT-style decoder: pre-norm blocks, learned positions, one layer for query, key and value.

The paper's Transformer (section 4) is an encoder-decoder; this is the form that language models
have since. It follows Radford et al., Language Models are Unsupervised Multitask Learners, 2019
(GPT-2).

Axes: B texts, T tokens, M model (width), H heads, D one head, V vocabulary.
"""

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import DecodingCache, KeyValues, attend_to_past
from .init import normal_, untouched_rng


class CausalSelfAttention(nn.Module):
    """Multi-head attention to the own and earlier positions.

    Args:
        width: width of the input and the output; the heads divide it among themselves.
        num_heads: number of heads.
        dropout: rate of dropout on the attention weights and on the output.

    Example:
        >>> CausalSelfAttention(width=8, num_heads=2)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, T, M) to (B, T, M)."""
        q, k, v = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout.p if self.training else 0.0
        read = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.dropout(self.out(read.transpose(1, 2).flatten(2)))

    def extend(self, x: Tensor, seen: KeyValues) -> Tensor:
        """As `forward` of the positions in `seen` and further ones `x` (B, T, M): the latter's part."""
        q, k, v = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout.p if self.training else 0.0
        read = attend_to_past(q, *seen.append(k, v), dropout)
        return self.dropout(self.out(read.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        # (B, T, H * D) to (B, H, T, D)
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)


class Block(nn.Module):
    """Self-attention and a GELU network, each behind a LayerNorm and beside the residual stream.

    Args:
        width: width of the residual stream.
        num_heads: number of heads.
        dropout: rate of every dropout.

    Example:
        >>> Block(width=8, num_heads=2)(torch.zeros(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, num_heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, T, M) to (B, T, M)."""
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.fc1(self.norm2(x)), approximate="tanh")  # GPT-2's own GELU
        return x + self.dropout(self.fc2(hidden))

    def extend(self, x: Tensor, seen: KeyValues) -> Tensor:
        """As `forward`, of further positions (B, T, M) only; they are added to `seen`."""
        x = x + self.attention.extend(self.norm1(x), seen)
        hidden = F.gelu(self.fc1(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.fc2(hidden))


class GPT(nn.Module):
    """A GPT-2-style language model.

    Args:
        vocab_size: number of tokens.
        block_size: longest text.
        num_layers: number of blocks.
        num_heads: number of heads of each block.
        width: width of the residual stream, a multiple of `num_heads`.
        dropout: rate of every dropout.
        tied: the output layer shares its weight with the token embedding.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = GPT(vocab_size=11, block_size=8, num_layers=2, num_heads=2, width=16)
        >>> model(torch.zeros(2, 5, dtype=torch.long)).shape
        torch.Size([2, 5, 11])
    """

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        num_layers: int,
        num_heads: int,
        width: int,
        dropout: float = 0.0,
        tied: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(
                f"width {width} does not divide into {num_heads} heads: "
                f"pass a multiple of {num_heads}, such as {-(-width // num_heads) * num_heads}."
            )
        self.block_size = block_size
        with untouched_rng(generator):
            self.token_embedding = nn.Embedding(vocab_size, width)
            self.position_embedding = nn.Embedding(block_size, width)
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(Block(width, num_heads, dropout) for _ in range(num_layers))
            self.norm = nn.LayerNorm(width)
            self.output = nn.Linear(width, vocab_size, bias=False)
        if tied:
            self.output.weight = self.token_embedding.weight
        self._init_weights_(num_layers, generator)

    def _init_weights_(self, num_layers: int, generator: torch.Generator | None) -> None:
        for name, parameter in self.named_parameters():  # names a tied weight once
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            if parameter.ndim < 2:  # the norms' scales are 1 already
                continue
            # 2 num_layers branches add to the residual stream: GPT-2 keeps their sum at one size.
            into_stream = name.endswith(("attention.out.weight", "fc2.weight"))
            std = 0.02 / math.sqrt(2 * num_layers) if into_stream else 0.02
            normal_(parameter, std, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens (B, T) to logits (B, T, V) of each next token."""
        length = tokens.shape[1]
        if length > self.block_size:
            raise ValueError(
                f"text of {length} tokens, but block_size is {self.block_size}: "
                "pass a larger block_size to GPT, or shorten the text."
            )
        positions = torch.arange(length, device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))

    def start_decoding(self) -> DecodingCache:
        """An empty memory for `continue_decoding`.

        Example:
            >>> model = GPT(vocab_size=11, block_size=8, num_layers=2, num_heads=2, width=16).eval()
            >>> tokens, cache = torch.arange(6)[None], model.start_decoding()
            >>> first = model.continue_decoding(tokens[:, :4], cache)
            >>> then = model.continue_decoding(tokens[:, 4:], cache)
            >>> torch.allclose(then, model(tokens)[:, -1], atol=1e-5)
            True
        """
        return DecodingCache(len(self.blocks))

    @torch.no_grad()
    def continue_decoding(self, tokens: Tensor, cache: DecodingCache) -> Tensor:
        """Maps tokens (B, T) that follow those in `cache` to logits (B, V) of what comes after them."""
        length = cache.length + tokens.shape[1]
        if length > self.block_size:
            raise ValueError(
                f"text of {length} tokens, but block_size is {self.block_size}: "
                "start again with the text's last part."
            )
        positions = torch.arange(cache.length, length, device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block, seen in zip(cast("Iterable[Block]", self.blocks), cache.own, strict=True):
            x = block.extend(x, seen)
        return self.output(self.norm(x[:, -1:]))[:, 0]


def gpt2_124m(dropout: float = 0.0, generator: torch.Generator | None = None) -> GPT:
    """The smallest GPT-2: 12 blocks of 12 heads, width 768, 50257 tokens, 1024 positions.

    Args:
        dropout: rate of every dropout; GPT-2 was trained with 0.1.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> with torch.device("meta"):  # no storage, so this is quick
        ...     model = gpt2_124m()
        >>> sum(p.numel() for p in model.parameters())
        124439808
    """
    return GPT(50257, 1024, 12, 12, 768, dropout, generator=generator)
