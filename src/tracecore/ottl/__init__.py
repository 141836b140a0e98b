"""The OpenTelemetry Transformation Language, compiled to Python closures."""
