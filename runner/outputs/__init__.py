"""What is left of a run: its outputs, its record, the history of all."""
