"""Attributes that hold sizes: which follow a width, which only happen to equal one, and where they live."""

import collections
import dataclasses
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import growthring as gr
from growthring.graph.places import FixedPlaceError, assign, leaves, read
from tests.growth_contract import Net, check_contract, make_plan, randn, tokens


class Heads(nn.Module):
    """Attention whose code needs the attributes `heads` and `size`; everything else is an option."""

    def __init__(self, width: int = 16, heads: int = 2, size: int = 8, **more: object) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = nn.Linear(width, 3 * heads * size)
        self.out = nn.Linear(heads * size, width)
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            p.view(b, t, self.heads, self.size).transpose(1, 2) for p in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.size))


class Language(nn.Module):
    """A small language model with a limit on the length that equals its width."""

    def __init__(self, width: int = 16, max_len: int = 16) -> None:
        super().__init__()
        self.max_len = max_len
        self.e, self.a = nn.Embedding(10, width), Heads(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.e(x[:, : self.max_len])
        return self.head(h + self.a(h))


def seed_follows(plan: gr.Plan) -> nn.Module:
    """The seed, after the whole contract was checked."""
    check_contract(plan)
    return plan.build_seed()


@pytest.mark.parametrize("length", [4, 16, 20])
@pytest.mark.each(3)
def test_a_length_that_equals_the_width_does_not_follow(length):
    model = Language()
    plan = make_plan(model, tokens(2, length))
    assert {"e", "a.qkv/2"} <= {g.name for g in plan.groups.growable}
    seed = seed_follows(plan)
    assert seed.max_len == 16 and seed.a.size < 8 and seed.e.embedding_dim < 16
    assert seed(tokens(2, 64)).shape == (2, 16, 10)
    said = [n for n in plan.groups.notes if "max_len" in n]
    assert said and said[0] in plan.groups.explain() and said[0] in plan.notes
    assert said[0] in plan.groups.as_dict()["notes"]


COINCIDENCES = {
    "a loop count": (
        lambda self, x: self.b(functools.reduce(lambda h, _: self.m(h).relu(), range(self.n), self.a(x))),
        randn(3, 4),
    ),
    "a temperature": (lambda self, x: self.b(self.m(self.a(x)).relu() / self.n), randn(3, 4)),
    "top-k of the outputs": (
        lambda self, x: self.wide(self.m(self.a(x)).relu()).topk(self.n).values,
        randn(3, 4),
    ),
    "a kernel size": (
        lambda self, x: self.b(F.avg_pool1d(self.m(self.a(x)).relu().mT, self.n, 1).mT),
        randn(3, 24, 4),
    ),
    "a chomp": (
        lambda self, x: self.b(self.m(self.a(F.pad(x, (0, 0, self.n, 0))[:, : -self.n]).relu())),
        randn(3, 24, 4),
    ),
    "a limit that the example does not reach": (
        lambda self, x: self.b(self.m(self.a(x[:, : self.n]).relu())).mean(1),
        randn(3, 5, 4),
    ),
    "the batch": (
        lambda self, x: self.b(self.m(self.a(x)).relu()).view(-1, self.k),
        randn(6, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COINCIDENCES)
@pytest.mark.each(3)
def test_a_number_that_happens_to_equal_a_width_stays(name):
    torch.manual_seed(0)
    forward, x = COINCIDENCES[name]
    model = Net(
        forward, n=6, k=3, a=nn.Linear(4, 6), m=nn.Linear(6, 6), b=nn.Linear(6, 3), wide=nn.Linear(6, 9)
    )  # fmt: skip
    plan = make_plan(model, x, stages=3)
    seed = seed_follows(plan)
    assert seed.n == 6 and seed.m.out_features < 6


class Take(nn.Module):
    """A tool that serves two purposes in one model."""

    def __init__(self, n: int, dim: int) -> None:
        super().__init__()
        self.n, self.dim = n, dim

    def forward(self, x):
        return x.narrow(self.dim, 0, self.n)


def test_one_tool_for_the_width_and_for_the_length():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 12), nn.ReLU(), Take(6, 2), nn.Linear(6, 6), Take(6, 1), nn.Linear(6, 3)
    )  # fmt: skip
    plan = make_plan(model, randn(2, 9, 4), stages=3)
    seed = seed_follows(plan)
    assert seed[2].n == seed[3].in_features < 6
    assert seed[4].n == 6 and any("'4.n'" in note for note in plan.groups.notes)


@pytest.mark.slow
def test_one_of_two_equal_numbers_is_the_width_and_the_other_a_count():
    """Both get the code further; then the count is in the way."""

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        steps = []
        for _ in range(self.horizon):
            h = self.cell(self.out(h), h)
            steps.append(self.out(h))
        return torch.stack(steps, 1)

    model = Net(forward, cell=nn.GRUCell(3, 6), out=nn.Linear(6, 3))
    model.hidden = model.horizon = 6
    seed = seed_follows(make_plan(model, randn(2, 4, 3)))
    assert seed.hidden < 6 and seed.horizon == 6


@pytest.mark.parametrize("cut", [lambda t, n: t[:n], lambda t, n: t.double().narrow(0, 0, n)])
def test_a_table_that_is_longer_than_the_example_stays_long(cut):
    def forward(self, x):
        return self.out((self.into(x) + cut(self.table, x.shape[1])).tanh())

    model = Net(
        forward,
        into=nn.Linear(3, 8),
        table=nn.Parameter(torch.randn(32, 8)),
        out=nn.Linear(8, 3),
    )
    plan = make_plan(model, randn(2, 5, 3))
    seed = seed_follows(plan)
    assert seed.table.shape[0] == 32 and seed.table.shape[1] < 8
    assert "do not reach these entries of 'table'" in plan.groups.explain()
    seed(randn(2, 32, 3))


def test_einsum_over_a_batch_of_two_is_no_other_code_than_over_a_batch_of_one():
    """An axis of one entry is left out by einsum, so that the others are in another order."""

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o((torch.einsum("btd,bsd->bts", q, k) * self.n**-0.5).softmax(-1) @ v)

    torch.manual_seed(0)
    parts = {name: nn.Linear(4, 6) for name in "qkv"}
    plan = make_plan(Net(forward, n=6, o=nn.Linear(6, 3), **parts), randn(2, 5, 4))
    assert seed_follows(plan).q.out_features < 6
    assert {g.name for g in plan.groups.growable} == {"q", "v"}


def test_a_number_for_both_a_width_and_a_length_freezes_the_width():
    torch.manual_seed(0)

    def forward(self, x):
        h = self.a(x[:, : self.n])
        return self.b(h.view(*h.shape[:2], 2, self.n).relu().flatten(2))

    model = Net(forward, n=6, a=nn.Linear(4, 12), b=nn.Linear(12, 3))
    (frozen,) = [g for g in gr.discover_width_groups(model, randn(3, 2, 4).float()) if g.width == 6]
    assert "with axis 1 of the inputs 8 long instead of 2" in frozen.frozen.text


def test_a_length_that_is_only_read_may_be_needed_elsewhere():
    """Short inputs do not show that `size` is needed: the longer ones do."""
    torch.manual_seed(0)

    def forward(self, x):
        h, heads, size = self.a(x), self.heads, self.size
        if x.shape[1] > 5:
            h = h.view(*h.shape[:2], heads, size).flatten(2)
        return self.b(h.view(*h.shape[:2], heads, -1).relu().flatten(2))

    model = Net(forward, heads=2, size=6, a=nn.Linear(4, 12), b=nn.Linear(12, 3))
    seed = seed_follows(make_plan(model, randn(2, 8, 4), stages=3))
    assert seed.size * 2 == seed.a.out_features < 12


# Where numbers live.


@dataclasses.dataclass
class Plain:
    heads: int = 2
    size: int = 8
    limit: int = 8


@dataclasses.dataclass(frozen=True)
class Frozen:
    heads: int = 2
    size: int = 8
    limit: int = 8


@dataclasses.dataclass(slots=True)
class Slots:
    heads: int = 2
    size: int = 8
    limit: int = 8


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    heads: int = 2
    size: int = 8
    limit: int = 8


Named = collections.namedtuple("Named", "heads size limit", defaults=(2, 8, 8))


@dataclasses.dataclass
class Nested:
    text: object = dataclasses.field(default_factory=Plain)


class Configured(nn.Module):
    """The same code with its sizes anywhere: `get(self)` returns (heads, size, limit)."""

    def __init__(self, get, **holders: object) -> None:
        super().__init__()
        self.stem, self.qkv, self.out = nn.Linear(4, 12), nn.Linear(12, 48), nn.Linear(16, 3)
        self._get = get
        for name, value in holders.items():
            setattr(self, name, value)

    def forward(self, x):
        heads, size, limit = self._get(self)
        h = self.stem(x[:, :limit])
        q, k, v = (
            p.view(*p.shape[:2], heads, size).transpose(1, 2) for p in self.qkv(h).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2)).mean(1)


