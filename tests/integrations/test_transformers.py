"""A script with transformers' Trainer grows: on time, in any setting; its checkpoints can be loaded and resumed."""

import copy
import functools
import json
import os
import warnings

import pytest
import torch

import growthring as gr
from growthring.errors import GrowthError, InputError
from tests.discovered import discovered_once as discovered_once
from tests.distributed_helpers import on_ranks
from tests.models.test_language_models import LENGTH, VOCABULARY, gpt2, llama

transformers = pytest.importorskip("transformers")
ours = pytest.importorskip("growthring.integrations.transformers")

STEPS, MODELS = 12, {"Llama": lambda: llama(8, 8), "GPT-2": lambda: gpt2(4)}


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its settings for a whole process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@functools.cache  # discovery is most of the time
def planned(name="Llama", **options):
    torch.manual_seed(0)
    model = MODELS[name]()
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    settings = {"stages": 3, "start": 0.25, "total_steps": STEPS, **options}
    return gr.plan(model, {"input_ids": tokens}, **settings)


def texts(count=40):
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCABULARY, (count, LENGTH), generator=draw)
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(
    folder, plan, kind=ours.GrowthTrainer, optimizers=None, callback=None, model=None, **settings
):
    options = {
        "per_device_train_batch_size": 4,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        **settings,
    }
    torch.manual_seed(3)
    model = plan.build_seed() if model is None else model
    given = {} if optimizers is None else optimizers(model)
    generator = torch.Generator().manual_seed(5)
    return kind(
        model,
        transformers.TrainingArguments(str(folder), **options),
        train_dataset=texts(),
        eval_dataset=texts(8),
        callbacks=[callback or ours.GrowthCallback(plan, generator=generator, fade=0.9)],
        **given,
    )


