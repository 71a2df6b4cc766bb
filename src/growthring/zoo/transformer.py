"""The encoder-decoder Transformer for translation (paper, section 4, IWSLT'14).

It follows Vaswani et al., Attention Is All You Need, NeurIPS 2017, with one difference that the
paper asks for: the embeddings and their positional table have a dimension of their own (`d_embed`),
and a linear layer projects them to the width of the blocks (`d_model`).

Axes: B sentences, S source tokens, T target tokens, M model (d_model), V target vocabulary.
"""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from .cache import DecodingCache
from .init import init_fan_in_, init_output_, normal_, untouched_rng
from .transformer_blocks import DecoderBlock, EncoderBlock, FeedForward


def sinusoids(length: int, dim: int) -> Tensor:
    """Tabulates the fixed positional encoding: sines at even places, cosines at odd ones.

    Args:
        length: number of positions.
        dim: numbers a position.

    Returns:
        A table of shape (length, dim).

    Example:
        >>> sinusoids(2, 4)[0]
        tensor([0., 1., 0., 1.])
    """
    position = torch.arange(length)[:, None]
    place = torch.arange(dim)
    angle = position * torch.exp(-math.log(10000.0) * (place - place % 2) / dim)
    return torch.where(place % 2 == 0, angle.sin(), angle.cos())


