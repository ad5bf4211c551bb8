"""Use cases: values in, values and events out. No printing, no prompts; the Python API and the CLI call it."""
