"""A password for an Azure Container Registry, from the metadata service of a VM: which host, and which errors."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gpuinfra.remote import registry_login
from gpuinfra.remote.registry_login import AUDIENCE, answer_login, azure_registry
from gpuinfra.remote.wire import HEADER, Wire

PRINCIPAL = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    "host", ["contoso.azurecr.io", "CONTOSO.azurecr.io", "my-registry-h5d3a.azurecr.io", "a1.azurecr.io"]
)
def test_azure_registry_is_recognised(host: str) -> None:
    assert azure_registry(host) == host.lower()


@pytest.mark.parametrize(
    "host",
    [
        "contoso.azurecr.io.evil.example",
        "contoso.azurecr.io.",
        "contoso.azurecr.io\n",
        "contoso.azurecr.io:443",
        "contoso.azurecr.io@evil.example",
        "contoso.azurecr.io/x",
        "evil.example/contoso.azurecr.io",
        "a.b.azurecr.io",
        "contosoazurecr.io",
        "contoso-azurecr.io",
        "contoso.azurecr.iо",  # noqa: RUF001 a Cyrillic letter
        "\u212aontoso.azurecr.io",
        "-contoso.azurecr.io",
        ".azurecr.io",
        "azurecr.io",
        "",
        "docker.io",
        "localhost:5000",
        "contoso.azurecr.cn",
        f"{'a' * 64}.azurecr.io",
    ],
)
def test_other_hosts_are_not_azure_registries(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert azure_registry(host) is None
    monkeypatch.setattr(registry_login, "_identity_token", lambda: pytest.fail("asked for a token"))
    assert ask(host)["problem"] == "failed"


def ask(host: str) -> dict[str, Any]:
    """Return the answer of the machine's code."""
    written = io.BytesIO()
    answer_login(Wire(io.BytesIO(), written), {"registry": host})
    found: dict[str, Any] = json.loads(written.getvalue()[HEADER.size :])
    return found


class Metadata(BaseHTTPRequestHandler):
    """A metadata service with the next answer."""

    status, content = 200, b""
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Metadata"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, format: str, *words: object) -> None:  # noqa: A002 the name in the base class
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    handler = type("Handler", (Metadata,), {"asked": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("GPUINFRA_IMDS_ENDPOINT", f"http://127.0.0.1:{server.server_port}/metadata")
        # A proxy must not be used for the metadata service.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        yield handler
        server.shutdown()
        thread.join()


def token() -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"oid": PRINCIPAL}).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.signature"


def test_token_is_requested_for_registries_only(metadata: type[Metadata], monkeypatch: pytest.MonkeyPatch) -> None:
    metadata.content = json.dumps({"access_token": token()}).encode()
    seen: list[tuple[str, str]] = []

    def exchange(*words: str) -> str:
        seen.append((words[0], words[1]))
        return "password"

    monkeypatch.setattr(registry_login, "_exchange", exchange)
    assert ask("Contoso.azurecr.io") == {"password": "password", "principal": PRINCIPAL}
    assert seen == [("contoso.azurecr.io", token())]
    assert AUDIENCE == "https://containerregistry.azure.net"
    assert metadata.asked == [
        (
            "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fcontainerregistry.azure.net",
            "true",
        )
    ]


@pytest.mark.parametrize(
    ("status", "description", "problem"),
    [
        (400, "Identity not found", "no-identity"),
        (400, "Multiple user assigned identities exist, please specify the clientId", "no-identity"),
        (400, "AADSTS500011: The resource principal was not found", "failed"),
        (404, "", "no-metadata"),
        (429, "", "failed"),
        (200, "no token", "failed"),
    ],
)
def test_error_of_the_metadata_service_is_named(
    metadata: type[Metadata], status: int, description: str, problem: str
) -> None:
    metadata.status, metadata.content = status, json.dumps({"error_description": description}).encode()
    found = ask("contoso.azurecr.io")
    assert (found["problem"], description in found["detail"]) == (problem, True)


def test_machine_outside_of_azure_has_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUINFRA_IMDS_ENDPOINT", "http://127.0.0.1:1/metadata")
    assert ask("contoso.azurecr.io")["problem"] == "no-metadata"


def test_unreachable_registry_is_named_with_the_identity(
    metadata: type[Metadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.content = json.dumps({"access_token": token()}).encode()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    found = ask("contoso.azurecr.io")
    assert (found["problem"], found["principal"]) == ("unreachable", PRINCIPAL)
    assert "signature" not in str(found)


@pytest.mark.parametrize(
    "text", ["", "a.b", "e30.e30.x", "e30.%%%.x", "e30.eyJvaWQiOiAxfQ.x", "e30.eyJvaWQiOiAieDsgcm0ifQ.x"]
)
def test_token_without_a_readable_principal_has_none(text: str) -> None:
    assert registry_login._principal(text) == ""
    assert registry_login._principal(token()) == PRINCIPAL
