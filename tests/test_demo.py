"""`make demo` trains both ways, shows a table and writes a report; a second call goes on from there."""

import sys

from growthring.demo import main

TINY = ["--set", "epochs=4", "--set", "first_epochs=1", "--set", "stages=3", "--set", "num_train=128",
        "--set", "model_options.width=8"]  # fmt: skip


def test_the_demo_compares_grown_and_fixed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "demo"), *TINY])
    main()
    shown = capsys.readouterr().out
    assert "demo, grown" in shown and "demo, fixed-size" in shown and "100.0 %" in shown
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "growthring demo" in page
    weights = {
        name: (tmp_path / "demo" / name / "model.safetensors").read_bytes()
        for name in ("grown", "fixed-size")
    }
    main()  # both are finished: nothing is trained again
    for name, content in weights.items():
        assert (tmp_path / "demo" / name / "model.safetensors").read_bytes() == content
