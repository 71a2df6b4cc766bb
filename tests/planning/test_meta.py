"""Plans of models on the meta device, whose initialiser's deviations are told instead of measured."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring import zoo


class Net(nn.Module):
    """Convolutions with BatchNorm, an embedding with a padding row, a head."""

    def __init__(self, width=16, features=24):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.table = nn.Embedding(7, features, padding_idx=0)
        self.fc, self.head = nn.Linear(width, features), nn.Linear(features, 2)

    def forward(self, x, tokens):
        pooled = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(F.relu(self.fc(pooled) + self.table(tokens).sum(1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Masked(nn.Module):
    """A buffer, and a plain attribute, whose values only the model's code knows."""

    def __init__(self, width=16, plain=False):
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 2)
        mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
        if plain:
            self.mask = mask
        else:
            self.register_buffer("mask", mask)

    def forward(self, x):
        return self.b(F.relu(self.a(x * self.mask)))


def on_meta(make, *args, **kwargs):
    with torch.device("meta"):
        return make(*args, **kwargs)


def inputs():
    return torch.randn(4, 3, 6, 6), torch.tensor([[1, 2, 0]] * 4)


def measured(model):
    """The deviations that a real model has, as a function of name and parameter."""
    stds = {n: float(p.detach().double().std(correction=0)) for n, p in model.named_parameters()}
    return lambda name, parameter: stds[name]


MODELS = {
    "net": (Net, inputs),
    "resnet8": (lambda: zoo.resnet8(), lambda: torch.randn(2, 3, 16, 16)),
    "lstm": (Recurrent, lambda: torch.randn(3, 2, 5)),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 16)), nn.ReLU(), nn.Linear(16, 2)
        ),
        lambda: torch.randn(2, 4),
    ),
}


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.each(2)
def test_the_plan_is_that_of_the_real_model(kind, where):
    make, given = MODELS[kind]
    real, example = make(), given()
    expected = gr.plan(real, example, total_steps=100, stages=3)
    moved = torch.utils._pytree.tree_map(lambda t: t.to(where), example)
    plan = gr.plan(on_meta(make), moved, total_steps=100, stages=3, deviations=measured(real))
    assert str(plan) == str(expected) and plan.as_dict() == expected.as_dict()
    assert plan.is_meta and not expected.is_meta
    for name, initial in expected.initial.items():
        assert plan.initial[name].constant == initial.constant, name
        assert math.isclose(plan.initial[name].std, initial.std, abs_tol=1e-12), name


