"""A model and example inputs -> its width groups: tracing, axis rules, unification, fitting."""

from growthring.graph.rules import register_rule as register_rule
