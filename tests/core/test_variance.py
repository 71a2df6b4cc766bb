"""Variance transfer: the table's numbers, and scales on small hand-made lists of records."""

import math

import pytest

from growthring.core.variance import (
    Record,
    ScaleConflict,
    deviation,
    forward,
    preserve,
    rescaling,
)

HALF = math.log(0.5)


def record(kind, inputs=(), output=None, *names, eps=0.0, op=-1, where="here"):
    return Record(kind, tuple(inputs), output, tuple(names), where, eps, op)


@pytest.mark.parametrize(
    ("role", "factor"), [("input", 1.0), ("hidden", math.sqrt(4 / 10)), ("output", 0.4)]
)
def test_table_one(role, factor):
    assert rescaling(role, 4, 10) == pytest.approx(factor)
    assert deviation(role, 0.3, 4, 10) == pytest.approx(0.3 * factor)


def test_steps_compose():
    for role in ("input", "hidden", "output"):
        whole = rescaling(role, 4, 16)
        assert rescaling(role, 4, 9) * rescaling(role, 9, 16) == pytest.approx(whole)


def test_he_initialisation_stays_he():
    for fan_in in (8, 32, 128):
        assert deviation("hidden", math.sqrt(2 / 8), 8, fan_in) == pytest.approx(
            math.sqrt(2 / fan_in)
        )
        assert deviation("output", 1 / 8, 8, fan_in) == pytest.approx(1 / fan_in)


MLP = [
    record("demand", (0,)),
    record("weight", (0,), 1, "w1"), record("bias", (1,), None, "b1"), record("carry", (1,), 2),
    record("weight", (2,), 3, "w2"), record("bias", (3,), None, "b2"), record("carry", (3,), 4),
    record("weight", (4,), 5, "w3"), record("bias", (5,), None, "b3"), record("result", (5,)),
]  # fmt: skip
MLP_TARGETS = {"w1": 0.0, "w2": HALF / 2, "w3": HALF}

# conv, BatchNorm, ReLU, conv, BatchNorm, ReLU, linear
CONV = [
    record("demand", (0,)),
    record("weight", (0,), 1, "c1"), record("stats", (1,), None, "m1", "v1", eps=1e-5),
    record("demand", (), 2), record("own", (), 3, "g1"), record("bias", (3,), None, "t1"), record("carry", (3,), 4),
    record("weight", (4,), 5, "c2"), record("stats", (5,), None, "m2", "v2", eps=1e-3),
    record("demand", (), 6), record("own", (), 7, "g2"), record("bias", (7,), None, "t2"), record("carry", (7,), 8),
    record("weight", (8,), 9, "fc"), record("bias", (9,), None, "b"), record("result", (9,)),
]  # fmt: skip
CONV_TARGETS = {"c1": 0.0, "c2": HALF / 2, "fc": HALF}


def test_preserving_an_mlp_keeps_its_weights():
    found = preserve(MLP, 6, MLP_TARGETS, {})
    assert all(c == pytest.approx(1.0) for c in found.tensors.values())
    assert set(found.tensors) == {"w1", "w2", "w3", "b1", "b2", "b3"}
    assert found.outputs == pytest.approx([1.0])


def test_preserving_a_chain_with_batch_norms_rescales_in_front_of_them():
    found = preserve(CONV, 10, CONV_TARGETS, {})
    assert found.tensors["c2"] == pytest.approx(math.sqrt(0.5))
    assert found.tensors["c1"] == found.tensors["g1"] == found.tensors["t1"] == pytest.approx(1)
    assert found.tensors["fc"] == found.tensors["b"] == pytest.approx(1)
    assert found.stats["m1", "v1"] == pytest.approx((1.0, 1e-5))
    assert found.stats["m2", "v2"] == pytest.approx((math.sqrt(0.5), 1e-3))
    assert found.outputs == pytest.approx([1.0]) and not found.violations


def test_the_papers_rule_leaves_one_factor_on_the_outputs():
    found = forward(CONV, 10, CONV_TARGETS, {})
    assert found.tensors["c2"] == pytest.approx(math.sqrt(0.5))
    assert found.tensors["fc"] == pytest.approx(0.5) and found.tensors["b"] == pytest.approx(0.5)
    assert found.stats["m2", "v2"] == pytest.approx((math.sqrt(0.5), 1e-3))
    assert found.outputs == pytest.approx([0.5]) and not found.violations


