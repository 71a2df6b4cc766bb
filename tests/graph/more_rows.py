"""Small models of operators that write, index, sum and rearrange in less common ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.operator_table import Made, Row
from tests.growth_contract import Net, parameter, randn, tokens

MORE: list[Row] = []
IMAGE = (2, 3, 4, 4)


def row(
    grows: Mapping[str, int] | None = None, *reasons: str, norms: str = "batch", **options: Any
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        MORE.append(Row(make.__name__, make, grows or {}, reasons, options, True, norms))
        return make

    return register


def layers(function: Callable[..., Any], width: int = 8, **parts: Any) -> Made:
    """Two linear layers around a function of the model, the hidden activation and what else comes in."""
    return Net(
        lambda self, x: self.c(function(self, self.a(x) * 1.0)),
        **({"a": nn.Linear(4, width), "c": nn.Linear(width, 3)} | parts),
    ), randn(5, 4)


# Writes.


@row({"a": 7, "b": 5})
def two_parts_written_into_zeros() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x)
        h = x.new_zeros(x.shape[0], a.shape[1] + b.shape[1])
        h[:, : a.shape[1]] = a
        h[:, a.shape[1] :] = b
        return self.c(h.relu())

    return Net(forward, a=nn.Linear(4, 7), b=nn.Linear(4, 5), c=nn.Linear(12, 3)), randn(5, 4)


@row({"a": 7})
def view_written_base_read() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h.view(h.shape[0], -1).add_(1.0)
        return h

    return layers(f, 7)


@row({"a": 7})
def base_written_views_read() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        whole, turned = h[:, : h.shape[1]], h.t()
        h.relu_()
        return whole + turned.t()

    return layers(f, 7)


@row({"a": 4})
def halves_swapped_in_place() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        n = h.shape[1] // 2
        first = h[:, :n].clone()
        h[:, :n] = h[:, n:]
        h[:, n:] = first
        return h

    return layers(f)


@row({"a": 8})
def rows_written_one_by_one() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = torch.empty(x.shape[0], self.a.out_features, dtype=x.dtype)
        for i in range(x.shape[0]):
            h[i] = self.a(x[i])
        return self.c(h)

    return Net(forward, a=nn.Linear(4, 8), c=nn.Linear(8, 3)), randn(5, 4)


@row({"a": 8})
def whole_overwritten_by_another_layer() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h[:] = self.b(h * 2)
        return h

    return layers(f, b=nn.Linear(8, 8))


@row({"a": 8})
def masked_writes() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h[h < 0] = 0.5
        h.masked_fill_(h > 1, 1.0)
        h[torch.tensor([True, False, False, True, False])] = 0.0
        return h

    return layers(f)


@row({"a": 8})
def result_written_to_an_output_argument() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out = torch.empty_like(h)
            torch.mul(h, 2, out=out)
        return h + out

    return layers(f)


@row({"a": 8})
def dropout_that_does_nothing_shares_memory() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        shared = F.dropout(h, 0.5, False)
        shared += 1
        return h

    return layers(f)


@row({"a": 8})
def relu_in_place_and_its_input_again() -> Made:
    return layers(lambda self, h: F.relu(h, inplace=True) + h)


@row({"a": 4}, "picks one entry of it")
def views_of_views_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        pairs = h.view(h.shape[0], -1, 2)
        pairs[:, :, 0].mul_(3.0)
        turned = pairs.permute(2, 0, 1)
        turned[1].add_(turned[0])
        return h

    return layers(f)


@row({"a": 8})
def shapes_changed_in_place() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        g = h.unsqueeze(1)
        g.squeeze_(1)
        h.t_().t_()
        g.add_(1)
        return h

    return layers(f)


@row({"a": 8})
def detached_memory_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h.detach().add_(1.0)
        with torch.no_grad():
            for line in h.unbind(0):
                line.mul_(2)
        return h

    return layers(f)


@row({"a": 8})
def memory_of_steps_filled() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        memory = torch.zeros(x.shape[0], 6, self.a.out_features, dtype=x.dtype)
        for t in range(3):
            memory[:, t : t + 1] = self.a(x[:, t : t + 1])
        return self.c(memory[:, :3].cumsum(1))

    return Net(forward, a=nn.Linear(4, 8), c=nn.Linear(8, 3)), randn(2, 3, 4)


@row({"d": 6}, "several values through a mask")
def entries_of_a_width_written_through_a_mask() -> Made:
    chosen = torch.arange(8) % 2 == 0

    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h[:, chosen] = 0
        return self.d(h).relu()

    return layers(f, d=nn.Linear(8, 6), c=nn.Linear(6, 3))


@row({"a": 8})
def real_part_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        z = torch.complex(h, h.relu())
        z.real.add_(1.0)
        return z.abs()

    return layers(f)


@row({"a": 8})
def number_expanded_to_a_width() -> Made:
    return layers(lambda self, h: h * self.g.expand(h.shape[1]), g=parameter(1))


@row({"a": 8})
def transposed_memory_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        turned = torch.zeros(h.shape[1], h.shape[0], dtype=h.dtype)
        turned.t().copy_(h)
        return turned.t()

    return layers(f)


@row(None, "aten.diagonal")
def diagonal_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        h.diagonal().fill_(1.0)
        return h

    return layers(f)


@row(None, "aten._foreach_mul_")
def list_of_tensors_written() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        g = h * 1
        torch._foreach_mul_([h, g], 2.0)
        return h + g

    return layers(f)


@row(None, "buffer 'k' spans it")
def buffer_written() -> Made:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.c = nn.Linear(4, 8), nn.Linear(8, 3)
            self.register_buffer("k", torch.zeros(5, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.k[: x.shape[0]] = self.a(x).detach()
            return self.c(self.k.relu() + self.a(x))

    return Cached(), randn(5, 4)


# Message passing.

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 3, 3]])


def graph(function: Callable[..., Any], **parts: Any) -> Made:
    return Net(
        lambda self, x, edges: self.c(function(self, self.a(x), *edges)),
        **({"a": nn.Linear(4, 8), "c": nn.Linear(8, 3)} | parts),
    ), (randn(5, 4), EDGES)


@row({"a": 8})
def index_add_of_messages() -> Made:
    return graph(lambda self, h, i, j: torch.zeros_like(h).index_add_(0, j, h[i]).relu())


@row({"a": 8, "m": 6})
def scatter_add_of_messages() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        m = self.m(torch.cat([h[i], h[j]], -1)).relu()
        to = j.unsqueeze(-1).expand(-1, m.shape[1])
        return m.new_zeros(h.shape[0], m.shape[1]).scatter_add(0, to, m)

    return graph(f, m=nn.Linear(16, 6), c=nn.Linear(6, 3))


@row({"a": 8})
def scatter_reduce_of_messages() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        m = h.index_select(0, i)
        most = torch.zeros_like(h).scatter_reduce_(0, j.view(-1, 1).expand_as(m), m, "amax")
        to = j[:, None].repeat(1, m.shape[1])
        return most + torch.zeros_like(h).scatter_reduce(0, to, m, "mean", include_self=False)

    return graph(f)


@row({"a": 8})
def index_put_of_messages() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(h).index_put((j,), h[i].relu(), accumulate=True)
        out[j[:3]] += 1
        return out.index_copy(0, i[:5], h)

    return graph(f)


@row({"a": 8})
def attention_over_edges() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        weight = self.q(torch.cat([h[i], h[j]], -1)).exp()
        total = torch.zeros(h.shape[0], 1, dtype=h.dtype).index_add_(0, j, weight)
        return torch.zeros_like(h).index_add(0, j, weight / total[j] * h[i])

    return graph(f, q=nn.Linear(16, 1))


@row({"a": 8})
def gather_along_nodes() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        picked = torch.gather(h, 0, i[:, None].expand(-1, h.shape[1]))
        return picked.relu() + torch.take_along_dim(h, j[:, None], 0)

    return graph(f)


@row(None, "aten.gather' in '(model)' picks entries of it by number")
def gather_by_sorted_positions() -> Made:
    return graph(lambda self, h, i, j: h + torch.gather(h, 0, h.argsort(0)))


@row(None, "aten.scatter_add' in '(model)' writes entries of it by number")
def scatter_over_the_width() -> Made:
    def f(self: Any, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return h.scatter_add(1, i[:5, None].expand(-1, 2), h[:, :2])

    return graph(f)


@row({"a": 8})
def segments_reduced() -> Made:
    lengths = torch.tensor([2, 3])
    return graph(lambda self, h, i, j: torch.segment_reduce(h, "max", lengths=lengths))


# Sums of products.


def summed(equation: str, *weights: nn.Parameter, out: int = 3) -> Made:
    names = {f"w{k}": weight for k, weight in enumerate(weights)}
    return Net(
        lambda self, x: self.c(
            torch.einsum(equation, self.a(x), *(getattr(self, n) for n in names)).relu()
        ),
        a=nn.Linear(4, 7),
        c=nn.Linear(out, 2),
        **names,
    ), randn(2, 5, 4)


@row({"a": 7, "w0": 5})
def einsum_implicit() -> Made:
    return summed("abi,io", parameter(7, 5), out=5)


@row({"a": 7, "w0": 5})
def einsum_spaces_and_dots() -> Made:
    return summed(" ... i , o i -> ... o ", parameter(5, 7), out=5)


@row({"a": 7, "w0": 5, "w1": 6})
def einsum_three_operands() -> Made:
    return summed("...i,io,op->...p", parameter(7, 5), parameter(5, 6), out=6)


@row({"a": 7, "w1": 5})
def einsum_letter_in_three_operands() -> Made:
    return summed("bti,i,io->bto", parameter(7), parameter(7, 5), out=5)


@row({"a": 7, "w0": 5})
def einsum_sums_over_dots() -> Made:
    return summed("...i,io->o", parameter(7, 5), out=5)


@row({"w0": 5}, "takes a diagonal of it")
def einsum_diagonal() -> Made:
    return summed("btd,io,jj->bto", parameter(7, 5), parameter(4, 4), out=5)


@row({"a": 8})
def einsum_of_one_tensor_with_itself() -> Made:
    return layers(lambda self, h: torch.einsum("bd,bd->bd", h, h))


@row(None, "contracts this width with itself")
def einsum_contracts_one_tensor_with_itself() -> Made:
    return layers(lambda self, h: h * torch.einsum("bd,bd->b", h, h)[:, None])


@row({"a": 7, "w": 5})
def einsum_sublists() -> Made:
    return layers(
        lambda self, h: torch.einsum(h, [0, 1], self.w, [1, 2], [0, 2]),
        7,
        w=parameter(7, 5),
        c=nn.Linear(5, 3),
    )


@row({"q": 3, "q/2": 6, "v": 5})
def attention_in_einsums() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (torch.einsum("btd,dhe->bhte", x, w) for w in (self.q, self.k, self.v))
        p = torch.einsum("...te,...se->...ts", q, k).softmax(-1)
        return torch.einsum("bhts,bhse,heo->bto", p, v, self.o)

    return Net(
        forward,
        q=parameter(4, 3, 6),
        k=parameter(4, 3, 6, seed=1),
        v=parameter(4, 3, 5, seed=2),
        o=parameter(3, 5, 2),
    ), randn(2, 5, 4)


@row({"a": 7, "b": 5, "c": 6})
def bilinear_layer_between() -> Made:
    return Net(
        lambda self, x: self.o(self.c(self.a(x), self.b(x)).relu()),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        c=nn.Bilinear(7, 5, 6),
        o=nn.Linear(6, 2),
    ), randn(5, 4)


@row({"a": 8, "b": 6})
def bilinear_of_one_input() -> Made:
    return layers(
        lambda self, h: self.b(h.relu(), h.relu()), b=nn.Bilinear(8, 8, 6), c=nn.Linear(6, 3)
    )


@row({"a": 7, "b": 5, "w": 6})
def tucker_form() -> Made:
    return Net(
        lambda self, x: torch.einsum("bi,bj,ijk,ko->bo", self.a(x), self.b(x), self.w, self.v),
        a=nn.Linear(4, 7),
        b=nn.Linear(4, 5),
        w=parameter(7, 5, 6),
        v=parameter(6, 2),
    ), randn(5, 4)


@row({"a": 8, "w": 5})
def tensordot() -> Made:
    return layers(
        lambda self, h: torch.tensordot(h, self.w, dims=([1], [0])),
        w=parameter(8, 5),
        c=nn.Linear(5, 3),
    )


@row({"a": 8, "b": 7})
def outer_product_of_vectors() -> Made:
    return layers(
        lambda self, h: h @ torch.outer(self.u, self.b),
        u=parameter(8),
        b=parameter(7),
        c=nn.Linear(7, 3),
    )


@row({"a": 7, "b": 6}, "sums over it")
def addbmm() -> Made:
    return Net(
        lambda self, x: self.c(torch.addbmm(self.b, self.a(x), self.w).relu()),
        a=nn.Linear(4, 7),
        w=parameter(2, 7, 6),
        b=parameter(5, 6),
        c=nn.Linear(6, 3),
    ), randn(2, 5, 4)


@row(None, "aten.kron")
def kronecker_weight() -> Made:
    return Net(
        lambda self, x: self.c(F.linear(x, torch.kron(self.u, self.v))),
        u=parameter(4, 2),
        v=parameter(2, 2),
        c=nn.Linear(8, 3),
    ), randn(5, 4)


# Bags of embeddings.


def bag(*more: Any, call: Callable[..., Any] = lambda e, *x: e(*x), **options: Any) -> Made:
    return Net(
        lambda self, *x: self.c(call(self.e, *x).relu()),
        e=nn.EmbeddingBag(10, 7, **options),
        c=nn.Linear(7, 3),
    ), more or tokens(4, 5)


@row({"e": 7}, "looks its rows up by number")
def bag_of_means() -> Made:
    return bag()


@row({"e": 7})
def bag_of_sums_with_padding() -> Made:
    return bag(mode="sum", padding_idx=2)


@row({"e": 7})
def bag_of_maxima() -> Made:
    return bag(mode="max")


@row({"e": 7})
def bag_with_offsets() -> Made:
    return bag(tokens(9), torch.tensor([0, 3, 5]))


@row({"e": 7})
def bag_with_weights() -> Made:
    return bag(
        tokens(4, 5),
        randn(4, 5),
        mode="sum",
        call=lambda e, i, w: e(i, per_sample_weights=w),
    )


@row(None, "aten.embedding_renorm_")
def bag_with_a_largest_norm() -> Made:
    return bag(max_norm=1.0)


# Windows and factors.


@row({"a": 6})
def unfold_and_fold() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        windows = F.unfold(self.a(x), 2, stride=2).relu()
        return self.c(F.fold(windows, (4, 4), 2, stride=2))

    return Net(forward, a=nn.Conv2d(3, 6, 1), c=nn.Conv2d(6, 3, 1)), randn(*IMAGE)


@row({"c": 6}, "cuts windows out of it")
def windows_of_a_width() -> Made:
    return Net(
        lambda self, x: self.d(self.c(self.a(x).unfold(1, 3, 1).amax(-1))),
        a=nn.Linear(4, 7),
        c=nn.Linear(5, 6),
        d=nn.Linear(6, 2),
    ), randn(6, 4)


@row({"a": 6})
def grid_sample() -> Made:
    return Net(
        lambda self, x, g: self.c(F.grid_sample(self.a(x), g, align_corners=False)),
        a=nn.Conv2d(3, 6, 1),
        c=nn.Conv2d(6, 3, 1),
    ), (randn(*IMAGE), torch.tanh(randn(2, 3, 3, 2)))


@row({"a": 8})
def many_elementwise_operators() -> Made:
    def f(self: Any, h: torch.Tensor) -> torch.Tensor:
        g = torch.lerp(torch.where(h > 0, h, 0.1), h, 0.3)
        g = torch.clamp(g, h.detach() - 1, h.detach() + 1)
        g = torch.roll(torch.nan_to_num(g), 1, 0)
        g = torch.logaddexp(torch.fmin(g, h + 1), h)
        return torch.hypot(torch.addcmul(g, h, h, value=0.5), h)

    return layers(f)


@row({"0": 48}, "cuts across its structure", norms="other")
def two_group_norms_of_other_sizes() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 48, 1),
        nn.GroupNorm(8, 48),
        nn.ReLU(),
        nn.GroupNorm(12, 48),
        nn.Conv2d(48, 3, 1),
    ), randn(*IMAGE)


@row({"0/3": 12, "4": 6}, "cuts across its structure")
def two_grouped_convolutions_of_other_numbers() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 48, 1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 1, groups=4),
        nn.ReLU(),
        nn.Conv2d(48, 36, 1, groups=6),
        nn.ReLU(),
        nn.Conv2d(36, 3, 1),
    ), randn(*IMAGE)


@row({"0": 4, "2/2": 4, "5": 4}, "shuffles this fixed number of groups")
def shuffle_between_grouped_convolutions() -> Made:
    return nn.Sequential(
        nn.Conv2d(3, 12, 1),
        nn.ReLU(),
        nn.Conv2d(12, 36, 1, groups=3),
        nn.ChannelShuffle(3),
        nn.ReLU(),
        nn.Conv2d(36, 12, 1, groups=3),
        nn.ReLU(),
        nn.Conv2d(12, 3, 1),
    ), randn(*IMAGE)


@row({"a/2": 6, "b": 10}, "does not follow another width")
def shuffle_of_more_groups_than_channels_in_each() -> Made:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        b, c, height, width = h.shape
        h = h.view(b, 8, c // 8, height, width).transpose(1, 2).reshape(b, c, height, width)
        return self.c(self.b(h).relu())

    return Net(
        forward, a=nn.Conv2d(3, 48, 1), b=nn.Conv2d(48, 10, 1), c=nn.Conv2d(10, 3, 1)
    ), randn(*IMAGE)


# Transformers as torch writes them.

PADDING = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()


def encoder(
    call: Callable[..., Any], *more: Any, norm: nn.Module | None = None, **options: Any
) -> Made:
    layer = nn.TransformerEncoderLayer(12, 2, 20, 0.0, **({"batch_first": True} | options))
    return Net(
        lambda self, x, *rest: self.o(call(self.e, self.i(x), *rest)),
        i=nn.Linear(4, 12),
        e=nn.TransformerEncoder(layer, 2, norm, not layer.norm_first),
        o=nn.Linear(12, 3),
    ), (randn(2, 5, 4), *more)


ENCODER = {"i": 12, **{f"e.layers.{k}.{n}": w for k in (0, 1)
                       for n, w in (("self_attn.in_proj_weight/2", 6), ("linear1", 20))}}  # fmt: skip


@row(ENCODER, norms="other")
def encoder_with_a_padding_mask() -> Made:
    return encoder(lambda e, x, m: e(x, src_key_padding_mask=m), PADDING)


@row(ENCODER, norms="other")
def encoder_with_a_padding_mask_and_gelu() -> Made:
    return encoder(
        lambda e, x, m: e(x, src_key_padding_mask=m),
        PADDING,
        norm=nn.LayerNorm(12),
        activation="gelu",
    )


@row(ENCODER, norms="other")
def encoder_with_a_mask_of_unknown_kind() -> Made:
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    return encoder(lambda e, x, m: e(x, mask=mask, src_key_padding_mask=m), PADDING)


@row(ENCODER, norms="other")
def encoder_with_a_causal_mask() -> Made:
    def call(e: nn.Module, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return e(x, mask=mask, is_causal=True)

    return encoder(call)


@row(ENCODER, norms="other")
def encoder_norm_first_with_a_padding_mask() -> Made:
    return encoder(lambda e, x, m: e(x, src_key_padding_mask=m), PADDING, norm_first=True)
