"""growthring trains a neural network by growing it: from a thin seed, in stages, to the full-size model."""

from growthring import (
    data as data,
    methods as methods,
    optim as optim,
    streams as streams,
    train as train,
)
from growthring.checkpoint.onetensor import read_growth as read_growth
from growthring.core.rings import RingMap as RingMap
from growthring.errors import GrowthError as GrowthError, GrowthWarning as GrowthWarning
from growthring.graph.discover import discover_width_groups as discover_width_groups
from growthring.graph.groups import WidthGroups as WidthGroups
from growthring.graph.resize import register_attributes as register_attributes
from growthring.graph.rules import (
    Info as Info,
    Op as Op,
    Value as Value,
    Walk as Walk,
    register_rule as register_rule,
)
from growthring.graph.widthgroup import WidthGroup as WidthGroup
from growthring.growing.ending import FadeReport as FadeReport, end_fades as end_fades
from growthring.growing.grower import Grower as Grower
from growthring.growing.osgd import DynamicOSGD as DynamicOSGD
from growthring.growing.pace import StepReport as StepReport
from growthring.growing.report import GrowthReport as GrowthReport
from growthring.growing.verify import Verification as Verification, verify as verify
from growthring.planning.options import PlanOptions as PlanOptions
from growthring.planning.plan import Plan as Plan
from growthring.planning.planner import plan as plan
from growthring.planning.strengths import strengths as strengths
from growthring.train.advice import Advice as Advice
from growthring.train.advise import advise as advise
from growthring.train.loading import load as load
from growthring.train.lr_schedules import lr_schedule as lr_schedule
