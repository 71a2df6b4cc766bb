"""Outputs that gain classes: those of old classes stay, new rows are drawn, and what follows a model follows."""

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import growthring as gr
from growthring import zoo
from growthring.errors import GrowthStepError, InputError
from growthring.growing.matching import parameter_rings
from growthring.methods.base import Step
from growthring.methods.paired import PairedGrowth
from tests.discovered import discovered_once as discovered_once
from tests.growth_contract import perturb

CLASSES = (3, 3, 8, 13)  # a stage that grows widths alone, and odd steps
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
TEXTS = torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(1))
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}


def mlp(classes: int = 13, width: int = 16, activation: type[nn.Module] = nn.GELU) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, width), activation(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 4, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 13)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return {"logits": self.head(self.encoder(x).mean(1))}


class ConvHead(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 13, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean((2, 3))


class TwoHeads(nn.Module):
    """A head of its own in train mode, and a number of classes in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.num_classes = 13
        self.a, self.b = nn.Linear(768, 16), nn.Linear(16, 16)
        self.head, self.aux = nn.Linear(16, 13), nn.Linear(16, 13, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        x = F.relu(self.a(x.flatten(1)))
        y = self.head(F.relu(self.b(x))).view(-1, self.num_classes)
        return (y, self.aux(x)) if self.training else y


def normed() -> nn.Sequential:
    head = nn.utils.parametrizations.weight_norm(nn.Linear(16, 13))
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.ReLU(), head, nn.BatchNorm1d(13))


MODELS = {
    "mlp": (mlp, IMAGES),
    "resnet8": (lambda: zoo.resnet8(num_classes=13, width=8), IMAGES),
    "vgg11": (lambda: zoo.vgg11(num_classes=13, width=4), F.interpolate(IMAGES, 32)),
    "vit": (ViT, IMAGES),
    "gpt": (lambda: zoo.GPT(13, 6, 1, 4, 16, tied=False), TEXTS),
    "conv head": (ConvHead, IMAGES),
    "two heads": (TwoHeads, IMAGES),
    "weight norm": (normed, IMAGES),
    "relu": (lambda: mlp(activation=nn.ReLU), IMAGES),
    "wide": (lambda: mlp(301, 64), IMAGES),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 13)), IMAGES),
}


def planned(name: str = "mlp", dtype: torch.dtype = torch.float32, **options: object) -> gr.Plan:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    return gr.plan(make().to(dtype), inputs, **{"classes": CLASSES, **options})


def results(model: nn.Module, plan: gr.Plan, training: bool = False) -> list[torch.Tensor]:
    model = copy.deepcopy(model).train(training)
    with torch.no_grad():
        found = model(plan.example_inputs)
    if isinstance(found, dict):
        return list(found.values())
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.each(3)
@pytest.mark.parametrize("dtype", LIMITS, ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("relu", "wide")])
def test_outputs_of_old_classes_stay(name, dtype):
    plan = planned(name, dtype)
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan, noise=0.0)
    for before, after in itertools.pairwise(CLASSES):
        grower.finish()
        old = results(model, plan)
        report = grower.grow()
        new = results(model, plan)
        assert report.change.relative <= LIMITS[dtype]
        assert all(t.shape[-1] == before for t in old)
        for a, b in zip(old, new, strict=True):
            assert b.shape == (*a.shape[:-1], after)
            assert (a - b[..., :before]).abs().max() <= LIMITS[dtype] * a.abs().max()
        grown = {g.name: (g.before, g.after) for g in report.groups}
        names = [g.name for g in plan.groups if g.is_classes]
        assert [grown.get(n) for n in names] == [(before, after) if after > before else None] * len(
            names
        )
        assert all(t.shape[-1] == after for t in results(model, plan, training=True))
    grower.finish()
    assert grower.is_complete and plan.classes == CLASSES
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in plan.model.state_dict().items()
    }


@pytest.mark.parametrize("mode", ["preserving", "paper", "constraint", "off"])
def test_in_every_mode_old_outputs_keep_the_factor_that_the_report_names(mode):
    plan = planned("relu", torch.float64)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, variance_transfer=mode, noise=0.0)
    while not grower.is_full:
        (old,) = results(model, plan)
        (factor,) = grower.grow().output_factors
        (new,) = results(model, plan)
        assert new.shape[-1] == plan.classes[grower.stage]
        assert (mode in ("preserving", "off")) == (abs(factor - 1) < 1e-12)
        assert (factor * old - new[:, : old.shape[1]]).abs().max() <= 1e-12 * new.abs().max()


def test_new_rows_are_drawn_with_the_deviation_of_the_plan_and_are_no_pairs():
    plan = planned("wide", classes=(2, 13, 301))
    model = plan.build_seed()
    grower = gr.Grower(model, plan)
    for stage in (1, 2):
        grower.grow()
        rows = model[5].weight.detach()[plan.classes[stage - 1] :]
        assert len(torch.unique(rows, dim=0)) == len(rows)
        assert (model[5].bias[plan.classes[stage - 1] :] == 0).all()
    step = Step(plan, plan.stage_widths[1], plan.stage_widths[2], "preserving")
    assert float(rows.std()) == pytest.approx(step.std(plan.groups.specs["5.weight"]), rel=0.05)


def test_new_biases_hold_what_the_initialiser_gave_to_all():
    net = mlp()
    nn.init.constant_(net[5].bias, 0.25)
    plan = gr.plan(net, IMAGES, classes=(4, 13))
    model = plan.build_seed()
    nn.init.zeros_(model[5].bias)
    gr.Grower(model, plan).grow()
    assert model[5].bias.tolist() == [0.0] * 4 + [0.25] * 9


def test_net2net_draws_new_classes_and_copies_what_they_read():
    plan = planned(dtype=torch.float64)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, method="net2net", noise=0.0)
    for before, after in itertools.pairwise(CLASSES):
        (old,) = results(model, plan)
        grower.grow()
        (new,) = results(model, plan)
        assert (old - new[:, :before]).abs().max() <= 1e-12 * old.abs().max()
        assert new.shape[1] == after == len(torch.unique(model[5].weight, dim=0))


def test_method_random_grows_classes_and_keeps_the_old_rows():
    plan = planned()
    model = plan.build_seed()
    grower = gr.Grower(model, plan, method="random")
    while not grower.is_full:
        rows = model[5].weight.detach().clone()
        grower.grow()
        assert torch.equal(model[5].weight[: len(rows), : rows.shape[1]], rows)
    assert model[5].weight.shape == (13, 16)


@pytest.mark.parametrize("method", ["splitting", "firefly", "firefly-split", "gradmax"])
def test_methods_that_search_refuse(method):
    plan = planned()
    data = {"batches": [(IMAGES, torch.zeros(2, dtype=torch.int64))], "loss": F.cross_entropy}
    with pytest.raises(
        InputError, match=rf"'{method}' cannot grow this model: its outputs gain cl"
    ):
        gr.Grower(plan.build_seed(), plan, method=method, **data)


@pytest.mark.parametrize("what", ["old row", "order", "all rows"])
def test_a_change_of_old_outputs_is_noticed_and_undone(monkeypatch, what):
    plan = planned(classes=(4, 13))
    model = plan.build_seed()
    perturb(model)
    grower = gr.Grower(model, plan)
    whole = PairedGrowth.each

    def wrong(self, old, generator):
        for name, rows in whole(self, old, generator):
            if name == "5.weight" and what == "old row":
                rows[3] *= 1.01
            elif name == "5.weight":
                rows.copy_(
                    rows.roll(9, 0) if what == "all rows" else rows[[*range(3), 12, *range(3, 12)]]
                )
            yield name, rows

    monkeypatch.setattr(PairedGrowth, "each", wrong)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(GrowthStepError, match="growing to stage 1 would change the outputs"):
        grower.grow()
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model[5].out_features == 4 and grower.stage == 0


OPTIMIZERS = {
    "torch.SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "torch.AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "SGD": lambda p: gr.optim.SGD(p, 0.05, momentum=0.9, rate_adaptation="norm", output_rate=True),
    "Adam": lambda p: gr.optim.Adam(p, 0.01, ages="ring", rate_adaptation="norm"),
    "AdamW": lambda p: gr.optim.AdamW(p, 0.01),
    "AvaGrad": lambda p: gr.optim.AvaGrad(p, 0.05, rate_adaptation="norm"),
    "LARS": lambda p: gr.optim.LARS(p, 0.05, momentum=0.9),
}


def steps(model, optimizer, first, last):
    """Training steps on the classes that the model has."""
    for k in range(first, last):
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(8, 3, 16, 16, generator=generator)
        y = torch.randint(0, model[5].out_features, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_and_averages_follow(name):
    plan = planned()
    model = plan.build_seed()
    optimizer = OPTIMIZERS[name](model.parameters())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    grower = gr.Grower(model, plan, optimizer, averages=average, variance_transfer="off")
    for stage in range(3):
        steps(model, optimizer, 3 * stage, 3 * stage + 3)
        average.update_parameters(model)
        weight, seen = model[5].weight, average.module[5].weight.detach().clone()
        state = {k: v.clone() for k, v in optimizer.state[weight].items() if torch.is_tensor(v)}
        rows, columns = weight.shape
        grower.grow()
        assert model[5].weight is weight and weight.shape[0] == plan.classes[stage + 1]
        for key, value in optimizer.state[weight].items():
            if torch.is_tensor(value) and value.shape == weight.shape:
                assert torch.equal(value[:rows, :columns], state[key])
                assert not value[rows:].any()
        after = average.module[5].weight.detach()
        assert torch.equal(after[:rows, :columns], seen)
        assert torch.equal(after[rows:], weight.detach()[rows:])
    steps(model, optimizer, 9, 11)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert grower.rings.num_entries("5.bias") == [3, 0, 5, 5]


def test_the_classifier_keeps_its_role_and_its_rate():
    for plan in (planned(), planned(classes=None, stages=4)):
        roles = {n: plan.role(s) for n, s in plan.groups.specs.items() if n.endswith("weight")}
        assert roles == {"1.weight": "input", "3.weight": "hidden", "5.weight": "output"}
        seed = plan.build_seed()
        rings = parameter_rings(seed, plan, gr.Grower(seed, plan).rings)
        assert rings[seed[5].weight].output_width == plan.widths("3")[0]


@pytest.mark.parametrize("stage", [0, 2])
def test_a_run_resumes_to_the_bit(stage):
    plan = planned()

    def begun():
        model = plan.build_seed()
        optimizer = gr.optim.AdamW(model.parameters(), lr=0.01, ages="ring")
        generator = torch.Generator().manual_seed(3)
        return model, optimizer, gr.Grower(model, plan, optimizer, generator=generator)

    def go(parts, first, last):
        for k in range(first, last):
            if k % 2 == 0 and k:
                parts[2].grow()
            steps(parts[0], parts[1], k, k + 1)

    whole, other = begun(), begun()
    go(whole, 0, 2 * stage + 1)
    saved = copy.deepcopy([part.state_dict() for part in whole])
    go(whole, 2 * stage + 1, 7)
    for part, state in zip((other[2], other[0], other[1]), (saved[2], *saved[:2]), strict=True):
        part.load_state_dict(state)
    assert other[0][5].out_features == CLASSES[stage]
    go(other, 2 * stage + 1, 7)
    for n, t in whole[0].state_dict().items():
        assert torch.equal(t, other[0].state_dict()[n])


def test_verify_compares_old_classes_only_where_that_is_asked_for():
    plan = planned(classes=(4, 13))
    model = plan.build_seed()
    before = copy.deepcopy(model)
    gr.Grower(model, plan, noise=0.0).grow()
    assert gr.verify(before, model, IMAGES, leading=True).relative < 1e-5
    with pytest.raises(InputError, match=r"different shapes: \[\(2, 4\)\] and \[\(2, 13\)\]"):
        gr.verify(before, model, IMAGES)
    with pytest.raises(InputError, match=r"different shapes: \[\(2, 13\)\] and \[\(2, 4\)\]"):
        gr.verify(model, before, IMAGES, leading=True)
    with torch.no_grad():
        model[5].bias[2] += 0.1
    assert gr.verify(before, model, IMAGES, leading=True).absolute > 0.09


def test_the_example_of_the_page():
    page = Path(__file__).parents[2] / "docs" / "how-it-works.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    names: dict[str, object] = {}
    exec(compile(code, "how-it-works.md", "exec"), names)
    assert names["seed"](names["x"]).shape == (2, 10)
