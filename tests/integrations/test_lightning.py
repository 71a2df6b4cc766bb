"""A LightningModule grows by a callback, with Lightning itself: on time, in any setting, resumed anywhere."""

import copy
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import growthring as gr
from growthring.errors import GrowthWarning, InputError, UnsupportedModelError

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import (  # noqa: E402
    Callback,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import (  # noqa: E402
    DDPStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
)

from growthring.integrations.lightning import GrowthCallback, match_checkpoint  # noqa: E402
from growthring.integrations.lightning_checks import check_strategy  # noqa: E402
from tests.distributed_helpers import on_ranks  # noqa: E402
from tests.pages import blocks, run_script  # noqa: E402

STEPS = 12
QUIET = ("ignore:.*LeafSpec", "ignore:.*many workers", "ignore:.*ended before the epoch ended")
QUIET += ("ignore:.*callbacks used to create", "ignore:.*does not affect", "ignore:.*tensorboardX")
pytestmark = [pytest.mark.filterwarnings(each) for each in QUIET]


class Lit(pl.LightningModule):
    """Its batches depend on the optimizer steps taken, so that a resumed run sees those of the whole run."""

    def __init__(self, net=None, make=torch.optim.AdamW):
        super().__init__()
        self.net, self.make = net, make

    def batch(self, number):
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(8, 6, generator=draw).to(next(self.parameters()).dtype)
        return x, x[:, :3].argmax(1)

    def loss(self, number):
        x, y = self.batch(number)
        return nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, index):
        return self.loss(100 * self.global_step + index % 2)

    def validation_step(self, batch, index):
        self.log("val", self.loss(index))

    test_step = validation_step

    def configure_optimizers(self):
        optimizer = self.make(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.6, STEPS)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(4, 1))

    val_dataloader = test_dataloader = train_dataloader


class Itself(Lit):
    def __init__(self):
        super().__init__(full())

    def forward(self, x):
        return self.net(x)


class Late(Lit):
    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def configure_model(self):
        if self.net is None:
            self.net = self.plan.build_seed()


class Manual(Lit):
    """Two optimizers, of which the other one steps twice as often."""

    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization, self.judge = False, nn.Linear(3, 1)

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.judge.parameters(), lr=0.1),
            torch.optim.Adam(self.net.parameters(), lr=0.01),
        ]

    def training_step(self, batch, index):
        other, own = self.optimizers()
        for optimizer in (other, other, own):
            optimizer.zero_grad()
            outputs = self.judge(self.net(self.batch(self.global_step)[0]))
            self.manual_backward(outputs.square().mean())
            optimizer.step()


class Watch(Callback):
    """Notes what the model computes after each step, and how wide it is."""

    def __init__(self):
        self.outputs, self.widths = {}, {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.outputs[trainer.global_step] = computed(pl_module)
        self.widths[trainer.global_step] = plain(pl_module.net)[0].out_features


def plain(net):
    return getattr(net, "_orig_mod", net)


def computed(module, net=None):
    """What a module's net computes now, or another net for the same inputs."""
    net = copy.deepcopy(plain(module.net if net is None else net)).eval()
    with torch.no_grad():
        return net(module.batch(0)[0])


def full():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16),
        nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return gr.plan(full(), torch.ones(2, 6), total_steps=STEPS, stages=3)


@pytest.fixture(autouse=True)
def _quiet_lightning(caplog):
    caplog.set_level("ERROR", "lightning.pytorch")
    caplog.set_level("ERROR", "pytorch_lightning")


def trainer(*callbacks, steps=STEPS, package=pl, **options):
    checkpoints = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    defaults = {"max_steps": steps, "enable_checkpointing": checkpoints, "logger": False}
    defaults |= {"accelerator": "cpu", "num_sanity_val_steps": 1}
    defaults |= {"enable_progress_bar": False, "enable_model_summary": False}
    return package.Trainer(**(defaults | options), callbacks=list(callbacks))


def every_step(folder):
    return ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=1, save_top_k=-1, enable_version_counter=False
    )  # fmt: skip


def built(kind, plan):
    torch.manual_seed(3)
    return kind(plan.build_seed())


def same(module, other):
    mine, theirs = module.state_dict(), other.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[n], theirs[n]) for n in mine)


