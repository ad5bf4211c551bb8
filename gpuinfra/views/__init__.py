"""The only printers: data to stdout, messages to stderr, JSON or for people."""
