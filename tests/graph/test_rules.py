"""Every operator of the table: what grows, what is refused and why, and that growing changes nothing."""

import functools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring import zoo
from growthring.graph.rules.registry import RULES
from tests.graph.operator_table import ROWS, Row
from tests.growth_contract import (
    Net,
    check_contract,
    in_dtype,
    make_plan,
    perturb,
    randn,
    widths,
)

BY_NAME = {row.name: row for row in ROWS}
NAMES = list(BY_NAME)
GROWING = [name for name in NAMES if BY_NAME[name].grows]


@functools.cache
def planned(name: str) -> gr.Plan | gr.GrowthError:
    """The plan of a row in float64, made once for all tests of this process, or its refusal."""
    row: Row = BY_NAME[name]
    torch.manual_seed(0)
    model, inputs = row.make()
    try:
        return make_plan(model, inputs, **{"stages": 3, **row.options})
    except gr.GrowthError as error:
        return error


def plan_of(name: str) -> gr.Plan:
    found = planned(name)
    if isinstance(found, gr.GrowthError):
        raise found
    return found


@pytest.mark.each(28)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_the_table(name: str) -> None:
    """The expected widths grow, the rest says why, and growing is exact: on one plan.

    Preserving the variance is, too, up to the ε of norms.
    """
    check_widths(name)
    if name in GROWING:
        plan, exact = plan_of(name), BY_NAME[name].norms == "batch"
        check_contract(plan, "off", 1e-12, training=BY_NAME[name].training)
        limit = 1e-12 if exact else 1e-3
        check_contract(plan, "preserving", limit, training=False, gradients=exact)


def check_widths(name: str) -> None:
    row, found = BY_NAME[name], planned(name)
    if isinstance(found, gr.GrowthError):
        assert not row.grows, f"refused, but these should grow: {row.grows}\n{found}"
        text = str(found)
    else:
        grown = widths(found)
        for group, width in row.grows.items():
            if group.startswith("?"):
                assert width in grown.values(), grown
            else:
                assert grown.get(group) == width, grown
        if not any(group.startswith("?") for group in row.grows):
            assert grown == dict(row.grows)
        text = found.groups.explain()
    for reason in row.reasons:
        assert reason in text


@pytest.mark.slow  # the same rules as in float64, with room for rounding
@pytest.mark.parametrize("name", GROWING)
def test_off_is_exact_in_float32(name: str) -> None:
    plan = in_dtype(plan_of(name), torch.float32)
    check_contract(plan, "off", 1e-5, training=BY_NAME[name].training)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "dense_block", "attention_by_hand", "unet"])
@pytest.mark.each(5)
def test_even_steps(name: str) -> None:
    row = BY_NAME[name]
    model, inputs = row.make()
    plan = make_plan(model, inputs, stages=3, round_to=2, **row.options)
    for group in plan.groups.growable:
        assert all(w % 2 == 0 for w in plan.widths(group.name)[:-1])
    check_contract(plan, "off", 1e-12)


@pytest.mark.parametrize("name", ["mlp", "batch_norm_2d", "nano_gpt", "squeeze_excite"])
@pytest.mark.parametrize("mode", ["preserving", "paper", "constraint", "off"])
@pytest.mark.each(2)
def test_noise_breaks_pairs_and_changes_little(name: str, mode: str) -> None:
    plan = plan_of(name)
    model = plan.build_seed()
    perturb(model)
    report = gr.Grower(model, plan, variance_transfer=mode, noise=1e-3).grow()
    assert report.change_with_noise is not None and report.change is not None
    assert report.change_with_noise.relative <= report.change.relative + 0.05
    weight = next(p for n, p in model.named_parameters() if p.dim() > 1 and p.shape[0] > 3)
    before, after = plan.stage_widths[0], plan.stage_widths[1]
    spec = plan.groups.specs[next(n for n, p in model.named_parameters() if p is weight)]
    from growthring.core.axes import layout

    lay = layout(spec.axes[0], before, after)
    followers = [int(i) for i in lay.new if int(lay.partner[i]) != int(i)]
    for i in followers:
        assert not torch.equal(weight[i], weight[int(lay.partner[i])])


# The paper's own networks in the paper's mode.


