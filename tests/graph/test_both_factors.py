"""heads="both": which products grow in both factors, and how these share the growth of their product."""

import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import growthring as gr
from growthring.errors import PlanError
from growthring.graph.factors import Split
from growthring.graph.steps import Steps
from tests.graph.tables.attention import GroupedQuery, Rotary
from tests.graph.test_heads import Heads
from tests.growth_contract import Net, check_contract, make_plan, randn

PAIR = Split(Steps((0,), 8, 2), Steps((1,), 16, 2))


def both(model: nn.Module, inputs: object = None, **options: object) -> gr.Plan:
    torch.manual_seed(0)
    inputs = randn(2, 5, 4) if inputs is None else inputs
    return make_plan(model, inputs, **{"heads": "both", "round_to": 2, **options})


def rows(plan: gr.Plan) -> list[tuple[int, int]]:
    """Heads and head size of the first product at every stage."""
    pair = plan.groups.factors[0]
    return [(widths[pair.count], widths[pair.size]) for widths in plan.stage_widths]


@pytest.mark.parametrize(
    ("heads", "size", "fractions", "expected"),
    [
        (8, 16, [0.25, 1.0], [(4, 8), (8, 16)]),  # both in one stage
        (8, 16, [0.25, 0.5, 1.0], [(4, 8), (4, 16), (8, 16)]),  # one after the other
        (8, 16, [0.5, 1.0], [(4, 16), (8, 16)]),  # fewer heads are faster than thin ones
        (12, 64, [0.25, 0.5, 1.0], [(6, 32), (8, 48), (12, 64)]),
        (3, 16, [0.25, 1.0], [(2, 6), (3, 16)]),
        (2, 16, [0.25, 0.5, 1.0], [(2, 4), (2, 8), (2, 16)]),  # two is the least width
        (2, 2, [0.25, 1.0], [(2, 2), (2, 2)]),
    ],
)
def test_products_have_the_share_of_the_stage_and_factors_are_shared_alike(
    heads, size, fractions, expected
):
    split = Split(Steps((0,), heads, 2), Steps((1,), size, 2))
    found = split.over({0: heads, 1: size}, fractions)
    assert [(widths[0], widths[1]) for widths in found] == expected


@given(
    st.integers(1, 16),
    st.integers(1, 40),
    st.lists(st.floats(0.02, 1.0), min_size=1, max_size=5),
    st.booleans(),
)
def test_factors_never_shrink_and_end_full(heads, size, shares, is_tied):
    full = {0: heads, 1: size, 2: heads * size}
    rest = Steps((2,), heads * size, 1) if is_tied else None
    split = Split(Steps((0,), heads, min(2, heads)), Steps((1,), size, min(2, size)), rest)
    found = split.over(full, [*sorted(shares), 1.0])
    for a, b in itertools.pairwise(found):
        assert a[0] <= b[0] and a[1] <= b[1]
    assert found[-1] == {g: full[g] for g in split.groups}
    assert not is_tied or all(w[2] == w[0] * w[1] for w in found)


def test_widths_of_one_factor_settle_the_other():
    full = {0: 8, 1: 16}
    found = PAIR.over(full, [0.25, 0.5, 1.0], {1: [8, 8, 16]})
    assert [(w[0], w[1]) for w in found] == [(4, 8), (8, 8), (8, 16)]
    found = PAIR.over(full, [0.25, 0.5, 1.0], {0: [8, 8, 8]})
    assert [(w[0], w[1]) for w in found] == [(8, 4), (8, 8), (8, 16)]


@pytest.mark.each(3)
@pytest.mark.parametrize("way", ["sdpa", "matmul", "einsum"])
@pytest.mark.parametrize("tied", [False, True])
def test_both_grow_in_one_stage_however_attention_is_written(way, tied):
    plan = both(Heads(4, 8, tied, way), stages=2)
    assert rows(plan) == [(2, 4), (4, 8)]
    if tied:
        assert plan.widths("stem") == [8, 32]
    (report,) = check_contract(plan)
    assert "heads 2 -> 4, head size 4 -> 8: qkv" in str(report)
    (product,) = report.as_dict()["products"]
    assert product["heads"] == {"name": "qkv", "before": 2, "after": 4}


@pytest.mark.each(2)
@pytest.mark.parametrize("tied", [True, False])
def test_both_grow_in_different_stages(tied):
    plan = both(Heads(4, 8, tied), stages=3)
    assert rows(plan) == [(2, 4), (2, 8), (4, 8)]
    first, second = check_contract(plan)
    assert "heads 2 as before, head size 4 -> 8: qkv" in str(first)
    assert "heads 2 -> 4, head size 8 as before: qkv" in str(second)
    assert "qkv, heads " in str(plan) and "qkv/2, head size " in str(plan)
    assert "  qkv  heads 4" in str(plan.groups)


@pytest.mark.each(2)
@pytest.mark.parametrize("tied", [True, False])
def test_widths_say_which_stage_grows_which(tied):
    plan = both(Heads(4, 8, tied), stages=3, widths={"qkv": [2, 4, 4]})
    assert rows(plan) == [(2, 4), (4, 4), (4, 8)]
    if tied:
        assert plan.widths("stem") == [8, 16, 32]
    check_contract(plan)


