"""What this workspace remembers of machines: when they were switched on, when they ended, and at what price."""
