"""Unification of axes: structures meet, clash and freeze."""

import pytest
from hypothesis import given, strategies as st

from growthring.core.axes import Concat, Fixed, Product, Ref, negate, refs
from growthring.graph.unify import Reason, Unifier


def frozen(u, axis):
    return [u.frozen(r.group) for r in refs(u.resolve(axis))]


def test_an_axis_of_one_entry_is_no_width():
    u = Unifier()
    assert u.fresh(1) == Fixed(1)
    assert isinstance(u.fresh(2), Ref)


def test_same_joins_and_opposite_flips():
    u = Unifier()
    a, b, c = u.fresh(4), u.fresh(4), u.fresh(4)
    u.same(a, b, "add")
    u.opposite(b, c, "matmul")
    assert u.resolve(a) == u.resolve(b) == negate(u.resolve(c))
    assert frozen(u, a) == [None]


def test_different_sizes_freeze_both():
    u = Unifier()
    a, b = u.fresh(4), u.fresh(5)
    u.same(a, b, "op 'x'")
    assert "op 'x'" in frozen(u, a)[0].text and "op 'x'" in frozen(u, b)[0].text


def test_a_width_against_a_number_freezes():
    u = Unifier()
    a = u.fresh(4)
    u.same(a, Fixed(4), "expand")
    assert frozen(u, a)[0].text == "expand joins it with an axis of fixed size"


def test_a_width_contracted_with_itself_freezes():
    u = Unifier()
    a = u.fresh(4)
    u.opposite(a, a, "matmul")
    assert frozen(u, a)[0].kind == "parity"


def test_reasons_follow_what_a_width_is_replaced_by():
    u = Unifier()
    a, b, c = u.fresh(6), u.fresh(2), u.fresh(3)
    u.freeze([a], Reason("user", "because"))
    u.same(a, Product((b, c)), "view")
    assert [r.text for r in frozen(u, Product((b, c)))] == ["because", "because"]


def test_the_first_reason_is_kept():
    u = Unifier()
    a = u.fresh(4)
    u.freeze([a], Reason("x", "first"))
    u.freeze([a], Reason("x", "second"))
    assert frozen(u, a)[0].text == "first"


def test_parity_is_demanded_once_and_clashes_later():
    u = Unifier()
    q, k = u.fresh(4), u.fresh(4)
    u.opposite(q, k, "attention")
    u.even(q, "rope")
    assert frozen(u, q) == [None]
    u.even(k, "norm of keys")
    assert frozen(u, q)[0].kind == "parity" and "norm of keys" in frozen(u, q)[0].text


def test_parity_demanded_before_joining_clashes_too():
    u = Unifier()
    q, k = u.fresh(4), u.fresh(4)
    u.even(q, "norm")
    u.even(k, "norm")
    u.opposite(q, k, "attention")
    assert frozen(u, q)[0].kind == "parity"


def test_orientation_survives_a_split():
    u = Unifier()
    a = u.fresh(6)
    u.even(negate(a), "odd one out")
    outer, inner = u.factor(a, 2, "view")
    for r in (*refs(u.resolve(outer)), *refs(u.resolve(inner))):
        assert u.orientation(r.group) * r.sign == -1


def test_factor_and_its_inverse():
    u = Unifier()
    a = u.fresh(12)
    heads, size = u.factor(a, 3, "view")
    assert (u.size(heads), u.size(size)) == (3, 4)
    again = u.factor(a, 3, "view")
    assert [u.resolve(x) for x in again] == [u.resolve(heads), u.resolve(size)]
    assert u.resolve(a) == Product((u.resolve(heads), u.resolve(size)))
    assert frozen(u, a) == [None, None]


def test_factor_across_the_structure_freezes():
    u = Unifier()
    a = u.fresh(12)
    u.factor(a, 3, "view")
    u.factor(a, 2, "other view")
    assert all(r is not None and "other view" in r.text for r in frozen(u, a))


