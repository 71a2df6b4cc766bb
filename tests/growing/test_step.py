"""Grower.step: one call per training step; and what a loop is told."""

import copy
import gc
import io
import warnings
from functools import cache

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.errors import GrowthStepError, InputError

X, Y = torch.randn(12, 8, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 4


class Normed(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Linear(8, width), nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x):
        return self.b(torch.relu(self.n(self.a(x))))


class Plain(Normed):
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


@cache
def plan_of(net: type[nn.Module], steps: int) -> gr.Plan:
    torch.manual_seed(0)
    return gr.plan(net(), X, total_steps=steps, start=0.25, grown_at=0.5)


def started(net: type[nn.Module] = Normed, steps: int = 40, **options):
    plan = plan_of(net, steps)
    model = plan.build_seed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    options = {"fade": 0.25, **options}  # several steps, of stages as short as these
    return model, optimizer, gr.Grower(model, plan, optimizer, generator=generator, **options)


def train(model, optimizer, grower, steps):
    reports = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reports.append(grower.step())
    return reports


def test_a_loop_needs_one_call():
    model, optimizer, grower = started()
    assert grower.plan.stage_steps == (5, 15, 20) and grower.fade == 0.25
    reports = train(model, optimizer, grower, 40)
    assert [r.step for r in reports if r.growth is not None] == [5, 20]
    assert [r.step for r in reports if r.fades_ended] == [9, 25], "a quarter of 15 and of 20 steps"
    assert [r.step for r in reports if r] == [5, 9, 20, 25]
    assert [r.fading for r in reports[3:10]] == [0, 1, 1, 1, 1, 0, 0]
    assert [r.is_complete for r in reports[22:26]] == [False, False, True, True]
    assert grower.is_complete and model.a.out_features == 16
    assert "forward" not in vars(model.n) and not model.n._state_dict_hooks
    plain = Normed()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(X), model(X))


def test_a_report_tells_what_happened():
    model, optimizer, grower = started()
    reports = train(model, optimizer, grower, 9)
    assert str(reports[0]) == "step 1 of 40, stage 0" and not reports[0]
    assert str(reports[4]).startswith("step 5 of 40, stage 1; grew: stage 1: ")
    assert str(reports[8]) == "step 9 of 40, stage 1; 1 norm faded in"
    assert reports[8].total_steps == 40 and reports[8].stage == 1


def test_without_norms_there_is_nothing_to_fade():
    model, optimizer, grower = started(Plain)
    reports = train(model, optimizer, grower, 42)  # two more than planned
    assert [r.step for r in reports if r] == [5, 20] and reports[19].is_complete
    assert reports[-1].step == 42 and grower.stage == 2


def test_epochs_times_steps():
    plan = gr.plan(Plain(), X, epochs=8, steps_per_epoch=5, start=0.25, grown_at=0.5)
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    assert [i for i in range(1, 41) if grower.step().growth] == [5, 20]


def test_a_plan_without_a_length_cannot_step():
    plan = gr.plan(Plain(), X, stages=2)
    grower = gr.Grower(plan.build_seed(), plan)
    with pytest.raises(InputError, match=r"how long the run is: gr.plan\(..., total_steps=N\)"):
        grower.step()
    assert grower.grow().stage == 1, "grow() is for those who decide themselves"


def test_a_growth_by_hand_moves_the_plan_along():
    model, optimizer, grower = started(Plain)
    train(model, optimizer, grower, 2)
    grower.grow()
    assert grower.stage == 1
    reports = train(model, optimizer, grower, 38)
    assert [r.step for r in reports if r] == [20], "stage 1 ends as planned"


def test_a_growth_that_fails_is_tried_again(monkeypatch):
    model, optimizer, grower = started(Plain)
    train(model, optimizer, grower, 4)
    before = copy.deepcopy(model.state_dict())
    with monkeypatch.context() as patch:
        patch.setattr(type(grower.method), "grow", lambda self, job: 1 / 0)
        with pytest.raises(GrowthStepError, match="ZeroDivisionError"):
            grower.step()
    assert grower.stage == 0 and all(
        torch.equal(v, before[k]) for k, v in model.state_dict().items()
    )
    report = grower.step()
    assert report.step == 5 and report.growth is not None


@pytest.mark.parametrize("at", [3, 5, 7, 12, 21, 30])
@pytest.mark.each(2)
def test_a_run_resumes_bit_for_bit(at):
    model, optimizer, grower = started(noise=1e-2)
    train(model, optimizer, grower, at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gr.GrowthWarning)
        saved = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), grower.state_dict()], saved)
    train(model, optimizer, grower, 40 - at)
    saved.seek(0)
    weights, state, growth = torch.load(saved)
    again, its_optimizer, its_grower = started(noise=1e-2)
    its_grower.load_state_dict(growth)
    again.load_state_dict(weights)
    its_optimizer.load_state_dict(state)
    reports = train(again, its_optimizer, its_grower, 40 - at)
    assert reports[-1].step == 40 and its_grower.is_complete
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_state_from_before_there_were_steps_is_taken():
    model, optimizer, grower = started(Plain)
    train(model, optimizer, grower, 5)
    state = grower.state_dict()
    del state["pace"]
    _, _, again = started(Plain)
    again.load_state_dict(state)
    assert again.stage == 1


