"""Discovery over more than one forward pass: parts that only train mode reaches."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring.graph.trace import trace
from tests.growth_contract import Net


class Auxiliary(nn.Module):
    """A second head that only train mode runs, as in GoogLeNet and Inception."""

    def __init__(self, kernel: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.head = nn.Conv2d(12, 4, 1)
        self.aux = nn.Sequential(nn.Conv2d(12, 8, kernel), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x):
        h = self.stem(x).relu()
        out = self.head(h).mean((2, 3))
        return (out, self.aux(h).mean((2, 3))) if self.training else out


def test_a_head_of_train_mode_grows_along(generator):
    model = Auxiliary().double()
    x = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
    plan = gr.plan(model, x, stages=3, growth=None)
    assert {g.name for g in plan.groups.growable} == {"stem", "aux.0"}
    seed = plan.build_seed().train()
    assert seed.aux[0].in_channels == seed.stem.out_channels == 4
    grower = gr.Grower(seed, plan, noise=0.0)
    while not grower.is_full:
        before = [t.detach() for t in seed(x)]
        grower.grow()
        for old, new in zip(before, seed(x), strict=True):
            torch.testing.assert_close(new.detach(), old, rtol=1e-12, atol=1e-12)
    model.load_state_dict(seed.state_dict(), strict=True)


def test_inputs_that_train_mode_does_not_take_are_refused(generator):
    x = torch.randn(2, 3, 6, 6, generator=generator)
    with pytest.raises(gr.GrowthError, match=r"'aux.0.bias', are not reached in eval mode.*larger"):
        gr.plan(Auxiliary(kernel=9), x)


def test_parameters_that_nothing_uses_are_named_and_kept(generator):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model.spare = nn.Identity()
    model.spare.weight = nn.Parameter(torch.ones(8))
    plan = gr.plan(model, torch.randn(2, 4, generator=generator), stages=2)
    assert any("'spare.weight'" in note for note in plan.notes)
    assert plan.build_seed().spare.weight.shape == (8,)


def test_tracing_leaves_nothing_on_the_model(generator):
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
            self.cache: dict[str, torch.Tensor] = {}

        def forward(self, x):
            self.cache["hidden"] = self.a(x).relu()
            return self.b(self.cache["hidden"])

    model = Caching()
    gr.discover_width_groups(model, torch.randn(2, 4, generator=generator))
    assert model.cache == {}


def test_unused_operators_restrict_nothing(generator):
    class Peek(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = self.a(x)
            length = h[:, 0].shape[0]  # a select whose values nobody uses
            return self.b(h.view(length, -1))

    x = torch.randn(2, 4, generator=generator)
    assert "aten.select.int" not in [op.name for op in trace(Peek(), x).ops]
    assert gr.discover_width_groups(Peek(), x)["a"].grows


BUFFERS = {
    "written": lambda self, x: self.b((self.a(x) + F.linear(x, self.fixed.T)).sin()),
    "read": lambda self, x: self.a(x).relu() @ self.fixed.T,
    "table": lambda self, x: self.b(self.a(x) * F.embedding(torch.tensor([0]), self.fixed)),
    "gain": lambda self, x: self.b(F.layer_norm(self.a(x), self.gain.shape, self.gain)),
    "kernel": lambda self, x: self.b(F.conv1d(self.a(x)[..., None], self.kernel, groups=8)[..., 0]),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_fixed_tensor_in_the_place_of_a_weight_keeps_its_widths(name, generator):
    """Random features, a blur kernel: its new entries would be made up, and could never learn."""
    model = Net(BUFFERS[name], a=nn.Linear(4, 8), b=nn.Linear(8, 2))
    model.register_buffer("fixed", torch.randn(4, 8, generator=generator))
    model.register_buffer("gain", torch.rand(8, generator=generator))
    model.register_buffer("kernel", torch.rand(8, 1, 1, generator=generator))
    with pytest.raises(gr.GrowthError, match=r"a \(8\): buffer '\w+' spans it, and nobody knows"):
        gr.discover_width_groups(model, torch.randn(3, 4, generator=generator))
