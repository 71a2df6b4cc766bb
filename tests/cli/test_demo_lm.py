"""`make demo-lm` trains, reports and writes a text; a second call goes on, which is to write again."""

import sys

from growthring.cli.demo_lm import main
from tests.cli.test_generate import SETTINGS


def test_it_learns_and_writes(tmp_path, capsys, monkeypatch):
    out, settings = tmp_path / "demo", [part for one in SETTINGS for part in ("--set", one)]
    monkeypatch.setattr(sys, "argv", ["demo_lm", "--out", str(out), "--prompt", "if x", *settings])
    assert main() == 0
    shown, progress = capsys.readouterr()
    assert progress.count("test perplexity") == 2 and progress.count("% of fixed-size FLOPs") == 2
    assert f"$ growthring generate {out} 'if x'\nif x" in shown
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8")
    weights, text = (out / "model.safetensors").read_bytes(), shown.split("$ growthring")[-1]
    assert main() == 0  # it is finished: nothing is trained again
    assert (out / "model.safetensors").read_bytes() == weights
    assert capsys.readouterr().out.split("$ growthring")[-1] == text


def test_what_fails_ends_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo_lm", "--out", str(tmp_path / "demo"), "--set", "lr=x"])
    assert main() == 2
    assert "$ growthring report" not in capsys.readouterr().out and not (tmp_path / "demo").exists()
