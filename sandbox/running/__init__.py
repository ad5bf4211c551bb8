"""The server as a process: how others start, find, query and stop it."""
