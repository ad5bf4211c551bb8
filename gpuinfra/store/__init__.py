"""What a workspace records in its `.gpuinfra` folder: the ledger of machines and the history of runs."""
