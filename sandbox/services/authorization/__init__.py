"""Microsoft.Authorization and Microsoft.ManagedIdentity: roles, role assignments, managed identities."""
