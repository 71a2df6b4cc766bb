"""Programs of torch.compile over many growths: none is left uncompiled, and other models keep theirs."""

import sys

import pytest
import torch
from torch import nn

import growthring as gr
from tests.discovered import discovered_once as discovered_once
from tests.growing.test_fading_compiled import Counting

X = torch.linspace(-1, 1, 24).reshape(6, 4)
STAGES = 11  # torch allows a function 8 programs


class Net(nn.Module):
    """A network whose forward all its instances share."""

    def __init__(self, width: int = 22, with_norm: bool = False, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)
        self.norm = nn.LayerNorm(width) if with_norm else nn.Identity()
        self.breaks = breaks

    def forward(self, x):
        h = self.norm(self.first(x))
        if self.breaks:
            torch._dynamo.graph_break()
        # in train mode another program, though it drops nothing
        return self.last(nn.functional.dropout(torch.relu(h), 0.0, self.training))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 22), nn.ReLU(), nn.Linear(22, 3))


def wrapped(model, backend):
    return torch.compile(model, backend=backend)


def in_place(model, backend):
    model.compile(backend=backend)
    return model


def function(model, backend):
    @torch.compile(backend=backend)
    def run(x):
        return model(x)

    return run


def given(model, backend):
    """A function that gets its model as an argument."""
    step = torch.compile(lambda net, x: net(x), backend=backend)
    return lambda x: step(model, x)


