"""What machines have cost: from Azure's activity log, from the ledger, and from what is there now."""
