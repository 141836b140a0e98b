"""The `prometheus` receiver: scrapes targets, in the configuration of Prometheus, as the Collector has it."""
