"""The `prometheus` receiver: scrapes targets, in the configuration of Prometheus, as the Collector has it."""

from tracecore.agent.receivers.prometheus.receiver import FACTORY

__all__ = ["FACTORY"]
