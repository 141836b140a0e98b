"""Messages of other systems, taken by webhook, as facts."""
