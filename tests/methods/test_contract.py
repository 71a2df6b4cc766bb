"""What every growth method has to fulfil, whatever it does."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

import growthring as gr
from growthring import zoo
from growthring.errors import InputError
from growthring.methods import METHODS, make_method
from growthring.methods.base import Job, Step
from growthring.methods.firefly import FireFly, FireFlySplit
from growthring.methods.gradmax import GradMax
from growthring.methods.net2net import Net2Net
from growthring.methods.splitting import Splitting
from tests.growth_contract import Net, attributes, distance, perturb, randn, tokens
from tests.methods.nets import PreNorm, batches_of, planned, seed_of, tensors_of
from tests.optim.nets import assert_same

MADE = {
    "paired": "paired",
    "net2net": "net2net",
    "splitting": Splitting(steps=2),
    "firefly-split": FireFlySplit(steps=2),
    "firefly": FireFly(steps=2),
    "gradmax": GradMax(examples=8),
    "random": "random",
}
SEARCHING = ["splitting", "firefly-split", "firefly", "gradmax"]
EXACT = ["paired", "net2net", "gradmax"]
SHAPE = (2, 5, 5)


def forward(self, x):
    h = self.n0(self.stem(x)).relu()
    h = (h + self.n2(self.b(self.n1(self.a(h)).relu()))).relu()
    return self.head(h.mean((2, 3)))


def residual():
    return Net(
        forward,
        stem=nn.Conv2d(2, 8, 3, padding=1, bias=False),
        n0=nn.BatchNorm2d(8),
        a=nn.Conv2d(8, 6, 3, padding=1),
        n1=nn.BatchNorm2d(6),
        b=nn.Conv2d(6, 8, 1),
        n2=nn.BatchNorm2d(8),
        head=nn.Linear(8, 3),
    )


_PLANS = {}


def plan_of(stages=3):
    if stages not in _PLANS:
        _PLANS[stages] = planned(lambda: (residual(), randn(4, *SHAPE)), stages=stages)
    return _PLANS[stages]


BATCHES = batches_of(SHAPE, 3)


def grower_of(model, plan, method, **options):
    options = {
        "generator": torch.Generator().manual_seed(3),
        "batches": BATCHES,
        "loss": F.cross_entropy,
    } | options
    return gr.Grower(model, plan, method=MADE.get(method, method), **options)


def train(model, optimizer, steps=2, seed=0, dtype=torch.float64):
    model.train()
    for x, y in batches_of(SHAPE, 3, num=steps, seed=seed, dtype=dtype):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def hooks(model):
    names = [n for n in vars(nn.Module()) if "hooks" in n]
    assert len(names) > 5
    return {
        (path, n): len(getattr(m, n)) for path, m in model.named_modules() for n in names
    }  # no hook, no parametrization: those put a class of their own there


def snapshot(model, grower=None, optimizer=None):
    """Everything that a search or a failed growth must not touch."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {
        "objects": {n: id(t) for n, t in named},
        "tensors": {n: t.detach().clone() for n, t in named},
        "flags": {n: t.requires_grad for n, t in named},
        "gradients": {n: None if t.grad is None else t.grad.clone() for n, t in named},
        "modes": {n: m.training for n, m in model.named_modules()},
        "types": {n: type(m) for n, m in model.named_modules()},
        "attributes": attributes(model),
        "hooks": hooks(model),
        "grower": None if grower is None else copy.deepcopy(grower.state_dict()),
        "stage": None if grower is None else grower.stage,
        "optimizer": None if optimizer is None else copy.deepcopy(optimizer.state_dict()),
        "global": torch.get_rng_state(),
    }


def prepared(method, stages=3, **options):
    plan = plan_of(stages)
    model = seed_of(plan)
    optimizer = gr.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    grower = grower_of(model, plan, method, optimizer=optimizer, **options)
    train(model, optimizer)
    return plan, model, optimizer, grower


def test_every_method_is_here():
    assert set(MADE) == set(METHODS)
    assert {n for n, kind in METHODS.items() if kind.searches} == set(SEARCHING)


