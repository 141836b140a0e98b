"""Small things that must survive the process: positions in files, queues of what is not sent yet."""
