"""Who runs `gpuinfra reap` when nobody does: cron, systemd, GitHub or Azure Pipelines."""
