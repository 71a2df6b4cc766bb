"""Planning and growing only read: caches, plain state, example inputs, random states, settings of the caller."""

import array
import collections
import contextvars
import copy
import functools
import random
import types
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.swa_utils import AveragedModel

import growthring as gr
from growthring.errors import UnsupportedModelError, WidthGroupError
from growthring.graph import snapshot
from growthring.graph.isolation import untouched
from tests import harm_helpers

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Two layers with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(self.between(torch.relu(self.a(x))))

    def between(self, h):
        return h


# Caches, each of which keeps a table of the width that it is asked for.


@functools.lru_cache
def bounded(n):
    return torch.ones(n)


@functools.cache
def unbounded(n):
    return torch.ones(n)


@functools.lru_cache(maxsize=1)
def single(n):
    return torch.ones(n)


TABLES = {}


def in_a_global(n):
    if n not in TABLES:
        TABLES[n] = torch.ones(n)
    return TABLES[n]


LAST = None


def in_a_global_name(n):
    global LAST
    if LAST is None or len(LAST) != n:
        LAST = torch.ones(n)
    return LAST


def in_a_name_that_is_new(n):
    global NEW
    if "NEW" not in globals() or len(NEW) != n:
        NEW = torch.ones(n)
    return NEW


def in_a_default(n, kept={}):  # noqa: B006
    return kept.setdefault(n, torch.ones(n))


def closure():
    kept, last = {}, None

    def table(n):
        nonlocal last
        if n not in kept:
            kept[n] = last = torch.ones(n)
        return kept[n] * last.new_ones(n)

    return table


def on_itself(n):
    on_itself.kept = getattr(on_itself, "kept", {})
    return on_itself.kept.setdefault(n, torch.ones(n))


def by_text(n):
    kept = getattr(harm_helpers, "OTHER")  # noqa: B009
    globals().setdefault("TEXT", {})
    return kept.setdefault(n, torch.ones(n)) * globals()["TEXT"].setdefault(n, torch.ones(n))


CONTEXT = contextvars.ContextVar("tables", default=None)


def in_the_context(n):
    if CONTEXT.get() is None:
        CONTEXT.set({})
    return CONTEXT.get().setdefault(n, torch.ones(n))


IN_CLOSURE = closure()
LOCAL = __import__("threading").local()


def in_a_thread(n):
    if not hasattr(LOCAL, "table") or len(LOCAL.table) != n:
        LOCAL.table = torch.ones(n)
    return LOCAL.table


CACHED = [
    bounded, unbounded, single, in_a_global, in_a_global_name, in_a_name_that_is_new, in_a_default, IN_CLOSURE,
    on_itself, in_a_thread, by_text, in_the_context, harm_helpers.table, harm_helpers.KEPT.get,
]  # fmt: skip


class Cached(Two):
    """Multiplies with a table from a cache."""

    def __init__(self, table) -> None:
        super().__init__()
        self.table = table

    def between(self, h):
        return h * self.table(h.shape[-1])


class ClassCache(Two):
    kept: dict = {}  # noqa: RUF012
    last = None

    def between(self, h):
        n = h.shape[-1]
        if n not in self.kept:
            self.kept[n] = torch.ones(n)
        type(self).last = self.kept[n]
        return h * self.kept[n] * self.method(n) * self.of_class(n) * self.of_nothing(n)

    @functools.lru_cache  # noqa: B019
    def method(self, n):
        return torch.ones(n)

    @classmethod
    @functools.cache
    def of_class(cls, n):
        return torch.ones(n)

    @staticmethod
    @functools.cache
    def of_nothing(n):
        return torch.ones(n)


class AttributeCache(Two):
    def __init__(self) -> None:
        super().__init__()
        self.kept, self.last, self.holder = {}, None, types.SimpleNamespace(table=None)
        self.register_buffer("mask", None)

    def between(self, h):
        if self.last is None:
            self.last = torch.ones(h.shape[-1])
            self.mask = torch.ones(())
            self.holder.table = [self.last]
        self.kept[h.shape[-1]] = self.last
        return h * self.holder.table[0] * self.once * self.mask

    @functools.cached_property
    def once(self):
        return torch.ones(())


MODELS = [
    *(
        pytest.param(functools.partial(Cached, t), id=getattr(t, "__qualname__", str(t)))
        for t in CACHED
    ),
    ClassCache,
    AttributeCache,
]