# Where it ends.


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(6)
def test_the_end_is_the_plain_full_size_model(method):
    plan, model, optimizer, grower = prepared(method)
    ids = {n: id(p) for n, p in model.named_parameters()}
    while not grower.is_full:
        grower.grow()
        train(model, optimizer, seed=grower.stage)
        assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    grower.finish()
    full = plan.model
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in full.state_dict().items()
    }
    assert attributes(model) == attributes(full)
    assert [type(m) for m in model.modules()] == [type(m) for m in full.modules()]
    assert hooks(model) == hooks(full)
    assert not any("forward" in vars(m) for m in model.modules())
    assert {n: id(p) for n, p in model.named_parameters()} == ids
    twin = residual().double()
    twin.load_state_dict(model.state_dict(), strict=True)
    x = BATCHES[0][0]
    assert torch.equal(twin.eval()(x), model.eval()(x))


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(2)
def test_outputs_stay_where_that_is_claimed_and_a_reason_is_given_where_not(method):
    plan = plan_of()
    model = seed_of(plan)
    grower = grower_of(model, plan, method, noise=0.0)
    for stage in (1, 2):
        before = {t: copy.deepcopy(model).train(t)(BATCHES[0][0]).detach() for t in (False, True)}
        report = grower.grow()
        assert report.stage == stage
        for mode, outputs in before.items():
            change = distance(outputs, copy.deepcopy(model).train(mode)(BATCHES[0][0]).detach())
            if method == "paired" and mode:
                assert change <= 1e-4, stage  # ε of norms over rescaled weights
            elif method in EXACT:
                assert change <= 1e-12, (stage, mode)
            elif not mode:
                assert change > 0 and any("function changes" in n for n in report.notes)
        perturb(model, 10 + stage)


# Nothing is touched.


@pytest.mark.parametrize("method", MADE)
def test_deciding_on_a_growth_changes_nothing(method):
    plan = plan_of()
    model = seed_of(plan).train()
    model.n1.eval()
    model.a.weight.requires_grad_(False)
    F.cross_entropy(model(BATCHES[0][0]), BATCHES[0][1]).backward()
    before = snapshot(model)
    step = Step(plan, plan.stage_widths[0], plan.stage_widths[1], "off")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    generator = torch.Generator().manual_seed(1)
    job = Job(step, model, tensors, generator, BATCHES, F.cross_entropy)
    made = MADE[method] if not isinstance(MADE[method], str) else make_method(method)
    growth = made.grow(job)
    assert_same(before, snapshot(model))
    growth.tensors(tensors, generator)
    growth.gradient_divisors(tensors)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(2)
def test_a_growth_keeps_modes_flags_and_the_global_generator(method):
    plan = plan_of()
    model = seed_of(plan).train()
    model.n1.eval()
    model.a.weight.requires_grad_(False)
    before = snapshot(model)
    grower_of(model, plan, method).grow()
    after = snapshot(model)
    for key in ("objects", "flags", "gradients", "modes", "types", "hooks", "global"):
        assert_same(before[key], after[key], key)


class Stop(BaseException):
    pass


def failing(error, at):
    """A loss that raises at its n-th call."""
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == at:
            raise error
        return F.cross_entropy(outputs, targets)

    return loss


def broken(at):
    """Batches that raise in the middle."""

    class Broken:
        def __iter__(self):
            yield from BATCHES[:at]
            raise OSError("the disk is gone")

    return Broken()


FAILURES = {
    "loss": ({"loss": failing(ValueError("boom"), 1)}, gr.GrowthError, "boom"),
    "loss, interrupted": ({"loss": failing(KeyboardInterrupt(), 1)}, KeyboardInterrupt, ""),
    "loss, stopped": ({"loss": failing(Stop(), 1)}, Stop, ""),
    "loss is nan": ({"loss": lambda o, t: o.sum() * math.nan}, gr.GrowthError, "loss is nan"),
    "loss is infinite": ({"loss": lambda o, t: o.sum() * math.inf}, gr.GrowthError, "loss is"),
    "loss is no scalar": (
        {"loss": lambda o, t: F.cross_entropy(o, t, reduction="none")},
        gr.GrowthError,
        "must return a scalar tensor",
    ),
    "loss is a number": ({"loss": lambda o, t: 1.0}, gr.GrowthError, "must return a scalar tensor"),
    "loss without a graph": ({"loss": lambda o, t: o.detach().sum()}, gr.GrowthError, ""),
    "no batches": ({"batches": []}, gr.GrowthError, "gave no batch"),
    "batches are tensors": ({"batches": [BATCHES[0][0]]}, gr.GrowthError, r"must give \(inputs, "),
    "batches of three": (
        {"batches": [(*BATCHES[0], 1)]},
        gr.GrowthError,
        r"must give \(inputs, targets\)",
    ),
    "batches are no iterable": ({"batches": 3}, gr.GrowthError, ""),
    "broken batches": ({"batches": broken(0)}, gr.GrowthError, "the disk is gone"),
    "inputs of another shape": (
        {"batches": [(randn(4, 3, 5, 5), BATCHES[0][1][:4])]},
        gr.GrowthError,
        "",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m in SEARCHING[-2:] else pytest.mark.slow) for m in SEARCHING],
)
@pytest.mark.each(4)
def test_a_failure_in_the_search_changes_nothing(method, failure):
    options, error, says = FAILURES[failure]
    if "loss" in options and failure.startswith("loss, "):
        kinds = {"loss, interrupted": KeyboardInterrupt(), "loss, stopped": Stop()}
        options = {"loss": failing(kinds[failure], 2)}
    if failure == "loss":
        options = {"loss": failing(ValueError("boom"), 1)}
    if method == "gradmax" and failure.startswith("loss, "):
        options["batches"] = [(x[:4], y[:4]) for x, y in BATCHES]  # so that it goes over two
    _, model, optimizer, grower = prepared(method, **options)
    before = snapshot(model, grower, optimizer)
    with pytest.raises(error, match=says):
        grower.grow()
    assert_same(before, snapshot(model, grower, optimizer))
    assert grower.stage == 0


