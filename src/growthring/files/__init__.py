"""Files: what comes from strangers, and what is written whole or not at all."""