def test_a_model_that_fits_into_no_memory():
    def make(wide):
        with torch.device("meta"):
            return nn.Sequential(
                nn.Linear(64, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, wide),
                nn.GELU(), nn.Linear(wide, 8),
            )  # fmt: skip

    model = make(1 << 18)
    assert sum(p.numel() * p.element_size() for p in model.parameters()) > 250e9
    plan = gr.plan(model, torch.randn(2, 64), total_steps=10_000, start=2**-12, deviations=0.02)
    assert f"{plan.num_parameters(plan.num_stages - 1):,}" in str(plan)
    assert plan.footprints[-1].parameter_bytes > 250e9
    seed = plan.build_seed(generator=torch.Generator().manual_seed(0))
    assert all(p.device.type == "cpu" for p in seed.parameters())
    narrow = seed[0].out_features
    assert narrow == 64 and seed(torch.randn(2, 64)).shape == (2, 8)
    # the deviation of the full model, at the seed's fan-in
    std = float(seed[3].weight.detach().std())
    assert std == pytest.approx(0.02 * math.sqrt((1 << 18) / narrow), rel=0.1)
    assert float(seed[0].weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert bool((seed[1].weight == 1).all()) and not bool(seed[3].bias.any())
    optimizer = gr.optim.AdamW(seed.parameters(), lr=1e-3)
    grower = gr.Grower(seed, plan, optimizer)
    grower.grow()
    grower.finish()
    assert seed[0].out_features == plan.widths("0")[1]


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_a_seed_is_drawn_and_grows_to_full_size(where):
    example = torch.utils._pytree.tree_map(lambda t: t.to(where), inputs())
    plan = gr.plan(on_meta(Net), example, total_steps=6, stages=3, deviations={"*.bias": 0, "*": 0.1})  # fmt: skip
    assert plan.initial["norm.weight"].constant == 1.0
    state = torch.get_rng_state()
    seed = plan.build_seed(generator=torch.Generator().manual_seed(3))
    assert torch.equal(state, torch.get_rng_state())
    again = plan.build_seed(generator=torch.Generator().manual_seed(3))
    assert all(
        torch.equal(a, b) for a, b in zip(seed.parameters(), again.parameters(), strict=True)
    )
    assert not bool(seed.table.weight[0].any()) and bool(seed.table.weight[1].any())
    assert bool((seed.norm.running_var == 1).all()) and int(seed.norm.num_batches_tracked) == 0
    optimizer = gr.optim.AdamW(seed.parameters(), lr=1e-3)
    grower = gr.Grower(seed, plan, optimizer)
    assert torch.equal(state, torch.get_rng_state())
    for _ in range(6):
        optimizer.zero_grad()
        seed(*inputs()).square().mean().backward()
        optimizer.step()
        grower.step()
    assert grower.is_complete
    full = Net()
    full.load_state_dict(seed.state_dict())
    assert all(bool(torch.isfinite(p).all()) for p in full.parameters())


def test_what_is_drawn_by_default_follows_the_global_seed():
    plan = gr.plan(on_meta(Net), inputs(), stages=2, deviations=0.1)
    seeds = []
    for number in (0, 0, 1):
        torch.manual_seed(number)
        seeds.append(plan.build_seed(device="cpu").fc.weight)
    assert torch.equal(seeds[0], seeds[1]) and not torch.equal(seeds[0], seeds[2])


def test_a_factory_gives_values_that_nobody_can_guess():
    def build(widths):
        return Masked(widths["a"])

    plan = gr.plan(on_meta(Masked), torch.randn(2, 4), stages=2, deviations=0.1, build=build)
    str(plan)
    seed = plan.build_seed()
    assert seed.mask.tolist() == [1, 0, 1, 1] and seed.a.out_features == 8
    gr.Grower(seed, plan).grow()
    assert seed.a.out_features == 16 and seed(torch.randn(2, 4)).shape == (2, 2)


@pytest.mark.parametrize(("plain", "what"), [(False, "buffer 'mask'"), (True, "'mask'")])
def test_values_that_nobody_knows_are_refused(plain, what):
    model = on_meta(Masked, plain=plain)
    plan = gr.plan(model, torch.randn(2, 4), stages=2, deviations=0.1)
    with pytest.raises(gr.GrowthError, match=rf"^{what} is on the meta device.*build="):
        plan.build_seed()


BAD = [
    (None, r"'conv\.weight' is on the meta device .*Pass deviations=.*a number for all weights"),
    (-0.1, r"deviations is -0\.1, not a standard deviation"),
    (True, "deviations is True, not a standard deviation"),
    ("0.1", r"deviations is '0\.1', not a standard deviation"),
    (float("nan"), "deviations is nan"),
    ({"*": float("inf")}, r"deviations\['\*'\] is inf"),
    ({"conv.*": 0.1, "cnov.*": 0.2}, r"deviations\['cnov\.\*'\]: no parameter has such a name"),
    ({"*": 0.1, 3: 0.1}, r"deviations\[3\]: no parameter has such a name.* or leave it out"),
    ({"conv.*": 0.1}, r"say nothing of 'table\.weight' \(7, 24\).*'\*' for all others"),
    (lambda name, p: None, r"say nothing of 'conv\.weight'"),
    (lambda name, p: -1.0, r"deviations\('conv\.weight', \.\.\.\) is -1\.0"),
]


@pytest.mark.parametrize(("deviations", "words"), BAD)
def test_deviations_that_cannot_be(deviations, words):
    with pytest.raises(gr.GrowthError, match=words):
        gr.plan(on_meta(Net), inputs(), stages=2, deviations=deviations)


def test_deviations_of_a_model_that_has_values():
    with pytest.raises(gr.GrowthError, match=r"of this one they are measured\. Leave them out"):
        gr.plan(Net(), inputs(), stages=2, deviations=0.1)


def test_a_model_of_which_some_has_values():
    model = Net()
    model.fc.to("meta")
    text = r"'fc\.weight' is on the meta device and has no values, 'conv\.weight' has some\. Build the whole"
    with pytest.raises(gr.GrowthError, match=text):
        gr.plan(model, inputs(), stages=2, deviations=0.1)
    with pytest.raises(gr.GrowthError, match=text):
        gr.plan(model, inputs(), stages=2)


def test_the_page_says_what_runs():
    text = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    section = text.split("### Models that fit into no memory")[1]
    code = section.split("```python\n")[1].split("```")[0]
    names = {"torch": torch, "gr": gr, "Giant": Recurrent, "example": torch.randn(3, 2, 5)}
    found = names | {"generator": torch.Generator()}
    exec(code.replace('"cuda"', '"cpu"'), found)
    assert found["plan"].is_meta and found["seed"].head.weight.device.type == "cpu"


def test_nothing_can_be_timed():
    plan = gr.plan(on_meta(Net), inputs(), stages=2, deviations=0.1)
    with pytest.raises(gr.GrowthError, match="no step of it can be timed"):
        plan.measure()
    with pytest.raises(gr.GrowthError, match="no step of it can be timed"):
        gr.plan(on_meta(Net), inputs(), stages=2, deviations=0.1, budget=0.5, budget_of="seconds")


def test_a_seed_on_a_device_that_cannot_be():
    plan = gr.plan(on_meta(Net), inputs(), stages=2, deviations=0.1)
    with pytest.raises(gr.GrowthError, match="device='nope' is no device of torch"):
        plan.build_seed(device="nope")
    with pytest.raises(gr.GrowthError, match="device='meta' holds no values: leave it out"):
        plan.build_seed(device="meta")


@pytest.mark.slow
def test_a_rotary_model_takes_its_tables_from_build():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 37, "num_hidden_layers": 1, "max_position_embeddings": 10, "head_dim": 4}

    def build(widths):
        heads, inner = (
            next(n for name, n in widths.items() if key in name) for key in ("q_proj", "gate_proj")
        )
        own = {
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "intermediate_size": inner,
        }
        config = transformers.LlamaConfig(hidden_size=widths["model.embed_tokens"], **own, **sizes)
        return transformers.LlamaForCausalLM(config)

    full = {"model.embed_tokens": 32, "q_proj": 8, "gate_proj": 48}
    tokens = torch.randint(37, (2, 10), generator=torch.Generator().manual_seed(0))
    options = {"total_steps": 3, "deviations": {"*": 0.02}}
    plan = gr.plan(on_meta(build, full), {"input_ids": tokens}, **options)
    with pytest.raises(
        gr.GrowthError, match=r"^buffer 'model\.rotary_emb\.inv_freq' is on the meta device.*build="
    ):
        plan.build_seed()
    plan = gr.plan(plan.model, {"input_ids": tokens}, build=build, **options)
    seed = plan.build_seed()
    assert torch.equal(seed.model.rotary_emb.inv_freq, build(full).model.rotary_emb.inv_freq)
    grower = gr.Grower(seed, plan)
    for _ in range(3):
        grower.step()
    assert grower.is_complete and seed.config.hidden_size == 32
    assert seed(input_ids=tokens, labels=tokens).loss.isfinite()
