"""Growing: one stage of growth on a model and its optimizers, all or nothing, measured and reported."""
