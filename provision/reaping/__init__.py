"""Layer four: looks at every machine of ours in a subscription, and ends what should have ended."""