def test_the_papers_rule_follows_scales_through_a_bias_free_relu_network():
    found = forward(MLP, 6, MLP_TARGETS, {})
    assert found.outputs == pytest.approx([0.5 * math.sqrt(0.5)])
    assert found.tensors["b2"] == pytest.approx(math.sqrt(0.5))
    assert found.tensors["b3"] == pytest.approx(0.5 * math.sqrt(0.5))
    assert not found.violations


def test_the_papers_rule_reports_what_it_breaks():
    gelu = [*MLP[:6], record("demand", (3,), 4, where="the GELU"), *MLP[7:]]
    found = forward(gelu, 6, MLP_TARGETS, {})
    assert found.violations == ["the GELU"]
    skip = [*MLP[:6], record("carry", (3, 2), 4, where="the add"), *MLP[7:]]
    assert forward(skip, 6, MLP_TARGETS, {}).violations == ["the add"]


def test_a_residual_stream_without_norm_keeps_one_scale():
    skip = [*MLP[:6], record("carry", (3, 2), 4), *MLP[7:]]
    found = preserve(skip, 6, MLP_TARGETS, {})
    assert all(c == pytest.approx(1.0) for c in found.tensors.values())


def test_a_residual_stream_behind_a_norm():
    # stream 1 = w1·x; stream = stream + w2·norm(stream); out = w3·norm(stream)
    records = [
        record("demand", (0,)), record("weight", (0,), 1, "w1"),
        record("demand", (), 2), record("own", (), 3, "g1"), record("weight", (3,), 4, "w2"),
        record("carry", (1, 4), 5), record("demand", (), 6), record("own", (), 7, "g2"),
        record("weight", (7,), 8, "w3"), record("result", (8,)),
    ]  # fmt: skip
    found = preserve(records, 9, {"w2": HALF / 2, "w3": HALF}, {})
    # one scale for the stream: both writers get the same factor
    assert found.tensors["w1"] == pytest.approx(found.tensors["w2"])
    assert found.tensors["w3"] == pytest.approx(found.tensors["g2"] ** -1)


ATTENTION = [
    record("demand", (0,)), record("weight", (0,), 1, "q"), record("bias", (1,), None, "qb"),
    record("weight", (0,), 2, "k"), record("weight", (0,), 3, "v"),
    record("product", (1, 2), 4), record("scalar", (4,), 5, op=7), record("demand", (5,)),
    record("weight", (3,), 6, "o"), record("result", (6,)),
]  # fmt: skip


def test_a_factor_in_the_code_is_folded_into_the_weights():
    found = preserve(ATTENTION, 7, {}, {7: -0.5 * math.log(2)})
    logits = found.tensors["q"] * found.tensors["k"]
    assert logits == pytest.approx(math.sqrt(2))
    assert found.tensors["qb"] == pytest.approx(found.tensors["q"])
    assert found.tensors["v"] == found.tensors["o"] == pytest.approx(1.0)


def test_no_factor_without_a_change():
    found = preserve(ATTENTION, 7, {}, {7: 0.0})
    assert all(c == pytest.approx(1.0) for c in found.tensors.values())


def test_a_fused_projection_takes_the_factor_and_its_reader_gives_it_back():
    # queries, keys and values are slices of one activation behind a norm; logits need √2
    records = [
        record("own", (), 0, "e"), record("demand", (), 1), record("own", (), 2, "g"),
        record("weight", (2,), 3, "qkv"), record("bias", (3,), None, "qkv_b"),
        record("product", (3, 3), 4), record("scalar", (4,), 5, op=1), record("demand", (5,)),
        record("weight", (3,), 6, "o"), record("bias", (6,), None, "o_b"), record("carry", (0, 6), 7),
        record("demand", (), 8), record("own", (), 9, "g2"),
        record("weight", (9,), 10, "head"), record("result", (10,)),
    ]  # fmt: skip
    found = preserve(records, 11, {}, {1: -0.5 * math.log(2)})
    assert found.tensors["g"] * found.tensors["qkv"] == pytest.approx(2**0.25)
    assert found.tensors["qkv_b"] == pytest.approx(2**0.25)
    # the residual stream in front of norms stays as it is: their ε would see a factor on it
    assert found.tensors["e"] == pytest.approx(1.0)
    assert found.tensors["o"] == pytest.approx(2**-0.25)
    assert found.tensors["o_b"] == pytest.approx(1.0)


