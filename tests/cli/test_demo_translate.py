"""`make demo-translate` trains, shows BLEU and samples, translates and writes a report; a second call goes on."""

import sys

import pytest

from growthring.checkpoint import read_json
from growthring.cli.demo_translate import NUMBERS, main

TINY = ["epochs=2", "stages=2", "num_train=48", "batch_size=12", "model_options.d_model=8",
        "model_options.num_heads=2", "model_options.d_embed=8", "model_options.num_encoder_layers=1",
        "model_options.num_decoder_layers=1", "task_options.num_test=5", "task_options.beam=1",
        "task_options.max_length=40"]  # fmt: skip


def demo(monkeypatch, out, settings):
    given = [word for setting in settings for word in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(out), *given])
    main()


def test_the_demo_translates(tmp_path, capsys, monkeypatch):
    out = tmp_path / "demo"
    demo(monkeypatch, out, TINY)
    shown = capsys.readouterr().out
    assert "test BLEU" in shown and "BLEU by sacrebleu" in shown and "reference" in shown
    translated = shown.split(f"translate {out} {' '.join(NUMBERS)}\n")[1].split("\n\n")[0]
    assert len(translated.split("\n")) == len(NUMBERS)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "Samples of numbers-transformer" in page and "reference" in page
    weights = (out / "model.safetensors").read_bytes()
    demo(monkeypatch, out, TINY)  # it is finished: nothing is trained again
    assert (out / "model.safetensors").read_bytes() == weights
    assert translated in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_learns_to_translate(tmp_path, capsys, monkeypatch):
    demo(monkeypatch, tmp_path / "demo", [])
    result = read_json(tmp_path / "demo" / "result.json")
    assert result["scores"]["test_bleu"] > 90 and result["flops_share"] < 0.6
    shown = capsys.readouterr().out
    assert "one thousand eight hundred and sixty-six\n" in shown