def check_warm(net):
    net(X)
    if isinstance(net, Cached) and hasattr(net.table, "cache_info"):
        plan = gr.plan(net, X, stages=2, start=0.5)
        assert plan.footprints[0].flops < plan.footprints[1].flops
        is_bounded = net.table.cache_parameters()["maxsize"] is not None  # that may forget
        assert net.table.cache_info().currsize in ((0, 1) if is_bounded else (1,))
    else:  # others know one width only: frozen, and not harmed
        with pytest.raises(WidthGroupError, match="can grow"):
            gr.plan(net, X, stages=2, start=0.5)
    assert type(net(X)) is torch.Tensor


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.each(10)
def test_no_cache_keeps_a_tensor_without_values(make):
    net = make()
    plan = gr.plan(net, X, stages=2, start=0.5)
    seed = plan.build_seed()
    assert plan.widths("a") == [4, 8]
    assert plan.footprints[0].flops < plan.footprints[1].flops
    str(plan)
    found = net(X)
    assert type(found) is torch.Tensor
    assert torch.equal(found, net.b(torch.relu(net.a(X))))
    report = gr.Grower(seed, plan, noise=0.0).grow()
    assert report.change.relative < 1e-5
    assert type(seed(X)) is torch.Tensor
    assert not isinstance(net(X), FakeTensor)
    check_warm(make())  # last: the caches outlive a model


HIDDEN: list = []


def test_a_cache_that_nobody_finds_is_reported():
    class Hides(Two):
        def between(self, h):
            kept = vars(__import__("sys").modules[__name__])["".join(["HID", "DEN"])]
            if not kept:
                kept.append(torch.ones(()))
            return h * kept[0]

    try:
        text = r"keeps tensors in a place that cannot be found.*Empty that cache"
        with pytest.raises(gr.GrowthError, match=text):
            gr.plan(Hides(), X, stages=2)
    finally:
        HIDDEN.clear()


# State.


class Slotted:
    __slots__ = ("__hidden", "count")

    def __init__(self) -> None:
        self.count = 0
        self.__hidden = [0]

    def begin_step(self):
        self.count += 1
        self.__hidden[0] += 1
        return self.count, list(self.__hidden)


class Odd(Two):
    """Changes everything that it has, at each call."""

    calls_of_all = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.share, self.last = 0, 0.5, None
        self.seen, self.kinds, self.recent = [], {"a": [0]}, collections.deque([1, 2], maxlen=2)
        self.names, self.data, self.raw = {1}, np.zeros(3), bytearray(b"ab")
        self.numbers, self.plain = array.array("d", [1.0, 2.0]), torch.zeros(2)
        self.python, self.legacy = random.Random(0), np.random.RandomState(0)
        self.numpy, self.torch = np.random.default_rng(0), torch.Generator().manual_seed(0)
        self.slotted, self.space = Slotted(), types.SimpleNamespace(n=0)
        self.counter = collections.Counter(a=1)
        self.register_buffer("running", torch.zeros(()))
        self.gain = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.zeros(()))

    def between(self, h):
        type(self).calls_of_all += 1
        self.calls += 1
        self.share *= 0.9
        self.last = h
        self.seen.append(self.calls)
        self.kinds["a"][0] += 1
        self.kinds["b"] = h
        self.recent.append(self.calls)
        self.names.add(self.calls)
        self.data += 1
        self.raw[0] = 99
        self.numbers[0] += 1
        self.slotted.begin_step()
        self.space.n += 1
        self.counter["a"] += 1
        self.python.random()
        self.legacy.rand()
        self.numpy.random()
        random.random()
        np.random.rand()
        if not isinstance(h, FakeTensor) and not torch.compiler.is_compiling():
            torch.rand((), generator=self.torch)
            self.plain += 1
            self.unused.data.mul_(2.0)
        with torch.no_grad():
            self.running += 1
        return h * self.gain + self.shift


def state(net):
    """Everything that `Odd` changes, by value."""
    return repr(
        (
            net.calls, net.share, net.last, net.seen, net.kinds, net.recent, net.names, net.data, net.raw,
            net.numbers, net.plain, net.python.getstate(), net.legacy.get_state(), net.numpy.bit_generator.state,
            net.torch.get_state().tolist(), net.slotted.count, net.slotted._Slotted__hidden, net.space,
            net.counter, net.running, net.unused.tolist(), Odd.calls_of_all, random.getstate(),
            np.random.get_state(), torch.get_rng_state().tolist(), sorted(vars(net)),
        )
    )  # fmt: skip


