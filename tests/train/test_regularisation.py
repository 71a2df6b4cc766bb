"""Weight decay and augmentation that grow with the network."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from growthring.data import Augmentation, Batches, TextBatches, load
from growthring.errors import InputError
from growthring.train import Silence, Trainer, change
from growthring.train.recipes import python_gpt
from growthring.train.regularisation import Regularisation
from tests.compare.comparisons import compare
from tests.train.runs import Killer, assert_same_run, metrics, small, stepped
from tests.train.test_own_data import TABLE
from tests.train.test_resume import Stop, stop

NARROW = ("narrow_weight_decay=0.2", "narrow_augmentation=0.25")
STRENGTHS = pytest.approx([0.2, 0.2 + 0.8 / 3, 1.0])  # of the widths 2, 4, 8


class Watch(Silence):
    """Notes weight decay and share of augmented images at each step."""

    def __init__(self):
        super().__init__()
        self.decays, self.shares = {}, {}

    def step(self, status):
        self.decays.setdefault(status.stage, set()).add(
            tuple(group["weight_decay"] for group in self.trainer.optimizer.param_groups)
        )
        self.shares.setdefault(status.stage, set()).add(self.trainer.train._share)


def watched(recipe, folder, **options):
    watch = Watch()
    watch.trainer = Trainer(recipe, folder, progress=watch, **options)
    return watch


def single(found):
    """The value of each stage, in which there is one."""
    assert all(len(values) == 1 for values in found.values())
    return [next(iter(values)) for values in found.values()]


def test_both_rise_with_the_width_to_what_the_recipe_says(tmp_path):
    watch = watched(stepped(12, *NARROW), tmp_path)
    watch.trainer.fit()
    assert [decay / 5e-4 for (decay,) in single(watch.decays)] == STRENGTHS
    assert single(watch.shares) == pytest.approx([0.25, 0.5, 1.0])


def test_by_default_nothing_is_touched(tmp_path):
    recipe = small()
    assert not {"narrow_weight_decay", "narrow_augmentation"} & set(recipe.as_dict())
    watch = watched(recipe, tmp_path / "a")
    for group in watch.trainer.optimizer.param_groups:
        group["weight_decay"] = 0.125  # a user's own change
    watch.trainer.fit()
    assert single(watch.decays) == [(0.125,)] * 3 and single(watch.shares) == [1.0] * 3


@pytest.mark.parametrize("at", [2, 5, 8])
@pytest.mark.each(3)
def test_a_resumed_run_has_the_strengths_of_its_stage(at, tmp_path):
    recipe = stepped(12, *NARROW, "optimizer=adamw", "lr=0.01", "optimizer_options={}")
    Trainer(recipe, tmp_path / "whole", progress=Silence()).fit()
    trainer = Trainer(recipe, tmp_path / "run", checkpoint_steps=1, progress=Killer(at, stop))
    with pytest.raises(Stop):
        trainer.fit()
    watch = watched(recipe, tmp_path / "run")
    watch.trainer.resume()
    watch.trainer.fit()
    assert [decay / 1e-2 for (decay,) in single(watch.decays)][-1] == 1.0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_they_change_what_is_trained(tmp_path):
    losses = {}
    for name, settings in {"plain": (), "decay": NARROW[:1], "images": NARROW[1:]}.items():
        Trainer(small(*settings), tmp_path / name, progress=Silence()).fit()
        losses[name] = metrics(tmp_path / name)[0]["train_loss"]
    assert len(set(losses.values())) == 3


def test_groups_of_parameters_keep_their_own_decays_also_when_resumed():
    net = nn.Linear(4, 4)
    recipe = small("small=true", NARROW[0])  # the seed's width throughout

    def made():
        groups = [
            {"params": [net.weight], "weight_decay": 0.5},
            {"params": [net.bias], "weight_decay": 0},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        return optimizer, Regularisation(recipe, None, optimizer, None)

    def decays(optimizer):
        return [group["weight_decay"] for group in optimizer.param_groups]

    first, regularisation = made()
    regularisation.enter(0)
    assert decays(first) == [0.1, 0]
    again, regularisation = made()
    again.load_state_dict(first.state_dict())  # with the decay of its stage
    regularisation.enter(0)
    assert decays(again) == [0.1, 0]


def test_fixed_has_the_full_strength_and_small_that_of_its_width(tmp_path):
    for kind, strength in (("fixed", 1.0), ("small", 0.2)):
        watch = watched(stepped(3, *NARROW, f"{kind}=true"), tmp_path / kind)
        watch.trainer.fit()
        assert [decay / 5e-4 for (decay,) in single(watch.decays)] == pytest.approx([strength])


def images(share, seed=0):
    train, _ = load("digits")
    augmentation = Augmentation.of(train, shift=2, mirror=True)
    batches = Batches(train, len(train), augmentation, torch.Generator().manual_seed(seed))
    plain = Batches(train, len(train), augmentation, None)
    if share is not None:
        batches.augment(share)
    state = batches.state_dict()["generator_at_epoch_start"]
    order = torch.randperm(len(train), generator=torch.Generator().set_state(state))
    ((found, _),), ((still, _),) = batches, plain
    return found, still[order]


def test_a_share_of_the_images_is_augmented():
    changed = []
    for share in (0.0, 0.5, 1.0):
        found, still = images(share)
        changed.append(float((found != still).flatten(1).any(1).float().mean()))
    assert changed[0] == 0.0 and changed[1] == pytest.approx(changed[2] / 2, abs=0.04)
    assert changed[2] > 0.95
    assert torch.equal(images(1.0)[0], images(None)[0])


WRONG = {
    "beyond": (["narrow_weight_decay=1.5"], r"narrow_weight_decay=1.5: a share .* from 0 to 1"),
    "below": (["narrow_augmentation=-1"], r"narrow_augmentation=-1: a share .* from 0 to 1"),
    "no decay": (
        ["narrow_weight_decay=0.5", "optimizer_options={}"],
        "narrow_weight_decay=0.5: the optimizer 'sgd' has no weight decay",
    ),
    "no moves": (["narrow_augmentation=0.5", "shift=0"], "neither shifted nor mirrored"),
}


@pytest.mark.parametrize(("settings", "says"), WRONG.values(), ids=WRONG.keys())
def test_refused_before_anything_runs(settings, says, tmp_path):
    with pytest.raises(InputError, match=says):
        Trainer(small(*settings), tmp_path / "run", progress=Silence())
    assert not (tmp_path / "run").exists()


def test_text_and_batches_of_ones_own_have_no_augmentation(tmp_path):
    recipe = change(python_gpt(), {"narrow_augmentation": 0.5, "input_shape": (8,), "num_train": 8})
    recipe = change(recipe, {"model_options.width": 16, "model_options.block_size": 8})
    with pytest.raises(InputError, match=r"narrow_augmentation=0.5: .* without augmentation by"):
        Trainer(recipe, tmp_path, progress=Silence())
    assert not hasattr(TextBatches, "augment")
    own = {"model": lambda: nn.Linear(6, 2), "loss": nn.functional.mse_loss}
    with pytest.raises(InputError, match="come as they are"):
        Trainer(
            small("narrow_augmentation=0.5", "fixed=true"),
            tmp_path,
            train=DataLoader(TABLE, 16),
            progress=Silence(),
            **own,
        )


def test_a_comparison_refuses_it_before_any_training(tmp_path):
    for settings, says in ((["narrow_augmentation=0.5", "shift=0"], "neither shifted"),):
        with pytest.raises(InputError, match=rf"contender .*{says}"):
            compare(tmp_path, ["paired"], settings=settings).run()
    assert not list(tmp_path.glob("*/seed-0"))
