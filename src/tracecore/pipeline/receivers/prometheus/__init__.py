"""The `prometheus` receiver: scrapes targets, in the configuration of Prometheus, as the Collector has it."""

from tracecore.pipeline.receivers.prometheus.receiver import FACTORY

__all__ = ["FACTORY"]
