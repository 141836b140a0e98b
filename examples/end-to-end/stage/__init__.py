"""A training job on one machine that does not exist: what a node shows of it, for real agents to read."""