@pytest.fixture(autouse=True)
def limited():
    """Reaching the limit is an error here."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch.compiler.reset()


def planned(make) -> gr.Plan:
    torch.manual_seed(0)
    widths = [2 * (stage + 1) for stage in range(STAGES)]
    name = "0" if make is sequential else "first"
    return gr.plan(make(), X, widths={name: widths}, total_steps=110)


@pytest.mark.parametrize(
    ("way", "make"),
    [(wrapped, Net), (wrapped, sequential), (in_place, Net), (function, Net), (given, Net)],
)
def test_eleven_stages_are_eleven_programs(way, make):
    plan, backend = planned(make), Counting()
    model = plan.build_seed()
    run = way(model, backend)
    grower = gr.Grower(model, plan)
    for stage in range(STAGES):
        for _ in range(2):
            assert torch.equal(run(X), type(model).forward(model, X))
        assert backend.programs == stage + 1
        if stage < STAGES - 1:
            grower.grow(measure=False)
    assert grower.is_full


@pytest.mark.parametrize("breaks", [False, True])
def test_norms_evaluation_and_breaks_in_the_graph_stay_below_the_limit(breaks):
    plan, backend = planned(lambda: Net(with_norm=True)), Counting()
    model = plan.build_seed()
    model.breaks = breaks
    compiled = torch.compile(model, backend=backend)
    grower = gr.Grower(compiled, plan)
    for stage in range(STAGES):
        before = backend.programs
        for is_training in (True, False):
            model.train(is_training)
            assert torch.equal(compiled(X), model(X))
        grower.finish()
        for is_training in (True, False):
            model.train(is_training)
            assert torch.equal(compiled(X), model(X))
        if breaks:
            assert backend.programs > before
        else:
            assert backend.programs == 2 + 4 * stage
        if stage < STAGES - 1:
            grower.grow(measure=False)


def test_other_models_of_the_same_class_keep_their_programs_until_there_is_no_room():
    plan, other, mine, theirs = planned(Net), Net(5), Counting(), Counting()
    model = plan.build_seed()
    compiled = torch.compile(model, backend=mine)
    beside = torch.compile(other, backend=theirs)
    grower = gr.Grower(compiled, plan)
    for _ in range(4):
        assert torch.equal(compiled(X), model(X)) and torch.equal(beside(X), other(X))
        grower.grow(measure=False)
    assert (mine.programs, theirs.programs) == (4, 1)
    while not grower.is_full:
        assert torch.equal(compiled(X), model(X)) and torch.equal(beside(X), other(X))
        grower.grow(measure=False)
    assert mine.programs == STAGES - 1 and theirs.programs <= 3


def test_models_of_other_classes_keep_all_their_programs():
    class Other(Net):
        def forward(self, x):
            return self.last(self.first(x))

    plan, others, theirs = planned(Net), [Other(n) for n in range(2, 9)], Counting()
    compiled = [torch.compile(net, backend=theirs) for net in others]
    for each in compiled:
        each(X)
    model = plan.build_seed()
    grower = gr.Grower(torch.compile(model, backend="eager"), plan)
    grower.model(X)
    for _ in range(3):
        grower.grow(measure=False)
    before = theirs.programs
    for each in compiled:
        each(X)
    assert theirs.programs == before


def test_a_growth_that_was_taken_back_leaves_a_compiled_model_right(monkeypatch):
    plan = planned(Net)
    model = plan.build_seed()
    compiled = torch.compile(model, backend="eager")
    grower = gr.Grower(compiled, plan)
    before = compiled(X)
    monkeypatch.setattr("growthring.growing.stage.drop_programs", lambda models: 1 / 0)
    with pytest.raises(gr.GrowthError, match="as they were"):
        grower.grow(measure=False)
    assert torch.equal(compiled(X), before)
    monkeypatch.undo()
    grower.grow(measure=False)
    assert torch.equal(compiled(X), model(X))


def test_a_version_of_torch_that_hides_its_programs_is_told(monkeypatch):
    plan = planned(Net)
    grower = gr.Grower(plan.build_seed(), plan)
    monkeypatch.delattr(torch._dynamo.convert_frame, "input_codes")
    with pytest.warns(gr.GrowthWarning, match=r"torch.compiler.reset\(\) after each growth"):
        grower.grow(measure=False)


def test_nothing_is_imported_where_nothing_was_compiled(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    from growthring.planning.programs import drop_programs

    drop_programs([Net()])
    assert "torch._dynamo" not in sys.modules


class Shortcut(nn.Module):
    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem, self.short = nn.Conv2d(channels, 16, 3), nn.Conv2d(16, 32, 1, stride=2)

    def forward(self, x):
        return self.short(self.stem(x)).mean((2, 3))


def thin(start: float) -> gr.Plan:
    return gr.plan(Shortcut(), torch.zeros(2, 1, 8, 8), start=start, total_steps=10)


REMEDY = (
    r"'short' \(a 1x1 convolution with a stride\) has fewer than 8 input channels at first, and torch.compile's "
    r"inductor puts .* abort the process. Compile with torch.compile\(model, options={\"layout_optimization\": "
    r"False}\), set TORCHINDUCTOR_LAYOUT_OPTIMIZATION=0, or choose a larger start"
)


def test_a_thin_convolution_under_inductor_is_told_with_the_remedy():
    plan = thin(0.25)
    seed = plan.build_seed()
    with pytest.warns(gr.GrowthWarning, match=REMEDY):
        gr.Grower(torch.compile(seed), plan)
    compiled = torch.compile(nn.Sequential(seed))  # held by it; the Grower is given the plain one
    with pytest.warns(gr.GrowthWarning, match=REMEDY):
        gr.Grower(seed, plan)
    del compiled


def test_where_torch_hides_the_backend_it_may_be_inductor(monkeypatch):
    plan = thin(0.25)
    compiled = torch.compile(plan.build_seed(), backend="eager")
    monkeypatch.delattr(torch._dynamo.eval_frame, "innermost_backend")
    with pytest.warns(gr.GrowthWarning, match=REMEDY):
        gr.Grower(compiled, plan)


@pytest.mark.filterwarnings("error::growthring.GrowthWarning")
def test_what_cannot_crash_is_not_warned_of(monkeypatch):
    def made(start=0.25, **options):
        plan = thin(start)
        return gr.Grower(torch.compile(plan.build_seed(), **options), plan)

    made(options={"layout_optimization": False})
    made(backend="eager")
    made(start=0.5)
    plan = thin(0.25)
    other = torch.compile(Shortcut())
    gr.Grower(plan.build_seed(), plan)
    del other
    monkeypatch.setattr(torch._inductor.config, "layout_optimization", False)
    made()
