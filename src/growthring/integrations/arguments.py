"""Which arguments of transformers' Trainer go with a model that grows, and which plans with them."""

from __future__ import annotations

import warnings
from typing import Any

from growthring.errors import GrowthWarning, InputError
from growthring.graph.rebuild import Rebuild
from growthring.planning.plan import Plan

TRAINER = "growthring.integrations.transformers.GrowthTrainer"
_REFUSED = {
    "deepspeed": "DeepSpeed spreads parameters over processes",
    "fsdp": "FSDP loads weights before anybody can give the model its shapes",
    "auto_find_batch_size": "it starts the run again when memory runs out, and a model does not shrink again",
    "neftune_noise_alpha": "its noise follows the width, so that outputs before and after a growth differ",
    "use_liger_kernel": "its kernels take statistics of norms where they cannot fade in",
}


def check_arguments(args: Any, state: Any, plan: Plan, loadable: bool, is_judged: bool) -> None:
    """Refuses a run that would fail later, or end with less than the plan's full model.

    Args:
        args: the Trainer's `TrainingArguments`.
        state: its `TrainerState`, which knows how long the run is.
        plan: what the model grows to.
        loadable: whether `from_pretrained` has to know every stage from its config.
        is_judged: whether checkpoints of smaller models are kept from being the best.
    """
    for name, reason in _REFUSED.items():
        if getattr(args, name, None):
            raise InputError(f"a model cannot grow with TrainingArguments({name}=...): {reason}.")
    if args.n_gpu > 1:
        raise InputError(
            "a model cannot grow in DataParallel, which the Trainer uses where one process sees several GPUs. "
            "Start a process for each: torchrun --nproc_per_node ..."
        )
    if state.is_hyper_param_search:
        raise InputError(
            "a search of hyperparameters cannot grow models: each trial needs a seed of its own."
        )
    if args.load_best_model_at_end and not is_judged:
        raise InputError(
            f"load_best_model_at_end needs {TRAINER} (and transformers of 2025 or later), for "
            "which only checkpoints of the full size count."
        )
    total = sum(plan.stage_steps)
    if total != state.max_steps:
        text = (
            f"the plan is for {total:,} steps, the Trainer takes {state.max_steps:,}"
            if total
            else f"the plan does not know how long the run is, the Trainer takes {state.max_steps:,} steps"
        )
        advice = f"gr.plan(..., total_steps={state.max_steps})"
        if not 0 < total < state.max_steps:
            raise InputError(f"{text}: the model would not reach its full size. {advice}.")
        warnings.warn(f"{text}: the rest is at full size ({advice}).", GrowthWarning, stacklevel=2)
    if loadable and Rebuild(plan.model).works:
        for stage in range(plan.num_stages):
            if not Rebuild(plan.empty_model(stage)).works:
                raise InputError(
                    f"the config of {type(plan.model).__name__} cannot say the widths of stage {stage} "
                    f"({plan.named_widths(stage)}), so from_pretrained could not load its checkpoints. If you "
                    "gave gr.plan widths, leave them to it; otherwise pass GrowthCallback(plan, loadable=False): "
                    "resuming works all the same."
                )
