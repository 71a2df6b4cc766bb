"""Higher-order operators: inlined where that is sound, else one operator that freezes what it touches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import growthring as gr
from growthring.graph.trace import trace
from tests.growth_contract import Net, check_contract, make_plan, parameter, randn, widths

Made = tuple[nn.Module, Any]


def net(function: Callable[..., Any], **parts: Any) -> Made:
    """The function, then two linear layers, of which the width between always grows."""
    return Net(
        lambda self, x: self.e(self.c(function(self, x)).relu()),
        **({"a": nn.Linear(4, 8), "c": nn.Linear(8, 6), "e": nn.Linear(6, 3)} | parts),
    ), randn(5, 4)


def branch() -> Made:
    return net(lambda self, x: torch.cond(x.sum() > 0, torch.relu, lambda h: h * 2, (self.a(x),)))


def branch_with_parameters() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda z: self.a(z).relu(), lambda z: self.b(z).sin(), (x,))

    return net(f, b=nn.Linear(4, 8))


def branch_with_a_norm() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda h: self.n(h), torch.sin, (self.a(x),))

    return net(f, n=nn.LayerNorm(8))


def loop() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, self.d(h).relu()

        return while_loop(lambda i, h: i < 3, body, (torch.tensor(0), self.a(x)))[1]

    return net(f, d=nn.Linear(8, 8))


def scanned() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        def step(h: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = (self.d(h) + z).tanh()
            return new, new.clone()

        return scan(step, torch.zeros(8, dtype=x.dtype), self.a(x))[1]

    return net(f, d=nn.Linear(8, 8))


def associative() -> Made:
    return net(
        lambda self, x: associative_scan(lambda a, b: a + b, self.a(x), 0, combine_mode="generic")
    )


def map_over_rows() -> Made:
    return net(lambda self, x: mapped(lambda z: self.a(z).relu(), x))


def vmap_over_rows() -> Made:
    return net(lambda self, x: torch.vmap(lambda z: self.n(self.a(z)).relu())(x), n=nn.LayerNorm(8))


def vmap_over_members() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        def member(w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.linear(F.linear(x, w, b).relu(), v)

        return torch.vmap(member)(self.w, self.b, self.v).mean(0)

    return net(f, w=parameter(3, 7, 4), b=parameter(3, 7), v=parameter(3, 8, 7))


def vmap_with_a_write() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        def member(z: torch.Tensor) -> torch.Tensor:
            h = self.a(z) * 1
            h[:2].mul_(2)
            return h

        return torch.vmap(member)(x)

    return net(f)


def forward_derivative() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        h, t = torch.func.jvp(lambda z: self.a(z).tanh(), (x,), (torch.ones_like(x),))
        return h + t

    return net(f)


def without_gradients() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h = self.a(x)
            h[:, :] = self.n(h)
        return h

    return net(f, n=nn.BatchNorm1d(8))


def without_autocast() -> Made:
    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.a(x).relu()

    return net(f)


def checkpointed() -> Made:
    return net(lambda self, x: checkpoint(lambda z: self.a(z).relu(), x, use_reentrant=False))


GROWS = [
    (branch, {"a": 8, "c": 6}),
    pytest.param(branch_with_parameters, {"a": 8, "c": 6}, marks=pytest.mark.slow),
    (associative, {"a": 8, "c": 6}),
    pytest.param(map_over_rows, {"a": 8, "c": 6}, marks=pytest.mark.slow),
    (vmap_over_rows, {"a": 8, "c": 6}),
    (vmap_over_members, {"w": 7, "v": 8, "c": 6}),
    (without_gradients, {"a": 8, "c": 6}),
    (without_autocast, {"a": 8, "c": 6}),
    (checkpointed, {"a": 8, "c": 6}),
]
FREEZES = [
    (branch_with_a_norm, "in a branch, where a fade does not reach"),
    pytest.param(
        loop,
        "operator 'higher_order.while_loop' in '(model)' has no axis rule",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        scanned,
        "operator 'higher_order.scan' in '(model)' has no axis rule",
        marks=pytest.mark.slow,
    ),
    (forward_derivative, "operator 'higher_order._unpack_dual' in '(model)' has no axis rule"),
]


@pytest.mark.parametrize(
    ("make", "expected"), GROWS, ids=lambda item: getattr(item, "__name__", "")
)
@pytest.mark.each(7)
@pytest.mark.slow
def test_inlined_operators_grow_exactly(make: Callable[[], Made], expected: dict[str, int]) -> None:
    torch.manual_seed(0)
    plan = make_plan(*make(), stages=2)
    assert widths(plan) == expected
    check_contract(plan, "off", 1e-12)


@pytest.mark.parametrize(
    ("make", "reason"), FREEZES, ids=lambda item: getattr(item, "__name__", "")
)
@pytest.mark.each(2)
@pytest.mark.slow
def test_other_operators_freeze_what_they_touch(make: Callable[[], Made], reason: str) -> None:
    torch.manual_seed(0)
    plan = make_plan(*make(), stages=2)
    assert widths(plan) == {"c": 6}
    assert reason in plan.groups["a"].frozen.text
    captured = [g for g in plan.groups if any(m.tensor.startswith("d.") for m in g.members)]
    assert not any(g.grows for g in captured)
    check_contract(plan, "off", 1e-12, training=False, gradients=False)


def test_a_write_inside_vmap_is_refused() -> None:
    with pytest.raises(gr.GrowthError, match="writes into a tensor inside vmap"):
        make_plan(*vmap_with_a_write(), stages=3)


def test_flex_attention_is_refused() -> None:
    """On a CPU it runs without gradients only, and torch.export does not take it elsewhere."""

    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(2, 5, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * 0.5)
        return y.transpose(1, 2).flatten(2)

    model = Net(
        lambda self, x: self.e(self.c(f(self, x)).relu()),
        **{name: nn.Linear(4, 8) for name in "qkv"},
        c=nn.Linear(8, 6),
        e=nn.Linear(6, 3),
    )
    with pytest.raises(gr.GrowthError, match="FlexAttention"):
        make_plan(model, randn(2, 5, 4), stages=3)


def test_numbers_inside_a_sub_graph_are_part_of_the_operator() -> None:
    """A factor that follows a width inside a loop body must not go unnoticed."""
    (op,) = [op for op in trace(*scanned()).ops if op.name.startswith("higher_order.scan")]
    flat = [item for arg in op.args if isinstance(arg, list) for item in arg]
    assert "aten.tanh.default" in flat


@pytest.mark.slow
def test_both_branches_are_walked() -> None:
    """A width that only the branch not taken reduces is frozen as well."""

    def f(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 1e9, lambda h: h * h.cumsum(1), lambda h: h.relu(), (self.a(x),)
        )

    plan = make_plan(*net(f), stages=3)
    assert widths(plan) == {"c": 6}
    assert "aten.cumsum" in plan.groups["a"].frozen.text


def test_a_graph_of_unknown_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise KeyError("new in this version of torch")

    monkeypatch.setattr("growthring.graph.flatten._run", broken)
    with pytest.raises(gr.GrowthError, match=r"a form that is not known.*new in this version"):
        trace(nn.Linear(2, 3), torch.zeros(1, 2))
