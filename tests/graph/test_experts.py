"""Mixtures of experts: the model's width and the experts' own grow, their number stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import growthring as gr
from tests.discovered import discovered_once as discovered_once
from tests.graph.exactness import WAYS, grown_exactly, outputs, trains
from tests.growth_contract import distance, make_plan, parameter, perturb, randn, widths

D, HIDDEN, EXPERTS, TOP = 8, 12, 4, 2


class Mixture(nn.Module):
    """A layer in front, routed experts on a residual stream, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, D), nn.Linear(D, 5)
        self.gate = nn.Linear(D, EXPERTS)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = self.gate(x).softmax(-1).topk(TOP, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        flat = x.reshape(-1, x.shape[-1])
        return self.head((flat + self.mix(flat)).view(x.shape))


class Lists(Mixture):
    """Experts in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, D)) for _ in range(EXPERTS)
        )  # fmt: skip


class Soft(Lists):
    """Every expert works on every token."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        return torch.stack([e(x) * shares[:, i, None] for i, e in enumerate(self.experts)]).sum(0)


class Masked(Lists):
    """Top-k by multiplication with a mask."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True)
        return out


class Stacked(Mixture):
    """All experts in one parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = parameter(EXPERTS, D, HIDDEN), parameter(EXPERTS, HIDDEN, D, seed=12)
        self.bias = parameter(EXPERTS, HIDDEN, seed=13)


class Einsum(Stacked):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("td,edf->tef", x, self.up) + self.bias
        y = torch.einsum("tef,efd->ted", F.silu(hidden), self.down)
        return torch.einsum("ted,te->td", y, self.gate(x).softmax(-1))


class Batched(Stacked):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        every = x.expand(EXPERTS, -1, -1)
        y = torch.bmm(torch.tanh(torch.bmm(every, self.up) + self.bias[:, None]), self.down)
        return (y * self.gate(x).softmax(-1).t()[:, :, None]).sum(0)


class Dispatched(Stacked):
    """One-hot dispatch with a capacity, as in the Switch transformer."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        chosen = F.one_hot(shares.argmax(-1), EXPERTS).to(x.dtype)
        place = ((chosen.cumsum(0) - 1) * chosen).sum(-1).long()
        slots = torch.zeros(x.shape[0], 4, dtype=x.dtype).to(x) + F.one_hot(place.clamp(max=3), 4)
        dispatch = torch.einsum("te,tc->tec", chosen, slots.to(x.dtype))
        inside = torch.einsum("tec,td->ecd", dispatch, x)
        y = torch.einsum(
            "ecf,efd->ecd", torch.einsum("ecd,edf->ecf", inside, self.up).relu(), self.down
        )
        return torch.einsum("tec,ecd->td", dispatch * shares[:, :, None], y)


class Picked(Stacked):
    """The matrices of each token's experts, picked by number."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        ids, tokens = chosen.reshape(-1), x.repeat_interleave(TOP, dim=0)
        hidden = torch.bmm(tokens[:, None], self.up[ids]).squeeze(1) + self.bias[ids]
        y = torch.bmm(F.silu(hidden)[:, None], self.down[ids]).squeeze(1)
        return (y * weights.reshape(-1, 1)).view(-1, TOP, x.shape[-1]).sum(1)


class Looped(Stacked):
    """One matrix after the other."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            y = F.gelu(x @ self.up[e] + self.bias[e]) @ self.down[e]
            out = out + y * (weights * (chosen == e)).sum(-1, keepdim=True)
        return out


EXACT: dict[str, tuple[type[Mixture], dict[str, int]]] = {
    "soft": (Soft, {f"experts.{e}.0": HIDDEN for e in range(EXPERTS)}),
    "masked": (Masked, {f"experts.{e}.0": HIDDEN for e in range(EXPERTS)}),
    "einsum": (Einsum, {"up": HIDDEN}),
    "bmm": (Batched, {"up": HIDDEN}),
    "dispatched": (Dispatched, {"up": HIDDEN}),
    "picked": (Picked, {"up": HIDDEN}),
    "looped": (Looped, {"up": HIDDEN}),
}


@pytest.mark.each(8)
@pytest.mark.parametrize("name", EXACT)
def test_both_widths_grow_and_nothing_changes(name: str) -> None:
    kind, found = EXACT[name]
    torch.manual_seed(0)
    plan = make_plan(kind(), randn(2, 5, 3), stages=3)
    assert widths(plan) == {"first": D, **found}
    fresh = [randn(3, 5, 3, seed=6), randn(1, 2, 3, seed=7)]
    model = grown_exactly(plan, fresh)
    # an expert that no token chose has no gradient
    unused = {"masked": ["experts"], "dispatched": ["bias"]}.get(name, [])
    trains(model, plan.example_inputs, unused=unused)
    trains(plan.build_seed(), plan.example_inputs, unused=unused)
    assert model.gate.out_features == EXPERTS


class Grouped(Stacked):
    """Tokens sorted by expert, one call of torch's grouped product, as in transformers."""

    product: Callable[..., torch.Tensor] = staticmethod(torch._grouped_mm)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        ids, order = chosen.reshape(-1).sort()
        offs = torch.histc(ids.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0).to(torch.int32)
        hidden = self.product(x[order // TOP], self.up, offs=offs)
        y = self.product(F.silu(hidden), self.down, offs=offs) * weights.reshape(-1)[order][:, None]
        return y[order.argsort()].view(-1, TOP, x.shape[-1]).sum(1)


class GroupedTransposed(Grouped):
    product = staticmethod(F.grouped_mm)

    def __init__(self) -> None:
        super().__init__()
        self.up = parameter(EXPERTS, HIDDEN, D)

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        up, product = self.up.transpose(1, 2), self.product
        weights, chosen = self.route(x)
        ids, order = chosen.reshape(-1).sort()
        offs = torch.bincount(ids, minlength=EXPERTS).cumsum(0).to(torch.int32)
        y = product(torch.tanh(product(x[order // TOP], up, offs=offs)), self.down, offs=offs)
        return (
            (y * weights.reshape(-1)[order][:, None])[order.argsort()]
            .view(-1, TOP, x.shape[-1])
            .sum(1)
        )


class GroupedBatch(Grouped):
    """Three axes each: an ordinary batch of products."""

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        every = x.expand(EXPERTS, -1, -1).contiguous()
        y = torch._grouped_mm(torch.tanh(torch._grouped_mm(every, self.up)), self.down)
        return (y * self.gate(x).softmax(-1).t()[:, :, None]).sum(0)


@pytest.mark.parametrize("kind", [Grouped, GroupedTransposed, GroupedBatch])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.each(12)
def test_grouped_products_grow_in_widths_that_their_kernel_takes(
    kind: type[Mixture], way: Any
) -> None:
    torch.manual_seed(0)
    x = randn(2, 5, 3).float()  # the kernel has no double precision, and takes rows of 16 bytes
    plan = gr.plan(kind().float(), x, stages=3, growth=None, round_to=1)
    assert widths(plan) == {"first": D, "up": HIDDEN}
    assert plan.widths("up") == [4, 8, 12]
    assert any("an operator takes no other widths" in note for note in plan.notes)
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, noise=0.0, **way)
    while not grower.is_full:
        before = [outputs(model, x, mode) for mode in (False, True)]
        grower.grow()
        after = [outputs(model, x, mode) for mode in (False, True)]
        for (old,), (new,) in zip(before, after, strict=True):
            assert distance(old, new) < 1e-5
    unused = {"bias"}
    loss = model(x).square().mean()
    loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if n not in unused)


def test_widths_that_the_kernel_does_not_take_are_refused() -> None:
    x = randn(2, 5, 3).float()
    with pytest.raises(gr.GrowthError, match=r"widths\['up'\].*multiples of 4 only"):
        gr.plan(Grouped().float(), x, stages=3, widths={"up": [6, 8, 12]})


def test_tokens_that_are_summed_over_in_groups() -> None:
    """a[m, s] · b[s, n]: one product for each group of s, as in the gradient of the usual one."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 8), nn.Linear(3, 12), nn.Linear(12, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            offs = torch.tensor([4, 8], dtype=torch.int32)
            products = torch._grouped_mm(self.a(x).t(), self.b(x).relu(), offs=offs)
            return self.head(products).sum((0, 1))

    torch.manual_seed(0)
    x = randn(8, 3).float()
    groups = gr.discover_width_groups(Sums(), x)
    assert "b" in [g.name for g in groups.growable]
    plan = gr.plan(Sums(), x, stages=2, growth=None, round_to=1)
    model = plan.build_seed()
    before = outputs(model, x, False)
    gr.Grower(model, plan, noise=0.0).grow()
    assert distance(before[0], outputs(model, x, False)[0]) < 1e-5


# Shapes that depend on the routing.


class Where(Lists):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == e)
            out = out.index_add(0, tokens, expert(x[tokens]) * weights[tokens, place, None])
        return out


class Nonzero(Lists):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tokens = (chosen == e).any(-1).nonzero().squeeze(-1)
            share = (weights * (chosen == e)).sum(-1)[tokens]
            out = out.index_add(0, tokens, expert(x[tokens]) * share[:, None])
        return out


class BooleanMask(Lists):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            mask = (chosen == e).any(-1)
            share = (weights * (chosen == e)).sum(-1)
            out[mask] += expert(x[mask]) * share[mask].unsqueeze(-1)
        return out


@pytest.mark.parametrize(
    "kind", [Where, *(pytest.param(k, marks=pytest.mark.slow) for k in (Nonzero, BooleanMask))]
)
@pytest.mark.slow
def test_tokens_picked_by_value_do_not_stop_growth(kind: type[Mixture]) -> None:
    torch.manual_seed(0)
    plan = make_plan(kind(), randn(2, 5, 3), stages=3)
    inner = {f"experts.{e}.0": HIDDEN for e in range(EXPERTS)}
    assert inner.items() <= widths(plan).items()
    if kind is BooleanMask:
        assert widths(plan) == {"first": D, **inner}
    grown_exactly(plan, [randn(3, 5, 3, seed=6), randn(1, 2, 3, seed=7)])
    assert plan.flops_share < 1


class Branching(Lists):
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        _, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            mask = (chosen == e).any(-1)
            if mask.any():
                out[mask] += expert(x[mask])
        return out


def test_code_that_branches_on_the_routing_is_refused() -> None:
    with pytest.raises(gr.GrowthError, match="branches on the values of tensors"):
        make_plan(Branching(), randn(2, 5, 3), stages=3)


# transformers


def third_party(name: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    settings: dict[str, Any] = {
        "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "use_cache": False,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**settings | options)
    return getattr(transformers, f"{name}ForCausalLM")(config)


MODELS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                 "shared_expert_intermediate_size": 20},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_grow(name: str, implementation: str) -> None:
    torch.manual_seed(0)
    model = third_party(name, **MODELS[name])
    model.set_experts_implementation(implementation)
    inputs = {"input_ids": torch.randint(3, 31, (2, 5))}
    plan = gr.plan(model, inputs, stages=3, outputs=["logits"], growth=None, round_to=2)
    grown = set(widths(plan))
    assert "model.embed_tokens" in grown
    assert {f"model.layers.{i}.mlp.experts.gate_up_proj" for i in (0, 1)} <= grown
    seed = plan.build_seed()
    longer = {"input_ids": torch.randint(3, 31, (1, 9))}
    grower = gr.Grower(seed, plan, noise=0.0, variance_transfer="off")
    while not grower.is_full:
        before = [seed.eval()(**i).logits for i in (inputs, longer)]
        grower.grow()
        after = [seed.eval()(**i).logits for i in (inputs, longer)]
        assert all(distance(a, b) < 1e-5 for a, b in zip(before, after, strict=True))
    seed(**inputs).logits.square().mean().backward()


@pytest.mark.slow
def test_an_eager_loop_over_experts_is_refused() -> None:
    model = third_party("Mixtral", **MODELS["Mixtral"])
    model.set_experts_implementation("eager")
    with pytest.raises(gr.GrowthError, match="branches on the values of tensors"):
        gr.discover_width_groups(model, {"input_ids": torch.randint(3, 31, (2, 5))})