@pytest.mark.parametrize("method", SEARCHING)
@pytest.mark.each(2)
def test_the_same_growth_after_a_failure(method):
    """The generator is where it was, so that trying again gives what would have been."""
    plan = plan_of()
    models = []
    for fails in (False, True):
        model = seed_of(plan)
        loss = failing(ValueError("boom"), 2 if fails else 10**6)
        batches = [(x[:4], y[:4]) for x, y in BATCHES]
        grower = grower_of(model, plan, method, loss=loss, batches=batches)
        if fails:
            with pytest.raises(gr.GrowthError, match="boom"):
                grower.grow()
        grower.grow()
        models.append(tensors_of(model))
    assert_same(*models)


def test_a_forward_that_counts_its_calls_is_left_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
            self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

        def forward(self, x):
            self.calls += 1
            return self.b(self.a(x).relu())

    plan = planned(lambda: (Counting(), randn(4, 4)))
    for method in SEARCHING:
        model = plan.build_seed()
        grower = grower_of(model, plan, method, batches=batches_of((4,), 3))
        assert float(model.calls) == 0, f"{method}, when the grower is made"
        grower.grow()
        assert float(model.calls) == 0, f"{method}: a search must not leave traces in buffers"


# Random numbers.


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(7)
def test_one_seed_gives_one_growth_another_seed_another(method):
    plan, grown = plan_of(), []
    for seed in (3, 3, 4):
        torch.manual_seed(len(grown))  # of no influence
        model = seed_of(plan)
        generator = torch.Generator().manual_seed(seed)
        grower = grower_of(model, plan, method, generator=generator)
        grower.grow()
        grower.grow()
        grown.append(tensors_of(model))
    assert_same(grown[0], grown[1])
    if method != "gradmax":  # its units come from the data; seeds matter where ranks are small
        assert any(not torch.equal(grown[0][n], grown[2][n]) for n in grown[0])


@pytest.mark.parametrize("method", SEARCHING)
@pytest.mark.each(2)
def test_other_data_gives_another_growth(method):
    plan, grown = plan_of(), []
    for seed in (0, 1):
        model = seed_of(plan)
        batches = batches_of(SHAPE, 3, seed=seed)
        grower_of(model, plan, method, batches=batches).grow()
        grown.append(tensors_of(model))
    assert any(not torch.equal(grown[0][n], grown[1][n]) for n in grown[0])


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(4)
def test_resumed_growth_is_the_same_bit_for_bit(method):
    """Saved after one growth and some steps, loaded into a fresh seed, then both go on."""
    plan, model, optimizer, grower = prepared(method)
    grower.grow()
    train(model, optimizer, seed=1)
    saved = copy.deepcopy([part.state_dict() for part in (grower, model, optimizer)])
    other = plan.build_seed()
    other_optimizer = gr.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    other_grower = grower_of(
        other, plan, method, optimizer=other_optimizer, generator=torch.Generator()
    )
    for part, state in zip((other_grower, other, other_optimizer), saved, strict=True):
        part.load_state_dict(state)
    for m, o, g in ((model, optimizer, grower), (other, other_optimizer, other_grower)):
        train(m, o, seed=2)
        g.grow()
        train(m, o, seed=3)
    assert_same(tensors_of(model), tensors_of(other))
    assert_same(optimizer.state_dict()["state"], other_optimizer.state_dict()["state"])


