"""The operators of `more_rows`: what grows, what is refused and why, and that growing changes nothing."""

import functools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.graph.rules import register_rule
from growthring.graph.rules.registry import RULES
from growthring.graph.trace import trace
from tests.graph.more_rows import MORE, encoder
from tests.growth_contract import (
    Net,
    cast,
    check_contract,
    in_dtype,
    make_plan,
    perturb,
    randn,
    widths,
)

BY_NAME = {row.name: row for row in MORE}
GROWING = [name for name in BY_NAME if BY_NAME[name].grows]


@functools.cache
def planned(name: str) -> gr.Plan | gr.GrowthError:
    row = BY_NAME[name]
    torch.manual_seed(0)
    model, inputs = row.make()
    try:
        return make_plan(model, inputs, stages=3, **row.options)
    except gr.GrowthError as error:
        return error


@pytest.mark.each(64)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_row_of_the_table(name: str) -> None:
    """The expected widths grow, the rest says why, and growing is exact: on one plan."""
    row, found = BY_NAME[name], planned(name)
    text = str(found) if isinstance(found, gr.GrowthError) else found.groups.explain()
    grown = {} if isinstance(found, gr.GrowthError) else widths(found)
    assert grown == dict(row.grows), text
    for reason in row.reasons:
        assert reason in text
    if isinstance(found, gr.Plan):
        check_contract(found, "off", 1e-12)
        exact = row.norms == "batch"
        limit = 1e-12 if exact else 1e-3
        check_contract(found, "preserving", limit, training=False, gradients=exact)


@pytest.mark.slow  # the same rules as in float64, with room for rounding
@pytest.mark.parametrize("name", GROWING)
def test_growing_is_exact_in_float32(name: str) -> None:
    plan = planned(name)
    assert isinstance(plan, gr.Plan)
    check_contract(in_dtype(plan, torch.float32), "off", 1e-5)


# What a rule does not know.


@pytest.mark.parametrize(
    "mistake",
    [
        KeyError("dim"),
        IndexError("list index"),
        AttributeError("shape"),
        AssertionError(),
        TypeError("x"),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.each(2)
def test_a_failing_rule_freezes_what_it_touches(mistake: Exception, monkeypatch) -> None:
    @register_rule("test.broken")
    def broken(walk, op):
        x = walk.info(op.args[0])
        walk.attribute("nonsense", x.axes[1])
        walk.statistics.append(None)
        walk.same(x.axes[0], x.axes[0])
        walk.carry(x)
        raise mistake

    monkeypatch.setitem(RULES, "aten.sinh", broken)
    monkeypatch.delitem(RULES, "test.broken")
    model = Net(
        lambda self, x: self.c(self.b(self.a(x).sinh()).relu()),
        a=nn.Linear(4, 8),
        b=nn.Linear(8, 6),
        c=nn.Linear(6, 3),
    )
    plan = make_plan(model, randn(5, 4), stages=3)
    assert widths(plan) == {"b": 6}
    reason = plan.groups["a"].frozen.text
    assert "has an argument form that its rule does not know" in reason
    assert "aten.sinh" in reason and type(mistake).__name__ in reason
    check_contract(plan, "preserving", 1e-12)


def test_a_rule_whose_axes_do_not_fit_freezes_what_it_touches(monkeypatch) -> None:
    def wrong(walk, op):
        x = walk.info(op.args[0])
        walk.set(op.outputs[0], x.axes[::-1], x.scale)

    monkeypatch.setitem(RULES, "aten.sinh", wrong)
    model = Net(
        lambda self, x: self.c(self.b(self.a(x).sinh()).relu()),
        a=nn.Linear(4, 8),
        b=nn.Linear(8, 6),
        c=nn.Linear(6, 3),
    )
    plan = make_plan(model, randn(5, 4), stages=3)
    assert widths(plan) == {"b": 6}
    assert "does not know" in plan.groups["a"].frozen.text


def test_a_failing_rule_leaves_a_parameter_that_it_touched_frozen(monkeypatch) -> None:
    kept = RULES["aten.linear"]

    def broken(walk, op):
        kept(walk, op)
        if op.module == "b":
            raise ValueError("half way")

    monkeypatch.setitem(RULES, "aten.linear", broken)
    model = nn.Sequential()
    for name, layer in (
        ("a", nn.Linear(4, 8)),
        ("n", nn.ReLU()),
        ("b", nn.Linear(8, 6)),
        ("m", nn.ReLU()),
        ("c", nn.Linear(6, 5)),
        ("d", nn.Linear(5, 3)),
    ):
        model.add_module(name, layer)
    plan = make_plan(model, randn(5, 4), stages=3)
    assert widths(plan) == {"c": 5}
    check_contract(plan, "preserving", 1e-12)


# Aliases.


def names(model: nn.Module, x: torch.Tensor) -> list[str]:
    return [op.name for op in trace(model, x).ops]


def test_operators_without_writes_are_left_alone() -> None:
    model = Net(lambda self, x: self.a(x).view(-1).relu(), a=nn.Linear(4, 8))
    assert names(model, torch.zeros(2, 4)) == [
        "aten.linear.default",
        "aten.view.default",
        "aten.relu.default",
    ]


def test_what_is_written_into_nothing_that_lasts_is_dropped() -> None:
    def forward(self, x):
        torch.zeros(3).add_(1)
        return self.a(x)

    assert names(Net(forward, a=nn.Linear(4, 8)), torch.zeros(2, 4)) == ["aten.linear.default"]


def test_a_write_into_a_buffer_is_kept() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 8)
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            self.seen.add_(h.detach().mean(0))
            return h

    assert "aten.add_.Tensor" in names(Counting(), torch.zeros(2, 4))


def test_views_are_made_anew_after_a_write() -> None:
    def forward(self, x):
        h = self.a(x) * 1
        left, right = h[:, :4], h[:, 4:]
        left.zero_()
        return right + left

    found = names(Net(forward, a=nn.Linear(4, 8)), torch.zeros(2, 4))
    assert found.count("growthring.write") == 1
    assert found.count("aten.slice.Tensor") == 2


# The fused encoder of torch, in every state of a growth.


@pytest.mark.parametrize(
    ("fast", "training"),
    [
        (True, False),
        (False, True),
        *(pytest.param(b, b, marks=pytest.mark.slow) for b in (True, False)),
    ],
)
@pytest.mark.each(2)
def test_encoder_grows_with_and_without_the_fast_path(fast: bool, training: bool) -> None:
    torch.manual_seed(0)
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
    model, inputs = encoder(lambda e, x, m: e(x, src_key_padding_mask=m), padding)
    plan = make_plan(model, cast(inputs, torch.float64), stages=3)
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, variance_transfer="off", noise=0.0)
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        for _ in range(2):
            model.train(training)
            with torch.no_grad():
                before = model(*plan.example_inputs)
                report = grower.grow()
                after = model(*plan.example_inputs)
            assert report.change.relative < 1e-12
            assert float((before - after).abs().max()) < 1e-12
            for progress in (0.5, 1.0):
                grower.advance(progress)
                model.eval()
                with torch.no_grad():  # nested tensors
                    quick = model(*plan.example_inputs)
                slow = model(*plan.example_inputs).detach()
                real = ~padding
                assert float((quick - slow)[real].abs().max()) < 1e-12
    finally:
        torch.backends.mha.set_fastpath_enabled(was)
