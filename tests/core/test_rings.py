"""RingMap, against boolean masks built entry by entry."""

import copy
import itertools

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from growthring.core.axes import Concat, Fixed, Product, Ref
from growthring.core.rings import RingMap
from growthring.errors import GrowthError
from tests.core import reference


def grown(axes, history):
    ring_map = RingMap({"w": axes}, {g: w[0] for g, w in history.items()})
    for t in range(1, len(next(iter(history.values())))):
        ring_map.append({g: w[t] for g, w in history.items()})
    return ring_map


def masks(axes, history, stages):
    """For each stage, the boolean mask of what it added, by loops."""
    last = {g: w[-1] for g, w in history.items()}
    names = [reference.entries(a, last) for a in axes]
    found = [torch.zeros([len(n) for n in names], dtype=torch.bool) for _ in range(stages)]
    for place in itertools.product(*(range(len(n)) for n in names)):
        ring = max(
            (reference.age(n[i], history) for n, i in zip(names, place, strict=True)), default=0
        )
        found[ring][place] = True
    return found


@settings(max_examples=60)
@given(st.lists(reference.axes, min_size=0, max_size=3), reference.histories())
def test_masks_counts_sums_and_norms(axes, history):
    last = {g: w[-1] for g, w in history.items()}
    assume(sum(len(list(reference.entries(a, last))) for a in axes) <= 60)
    ring_map = grown(tuple(axes), history)
    wanted = masks(axes, history, 4)
    assert ring_map.num_rings == 4
    shape = wanted[0].shape
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t, mask in enumerate(wanted):
        assert torch.equal(ring_map.mask("w", t), mask)
    assert ring_map.num_entries("w") == [int(m.sum()) for m in wanted]
    torch.testing.assert_close(
        ring_map.sums("w", values), torch.stack([values[m].sum() for m in wanted])
    )
    torch.testing.assert_close(
        ring_map.norms("w", values), torch.stack([values[m].norm() for m in wanted])
    )


def test_rings_of_a_matrix_are_l_shapes():
    ring_map = grown((Ref(0), Ref(1)), {0: [1, 2, 3], 1: [2, 3, 3]})
    assert ring_map.index("w").tolist() == [[0, 0, 1], [1, 1, 1], [2, 2, 2]]


def test_rings_of_a_convolution_follow_the_kernel():
    ring_map = grown((Ref(0), Ref(1), Fixed(3), Fixed(3)), {0: [1, 2], 1: [1, 2]})
    index = ring_map.index("w")
    assert index.shape == (2, 2, 3, 3)
    assert bool((index[0, 0] == 0).all()) and int((index == 1).sum()) == 27


def test_rings_are_scattered_over_heads_and_segments():
    axis = Concat((Product((Fixed(2), Ref(0))), Ref(1)))
    ring_map = grown((axis,), {0: [1, 2], 1: [1, 3]})
    assert ring_map.index("w").tolist() == [0, 1, 0, 1, 0, 1, 1]


def test_a_scalar_belongs_to_the_seed():
    ring_map = grown((), {0: [1, 2]})
    assert ring_map.index("w").item() == 0
    assert ring_map.sums("w", torch.tensor(3.0)).tolist() == [3.0, 0.0]
    assert ring_map.num_entries("w") == [1, 0]


def test_another_stage_is_seen_by_what_was_asked_before():
    ring_map = grown((Ref(0),), {0: [1, 3]})
    assert ring_map.index("w").tolist() == [0, 1, 1]  # fills the cache
    ring_map.append({0: 4})
    assert ring_map.index("w").tolist() == [0, 1, 1, 2]


def test_state_dict_round_trip():
    ring_map = grown((Ref(0), Ref(1)), {0: [1, 2, 5], 1: [2, 2, 3]})
    state = copy.deepcopy(ring_map.state_dict())
    other = RingMap({"w": (Ref(0), Ref(1))}, {0: 1, 1: 2})
    other.index("w")
    other.load_state_dict(state)
    assert torch.equal(other.index("w"), ring_map.index("w"))
    other.append({0: 6, 1: 3})
    assert ring_map.num_rings == 3, "loading must not share lists"
    assert state == ring_map.state_dict()


def test_names():
    ring_map = grown((Ref(0),), {0: [1, 2]})
    assert "w" in ring_map and "v" not in ring_map


def test_shrinking_is_refused_and_changes_nothing():
    ring_map = RingMap({"w": (Ref(0), Ref(1))}, {0: 3, 1: 3})
    with pytest.raises(GrowthError, match=r"shrink from 3 to 2"):
        ring_map.append({0: 4, 1: 2})
    assert ring_map.num_rings == 1
    assert ring_map.state_dict() == {"history": {"0": [3], "1": [3]}}


def test_a_foreign_history_is_refused():
    ring_map = RingMap({"w": (Ref(0),)}, {0: 3})
    with pytest.raises(GrowthError, match="another model"):
        ring_map.load_state_dict({"history": {"5": [1, 2]}})
