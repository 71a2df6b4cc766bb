"""Ring geometry: both forms agree with masks, in every memory layout and type."""

import pytest
import torch

import growthring as gr
from growthring.optim.geometry import ParameterRings, RingGeometry, as_real
from growthring.optim.ringbatch import RingBatch
from tests.optim.nets import backward, grower_of, plan_of

SHAPES = {
    "vector": [[0, 0, 1, 2]],
    "matrix": [[0, 0, 1, 2, 2], [0, 1, 1, 2]],
    "scattered": [[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 2, 0, 2, 1]],
    "convolution": [[0, 1, 1, 2], [0, 0, 2], [0, 0, 0], [0, 0, 0]],
    "empty ring": [[0, 0, 2], [0, 0]],
    "no rings": [[0, 0, 0], [0, 0]],
    "no seed": [[1, 1, 2], [0, 1]],
    "scalar": [],
}


def rings_of(shape, num_rings=3):
    axes = tuple(torch.tensor(axis) for axis in SHAPES[shape])
    return ParameterRings("w", axes, num_rings, adapts=True)


def index_of(rings):
    """The ring of each entry, one after the other."""
    result = torch.zeros(rings.shape, dtype=torch.int64)
    for place in (
        torch.cartesian_prod(*[torch.arange(n) for n in rings.shape]) if rings.axes else ()
    ):
        place = tuple(place.reshape(-1).tolist())
        result[place] = max(int(axis[i]) for axis, i in zip(rings.axes, place, strict=True))
    return result


def values_of(rings, dtype, generator):
    if dtype.is_complex:
        return torch.randn(rings.shape, dtype=dtype, generator=generator)
    return torch.randn(rings.shape, dtype=torch.float64, generator=generator).to(dtype)


