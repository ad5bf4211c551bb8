"""A minimal image registry to pull from. It is a separate program, because engines have their own networks."""

import base64
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOL, FOREIGN = "lab/tool:1", "foreign/tool:1"
USER, PASSWORD = "alice", "hunter2"
LAYER_SIZE = 3_000_000


def image(architecture: str) -> dict[str, bytes]:
    """Return blobs by digest and the manifest by tag, for an image with one incompressible file."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        description = tarfile.TarInfo(f"file-{architecture}")
        description.size = LAYER_SIZE
        archive.addfile(description, io.BytesIO(os.urandom(LAYER_SIZE)))
    layer = gzip.compress(plain.getvalue(), 1)
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": ["PATH=/tools"], "Entrypoint": ["/entry"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(plain.getvalue())]},
        }
    ).encode()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    described = [
        {"mediaType": f"application/vnd.docker.{name}", "size": len(blob), "digest": digest(blob)}
        for name, blob in (("container.image.v1+json", config), ("image.rootfs.diff.tar.gzip", layer))
    ]
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": described[0], "layers": described[1:]}
    text = json.dumps(manifest).encode()
    return {digest(config): config, digest(layer): layer, "1": text, digest(text): text}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


IMAGES = {TOOL[:-2]: image("amd64"), FOREIGN[:-2]: image("s390x")}
IS_PRIVATE = "private" in sys.argv
ALLOWED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class Handler(BaseHTTPRequestHandler):
    """The read requests of the distribution protocol."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        _, _, rest = self.path.partition("/v2/")
        name, _, last = rest.rpartition("/")
        name, _, kind = name.rpartition("/")
        if IS_PRIVATE and self.headers.get("Authorization") != ALLOWED:
            error = json.dumps({"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}).encode()
            self.answer(401, error, **{"WWW-Authenticate": 'Basic realm="test"'})
        elif not rest:
            self.answer(200, b"{}")
        elif (content := IMAGES.get(name, {}).get(last)) is None:
            code = "MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN"
            self.answer(404, json.dumps({"errors": [{"code": code, "message": "manifest unknown"}]}).encode())
        else:
            types = {"manifests": "application/vnd.docker.distribution.manifest.v2+json"}
            extra = {
                "Content-Type": types.get(kind, "application/octet-stream"),
                "Docker-Content-Digest": digest(content),
            }
            self.answer(200, content, **extra)

    do_HEAD = do_GET  # noqa: N815 the name in the base class

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Docker-Distribution-Api-Version": "registry/2.0", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:  # noqa: A002 the name in the base class
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)  # noqa: T201 the parent process reads it
        server.serve_forever()
