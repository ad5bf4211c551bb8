"""From a Spec to a machine in Azure, and back to nothing. Never imports `runner`: `Target` is the hand-off."""
