"""The kernel's log in all the shapes it is saved in."""
