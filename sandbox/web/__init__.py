"""HTTP in front of the cloud: the gate, the authority, the control endpoints, instance metadata."""
