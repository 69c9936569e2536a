"""Searches on several devices and machines at once: the search stays here, each device judges in a process of its own."""
