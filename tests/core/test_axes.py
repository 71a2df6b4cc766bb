"""Layouts and rings of an axis, against a reference built entry by entry."""

import torch
from hypothesis import assume, given, strategies as st

from growthring.core.axes import (
    Concat,
    Fixed,
    Product,
    Ref,
    layout,
    negate,
    refs,
    rings,
    size,
)
from tests.core import reference


@given(reference.axes, reference.growths())
def test_size_counts_entries(axis, growth):
    before, after = growth
    assert size(axis, before) == len(reference.entries(axis, before))
    assert size(axis, after) == len(reference.entries(axis, after))


@given(reference.axes, reference.growths())
def test_layout_matches_the_reference(axis, growth):
    before, after = growth
    old, new = reference.entries(axis, before), reference.entries(axis, after)
    found = layout(axis, before, after)
    assert found.source.tolist() == [old.index(e) if e in old else -1 for e in new]
    leaders = [reference.leader(e, before, after) for e in new]
    assert found.partner.tolist() == [new.index(e) for e, _ in leaders]
    assert found.sign.tolist() == [f for _, f in leaders]


@given(reference.axes, reference.growths())
def test_layout_lists_old_and_new_entries(axis, growth):
    before, after = growth
    found = layout(axis, before, after)
    assert found.old.tolist() == [i for i, s in enumerate(found.source.tolist()) if s >= 0]
    assert found.new.tolist() == [i for i, s in enumerate(found.source.tolist()) if s < 0]
    assert found.source[found.old].tolist() == list(range(size(axis, before)))
    assert found.grows == (size(axis, before) != size(axis, after))
    assert found.is_new.dtype is torch.bool


@given(reference.axes, reference.growths())
def test_partners_are_leaders_of_their_own(axis, growth):
    found = layout(axis, *growth)
    assert torch.equal(found.partner[found.partner], found.partner)
    # an old entry is its own partner and keeps its value
    assert torch.equal(found.partner[found.old], found.old)
    assert bool((found.sign[found.old] == 1).all())


@given(reference.axes, reference.growths())
def test_values_along_an_axis_cancel_against_its_negation(axis, growth):
    # What is new in exactly one factor cancels between the two parities: the heart of a contraction.
    before, after = growth
    a, b = layout(axis, before, after), layout(negate(axis), before, after)
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(len(a.source), generator=g, dtype=torch.float64) for _ in range(2))
    x, y = x[a.partner] * a.sign, y[b.partner] * b.sign
    names = reference.entries(axis, after)
    new_units = [sum(k >= before[u] for u, _, k in reference.units(e)) for e in names]
    assume(max(new_units, default=0) <= 1)
    torch.testing.assert_close((x * y).sum(), (x * y)[a.old].sum())


@given(reference.axes, reference.histories())
def test_rings_match_the_reference(axis, history):
    last = {g: w[-1] for g, w in history.items()}
    wanted = [reference.age(e, history) for e in reference.entries(axis, last)]
    assert rings(axis, history).tolist() == wanted


@given(reference.axes)
def test_negate_is_its_own_inverse(axis):
    assert negate(negate(axis)) == axis
    assert [r.group for r in refs(negate(axis))] == [r.group for r in refs(axis)]
    assert [r.sign for r in refs(negate(axis))] == [-r.sign for r in refs(axis)]


@given(st.integers(1, 5), st.integers(0, 7))
def test_pairs_of_one_width(before, step):
    found = layout(Ref(0, -1), {0: before}, {0: before + step})
    half = step // 2
    first, second = before, before + half
    assert found.partner[second : second + half].tolist() == list(range(first, second))
    assert found.sign[first:second].tolist() == [1] * half
    assert found.sign[second : second + half].tolist() == [-1] * half
    assert found.sign[second + half :].tolist() == [0] * (step % 2)


def test_segments_grow_at_their_own_ends():
    axis = Concat((Ref(0), Fixed(2), Ref(1)))
    found = layout(axis, {0: 1, 1: 2}, {0: 3, 1: 3})
    assert found.source.tolist() == [0, -1, -1, 1, 2, 3, 4, -1]


def test_heads_and_head_size():
    by_size = layout(Product((Fixed(2), Ref(0))), {0: 2}, {0: 4})
    assert by_size.source.tolist() == [0, 1, -1, -1, 2, 3, -1, -1]
    by_count = layout(Product((Ref(0), Fixed(2))), {0: 2}, {0: 4})
    assert by_count.source.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert by_count.partner.tolist() == [0, 1, 2, 3, 4, 5, 4, 5]


def test_an_empty_axis():
    found = layout(Fixed(0), {}, {})
    assert found.source.tolist() == [] and not found.grows
