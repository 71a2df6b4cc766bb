"""The last axis of a model's outputs may gain entries, unless something inside of the model reads or fixes it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import growthring as gr
from growthring import zoo
from growthring.errors import InputError, PlanError

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
TEXTS = torch.zeros(2, 6, dtype=torch.int64)


class Net(nn.Module):
    """Twelve logits, and what a function makes of them with some layers of its own."""

    def __init__(self, code, classes=12, **parts):
        super().__init__()
        self.code = code
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, classes)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.code(self, self.head(F.relu(self.body(x))))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block = nn.Linear(6, 12), nn.Linear(12, 12)

    def forward(self, x):
        x = self.stem(x)
        return x + self.block(F.relu(x))


def two(first, second):
    return Net(
        lambda self, z: (z, self.other(F.relu(z.new_ones(2, 16)))),
        first,
        other=nn.Linear(16, second),
    )


CANNOT = "classes: the last axis of model output 0 of .* cannot gain entries: "
REFUSED = {
    "fed back": (Net(lambda s, z: z + s.b(z), b=nn.Linear(12, 12)), CANNOT + "'b.weight' reads it inside"),
    "residual stream": (Residual(), CANNOT + "'block.weight' reads it inside of the model, so what is old"),
    "softmax": (Net(lambda s, z: z.softmax(-1)), CANNOT + "operator 'aten.softmax' .* combines its entries"),
    "centred": (Net(lambda s, z: z - z.mean(-1, keepdim=True)), CANNOT + r".*combines its entries, so what is old"),
    "norm": (Net(lambda s, z: s.n(z), n=nn.LayerNorm(12)), CANNOT + "'n' combines its entries"),
    "summed": (Net(lambda s, z: z + z @ torch.ones(z.shape[1], 1)), CANNOT + "the model's code multiplies it"),
    "literal": (Net(lambda s, z: z.view(-1, 12)), CANNOT + r"the code of '\(model\)' does not follow another"),
    "buffer": (Net(lambda s, z: z + s.m, m=nn.Buffer(torch.ones(12).cumsum(0))), CANNOT + "buffer 'm' spans it"),
    "turned": (Net(lambda s, z: z.flip(-1)), CANNOT + "operator 'aten.flip'"),
    "put together": (Net(lambda s, z: torch.cat([z, s.b(z.new_ones(2, 4))], -1), 6, b=nn.Linear(4, 6)),
                     CANNOT + "it is made of several widths"),
    "another number": (Net(lambda s, z: z, 10), r"ends with 12: model output 0 of Net, of shape \(2, 10\), has 10"),
    "another head": (two(12, 10), r"model output 1 of Net, of shape \(2, 10\), has 10 .* outputs="),
    "a loss": (Net(lambda s, z: z.sum()), r"model output 0 of Net, of shape \(\), has no axis"),
    "one head in train mode": (Net(lambda s, z: (z, z.softmax(-1)) if s.training else z),
                               CANNOT + "operator 'aten.softmax'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_gain_classes_is_refused_with_the_reason(name):
    model, text = REFUSED[name]
    with pytest.raises(PlanError, match=text):
        gr.plan(model, X, classes=(3, 12))


def test_tied_embeddings_are_refused_and_others_are_not():
    with pytest.raises(PlanError, match=CANNOT + "operator 'aten.embedding' in 'token_embedding'"):
        gr.plan(zoo.GPT(12, 6, 1, 4, 16), TEXTS, classes=(3, 12))
    plan = gr.plan(zoo.GPT(12, 6, 1, 4, 16, tied=False), TEXTS, classes=(3, 12))
    assert plan.build_seed()(TEXTS % 3).shape == (2, 6, 3)


def test_frozen_classes_and_a_single_one_are_refused():
    with pytest.raises(PlanError, match=CANNOT + "freeze='head'"):
        gr.plan(Net(lambda s, z: z), X, classes=(3, 12), freeze=["head"])
    with pytest.raises(PlanError, match=CANNOT + "it has one entry, which is no width"):
        gr.plan(Net(lambda s, z: z, 1), X, classes=(1, 1))


def test_a_factory_that_does_not_follow_is_refused():
    def build(widths):
        return nn.Sequential(nn.Linear(6, widths["0"]), nn.ReLU(), nn.Linear(widths["0"], 12))

    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12))
    with pytest.raises(
        InputError, match=r"build\(widths\) does not give the model at other widths"
    ):
        gr.plan(net, X, classes=(3, 12), build=build)


TAKEN = {
    "scaled": Net(lambda s, z: z / 3),
    "scaled by their number": Net(lambda s, z: z / z.shape[1] ** 0.5),
    "a norm of each": Net(lambda s, z: s.n(z), n=nn.BatchNorm1d(12)),
    "as many as hidden units": Net(lambda s, z: z, body=nn.Linear(6, 12), head=nn.Linear(12, 12)),
    "two heads": two(12, 12),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_takes_each_class_by_itself_may_gain_some(name):
    plan = gr.plan(TAKEN[name], X, classes=(1, 2, 12))
    model = plan.build_seed()
    grower = gr.Grower(model, plan, noise=0.0)
    while not grower.is_full:
        assert grower.grow().change.relative < 1e-5
    assert all(g.frozen is None and g.is_output for g in plan.groups if g.is_classes)


def test_named_parts_that_count_gain_classes_and_others_need_not():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 12)

        def forward(self, x):
            hidden = F.relu(self.body(x))
            return {"logits": self.head(hidden), "hidden": hidden}

    with pytest.raises(PlanError, match="model output 1 of Named"):
        gr.plan(Named(), X, classes=(3, 12))
    plan = gr.plan(Named(), X, classes=(3, 12), outputs=["logits"])
    assert plan.build_seed()(X)["logits"].shape == (2, 3)