def test_planning_and_growing_leave_plain_state():
    net = Odd()
    before = state(net)
    plan = gr.plan(net, X, stages=3, start=0.5)
    str(plan)
    plan.measure(1)
    assert state(net) == before
    seed = plan.build_seed()
    assert state(seed) == before
    for training in (True, False):
        seed.train(training)
        seed(X)
        kept = state(seed)
        gr.Grower(seed, plan, noise=0.0).grow()
        assert state(seed) == kept
    gr.verify(seed, seed, X)
    assert state(seed) == kept


@pytest.mark.parametrize("method", ["net2net", "splitting", "firefly-split", "firefly", "gradmax"])
@pytest.mark.each(2)
def test_searching_leaves_plain_state(method):
    class Counts(Two):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.own, self.seen = 0, []

        def between(self, h):
            self.own += 1
            Counts.calls += 1
            self.seen.append(1)
            return h

    net = Counts()
    plan = gr.plan(net, X, stages=2, start=0.5)
    seed = plan.build_seed()
    batches = [(X.clone(), torch.zeros(3, dtype=torch.long))]
    gr.Grower(seed, plan, method=method, batches=batches, loss=nn.functional.cross_entropy).grow()
    assert (seed.own, seed.seen, Counts.calls) == (0, [], 0)
    assert torch.equal(batches[0][0], X)


class ActNorm(nn.Module):
    """Takes scale and shift from the first batch it sees."""

    def __init__(self, size) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.is_ready = False

    def forward(self, x):
        if not self.is_ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-3))
            self.is_ready = True
        return (x + self.shift) * self.scale


class Normalised(Two):
    def __init__(self) -> None:
        super().__init__()
        self.norm = ActNorm(2)

    def forward(self, x):
        return self.norm(super().forward(x))


def test_initialisation_by_the_first_batch_is_not_spent_on_the_example():
    net = Normalised()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActNorm, "is_ready", True, raising=False)
        gr.plan(net, X, stages=2, start=0.5)
    assert not net.norm.is_ready
    assert torch.equal(net.norm.scale, torch.ones(2))
    net.norm.is_ready = True
    plan = gr.plan(net, X, stages=2, start=0.5)
    seed = plan.build_seed()
    seed.norm.is_ready = False
    gr.Grower(seed, plan, noise=0.0).grow()
    assert not seed.norm.is_ready
    assert torch.equal(seed.norm.shift, torch.zeros(2))


def test_hooks_with_side_effects():
    net, seen, everywhere = Two(), [], {}
    net.a.register_forward_hook(lambda module, args, out: seen.append(out))
    net.register_forward_pre_hook(lambda module, args: seen.append(args))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: everywhere.update({type(module): out})
    )
    try:
        plan = gr.plan(net, X, stages=2, start=0.5)
        str(plan)
        gr.Grower(plan.build_seed(), plan).grow()
    finally:
        handle.remove()
    assert seen == []
    assert everywhere == {}


class InPlace(Two):
    def forward(self, x):
        x.relu_()
        x += 1
        x.mul_(2)
        return super().forward(x)


class Collects(Two):
    def forward(self, x, seen=None):
        if seen is not None:
            seen.append(x)
        return super().forward(x)


def test_example_inputs_stay_as_they_are():
    x = X.clone()
    plan = gr.plan(InPlace(), x, stages=2, start=0.5)
    str(plan)
    seed = plan.build_seed()
    report = gr.Grower(seed, plan, noise=0.0).grow()
    gr.verify(seed, seed, x)
    plan.measure(1)
    assert torch.equal(x, X)
    assert torch.equal(plan.example_inputs, X)
    assert report.change.relative < 1e-5
    x.zero_()  # a buffer that the user fills anew
    assert torch.equal(plan.example_inputs, X)


def test_lists_among_the_example_inputs_stay_as_they_are():
    inputs = {"x": X, "seen": []}
    plan = gr.plan(Collects(), inputs, stages=2, start=0.5)
    gr.Grower(plan.build_seed(), plan).grow()
    assert inputs["seen"] == [] and inputs["x"] is X


def test_a_large_tensor_that_is_changed_is_named(monkeypatch):
    monkeypatch.setattr(snapshot, "_LARGE", 8)
    net = Two()
    net.big = torch.zeros(5)
    text = r"changes a tensor of shape \(5,\) in place.*Make it a buffer"
    with pytest.raises(UnsupportedModelError, match=text), untouched(net):
        net.big.add_(1)
        net.a.weight.data.zero_()
        net.calls = 1
    assert net.a.weight.any() and not hasattr(net, "calls")


def test_a_view_that_repeats_itself_is_put_back_through_its_base():
    net = Two()
    base = torch.zeros(1, 3)
    net.view, net.base = base.expand(4, 3), base
    with untouched(net):
        base += 1
    assert not net.view.any()


