"""A stand-in for Azure Container Registry and for the metadata service of a VM, as a program.

A proxy leads every host to one HTTPS server, which serves the registries by name: `contoso.azurecr.io` gives its image
to the machine's identity; `norole` refuses to exchange the identity's token; `nopull` refuses the pull; `moved`
redirects. The log has one line per request, which says whether it carries the identity's token.
"""

import base64
import contextlib
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from unittest import mock
from urllib.parse import parse_qs, urlsplit

from tests.engine import TIED
from tests.integration.runner import registry
from tests.lab import Lab
from tests.real import program

PRINCIPAL = "11111111-2222-4333-8444-555555555555"
USER = "00000000-0000-0000-0000-000000000000"
AUDIENCE = "https://containerregistry.azure.net"
REFRESH, ACCESS = "acr-refresh-token", "acr-access-token"
CONTOSO, NO_ROLE, NO_PULL, MOVED = (f"{name}.azurecr.io" for name in ("contoso", "norole", "nopull", "moved"))
LOOKALIKE = "contoso.azurecr.io.evil.example"
SIGNATURE = "not-a-signature"
"""The end of the identity's token."""
INNER_PORT = 3128
"""The proxy's port in the engine's network, which has no other programs."""


def identity_token(audience: str) -> str:
    payload = json.dumps({"aud": audience, "oid": PRINCIPAL}).encode()
    return f"e30.{base64.urlsafe_b64encode(payload).rstrip(b'=').decode()}.{SIGNATURE}"


def log(line: str) -> None:
    with Path(sys.argv[2]).open("a") as file:
        file.write(f"{line}\n")


class Registry(registry.Handler):
    """The requests of a registry's login, and those of the distribution protocol with its token."""

    @property
    def host(self) -> str:
        return str(self.headers["Host"])

    def do_POST(self) -> None:  # noqa: N802 the name in the base class
        content = self.rfile.read(int(self.headers["Content-Length"])).decode()
        log(f"POST {self.host} {self.path}{' identity-token' if SIGNATURE in content else ''}")
        form = {name: values[0] for name, values in parse_qs(content).items()}
        if self.host == MOVED:
            self.answer(302, b"", Location=f"https://{CONTOSO}{self.path}")
        elif self.host == NO_ROLE or form.get("access_token") != identity_token(AUDIENCE):
            self._refuse(401)
        elif (self.path, form["grant_type"], form["service"]) != ("/oauth2/exchange", "access_token", self.host):
            self._refuse(400)
        else:
            self.answer(200, json.dumps({"refresh_token": REFRESH}).encode())

    def do_GET(self) -> None:  # noqa: N802 the name in the base class
        place = urlsplit(self.path)
        log(f"GET {self.host} {place.path}")
        login = base64.b64encode(f"{USER}:{REFRESH}".encode()).decode()
        if place.path == "/oauth2/token":
            if self.headers["Authorization"] == f"Basic {login}" and self.host == CONTOSO:
                self.answer(200, json.dumps({"access_token": ACCESS}).encode())
            else:
                self._refuse(401)
        elif self.headers["Authorization"] == f"Bearer {ACCESS}":
            super().do_GET()
        else:
            where = f'realm="https://{self.host}/oauth2/token",service="{self.host}",scope="repository:lab/tool:pull"'
            self._refuse(401, **{"WWW-Authenticate": f"Bearer {where}"})

    do_HEAD = do_GET  # noqa: N815 the name in the base class

    def _refuse(self, status: int, **headers: str) -> None:
        error = {"code": "UNAUTHORIZED", "message": "authentication required"}
        self.answer(status, json.dumps({"errors": [error]}).encode(), **headers)


class Metadata(BaseHTTPRequestHandler):
    """The metadata service's requests for tokens."""

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        query = parse_qs(place.query)
        log(f"GET metadata {place.path}")
        is_right = self.headers["Metadata"] == "true" and place.path == "/metadata/identity/oauth2/token"
        content = json.dumps({"access_token": identity_token(query["resource"][0])}).encode() if is_right else b""
        self.send_response(200 if is_right and query["api-version"] else 400)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:  # noqa: A002 the name in the base class
        pass


class Proxy(StreamRequestHandler):
    """Leads every connection to the HTTPS server."""

    port = 0

    def handle(self) -> None:
        place = self.rfile.readline().decode().split()[1]
        while self.rfile.readline().strip():
            pass
        log(f"CONNECT {place}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as server:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            ends = {self.connection: server, server: self.connection}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    if not (data := ready.recv(1 << 16)):
                        return
                    ends[ready].sendall(data)


def main() -> None:
    """Serve until the process is killed. Arguments: the certificate, the log, the proxy's port. Print the ports."""
    server, metadata = ThreadingHTTPServer(("127.0.0.1", 0), Registry), ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Proxy.port = server.server_address[1]
    ThreadingTCPServer.daemon_threads = ThreadingTCPServer.allow_reuse_address = True
    with ThreadingTCPServer(("127.0.0.1", int(sys.argv[3])), Proxy) as proxy:
        for each in (server, metadata):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        print(proxy.server_address[1], metadata.server_address[1], flush=True)  # noqa: T201 the parent reads it
        proxy.serve_forever()


@dataclass(frozen=True)
class AzureRegistries:
    """The registries as the lab's machine reaches them."""

    log: Path

    @property
    def requests(self) -> list[str]:
        return self.log.read_text().splitlines()


@contextlib.contextmanager
def azure_registries(lab: Lab, folder: Path) -> Iterator[AzureRegistries]:
    """Let the lab's machine be a VM in Azure, with an identity, which reaches the registries through a proxy."""
    certificate, log_file = folder / "azure.pem", folder / "requests.log"
    names = ",".join(f"DNS:{name}" for name in (CONTOSO, NO_ROLE, NO_PULL, MOVED, LOOKALIKE))
    command = [program("openssl", "openssl"), *"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split()]
    command += ["-days", "2", "-subj", "/CN=azurecr.io", "-addext", f"subjectAltName={names}"]
    command += ["-keyout", str(certificate), "-out", str(folder / "cert")]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    with certificate.open("a") as file:
        file.write((folder / "cert").read_text())
    log_file.touch()
    inner = ["nsenter", f"--net={lab.engine.network}"]
    with _server([], certificate, log_file, 0) as ports, _server(inner, certificate, log_file, INNER_PORT):
        proxy, metadata = (f"http://127.0.0.1:{port}" for port in ports)
        trust = {"SSL_CERT_FILE": str(folder / "cert")}
        with mock.patch.dict(os.environ, {**trust, "HTTPS_PROXY": f"http://127.0.0.1:{INNER_PORT}"}):
            lab.engine.restart()
        before = lab.server.settings["SetEnv"]
        more = {**trust, "HTTPS_PROXY": proxy, "GPUINFRA_IMDS_ENDPOINT": f"{metadata}/metadata"}
        lab.server.settings["SetEnv"] = " ".join([before, *(f"{name}={value}" for name, value in more.items())])
        lab.server.stop()
        lab.server.start()
        try:
            yield AzureRegistries(log_file)
        finally:
            lab.server.settings["SetEnv"] = before
            lab.server.stop()
            lab.server.start()
            lab.engine.restart()


@contextlib.contextmanager
def _server(prefix: list[str], certificate: Path, log_file: Path, port: int) -> Iterator[list[str]]:
    command = [*TIED, *prefix, sys.executable, "-m", __name__, str(certificate), str(log_file), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()
        finally:
            process.kill()


if __name__ == "__main__":
    main()