@pytest.mark.parametrize("method", SEARCHING)
@pytest.mark.each(6)
def test_a_function_of_a_seed_as_batches(method):
    plan, seeds = plan_of(), []

    def batches(seed):
        assert type(seed) is int
        seeds.append(seed)
        return batches_of(SHAPE, 3, seed=seed % 1000)

    grown = []
    for _ in range(2):
        model = seed_of(plan)
        grower = grower_of(model, plan, method, batches=batches)
        grower.grow()
        grower.grow()
        grown.append(tensors_of(model))
    assert_same(*grown)
    assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]


def test_methods_that_do_not_search_ask_for_no_batches():
    def batches(seed):
        raise AssertionError("not to be called")

    plan = plan_of()
    for method in ("paired", "net2net", "random"):
        report = grower_of(seed_of(plan), plan, method, batches=batches).grow()
        assert report.search_flops == 0 and report.search_examples == 0


# Optimizers and averages.


OPTIMIZERS = {
    "SGD": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: gr.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: gr.optim.AdamW(p, lr=0.01),
    "AvaGrad": lambda p: gr.optim.AvaGrad(p, lr=0.05),
    "LARS": lambda p: gr.optim.LARS(p, lr=0.5, momentum=0.9),
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "torch Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "torch RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "torch Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def _first_or_slow(method, optimizer):
    """State grows alike under all methods that search: one optimizer for each of those, all for the others."""
    is_first = method in ("paired", "net2net") or optimizer == next(iter(OPTIMIZERS))
    return pytest.param(method, optimizer, marks=() if is_first else pytest.mark.slow)


@pytest.mark.parametrize(
    ("method", "optimizer"), [_first_or_slow(m, o) for m in MADE for o in OPTIMIZERS]
)
@pytest.mark.each(6)
def test_every_method_under_every_optimizer(method, optimizer):
    plan = plan_of()
    model = seed_of(plan)
    made = OPTIMIZERS[optimizer](model.parameters())
    grower = grower_of(model, plan, method, optimizer=made)
    for stage in range(3):
        train(model, made, seed=stage)
        for p in model.parameters():
            assert bool(torch.isfinite(p).all())
            for value in made.state[p].values():
                if isinstance(value, torch.Tensor) and value.dim() > 1:
                    assert value.shape == p.shape
        if stage < 2:
            grower.grow()
            for p in model.parameters():
                shapes = {v.shape for v in made.state[p].values() if hasattr(v, "shape")}
                assert not shapes or p.shape in shapes
    assert grower.is_full


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(3)
def test_averages_grow_along(method):
    plan = plan_of()
    model = seed_of(plan)
    equal, average = AveragedModel(model), AveragedModel(model)
    with torch.no_grad():
        for p in average.module.parameters():
            p.mul_(1.1)
    x = BATCHES[0][0]
    grower = grower_of(model, plan, method, averages=[equal, average], noise=0.0)
    before = average.module.eval()(x).detach()
    grower.grow()
    assert_same(tensors_of(model), tensors_of(equal.module))
    assert attributes(average.module) == attributes(model)
    after = average.module.eval()(x).detach()
    if method in EXACT:
        assert distance(before, after) <= 1e-12
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer)
    average.update_parameters(model)
    grower.grow()
    assert {n: t.shape for n, t in average.module.state_dict().items()} == {
        n: t.shape for n, t in plan.model.state_dict().items()
    }


# Stages in which little happens.


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(5)
def test_stages_in_which_some_or_all_groups_stay(method):
    widths = {"stem": [4, 4, 8, 8], "a": [3, 5, 5, 6]}
    plan = planned(lambda: (residual(), randn(4, *SHAPE)), stages=4, widths=widths)
    model = seed_of(plan)
    grower = grower_of(model, plan, method)
    for stage, (stem, a) in enumerate(zip(*widths.values(), strict=True)):
        assert grower.stage == stage
        assert (model.stem.out_channels, model.a.out_channels) == (stem, a)
        if not grower.is_full:
            before = tensors_of(model)
            grower.grow()
            if stage == 1:
                assert torch.equal(before["n1.bias"], model.n1.bias)
            if stage in (0, 2):
                assert model.stem.weight.shape == before["stem.weight"].shape


