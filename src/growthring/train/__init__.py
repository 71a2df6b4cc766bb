"""Training runs: recipes, and a trainer that grows, logs, saves and resumes."""

from growthring.runs.records import Result as Result
from growthring.train.card import Card as Card
from growthring.train.loading import load as load
from growthring.train.progress import Progress as Progress, Silence as Silence
from growthring.train.recipe import Recipe as Recipe, change as change, load_recipe as load_recipe
from growthring.train.recipes import RECIPES as RECIPES
from growthring.train.saved import (
    Saved as Saved,
    how_to_resume as how_to_resume,
    open_run as open_run,
)
from growthring.train.settings import (
    format_settings as format_settings,
    parse_settings as parse_settings,
)
from growthring.train.state import (
    Interrupted as Interrupted,
    TrainingError as TrainingError,
)
from growthring.train.tasks import (
    Outcome as Outcome,
    Place as Place,
    Streams as Streams,
    Task as Task,
)
from growthring.train.trainer import Trainer as Trainer