def test_running_machinery_is_left_alone():
    class Machine:
        def __init__(self) -> None:
            self.thread, self.count = __import__("threading").Thread(), 0

    net = Two()
    net.machine = Machine()
    with untouched(net):
        net.machine.count += 1
    assert net.machine.count == 1


def test_what_an_object_keeps_out_of_copies_is_left_alone():
    class Trained(Two):
        def __getstate__(self):
            return {**self.__dict__, "trainer": None}

    net = Trained()
    net.trainer = {"steps": 0}
    with untouched(net):
        net.trainer["steps"] = 1
        net.other = 1
    assert net.trainer == {"steps": 1} and not hasattr(net, "other")


def test_decorated_code_is_followed():
    calls, kept = [], {}

    def wrapped(h):
        calls.append(1)
        return h * kept.setdefault(h.shape[-1], torch.ones(h.shape[-1]))

    outside = torch.no_grad()(wrapped)  # torch's wrapper around a function of the model

    @functools.wraps(torch.relu)  # a function of the model that looks like torch's
    def inside(h):
        calls.append(2)
        return h

    class Decorated(Two):
        def between(self, h):
            return inside(h) * outside(torch.ones_like(h))

    net = Decorated()
    plan = gr.plan(net, X, stages=2, start=0.5)
    gr.Grower(plan.build_seed(), plan).grow()
    assert calls == [] and kept == {}
    assert type(net(X)) is torch.Tensor


def test_a_factory_may_draw_numbers_of_any_kind():
    def build(widths):
        random.random(), np.random.rand(), torch.rand(1)
        return nn.Sequential(nn.Linear(4, widths["0"]), nn.ReLU(), nn.Linear(widths["0"], 2))

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    plan = gr.plan(build({"0": 8}), X, stages=2, start=0.5, build=build)
    random.setstate(before[0])
    np.random.seed(3), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    plan = gr.plan(plan.model, X, stages=2, start=0.5, build=build)
    gr.Grower(plan.build_seed(), plan).grow()
    str(plan)
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    ) == before


def test_parameters_frozen_by_the_forward_pass_are_thawed():
    class Freezes(Two):
        def between(self, h):
            if not torch.compiler.is_compiling():
                self.b.requires_grad_(False)
            return h

    net = Freezes()
    plan = gr.plan(net, X, stages=2, start=0.5)
    seed = plan.build_seed()
    gr.Grower(seed, plan).grow()
    assert all(p.requires_grad for p in [*net.parameters(), *seed.parameters()])


def test_results_of_an_earlier_pass_in_a_dict_are_in_nobodys_way():
    """A hook that keeps features: they are no leaves, and deepcopy refuses them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model.kept = {}
    model[0].register_forward_hook(lambda _, args, out: model.kept.update(features=[out]))
    x = torch.randn(5, 4)
    model(x)
    seed = gr.plan(model, x, stages=2).build_seed()
    assert seed[0].out_features < 8 and model.kept["features"][0].requires_grad


def test_what_the_code_leaves_in_context_variables_goes_with_the_trial():
    kept: ContextVar[torch.Tensor | None] = ContextVar("kept", default=None)

    class Keeping(nn.Sequential):
        def forward(self, x):
            if kept.get() is None:
                kept.set(torch.ones(1))
            return super().forward(x) * kept.get()

    plan = gr.plan(Keeping(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    gr.Grower(plan.build_seed(), plan).grow()
    assert kept.get() is None


def test_a_trial_without_memory_is_not_passed_over():
    """That would be a growth that nobody has looked at."""

    class Hungry(nn.Sequential):
        is_hungry = False

        def forward(self, x):
            if self.is_hungry and len(x) > 3:  # fresh inputs are more
                raise MemoryError
            return super().forward(x)

    plan = gr.plan(Hungry(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4), stages=3)
    seed = plan.build_seed()
    grower = gr.Grower(seed, plan)
    before = copy.deepcopy(seed.state_dict())
    seed.is_hungry = True
    with pytest.raises(gr.GrowthError, match="MemoryError"):
        grower.grow()
    assert all(torch.equal(t, before[n]) for n, t in seed.state_dict().items())
    seed.is_hungry = False
    grower.grow()


def test_an_average_that_is_not_finite_does_not_grow():
    plan = gr.plan(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    seed = plan.build_seed()
    average = AveragedModel(seed)
    with torch.no_grad():
        average.module[0].weight[0, 0] = torch.nan
    with pytest.raises(gr.GrowthError, match=r"'0\.weight' holds values that are not finite"):
        gr.Grower(seed, plan, averages=average).grow()
