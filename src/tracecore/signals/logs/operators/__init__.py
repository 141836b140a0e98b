"""What the Collector's operators do to log entries: parse, move, join, route, drop."""
