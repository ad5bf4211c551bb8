"""Microsoft.Resources: resource groups, generic resources, deployments, providers, the subscription."""
