"""Tasks: classification, language modelling, translation; and those of users."""

from __future__ import annotations

from growthring.errors import InputError
from growthring.train.recipe import Recipe
from growthring.train.tasks.base import (
    Outcome as Outcome,
    Place as Place,
    Streams as Streams,
    Task as Task,
)
from growthring.train.tasks.classification import Classification as Classification
from growthring.train.tasks.language import Language as Language
from growthring.train.tasks.translation import Translation as Translation

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Language(), Translation())}
_BY_DATA = {name: task for task in TASKS.values() for name in task.data}


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe: its own or, where it has none, the one that reads its data.

    >>> from growthring.train import Recipe
    >>> from growthring.zoo import GPT
    >>> task_of(Recipe("mine", GPT, data="python", input_shape=(64,))).name
    'language'
    """
    if recipe.task is None:
        return task_for(recipe.data)
    if not isinstance(recipe.task, Task):
        what = (
            f"the class {recipe.task.__name__}"
            if isinstance(recipe.task, type)
            else repr(recipe.task)
        )
        raise InputError(
            f"task={what:.60} is no growthring.train.Task: give an object of one, MyTask()."
        )
    return recipe.task


def task_for(data: str | None) -> Task:
    """The task that reads some data; of batches of a user's own program, classification.

    Raises:
        InputError: there is no such data.
    """
    if data is None:
        return TASKS["classification"]
    if data not in _BY_DATA:
        raise InputError(f"there is no data set '{data}'; there are {', '.join(_BY_DATA)}.")
    return _BY_DATA[data]
