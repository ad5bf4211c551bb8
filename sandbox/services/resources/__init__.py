"""Microsoft.Resources: groups, resources of any kind, deployments, providers, the subscription."""
