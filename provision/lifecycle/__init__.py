"""When a machine goes off, and who sees to it."""
