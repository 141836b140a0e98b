"""Names of OTLP's services."""

from __future__ import annotations

from typing import Final

#: The gRPC method of each signal.
METHODS: Final = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