def test_a_factor_that_nothing_can_take():
    records = [
        record("demand", (0,)),
        record("scalar", (0,), 1, op=3, where="x / width"),
        record("result", (1,)),
    ]
    with pytest.raises(ScaleConflict, match=r"x / width|two different scales|model output"):
        preserve(records, 2, {}, {3: HALF})
    assert preserve(records, 2, {}, {}).outputs == pytest.approx([1.0])


def test_a_shared_weight_gets_one_factor():
    records = [
        record("demand", (0,)), record("weight", (0,), 1, "a"), record("carry", (1,), 2),
        record("weight", (2,), 3, "b"), record("carry", (3,), 4), record("weight", (4,), 5, "b"),
        record("carry", (5,), 6), record("weight", (6,), 7, "c"), record("result", (7,)),
    ]  # fmt: skip
    found = preserve(records, 8, {"b": HALF / 2, "c": HALF}, {})
    assert all(c == pytest.approx(1.0) for c in found.tensors.values())


def test_a_shared_weight_between_norms_is_rescaled():
    records = [record("demand", (0,)), record("weight", (0,), 1, "a"), record("demand", (), 2)]
    for i in (0, 1):
        records += [record("weight", (2 + 2 * i,), 3 + 2 * i, "b"), record("demand", (), 4 + 2 * i)]
    records += [record("weight", (6,), 7, "c"), record("result", (7,))]
    found = preserve(records, 8, {"b": HALF / 2, "c": HALF}, {})
    assert found.tensors["b"] == pytest.approx(math.sqrt(0.5))


def test_a_shared_weight_that_needs_two_factors():
    records = [
        record("demand", (0,)), record("weight", (0,), 1, "w"), record("scalar", (1,), 2, op=0),
        record("demand", (2,)), record("weight", (0,), 3, "w"), record("result", (3,)),
    ]  # fmt: skip
    with pytest.raises(ScaleConflict, match="'w' is used twice"):
        preserve(records, 4, {}, {0: HALF})


def test_a_shared_bias_demands_one_scale():
    records = [
        record("demand", (0,)), record("weight", (0,), 1, "u"), record("bias", (1,), None, "b"),
        record("demand", (), 2),
        record("weight", (2,), 3, "v"), record("bias", (3,), None, "b"), record("demand", (), 4),
        record("weight", (4,), 5, "w"), record("result", (5,)),
    ]  # fmt: skip
    found = preserve(records, 6, {"v": HALF / 2}, {})
    assert found.tensors["u"] == pytest.approx(found.tensors["v"])


def test_a_gate_multiplies_scales():
    records = [
        record("demand", (0,)), record("weight", (0,), 1, "a"), record("weight", (0,), 2, "g"),
        record("product", (1, 2), 3), record("weight", (3,), 4, "o"), record("result", (4,)),
    ]  # fmt: skip
    found = preserve(records, 5, {"a": HALF, "g": HALF, "o": HALF}, {})
    assert found.tensors["a"] * found.tensors["g"] * found.tensors["o"] == pytest.approx(1.0)
    paper = forward(records, 5, {"a": HALF, "g": HALF, "o": HALF}, {})
    assert paper.outputs == pytest.approx([0.125])


def test_the_papers_rule_still_folds_factors_of_the_code():
    found = forward(ATTENTION, 7, {"q": HALF, "o": HALF}, {7: -0.5 * math.log(2)})
    forced = preserve(ATTENTION, 7, {}, {7: -0.5 * math.log(2)}).tensors
    assert found.tensors["q"] == pytest.approx(0.5 * forced["q"])
    assert found.violations, "halved queries in front of a softmax"
