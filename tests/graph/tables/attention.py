"""Attention in all its ways of writing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.tables.base import Made, row
from tests.growth_contract import Net, parameter, randn, tokens


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
