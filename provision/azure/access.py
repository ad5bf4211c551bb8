"""Find Azure's endpoints, the subscription and the login: from the environment, the spec, and `az`."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpuinfra.diagnostics import Code, Diagnostic, Problem, problem

PUBLIC_ARM = "https://management.azure.com"
PUBLIC_PRICES = "https://prices.azure.com/api/retail/prices"
# The authorities of Azure's clouds: https://learn.microsoft.com/azure/developer/identity/azure-identity
ARM_BY_AUTHORITY = {
    "login.microsoftonline.com": PUBLIC_ARM,
    "login.microsoftonline.us": "https://management.usgovcloudapi.net",
    "login.chinacloudapi.cn": "https://management.chinacloudapi.cn",
    "login.partner.microsoftonline.cn": "https://management.chinacloudapi.cn",
}

SUBSCRIPTION_VARIABLE = "AZURE_SUBSCRIPTION_ID"

# Azure never runs on this computer: a server at these hosts is a simulation and must be labelled as one.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class ClientSecret:
    """A service principal that the caller passes in."""

    tenant: str
    client_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Access:
    """Everything that the SDK clients need before the first call."""

    subscription: str
    arm: str = PUBLIC_ARM
    authority: str | None = None
    """The authority that issues tokens; None means Azure's default."""
    ca: str | None = None
    """A file with certificates to trust in addition to the usual ones."""
    scope: str = f"{PUBLIC_ARM}/.default"
    prices: str | None = PUBLIC_PRICES
    client_secret: ClientSecret | None = None
    """If None, search for credentials in the order described in `clients.py`."""
    ssh_port: int = 22
    simulated: bool = False


def from_environment(environment: Mapping[str, str], spec_subscription: str | None = None) -> Access:
    """Return the access that these environment variables and the spec define. Raise Problem if they are invalid."""
    authority = environment.get("AZURE_AUTHORITY_HOST") or None
    own = ARM_BY_AUTHORITY.get(_host(authority or "login.microsoftonline.com"))
    arm = (environment.get("GPUINFRA_ARM_ENDPOINT") or own or PUBLIC_ARM).rstrip("/")
    _check_endpoint(arm)
    is_public = arm == PUBLIC_ARM
    prices = environment.get("GPUINFRA_PRICES_ENDPOINT") or (PUBLIC_PRICES if is_public else None)
    if prices is None and own is None:
        prices = f"{arm}/api/retail/prices"  # a custom endpoint serves its own prices, or none
    return Access(
        subscription=find_subscription(environment, spec_subscription),
        arm=arm,
        authority=authority,
        scope=f"{own or PUBLIC_ARM}/.default",
        prices=prices,
        ssh_port=_port(environment.get("GPUINFRA_SSH_PORT") or "22"),
        simulated=_host(arm) in LOOPBACK,
    )


def is_local(environment: Mapping[str, str]) -> bool:
    """Return whether the variables name an Azure on this computer, like those that `gpuinfra sandbox env` prints."""
    return _host(environment.get("GPUINFRA_ARM_ENDPOINT") or "") in LOOPBACK


def find_subscription(environment: Mapping[str, str], spec_subscription: str | None) -> str:
    """Return the spec's subscription, else AZURE_SUBSCRIPTION_ID, else `az`'s default. Raise Problem without any."""
    found = spec_subscription or environment.get(SUBSCRIPTION_VARIABLE) or _chosen_by_az(environment)
    if found:
        return found
    raise Problem(
        Diagnostic(
            Code.NO_SUBSCRIPTION,
            "no subscription",
            note="AZURE_SUBSCRIPTION_ID is not set, the spec names none, and `az` has chosen none",
            help="`az login`, or set AZURE_SUBSCRIPTION_ID; to try it without an account, add `--sandbox`",
        )
    )


def check_subscription(environment: Mapping[str, str], spec_subscription: str | None) -> None:
    """Raise Problem if the environment selects another subscription than the spec: either may be a mistake."""
    selected = environment.get(SUBSCRIPTION_VARIABLE)
    if selected and spec_subscription and selected.casefold() != spec_subscription.casefold():
        raise problem(
            Code.OTHER_SUBSCRIPTION,
            "two subscriptions are selected",
            f"the spec says `subscription: {spec_subscription}`, and {SUBSCRIPTION_VARIABLE} is `{selected}`",
            f"`unset {SUBSCRIPTION_VARIABLE}` to use the spec's, or change the spec",
        )


def _chosen_by_az(environment: Mapping[str, str]) -> str | None:
    home = environment.get("AZURE_CONFIG_DIR") or Path(environment.get("HOME") or Path.home()) / ".azure"
    try:
        # `az` writes a byte-order mark.
        profile = json.loads((Path(home) / "azureProfile.json").read_text("utf-8-sig"))
        return next((str(each["id"]) for each in profile["subscriptions"] if each.get("isDefault")), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _host(address: str) -> str:
    """Return the host of an address with or without a scheme, or an empty string for an invalid address."""
    try:
        return urlsplit(address if "//" in address else f"https://{address}").hostname or ""
    except ValueError:
        return ""


def _check_endpoint(arm: str) -> None:
    if not arm.lower().startswith("https://") or not _host(arm):
        raise Problem(
            Diagnostic(
                Code.BAD_ENDPOINT,
                "invalid ARM endpoint",
                note=f"GPUINFRA_ARM_ENDPOINT is `{arm}`; tokens are sent over https only",
                help=f"for example `{PUBLIC_ARM}`",
            )
        )


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise Problem(
        Diagnostic(Code.BAD_ENDPOINT, "invalid SSH port", note=f"GPUINFRA_SSH_PORT is `{text}`", help="for example 22")
    )


def current(spec_subscription: str | None = None) -> Access:
    """Return the access that this process's environment defines."""
    return from_environment(os.environ, spec_subscription)
