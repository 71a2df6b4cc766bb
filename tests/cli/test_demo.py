"""`make demo` trains both ways and at equal cost, shows a table and writes a report; a second call goes on."""

import sys

from growthring.cli.demo import main
from growthring.compare.contenders import MATCHED

TINY = ["--set", "epochs=3", "--set", "num_train=32", "--set", "input_shape=(8,)",
        "--set", "model_options.width=16", "--set", "model_options.num_layers=1",
        "--set", "model_options.num_heads=4"]  # fmt: skip
ROWS = ("fixed", *MATCHED, "grown")


def test_the_demo_compares_grown_and_fixed(tmp_path, capsys, monkeypatch):
    out = tmp_path / "demo"
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(out), *TINY])
    main()
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(ROWS)][:6] == list(
        ROWS
    )
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "fixed-flops" in page
    assert "growthring demo" in (out / "runs.html").read_text(encoding="utf-8")
    weights = {
        name: (out / name / "seed-0" / "model.safetensors").read_bytes()
        for name in ("fixed", "grown")
    }
    main()  # all are finished: nothing is trained again
    for name, content in weights.items():
        assert (out / name / "seed-0" / "model.safetensors").read_bytes() == content