class ByProperty(Configured):
    @property
    def width(self) -> int:
        return self.cfg.size

    @property
    def doubled(self) -> int:
        return self._half * 2


class OfTheClass(Configured):
    heads, size, limit = 2, 8, 8


HOLDERS = {
    "dataclass": lambda: Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=Plain()),
    "frozen dataclass": lambda: Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=Frozen()),
    "slots": lambda: Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=Slots()),
    "frozen slots": lambda: Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=FrozenSlots()),
    "named tuple": lambda: Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=Named()),
    "namespace": lambda: Configured(
        lambda s: (s.c.heads, s.c.size, s.c.limit),
        c=types.SimpleNamespace(heads=2, size=8, limit=8),
    ),
    "dict": lambda: Configured(
        lambda s: (s.c["heads"], s.c["size"], s.c["limit"]), c={"heads": 2, "size": 8, "limit": 8}
    ),
    "nested": lambda: Configured(
        lambda s: (s.c.text.heads, s.c.text.size, s.c.text.limit), c=Nested()
    ),
    "nested in a dict": lambda: Configured(
        lambda s: (s.c["t"].heads, s.c["t"].size, s.c["t"].limit), c={"t": Plain()}
    ),
    "a named tuple in a dataclass": lambda: Configured(
        lambda s: (s.c.text.heads, s.c.text.size, s.c.text.limit), c=Nested(Named())
    ),
    "list": lambda: Configured(lambda s: (*s.shape, s.limit), shape=[2, 8], limit=8),
    "tuple": lambda: Configured(lambda s: (*s.shape, s.limit), shape=(2, 8), limit=8),
    "of the class": lambda: OfTheClass(lambda s: (s.heads, s.size, s.limit)),
    "a property": lambda: ByProperty(lambda s: (2, s.width, 8), cfg=Plain()),
    "a property that computes": lambda: ByProperty(lambda s: (2, s.doubled, 8), _half=4),
}


