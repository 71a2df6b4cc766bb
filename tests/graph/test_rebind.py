"""Functions that a model holds speak of the copy, never of the model it was copied from."""

import copy
import functools
import gc
import types
import weakref

import pytest
import torch
from torch import nn

import growthring as gr
from growthring.graph.resize import copy_with
from tests.growth_contract import randn


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.alpha = nn.Parameter(torch.tensor(0.7))
        self.keep()

    def keep(self) -> None:
        """Stores a function as `self.act`, in the way that a subclass has."""

    def forward(self, x):
        return self.b(self.act(self.a(x)))


class OverSelf(Base):
    def keep(self):
        self.act = lambda x: torch.relu(x) * self.alpha


class OverParameter(Base):
    def keep(self):
        alpha = self.alpha
        self.act = lambda x: torch.relu(x) * alpha


class OverModule(Base):
    def keep(self):
        layer = self.a
        self.act = lambda x: torch.relu(x) + layer.bias


class Default(Base):
    def keep(self):
        self.act = lambda x, alpha=self.alpha: torch.relu(x) * alpha


class KeywordDefault(Base):
    def keep(self):
        def act(x, *, model=self):
            return torch.relu(x) * model.alpha

        self.act = act


class Partial(Base):
    def keep(self):
        self.act = functools.partial(lambda model, x: torch.relu(x) * model.alpha, self)


class PartialOfClosure(Base):
    def keep(self):
        self.act = functools.partial(lambda scale, x: torch.relu(x) * self.alpha * scale, 2.0)


class BoundMethod(Base):
    def keep(self):
        self.act = self.activate

    def activate(self, x):
        return torch.relu(x) * self.alpha


class BoundMethodOfTensor(Base):
    def keep(self):
        self.times = self.alpha.mul

    def act(self, x):
        return self.times(torch.relu(x))


class NestedClosure(Base):
    def keep(self):
        def scaled(x):
            return x * self.alpha

        self.act = lambda x: scaled(torch.relu(x))


class ListInClosure(Base):
    def keep(self):
        holders = [self.alpha, {"deep": self}]
        self.act = lambda x: torch.relu(x) * holders[0] + holders[1]["deep"].alpha


class Recursive(Base):
    def keep(self):
        def act(x, depth=2):
            return torch.relu(x) * self.alpha if depth == 0 else act(x, depth - 1)

        self.act = act


class InContainers(Base):
    def keep(self):
        self.acts = {"list": [(lambda x: torch.relu(x) * self.alpha,)]}

    def act(self, x):
        return self.acts["list"][0][0](x)


class InSettings(Base):
    def keep(self):
        self.cfg = types.SimpleNamespace(act=lambda x: torch.relu(x) * self.alpha)

    def act(self, x):
        return self.cfg.act(x)


class WeakParent(Base):
    def keep(self):
        self.parent = weakref.ref(self)

    def act(self, x):
        return torch.relu(x) * self.parent().alpha


class Cached(Base):
    def keep(self):
        @functools.lru_cache
        def scale(power):
            return self

        self.scale = scale

    def act(self, x):
        return torch.relu(x) * self.scale(1).alpha


class OwnForward(Base):
    def keep(self):
        plain = self.a.forward
        self.a.forward = lambda x: plain(x) * self.alpha

    def act(self, x):
        return torch.relu(x)


class ForwardHook(Base):
    def keep(self):
        self.a.register_forward_hook(lambda module, args, out: out * self.alpha)

    def act(self, x):
        return torch.relu(x)


class ForwardPreHook(Base):
    def keep(self):
        bias = self.b.bias
        self.b.register_forward_pre_hook(lambda module, args: (args[0] + bias.sum(),))

    def act(self, x):
        return torch.relu(x)


CASES = [
    OverSelf, OverParameter, OverModule, Default, KeywordDefault, Partial, PartialOfClosure, BoundMethod,
    BoundMethodOfTensor, NestedClosure, ListInClosure, Recursive, InContainers, InSettings, WeakParent, Cached,
    OwnForward, ForwardHook, ForwardPreHook,
]  # fmt: skip


def reachable(root: object) -> set[int]:
    """Ids of everything that an object leads to, functions' cells included, classes and code left out."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, (type, types.ModuleType, types.CodeType)):
            continue
        seen[id(item)] = item
        if isinstance(item, weakref.ref) and item() is not None:
            todo.append(item())
        if isinstance(item, types.FunctionType):
            todo += [*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__, vars(item)]
        elif isinstance(item, types.BuiltinFunctionType):
            todo.append(item.__self__)
        elif not (isinstance(item, dict) and item.get("__name__")):
            todo += gc.get_referents(item)
    return set(seen)


@pytest.mark.parametrize("kind", CASES, ids=lambda c: c.__name__)
@pytest.mark.each(5)
def test_the_seed_reaches_nothing_of_the_full_model(kind):
    torch.manual_seed(0)
    model = kind().double()
    x = randn(5, 4)
    plan = gr.plan(model, x, stages=3, growth=None)
    assert plan.groups["a"].grows
    seed = plan.build_seed()
    found = reachable(seed)
    for name, tensor in [*model.named_parameters(), *model.named_modules()]:
        assert id(tensor) not in found, name
    full = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(seed.parameters(), lr=0.1)
    before = seed.alpha.item()
    for _ in range(2):
        seed(x).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(v, full[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    if kind not in (OverModule, ForwardPreHook):
        assert seed.alpha.item() != before  # it is the seed's own that was trained
    grower = gr.Grower(seed, plan, noise=0.0)
    while not grower.is_full:
        outputs = seed(x).detach()
        grower.grow()
        torch.testing.assert_close(seed(x).detach(), outputs, rtol=1e-12, atol=1e-12)
    model.load_state_dict(seed.state_dict(), strict=True)
    torch.testing.assert_close(model(x), seed(x), rtol=0, atol=0)


def test_a_copy_of_a_copy_and_shared_cells():
    model = ListInClosure()
    twin = copy_with(copy_with(model, {}), {})
    cells = dict(zip(twin.act.__code__.co_freevars, twin.act.__closure__, strict=True))
    first, second = cells["holders"].cell_contents
    assert first is twin.alpha and second["deep"] is twin
    first, second = model.act.__closure__[0].cell_contents
    assert first is model.alpha and second["deep"] is model


def test_state_of_a_closure_that_has_nothing_to_do_with_the_model_stays_shared():
    calls: list[int] = []

    class Counting(Base):
        def keep(self):
            def act(x):
                calls.append(1)
                return torch.relu(x) * self.alpha

            self.act = act

    twin = copy_with(Counting(), {})
    twin(torch.zeros(1, 4))
    assert calls == [1]


def test_a_function_that_reads_the_model_from_a_global_variable_is_refused():
    space = {"torch": torch, "Base": Base}
    exec("net = Base()\nnet.act = lambda x: torch.relu(x) * net.alpha", space)
    with pytest.raises(
        gr.GrowthError, match=r"'act' of '\(model\)'.*global variable 'net'.*through an argument"
    ):
        gr.plan(space["net"], torch.zeros(2, 4))


def test_something_that_is_not_copied_and_refers_to_the_model_is_refused():
    class Registry:
        def __init__(self, model):
            self.model = model

        def __deepcopy__(self, memo):
            return self

    model = OverSelf()
    model.registry = Registry(model)
    with pytest.raises(
        gr.GrowthError, match=r"'registry' of.*Registry that is not copied with the model"
    ):
        gr.plan(model, torch.zeros(2, 4))
