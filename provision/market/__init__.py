"""What Azure offers, the candidates for a machine, and the reasons against each."""
