"""A small model with the shapes of a stage and other numbers in its code is refused."""

import pytest
import torch
from torch import nn

import growthring as gr
from tests.growth_contract import randn


class Small(nn.Module):
    """nanoGPT's attention by its constructor: a user builds it at any width."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.n_head, self.width = heads, width
        self.scale = (width // heads) ** -0.5
        self.temperature, self.steps = 1.0, 0
        self.stem, self.qkv = nn.Linear(4, width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        h = self.stem(x)
        q, k, v = (
            p.view(*p.shape[:2], self.n_head, -1).transpose(1, 2) for p in self.qkv(h).chunk(3, -1)
        )
        y = (q @ k.mT * self.scale / self.temperature).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


def planned() -> gr.Plan:
    torch.manual_seed(0)
    return gr.plan(Small(), randn(2, 5, 4).float(), stages=2, start=0.5, growth=None, heads="size")


def test_a_model_with_another_number_of_heads_is_refused():
    with pytest.raises(
        gr.GrowthError, match=r"'n_head' of the model is 2, at stage 0 of the plan it is 4"
    ):
        gr.Grower(Small(8, heads=2), planned())


def test_a_stored_factor_of_another_width_is_refused():
    model = Small(8, heads=4)
    wanted = f"'scale' of the model is {2**-0.5}, at stage 0 of the plan it is 0.5"
    with pytest.raises(gr.GrowthError, match=wanted):
        gr.Grower(model, planned())
    model.scale = 0.5
    gr.Grower(model, planned()).grow()


def test_what_training_changes_is_accepted():
    plan = planned()
    seed = plan.build_seed()
    seed.temperature, seed.steps = 0.9, 1234
    gr.Grower(seed, plan).grow()
    assert (seed.temperature, seed.steps) == (0.9, 1234)


def test_what_the_forward_pass_writes_is_no_setting():
    """The length of a cache, and a count of steps that the code goes by."""

    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
            self.table, self.length, self.steps = None, 0, 0

        def forward(self, x):
            if self.length < x.shape[1]:
                self.length = x.shape[1]
                self.table = torch.arange(self.length, dtype=x.dtype).cos()
            if self.training:
                self.steps += 1
            h = self.a(x).relu() + self.table[: x.shape[1], None]
            return self.b(h if self.steps < 3 else 0.5 * h)

    torch.manual_seed(0)
    x = randn(2, 5, 4).float()
    plan = gr.plan(Remembering(), x, stages=2, growth=None)
    seed = plan.build_seed()
    for _ in range(4):
        seed(x)
    gr.Grower(seed, plan, noise=0.0).grow()
    assert (seed.length, seed.steps) == (5, 4)


def test_an_average_with_another_number_is_refused():
    plan = planned()
    seed = plan.build_seed()
    average = torch.optim.swa_utils.AveragedModel(seed)
    average.module.n_head = 2
    with pytest.raises(gr.GrowthError, match="'n_head' of the model is 2"):
        gr.Grower(seed, plan, averages=average)


def test_a_number_of_groups_counts_without_showing_in_a_shape():
    class Grouped(nn.Module):
        def __init__(self, groups: int) -> None:
            super().__init__()
            self.groups = groups
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(nn.functional.group_norm(self.a(x), self.groups).relu())

    torch.manual_seed(0)
    plan = gr.plan(
        nn.Sequential(Grouped(4), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)),
        randn(3, 4).float(), stages=2, growth=None, freeze="0.*",
    )  # fmt: skip
    seed = plan.build_seed()
    seed[0].groups = 2
    with pytest.raises(gr.GrowthError, match=r"'0.groups' of the model is 2.* it is 4"):
        gr.Grower(seed, plan)
