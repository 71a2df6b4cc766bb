"""Both factors of heads × head size through growths: rings, optimizers, averages of runs, saved states."""

import copy
import itertools

import pytest
import torch
from torch import nn

import growthring as gr
from growthring import zoo
from growthring.core.axes import layout

LATER = {"stages": 3}  # the head size grows, then the number of heads
AT_ONCE = {"stages": 2, "start": 0.25}


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return zoo.GPT(vocab_size=11, block_size=6, num_layers=1, num_heads=4, width=32)


def planned(model: nn.Module, inputs: object, **options: object) -> gr.Plan:
    torch.manual_seed(0)
    return gr.plan(model, inputs, heads="both", **options)


def texts(n: int = 2) -> torch.Tensor:
    return torch.randint(0, 11, (n, 6), generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for k in range(steps):
        generator = torch.Generator().manual_seed(k)
        x = torch.randint(0, 11, (4, 6), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.roll(-1, 1).flatten())
        loss.backward()
        optimizer.step()


OPTIMIZERS = {
    "torch.AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    "AdamW": lambda model: gr.optim.AdamW(model.parameters(), lr=1e-2, ages="ring"),
    "SGD": lambda model: gr.optim.SGD(
        model.parameters(), lr=1e-2, momentum=0.9, rate_adaptation="norm"
    ),
}


@pytest.mark.each(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", [AT_ONCE, LATER], ids=["at once", "later"])
def test_outputs_rings_and_state_grow_together(name, options):
    full = gpt()
    plan = planned(full, texts(), **options)
    model = plan.build_seed()
    optimizer = OPTIMIZERS[name](model)
    grower = gr.Grower(model, plan, optimizer, noise=0.0)
    pair = plan.groups.factors[0]
    count, size = ([w[key] for w in plan.stage_widths] for key in (pair.count, pair.size))
    assert (count[0], size[0], count[-1], size[-1]) == (2, 4, 4, 8)
    attention, x = model.blocks[0].attention, texts(5)
    for t in range(1, plan.num_stages):
        train(model, optimizer)
        before = {m: copy.deepcopy(model).train(m)(x) for m in (True, False)}
        state = copy.deepcopy(optimizer.state[attention.qkv.weight])
        grower.grow()
        assert attention.num_heads == count[t]
        assert attention.qkv.out_features == 3 * count[t] * size[t]
        for mode, outputs in before.items():
            torch.testing.assert_close(
                copy.deepcopy(model).train(mode)(x), outputs, rtol=1e-5, atol=1e-5
            )
        widths, spec = plan.stage_widths, plan.groups.specs["blocks.0.attention.qkv.weight"]
        rows, columns = (layout(axis, widths[t - 1], widths[t]) for axis in spec.axes)
        grown = optimizer.state[attention.qkv.weight]
        for key, values in state.items():
            if isinstance(values, torch.Tensor) and values.dim() == 2:
                assert grown[key].shape == attention.qkv.weight.shape
                assert not grown[key][rows.new].any() and not grown[key][:, columns.new].any()
                kept = grown[key][rows.old][:, columns.old]
                ratio = kept / values.where(values != 0, torch.nan)  # one number for each segment
                for part in ratio.chunk(3):
                    part = part[part.isfinite()]
                    assert part.numel() and float(part.max() - part.min()) < 1e-3 * float(
                        part.max()
                    )
    own = [  # of (head, unit), the stage that first had both
        next(t for t in range(len(count)) if h < count[t] and d < size[t])
        for h, d in itertools.product(range(count[-1]), range(size[-1]))
    ]
    ring, _ = grower.rings.axis_rings("blocks.0.attention.qkv.weight")
    assert ring.tolist() == own * 3
    check_rings(plan, grower)
    train(model, optimizer)
    full.load_state_dict(model.state_dict())


def check_rings(plan, grower):
    """The ring of every entry is the stage at which growing numbered entries by hand first met it."""
    for name, spec in plan.groups.specs.items():
        ring = torch.zeros(spec.shape(plan.stage_widths[0]), dtype=torch.int64)
        for t in range(1, plan.num_stages):
            before, after = plan.stage_widths[t - 1], plan.stage_widths[t]
            new = torch.full(spec.shape(after), t)
            places = [layout(axis, before, after).old for axis in spec.axes]
            if places:
                new[torch.meshgrid(*places, indexing="ij")] = ring
            else:
                new = ring
            ring = new
        assert torch.equal(grower.rings.index(name), ring), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [AT_ONCE, LATER], ids=["at once", "later"])
def test_the_transformer_grows_heads_and_their_size(options, dtype):
    torch.manual_seed(0)
    full = zoo.Transformer(
        11, 11, d_model=32, d_ffn=32, num_heads=4, d_embed=16, dropout=0.0,
        num_encoder_layers=1, num_decoder_layers=1,
    ).to(dtype)  # fmt: skip
    plan = planned(full, (texts(), texts()), **options)
    heads = {f.count for f in plan.groups.factors}
    assert len(heads) == 3  # of the encoder, the decoder, and between them
    model = plan.build_seed()
    grower = gr.Grower(model, plan, torch.optim.AdamW(model.parameters()), noise=0.0)
    x = texts(3)
    while not grower.is_full:
        before = {m: copy.deepcopy(model).train(m)(x, x) for m in (True, False)}
        grower.grow()
        limit = 1e-5 if dtype == torch.float32 else 1e-12
        for mode, outputs in before.items():
            torch.testing.assert_close(
                copy.deepcopy(model).train(mode)(x, x), outputs, rtol=limit, atol=limit
            )
    assert all(m.num_heads == 4 for m in model.modules() if hasattr(m, "num_heads"))
    full.load_state_dict(model.state_dict())


def test_every_stage_is_taken_up_again():
    plan = planned(gpt(), texts(), **LATER)

    def started():
        model = plan.build_seed()
        optimizer = OPTIMIZERS["AdamW"](model)
        return model, optimizer, gr.Grower(model, plan, optimizer)

    model, optimizer, grower = started()
    for stage in range(plan.num_stages):
        train(model, optimizer)
        saved = copy.deepcopy([o.state_dict() for o in (grower, model, optimizer)])
        again, its, other = started()
        other.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        its.load_state_dict(saved[2])
        assert other.stage == stage
        assert again.blocks[0].attention.num_heads == model.blocks[0].attention.num_heads
        if stage < plan.num_stages - 1:
            grower.grow(), other.grow()
        train(model, optimizer), train(again, its)
        for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(a, b), name


def transformers_model(name):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "GPT2LMHeadModel":
        config = transformers.GPT2Config(
            **small, n_embd=32, n_head=4, n_layer=1, n_positions=16,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    else:
        config = transformers.LlamaConfig(
            **small, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=16,
        )  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, name)(config).double().eval()


def in_both_modes(model, x):
    return [model.train(training)(**x).logits for training in (True, False)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [AT_ONCE, LATER], ids=["at once", "later"])
def test_gpt2_of_transformers_grows_in_both(options):
    full = transformers_model("GPT2LMHeadModel")
    x = {"input_ids": torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(0))}
    plan = planned(full, x, outputs=["logits"], **options)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, torch.optim.AdamW(model.parameters()), noise=0.0)
    while not grower.is_full:
        before = in_both_modes(model, x)
        grower.grow()
        torch.testing.assert_close(in_both_modes(model, x), before, rtol=1e-12, atol=1e-12)
        attention, config = model.transformer.h[0].attn, model.config
        assert attention.num_heads == config.n_head
        assert attention.head_dim * attention.num_heads == config.n_embd == attention.split_size
        assert attention.scaling == attention.head_dim**-0.5
    full.load_state_dict(model.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_llama_of_transformers_grows_the_number_of_heads_and_says_why():
    full = transformers_model("LlamaForCausalLM")
    x = {"input_ids": torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(0))}
    plan = planned(full, x, outputs=["logits"], stages=2, start=0.5)
    notes = [n for n in plan.notes if "heads='both'" in n]
    assert notes and all("only the number of heads grows" in n for n in notes)
    model = plan.build_seed()
    grower = gr.Grower(model, plan, noise=0.0)
    before = in_both_modes(model, x)
    grower.grow()
    torch.testing.assert_close(in_both_modes(model, x), before, rtol=1e-12, atol=1e-12)
    assert model.model.layers[0].self_attn.head_dim == 4
    full.load_state_dict(model.state_dict())
