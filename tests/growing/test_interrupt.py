"""Ctrl-C (or any error) at any line of grow() and load_state_dict() changes nothing, bit for bit."""

import collections
import copy
import functools
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import growthring as gr
import growthring.growing.stage as stage_module
from growthring.errors import GrowthStepError
from growthring.graph.isolation import CALLERS
from growthring.graph.snapshot import Snapshot
from growthring.growing import transaction

SOURCE = str(Path(gr.__file__).parent)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Norms that fade, BatchNorm, plain state, an attribute that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 8
        self.a, self.bn, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.LayerNorm(8)
        self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 2)
        self.calls, self.last, self.plain = 0, None, torch.zeros(2)

    def forward(self, x):
        self.calls += 1
        self.plain += 1
        h = torch.relu(self.bn(self.a(x))).view(-1, self.width)
        self.last = h
        return self.c(torch.relu(self.b(self.norm(h))))


class Setting:
    """A model half-way through its growth, with everything that grows along."""

    def __init__(self, grown: int = 1) -> None:
        torch.manual_seed(0)
        self.plan = gr.plan(Net(), X, stages=3, start=0.25)
        self.model = self.plan.build_seed()
        self.average = AveragedModel(self.model)
        weights, others = list(self.model.parameters())[::2], list(self.model.parameters())[1::2]
        self.optimizers = [
            gr.optim.AdamW(weights, lr=0.01, ring_schedule="own", total_steps=50),
            gr.optim.with_rings(
                torch.optim.SGD(others, lr=0.01, momentum=0.9), rate_adaptation="norm"
            ),
        ]
        self.grower = gr.Grower(
            self.model,
            self.plan,
            self.optimizers,
            averages=self.average,
            generator=torch.Generator().manual_seed(1),
        )
        self.train()
        for _ in range(grown):
            self.grower.grow()
            self.grower.advance(0.25)
            self.train()
        self.model(X).sum().backward()  # a gradient in mid-accumulation
        self.model.norm.eval()

    def train(self) -> None:
        self.model.train()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.model(X).square().sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        self.average.update_parameters(self.model)

    def look(self) -> dict[str, Any]:
        """Everything there is, as plain values; objects by identity."""
        found: dict[str, Any] = {}

        def visit(path: str, item: Any) -> None:
            if isinstance(item, torch.Tensor):
                bits = (
                    item.detach().cpu().contiguous().view(torch.uint8)
                    if item.dim()
                    else item.detach()
                )
                found[path] = (id(item), item.dtype, tuple(item.shape), item.stride(), bits.clone())
                if item.is_leaf and item.grad is not None:
                    visit(f"{path}.grad", item.grad)
            elif isinstance(item, torch.Generator):
                found[path] = item.get_state()
            elif isinstance(item, dict):
                found[path] = [id(k) if isinstance(k, torch.Tensor) else k for k in item]
                for i, (key, value) in enumerate(item.items()):
                    visit(f"{path}[{i if isinstance(key, torch.Tensor) else key}]", value)
            elif isinstance(item, (list, tuple)):
                found[path] = (type(item), len(item))
                for i, value in enumerate(item):
                    visit(f"{path}[{i}]", value)
            elif isinstance(item, nn.Module) or type(item).__module__.startswith("growthring"):
                if id(item) not in seen:
                    seen.add(id(item))
                    found[path] = (id(item), type(item))
                    visit(f"{path}.__dict__", vars(item))
            else:
                found[path] = (
                    type(item),
                    item if isinstance(item, (int, float, str)) else id(item),
                )

        seen: set[int] = {id(self.plan)}
        for number, optimizer in enumerate(self.optimizers):
            visit(f"optimizer{number}", vars(optimizer))
            visit(f"optimizer{number}.state", dict(optimizer.state))
        visit("model", self.model)
        visit("average", self.average)
        visit("grower", self.grower.state_dict())
        found["stage"] = self.grower.stage
        visit(
            "random", [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
        )
        found["settings"] = (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            CALLERS.get(),
        )
        found["hooks"] = len(torch.nn.modules.module._global_forward_hooks)
        return found


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert set(before) == set(after)
    for path, value in before.items():
        other = after[path]
        if path.startswith(("grower", "random")):  # a state_dict is made anew: its values count
            value, other = (
                v[1:] if isinstance(v, tuple) and isinstance(v[0], int) else v
                for v in (value, other)
            )
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other), path
        elif isinstance(value, tuple) and isinstance(value[-1], torch.Tensor):
            assert value[:-1] == other[:-1], path
            assert torch.equal(value[-1], other[-1]), path
        else:
            assert value == other, path


