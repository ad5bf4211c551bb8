"""A machine that takes commands: how it is reached, known and asked."""
