"""Waits: each has a deadline, can be interrupted, and is reported."""
