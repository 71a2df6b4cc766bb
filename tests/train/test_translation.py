"""Translations: trained, resumed, judged; what cannot work is refused before anything is trained."""

import os
import re
import sys
from dataclasses import replace

import pytest
import torch

import growthring.train.tasks.translation as task_module
import growthring.train.translating as translating_module
from growthring import zoo
from growthring.checkpoint import list_checkpoints, read_json
from growthring.data import SentenceBatches
from growthring.errors import GrowthError, InputError
from growthring.methods import METHODS
from growthring.runs.samples import read_samples
from growthring.train import Interrupted, Recipe, Silence, Trainer, change, load
from growthring.train.evaluation import evaluate_card, files_beside
from growthring.train.recipes import RECIPES
from growthring.train.tasks.translation import VOCABULARY, Translation
from growthring.train.translating import bleu, translate_tokens
from tests.data.test_pairs import ENGLISH, GERMAN, write
from tests.data.test_sentences import data_of
from tests.train.runs import assert_same_run, metrics, translation
from tests.train.test_resume import Notes, begun, go_on, press


def fit(recipe, folder, **options):
    trainer = Trainer(recipe, folder, progress=Silence(), **options)
    return trainer, trainer.fit()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit(translation(), folder)
    return folder


def test_what_a_run_tells(whole):
    result = read_json(whole / "result.json")
    assert set(result["scores"]) == {"test_bleu", "test_perplexity"}
    assert result["scores"]["test_perplexity"] == pytest.approx(2.718281828 ** result["test_loss"])
    (note,) = result["notes"]
    assert re.search(
        r"BLEU by sacrebleu: nrefs:1\|.*\|tok:13a\|.*; beam 1, length penalty 1, 20 sent", note
    )
    epochs = [line for line in metrics(whole) if line["kind"] == "epoch"]
    assert all(line["scores"]["test_perplexity"] > 1 for line in epochs)
    config = read_json(whole / "config.json")
    assert [m["key"] for m in config["metrics"]][:2] == ["test_bleu", "test_perplexity"]
    samples = read_samples(whole)
    assert len(samples) == 5
    assert [title for title, _ in samples[0]] == ["source", "translation", "reference"]
    assert (whole / VOCABULARY).exists() and config["task"] == "translation"


def test_the_file_of_weights_is_evaluated_to_the_same_loss(whole):
    file = whole / "model.safetensors"
    model, card = load(file)
    found = evaluate_card(model, card, files=files_beside(file, card))
    result = read_json(whole / "result.json")
    assert (found.test_loss, found.test_accuracy) == (result["test_loss"], result["test_accuracy"])
    assert found.scores["test_perplexity"] == card.scores["test_perplexity"]
    with pytest.raises(
        InputError, match=r"the vocabulary of the model is not there: vocabulary.json"
    ):
        evaluate_card(model, card)


# An epoch has some eight steps, the growth comes after two epochs, and its norms fade in from there.
@pytest.mark.parametrize("at", [18, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 17))])
def test_resumed_in_mid_epoch_at_a_growth_and_in_mid_fade(at, whole, tmp_path):
    begun(tmp_path, translation(), steps=1, at=at)
    go_on(tmp_path, translation())
    assert_same_run(whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("total_steps=11",), ("batch_growth=0.4",), ("fixed=true",)])
def test_other_lengths_and_batches_resume(settings, tmp_path):
    fit(translation(*settings), tmp_path / "whole")
    begun(tmp_path / "run", translation(*settings), steps=1, at=7)
    go_on(tmp_path / "run", translation(*settings))
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_ctrl_c_while_bleu_is_measured_leaves_a_run_that_can_go_on(whole, tmp_path, monkeypatch):
    def pressed(*args, **kwargs):
        press()

    with monkeypatch.context() as patch:
        patch.setattr(task_module, "translate_tokens", pressed)
        trainer = Trainer(translation(), tmp_path, progress=Silence())
        with pytest.raises(
            Interrupted, match=r"while the result was measured; everything is saved"
        ):
            trainer.fit()
    assert not (tmp_path / "result.json").exists() and list_checkpoints(tmp_path)
    go_on(tmp_path, translation())
    assert_same_run(whole, tmp_path)


def test_what_takes_long_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(task_module, "_MANY", 10)
    notes = Notes()
    Trainer(translation("fixed=true", "epochs=1"), tmp_path / "run", progress=notes).fit()
    assert "training a vocabulary of 320 subwords on 128 sentences ..." in notes.said
    assert "encoding 64 sentence pairs ..." in notes.said
    assert "measuring BLEU on the test data ..." in notes.said
    assert any("longer than max_length=16 tokens left out" in line for line in notes.said)
    assert any("longer than max_length=16 tokens cut" in line for line in notes.said)


def own_texts(folder, count=400):
    write(folder, "train", GERMAN[:count], ENGLISH[:count])
    write(folder, "test", GERMAN[390:], ENGLISH[390:])
    return translation(
        "data=pairs", "num_train=none", "fixed=true", "epochs=1", "task_options.max_length=32"
    )


