"""Azure by its own SDK. No other folder imports `azure.*`."""
