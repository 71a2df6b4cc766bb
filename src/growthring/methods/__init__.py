"""Growing methods: each decides what the new entries of a model's tensors hold."""
