"""Microsoft.Authorization and Microsoft.ManagedIdentity: roles, role assignments, locks, managed identities."""
