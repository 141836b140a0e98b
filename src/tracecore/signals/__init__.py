"""Reading the outside world: logs, kernel, Kubernetes, metrics, Flight Recorder dumps, OTLP."""
