"""Which login is used where several are possible: the environment, `az`, then the managed identity of this computer."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User

PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
RIGHT_TENANT = "22222222-2222-2222-2222-222222222222"
# Nothing answers there, and the connection fails at once, as on a computer outside Azure.
NO_METADATA = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:1"}


class ManagedIdentity:
    """An endpoint on loopback that issues tokens, like the instance metadata of Azure VMs."""

    def __init__(self, token: str) -> None:
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                expires = str(int(time.time()) + 3600)
                answer = {"access_token": token, "expires_on": expires, "resource": "x", "token_type": "Bearer"}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def variables(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}/token", "IDENTITY_HEADER": "secret"}


@pytest.fixture
def identity(azure: Azure) -> Iterator[ManagedIdentity]:
    """An identity whose tokens work."""
    made = ManagedIdentity(azure.new_token())
    yield made
    made.server.shutdown()
    made.server.server_close()


class FakeAz:
    """A fake `az` in its own folder. It prints a token or fails, and records its arguments."""

    def __init__(self, folder: Path, token: str = "", refusal: str = "") -> None:
        folder.mkdir()
        self.folder, self._log = folder, folder / "log"
        answer = json.dumps({"accessToken": token, "expires_on": int(time.time()) + 3600})
        end = f"echo '{answer}'" if token else f"echo '{refusal}' >&2; exit 1"
        (folder / "az").write_text(f'#!/bin/sh\necho "$@" >> {self._log}\n{end}\n')
        (folder / "az").chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


def shell(azure: Azure, *folders: Path, **more: str) -> dict[str, Any]:
    """The variables of a shell that is set up for this Azure, without a service principal."""
    kept = {name: value for name, value in azure.environment().items() if name not in PRINCIPAL}
    return {**kept, **NO_METADATA, "sandbox": False, "PATH": ":".join([*map(str, folders), "/bin"]), **more}


def test_az_login_is_used_on_a_machine_with_a_managed_identity(
    user: User, azure: Azure, identity: ManagedIdentity, tmp_path: Path
) -> None:
    az = FakeAz(tmp_path / "az", token=azure.new_token())
    user.does("status", **shell(azure, az.folder, **identity.variables))
    assert identity.asked == 0
    assert az.asked
    assert all(f"--subscription {azure.environment()['AZURE_SUBSCRIPTION_ID']}" in line for line in az.asked)


@pytest.mark.parametrize(
    "refusal",
    [
        "Please run 'az login' to setup account.",
        "ERROR: Subscription '00000000' not found. Check the spelling and casing and try again.",
    ],
    ids=["not logged in", "subscription unknown to az"],
)
def test_managed_identity_is_used_where_az_has_no_token(
    user: User, azure: Azure, identity: ManagedIdentity, tmp_path: Path, refusal: str
) -> None:
    az = FakeAz(tmp_path / "az", refusal=refusal.replace("'", ""))
    user.does("status", **shell(azure, az.folder, **identity.variables))
    assert az.asked
    assert identity.asked


def test_service_principal_in_the_environment_takes_precedence(
    user: User, azure: Azure, identity: ManagedIdentity, tmp_path: Path
) -> None:
    az = FakeAz(tmp_path / "az", token="not a token")
    principal = {name: azure.environment()[name] for name in PRINCIPAL}
    user.does("status", **shell(azure, az.folder, **identity.variables, **principal))
    assert (az.asked, identity.asked) == ([], 0)


def test_azure_token_credentials_decides_where_it_is_set(
    user: User, azure: Azure, identity: ManagedIdentity, tmp_path: Path
) -> None:
    az = FakeAz(tmp_path / "az", token="not a token")
    variables = shell(azure, az.folder, **identity.variables)
    user.does("status", **variables, AZURE_TOKEN_CREDENTIALS="ManagedIdentityCredential")
    assert az.asked == []
    assert identity.asked
    before = identity.asked
    user.fails("status", code="login-failed", **variables, AZURE_TOKEN_CREDENTIALS="AzureCliCredential")
    assert identity.asked == before
    assert "--subscription" in az.asked[0]


def test_invalid_azure_token_credentials_is_reported(user: User, azure: Azure) -> None:
    problem = user.fails("status", code="login-failed", **shell(azure), AZURE_TOKEN_CREDENTIALS="az")
    assert "AZURE_TOKEN_CREDENTIALS" in problem["note"]


def test_az_that_does_not_know_the_subscription_is_named(user: User, azure: Azure, tmp_path: Path) -> None:
    az = FakeAz(
        tmp_path / "az", refusal="ERROR: Subscription x not found. Check the spelling and casing and try again."
    )
    problem = user.fails("status", code="login-failed", **shell(azure, az.folder))
    assert "Subscription x not found" in problem["note"]


def test_tenant_mismatch_is_reported_with_the_tenant_to_log_in_to(user: User, azure: Azure, tmp_path: Path) -> None:
    az = FakeAz(tmp_path / "az", token=azure.new_token())
    azure.fault("InvalidAuthenticationTokenTenant", count=0)
    problem = user.fails("status", code="login-failed", **shell(azure, az.folder))
    assert problem["summary"] == "logged in to another tenant"
    assert f"az login --tenant {RIGHT_TENANT}" in problem["help"]
    assert "AZURE_TENANT_ID" in problem["help"]
