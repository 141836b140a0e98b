"""What components share."""