def test_a_run_is_not_resumed_with_other_sentences(tmp_path):
    recipe = own_texts(tmp_path / "texts", 60)
    begun(tmp_path / "run", recipe, at=2, data=tmp_path / "texts")
    write(tmp_path / "texts", "train", GERMAN[100:160], ENGLISH[100:160])
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(
        InputError, match=r"begun with another vocabulary .* task_options that the run"
    ):
        go_on(tmp_path / "run", recipe, data=tmp_path / "texts")
    assert {p: p.read_bytes() for p in before} == before


def test_ones_own_texts_and_their_marks(tmp_path):
    recipe = own_texts(tmp_path / "texts", 60)
    _, result = fit(recipe, tmp_path / "run", data=tmp_path / "texts")
    assert "10 sentences of 'texts/test'" in result.notes[0]
    write(tmp_path / "texts", "valid", GERMAN[200:204], ENGLISH[200:204])
    _, result = fit(
        change(recipe, {"task_options.test_on": "valid"}),
        tmp_path / "other",
        data=tmp_path / "texts",
    )
    assert "4 sentences of 'texts/valid'" in result.notes[0]


REFUSED = {
    "too few source tokens": (
        ("model_options.src_vocab_size=300",),
        "the model takes 300 source tokens, the vocabulary has 320: give both one size",
    ),
    "too few target tokens": (
        ("model_options.tgt_vocab_size=300",),
        "the model tells 300 tokens apart, the data has subwords from 0 to 319: give it 320",
    ),
    "more subwords than the model has": (
        ("task_options.vocab_size=400",),
        "source tokens, the vocabulary has",
    ),
    "too few positions": (
        ("task_options.max_length=65",),
        "task_options.max_length=65 tokens, but the model has 64 positions: lower it to 64",
    ),
    "too few positions for the mean": (
        ("model_options.max_length=8",),
        "sentence of 12 tokens, but max_length is 8",
    ),
    "heads": (("model_options.num_heads=3",), "d_model 8 does not divide into 3 heads"),
    "input_shape": (
        ("input_shape=(1, 8, 8)",),
        "the mean number of source and of target tokens, such as (20, 20)",
    ),
    "languages": (("task_options.source=fr",), "'numbers' is from de to en, not from fr to en"),
    "no sentence fits": (
        ("task_options.max_length=2",),
        "all sentences of 'numbers' are longer than max_length=2",
    ),
    "beam": (("task_options.beam=0",), "task_options.beam=0: it is at least 1"),
    "vocabulary": (
        ("task_options.vocab_size=20",),
        "task_options.vocab_size=20: it is at least 259",
    ),
    "no folder": (("data=multi30k",), "is not there: pass where 'multi30k' is (--data)"),
    "not its data": (
        ("data=digits", "task_options={}"),
        "'digits' has images of shape (1, 8, 8), the recipe expects (12, 10)",
    ),
    "batch": (("batch_size=0",), "batch_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_and_leaves_nothing_behind(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, words = REFUSED[case]
    with pytest.raises(GrowthError, match=re.escape(words)):
        Trainer(translation(*settings), tmp_path / "run", progress=Silence())
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("library", ["sacrebleu", "tokenizers"])
def test_a_library_is_missing(library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        InputError, match=rf"{library} library: pip install 'growthring\[translation\]'"
    ):
        Trainer(translation(), tmp_path / "run", progress=Silence())
    assert not os.listdir(tmp_path)


@pytest.mark.slow
def test_heads_that_cannot_grow_in_pairs_keep_their_number(tmp_path):
    """Three heads are odd: growing takes them whole, to a count that the plan says, or not at all."""
    recipe = translation(
        "model_options.d_model=6", "model_options.num_heads=3", "epochs=1", "stages=1"
    )
    trainer = Trainer(recipe, tmp_path, progress=Silence())
    grown = Trainer(change(recipe, {"stages": 2, "epochs": 3}), tmp_path / "b", progress=Silence())
    assert trainer.plan.num_stages == 1
    model = grown.plan.build_seed()
    tokens = torch.ones(1, 4, dtype=torch.int64)
    assert model(tokens, tokens).shape == (1, 4, 320)


METHOD_OPTIONS = {
    "splitting": ("method_options.steps=1",),
    "firefly": ("method_options.steps=1",),
    "firefly-split": ("method_options.steps=1",),
}


@pytest.mark.parametrize(
    "method",
    [
        m if m in ("net2net", "gradmax") else pytest.param(m, marks=pytest.mark.slow)
        for m in METHODS
    ],
)
def test_every_method_grows_it_or_says_before_training_why_not(method, tmp_path):
    recipe = translation(f"method={method}", *METHOD_OPTIONS.get(method, ()))
    try:
        trainer = Trainer(recipe, tmp_path / "run", progress=Silence())
    except GrowthError as error:
        assert f"'{method}'" in str(error) or method in str(error)
        assert not os.listdir(tmp_path)
        assert method not in ("paired", "net2net", "random")
        return
    result = trainer.fit()
    assert result.scores["test_perplexity"] > 1
    assert sum(line["kind"] == "growth" for line in metrics(tmp_path / "run")) == 1


class Own(zoo.Transformer):
    """A model of a user's own class, without steps of its own for decoding."""

    def forward(self, src_tokens, tgt_tokens, src_padding_mask=None):
        return 2 * super().forward(src_tokens, tgt_tokens, src_padding_mask)


@pytest.mark.slow
def test_a_model_of_ones_own(tmp_path):
    recipe = Recipe(**{**translation("fixed=true", "epochs=1").settings(), "model": Own})
    _, result = fit(recipe, tmp_path)
    assert 0 <= result.scores["test_bleu"] <= 100


class Short(torch.nn.Module):
    """A model of a user's own that has fifty positions, and does not say so."""

    def __init__(self):
        super().__init__()
        self.positions = torch.nn.Parameter(torch.zeros(50, 300))

    def forward(self, src_tokens, tgt_tokens, src_padding_mask=None):
        length = tgt_tokens.shape[1]
        return self.positions[:length].expand(len(tgt_tokens), length, 300)


def test_a_model_of_ones_own_is_tried_on_the_longest_sentence():
    batches = SentenceBatches(data_of([(4, 4)]), 1, None)
    example = next(iter(batches))[0]
    with pytest.raises(InputError, match=r"cannot take inputs of shape .*199"):
        Translation().check(Short(), example, [batches])
    short = SentenceBatches(replace(batches.data, max_length=50), 1, None)
    Translation().check(Short(), example, [short, None])


# BLEU and translating.


def test_bleu_is_sacrebleus():
    found = ["the cat sat on the mat .", "a dog"]
    references = ["the cat sat on a mat .", "a dog"]
    import sacrebleu

    ours = bleu(found, references)
    assert ours.value == pytest.approx(sacrebleu.corpus_bleu(found, [references]).score)
    assert ours.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "tok:none" in bleu(found, references, "none").signature
    assert bleu(["x"], ["a b c d e"]).value == 0.0


def test_iwslt14_is_judged_as_it_is_cut():
    """Its punctuation is separated already: to cut it again would count other words."""
    assert task_module._tokenize("iwslt14") == "none" and task_module._tokenize("multi30k") == "13a"


def test_translations_come_in_the_order_of_their_sentences(whole, monkeypatch):
    file = whole / "model.safetensors"
    model, card = load(file)
    vocabulary = task_module.Vocabulary(files_beside(file, card)[VOCABULARY])
    texts = ["einundzwanzig", "vier", "neunhunderteins", "zwei", "sechstausendvierundvierzig"]
    tokens = [[*vocabulary.encode(text), 2] for text in texts]
    options = {"beam": 2, "length_penalty": 1.0, "max_length": 12, "device": torch.device("cpu")}
    monkeypatch.setattr(translating_module, "_TOKENS", 20)
    together = translate_tokens(model, tokens, vocabulary, **options)
    monkeypatch.setattr(translating_module, "_TOKENS", 1)
    assert together == translate_tokens(model, tokens, vocabulary, **options)
    assert translate_tokens(model, [], vocabulary, **options) == []


def test_the_recipes_fit_together():
    """One vocabulary for the model and the task, positions for the longest sentence."""
    names = [name for name in RECIPES if name.endswith("-transformer")]
    assert len(names) == 4
    for name in names:
        recipe = RECIPES[name]()
        options = recipe.model_options
        assert (
            options["src_vocab_size"]
            == options["tgt_vocab_size"]
            == recipe.task_options["vocab_size"]
        )
        assert recipe.task_options["max_length"] <= options["max_length"]
        assert max(recipe.input_shape) < recipe.task_options["max_length"]


def test_a_vocabulary_of_another_run_is_refused(whole, tmp_path):
    file = whole / "model.safetensors"
    _, card = load(file)
    (tmp_path / "model.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(
        InputError, match=r"needs its vocabulary.json, which is neither .*Copy it from the run"
    ):
        files_beside(tmp_path / "model.safetensors", card)
    (tmp_path / VOCABULARY).write_text((whole / VOCABULARY).read_text() + " ")
    with pytest.raises(
        InputError, match=r"is from another run: .* fingerprint is \w{16}, this one has \w{16}"
    ):
        files_beside(tmp_path / "model.safetensors", card)
    (tmp_path / VOCABULARY).write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        files_beside(tmp_path / "model.safetensors", card)


def test_other_options_of_the_task_are_another_run(tmp_path):
    begun(tmp_path, translation("fixed=true", "epochs=1"), at=2)
    with pytest.raises(
        InputError, match=r"started with other settings \(task_options: .*'beam': 1.*'beam': 2"
    ):
        go_on(tmp_path, translation("fixed=true", "epochs=1", "task_options.beam=2"))
