"""What growth does to optimizers."""