def lines_of(act: Callable[[], Any]) -> list[tuple[str, int]]:
    """The lines of growthring that run, in order."""
    found: list[tuple[str, int]] = []

    def inside(frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            found.append((frame.f_code.co_filename, frame.f_lineno))
        return inside

    watch(inside, act)
    return found


def watch(inside: Any, act: Callable[[], Any]) -> Any:
    def tracer(frame: Any, event: str, arg: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(SOURCE) else None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        return act()
    finally:
        sys.settrace(before)


Place = tuple[tuple[str, int], int]  # a line, and which time that it runs


def interrupt_at(place: Place, act: Callable[[], Any]) -> bool:
    """Raises KeyboardInterrupt at the n-th time that a line runs; whether it came to that."""
    (file, line), times = place
    count = 0

    def inside(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        if event == "line" and frame.f_lineno == line and frame.f_code.co_filename == file:
            count += 1
            if count == times:
                raise KeyboardInterrupt
        return inside

    try:
        watch(inside, act)
    except KeyboardInterrupt:
        return True
    return False


def places_of(lines: list[tuple[str, int]], most: int | None) -> list[Place]:
    """Where to interrupt: the first and the last time that each line runs, or some of those."""
    counts = collections.Counter(lines)
    places = sorted({(line, times) for line, count in counts.items() for times in (1, count)})
    step = 1 if most is None else max(1, len(places) // most)
    return places[::step]


def check_every_line(most: int | None, act: Callable[[Setting], Any]) -> Setting:
    """Interrupts `act` at one line after the other, each time on what the last interrupt left."""
    ran = Setting()
    lines = lines_of(lambda: act(ran))
    setting, missed = Setting(), 0
    before = setting.look()
    places = places_of(lines, most)
    for place in places:
        if not interrupt_at(
            place, functools.partial(act, setting)
        ):  # the line ran less often this time
            setting, missed = Setting(), missed + 1
            before = setting.look()
            continue
        try:
            assert_same(before, setting.look())
        except AssertionError as error:
            raise AssertionError(f"interrupted at {place}: {error}") from error
    assert missed < 0.1 * len(places)
    return setting


@pytest.mark.parametrize(
    "most", [20, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_an_interrupt_at_any_line_of_a_growth(most):
    setting = check_every_line(most, lambda s: s.grower.grow())
    # a growth afterwards is the one that would have been
    other = Setting()
    setting.grower.grow(), other.grower.grow()
    setting.train(), other.train()
    for a, b in ((setting.model, other.model), (setting.average, other.average)):
        for (name, value), (_, wanted) in zip(
            a.state_dict().items(), b.state_dict().items(), strict=True
        ):
            assert torch.equal(value, wanted), name
    assert torch.equal(setting.grower.generator.get_state(), other.grower.generator.get_state())


@pytest.mark.parametrize(
    "most", [20, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"]
)
@pytest.mark.slow
def test_an_interrupt_at_any_line_of_loading(most):
    state = Setting(grown=2).grower.state_dict()

    def load(setting):
        setting.grower.load_state_dict(copy.deepcopy(state))

    setting = check_every_line(most, load)
    load(setting)
    assert setting.grower.stage == 2
    assert setting.model.width == 8


@pytest.fixture
def ctrl_c():
    """Ctrl-C as it is in the foreground, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_waits_until_everything_is_taken_back(monkeypatch, ctrl_c):
    setting = Setting()
    before, restore = setting.look(), Snapshot._restore
    pressed = []

    def slow_restore(self):
        pressed.append(1)
        signal.raise_signal(signal.SIGINT)
        restore(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Snapshot, "_restore", slow_restore)
    monkeypatch.setattr(stage_module, "grow_optimizers", lambda *_: 1 / 0)
    # of the snapshots, only that of the growth itself counts here
    monkeypatch.setattr(
        "growthring.graph.isolation.Snapshot", type("Own", (Snapshot,), {"_restore": restore})
    )
    with pytest.raises(KeyboardInterrupt):
        setting.grower.grow()
    assert pressed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    assert_same(before, setting.look())


def test_an_interrupt_while_taking_back_is_taken_up_again(monkeypatch):
    setting = Setting()
    before, restore, calls = setting.look(), Snapshot._restore, []

    class Own(Snapshot):
        def _restore(self):
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            restore(self)

    monkeypatch.setattr(transaction, "Snapshot", Own)
    monkeypatch.setattr(stage_module, "grow_optimizers", lambda *_: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        setting.grower.grow()
    assert calls == [1, 1]
    monkeypatch.undo()
    assert_same(before, setting.look())


def test_a_failed_growth_leaves_plain_tensors(monkeypatch):
    setting = Setting()
    before = setting.look()
    monkeypatch.setattr(stage_module, "grow_optimizers", lambda *_: 1 / 0)
    with pytest.raises(GrowthStepError):
        setting.grower.grow()
    monkeypatch.undo()
    assert_same(before, setting.look())


@pytest.mark.slow
def test_a_state_whose_rings_and_stage_disagree_is_refused():
    setting = Setting()
    state = Setting(grown=2).grower.state_dict() | {"stage": 1}
    before = setting.look()
    with pytest.raises(gr.GrowthError, match=r"rings are those of stage 2.*at stage 1.*not whole"):
        setting.grower.load_state_dict(state)
    assert_same(before, setting.look())
