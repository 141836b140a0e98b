"""A directory of whatever was left behind: finding its files, recognising them, reading them in place."""
