"""The blocks of the encoder-decoder Transformer (paper, section 4, IWSLT'14): post-norm, with ReLU.

Reference: Vaswani et al., Attention Is All You Need, NeurIPS 2017.

Axes: B sentences, L positions that ask, S positions that answer, M model (d_model), H heads, D one
head (d_head).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .cache import KeyValues, attend_to_past


class Attention(nn.Module):
    """Multi-head attention.

    Args:
        d_model: width of the input and the output.
        num_heads: number of heads.
        d_head: width of one head; `num_heads * d_head` need not equal `d_model`.
        dropout: rate of dropout on the attention weights.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, 5, 8)
        >>> Attention(d_model=8, num_heads=2, d_head=3)(x, x).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, d_model: int, num_heads: int, d_head: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, num_heads * d_head)
        self.key = nn.Linear(d_model, num_heads * d_head)
        self.value = nn.Linear(d_model, num_heads * d_head)
        self.out = nn.Linear(num_heads * d_head, d_model)

    def forward(
        self, x: Tensor, context: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Lets each position of `x` (B, L, M) read `context` (B, S, M).

        Args:
            x: positions that ask.
            context: positions that answer.
            mask: broadcastable to (B, H, L, S), True where a position may be read.
            causal: position l reads only positions up to l.
        """
        q = self._split(self.query(x))
        k = self._split(self.key(context))
        v = self._split(self.value(context))
        dropout = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        return self.out(read.transpose(1, 2).flatten(2))

    def remember(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Maps `context` (B, S, M) to its keys and values (B, H, S, D), for `recall`."""
        return self._split(self.key(context)), self._split(self.value(context))

    def recall(self, x: Tensor, memory: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """As `forward` of `x` (B, L, M), with the context's keys and values (B, H, S, D)."""
        q = self._split(self.query(x))
        dropout = self.dropout if self.training else 0.0
        read = F.scaled_dot_product_attention(q, *memory, attn_mask=mask, dropout_p=dropout)
        return self.out(read.transpose(1, 2).flatten(2))

    def extend(self, x: Tensor, seen: KeyValues) -> Tensor:
        """As causal `forward` of the positions in `seen` and further ones `x` (B, L, M): the latter's part."""
        q, (k, v) = self._split(self.query(x)), seen.append(*self.remember(x))
        read = attend_to_past(q, k, v, self.dropout if self.training else 0.0)
        return self.out(read.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        # (B, L, H * D) to (B, H, L, D)
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Linear, ReLU, linear, at every position alike.

    Args:
        d_model: width of the input and the output.
        d_ffn: width between the two layers.
        dropout: rate of dropout after the ReLU.

    Example:
        >>> import torch
        >>> FeedForward(d_model=4, d_ffn=16)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(self, d_model: int, d_ffn: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_ffn)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(d_ffn, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, L, M) to (B, L, M)."""
        return self.fc2(self.dropout(F.relu(self.fc1(x))))


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each followed by a residual add and a LayerNorm.

    Args:
        d_model: width of the input and the output.
        d_ffn: width inside the feed-forward part.
        num_heads: number of heads.
        d_head: width of one head.
        dropout: rate of every dropout.

    Example:
        >>> import torch
        >>> EncoderBlock(d_model=4, d_ffn=16, num_heads=2, d_head=2)(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(
        self, d_model: int, d_ffn: int, num_heads: int, d_head: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = Attention(d_model, num_heads, d_head, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ffn, dropout)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps (B, S, M) to (B, S, M), reading only where `mask` is True."""
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention to the encoder and feed-forward, post-norm.

    Args:
        d_model: width of the input and the output.
        d_ffn: width inside the feed-forward part.
        num_heads: number of heads.
        d_head: width of one head.
        dropout: rate of every dropout.

    Example:
        >>> import torch
        >>> block = DecoderBlock(d_model=4, d_ffn=16, num_heads=2, d_head=2)
        >>> block(torch.zeros(2, 5, 4), torch.zeros(2, 7, 4)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(
        self, d_model: int, d_ffn: int, num_heads: int, d_head: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = Attention(d_model, num_heads, d_head, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.cross_attention = Attention(d_model, num_heads, d_head, dropout)
        self.norm2 = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ffn, dropout)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps (B, T, M) to (B, T, M), reading `memory` (B, S, M) only where `mask` is True."""
        x = self.norm1(x + self.dropout(self.attention(x, x, causal=True)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory, mask)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))

    def extend(
        self, x: Tensor, seen: KeyValues, memory: tuple[Tensor, Tensor], mask: Tensor | None = None
    ) -> Tensor:
        """As `forward`, of further positions (N, L, M) only.

        Args:
            x: further positions, of N rows: as many of each of B sentences.
            seen: keys and values of earlier positions; `x` is added to them.
            memory: keys and values (B, H, S, D) of the encoder's output.
            mask: (B, 1, 1, S), True where `memory` may be read.
        """
        x = self.norm1(x + self.dropout(self.attention.extend(x, seen)))
        # all rows of a sentence read the same memory: one sequence of positions that ask
        asking = x.reshape(memory[0].shape[0], -1, x.shape[-1])
        read = self.cross_attention.recall(asking, memory, mask).view_as(x)
        x = self.norm2(x + self.dropout(read))
        return self.norm3(x + self.dropout(self.feed_forward(x)))
