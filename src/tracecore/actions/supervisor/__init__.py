"""Running a command so that nothing of it is lost: its output, its exit, its children."""
