"""Use cases, called by the Python API and the CLI: values in, values and events out. No printing, no prompts."""
