"""Who asks Azure: the environment, a workload identity, `az login`, then the managed identity of this computer.

azure-identity's DefaultAzureCredential asks the managed identity before `az`. On an Azure machine with an identity,
such as our own, that would ignore the user's login.
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
from gpuinfra.models.subscriptions import SUBSCRIPTION
from gpuinfra.provision.azure.transport import CONNECT_SECONDS, READ_SECONDS

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential, TokenProvider

    from gpuinfra.provision.azure.access import Access

CHOICE = "AZURE_TOKEN_CREDENTIALS"
# Seconds; `az` is a large program, and its first start on a busy computer is slow.
AZ_SECONDS = 30


class SubscriptionCliCredential(AzureCliCredential):
    """`az`, for one subscription. Where `az` does not know the subscription, the next credential is tried."""

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
    """Return the credential for all calls. Nothing is asked for yet."""
    options: dict[str, Any] = {"connection_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
    if access.authority:
        # An authority of its own is unknown to Microsoft's directory of authorities.
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
