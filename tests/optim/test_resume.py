"""A state_dict from the middle of stage 2 of 4 goes on bit for bit, in a new process."""

import os
import subprocess
import sys

import pytest
import torch

import growthring as gr
from tests.optim import resumed
from tests.optim.nets import assert_same, grower_of, plan_of, train
from tests.optim.resumed import KINDS, MIDDLE, TOTAL, Run


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The end of each run: without a break, and from a checkpoint in a process of its own."""
    folder = tmp_path_factory.mktemp("resume")
    middle, whole = {}, {}
    for kind in KINDS:
        run = Run(kind)
        run.go(0, MIDDLE)
        assert run.grower.stage == 2
        middle[kind] = run.state()
        torch.save(middle[kind], folder / f"{kind}.pt")
        run.go(MIDDLE, TOTAL)
        assert run.grower.is_full
        whole[kind] = run.state()
    torch.save(
        {k: torch.load(folder / f"{k}.pt", weights_only=True) for k in KINDS}, folder / "all"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    source = os.path.dirname(os.path.dirname(os.path.abspath(gr.__file__)))
    subprocess.run(
        [sys.executable, resumed.__file__, str(folder / "all"), str(folder / "end")],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, root])},
    )
    return whole, torch.load(folder / "end", weights_only=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_goes_on_bit_for_bit_in_a_new_process(continued, kind):
    whole, again = continued
    assert_same(whole[kind], again[kind], kind)


def test_a_run_without_the_optimizer_state_differs():
    """The comparison above would be worth nothing if state did not matter."""
    run, other = Run("adam"), Run("adam")
    run.go(0, 6)
    states = run.state()
    for part, state in list(zip(other.parts, states, strict=True))[:2]:
        part.load_state_dict(state)
    run.go(6, 8)
    other.go(6, 8)
    pairs = zip(run.model.parameters(), other.model.parameters(), strict=True)
    assert not all(torch.equal(p, q) for p, q in pairs)


def rule(norms):
    return (norms / norms[0]).sqrt()


@pytest.mark.parametrize("wrapped", [False, True])
def test_code_is_not_saved_but_kept(wrapped):
    """A rule that is a function stays that of the optimizer that loads."""
    ends = []
    for resume in (False, True):
        plan = plan_of("mlp")
        model = plan.build_seed()

        def make(params):
            if wrapped:
                return gr.optim.with_rings(torch.optim.Adam(params, lr=0.01), rate_adaptation=rule)
            return gr.optim.Adam(params, lr=0.01, rate_adaptation=rule)

        optimizer = make(model.parameters())
        grower = grower_of(model, plan, optimizer)
        train(model, plan, optimizer, 2)
        grower.grow()
        train(model, plan, optimizer, 2)
        if resume:
            saved = [x.state_dict() for x in (grower, model, optimizer)]
            model = plan.build_seed()
            optimizer = make(model.parameters())
            grower = grower_of(model, plan, optimizer)
            for part, state in zip((grower, model, optimizer), saved, strict=True):
                part.load_state_dict(state)
            assert optimizer.param_groups[0]["rate_adaptation"] is rule
        train(model, plan, optimizer, 2)
        grower.grow()
        ends.append(dict(model.state_dict()))
    assert_same(*ends)


@pytest.mark.parametrize("kind", ["sgd own", "adam", "wrapped"])
def test_loading_into_the_run_itself_changes_nothing(kind):
    """A rollback within a stage: the same optimizer takes its own checkpoint up again."""
    run = Run(kind)
    run.go(0, 10)
    saved = torch.load(_bytes(run.state()), weights_only=True)
    run.go(10, 12)
    end = dict(run.model.state_dict())
    expected = {n: t.clone() for n, t in end.items()}
    for part, state in zip(run.parts[1:], saved[1:], strict=True):
        part.load_state_dict(state)
    run.go(10, 12)
    assert_same(expected, dict(run.model.state_dict()))


def _bytes(value):
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer
