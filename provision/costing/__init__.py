"""Compute what machines cost, from Azure's activity log, the ledger, and the current resources."""
