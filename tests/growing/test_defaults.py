"""A default device or type of numbers other than the model's: whatever helps is made where the model is."""

import contextlib
import functools

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import growthring as gr
from growthring.optim import RingRecorder
from tests.growing.test_moved import default_dtype
from tests.optim.nets import assert_same


class Net(nn.Module):
    """Convolutions, a norm that fades in, attention-like sums: nothing is made in forward."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.a, self.ln = nn.Linear(8, 16), nn.LayerNorm(16)
        self.b, self.head = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.head(self.b(self.ln(self.a(x))).relu())


OPTIMIZERS = {
    "SGD": lambda p: gr.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: gr.optim.AdamW(p, lr=0.01, ages="ring", rate_adaptation="norm"),
    "Adam, own": lambda p: gr.optim.Adam(p, lr=0.01, ring_schedule="own", total_steps=9),
    "AdamW, fused": lambda p: gr.optim.AdamW(p, lr=0.01, fused=True, rate_adaptation="norm"),
    "AvaGrad": lambda p: gr.optim.AvaGrad(p, lr=0.01, rate_adaptation="norm"),
    "LARS": lambda p: gr.optim.LARS(p, lr=0.01, rate_adaptation="norm"),
    "with_rings": lambda p: gr.optim.with_rings(
        torch.optim.SGD(p, lr=0.05), rate_adaptation="norm"
    ),
}
SETTINGS = {
    "meta": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


def run(make, settings):
    """A whole run inside of the settings; the model, its data and generators come from outside."""
    torch.manual_seed(0)
    full, generator = Net(), torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 3, 5, 5) for _ in range(9)]
    with settings():
        groups = gr.discover_width_groups(full, batches[0])
        plan = gr.plan(full, batches[0], total_steps=9, stages=3)
        text = f"{groups}{plan}"
        seed = plan.build_seed()
        optimizer = make(seed.parameters())
        average = AveragedModel(seed, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        average.n_averaged = torch.zeros(
            (), dtype=torch.int64, device="cpu"
        )  # torch's own is elsewhere
        grower = gr.Grower(seed, plan, optimizer, averages=average, generator=generator)
        recorder = RingRecorder(optimizer)
        for step, x in enumerate(batches):
            optimizer.zero_grad()
            seed(x).square().mean().backward()
            optimizer.step()
            average.update_parameters(seed)
            grower.step()
            optimizer.rate_factors(), optimizer.weight_norms(), optimizer.gradient_norms()
            if step == 4:
                saved = grower.state_dict(), seed.state_dict(), optimizer.state_dict()
                twin = plan.build_seed()
                other = make(twin.parameters())
                later = gr.Grower(twin, plan, other)
                later.load_state_dict(saved[0])
                twin.load_state_dict(saved[1])
                other.load_state_dict(saved[2])
        masks = [grower.rings.mask(n, 1) for n, _ in seed.named_parameters()]
        gr.end_fades(seed)
        grower.finish()
        checked = gr.verify(seed, full, batches[0])
        plan.measure(1)
    rows = list(recorder.rows())
    return [text, dict(seed.state_dict()), dict(average.module.state_dict()), masks, rows,
            float(checked.relative), dict(twin.state_dict())]  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.each(7)
def test_defaults_of_the_caller_change_nothing(kind, name):
    assert_same(run(OPTIMIZERS[kind], SETTINGS[name]), usual(kind))


@functools.cache
def usual(kind):
    return run(OPTIMIZERS[kind], contextlib.nullcontext)
