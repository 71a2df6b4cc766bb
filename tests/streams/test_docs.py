"""The loops of docs/streams.md run as they stand."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import growthring as gr
from scripts.pays.tables import BEGIN
from scripts.streams import PAGE, tables
from tests.pages import blocks, run_script


def test_the_loop_of_the_page_runs(tmp_path):
    ran = run_script(blocks("streams.md")[0], tmp_path)
    assert ran.stdout.count("grew: stage") == 2
    accuracy = float(re.search(r"accuracy ([\d.]+)%", ran.stdout)[1])
    assert accuracy > 60, "ten classes, of which three came in the last stage only"


def test_the_loop_without_a_grower_runs():
    code = blocks("streams.md")[1]
    assert "        ...\n" in code
    step = """
        inputs, targets = next(iter(DataLoader(data, 8, shuffle=True)))
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        weights.append(osgd.weight)
"""
    data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 4)
    model = nn.Linear(4, 4)
    names = {
        **{"gr": gr, "DataLoader": DataLoader, "model": model, "loss": nn.CrossEntropyLoss()},
        "optimizer": torch.optim.Adam(model.parameters()),
        "stream": gr.streams.ProgressiveClasses(data, 2, 1),
        **{"steps": 4, "weights": []},
    }
    exec(code.replace("        ...\n", step), names)
    assert names["weights"] == [0, 0, 0, 0] + 2 * [1.0, 0.75, 0.5, 0.25]


def test_the_page_has_the_tables_of_the_results():
    text, results = PAGE.read_text(), Path("results")
    found = tables(results)
    assert sum(len(lines) for lines in found.values()) > 30
    for name, lines in found.items():
        assert BEGIN.format(name) in text, name
        assert "\n".join(lines) in text, f"{name}: run python -m scripts.streams --page"
