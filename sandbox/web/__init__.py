"""HTTP: ARM requests, tokens, throttling, control endpoints, instance metadata."""
