"""The task Language with models whose outputs have `.logits`, bad input, and docs/language-models.md."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from growthring.cli import main
from growthring.errors import GrowthError, PlanError
from growthring.train import Recipe, Silence, Trainer, change, load
from growthring.train.measure import batch_sums
from growthring.train.tasks import Language
from growthring.train.tasks.classification import ClassCrossEntropy
from growthring.train.tasks.tokens import TokenCrossEntropy
from growthring.zoo.gpt import GPT

PAGE = Path(__file__).parents[2] / "docs" / "language-models.md"
SMALL = {"vocab_size": 256, "block_size": 8, "num_layers": 1, "num_heads": 2, "width": 16}


@dataclasses.dataclass
class Output:
    """As models of transformers return it."""

    logits: Tensor
    loss: Tensor | None = None


class Wrapped(GPT):
    """A GPT whose outputs are objects."""

    def forward(self, tokens):
        return Output(super().forward(tokens))


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"the cat sat on the mat. " * 200)
    return path


def recipe(model=GPT, **settings):
    options = {"data": "text", "input_shape": (8,), "num_train": 64, "epochs": 2, "batch_size": 16}
    options |= {"optimizer": "adamw", "lr": 1e-2}
    return Recipe("book", model, SMALL, **{**options, **settings})


def test_outputs_with_logits_are_trained_and_judged_as_logits_are(book, tmp_path):
    results = {}
    for kind in (GPT, Wrapped):
        run = Trainer(recipe(kind), tmp_path / kind.__name__, data=book, progress=Silence())
        results[kind] = run.fit()
        weights = run.model.state_dict()
        results[kind] = (results[kind].test_loss, results[kind].test_accuracy, weights)
    (*one, first), (*two, second) = results.values()
    assert one == two and all(torch.equal(v, second[n]) for n, v in first.items())
    model, card = load(tmp_path / "Wrapped" / "model.safetensors", Wrapped)
    assert isinstance(model, Wrapped) and card.task == "language"
    assert "the bytes of a text" in str(card) and card.scores["test_perplexity"] < 256


def test_losses_and_counts_take_either():
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    held = SimpleNamespace(logits=logits)
    loss = TokenCrossEntropy(0.1)(logits, targets)
    assert torch.equal(loss, TokenCrossEntropy(0.1)(held, targets))
    sums = [batch_sums(loss, outputs, (targets, targets)) for outputs in (logits, held)]
    assert torch.equal(*sums) and not sums[0].isnan().any()
    images, classes = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    plain = ClassCrossEntropy()(images, classes)
    assert torch.equal(plain, ClassCrossEntropy()(SimpleNamespace(logits=images), classes))


def test_batches_of_ones_own_have_tokens_of_ones_own(tmp_path):
    sizes = {**SMALL, "vocab_size": 11}
    tokens = torch.randint(11, (32, 9))
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    own = dataclasses.replace(recipe(), model_options=sizes, task=Language(), num_train=None)
    run = Trainer(own, tmp_path / "run", train=data, test=data, progress=Silence())
    assert run.fit().test_accuracy is not None


@pytest.mark.parametrize(
    ("settings", "content", "messages"),
    [
        ({}, b"x" * 999, ["has 999 bytes; 1,000 are needed"]),
        ({"input_shape": (2000,), "model_options.block_size": 2000}, None,
         ["the text 'text' is shorter than a window of 2000 bytes", "it has 480", "input_shape"]),
        ({"input_shape": (16,)}, None, ["text of 16 tokens, but block_size is 8"]),
        ({"model_options.vocab_size": 100}, None,
         ["the model tells 100 tokens apart", "bytes from 0 to 255", "vocab_size"]),
        ({"model_options.width": 15}, None, ["width 15 does not divide into 2 heads", "such as 16"]),
        ({"input_shape": (8, 8)}, None, ["of a text it is the length of a window, such as (64,)"]),
    ],
    ids=["short file", "short text", "long windows", "few tokens", "uneven heads", "images"],
)  # fmt: skip
def test_what_cannot_work_is_refused_and_leaves_nothing(
    settings, content, messages, book, tmp_path
):
    if content is not None:
        book.write_bytes(content)
    with pytest.raises(GrowthError) as caught:
        Trainer(change(recipe(), settings), tmp_path / "run", data=book, progress=Silence()).fit()
    for message in messages:
        assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_heads_that_cannot_be_had_in_pairs_are_refused_or_keep_their_number(book, tmp_path):
    """A second head would come alone: growing the number is refused, unless that is given as what it is."""
    with pytest.raises(PlanError, match=r"qkv' has 2 heads, and two are the fewest"):
        Trainer(recipe(heads="count"), tmp_path / "run", data=book, progress=Silence())
    assert not (tmp_path / "run").exists()
    given = recipe(heads="count", widths={"*.qkv": (2, 2)})
    run = Trainer(given, tmp_path / "run", data=book, progress=Silence())
    plan = run.parts.plan
    widths = {g.name: plan.widths(g.name) for g in plan.groups.growable}
    assert widths.pop("blocks.0.attention.qkv") == [2, 2]
    assert all(first < last for first, last in widths.values())


def blocks():
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_page_has_two_blocks_and_the_second_one_runs(book, tmp_path, capsys):
    (llama, generating) = blocks()
    assert llama.startswith("# llama.py\n")
    Trainer(recipe(), tmp_path / "run", data=book, progress=Silence()).fit()
    capsys.readouterr()
    exec(compile(generating, str(PAGE), "exec"), {"FILE": tmp_path / "run" / "model.safetensors"})
    assert len(capsys.readouterr().out) > 1


@pytest.mark.slow
def test_a_llama_of_ones_own_goes_all_the_way(tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(blocks()[0])
    monkeypatch.chdir(tmp_path)
    own = ["--recipe", "llama.py:tiny_llama"]
    sizes = ["epochs=2", "num_train=64", "input_shape=(16,)", "model_options.width=32"]
    tiny = [part for one in sizes for part in ("--set", one)]
    assert main(["plan", *own, *tiny]) == 0
    assert main(["train", *own, *tiny, "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["eval", "run", *own]) == 0
    assert "test perplexity" in (out := capsys.readouterr().out) and "the same" in out
    assert main(["export", "run", "llama.safetensors"]) == 0
    assert main(["report", "run"]) == 0
    capsys.readouterr()
    assert main(["generate", "llama.safetensors", "def ", *own, "--tokens", "20"]) == 0
    assert capsys.readouterr().out.startswith("def ")
    assert main(["generate", "run", "def "]) == 2
    assert "'llama.llama' makes" in capsys.readouterr().err
    compared = ["--out", "all", "--seeds", "1", "--methods", "growing"]
    assert main(["compare", *own, *tiny, *compared]) == 0
    assert "perplexity" in capsys.readouterr().out