def equal(one, other):
    """Whether nested states are equal bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


# Ways to train: (how the module is made, callbacks beside ours, where ours stands, options of the Trainer).
def rings(net):
    return Lit(net, gr.optim.AdamW)


def compiled_net(net):
    return Lit(torch.compile(net, backend="eager"))


def double(net):
    return Lit(net).double()  # else Lightning itself rounds what it loads


def with_average(net):
    module = Lit(net)
    module.average = AveragedModel(net).requires_grad_(False)
    return module


def ema():
    return EMAWeightAveraging(decay=0.8)


def swa():
    return StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)


WAYS = {
    "rings": (rings, [], {}),
    "accumulated and clipped": (Lit, [], {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    "ema": (Lit, [ema], {}),
    "an average of its own": (with_average, [], {}),
    "compiled": (compiled_net, [], {}),
    "two optimizers": (Manual, [], {"max_steps": 3 * STEPS}),
    "double": (double, [], {"precision": "64-true"}),
    "swa": (Lit, [swa], {"max_steps": -1, "max_epochs": 3}),
    "bf16": (Lit, [], {"precision": "bf16-mixed"}),
}
# Growths are after steps 2 and 8: in the seed, just grown, while norms fade in, while they do so again.
MOMENTS = (1, 2, 5, 9)


def contract(kind, plan, others, options, folder, is_first=True, scale=1):
    """Grows on time; is complete at the end; resumed anywhere it ends with the same bits."""

    def callbacks():
        growth = GrowthCallback(plan, fade=0.8)
        beside = [make() for make in others]
        return growth, [growth, *beside] if is_first else [*beside, growth]

    module, watch = built(kind, plan), Watch()
    growth, placed = callbacks()
    run = trainer(*placed, watch, every_step(folder), **options)
    run.fit(module)
    assert growth.grower.is_complete
    assert same(plain(growth.grower.model), plain(module.net))
    ends = [sum(plan.stage_steps[: t + 1]) for t in range(2)]
    assert ends == [2, 8]
    for step in range(1, STEPS):
        stage = sum(step >= end for end in ends)
        assert watch.widths[step * scale] == plan.widths("0")[stage], step
    optimizer = run.optimizers[-1].state_dict()
    for moment in MOMENTS:
        path = f"{folder}/step={moment * scale}.ckpt"
        again = built(kind, plan)
        growth, placed = callbacks()
        resumed = trainer(*placed, **options)
        resumed.fit(again, ckpt_path=path)
        assert growth.grower.is_complete
        assert same(again, module), moment
        assert equal(resumed.optimizers[-1].state_dict(), optimizer)
    return module, watch


def test_a_run_resumed_anywhere_ends_with_the_same_bits(plan, tmp_path):
    kind, others, options = WAYS["rings"]
    module, watch = contract(kind, plan, others, options, tmp_path)
    # and it is tested at any stage: forwards and backwards, in the module that was trained and in a seed
    fresh = built(kind, plan)
    for moment in (*MOMENTS, STEPS, 1):
        path = f"{tmp_path}/step={moment}.ckpt"
        for each in (module, fresh):
            trainer(GrowthCallback(plan)).test(each, ckpt_path=path, verbose=False)
            assert torch.equal(computed(each), watch.outputs[moment])
    assert not module._load_state_dict_pre_hooks  # nothing is left on it


@pytest.mark.each(2)
@pytest.mark.parametrize("name", [name for name in WAYS if name not in ("rings", "compiled")])
def test_every_way_to_train_grows_and_resumes(name, plan, tmp_path):
    kind, others, options = WAYS[name]
    contract(kind, plan, others, options, tmp_path, True, 3 if kind is Manual else 1)
    if others:
        contract(kind, plan, others, options, tmp_path / "after", False)


@pytest.mark.slow
def test_a_compiled_net_grows_and_resumes(plan, tmp_path):
    kind, others, options = WAYS["compiled"]
    contract(kind, plan, others, options, tmp_path)


@pytest.mark.slow
def test_a_compiled_module_is_the_plain_one(plan, tmp_path):
    plain_one, other = built(Lit, plan), built(Lit, plan)
    for module in (plain_one, torch.compile(other, backend="eager")):
        trainer(GrowthCallback(plan), limit_val_batches=0).fit(module)
    for name, tensor in plain_one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor)


# Where the model stands.


def test_the_module_may_be_the_model_or_be_built_late(plan, tmp_path):
    torch.manual_seed(0)
    own = gr.plan(Itself(), torch.ones(2, 6), total_steps=STEPS, stages=3)
    for each, make in ((own, own.build_seed), (plan, lambda: Late(plan))):
        module = make()
        trainer(GrowthCallback(each), every_step(tmp_path)).fit(module)
        again, growth = make(), GrowthCallback(each)
        trainer(growth).fit(again, ckpt_path=f"{tmp_path}/step=5.ckpt")
        assert growth.grower.is_complete and again.net[0].out_features == 16
        assert same(module, again)
        shutil.rmtree(tmp_path)


def test_two_models_grow_by_two_callbacks(plan, tmp_path):
    class Two(Lit):
        def __init__(self):
            super().__init__(plan.build_seed())
            self.other = plan.build_seed()

        def loss(self, number):
            return super().loss(number) + self.other(self.batch(number)[0]).square().mean()

    def callbacks():
        return [GrowthCallback(plan, "net"), GrowthCallback(plan, "other", noise=0, fade=0.5)]

    module = Two()
    run = trainer(*callbacks(), every_step(tmp_path))
    run.fit(module)
    assert {"growth/net/stage", "growth/other/stage"} <= set(run.callback_metrics)
    again = Two()
    trainer(*callbacks()).fit(again, ckpt_path=f"{tmp_path}/step=5.ckpt")
    assert same(module, again)


def test_it_says_which_model_it_means(plan):
    module = Lit(plan.build_seed())
    module.teacher = copy.deepcopy(module.net).requires_grad_(False)
    with pytest.raises(InputError, match="fits 2 models in the Lit: 'net', 'teacher'"):
        trainer(GrowthCallback(plan)).fit(module)
    trainer(GrowthCallback(plan, averages=["teacher"])).fit(module)
    assert module.teacher[0].out_features == 16
    with pytest.raises(InputError, match="nothing in the Lit has the shapes"):
        trainer(GrowthCallback(plan)).fit(Lit(nn.Linear(6, 3)))


# Checkpoints.


def test_load_from_checkpoint_works_at_any_stage(plan, tmp_path):
    class Loads(Lit):
        def __init__(self):
            super().__init__(plan.build_seed())
            self.teacher = copy.deepcopy(self.net).requires_grad_(False)

        def on_load_checkpoint(self, checkpoint):
            match_checkpoint(self, plan, checkpoint, averages=["teacher"])

    class Teaches(Watch):
        def on_train_batch_end(self, trainer, pl_module, *_):
            super().on_train_batch_end(trainer, pl_module)
            self.widths[trainer.global_step] = computed(pl_module, pl_module.teacher)

    def growth():
        return GrowthCallback(plan, averages=["teacher"], fade=0.8)

    module, watch = Loads(), Teaches()
    trainer(growth(), watch, every_step(tmp_path)).fit(module)
    for moment in (*MOMENTS, STEPS):
        path = f"{tmp_path}/step={moment}.ckpt"
        loaded = Loads.load_from_checkpoint(path, weights_only=True)
        assert torch.equal(computed(loaded), watch.outputs[moment])
        assert torch.equal(computed(loaded, loaded.teacher), watch.widths[moment])
    again = Loads()
    trainer(growth()).fit(again, ckpt_path=f"{tmp_path}/step=5.ckpt")
    assert same(again, module)
    # a model of full size goes back, too
    trainer(growth()).fit(again, ckpt_path=f"{tmp_path}/step=1.ckpt")
    assert same(again, module)


def test_what_a_failure_interrupts_goes_on(plan, tmp_path):
    class Fails(Callback):
        at = sum(
            plan.stage_steps[:1]
        )  # after the step that a growth is due after, before it is made

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == self.at:
                raise ZeroDivisionError

    whole = built(Lit, plan)
    trainer(GrowthCallback(plan)).fit(whole)
    module, growth = built(Lit, plan), GrowthCallback(plan)
    run = trainer(Fails(), growth, OnExceptionCheckpoint(tmp_path), every_step(tmp_path))
    with pytest.raises(ZeroDivisionError):
        run.fit(module)
    assert not module._load_state_dict_pre_hooks
    again = built(Lit, plan)
    trainer(GrowthCallback(plan)).fit(again, ckpt_path=f"{tmp_path}/on_exception.ckpt")
    assert same(again, whole)
    # the module itself goes on as well: the same callback in another trainer
    trainer(growth, steps=STEPS - Fails.at + 1).fit(module)
    assert growth.grower.is_complete


def test_a_growth_that_fails_is_tried_again(plan):
    class Spoils(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            if trainer.global_step == plan.stage_steps[0]:
                pl_module.net[0].bias.data[0] = torch.nan

    growth, module = GrowthCallback(plan), built(Lit, plan)
    with pytest.raises(InputError, match=r"'0\.bias' holds values that are not finite"):
        trainer(Spoils(), growth).fit(module)
    assert module.net[0].out_features == growth.grower.model[0].out_features == 4
    nn.init.zeros_(module.net[0].bias)
    left = STEPS - plan.stage_steps[0] + 1
    trainer(growth, steps=left).fit(module)
    assert growth.grower.is_complete


def told(caught):
    return [str(each.message) for each in caught if each.category is GrowthWarning]


def test_fits_of_one_callback(plan):
    growth, module = GrowthCallback(plan, fade=0.8), built(Lit, plan)
    with pytest.warns(GrowthWarning) as caught:
        run = trainer(growth, steps=4)
        run.fit(module)
    assert told(caught) == [
        "the trainer stops after 4 optimizer steps, the plan was made for 12. Make it for as many: gr.plan(..., "
        "total_steps=4).",
        "the training ended after step 4 of the plan's 12; the model was left with 1 growth to go until its full "
        "size, and 1 norm still fading in. fit(ckpt_path=...) goes on where a checkpoint was saved.",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrowthWarning)
        trainer(growth, steps=STEPS - 4).fit(module)  # another trainer, from where it was
        assert growth.grower.is_complete
        trainer(growth).fit(built(Lit, plan))  # another model, from its beginning
        assert growth.grower.is_complete
        trainer(growth, fast_dev_run=True, steps=-1).fit(built(Lit, plan))
    with pytest.warns(GrowthWarning, match="'net' has its full size already, so nothing will grow"):
        trainer(growth).fit(Lit(full()))


def test_stages_of_equal_widths():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plan = gr.plan(net, torch.ones(1, 4), total_steps=8, stages=4)
    assert len({tuple(plan.named_widths(t).values()) for t in range(4)}) < 4

    class Small(Lit):
        def loss(self, number):
            return self.net(self.batch(number)[0][:, :4]).square().mean()

    for steps in range(1, 8):
        growth, module = GrowthCallback(plan), Small(plan.build_seed())
        with pytest.warns(GrowthWarning):
            trainer(growth, steps=steps).fit(module)
        stage = growth.grower.stage
        trainer(growth, steps=8 - steps).fit(module)
        assert stage == sum(steps >= sum(plan.stage_steps[: t + 1]) for t in range(3))
        assert growth.grower.is_complete


@pytest.mark.parametrize("make", [ema, swa])
def test_a_checkpoint_that_knows_of_no_average_starts_one(make, plan, tmp_path):
    trainer(GrowthCallback(plan), every_step(tmp_path)).fit(built(Lit, plan))
    growth = GrowthCallback(plan)
    run = trainer(growth, make(), max_steps=-1, max_epochs=3)
    run.fit(built(Lit, plan), ckpt_path=f"{tmp_path}/step=5.ckpt")
    assert growth.grower.is_complete


# What is logged, counted and refused.


def test_stage_and_size_are_logged(plan):
    class Logged(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_end(self, trainer, *_):
            logged = trainer.callback_metrics
            self.seen.append((int(logged["growth/stage"]), int(logged["growth/parameters"])))

    logged = Logged()
    trainer(GrowthCallback(plan), logged).fit(built(Lit, plan))
    ends = [sum(plan.stage_steps[: t + 1]) for t in range(2)]
    stages = [sum(step >= end for end in ends) for step in range(1, STEPS + 1)]
    assert logged.seen == [(t, plan.num_parameters(t)) for t in stages]
    growth = GrowthCallback(plan)
    run = pl.Trainer(barebones=True, max_steps=STEPS, accelerator="cpu", callbacks=[growth])
    run.fit(built(Lit, plan))
    assert growth.grower.is_complete and not run.callback_metrics


@pytest.mark.parametrize("is_first", [True, False])
def test_a_tuner_within_the_fit_changes_nothing(is_first, plan, tmp_path):
    class Tuned(Lit):
        lr = 0.01

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.zeros(20, 1))

    growth, module = GrowthCallback(plan), built(Tuned, plan)
    finder = LearningRateFinder(num_training_steps=8)
    placed = [growth, finder] if is_first else [finder, growth]
    with pytest.warns(GrowthWarning, match="stops after 4"):
        trainer(growth, steps=4).fit(module)
    # in another trainer, whose steps begin at 0
    ends = STEPS - 4
    run = trainer(*placed, steps=ends, enable_checkpointing=True, default_root_dir=tmp_path)
    run.fit(module)
    assert growth.grower.is_complete and growth.state_dict()["growth"]["pace"]["step"] == STEPS


def test_a_checkpoint_of_weights_only_is_warned_of(plan, tmp_path):
    with pytest.warns(GrowthWarning) as caught:
        bare = ModelCheckpoint(tmp_path, save_weights_only=True)
        trainer(GrowthCallback(plan), bare).fit(built(Lit, plan))
    assert told(caught) == [
        "ModelCheckpoint saves weights only. Norms of this model fade in after each growth, and until they have, "
        "the same weights in a plain model compute something else: leave save_weights_only out."
    ]


def test_arguments_that_cannot_be(plan):
    endless = gr.plan(full(), torch.ones(2, 6), stages=2)
    refused = {
        lambda: GrowthCallback(full()): "plan is a Sequential; pass what gr.plan(...) returned.",
        lambda: GrowthCallback(
            endless
        ): "the plan does not know how long the run is, so the callback could not tell "
        "when to grow: make it with gr.plan(..., total_steps=N), N being the optimizer steps that the trainer will "
        "take.",
        lambda: GrowthCallback(
            plan, nois=0
        ): "GrowthCallback got 'nois', which is none of its arguments nor an "
        "option of gr.Grower: batches, fade, generator, loss, method, noise, unknown_state, variance_transfer.",
        lambda: GrowthCallback(
            plan, nn.Linear(2, 2)
        ): "module is a Linear; pass the name that it has in the LightningModule, such as 'net'.",
        lambda: GrowthCallback(
            plan, averages="ema"
        ): "averages is a str; pass a list of the names that averages of "
        "the model have in the LightningModule, such as ['teacher'].",
    }
    for make, text in refused.items():
        with pytest.raises(InputError) as caught:
            make()
        assert str(caught.value) == text
    module = built(Lit, plan)
    module.head = nn.Linear(2, 2)
    module.configure_optimizers = lambda: torch.optim.SGD(module.head.parameters(), lr=0.1)
    with pytest.raises(InputError) as caught:
        trainer(GrowthCallback(plan)).fit(module)
    assert str(caught.value) == (
        "no optimizer of configure_optimizers() trains 'net', the model that grows. Give it the parameters of the "
        "LightningModule: Optimizer(self.parameters(), ...)."
    )


def test_a_checkpoint_of_another_plan_is_refused(plan, tmp_path):
    run = trainer(GrowthCallback(plan), every_step(tmp_path))
    run.fit(built(Lit, plan))
    other = gr.plan(full(), torch.ones(2, 6), total_steps=STEPS, stages=2)
    with pytest.raises(InputError, match="it has 3 stages, this plan has 2"):
        module = Lit(other.build_seed())
        trainer(GrowthCallback(other)).fit(module, ckpt_path=f"{tmp_path}/step={STEPS}.ckpt")


def test_strategies_under_which_a_model_cannot_grow():
    for kind in (FSDPStrategy, ModelParallelStrategy):
        with pytest.raises(UnsupportedModelError) as caught:
            check_strategy(kind(), "fit")
        assert str(caught.value) == (
            f"a model cannot grow under Lightning's {kind.__name__}, which may cut its weights into pieces where "
            "the callback cannot reach them. Use strategy='ddp', or one device."
        )
    check_strategy(DDPStrategy(), "fit")
    check_strategy(DDPStrategy(start_method="spawn"), "test")
    with pytest.raises(UnsupportedModelError) as caught:
        check_strategy(DDPStrategy(start_method="fork"), "fit")
    assert str(caught.value) == (
        "a model cannot grow under Lightning's DDPStrategy with start_method='fork': it hands the trained weights "
        "back to a process whose model has never grown. Use strategy='ddp', which starts the script once for each "
        "device."
    )


# Several processes.


class Shared(Lit):
    """Each process has a part of the batch; no statistics of batches, so that parts make the whole."""

    def __init__(self, net, parts=1):
        super().__init__(net)
        self.parts = parts

    def training_step(self, batch, index):
        numbers = [2 * self.global_step + part for part in range(2)]
        own = numbers if self.parts == 1 else [numbers[self.global_rank]]
        return sum(self.loss(number) for number in own) / len(own)


def shared_plan():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)).double()
    return gr.plan(net, torch.ones(2, 6).double(), total_steps=STEPS, stages=3)


def train_on_ranks(rank, folder):
    """A run and what follows it, on one of two processes.

    Returns:
        The weights at the end, and what is true of the rest.
    """
    from lightning.pytorch.plugins.environments import LightningEnvironment

    warnings.simplefilter("ignore")
    plan = shared_plan()

    def on_two(*callbacks, **options):
        strategy = DDPStrategy(
            process_group_backend="gloo", cluster_environment=LightningEnvironment()
        )
        return trainer(*callbacks, strategy=strategy, devices=2, **options)

    module, growth = Shared(plan.build_seed(), 2), GrowthCallback(plan, fade=0.8)
    on_two(growth, every_step(folder)).fit(module)
    weights = {name: tensor.clone() for name, tensor in module.net.state_dict().items()}
    facts = {"complete": growth.grower.is_complete}
    for moment in MOMENTS:
        torch.manual_seed(rank)  # processes need not draw alike
        again = Shared(plan.build_seed(), 2)
        on_two(GrowthCallback(plan, fade=0.8)).fit(again, ckpt_path=f"{folder}/step={moment}.ckpt")
        facts[f"resumed at {moment}"] = same(again, module)
    on_two(growth).test(again, ckpt_path=f"{folder}/step=5.ckpt", verbose=False)
    facts["tested"] = again.net[0].out_features == plan.widths("0")[1]
    on_two(growth, steps=STEPS - 5).fit(again)  # a second fit of one module
    facts["fitted again"] = growth.grower.is_complete
    return weights, facts


@pytest.mark.slow
def test_two_processes_train_as_one_and_resume(tmp_path):
    (first, facts), (second, others) = on_ranks(train_on_ranks, str(tmp_path))
    assert facts == others == dict.fromkeys(facts, True)
    plan = shared_plan()
    alone, resumed = Shared(plan.build_seed()), Shared(plan.build_seed())
    trainer(GrowthCallback(plan, fade=0.8)).fit(alone)
    path = f"{tmp_path}/step=5.ckpt"  # one process goes on where two were
    trainer(GrowthCallback(plan, fade=0.8)).fit(resumed, ckpt_path=path)
    for name, tensor in alone.net.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], tensor, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(resumed.net.state_dict()[name], tensor, rtol=1e-10, atol=1e-10)


def test_without_lightning_it_says_what_to_install():
    code = (
        "import sys; sys.modules |= {'lightning': None, 'pytorch_lightning': None}; import growthring; "
        "import growthring.integrations.lightning"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1] == (
        "ImportError: growthring.integrations.lightning needs Lightning, which is not installed: pip install "
        '"growthring[lightning]"'
    )
    assert "lightning.py" in ran.stderr  # growthring itself does not need it


@pytest.mark.slow
def test_the_other_package_of_the_same_name(plan, tmp_path):
    """In a process of its own: Lightning minds being imported twice."""
    code = f"""
import torch, growthring as gr, pytorch_lightning as pl
from growthring.integrations.lightning import GrowthCallback
from torch import nn
class Lit(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def training_step(self, batch, index):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
plan = gr.plan(net, torch.ones(1, 4), total_steps=6)
for path in (None, {str(tmp_path / "mid.ckpt")!r}):
    model, growth = Lit(plan.build_seed()), GrowthCallback(plan)
    run = pl.Trainer(max_steps=6 if path else 4, accelerator="cpu", callbacks=growth, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
    run.fit(model, torch.utils.data.DataLoader(torch.ones(6, 4)), ckpt_path=path)
    run.save_checkpoint({str(tmp_path / "mid.ckpt")!r})
print("complete", growth.grower.is_complete, isinstance(growth, pl.Callback))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "complete True True" in ran.stdout, ran.stderr


def test_the_page_runs(tmp_path):
    ran = run_script(blocks("lightning.md")[0], tmp_path)
    lines = [line for line in ran.stdout.splitlines() if line.endswith(("True", "False"))]
    assert lines == ["64 True", "True True", "True"]
    assert ran.stderr.count("grew: stage 1: ") == 2  # of the second run it was the later one