class Transformer(nn.Module):
    """The encoder-decoder Transformer, by default at the paper's full size.

    Args:
        src_vocab_size: number of source tokens.
        tgt_vocab_size: number of target tokens, and of logits.
        d_model: width of the blocks.
        d_ffn: width inside the feed-forward parts; four times `d_model` if None.
        num_heads: number of heads.
        d_head: width of one head; `d_model / num_heads` if None.
        d_embed: width of the embeddings and the positional table, independent of `d_model`.
        num_encoder_layers: number of encoder blocks.
        num_decoder_layers: number of decoder blocks.
        dropout: rate of every dropout.
        max_length: longest sentence.
        generator: source of the initial weights; torch's default one if None.

    Example:
        >>> model = Transformer(11, 13, d_model=16, num_heads=2, d_embed=8)
        >>> src, tgt = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
        >>> model(src, tgt).shape
        torch.Size([2, 7, 13])
    """

    positions: Tensor

    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        *,
        d_model: int = 512,
        d_ffn: int | None = None,
        num_heads: int = 8,
        d_head: int | None = None,
        d_embed: int = 512,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dropout: float = 0.1,
        max_length: int = 1024,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if d_head is None and d_model % num_heads:
            raise ValueError(
                f"d_model {d_model} does not divide into {num_heads} heads: pass d_head as well."
            )
        sizes = (
            d_model,
            4 * d_model if d_ffn is None else d_ffn,
            num_heads,
            d_model // num_heads if d_head is None else d_head,
            dropout,
        )
        self.embed_scale = math.sqrt(d_embed)
        with untouched_rng(generator):
            self.src_embedding = nn.Embedding(src_vocab_size, d_embed)
            self.src_projection = nn.Linear(d_embed, d_model)
            self.encoder = nn.ModuleList(EncoderBlock(*sizes) for _ in range(num_encoder_layers))
            self.tgt_embedding = nn.Embedding(tgt_vocab_size, d_embed)
            self.tgt_projection = nn.Linear(d_embed, d_model)
            self.decoder = nn.ModuleList(DecoderBlock(*sizes) for _ in range(num_decoder_layers))
            self.dropout = nn.Dropout(dropout)
            self.output = nn.Linear(d_model, tgt_vocab_size)
        self._init_weights_(generator)
        self.register_buffer("positions", sinusoids(max_length, d_embed), persistent=False)

    def _init_weights_(self, generator: torch.Generator | None) -> None:
        init_fan_in_(self, generator, gain=1.0)
        for module in self.modules():
            if isinstance(module, FeedForward):
                init_fan_in_(module.fc1, generator)  # the only layer before a ReLU
            elif isinstance(module, nn.Embedding):
                normal_(module.weight, 1.0 / self.embed_scale, generator)
        init_output_(self.output, generator)

    def forward(
        self, src_tokens: Tensor, tgt_tokens: Tensor, src_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Maps source (B, S) and target tokens (B, T) to logits (B, T, V) of each next token.

        Args:
            src_tokens: source sentences.
            tgt_tokens: target sentences up to the token to predict. Padding belongs at their end,
                where no earlier position can read it.
            src_padding_mask: (B, S), True at padding. Every sentence needs at least one token that
                is not.
        """
        return self.decode(tgt_tokens, self.encode(src_tokens, src_padding_mask), src_padding_mask)

    def encode(self, src_tokens: Tensor, src_padding_mask: Tensor | None = None) -> Tensor:
        """Maps source tokens (B, S) to the encoder's output (B, S, M)."""
        mask = _readable(src_padding_mask)
        x = self.src_projection(self._embed(self.src_embedding, src_tokens))
        for block in self.encoder:
            x = block(x, mask)
        return x

    def decode(
        self, tgt_tokens: Tensor, memory: Tensor, src_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Maps target tokens (B, T) and the encoder's output (B, S, M) to logits (B, T, V)."""
        mask = _readable(src_padding_mask)
        x = self.tgt_projection(self._embed(self.tgt_embedding, tgt_tokens))
        for block in self.decoder:
            x = block(x, memory, mask)
        return self.output(x)

    @property
    def max_length(self) -> int:
        """Longest sentence."""
        return self.positions.shape[0]

    @torch.no_grad()
    def start_decoding(
        self, src_tokens: Tensor, src_padding_mask: Tensor | None = None
    ) -> DecodingCache:
        """Encodes the source (B, S) once, for `continue_decoding`.

        Example:
            >>> model = Transformer(11, 13, d_model=16, num_heads=2, d_embed=8).eval()
            >>> src, tgt = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
            >>> cache = model.start_decoding(src)
            >>> for i in range(7):
            ...     last = model.continue_decoding(tgt[:, i : i + 1], cache)
            >>> torch.allclose(last, model(src, tgt)[:, -1], atol=1e-5)
            True
        """
        encoded = self.encode(src_tokens, src_padding_mask)
        cache = DecodingCache(len(self.decoder))
        for block in cast("Iterable[DecoderBlock]", self.decoder):
            cache.memory.append(block.cross_attention.remember(encoded))
        cache.mask = _readable(src_padding_mask)
        return cache

    @torch.no_grad()
    def continue_decoding(self, tgt_tokens: Tensor, cache: DecodingCache) -> Tensor:
        """Maps further target tokens (N, L) to logits (N, V) of what comes after the last of them.

        Args:
            tgt_tokens: the tokens after those in `cache`. N may be a multiple of the B sentences that
                were encoded (beams); the rows of a sentence stand together.
            cache: of `start_decoding`; the tokens are added to it.
        """
        x = self.tgt_projection(self._embed(self.tgt_embedding, tgt_tokens, cache.length))
        blocks = cast("Iterable[DecoderBlock]", self.decoder)
        for block, seen, memory in zip(blocks, cache.own, cache.memory, strict=True):
            x = block.extend(x, seen, memory, cache.mask)
        return self.output(x[:, -1:])[:, 0]

    def _embed(self, embedding: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        length = start + tokens.shape[1]
        if length > self.positions.shape[0]:
            raise ValueError(
                f"sentence of {length} tokens, but max_length is {self.positions.shape[0]}: "
                "pass a larger max_length to Transformer, or shorten the sentence."
            )
        return self.dropout(embedding(tokens) * self.embed_scale + self.positions[start:length])


def _readable(padding_mask: Tensor | None) -> Tensor | None:
    # (B, S), True at padding, to (B, 1, 1, S), True where attention may read
    return None if padding_mask is None else ~padding_mask[:, None, None, :]
