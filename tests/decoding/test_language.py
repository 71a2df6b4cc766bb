"""A text goes on: with a cache as without, greedy as by hand, sampled within what is asked for; and refusals."""

import copy
import math
import types

import pytest
import torch
from torch import nn

from growthring.decoding import generate
from growthring.errors import InputError
from growthring.zoo import GPT
from tests.decoding.models import VOCAB, gpt

PROMPT = torch.tensor([3, 1, 4])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def follow(model, prompt=PROMPT, num_tokens=40, **options):
    return list(generate(model, prompt, num_tokens=num_tokens, **options))


class Fixed(nn.Module):
    """The same logits after every text."""

    def __init__(self, logits):
        super().__init__()
        self.register_buffer("table", torch.tensor(logits))

    def forward(self, tokens):
        return self.table.expand(*tokens.shape, -1)


class Recorded(GPT):
    """Remembers which texts it was asked for."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.asked = []

    def forward(self, tokens):
        self.asked.append(tokens[0].tolist())
        return super().forward(tokens)


class Louder(GPT):
    """A `forward` of its own, of which the steps that it inherits know nothing."""

    def forward(self, tokens):
        return -super().forward(tokens)


# --- the cache changes nothing ---


@pytest.mark.parametrize("num_tokens", [5, 30], ids=["within", "beyond the context"])
@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {}, {"temperature": 1.7, "top_k": 9}, {"top_p": 0.8}, {"context": 5}],
    ids=str,
)
def test_with_a_cache_as_without(options, num_tokens):
    for seed in range(2):
        model = gpt(seed, sharpness=4.0).double()
        one, two = (
            follow(model, num_tokens=num_tokens, use_cache=u, generator=seeded(seed), **options)
            for u in (True, False)
        )
        assert one == two and len(one) == num_tokens
        assert len(set(one)) > 1, "the model does not depend on the text"


def test_the_cache_is_used(monkeypatch):
    model = gpt()
    expected = follow(model, temperature=0)
    monkeypatch.setattr(GPT, "forward", lambda self, tokens: pytest.fail("no pass over all of it"))
    assert follow(model, temperature=0) == expected


def test_a_subclass_with_a_forward_of_its_own_is_asked_itself():
    model = gpt()
    other = copy.deepcopy(model)
    other.__class__ = Louder
    found = follow(other, temperature=0)
    assert found == follow(other, temperature=0, use_cache=False) != follow(model, temperature=0)


def test_what_the_model_sees():
    """Up to the context all; of a full context the later half stays, and fills again."""
    model = Recorded(vocab_size=VOCAB, block_size=6, num_layers=1, num_heads=1, width=4)
    text = [3, 1, 4, *follow(model, num_tokens=7, generator=seeded())]
    assert model.asked == [text[:3], text[:4], text[:5], text[:6], text[4:7], text[4:8], text[4:9]]
    model.asked.clear()
    long = torch.arange(10)
    (first, second) = follow(model, long, num_tokens=2, context=4, generator=seeded())
    assert model.asked == [[6, 7, 8, 9], [9, first]] and isinstance(second, int)


# --- what is chosen ---


def test_greedy_is_the_argmax_by_hand():
    model = gpt(block_size=64)
    text = PROMPT
    with torch.no_grad():
        for _ in range(20):
            text = torch.cat([text, model.eval()(text[None])[0, -1].argmax()[None]])
    assert follow(model, num_tokens=20, temperature=0) == text[3:].tolist()
    assert follow(model, num_tokens=20, top_k=1, generator=seeded(5)) == text[3:].tolist()
    assert follow(model, num_tokens=20, top_p=1e-9, generator=seeded(5)) == text[3:].tolist()


def test_the_likeliest_come_as_often_as_the_model_says():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    model = Fixed(shares.log().tolist())

    def counted(**options):
        found = follow(model, PROMPT[1:2], 2000, context=2, generator=seeded(), **options)
        return torch.bincount(torch.tensor(found), minlength=4) / len(found)

    def expect(found, weights):
        weights = torch.tensor(weights)
        assert torch.equal(found == 0, weights == 0)
        assert torch.allclose(found, weights / weights.sum(), atol=0.04)

    expect(counted(), shares.tolist())
    expect(counted(temperature=0.5), shares.square().tolist())
    expect(counted(temperature=2.0), shares.sqrt().tolist())
    expect(counted(top_k=2), [0.5, 0.3, 0.0, 0.0])
    expect(counted(top_k=9), shares.tolist())
    expect(counted(top_p=0.4), [0.5, 0.0, 0.0, 0.0])
    expect(counted(top_p=0.6), [0.5, 0.3, 0.0, 0.0])
    expect(counted(top_p=1.0), shares.tolist())
    # The share is one of those that top_k has left: 0.5 and 0.3 are 0.84 of the first three.
    expect(counted(top_k=3, top_p=0.83), [0.5, 0.3, 0.0, 0.0])


def test_a_temperature_too_small_for_float32_takes_the_likeliest():
    assert follow(Fixed([0.0, 1.0, 0.5]), num_tokens=3, temperature=1e-60) == [1, 1, 1]


def test_a_token_that_cannot_come_does_not():
    model = Fixed([-math.inf, 0.0, -math.inf, 0.0])
    assert set(follow(model, num_tokens=100, temperature=5.0, generator=seeded())) == {1, 3}


def test_a_seed_gives_the_same_text_and_the_global_generator_is_left_alone():
    model = gpt()
    before = torch.get_rng_state()
    one, two, other = (follow(model, generator=seeded(seed)) for seed in (1, 1, 2))
    assert one == two != other
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(7)
    three = follow(model)
    torch.manual_seed(7)
    assert three == follow(model)


def test_tokens_come_one_by_one_and_the_modes_stay():
    model = gpt()
    model.blocks[0].eval()
    modes = [m.training for m in model.modules()]
    calls = []
    model.register_forward_hook(lambda module, *_: calls.append(module.training))
    tokens = generate(model, PROMPT, num_tokens=10, use_cache=False)
    assert calls == []
    next(tokens)
    assert calls == [False] and [m.training for m in model.modules()] == modes
    assert list(generate(model, PROMPT, num_tokens=0)) == []


def test_prompts_of_any_whole_type():
    model = gpt()
    expected = follow(model, temperature=0)
    for dtype in (torch.uint8, torch.int32):
        assert follow(model, PROMPT.to(dtype), temperature=0) == expected


# --- models of transformers ---


def of_transformers(name):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}
    if name == "GPT-2":
        config = transformers.GPT2Config(n_positions=12, n_embd=16, n_layer=2, n_head=2, **sizes)
        return transformers.GPT2LMHeadModel(config)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 12}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **shape, **heads))


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_models_of_transformers(name):
    model = of_transformers(name).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that texts decide
    found = follow(model, num_tokens=9, temperature=0)
    theirs = model.generate(PROMPT[None], max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert found == theirs[0, 3:].tolist()
    beyond = follow(model, num_tokens=30, generator=seeded())  # 12 positions
    assert len(beyond) == 30 and len(set(beyond)) > 1


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": torch.zeros(0, dtype=torch.long)}, "prompt has shape (0,) of torch.int64"),
        ({"prompt": torch.zeros(1, 2, dtype=torch.long)}, "(T,), at least one"),
        ({"prompt": torch.zeros(2)}, "prompt has shape (2,) of torch.float32: pass whole numbers"),
        ({"prompt": torch.ones(2, dtype=torch.bool)}, "of torch.bool: pass whole numbers"),
        ({"prompt": torch.tensor([1, 99])}, "prompt has token 99, and the model's vocabulary"),
        ({"prompt": torch.tensor([-1])}, "prompt has token -1, and the model's vocabulary"),
        ({"num_tokens": -1}, "num_tokens=-1: it is how many tokens follow, 0 or more."),
        ({"temperature": -0.1}, "temperature=-0.1: it is 0, for the likeliest token each time"),
        ({"temperature": math.nan}, "temperature=nan: it is 0"),
        ({"temperature": math.inf}, "temperature=inf: it is 0"),
        ({"top_k": 0}, "top_k=0: it is how many of the likeliest tokens there are to choose"),
        ({"top_p": 0.0}, "top_p=0.0: it is a probability, above 0 and up to 1."),
        ({"top_p": 1.5}, "top_p=1.5: it is a probability"),
        ({"context": 1}, "context=1: a model reads at least 2 tokens."),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:20],
)
def test_refusals_come_before_the_first_token(options, message):
    given = {"prompt": PROMPT, "num_tokens": 3, **options}
    with pytest.raises(InputError) as caught:
        generate(gpt(), given.pop("prompt"), **given)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers(value, temperature):
    with pytest.raises(InputError, match="the model's logits are not finite"):
        follow(Fixed([value, value]), temperature=temperature)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (torch.zeros(1, 3), "shape (1, 3)"),
        ({"logits": torch.zeros(1, 3, 4)}, "<class 'dict'>"),
        (types.SimpleNamespace(logits=None), "<class 'NoneType'>"),
    ],
)
def test_outputs_without_logits(output, found):
    class Other(nn.Module):
        def forward(self, tokens):
            return output

    with pytest.raises(InputError) as caught:
        follow(Other())
    assert f"the model returned {found} where decoding needs logits" in str(caught.value)
    assert "or an object that has it as `.logits`." in str(caught.value)
