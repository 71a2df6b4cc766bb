"""Widening one tensor, against the equations of the method: pairs cancel, halves are equal, old is c·W."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from growthring.core.axes import Concat, Fixed, Product, Ref, layout, negate
from growthring.core.widen import break_symmetry, normal, place_old, widen_constant, widen_paired
from tests.core import reference

BEFORE, AFTER = {0: 2, 1: 3, 2: 1, 3: 2}, {0: 5, 1: 7, 2: 5, 3: 4}  # steps 3, 4, 4, 2
ODD = {0: 3, 1: 10, 2: 6, 3: 9}  # steps 1, 7, 5, 7


def draws(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def grow(axes, read, before, after, factor=1.0, seed=1, std=1.0):
    layouts = [layout(a, before, after) for a in axes]
    old = draws([int((lay.source >= 0).sum()) for lay in layouts])
    g = torch.Generator().manual_seed(seed)
    return old, layouts, widen_paired(old, layouts, frozenset(read), std, factor, g)


def paired(lays, seed=3, odd=False):
    """A tensor whose pairs hold equal values along all of its axes, and its old entries."""
    x = draws([len(lay.source) for lay in lays], seed)
    for i, lay in enumerate(lays):
        x = x.index_select(i, lay.partner)
    old = x
    for i, lay in enumerate(lays):
        old = old.index_select(i, lay.old)
    return x, old


def select_old(tensor, axes, layouts):
    for i in axes:
        tensor = tensor.index_select(i, layouts[i].old)
    return tensor


def contract(w, x, read):
    """Sums w over its axes `read` against x, whose axes are those."""
    return torch.tensordot(w, x, (sorted(read), list(range(len(read)))))


CASES = {
    "matrix": ((Ref(0), Ref(1, -1)), {1}),
    "convolution": ((Ref(0), Ref(1, -1), Fixed(3), Fixed(2)), {1}),
    "input layer": ((Ref(0), Fixed(4)), {1}),
    "output layer": ((Fixed(4), Ref(1, -1)), {1}),
    "transposed": ((Ref(0, -1), Ref(1)), {0}),
    "depthwise": ((Ref(0), Fixed(1), Fixed(3)), set()),
    "two written axes": ((Ref(0), Ref(1), Fixed(2)), set()),
    "two written axes and a read one": ((Ref(0), Ref(2), Ref(1, -1)), {2}),
    "two read axes": ((Ref(0), Ref(1, -1), Ref(2, -1)), {1, 2}),
    "two of each": ((Ref(0), Ref(1, -1), Ref(3), Ref(2, -1)), {1, 3}),
    "flatten": ((Ref(0), Product((Ref(1, -1), Fixed(3)))), {1}),
    "concatenation": ((Concat((Ref(0), Fixed(1), Ref(2))), Concat((Ref(1, -1), Ref(3, -1)))), {1}),
    "head size": ((Product((Fixed(2), Ref(0))), Product((Fixed(2), Ref(1, -1)))), {1}),
    "head count": ((Product((Ref(0), Fixed(2))), Product((Ref(1, -1), Fixed(2)))), {1}),
    "fused projection": (
        (Concat(tuple(Product((Fixed(2), Ref(g))) for g in (0, 2, 3))), Ref(1, -1)), {1}
    ),
    "scattered on three axes": (
        (Product((Fixed(2), Ref(0))), Product((Fixed(2), Ref(1, -1))), Product((Fixed(3), Ref(2)))), {1}
    ),
    "the same width on both axes": ((Ref(0), Ref(0, -1)), {1}),
}  # fmt: skip


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_old_block_is_rescaled(case, after, factor):
    axes, read = case
    old, layouts, new = grow(axes, read, BEFORE, after, factor)
    assert torch.equal(select_old(new, range(len(axes)), layouts), old * factor)


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
def test_what_old_units_read_of_new_pairs_cancels(case, after):
    axes, read = case
    old, layouts, new = grow(axes, read, BEFORE, after, 0.5)
    if not read:
        pytest.skip("reads nothing")
    x, x_old = paired([layouts[i] for i in sorted(read)])
    written = [i for i in range(len(axes)) if i not in read]
    found = contract(select_old(new, written, layouts), x, read)
    torch.testing.assert_close(found, contract(old * 0.5, x_old, read), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
def test_new_units_come_in_equal_halves(case, after):
    axes, read = case
    _, layouts, new = grow(axes, read, BEFORE, after)
    written = [i for i in range(len(axes)) if i not in read]
    for place in itertools.product(*(range(len(layouts[i].source)) for i in written)):
        if not any(bool(layouts[i].is_new[p]) for i, p in zip(written, place, strict=True)):
            continue
        partner = [int(layouts[i].partner[p]) for i, p in zip(written, place, strict=True)]
        mine, theirs = new, new
        for i, p, q in zip(reversed(written), reversed(place), reversed(partner), strict=True):
            mine, theirs = mine.select(i, p), theirs.select(i, q)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
def test_new_entries_are_drawn(case, after):
    axes, read = case
    _, layouts, new = grow(axes, read, BEFORE, after)
    is_new = torch.zeros(new.shape, dtype=torch.bool)
    for i, lay in enumerate(layouts):
        is_new |= lay.is_new.reshape([-1] + [1] * (len(axes) - 1 - i))
    written = [i for i in range(len(axes)) if i not in read]
    zero = torch.zeros(new.shape, dtype=torch.bool)  # unpaired units that old units read
    for i in read:
        zero |= (layouts[i].sign == 0).reshape([-1] + [1] * (len(axes) - 1 - i))
    for i in written:
        zero &= ~layouts[i].is_new.reshape([-1] + [1] * (len(axes) - 1 - i))
    assert bool((new[is_new & ~zero] != 0).all())
    assert bool((new[zero] == 0).all())
    assert bool(torch.isfinite(new).all())


def test_an_unpaired_unit_is_read_with_zero():
    _, _, new = grow((Ref(0), Ref(1, -1)), {1}, {0: 2, 1: 2}, {0: 4, 1: 5})
    assert new[:2, 4].tolist() == [0.0, 0.0]
    assert torch.equal(new[:2, 2], -new[:2, 3])
    assert bool((new[2:, 4] != 0).all()), "new units may read it freely"


def test_keys_of_attention_have_opposite_halves():
    _, _, new = grow((Ref(0, -1), Fixed(3)), {1}, {0: 2}, {0: 6})
    assert torch.equal(new[2:4], -new[4:6])
    _, _, odd = grow((Ref(0, -1), Fixed(3)), {1}, {0: 2}, {0: 5})
    assert bool((odd[4] == 0).all()), "an unpaired key is zero"


@settings(max_examples=80)
@given(
    st.lists(reference.axes, min_size=1, max_size=3),
    st.integers(0, 7),
    reference.growths(),
)
def test_any_axes(axes, chosen, growth):
    before, after = growth
    read = {i for i in range(len(axes)) if chosen >> i & 1}

    def sign(axis, wanted):  # read axes are odd, written ones even
        if isinstance(axis, Ref):
            return Ref(axis.group, wanted)
        if isinstance(axis, (Product, Concat)):
            return type(axis)(tuple(sign(p, wanted) for p in axis.parts))
        return axis

    axes = [sign(a, -1 if i in read else 1) for i, a in enumerate(axes)]
    for axis in axes:  # the method lets one factor of a product grow
        names = reference.entries(axis, after)
        assume(len(names) <= 40)
        assume(all(sum(k >= before[g] for g, _, k in reference.units(e)) <= 1 for e in names))
    old, layouts, new = grow(axes, read, before, after, 0.25)
    every = range(len(axes))
    assert torch.equal(select_old(new, every, layouts), old * 0.25)
    written = [i for i in every if i not in read]
    if read:
        x, x_old = paired([layouts[i] for i in sorted(read)])
        found = contract(select_old(new, written, layouts), x, read)
        torch.testing.assert_close(found, contract(old * 0.25, x_old, read), rtol=1e-9, atol=1e-9)
    mirrored = new
    for i in written:
        mirrored = mirrored.index_select(i, layouts[i].partner)
    assert torch.equal(mirrored, new)


def test_the_deviation_of_new_entries():
    _, _, new = grow((Ref(0), Ref(1, -1)), {1}, {0: 10, 1: 10}, {0: 400, 1: 400}, std=0.3)
    assert float(new[10:].std()) == pytest.approx(0.3, rel=0.02)
    assert float(new[:10, 10:].std()) == pytest.approx(0.3, rel=0.05)


def test_the_generator_decides():
    axes = (Ref(0), Ref(1, -1))
    _, _, a = grow(axes, {1}, BEFORE, AFTER, seed=1)
    _, _, b = grow(axes, {1}, BEFORE, AFTER, seed=1)
    _, _, c = grow(axes, {1}, BEFORE, AFTER, seed=2)
    assert torch.equal(a, b) and not torch.equal(a, c)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_are_kept(dtype):
    layouts = [layout(Ref(0), {0: 2}, {0: 6}), layout(Ref(1, -1), {1: 2}, {1: 6})]
    new = widen_paired(torch.ones(2, 2, dtype=dtype), layouts, frozenset([1]), 1.0)
    assert new.dtype is dtype
    assert torch.equal(new[:2, 2:4], -new[:2, 4:]) and torch.equal(new[2:4], new[4:])
    assert normal((3,), 1.0, new, None).dtype is dtype


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
def test_constant(case, after):
    axes, _ = case
    layouts = [layout(a, BEFORE, after) for a in axes]
    old = draws([int((lay.source >= 0).sum()) for lay in layouts])
    new = widen_constant(old, layouts, 7.0, 0.5)
    assert torch.equal(select_old(new, range(len(axes)), layouts), old * 0.5)
    assert int((new != 7.0).sum()) == old.numel()


def test_place_old_leaves_the_rest():
    layouts = [
        layout(Product((Fixed(2), Ref(0))), {0: 1}, {0: 2}),
        layout(Product((Fixed(2), Ref(1))), {1: 1}, {1: 2}),
    ]
    new = torch.full((4, 4), 9.0)
    place_old(torch.arange(4.0).reshape(2, 2), new, layouts, 2.0)
    assert new.tolist() == [[0, 9, 2, 9], [9, 9, 9, 9], [4, 9, 6, 9], [9, 9, 9, 9]]


@pytest.mark.parametrize("after", [AFTER, ODD], ids=["mixed steps", "odd steps"])
@pytest.mark.parametrize(
    "name",
    [
        "matrix",
        "convolution",
        "flatten",
        "concatenation",
        "head size",
        "head count",
        "fused projection",
        "the same width on both axes",
    ],
)
def test_noise_parts_a_pair_without_changing_the_function(name, after):
    axes, read = CASES[name]
    _, layouts, new = grow(axes, read, BEFORE, after)
    noisy = new.clone()
    kept = break_symmetry(noisy, layouts, frozenset(read), 0.1, torch.Generator().manual_seed(5))
    assert kept
    x, _ = paired([layouts[i] for i in sorted(read)])
    torch.testing.assert_close(
        contract(noisy, x, read), contract(new, x, read), rtol=1e-12, atol=1e-12
    )
    (o,) = [i for i in range(len(axes)) if i not in read and layouts[i].grows]
    followers = [int(i) for i in layouts[o].new if int(layouts[o].partner[i]) != int(i)]
    reads_pairs = bool((layouts[min(read)].sign == -1).any())
    if reads_pairs:
        for i in followers:
            assert not torch.equal(noisy.select(o, i), noisy.select(o, int(layouts[o].partner[i])))
    assert torch.equal(
        select_old(noisy, range(len(axes)), layouts), select_old(new, range(len(axes)), layouts)
    )


def test_noise_on_an_input_layer_changes_the_function_and_says_so():
    axes, read = CASES["input layer"]
    _, layouts, new = grow(axes, read, BEFORE, AFTER)
    noisy = new.clone()
    assert not break_symmetry(noisy, layouts, frozenset(read), 0.1)
    changed = (noisy != new).any(1)
    assert changed.tolist() == [False, False, False, True, False], "second halves only"


def test_no_noise_changes_nothing():
    axes, read = CASES["matrix"]
    _, layouts, new = grow(axes, read, BEFORE, AFTER)
    noisy = new.clone()
    assert break_symmetry(noisy, layouts, frozenset(read), 0.0)
    assert torch.equal(noisy, new)


def test_negated_axes_swap_roles():
    read = negate(Ref(1))
    assert layout(read, {1: 1}, {1: 3}).sign.tolist() == [1, 1, -1]
