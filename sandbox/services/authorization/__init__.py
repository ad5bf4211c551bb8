"""Microsoft.Authorization and Microsoft.ManagedIdentity: who may do what."""