def test_heads_as_many_as_they_are_large_are_told_apart():
    plan = both(Heads(4, 4, tied=True), stages=2)
    assert rows(plan) == [(2, 2), (4, 4)]
    check_contract(plan)


def test_an_odd_number_of_heads_grows_with_one_that_is_read_with_zeros():
    plan = both(Heads(3, 16), stages=2)
    assert rows(plan) == [(2, 6), (3, 16)]
    check_contract(plan)


def test_widths_that_do_not_go_together_are_refused():
    with pytest.raises(
        PlanError, match=r"widths of stage 0: 2 heads \('qkv'\) × head size 6 "
    ) as e:
        both(
            Heads(4, 8, tied=True),
            stages=2,
            widths={"qkv": [2, 4], "qkv/2": [6, 8], "stem": [16, 32]},
        )
    assert "make 12, and 'stem' has 16 where 12 would go with them" in str(e.value)
    assert "Give two of the three, or widths that fit." in str(e.value)


def test_a_factor_that_is_full_from_the_start_has_a_note():
    plan = both(Heads(4, 8), stages=2, start=0.5)
    assert rows(plan) == [(2, 8), (4, 8)]
    (note,) = (n for n in plan.notes if "head size" in n)
    assert note == (
        "'qkv': head size 8 is there from the first stage on, only the other factor grows at these widths. "
        "A narrower start grows both, or widths= of one of them."
    )


@pytest.mark.parametrize("schedule", ["doubling", "recursive", "linear"])
def test_every_schedule_shares_the_growth(schedule):
    options = {"growth": 0.5} if schedule == "recursive" else {}
    plan = both(Heads(8, 16, tied=True), stages=3, schedule=schedule, **options)
    shares = [heads * size / 128 for heads, size in rows(plan)]
    assert shares == sorted(shares) and shares[0] == 0.25 and shares[-1] == 1.0
    assert plan.widths("stem") == [heads * size for heads, size in rows(plan)]


def test_rotary_embeddings_leave_the_number_of_heads_and_say_why():
    plan = both(Rotary(4, 8), randn(2, 4, 5), stages=2, start=0.5)
    notes = [n for n in plan.notes if n.startswith("heads='both'")]
    assert notes and all("only the number of heads grows: " in n for n in notes)
    assert not plan.groups.roles and plan.widths("q") == [2, 4]
    check_contract(plan)


def test_a_number_of_heads_in_the_code_leaves_the_head_size_and_says_why():
    def forward(self, x):
        q, k, v = (p.view(*p.shape[:2], 4, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))

    plan = both(Net(forward, qkv=nn.Linear(4, 3 * 32), out=nn.Linear(32, 3)), stages=2)
    assert [g.width for g in plan.groups.growable] == [8]
    assert any(
        n.startswith("heads='both': of 'qkv/2' only the head size grows: ") for n in plan.notes
    )


@pytest.mark.each(2)
@pytest.mark.parametrize("repeat", [False, True])
def test_grouped_queries_grow_in_both(repeat):
    plan = both(GroupedQuery(repeat, 8, 12), randn(2, 4, 5), stages=2)
    assert {f.words for f in plan.groups.factors} == {("heads", "head size")}
    assert rows(plan) == [(2, 6), (4, 12)]  # of the keys: two queries' heads each
    check_contract(plan)


def test_grouped_convolutions_grow_in_groups_and_their_size():
    def forward(self, x):
        return self.head(self.mix(self.stem(x).relu()).relu().mean((2, 3)))

    model = Net(
        forward,
        stem=nn.Conv2d(3, 16, 1),
        mix=nn.Conv2d(16, 16, 3, padding=1, groups=4),
        head=nn.Linear(16, 3),
    )
    plan = both(model, randn(2, 3, 5, 5), stages=2)
    (report,) = check_contract(plan)
    assert "groups 2 -> 4, group size 2 -> 4: stem\n" in str(report)
    assert "stem/2, group size (+ 1 alike)" in str(plan)


@pytest.mark.parametrize("method", ["splitting", "firefly", "firefly-split", "gradmax"])
def test_searching_methods_refuse_products_by_name(method):
    plan = both(Heads(4, 8), stages=2)
    seed = plan.build_seed()
    before = {n: t.clone() for n, t in seed.state_dict().items()}
    names = r"both 'qkv' \(heads\) and 'qkv/2' \(head size\) grow|multiplies activations"
    with pytest.raises(gr.GrowthError, match=f"method '{method}' cannot grow .*({names})"):
        gr.Grower(
            seed, plan, method=method, batches=[(randn(2, 5, 4), randn(2, 5, 3))], loss=nn.MSELoss()
        )
    assert all(torch.equal(before[n], t) for n, t in seed.state_dict().items())


@pytest.mark.parametrize("method", ["net2net", "random"])
def test_copies_and_random_units_grow_both(method):
    plan = both(Heads(4, 8, tied=True), stages=2)
    seed = plan.build_seed()
    x = randn(3, 5, 4)
    before = seed(x)
    report = gr.Grower(seed, plan, method=method, noise=0.0).grow()
    assert seed.n_head == 4 and "heads 2 -> 4, head size 4 -> 8" in str(report)
    if method == "net2net":
        torch.testing.assert_close(seed(x), before, rtol=1e-12, atol=1e-12)
