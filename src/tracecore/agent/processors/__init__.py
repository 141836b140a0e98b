"""What happens to records on their way."""