@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(4)
def test_a_stage_in_which_nothing_grows(method):
    widths = {"stem": [4, 4, 8], "a": [3, 3, 6]}
    plan = planned(lambda: (residual(), randn(4, *SHAPE)), stages=3, widths=widths)
    model = seed_of(plan)
    grower = grower_of(model, plan, method)
    before = tensors_of(model)
    report = grower.grow()
    assert_same(before, tensors_of(model))
    assert report.groups == () and report.change.relative == 0
    assert report.search_flops == 0
    grower.grow()
    assert grower.is_full


# What is asked of users.


@pytest.mark.parametrize("method", SEARCHING)
@pytest.mark.parametrize("given", [{}, {"batches": BATCHES}, {"loss": F.cross_entropy}])
def test_searching_needs_batches_and_a_loss(method, given):
    plan = plan_of()
    with pytest.raises(InputError, match=rf"'{method}' searches on data: pass batches=.*loss="):
        gr.Grower(seed_of(plan), plan, method=method, **given)


def test_unknown_methods_and_options_are_refused_with_what_there_is():
    plan = plan_of()
    listed = ", ".join(METHODS)
    for name in ("netnet", "", "Paired"):
        with pytest.raises(InputError, match=f"method='{name}' is not known; there are {listed}"):
            gr.Grower(seed_of(plan), plan, method=name)
    with pytest.raises(InputError, match=r"'firefly' has no option 'step'; it has steps, .*rate"):
        make_method("firefly", {"step": 3})
    with pytest.raises(InputError, match="'net2net' has no option 'noise'; it has none"):
        make_method("net2net", {"noise": 3})
    for odd in (3, None, object()):
        with pytest.raises(InputError, match="method is a"):
            gr.Grower(seed_of(plan), plan, method=odd)


def test_a_class_instead_of_an_object_is_refused():
    plan = plan_of()
    with pytest.raises(InputError, match="method is"):
        gr.Grower(seed_of(plan), plan, method=Net2Net)


def test_an_object_that_lacks_a_part_of_the_protocol_is_refused():
    class Mine:
        name, mode = "mine", "off"

        def check(self, plan, model):
            pass

        def grow(self, job):
            raise NotImplementedError

    plan = plan_of()
    with pytest.raises(InputError, match="method is a Mine"):
        gr.Grower(seed_of(plan), plan, method=Mine())


NUMBERS = [
    (kind, name)
    for kind, names in (
        (Splitting, ["epsilon", "beta", "steps", "score_steps", "rate", "bound"]),
        (FireFly, ["steps", "score_steps", "rate", "split_bound", "new_std", "new_bound"]),
        (FireFly, ["penalty", "new_penalty"]),
        (FireFlySplit, ["steps", "rate"]),
        (GradMax, ["scale", "examples"]),
    )
    for name in names
]


def check_refused(kind, name, wrong):
    for value in wrong:
        with pytest.raises(InputError, match=rf"{name}=.* of method '{kind.name}'"):
            kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_hyperparameters_that_are_no_positive_numbers_are_refused(kind, name):
    wrong = [-1, -0.5, math.nan, "3", True, [1]]
    if "penalty" in name:
        kind(**{name: 0})
    else:
        wrong.append(0)
    check_refused(kind, name, wrong)


def test_infinite_hyperparameters_are_refused():
    """A search of steps=inf would never end."""
    for kind, name in NUMBERS:
        check_refused(kind, name, [math.inf])


def test_numbers_of_steps_and_examples_are_whole():
    for kind, name in NUMBERS:
        if name in ("steps", "score_steps", "examples"):
            check_refused(kind, name, [2.5, 0.1])


