"""What attention has read so far, so that decoding computes one position at a step (no part of `forward`).

Axes: N rows (texts, or sentences × beams), H heads, L positions, D one head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_ROOM = 16  # positions of a first buffer


class KeyValues:
    """The keys and values of one attention, for all positions so far.

    They lie in a buffer that doubles when it is full: joining tensors at each step would copy all
    earlier positions again and again.

    Attributes:
        length: number of positions so far.

    Example:
        >>> seen = KeyValues()
        >>> keys, values = seen.append(torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 3, 8))
        >>> keys, values = seen.append(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8))
        >>> keys.shape, seen.length
        (torch.Size([2, 4, 4, 8]), 4)
    """

    def __init__(self) -> None:
        self.length = 0
        self._held: Tensor | None = None  # (2, N, H, room, D)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds positions (N, H, L, D) and returns the keys and values (N, H, length, D) of all."""
        start, self.length = self.length, self.length + keys.shape[2]
        if self._held is None or self.length > self._held.shape[3]:
            self._held = self._larger(keys)
        self._held[0, :, :, start : self.length] = keys
        self._held[1, :, :, start : self.length] = values
        return self._held[0, :, :, : self.length], self._held[1, :, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Lets each row continue the one that `rows` (N',) names."""
        if self._held is not None:
            self._held = self._held.index_select(1, rows)

    def _larger(self, keys: Tensor) -> Tensor:
        num_rows, num_heads, _, d_head = keys.shape
        room = max(_ROOM, 2 * (self.length - 1), self.length)
        larger = keys.new_empty(2, num_rows, num_heads, room, d_head)
        if self._held is not None:
            larger[:, :, :, : self._held.shape[3]] = self._held
        return larger


class DecodingCache:
    """What a model remembers between the steps of decoding.

    Attributes:
        own: self-attention of each block.
        memory: keys and values (B, H, S, D) of the source for each block's cross attention; those
            of B sentences, whatever the number of rows: the rows of a sentence are positions that ask.
        mask: (B, 1, 1, S), True where the source may be read.

    Example:
        >>> DecodingCache(num_blocks=2).length
        0
    """

    def __init__(self, num_blocks: int) -> None:
        self.own = [KeyValues() for _ in range(num_blocks)]
        self.memory: list[tuple[Tensor, Tensor]] = []
        self.mask: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of positions so far."""
        return self.own[0].length if self.own else 0

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Goes on with other rows.

        Args:
            rows: (N',) for each new row the present one that it continues. The rows of a sentence
                stand together, as many for each.
            sentences: (B',) which sentences those rows belong to; None for all.
        """
        for seen in self.own:
            seen.select(rows)
        if sentences is not None:
            self.memory = [
                (k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.memory
            ]
            self.mask = None if self.mask is None else self.mask.index_select(0, sentences)


def attend_to_past(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Attention of the last L of S positions, each to itself and to earlier ones.

    Args:
        q: (N, H, L, D)
        k: (N, H, S, D)
        v: (N, H, S, D)
        dropout: rate of dropout on the attention weights.

    Returns:
        (N, H, L, D)

    Example:
        >>> attend_to_past(torch.zeros(2, 4, 1, 8), *torch.zeros(2, 2, 4, 5, 8)).shape
        torch.Size([2, 4, 1, 8])
    """
    asking, there = q.shape[2], k.shape[2]
    if asking == 1:  # reads everything
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    if asking == there:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    # torch's `is_causal` would count from the first position, not from the last
    mask = torch.ones(asking, there, dtype=torch.bool, device=q.device).tril(there - asking)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
