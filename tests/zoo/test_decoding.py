"""The steps of decoding against `forward`: one position at a time, padded, reordered, in the middle of a fade."""

import pytest
import torch
from torch import Tensor, nn

import growthring as gr
from growthring import zoo
from growthring.zoo.cache import KeyValues
from tests.decoding.models import VOCAB, gpt, sentences, transformer

exact = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str
)


def stepwise(model: zoo.GPT | zoo.Transformer, tokens: Tensor, cache, lengths: list[int]) -> None:
    """Yields (number of tokens so far, logits after them)."""
    start = 0
    for length in lengths:
        logits = model.continue_decoding(tokens[:, start : start + length], cache)
        start += length
        yield start, logits


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a, b, rtol=0, atol=tolerance * float(b.abs().max()))


@exact
@pytest.mark.parametrize("lengths", [[1] * 9, [4, 1, 1, 3], [9]], ids=str)
def test_steps_of_the_transformer_are_its_forward(lengths, dtype, tolerance, generator):
    model = transformer().to(dtype).eval()
    src, mask = sentences([7, 2, 4], generator)
    tgt = torch.randint(VOCAB, (3, 9), generator=generator)
    with torch.no_grad():
        whole = model(src, tgt, mask)
    for there, logits in stepwise(model, tgt, model.start_decoding(src, mask), lengths):
        assert close(logits, whole[:, there - 1], tolerance)


@exact
@pytest.mark.parametrize("lengths", [[1] * 12, [5, 1, 2, 4], [12]], ids=str)
def test_steps_of_gpt_are_its_forward(lengths, dtype, tolerance, generator):
    model = gpt().to(dtype).eval()
    tokens = torch.randint(VOCAB, (3, 12), generator=generator)
    with torch.no_grad():
        whole = model(tokens)
    for there, logits in stepwise(model, tokens, model.start_decoding(), lengths):
        assert close(logits, whole[:, there - 1], tolerance)


def test_rows_of_a_cache_can_be_chosen(generator):
    model = transformer().double().eval()
    src, mask = sentences([7, 2, 4], generator)
    tgt = torch.randint(VOCAB, (6, 8), generator=generator)
    cache = model.start_decoding(src, mask)
    cache.select(torch.arange(3).repeat_interleave(2), None)  # nothing there yet
    for _ in stepwise(model, tgt[:, :4], cache, [1] * 4):
        pass
    rows, left = torch.tensor([1, 1, 0, 5, 4, 5]), torch.tensor([0, 2])  # three of two sentences
    cache.select(rows, left)
    own = torch.cat([tgt[rows, :4], tgt[:, 4:]], dim=1)
    src, mask = (x[left].repeat_interleave(3, dim=0) for x in (src, mask))
    with torch.no_grad():
        whole = model(src, own, mask)
    for i in range(4, 8):
        logits = model.continue_decoding(own[:, i : i + 1], cache)
        assert close(logits, whole[:, i], 1e-12)


def test_a_buffer_that_grows_keeps_what_it_holds(generator):
    seen, whole = KeyValues(), torch.randn(2, 3, 2, 70, 4, generator=generator)
    for i in range(70):
        if i == 40:
            whole = whole.flip(1)
            seen.select(torch.tensor([2, 1, 0]))
        keys, values = seen.append(*whole[:, :, :, i : i + 1])
        assert torch.equal(keys, whole[0, :, :, : i + 1])
        assert torch.equal(values, whole[1, :, :, : i + 1])


def test_texts_beyond_the_positions_are_refused():
    model, cache = gpt().eval(), gpt().start_decoding()
    with pytest.raises(ValueError, match="text of 13 tokens, but block_size is 12: start again"):
        model.continue_decoding(torch.zeros(1, 13, dtype=torch.long), cache)
    model = transformer(max_length=5)
    cache = model.start_decoding(torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="sentence of 6 tokens, but max_length is 5"):
        model.continue_decoding(torch.zeros(1, 6, dtype=torch.long), cache)


def half_faded(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """A model in the middle of a stage: its norms take new entries in little by little."""
    plan = gr.plan(model, inputs, stages=3)
    grower = gr.Grower(plan.build_seed(), plan, generator=torch.Generator().manual_seed(0))
    grower.grow(measure=False)
    grower.advance(0.4)
    fading = [m for m in grower.model.modules() if "forward" in vars(m)]
    assert fading
    return grower.model.eval()


def test_a_transformer_whose_norms_fade_in_decodes(generator):
    src, mask = sentences([6, 6], generator)
    tgt = torch.randint(VOCAB, (2, 6), generator=generator)
    model = half_faded(transformer().double(), src, tgt)
    src, mask = sentences([6, 3], generator)
    with torch.no_grad():
        whole = model(src, tgt, mask)
    for there, logits in stepwise(model, tgt, model.start_decoding(src, mask), [1] * 6):
        assert close(logits, whole[:, there - 1], 1e-12)


def test_a_gpt_whose_norms_fade_in_decodes(generator):
    tokens = torch.randint(VOCAB, (2, 6), generator=generator)
    model = half_faded(gpt().double(), tokens)
    with torch.no_grad():
        whole = model(tokens)
    for there, logits in stepwise(model, tokens, model.start_decoding(), [2, 1, 1, 1, 1]):
        assert close(logits, whole[:, there - 1], 1e-12)