@pytest.mark.parametrize("by_runs", [True, False, None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_counts_and_spreads_agree_with_masks(shape, dtype, by_runs, generator):
    rings = rings_of(shape)
    w, index = values_of(rings, dtype, generator), index_of(rings)
    geometry = RingGeometry(rings, w, by_runs)
    masks = [index == k for k in range(3)]
    expected = torch.stack([w[m].abs().square().sum() for m in masks])
    torch.testing.assert_close(geometry.squares(w), expected, rtol=1e-13, atol=1e-13)
    parts = 2 if dtype.is_complex else 1  # a complex entry is two numbers
    assert geometry.counts == [max(int(m.sum()) * parts, 1) for m in masks]
    rates, update = torch.tensor([[2.0, 3.0, 5.0]]).double(), values_of(rings, dtype, generator)
    moved = w.clone()
    RingBatch([geometry], w).addcmul_([moved], [update], rates)
    by_entry = rates[0].to(dtype)[index]
    torch.testing.assert_close(moved, w - by_entry * update, rtol=1e-13, atol=1e-13)
    batch = RingBatch([geometry], w)
    real, numbers = as_real(w.clone()), rates[0][index]
    numbers = numbers[..., None] if dtype.is_complex else numbers
    batch.mul_([real], rates)
    torch.testing.assert_close(real, as_real(w) * numbers)
    batch.add_([real], rates)
    torch.testing.assert_close(real, as_real(w) * numbers + numbers)


@pytest.mark.parametrize("by_runs", [True, False, None])
def test_a_batch_of_several_shapes(by_runs, generator):
    shapes = [s for s in SHAPES if s != "scalar"]
    all_rings = [rings_of(s) for s in shapes]
    values = [values_of(r, torch.float64, generator) for r in all_rings]
    batch = RingBatch(
        [RingGeometry(r, w, by_runs) for r, w in zip(all_rings, values, strict=True)], values[0]
    )
    rates = torch.rand(len(shapes), 3, generator=generator, dtype=torch.float64)
    moved = [w.clone() for w in values]
    batch.addcmul_(moved, values, rates)
    for row, rings, w, new in zip(rates, all_rings, values, moved, strict=True):
        torch.testing.assert_close(new, w * (1 - row[index_of(rings)]))
    expected = [[float(w[index_of(r) == k].square().sum()) for k in range(3)]
                for r, w in zip(all_rings, values, strict=True)]  # fmt: skip
    torch.testing.assert_close(batch.squares(values), torch.tensor(expected).double())


def test_channels_last_is_written_in_place(generator):
    rings = rings_of("convolution")
    w = values_of(rings, torch.float64, generator).to(memory_format=torch.channels_last)
    assert not w.is_contiguous()
    before, address = w.clone(), w.data_ptr()
    for by_runs in (True, False, None):
        batch = RingBatch([RingGeometry(rings, w, by_runs)], w)
        batch.mul_([w], torch.tensor([[1.0, 2.0, 3.0]]).double())
    index = index_of(rings)
    torch.testing.assert_close(w, before * (index + 1.0).double() ** 3)
    assert w.data_ptr() == address and w.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("by_runs", [True, False])
def test_low_precision_sums_do_not_stop_growing(by_runs):
    axis = torch.zeros(600, dtype=torch.int64)
    rings = ParameterRings("w", (axis, axis), 1, adapts=True)
    w = torch.ones(600, 600, dtype=torch.bfloat16)
    squares = RingGeometry(rings, w, by_runs).squares(w)
    assert squares.dtype == torch.float32 and squares.tolist() == [360000.0]


def test_more_runs_than_views_are_worth(generator):
    axis = torch.arange(3).repeat(200)
    rings = ParameterRings("w", (axis, axis), 3, adapts=True)
    w = torch.randn(600, 600, generator=generator, dtype=torch.float64)
    index = torch.maximum(axis[:, None], axis[None])
    expected = torch.stack([w[index == k].square().sum() for k in range(3)])
    for by_runs in (True, False, None):
        torch.testing.assert_close(RingGeometry(rings, w, by_runs).squares(w), expected)


def test_a_geometry_without_entries():
    rings = ParameterRings("w", (torch.zeros(0, dtype=torch.int64), torch.zeros(3).long()), 1, True)
    w = torch.zeros(0, 3)
    assert RingGeometry(rings, w).squares(w).tolist() == [0.0]


# Whole runs in other layouts and types.


def run(optimizer_of, change, net="residual", dtype=torch.float64, growths=3):
    plan = plan_of(net, dtype)
    model = change(plan.build_seed())
    optimizer = optimizer_of(model.parameters())
    grower = grower_of(model, plan, optimizer)
    for stage in range(growths):
        for i in range(3):
            optimizer.zero_grad()
            backward(model, plan, 10 * stage + i)
            optimizer.step()
        grower.grow(measure=False)
    optimizer.zero_grad()
    backward(model, plan, 99)
    optimizer.step()
    return model


OPTIMIZERS = {
    "sgd": lambda p: gr.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: gr.optim.AdamW(p, lr=0.003, amsgrad=True),
    "avagrad": lambda p: gr.optim.AvaGrad(p, lr=0.03),
    "lars": lambda p: gr.optim.LARS(p, lr=1.0, rate_adaptation="norm", state_at_growth="keep"),
    "wrapped": lambda p: gr.optim.with_rings(torch.optim.AdamW(p, lr=0.003)),
}


def is_close(a, b):
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.each(2)
def test_channels_last_models_train_the_same(kind):
    plain = run(OPTIMIZERS[kind], lambda m: m)
    last = run(OPTIMIZERS[kind], lambda m: m.to(memory_format=torch.channels_last))
    is_close(plain, last)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_change_of_memory_format_in_mid_training(kind):
    """State that was made in one layout serves a parameter in the other."""
    results = []
    formats = (torch.contiguous_format, torch.channels_last)
    for first, second in ((0, 0), (0, 1), (1, 0)):
        plan = plan_of("residual")
        model = plan.build_seed()
        grower_of(model, plan).grow(measure=False)
        model.to(memory_format=formats[first])
        optimizer = OPTIMIZERS[kind](model.parameters())
        grower_of(model, plan, optimizer)
        for i in range(4):
            optimizer.zero_grad()
            backward(model, plan, i)
            optimizer.step()
            if i == 1:
                model.to(memory_format=formats[second])
        results.append(model)
    is_close(results[0], results[1])
    is_close(results[0], results[2])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_change_of_type_after_a_step(kind):
    """model.double() changes parameters in place; what is known of them must follow."""
    plan = plan_of("mlp", torch.float32)
    model = plan.build_seed()
    optimizer = OPTIMIZERS[kind](model.parameters())
    grower = grower_of(model, plan, optimizer)
    grower.grow(measure=False)
    optimizer.rate_factors()
    model.double()
    backward(model, plan_of("mlp"), 1)
    optimizer.step()
    assert all(f.dtype == torch.float64 for f in optimizer.rate_factors().values())


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("net", ["mlp", "attention"])
@pytest.mark.each(2)
def test_bfloat16_trains_near_single_precision(kind, net):
    fine = run(OPTIMIZERS[kind], lambda m: m, net, torch.float32, growths=1)
    rough = run(OPTIMIZERS[kind], lambda m: m, net, torch.bfloat16, growths=1)
    for (name, p), q in zip(rough.named_parameters(), fine.parameters(), strict=True):
        assert p.dtype == torch.bfloat16 and bool(torch.isfinite(p).all()), name
        if p.dim() > 1:
            assert float((p.detach().float() - q.detach()).norm() / q.detach().norm()) < 0.3, name
