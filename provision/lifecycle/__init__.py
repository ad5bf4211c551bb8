"""Decide when a machine is switched on and off, renew its lease, and define its role to deallocate itself."""