def small(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if name == "resnet20":
        return zoo.resnet20(width=8), randn(2, 3, 16, 16)
    if name == "resnet8":
        return zoo.resnet8(width=9), randn(2, 3, 16, 16)
    return zoo.vgg11(width=8), randn(2, 3, 32, 32)


@pytest.mark.parametrize("name", ["resnet20", "resnet8", "vgg11"])
@pytest.mark.each(3)
@pytest.mark.slow
def test_paper_mode_keeps_outputs_up_to_the_factor_it_names(name: str) -> None:
    model, inputs = small(name)
    plan = make_plan(model, inputs, stages=3)
    seed = plan.build_seed()
    perturb(seed)
    grower = gr.Grower(seed, plan, variance_transfer="paper", noise=0.0)
    for _ in range(2):
        seed.eval()
        before = seed(inputs).detach()
        report = grower.grow()
        after = seed(inputs).detach()
        (factor,) = report.output_factors
        assert factor < 1
        assert torch.equal(before.argmax(-1), after.argmax(-1))
        torch.testing.assert_close(after, factor * before, rtol=1e-9, atol=1e-9)
        assert report.change is not None and report.change.scale == pytest.approx(factor, rel=1e-6)
        assert not any("cannot preserve" in note for note in report.notes)


@pytest.mark.parametrize("name", ["residual_without_norm", "activation_GELU(approximate='none')"])
def test_paper_mode_says_where_it_cannot_preserve(name: str) -> None:
    plan = plan_of(name)
    model = plan.build_seed()
    perturb(model)
    report = gr.Grower(model, plan, variance_transfer="paper", noise=0.0).grow()
    factor = report.output_factors[0]
    assert report.change is not None
    kept = abs(report.change.scale - factor) < 1e-9 and report.change.relative_after_scale < 1e-9
    assert kept or any("cannot preserve the function" in note for note in report.notes)


def test_paper_mode_names_the_operator_that_breaks_it() -> None:
    # Two hidden GELU layers: the second one is rescaled in front of a GELU.
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
    plan = make_plan(model, randn(5, 4), stages=2)
    report = gr.Grower(plan.build_seed(), plan, variance_transfer="paper", noise=0.0).grow()
    assert any("aten.gelu" in note and "'3'" in note for note in report.notes)


# Operators nobody wrote a rule for.


@torch.library.custom_op("growthring_tests::double_it", mutates_args=())
def double_it(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


double_it.register_fake(lambda x: torch.empty_like(x))
double_it.register_autograd(lambda ctx, g: 2 * g)


@torch.library.custom_op("growthring_tests::double_too", mutates_args=())
def double_too(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


double_too.register_fake(lambda x: torch.empty_like(x))
double_too.register_autograd(lambda ctx, g: 2 * g)


def doubled(op: object) -> nn.Module:
    return Net(
        lambda self, x: self.c(op(self.b(self.a(x).relu()))),  # type: ignore[operator]
        a=nn.Linear(4, 9), b=nn.Linear(9, 7), c=nn.Linear(7, 3),
    )  # fmt: skip


def test_an_unknown_operator_freezes_what_it_touches() -> None:
    groups = gr.discover_width_groups(doubled(double_it).double(), randn(5, 4))
    assert [g.name for g in groups.growable] == ["a"]
    assert "growthring_tests.double_it" in groups["b"].frozen.text
    assert "(register one with gr.register_rule)" in groups["b"].frozen.text
    assert "growthring_tests.double_it.default" in groups.unknown
    assert "double_it" in groups.explain()


def test_a_registered_rule_makes_it_grow() -> None:
    @gr.register_rule("growthring_tests.double_too")
    def rule(walk: gr.Walk, op: gr.Op) -> None:
        x = walk.info(next(op.inputs()))
        walk.set(op.outputs[0], x.axes, x.scale)

    try:
        plan = make_plan(doubled(double_too), randn(5, 4))
        assert widths(plan) == {"a": 9, "b": 7}
        check_contract(plan, "off", 1e-12)
        check_contract(plan, "preserving", 1e-12, training=False)
    finally:
        del RULES["growthring_tests.double_too"]


def test_a_rule_that_forgets_an_output_is_told_so() -> None:
    gr.register_rule("growthring_tests.double_it")(lambda walk, op: None)
    try:
        with pytest.raises((gr.GrowthError, AssertionError), match="double_it"):
            gr.discover_width_groups(doubled(double_it).double(), randn(5, 4))
    finally:
        del RULES["growthring_tests.double_it"]


@pytest.mark.parametrize("mode", ["off", "preserving"])
def test_growing_without_measuring_gives_the_same_model(mode: str) -> None:
    plan = plan_of("nano_gpt")
    grown = []
    for measure in (True, False):
        model = plan.build_seed()
        perturb(model)
        grower = gr.Grower(
            model, plan, variance_transfer=mode, generator=torch.Generator().manual_seed(1)
        )
        grower.grow(measure)
        grown.append(model.state_dict())
    assert all(torch.equal(grown[0][k], grown[1][k]) for k in grown[0])


@pytest.mark.parametrize(
    "name",
    ["mlp", "tied_embedding", "tied_layers_transposed", "attention_by_hand"],
)
@pytest.mark.each(2)
def test_new_units_learn(name: str) -> None:
    """Every new row of a grown weight moves within a few steps: nothing is dead for good."""
    from growthring.core.axes import layout

    plan = plan_of(name)
    model = plan.build_seed()
    perturb(model)
    gr.Grower(model, plan, generator=torch.Generator().manual_seed(0)).grow()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(plan.example_inputs).square().mean().backward()
        optimizer.step()
    for n, p in model.named_parameters():
        spec = plan.groups.specs[n]
        if spec.kind != "weight" or p.dim() < 2:
            continue
        fresh = layout(spec.axes[0], *plan.stage_widths[:2]).new
        moved = (p.detach() - before[n])[fresh].flatten(1).abs().amax(1) if len(fresh) else None
        # a ReLU may be off on all inputs for some of them, not for all
        assert moved is None or bool((moved > 0).any()), f"no new row of '{n}' moves"
