"""A model and example inputs -> its width groups: tracing, axis rules, unification, fitting."""