def test_a_grower_of_a_wider_model_goes_on_from_that_stage():
    model, optimizer, grower = started(Plain)
    train(model, optimizer, grower, 5)
    another = gr.Grower(model, grower.plan, optimizer)
    assert [i for i in range(6, 41) if another.step().growth] == [20]


def test_a_growth_inside_autocast_is_not_undone_by_its_cache():
    model, _, grower = started(Plain)
    with torch.autocast("cpu", torch.bfloat16):
        model(X)  # casts of the seed's weights are kept until the end of the block
        grower.grow()
        inside = model(X)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(inside, model(X))


# Fades are never silent.


def fading(progress: float = 0.1):
    model, _, grower = started()
    grower.grow()
    grower.advance(progress)
    assert grower.fading_norms == {"n": pytest.approx(progress)}
    return model, grower


def test_a_state_dict_of_a_fading_model_warns():
    model, grower = fading()
    holder = nn.ModuleDict({"net": model})
    for take in (
        model.state_dict,
        holder.state_dict,
        model.n.state_dict,
        copy.deepcopy(model).state_dict,
    ):
        with pytest.warns(gr.GrowthWarning, match="still fading in after a growth") as caught:
            take()
        assert caught[0].filename == __file__, "the warning points at the line that saves"
    grower.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.state_dict()


def test_copies_of_a_fading_model_compute_the_same():
    model, _ = fading()
    y = model(X)
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    copies = {
        "deepcopy": copy.deepcopy(model),
        "pickle": torch.load(whole, weights_only=False),
        "average": torch.optim.swa_utils.AveragedModel(model),
        "trace": torch.jit.trace(model, X),
        "export": torch.export.export(model, (X,)).module(),
    }
    for how, twin in copies.items():
        assert torch.equal(twin(X), y), how
    with pytest.raises((RuntimeError, AttributeError)):
        torch.jit.script(model)


def test_ending_a_fade_early_reports_its_effect():
    model, grower = fading(0.4)
    twin = copy.deepcopy(model)
    before = model(X)
    report = grower.finish()
    assert report.ended == {"n": pytest.approx(0.4)}
    moved = float((model(X) - before).abs().max())
    assert report.change.absolute == pytest.approx(moved, rel=1e-4) and moved > 1e-3
    assert str(report).startswith("ended the fading in of 1 norm at 40%; outputs: relative change")
    assert report.as_dict()["change"]["absolute"] == report.change.absolute
    assert str(grower.finish()) == "nothing was fading in"
    ended = gr.end_fades(twin, X)
    assert ended.change.absolute == pytest.approx(moved, rel=1e-4)
    assert torch.equal(twin(X), model(X)) and "forward" not in vars(twin.n)
    assert not twin.n._state_dict_hooks and not twin.n._forward_hooks
    assert gr.end_fades(twin).ended == {}


def test_full_size_is_not_the_whole_story():
    _, grower = fading()
    grower.grow()
    assert grower.is_full and not grower.is_complete
    grower.finish()
    assert grower.is_complete


def test_averages_end_their_fades_too():
    torch.manual_seed(0)
    plan = gr.plan(Normed(), X, stages=2)
    model = plan.build_seed()
    average = torch.optim.swa_utils.AveragedModel(model)
    grower = gr.Grower(model, plan, averages=average)
    grower.grow()
    assert "forward" in vars(average.module.n)
    grower.finish()
    assert "forward" not in vars(average.module.n)


# A loop that ends too early is told so.


def told(loop) -> list[str]:
    """What is said once a loop and its grower are gone."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop()
        gc.collect()
    return [str(w.message) for w in caught if w.category is gr.GrowthWarning]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (3, ["after step 3 of 400", "2 growths to go until its full size"]),
        (46, ["1 norm still fading in", "1 growth to go", "trained for 1 step only"]),
        (201, ["after step 201 of 400", "call Grower.finish()", "trained for 1 step only"]),
        (300, None),
        (400, None),
    ],
)
@pytest.mark.each(3)
def test_the_end_of_a_loop(steps, says):
    def loop():
        *_, grower = started(steps=400)
        for _ in range(steps):
            grower.step()

    texts = told(loop)
    assert len(texts) == (says is not None)
    for part in says or []:
        assert part in texts[0]


def test_the_end_of_a_loop_that_was_saved():
    def loop():
        *_, grower = started(steps=400)
        for _ in range(100):
            grower.step()
        grower.state_dict()

    assert told(loop) == []


def test_the_end_of_a_loop_that_grew_by_hand():
    assert "1 norm still fading in" in told(fading)[0]
    assert told(lambda: fading()[1].finish()) == []
