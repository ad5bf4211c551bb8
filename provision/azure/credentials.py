"""Choose the credential: environment, workload identity, `az login`, then the managed identity of this computer.

azure-identity's DefaultAzureCredential tries the managed identity before `az`. On an Azure VM with an identity, such as
ours, that would ignore the user's login.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ClientAuthenticationError
from azure.identity import (
    AzureCliCredential,
    ChainedTokenCredential,
    ClientSecretCredential,
    CredentialUnavailableError,
    DefaultAzureCredential,
    EnvironmentCredential,
    ManagedIdentityCredential,
    WorkloadIdentityCredential,
)

from gpuinfra.diagnostics import Code, Diagnostic, Problem
from gpuinfra.models.names import SUBSCRIPTION
from gpuinfra.provision.azure.transport import CONNECT_SECONDS, READ_SECONDS

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential, TokenProvider

    from gpuinfra.provision.azure.access import Access

CHOICE = "AZURE_TOKEN_CREDENTIALS"
# In seconds. `az` is a large program and starts slowly the first time on a busy computer.
AZ_SECONDS = 30


class SubscriptionCliCredential(AzureCliCredential):
    """The `az` login for one subscription. If `az` does not know the subscription, the next credential is tried."""

    def _get_token_base(self, *scopes: str, **options: Any) -> Any:
        try:
            return super()._get_token_base(*scopes, **options)
        except CredentialUnavailableError:
            raise
        except ClientAuthenticationError as error:
            if re.search(r"subscription .*not found", str(error), re.IGNORECASE):
                raise CredentialUnavailableError(message=error.message) from error
            raise


def make_credential(access: Access) -> TokenCredential:
    """Return the credential for all calls. This sends no request yet."""
    options: dict[str, Any] = {"connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
    if access.authority:
        # Microsoft's instance discovery does not know a custom authority.
        options |= {"authority": access.authority, "disable_instance_discovery": True}
    if access.ca:
        options["connection_verify"] = access.ca
    if given := access.client_secret:
        return ClientSecretCredential(given.tenant, given.client_id, given.secret, **options)
    choice = os.environ.get(CHOICE, "").strip().lower()
    if choice == "azureclicredential":
        return _az(access)
    return _chosen(options) if choice else ChainedTokenCredential(*_usual(access, options))


def _usual(access: Access, options: dict[str, Any]) -> list[TokenProvider]:
    found: list[TokenProvider] = [EnvironmentCredential(**options)]
    with suppress(ValueError):  # the variables of a workload identity are not set
        found.append(WorkloadIdentityCredential(**options))
    found.append(_az(access))
    identity = {
        name: value for name, value in options.items() if name not in {"authority", "disable_instance_discovery"}
    }
    found.append(ManagedIdentityCredential(client_id=os.environ.get("AZURE_CLIENT_ID"), **identity))
    return found


def _az(access: Access) -> AzureCliCredential:
    known = access.subscription if re.fullmatch(SUBSCRIPTION, access.subscription) else None
    return SubscriptionCliCredential(subscription=known, process_timeout=AZ_SECONDS)


def _chosen(options: dict[str, Any]) -> TokenCredential:
    try:
        return DefaultAzureCredential(**options)
    except ValueError as error:
        help_line = f"unset {CHOICE}, or set it to one of these"
        raise Problem(Diagnostic(Code.LOGIN_FAILED, "unknown credential", note=str(error), help=help_line)) from error
