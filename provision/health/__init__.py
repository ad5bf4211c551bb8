"""What is wrong, or will be, with a subscription and the machines in it. All pure: others ask, these judge."""
