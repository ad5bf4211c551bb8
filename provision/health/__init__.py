"""Checks of a subscription and its machines. All functions are pure: callers collect the data."""
