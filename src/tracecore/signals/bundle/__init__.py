"""A bundle is a directory of the files that a failed run left behind: find, recognise and read them in place."""
