"""Planning: which width each group has at each stage, how long a stage takes, what all of it costs."""
