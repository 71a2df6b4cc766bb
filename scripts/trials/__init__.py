"""Short training runs that settle questions about defaults, at CPU scale."""
