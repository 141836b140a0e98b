"""Extensions: services that components share."""