@pytest.mark.each(16)
@pytest.mark.parametrize("where", HOLDERS)
def test_sizes_follow_wherever_they_are_kept(where):
    torch.manual_seed(0)
    model = HOLDERS[where]()
    if where == "a property that computes":
        plan = make_plan(model, randn(2, 5, 4), stages=3)  # half of a head is no width: frozen
        assert not any(g.width == 8 for g in plan.groups.growable)
        frozen = [g.frozen.text for g in plan.groups if g.frozen and g.frozen.kind == "code"]
        assert any("'doubled' holds a width and cannot follow: 'doubled' of" in t for t in frozen)
        check_contract(plan)
        return
    plan = make_plan(model, randn(2, 5, 4), stages=3)
    assert "stem" in {g.name for g in plan.groups.growable}
    seed = seed_follows(plan)
    heads, size, limit = seed._get(seed)
    assert heads * size == seed.out.in_features < 16 and limit == 8
    heads, size, limit = model._get(model)
    assert (heads, size, limit) == (2, 8, 8)
    grown = plan.build_seed()
    grower = gr.Grower(grown, plan)
    while not grower.is_full:
        grower.grow()
    assert grown._get(grown) == (2, 8, 8)


@pytest.mark.parametrize("shape", [(-1, 16), [-1, 1, 16], (1, -1, 16)])
@pytest.mark.each(3)
def test_shapes_with_an_open_or_a_single_axis_follow(shape):
    class Shaped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.out, self.shape = nn.Linear(4, 16), nn.Linear(16, 3), shape

        def forward(self, x):
            return self.out(self.stem(x).view(self.shape).relu()).reshape(-1, 3)

    torch.manual_seed(0)
    plan = make_plan(Shaped(), randn(2, 4), stages=3)
    assert "stem" in {g.name for g in plan.groups.growable}
    seed = seed_follows(plan)
    assert type(seed.shape) is type(shape) and seed.shape[-1] == seed.stem.out_features < 16
    assert list(seed.shape[:-1]) == list(shape[:-1])
    check_contract(plan)