def weights_of(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def state_of(run):
    return copy.deepcopy(run.optimizer.state_dict())


def same(one, other):
    a, b = weights_of(one), weights_of(other)
    assert not [name for name in a if not torch.equal(a[name], b[name])]
    there = state_of(other)["state"]
    for p, values in state_of(one)["state"].items():
        for key, value in values.items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda x, y: x == y
            assert same(value, there[p][key])


def test_a_trainer_grows_saves_and_resumes_bit_for_bit(tmp_path):
    plan = planned()
    whole = trainer(
        tmp_path,
        plan,
        save_strategy="steps",
        save_steps=1,
        lr_scheduler_type="cosine",
        warmup_steps=2,
    )
    with pytest.warns(gr.GrowthWarning, match=r"is saved while \d norms of the model fade in"):
        whole.train()
    assert whole.callback_handler.callbacks[-2].grower.is_complete
    stages = set()
    for step in range(1, STEPS + 1):
        folder = tmp_path / f"checkpoint-{step}"
        with open(folder / "config.json") as file:
            stages.add(json.load(file)["hidden_size"])
        growth = ours.read_growth(folder / "growthring.safetensors")
        assert growth["pace"]["step"] == step
        if step in (3, plan.stage_steps[0], plan.stage_steps[0] + 2, STEPS - 1):
            again = trainer(tmp_path, plan, lr_scheduler_type="cosine", warmup_steps=2)
            again.train(resume_from_checkpoint=str(folder))
            same(again, whole)
    assert stages == {8, 16, 32}


class Look(transformers.TrainerCallback):
    """What the model that is being saved computes, where nothing fades in."""

    def __init__(self, growth):
        self.growth, self.logits = growth, {}

    def on_save(self, args, state, control, model, **kwargs):
        if not self.growth.grower.fading_norms:
            self.logits[state.global_step] = logits_of(model)


def logits_of(model):
    training = model.training
    with torch.no_grad():
        result = model.eval()(input_ids=torch.arange(3, 3 + LENGTH)[None]).logits
    model.train(training)
    return result


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.each(2)
def test_every_checkpoint_can_be_loaded_and_computes_the_same(name, tmp_path):
    plan = planned(name)
    growth = ours.GrowthCallback(plan, fade=0.3)
    run = trainer(
        tmp_path, plan, transformers.Trainer, callback=growth, save_strategy="steps", save_steps=1
    )
    look = Look(growth)
    run.add_callback(look)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.train()
    widths = set()
    for step, logits in look.logits.items():
        model = type(run.model).from_pretrained(tmp_path / f"checkpoint-{step}")
        torch.testing.assert_close(logits_of(model), logits)
        widths.add(model.config.hidden_size)
    assert widths == {8, 16, 32}
    assert ours.read_growth(tmp_path / "checkpoint-1/growthring.safetensors")["stage"] == 0


OURS = {"lr": 1e-2, "weight_decay": 0.01}
SETTINGS = {
    "accumulation": {"gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 3},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "fused": {"optim": "adamw_torch_fused"},
    "adafactor": {"optim": "adafactor"},
    "SGD": {"optim": "sgd", "learning_rate": 0.1},
    "given": {"optimizers": lambda m: {"optimizers": (gr.optim.AdamW(m.parameters(), **OURS), None)}},
    "class": {"optimizers": lambda m: {"optimizer_cls_and_kwargs": (gr.optim.AdamW, OURS)}},
    "warm-up and restarts": {"lr_scheduler_type": "cosine_with_restarts", "warmup_steps": 3},
    "weights only": {"save_only_model": True, "optim": "sgd", "lr_scheduler_type": "constant"},
    "on each node": {"save_on_each_node": True},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_any_setting_grows_and_resumes_bit_for_bit(setting, name, tmp_path):
    plan, settings = planned(name), SETTINGS[setting]
    whole = trainer(tmp_path, plan, save_strategy="steps", save_steps=1, **settings)
    whole.train()
    torch.compiler.reset()
    assert whole.growth.grower.is_complete
    assert whole.state.global_step == STEPS
    for step in (plan.stage_steps[0] + 2, plan.stage_steps[0] + plan.stage_steps[1]):
        again = trainer(tmp_path, plan, **settings)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        torch.compiler.reset()
        same(again, whole)


def best_is_complete(folder, rank=0, **settings):
    """Losses that rise: the best checkpoint would be the first one, of a small model."""
    plan = planned()
    run = trainer(
        folder,
        plan,
        **{"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
        load_best_model_at_end=True,
        metric_for_best_model="eval_step",
        greater_is_better=False,
        **settings,
    )
    evaluate = run.evaluate
    run.evaluate = lambda *a, **k: {**evaluate(*a, **k), "eval_step": float(run.state.global_step)}
    return run


@pytest.mark.filterwarnings("ignore")
def test_the_best_checkpoint_is_one_of_the_full_size(tmp_path):
    run = best_is_complete(tmp_path)
    run.train()
    steps = planned().stage_steps
    best = run.state.best_global_step
    assert steps[0] + steps[1] < best == run.state.best_metric <= STEPS
    model = type(run.model).from_pretrained(tmp_path / f"checkpoint-{best}")
    torch.testing.assert_close(logits_of(model), logits_of(run.model))


def on_two(rank, folder):
    """Two processes: grown, saved, resumed, with the Trainer's own DistributedDataParallel."""
    from accelerate.state import AcceleratorState

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # asked for, not used
    AcceleratorState._reset_state(True)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    plan = planned("GPT-2")
    settings = {"ddp_backend": "gloo", "gradient_accumulation_steps": 2, "save_steps": 3}
    whole = trainer(folder, plan, save_strategy="steps", **settings)
    whole.train()
    assert type(whole.model_wrapped).__name__ == "DistributedDataParallel"
    assert whole.growth.grower.is_complete
    again = trainer(folder, plan, **settings)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
    same(again, whole)
    return weights_of(whole), sorted(os.listdir(f"{folder}/checkpoint-6"))


@pytest.mark.slow
def test_two_processes_grow_one_model_and_resume(tmp_path):
    (one, files), (other, _) = on_ranks(on_two, str(tmp_path))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert {"growthring.safetensors", "config.json", "optimizer.pt"} <= set(files)


# Refusals.


def refused(folder, text, plan=None, kind=ours.GrowthTrainer, **settings):
    run = trainer(folder, plan or planned(), kind, **settings)
    before = weights_of(run)
    with pytest.raises(GrowthError, match=text):
        run.train()
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


ARGUMENTS = {
    "auto_find_batch_size": ({"auto_find_batch_size": True}, r"auto_find_batch_size=.*: it starts the run again"),
    "neftune": ({"neftune_noise_alpha": 0.1}, r"\(neftune_noise_alpha=\.\.\.\): its noise follows the width"),
    "too few steps": ({"max_steps": 5}, r"for 12 steps, the Trainer takes 5: .* gr\.plan\(\.\.\., total_steps=5\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_do_not_go_with_growing_are_refused(name, tmp_path):
    settings, text = ARGUMENTS[name]
    refused(tmp_path, text, **settings)


@pytest.mark.parametrize("name", ["deepspeed", "fsdp", "use_liger_kernel"])
def test_what_is_not_installed_is_refused_by_name(name, tmp_path):
    run = trainer(tmp_path, planned())
    setattr(run.args, name, True)
    run.state.max_steps = STEPS
    with pytest.raises(InputError, match=rf"cannot grow with TrainingArguments\({name}="):
        run.growth.on_train_begin(run.args, run.state, run.control, model=run.model, optimizer=None)


def test_several_gpus_of_one_process_and_searches_are_refused(tmp_path):
    run = trainer(tmp_path, planned())
    begin = functools.partial(run.growth.on_train_begin, control=run.control, model=run.model)
    run.state.is_hyper_param_search = True
    with pytest.raises(InputError, match=r"each trial needs a seed of its own"):
        begin(run.args, run.state)
    run.args._n_gpu = 2
    with pytest.raises(InputError, match=r"cannot grow in DataParallel.*torchrun"):
        begin(run.args, run.state)


def test_other_lengths_of_the_run_are_said(tmp_path):
    plan = planned(total_steps=None)
    refused(
        tmp_path, r"the plan does not know how long the run is, the Trainer takes 12 steps", plan
    )
    with pytest.warns(
        gr.GrowthWarning, match=r"for 12 steps, the Trainer takes 13: the rest is at full"
    ):
        run = trainer(tmp_path, planned(), max_steps=13)
        run.train()
    assert run.growth.grower.is_complete
    run.train()  # on with the full model
    assert run.growth.grower.is_complete


def test_models_that_are_no_seed_are_refused(tmp_path):
    plan = planned()
    full = copy.deepcopy(plan.model)
    refused(
        tmp_path,
        r"the run begins with a model of stage 2 of the plan.*plan\.build_seed\(\)",
        model=full,
    )
    torch.manual_seed(0)
    refused(
        tmp_path, r"the model has the shapes of no stage of the plan", model=llama(4, 4, width=24)
    )
    refused(tmp_path, r"Twice has 2 GrowthCallbacks; it needs one", callback=None, kind=Twice)


class Twice(ours.GrowthTrainer):
    """With a callback too many."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(ours.GrowthCallback(planned()))


def test_arguments_of_the_callback_are_checked():
    with pytest.raises(InputError, match=r"plan is a LlamaForCausalLM; pass what gr\.plan"):
        ours.GrowthCallback(planned().model)
    with pytest.raises(InputError, match=r"what wraps the model or changes gradients are"):
        ours.GrowthCallback(planned(), optimizer=None)


def test_a_plain_trainer_does_not_resume_nor_choose_the_best(tmp_path):
    plan = planned()
    run = trainer(tmp_path, plan, transformers.Trainer, save_strategy="steps", save_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.train()
    again = trainer(tmp_path, plan, transformers.Trainer)
    with pytest.raises(
        InputError, match=r"goes on at step 1, and nobody told .*GrowthTrainer in place of"
    ):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    early = trainer(tmp_path, plan)
    early.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    same(early, run)
    with pytest.raises(
        GrowthError, match=r"at stage 2, the saved growth at stage 0; start from plan\.build_seed"
    ):
        early.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    (tmp_path / "checkpoint-1" / "growthring.safetensors").unlink()
    with pytest.raises(GrowthError, match=r"checkpoint-1' lacks 'growthring\.safetensors'"):
        trainer(tmp_path, plan).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "load_best_model_at_end": True}
    text = r"load_best_model_at_end needs growthring.integrations.transformers.GrowthTrainer"
    refused(tmp_path, text, kind=transformers.Trainer, **settings)


@pytest.mark.slow
def test_a_config_that_cannot_say_the_widths_is_refused(tmp_path):
    """GPT-2's has one width and a number of heads, so that the size of a head cannot stay."""
    torch.manual_seed(0)
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    model = gpt2(4)
    plan = gr.plan(model, {"input_ids": tokens}, heads="count", stages=2, total_steps=STEPS)
    refused(
        tmp_path,
        r"the config of GPT2LMHeadModel cannot say the widths of stage 0 "
        r".*If you gave gr\.plan widths, leave them to it; .*loadable=False",
        plan,
    )
    callback = ours.GrowthCallback(plan, loadable=False)
    run = trainer(tmp_path, plan, callback=callback)
    run.train()
    assert callback.grower.is_complete
