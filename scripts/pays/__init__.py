"""Does growing pay? Runs of grown and fixed-size networks at equal cost, at CPU scale."""
