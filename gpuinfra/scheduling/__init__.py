"""Files for cron, systemd, GitHub Actions and Azure Pipelines that run `gpuinfra reap`."""
