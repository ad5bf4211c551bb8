"""Layer four: check all our machines in a subscription, and stop those that should be off."""
