"""The server as a process: started, found, asked and stopped by others."""
