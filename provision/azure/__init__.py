"""The Azure adapter, based on the Azure SDK. No other folder imports `azure.*`."""
