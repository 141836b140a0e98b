"""Kafka for the agent and for `tracecore detect`: connection options, and the partitions that a fact goes to."""
