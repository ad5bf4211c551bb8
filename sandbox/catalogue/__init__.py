"""What the embedded Azure offers: regions, sizes, prices and quota limits. Data, no HTTP."""
