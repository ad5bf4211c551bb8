"""Waiting: every wait has an end, can be given up, and is told."""