def test_a_number_of_numpy_follows():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.out, self.flat = nn.Linear(4, 16), nn.Linear(16, 3), np.prod((4, 4))

        def forward(self, x):
            return self.out(self.stem(x).view(-1, self.flat).relu())

    torch.manual_seed(0)
    plan = make_plan(Flat(), randn(2, 4), stages=3)
    assert "stem" in {g.name for g in plan.groups.growable}
    seed = seed_follows(plan)
    assert isinstance(seed.flat, np.integer) and seed.flat == seed.stem.out_features < 16
    check_contract(plan)


def test_an_unflattened_picture_of_one_pixel_grows():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 16), nn.Unflatten(1, (16, 1, 1)), nn.ReLU(), nn.ConvTranspose2d(16, 3, 2)
    )
    plan = make_plan(model, randn(2, 4), stages=3)
    assert "0" in {g.name for g in plan.groups.growable}
    check_contract(plan)


def test_a_setting_that_is_shared_with_the_original_is_not_touched():
    class Single(types.SimpleNamespace):
        def __deepcopy__(self, memo):
            return self

    torch.manual_seed(0)
    settings = Single(heads=2, size=8, limit=8)
    model = Configured(lambda s: (s.c.heads, s.c.size, s.c.limit), c=settings)
    plan = make_plan(model, randn(2, 5, 4), stages=3)
    assert settings.size == 8 and plan.groups["stem"].grows
    frozen = [g.frozen.text for g in plan.groups if g.frozen and g.frozen.kind == "code"]
    assert any("not copied with the model" in text for text in frozen)


def test_two_modules_that_share_settings():
    shared = Plain()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cfg, self.a, self.b = shared, nn.Linear(5, 16), nn.Linear(16, 5)

        def forward(self, x):
            h = self.a(x).view(*x.shape[:-1], self.cfg.heads, self.cfg.size)
            return x + self.b(h.relu().flatten(-2))

    torch.manual_seed(0)
    plan = make_plan(nn.Sequential(Block(), Block()), randn(3, 5), stages=3)
    seed = seed_follows(plan)
    assert seed[0].cfg is seed[1].cfg and seed[0].cfg.size * 2 == seed[1].a.out_features < 16
    assert shared.size == 8


def test_an_attribute_that_is_gone_after_the_first_call():
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.a, self.b = 8, nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x).relu()
            if "n" in vars(self):
                h = h.view(-1, self.n)
                del self.n
            return self.b(h)

    torch.manual_seed(0)
    groups = gr.discover_width_groups(Forgetful(), randn(3, 4).float())
    assert not groups["b"].grows


def test_places():
    model = Configured(None, c={"t": Named(), "k": 3}, n=5)
    assert dict(leaves(model.c, "c")) == {
        "c[t].heads": 2, "c[t].size": 8, "c[t].limit": 8, "c[k]": 3,
    }  # fmt: skip
    assign(model, ("", "c[t].size"), 4)
    assert read(model, ("", "c[t].size")) == 4 == model.c["t"].size
    assign(model, ("", "c[t].size"), 8)
    assert model.c["t"] == Named()
    assert read(model, ("", "c[none].x")) is None and read(model, ("no", "n")) is None
    with pytest.raises(FixedPlaceError, match="is computed, not stored"):
        assign(ByProperty(None, cfg=Plain()), ("", "width"), 4)