# Models that the searching methods do not understand.


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.rnn, self.head = (
            nn.Linear(4, 8),
            nn.LSTM(8, 8, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.head(self.rnn(self.a(x))[0])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
        return self.head(weights @ self.v(x))


FOREIGN = {
    "attention": (lambda: (Attending(), randn(4, 5, 4)), r"'q'|'q\.|attention|matmul"),
    "layer norm": (lambda: (PreNorm(nn.LayerNorm), randn(6, 5)), r"norm 'n2?'"),
    "rms norm": (lambda: (PreNorm(nn.RMSNorm), randn(6, 5)), r"norm 'n2?'"),
    "embedding": (
        lambda: (
            Net(lambda self, x: self.b(self.e(x).relu()), e=nn.Embedding(10, 8), b=nn.Linear(8, 3)),
            tokens(2, 5),
        ),
        r"'e\.weight'",
    ),
    "recurrent": (
        lambda: (Recurrent(), randn(2, 6, 4)),
        r"'rnn\.weight_ih_l0' is the weight of something else",
    ),
    "tied": (
        lambda: (
            Net(
                lambda self, x: self.b(F.linear((self.a(x) + self.c(x)).relu(), self.a.weight.T)),
                a=nn.Linear(4, 8),
                c=nn.Linear(4, 8),
                b=nn.Linear(4, 3),
            ),
            randn(6, 4),
        ),
        r"'a\.weight' is tied",
    ),
    "transformer": (
        lambda: (zoo.GPT(11, 7, 1, 2, 8), tokens(3, 6)),
        r"'token_embedding\.weight' is tied|'blocks\.0\.attention' multiplies activations",
    ),
    "a parameter as activation": (
        lambda: (
            Net(
                lambda self, x: self.b(self.a(x).relu() + self.p),
                a=nn.Linear(4, 8),
                p=nn.Parameter(torch.zeros(3, 8)),
                b=nn.Linear(8, 3),
            ),
            randn(2, 3, 4),
        ),
        r"'p'",
    ),
    "transposed convolution": (
        lambda: (
            nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 3, 3)),
            randn(2, 2, 6, 6),
        ),
        r"'2\.weight' is the weight of something else",
    ),
    "no batch axis": (
        lambda: (nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 1)), randn(2, 6, 6)),
        r"'0\.weight' takes inputs without a batch axis",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.each(4)
def test_models_that_are_not_understood_are_refused_and_left_alone(name):
    make, says = FOREIGN[name]
    plan = planned(make)
    for method in SEARCHING:
        model = seed_of(plan).train()
        before = snapshot(model)
        with pytest.raises(InputError, match=says) as error:
            gr.Grower(model, plan, method=MADE[method], batches=BATCHES, loss=F.cross_entropy)
        assert f"method '{method}' cannot grow this model" in str(error.value)
        assert_same(before, snapshot(model))


# Precisions and forms of inputs.


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16]
)
@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(8)
def test_other_precisions(method, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = residual().to(dtype)
    x = randn(4, *SHAPE).to(dtype)
    plan = gr.plan(net, x, stages=3, growth=None, round_to=1)
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = batches_of(SHAPE, 3, dtype=dtype)
    grower = grower_of(model, plan, method, optimizer=optimizer, batches=batches)
    while not grower.is_full:
        report = grower.grow()
        if method in EXACT:
            assert report.change.relative < (1e-5 if dtype == torch.float32 else 5e-2)
        train(model, optimizer, dtype=dtype)
    assert all(p.dtype == dtype for p in model.parameters())
    assert {n: t.shape for n, t in model.state_dict().items()} == {
        n: t.shape for n, t in net.state_dict().items()
    }


class Two(nn.Module):
    """Takes two tensors, by place or by name."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 3)

    def forward(self, x, y=None):
        return self.head((self.a(x) + self.b(y)).relu())


@pytest.mark.parametrize("form", [tuple, list, dict])
@pytest.mark.parametrize("method", MADE)
@pytest.mark.each(3)
def test_inputs_as_tuple_list_and_dict(method, form):
    def shaped(x, y):
        return {"x": x, "y": y} if form is dict else form((x, y))

    example = shaped(randn(5, 4), randn(5, 3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plan = gr.plan(Two().double(), example, stages=2, growth=None, round_to=1)
    g = torch.Generator().manual_seed(0)
    batches = [
        (
            shaped(randn(8, 4, seed=i), randn(8, 3, seed=9 + i)),
            torch.randint(0, 3, (8,), generator=g),
        )
        for i in range(3)
    ]
    model = seed_of(plan)
    report = grower_of(model, plan, method, batches=batches).grow()
    assert model.head.in_features == 8
    if method in SEARCHING:
        assert report.search_examples % 8 == 0 and report.search_examples > 0


@pytest.mark.parametrize("method", SEARCHING)
def test_a_data_loader_as_batches(method):
    plan = plan_of()
    x, y = (torch.cat(part) for part in zip(*BATCHES, strict=True))
    data = torch.utils.data.TensorDataset(x, y)
    generator = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True, generator=generator)
    model = seed_of(plan)
    grower = grower_of(model, plan, method, batches=loader)
    assert grower.grow().search_examples > 0
    assert grower.grow().search_examples > 0
    assert grower.is_full


def test_variance_transfer_is_refused_where_the_method_has_none():
    plan = gr.plan(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    for method in ("net2net", Net2Net()):
        with pytest.raises(
            gr.GrowthError, match="variance_transfer='off': method 'net2net' has none"
        ):
            gr.Grower(plan.build_seed(), plan, method=method, variance_transfer="off")
