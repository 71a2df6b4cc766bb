"""A user's own language model, made of a config of transformers and trained in a loop of theirs, grows exactly.

Every growth comes after steps of AdamW on the model's own loss; every stage can be saved and loaded; the last one
fits into the user's class bit for bit.
"""

import copy
import functools
import warnings

import pytest
import torch

import growthring as gr
from tests.growth_contract import distance, in_dtype

VOCABULARY, LENGTH = 37, 10
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}
OPTIMIZERS = {"torch": torch.optim.AdamW, "growthring": gr.optim.AdamW}


def llama(heads, kv_heads, *, width=32, tied=True, layers=1):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        **TOKENS,
        hidden_size=width,
        intermediate_size=3 * width // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2 * LENGTH,
        tie_word_embeddings=tied,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2(heads, *, width=32, tied=True, layers=1):
    transformers = pytest.importorskip("transformers")
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(
        **TOKENS,
        **rates,
        n_embd=width,
        n_head=heads,
        n_layer=layers,
        n_positions=2 * LENGTH,
        tie_word_embeddings=tied,
    )
    return transformers.GPT2LMHeadModel(config)


# The model, and the sizes in its config that grow. Of two heads of keys one would come alone, not in a pair:
# there the queries of each grow.
_THIN = {"hidden_size", "intermediate_size"}
_LLAMA = {*_THIN, "num_attention_heads", "num_key_value_heads"}
CASES = {
    "GPT-2": (lambda: gpt2(4), {"n_embd"}),
    "Llama, grouped queries": (lambda: llama(16, 8, width=64), _LLAMA),
    "Llama": (lambda: llama(8, 8), _LLAMA),
    "Llama, grouped queries, untied": (lambda: llama(16, 8, width=64, tied=False), _LLAMA),
    "Llama, two heads of keys": (lambda: llama(16, 2, width=64), {*_THIN, "num_attention_heads"}),
    "Llama, untied": (lambda: llama(8, 8, tied=False), _LLAMA),
    "GPT-2, untied": (lambda: gpt2(4, tied=False), {"n_embd"}),
    "Llama, larger": (lambda: llama(16, 8, width=128, layers=3), _LLAMA),
    "GPT-2, larger": (lambda: gpt2(8, width=128, layers=3), {"n_embd"}),
}
FAST = ("GPT-2", "Llama, grouped queries")


def text(count, generator):
    return torch.randint(3, VOCABULARY, (count, LENGTH), generator=generator)


@functools.cache  # discovery is most of the time
def planned(name):
    torch.manual_seed(0)
    model = CASES[name][0]()
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    return gr.plan(model, {"input_ids": tokens}, stages=3, start=0.25, growth=None)


def logits_in(model, training, tokens):
    twin = copy.deepcopy(model).train(training)
    with torch.no_grad():
        return twin(input_ids=tokens).logits


def train(model, optimizer, generator):
    """A user's own loop, by the loss that the model computes of labels."""
    model.train()
    for _ in range(2):
        tokens = text(4, generator)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss)


def entries(config):
    """Those of a config that saving does not add."""
    added = {"architectures", "dtype", "transformers_version"}
    return {key: value for key, value in config.to_dict().items() if key not in added}


def loaded(model, folder):
    """The model as another program reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", gr.GrowthWarning)  # its weights are plain
        model.save_pretrained(folder)
    kind = type(model)
    return kind.from_pretrained(folder, dtype=model.dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES]
)
def test_it_grows_exactly_between_steps(name, dtype, optimizer, generator, tmp_path):
    plan, sizes = in_dtype(planned(name), dtype), CASES[name][1]
    model = plan.build_seed()
    full, kind = plan.model.config, type(plan.model)
    optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=1e-2)
    grower = gr.Grower(model, plan, optimizer, noise=0.0, generator=generator)
    tokens, stages = text(3, generator), []
    while True:
        train(model, optimizer, generator)
        grower.finish()
        again = loaded(model, tmp_path / str(grower.stage))
        weights = again.state_dict()  # from_pretrained may lay them out in another way: rounding
        assert all(torch.equal(v, weights[n]) for n, v in model.state_dict().items())
        read, own = (logits_in(m, False, tokens) for m in (again, model))
        assert distance(own, read) <= LIMITS[dtype]
        stages.append(tuple(getattr(model.config, size) for size in sorted(sizes)))
        if grower.is_full:
            break
        before = {mode: logits_in(model, mode, tokens) for mode in (False, True)}
        loss = model(input_ids=tokens, labels=tokens).loss.detach()
        grower.grow()
        for mode, old in before.items():
            assert distance(old, logits_in(model, mode, tokens)) <= LIMITS[dtype], mode
        assert distance(loss, model(input_ids=tokens, labels=tokens).loss) <= LIMITS[dtype]
        train(model, optimizer, generator)  # while norms fade in
    assert len(stages) == 3
    assert all(len({stage[i] for stage in stages}) == 3 for i in range(len(sizes))), stages
    assert entries(model.config) == entries(full)
    plain = kind(full).to(dtype)  # the user's own class
    plain.load_state_dict(model.state_dict(), strict=True)
    for mode in (False, True):
        assert torch.equal(logits_in(plain, mode, tokens), logits_in(model, mode, tokens))
    if full.tie_word_embeddings:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    state = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert state == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_what_grows(name):
    """The residual stream, heads and the feed-forward network; all norms over the stream fade in."""
    plan = planned(name)
    model, layers = plan.model, plan.model.config.num_hidden_layers
    grows = {member.tensor for group in plan.groups.growable for member in group.members}
    names = [n for n, p in model.named_parameters() if p.dim() == 2 and "wpe" not in n]
    assert set(names) <= grows
    assert len(plan.groups.growable) == 1 + 2 * layers
