"""RingRecorder: what each step did to each ring."""

import json

import pytest
import torch

import growthring as gr
from tests.optim.nets import backward, grower_of, plan_of, train


def test_recorder(tmp_path):
    plan = plan_of("mlp")
    model = plan.build_seed()
    optimizer = gr.optim.SGD(model.parameters(), lr=0.01)
    grower = grower_of(model, plan, optimizer)
    recorder = gr.optim.RingRecorder(optimizer, every=2, names=["*.weight"])
    expected = []
    for _ in range(3):
        for i in range(3):
            optimizer.zero_grad()
            backward(model, plan, i)
            expected.append((optimizer.rate_factors(), optimizer.gradient_norms()))
            optimizer.step()
        grower.grow()
    rows = list(recorder.rows())
    assert [r["step"] for r in rows] == [s for s in (0, 2, 4, 6, 8) for _ in range(3)]
    assert {r["name"] for r in rows} == {"0.weight", "2.weight", "4.weight"}
    for row in rows:
        factors, grads = expected[row["step"]]
        assert row["rate_factor"] == factors[row["name"]].tolist()
        assert row["gradient_norm"] == grads[row["name"]].tolist()
        assert len(row["weight_norm"]) == row["step"] // 3 + 1
    recorder.save(tmp_path / "rings.jsonl")
    lines = (tmp_path / "rings.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    recorder.remove()
    train(model, plan, optimizer, 2)
    assert len(list(recorder.rows())) == len(rows)
    with pytest.raises(gr.GrowthError, match="knows no rings"):
        gr.optim.RingRecorder(torch.optim.SGD(model.parameters()))
    for bad in ({"every": 0}, {"every": True}, {"names": "x"}):
        with pytest.raises(gr.GrowthError):
            gr.optim.RingRecorder(optimizer, **bad)
