"""The theory on plain tensors: axes, rings, pairs and variance transfer. Knows no model."""
