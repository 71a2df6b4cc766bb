"""The table of width groups: what it lists, what it leaves out, and how reasons are counted."""

import torch
from torch import nn

import growthring as gr
from growthring.graph.table import by_reason, reason_lines
from growthring.graph.unify import Reason
from growthring.graph.widthgroup import WidthGroup

IMAGE = torch.zeros(2, 3, 8, 8)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10)
    )


def test_print_shows_the_table():
    groups = gr.discover_width_groups(conv_net(), IMAGE)
    assert str(groups) == groups.table()
    assert str(groups).splitlines()[:5] == [
        "Sequential: 4 width groups, 2 can grow, 2 are frozen",
        "",
        "CAN GROW",
        "  0  width 8",
        "      writes   0.weight axis 0",
    ]


def test_kernels_are_left_out_unless_asked_for():
    groups = gr.discover_width_groups(conv_net(), IMAGE)
    assert "kernel over space" not in str(groups)
    assert "Not listed: 4 kernel sizes (inspect --all, " in str(groups)
    table = groups.table(everything=True)
    assert groups.explain() == table
    assert table.count("slides this kernel over space") == 4 and "Not listed" not in table
    assert table.startswith("Sequential: 8 width groups, 2 can grow, 6 are frozen")


def test_inputs_and_outputs_take_a_line_each():
    text = str(gr.discover_width_groups(conv_net(), IMAGE))
    assert "  0.in  width 3: axis 1 of model input 'args_0'\n" in text
    assert "  4  width 10: axis 1 of model output 0\n" in text
    assert "why" not in text


def test_a_single_frozen_width_is_one():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.up = nn.Embedding(11, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.up(self.table(x))

    groups = gr.discover_width_groups(Tokens(), torch.zeros(2, 3, dtype=torch.long))
    assert str(groups).startswith("Tokens: 2 width groups, 1 can grow, 1 is frozen\n")
    assert "table/2  width 11: operator 'aten.embedding' in 'table' looks its rows up" in str(
        groups
    )


def test_a_stream_that_is_returned_is_no_size_of_the_data():
    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            x = self.stem(x)
            return x + self.down(torch.relu(self.up(x)))

    groups = gr.discover_width_groups(Stream(), torch.zeros(2, 4))
    assert groups["stem"].is_kept and not groups["stem"].is_given
    assert "  stem  width 8\n      why      axis 1 of model output 0\n" in str(groups)


def frozen(name: str, text: str, width: int = 8) -> WidthGroup:
    return WidthGroup(0, name, width, (), Reason("operator", text))


def test_each_reason_once_with_the_number_of_widths():
    groups = [frozen(f"layer{i}", f"operator 'aten.sort' in 'layer{i}' sorts it") for i in range(5)]
    groups += [frozen("a", "operator 'aten.topk' in 'a' sorts it"), frozen("b", "freeze='b'", 3)]
    assert [len(alike) for alike in by_reason(groups)] == [5, 1, 1]
    assert reason_lines(groups) == [
        "5 widths, such as layer0 (8) and layer1 (8): operator 'aten.sort' in 'layer0' sorts it",
        "a (8): operator 'aten.topk' in 'a' sorts it",
        "b (3): freeze='b'",
    ]


def test_many_reasons_are_not_all_told():
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = reason_lines([frozen(word, f"because of {word}") for word in words])
    assert len(lines) == 9 and lines[-1] == "2 more widths for other reasons"


def test_a_prompt_shows_one_line():
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    plan = gr.plan(net, torch.zeros(1, 4))
    assert repr(plan) == "<Plan of Sequential: 2 stages>"
    assert repr(plan.groups) == "<WidthGroups of Sequential: 3, 1 can grow>"
