"""The config of a transformers model follows: each stage can be saved and loaded, and computes the same."""

import copy
import warnings

import pytest
import torch

import growthring as gr
from tests.growth_contract import perturb, randn, tokens

TOKENS = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SMALL = {
    "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2,
    "max_position_embeddings": 32,
}  # fmt: skip
CASES = {
    "GPT2LMHeadModel": ("GPT2Config", TOKENS | {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 32}),
    "BertForMaskedLM": ("BertConfig", TOKENS | SMALL),
    "LlamaForCausalLM": ("LlamaConfig", TOKENS | SMALL | {"num_key_value_heads": 4}),
    "MistralForCausalLM": ("MistralConfig", TOKENS | SMALL | {"num_key_value_heads": 2, "sliding_window": 32}),
}  # fmt: skip
ENTRIES = {
    "GPT2LMHeadModel": {"n_embd"},
    "BertForMaskedLM": {"hidden_size", "intermediate_size"},
    "LlamaForCausalLM": {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"},
    "MistralForCausalLM": {"hidden_size", "intermediate_size"},
}  # fmt: skip


def changed(before, after):
    """The entries of a config in which two differ, those that saving adds left out."""
    a, b = before.to_dict(), after.to_dict()
    return {k for k in a if a[k] != b.get(k)} - {"architectures", "dtype", "transformers_version"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if "GPT2" in n else pytest.mark.slow) for n in CASES],
)
@pytest.mark.slow
def test_every_stage_can_be_saved_and_loaded(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    config_name, options = CASES[name]
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(getattr(transformers, config_name)(**options)).eval()
    original = copy.deepcopy(model.config)
    inputs = {"input_ids": tokens(2, 9, high=50)}
    plan = gr.plan(model, inputs, stages=3, growth=None, outputs=["logits"])
    assert len({tuple(plan.widths(g.name)) for g in plan.groups.growable}) > 1
    seed = plan.build_seed().eval()
    perturb(seed)
    grower = gr.Grower(seed, plan, noise=0.0)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed.save_pretrained(tmp_path / str(grower.stage))
            again = kind.from_pretrained(tmp_path / str(grower.stage)).eval()
        with torch.no_grad():
            torch.testing.assert_close(
                again(**inputs).logits, seed(**inputs).logits, rtol=1e-5, atol=1e-6
            )
        if grower.is_full:
            break
        assert changed(original, seed.config) == ENTRIES[name]
        assert changed(original, model.config) == set()
        assert grower.grow().change.relative < 1e-5
        grower.finish()
    assert changed(original, seed.config) == set()


@pytest.mark.slow
def test_a_model_that_its_config_does_not_describe_has_a_note():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**CASES["GPT2LMHeadModel"][1])
    ).eval()
    inputs = {"input_ids": tokens(2, 9, high=50)}
    plan = gr.plan(model, inputs, stages=2, outputs=["logits"], freeze="transformer.h.0.*")
    note = "the config of GPT2LMHeadModel cannot say the widths"
    assert any(note in n for n in plan.notes) and note in plan.groups.explain()
    seed = plan.build_seed()
    gr.Grower(seed, plan, noise=0.0).grow()


@pytest.mark.slow
def test_a_sliding_window_of_the_width_stays(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        **(CASES["MistralForCausalLM"][1] | {"max_position_embeddings": 64})
    )
    model = transformers.MistralForCausalLM(config).eval()
    plan = gr.plan(model, {"input_ids": tokens(2, 5, high=50)}, stages=2, outputs=["logits"])
    seed = plan.build_seed()
    assert seed.config.hidden_size < 32 and seed.config.sliding_window == 32
    assert any("sliding_window" in note for note in plan.notes)


@pytest.mark.slow
def test_images(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, num_attention_heads=4, intermediate_size=48, num_hidden_layers=2, image_size=16,
        patch_size=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    inputs = {"pixel_values": randn(2, 3, 16, 16).float()}
    seed = gr.plan(model, inputs, stages=2, outputs=["logits"]).build_seed().eval()
    seed.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, seed(**inputs).logits)
