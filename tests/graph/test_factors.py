"""Factors in a model's code that follow a width: found whatever they are written as, tied to the right width."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring.core.axes import Ref, refs
from growthring.graph.groups import Law
from growthring.graph.laws import settle
from growthring.graph.numbers import fold
from growthring.graph.trace import trace
from tests.growth_contract import Net, check_contract, make_plan, randn, tokens


class Attention(nn.Module):
    """Attention with its scale written in some way: `weigh(self, q, k, v)`."""

    def __init__(self, weigh, heads: int = 2, size: int = 8, **more: object) -> None:
        super().__init__()
        self.heads, self._weigh = heads, weigh
        self.stem = nn.Linear(4, 12)
        self.q, self.k, self.v = (nn.Linear(12, heads * size) for _ in range(3))
        self.o = nn.Linear(heads * size, 3)
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x):
        h = self.stem(x)
        q, k, v = (
            f(h).view(*h.shape[:2], self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        return self.o(self._weigh(self, q, k, v).transpose(1, 2).flatten(2))


def softly(logits, v):
    return logits.softmax(-1) @ v


def tensor_of(number, like):
    return torch.tensor(float(number), dtype=like.dtype)


FOLLOWING = {
    "attention's own": lambda s, q, k, v: F.scaled_dot_product_attention(q, k, v),
    "scale=": lambda s, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5),
    "scale= 1/d": lambda s, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / q.shape[-1]),
    "/ math.sqrt(q.size(-1))": lambda s, q, k, v: softly(q @ k.mT / math.sqrt(q.size(-1)), v),
    "* d ** -0.5": lambda s, q, k, v: softly(q @ k.mT * q.shape[-1] ** -0.5, v),
    "* d ** -1": lambda s, q, k, v: softly(q @ k.mT / q.shape[-1], v),
    "* d ** -2": lambda s, q, k, v: softly(q @ k.mT / q.shape[-1] ** 2, v),
    "* d ** 0.25": lambda s, q, k, v: softly(q @ k.mT * q.shape[-1] ** 0.25, v),
    "both by d ** -0.25": lambda s, q, k, v: softly(
        (q * q.shape[-1] ** -0.25) @ (k * k.shape[-1] ** -0.25).mT, v
    ),
    "torch.tensor": lambda s, q, k, v: softly(q @ k.mT / tensor_of(q.shape[-1] ** 0.5, q), v),
    "torch.sqrt(torch.tensor)": lambda s, q, k, v: softly(
        q @ k.mT / torch.sqrt(tensor_of(q.shape[-1], q)), v
    ),
    "torch.rsqrt from the left": lambda s, q, k, v: softly(
        torch.rsqrt(tensor_of(q.shape[-1], q)) * (q @ k.mT), v
    ),
    "torch.full": lambda s, q, k, v: softly(
        q @ k.mT / torch.full([], q.shape[-1] ** 0.5, dtype=q.dtype), v
    ),
    "torch.full of one entry": lambda s, q, k, v: softly(
        q @ k.mT / torch.full((1, 1), q.shape[-1], dtype=q.dtype).sqrt(), v
    ),
    "an attribute": lambda s, q, k, v: softly(q @ k.mT / math.sqrt(s.size), v),
}  # fmt: skip


@pytest.mark.each(10)
@pytest.mark.parametrize("name", FOLLOWING)
def test_factors_of_the_head_size_grow(name):
    torch.manual_seed(0)
    model = Attention(FOLLOWING[name], **({"size": 8} if "attribute" in name else {}))
    if "attribute" in name:
        model.size = 8
    plan = make_plan(model, randn(2, 5, 4), stages=3)
    assert {g.width for g in plan.groups.growable} == {12, 8}, plan.groups.explain()
    assert plan.groups.laws
    check_contract(plan)


STORED = {
    "a float": {"scale": 8**-0.5},
    "a buffer": {},
    "eps times d": {"scale": 1e-3 * 8},
    "a whole number": {"scale": 8},
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.each(6)
def test_a_stored_factor_is_a_constant(name):
    """The full model was built with it, and it is the same at every stage: exact, and nothing claims otherwise."""
    torch.manual_seed(0)
    model = Attention(lambda s, q, k, v: softly(q @ k.mT * s.scale, v), **STORED[name])
    if name == "a buffer":
        model.register_buffer("scale", torch.tensor(8**-0.5, dtype=torch.float64))
    plan = make_plan(model, randn(2, 5, 4), stages=3)
    assert {g.width for g in plan.groups.growable} == {12, 8}, plan.groups.explain()
    assert not plan.groups.laws and ("", "scale") not in plan.groups.attributes
    check_contract(plan)
    assert plan.build_seed().scale == model.scale


def two_widths(forward) -> nn.Module:
    torch.manual_seed(0)
    return Net(forward, a=nn.Linear(4, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 3))


FAN_IN = {
    "after": lambda self, x: self.c(self.b(h := self.a(x).relu()).relu() / math.sqrt(h.shape[-1])),
    "of the later width": lambda self, x: self.c(
        (g := self.b(self.a(x).relu()).relu()) / math.sqrt(g.shape[-1])
    ),
    "of the earlier width, early": lambda self, x: self.c(
        self.b((h := self.a(x).relu()) / math.sqrt(h.shape[-1])).relu()
    ),
    "of the product of both": lambda self, x: self.c(
        self.b(h := self.a(x).relu()).relu() / math.sqrt(h.shape[-1]) / self.c.weight.shape[1]
    ),
}


@pytest.mark.parametrize("name", FAN_IN)
@pytest.mark.each(2)
def test_of_two_equal_widths_the_right_one_is_followed(name):
    plan = make_plan(
        two_widths(FAN_IN[name]), randn(5, 4), stages=3, widths={"a": [2, 4, 8], "b": [4, 7, 8]}
    )
    assert {g.name for g in plan.groups.growable} == {"a", "b"}
    check_contract(plan)
    followed = {r.group for law in plan.groups.laws.values() for r in refs(law.axis)}
    wanted = {"of the later width": ["b"], "of the product of both": ["a", "b"]}.get(name, ["a"])
    assert followed == {plan.groups[group].key for group in wanted}


def test_a_factor_on_a_weight_freezes_its_width_only():
    def forward(self, x):
        h = self.a(x).relu()
        return self.c(F.linear(h, self.b.weight / math.sqrt(h.shape[-1])).relu())

    plan = make_plan(two_widths(forward), randn(5, 4), stages=3)
    assert [g.name for g in plan.groups.growable] == ["b"]
    check_contract(plan)


def test_many_widths_of_one_size_are_told_apart():
    """More widths than there are fractions to try: a second set of widths parts those that shared one."""
    torch.manual_seed(0)

    def forward(self, x):
        widths = []
        for layer in self.layers:
            x = layer(x).relu()
            widths.append(x.shape[-1])
        return self.out(x / math.sqrt(widths[0]))

    layers = nn.ModuleList([nn.Linear(4, 16), *(nn.Linear(16, 16) for _ in range(5))])
    model = Net(forward, layers=layers, out=nn.Linear(16, 3))
    plan = make_plan(model, randn(5, 4), stages=3)
    assert len(plan.groups.growable) == 6
    (law,) = plan.groups.laws.values()
    assert law.axis == Ref(plan.groups["layers.0"].key)
    check_contract(plan)


def test_a_factor_that_follows_no_width_nearby_freezes_with_the_reason():
    model = two_widths(
        lambda self, x: self.c(self.b(self.a(x).relu()).relu() / (7 + self.a.weight.shape[0]))
    )
    plan = make_plan(model, randn(5, 4), stages=3)
    assert {g.name for g in plan.groups.growable} == {"b"}
    assert "changes with a width in an unknown way" in plan.groups["a"].frozen.text


def test_a_root_of_an_attribute_follows_and_a_plain_one_stays():
    """√d is how code speaks of a width; a number by itself may be a temperature."""
    torch.manual_seed(0)

    def forward(self, x):
        return self.head(self.m(self.e(x) * math.sqrt(self.width)).relu()) / self.temperature

    model = Net(
        forward,
        width=12,
        temperature=12,
        e=nn.Embedding(10, 12),
        m=nn.Linear(12, 12),
        head=nn.Linear(12, 5),
    )
    plan = make_plan(model, tokens(2, 4), stages=3)
    seed = plan.build_seed()
    assert seed.width == seed.e.embedding_dim < 12 and seed.temperature == 12
    assert any("'temperature' holds 12" in note for note in plan.groups.notes)
    check_contract(plan)


def test_a_root_that_cannot_be_made_up_for_stays_a_constant():
    torch.manual_seed(0)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).softmax(-1) + x.sum() / math.sqrt(self.width))

    model = Net(forward, width=8, a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    model._function = lambda self, x: (
        self.b(torch.tanh(self.a(x))) + x.sum() / math.sqrt(self.width)
    )
    plan = make_plan(model, randn(5, 4), stages=3)
    assert plan.groups["a"].grows and plan.build_seed().width == 8
    check_contract(plan)


def test_one_factor_that_cannot_be_made_up_for_does_not_freeze_the_others():
    torch.manual_seed(0)

    def forward(self, x):
        h = self.a(x).tanh()
        y = self.b(h).tanh() + x.sum() / math.sqrt(h.shape[-1])  # nothing to put that into
        g = self.c(y)
        return self.d(g.relu() / math.sqrt(g.shape[-1]))

    model = Net(
        forward, a=nn.Linear(4, 8), b=nn.Linear(8, 6), c=nn.Linear(6, 10), d=nn.Linear(10, 3)
    )
    plan = make_plan(model, randn(5, 4), stages=3)
    assert not plan.groups["a"].grows and plan.groups["a"].frozen.kind == "scale"
    assert plan.groups["c"].grows
    check_contract(plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_lower_precision_are_recognised(dtype):
    """√d in float32 inside a float64 model, and as a float that came through float32."""

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 12), nn.Linear(12, 3)

        def forward(self, x):
            h = self.a(x).relu()
            return self.b(h / torch.sqrt(torch.tensor(float(h.shape[-1]), dtype=torch.float32)))

    torch.manual_seed(0)
    plan = gr.plan(Rounded().to(dtype), randn(5, 4).to(dtype), stages=3, growth=None)
    ((law,),) = [plan.groups.laws.values()]
    assert law.power == -0.5 and law.axis == Ref(plan.groups["a"].key)
    check_contract(plan, tolerance=1e-5)


def test_constants_of_one_entry_are_folded():
    class Made(nn.Module):
        def forward(self, x):
            n = torch.sqrt(torch.tensor(16.0)) * 2 + torch.full((1,), 3.0)
            return x * n

    found = fold(trace(Made(), torch.ones(2)))
    assert 11.0 in [float(t) for t in found.values()]


def test_settle_needs_laws_that_move_together():
    def together(ref: Ref) -> int:
        return {0: 0, 1: 0, 2: 1}.get(ref.group, -1)

    a, b, c = (Law(Ref(g), -0.5) for g in range(3))
    assert settle({7: (a, b)}, together) == {7: a}
    assert settle({7: (a, c)}, together) == [Ref(0), Ref(2)]
    assert settle({7: (a, Law(Ref(1), -1.0))}, together) == [Ref(0), Ref(1)]
