"""The Collector's operators on log entries: parse, move, join, route, drop."""
