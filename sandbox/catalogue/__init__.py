"""What the embedded Azure offers: regions, sizes, prices, quotas, images. Data and pure functions, no HTTP."""