def test_factor_of_equal_segments_is_a_fixed_outer_factor():
    u = Unifier()
    a, b = u.fresh(4), u.fresh(4)
    outer, inner = u.factor(Concat((a, b)), 2, "view")
    assert outer == Fixed(2) and u.resolve(inner) == u.resolve(a) == u.resolve(b)


def test_cut_makes_segments():
    u = Unifier()
    a = u.fresh(10)
    left, right = u.cut(a, 4, "split")
    assert (u.size(left), u.size(right)) == (4, 6)
    first, second = u.cut(a, 7, "split")
    assert (u.size(first), u.size(second)) == (7, 3)
    assert u.size(a) == 10 and frozen(u, a) == [None] * 3


def test_cut_of_a_product_at_its_inner_size():
    u = Unifier()
    heads, size = u.fresh(4), u.fresh(3)
    left, right = u.cut(Product((heads, size)), 6, "split")
    assert (u.size(left), u.size(right)) == (6, 6)
    assert frozen(u, left) == [None, None]
    u.cut(Product((heads, size)), 7, "slice")
    assert all("slice" in r.text for r in frozen(u, size))


def test_concats_align_at_their_cuts():
    u = Unifier()
    a, b, c, d = u.fresh(3), u.fresh(5), u.fresh(4), u.fresh(4)
    u.same(Concat((a, b)), Concat((c, d)), "add")
    one, two = u.resolve(Concat((a, b))), u.resolve(Concat((c, d)))
    assert one == two and [u.size(p) for p in one.parts] == [3, 1, 4]


def test_a_width_cannot_contain_itself():
    u = Unifier()
    a = u.fresh(4)
    u.same(a, Concat((a,)), "harmless")
    assert frozen(u, a) == [None]
    b = u.fresh(4)
    x, y = u.cut(b, 2, "cut")
    u.same(x, y, "halves are equal")
    assert u.resolve(b) == Concat((u.resolve(x), u.resolve(x)))


def test_tie_takes_either_parity():
    u = Unifier()
    written, read = u.fresh(4), u.fresh(4)
    u.even(written, "norm")
    u.even(negate(read), "matmul")
    assert not u.tie(written, read, "second use")
    assert frozen(u, written) == [None]
    free, other = u.fresh(4), u.fresh(4)
    assert u.tie(free, other, "second use")


def test_tie_of_different_structures_freezes():
    u = Unifier()
    a, b = u.fresh(4), u.fresh(6)
    u.tie(a, b, "second use")
    assert frozen(u, a)[0].kind == frozen(u, b)[0].kind == "structure"


def test_normal_form():
    u = Unifier()
    a, b = u.fresh(4), u.fresh(3)
    nested = Product((Fixed(1), Product((Fixed(2), Fixed(3))), a))
    assert u.resolve(nested) == Product((Fixed(6), a))
    assert u.resolve(Concat((Fixed(2), Concat((Fixed(0), Fixed(1))), a))) == Concat((Fixed(3), a))
    spread = u.resolve(Product((Concat((a, b)), Fixed(2))))
    assert spread == Concat((Product((a, Fixed(2))), Product((b, Fixed(2)))))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_splitting_never_changes_a_size(sizes, data):
    u = Unifier()
    axis = Concat(tuple(u.fresh(2 * n) for n in sizes))
    total = u.size(axis)
    for _ in range(3):
        at = data.draw(st.integers(0, total))
        left, right = u.cut(axis, at, "cut")
        assert u.size(left) == at and u.size(left) + u.size(right) == total
        outer = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
        a, b = u.factor(axis, outer, "factor")
        assert (u.size(a), u.size(b)) == (outer, total // outer)
        assert u.size(u.resolve(axis)) == total


@pytest.mark.parametrize("outer", [2, 3, 6])
def test_a_split_of_a_negative_axis_keeps_its_sign(outer):
    u = Unifier()
    a = u.fresh(12)
    left, right = u.factor(negate(a), outer, "view")
    assert {r.sign for part in (left, right) for r in refs(u.resolve(part))} == {-1}
