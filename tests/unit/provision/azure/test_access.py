"""Endpoint, credentials and subscription."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.provision.azure.access import (
    PUBLIC_ARM,
    PUBLIC_PRICES,
    Access,
    ClientSecret,
    find_subscription,
    from_environment,
)

OF_ENVIRONMENT, OF_SPEC, OF_AZ = "environment", "spec", "az"
ONE = {"AZURE_SUBSCRIPTION_ID": OF_ENVIRONMENT}


@pytest.fixture
def az(tmp_path: Path) -> dict[str, str]:
    """Write the profile of `az`, as `az` writes it: with a byte-order mark."""
    subscriptions = [{"id": "other", "isDefault": False}, {"id": OF_AZ, "isDefault": True}]
    profile = json.dumps({"installationId": "x", "subscriptions": subscriptions})
    (tmp_path / "azureProfile.json").write_text(profile, "utf-8-sig")
    return {"AZURE_CONFIG_DIR": str(tmp_path)}


def problem(environment: dict[str, str], spec: str | None = None) -> Code:
    with pytest.raises(Problem) as caught:
        from_environment(environment, spec)
    return caught.value.diagnostics[0].code


# The subscription


def test_subscription_is_taken_from_spec_then_environment_then_az(az: dict[str, str]) -> None:
    assert find_subscription({**ONE, **az}, OF_SPEC) == OF_SPEC
    assert find_subscription({**ONE, **az}, None) == OF_ENVIRONMENT
    assert find_subscription(az, OF_SPEC) == OF_SPEC
    assert find_subscription(az, None) == OF_AZ
    assert find_subscription({**az, "AZURE_SUBSCRIPTION_ID": ""}, None) == OF_AZ


def test_subscription_of_az_is_read_from_the_home_folder(az: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".azure").mkdir(parents=True)
    (home / ".azure" / "azureProfile.json").write_bytes((tmp_path / "azureProfile.json").read_bytes())
    assert find_subscription({"HOME": str(home)}, None) == OF_AZ


@pytest.mark.parametrize(
    "profile",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        '{"subscriptions": []}',
        '{"subscriptions": [{"isDefault": false, "id": "x"}]}',
        "\xff",
    ],
)
def test_az_without_a_default_subscription_is_an_error(profile: str | None, tmp_path: Path) -> None:
    if profile is not None:
        (tmp_path / "azureProfile.json").write_text(profile, "latin-1")
    assert problem({"AZURE_CONFIG_DIR": str(tmp_path)}) is Code.NO_SUBSCRIPTION


# The cloud


def access(**environment: str) -> Access:
    return from_environment({**ONE, **environment})


def test_defaults_are_those_of_public_azure() -> None:
    assert access() == Access(OF_ENVIRONMENT)
    assert access() == Access(
        subscription=OF_ENVIRONMENT,
        arm="https://management.azure.com",
        authority=None,
        ca=None,
        scope="https://management.azure.com/.default",
        prices=PUBLIC_PRICES,
        client_secret=None,
        ssh_port=22,
        simulated=False,
    )


GOVERNMENT, CHINA = "https://management.usgovcloudapi.net", "https://management.chinacloudapi.cn"


@pytest.mark.parametrize(
    ("authority", "arm"),
    [
        ("https://login.microsoftonline.com", PUBLIC_ARM),
        ("https://login.microsoftonline.us", GOVERNMENT),
        ("https://login.microsoftonline.us/", GOVERNMENT),
        ("login.microsoftonline.us", GOVERNMENT),
        ("https://LOGIN.chinacloudapi.cn", CHINA),
        ("https://login.partner.microsoftonline.cn/", CHINA),
    ],
)
def test_sovereign_authority_has_its_endpoint_and_scope(authority: str, arm: str) -> None:
    found = access(AZURE_AUTHORITY_HOST=authority)
    assert (found.arm, found.scope, found.authority) == (arm, f"{arm}/.default", authority)
    assert found.prices == (PUBLIC_PRICES if arm == PUBLIC_ARM else None)
    assert not found.simulated


@pytest.mark.parametrize("authority", ["login.microsoftonline.us/", "LOGIN.microsoftonline.us"])
def test_authority_without_a_scheme_is_read_like_the_sdk(authority: str) -> None:
    assert access(AZURE_AUTHORITY_HOST=authority).arm == GOVERNMENT


def test_custom_endpoint_is_used() -> None:
    found = access(GPUINFRA_ARM_ENDPOINT="https://arm.example.com/", AZURE_AUTHORITY_HOST="https://login.example.com")
    assert (found.arm, found.authority) == ("https://arm.example.com", "https://login.example.com")
    assert found.prices == "https://arm.example.com/api/retail/prices"
    assert found.scope == f"{PUBLIC_ARM}/.default"
    assert not found.simulated
    assert access(GPUINFRA_ARM_ENDPOINT="https://arm.example.com").prices is None
    assert access(GPUINFRA_PRICES_ENDPOINT="https://prices.example.com").prices == "https://prices.example.com"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_local_endpoint_is_simulated(host: str) -> None:
    assert access(GPUINFRA_ARM_ENDPOINT=f"https://{host}:8443").simulated


@pytest.mark.parametrize("endpoint", ["http://localhost:8443", "localhost", "https://", "ftp://management.azure.com"])
def test_endpoint_must_be_https(endpoint: str) -> None:
    assert problem({**ONE, "GPUINFRA_ARM_ENDPOINT": endpoint}) is Code.BAD_ENDPOINT


def test_malformed_endpoint_is_refused() -> None:
    assert problem({**ONE, "GPUINFRA_ARM_ENDPOINT": "https://[::1"}) is Code.BAD_ENDPOINT


def test_ssh_port_is_read() -> None:
    assert access(GPUINFRA_SSH_PORT="2222").ssh_port == 2222
    assert access(GPUINFRA_SSH_PORT="").ssh_port == 22


@pytest.mark.parametrize("port", ["0", "65536", "-1", "ssh", "22 ", "2.2"])
def test_invalid_ssh_port_is_refused(port: str) -> None:
    assert problem({**ONE, "GPUINFRA_SSH_PORT": port}) is Code.BAD_ENDPOINT


def test_ssh_port_of_non_ascii_digits_is_refused() -> None:
    assert problem({**ONE, "GPUINFRA_SSH_PORT": "2²"}) is Code.BAD_ENDPOINT


def test_secret_is_not_in_the_repr() -> None:
    found: Any = Access("s", client_secret=ClientSecret("tenant", "client", "hidden"))
    assert "hidden" not in repr(found)
