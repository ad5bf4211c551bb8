"""The nouns, each a frozen value that prints as JSON."""
