"""Images, by what engines say about them."""

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.runner.docker.images import ImageFacts, Layers, _credentials, facts_of


def event(status: str, layer: str = "a1", **detail: int) -> dict[str, Any]:
    return {"id": layer, "status": status, "progressDetail": detail}


def test_layers_add_up() -> None:
    layers = Layers()
    layers.hear({"status": "Pulling from library/busybox", "id": "latest"})
    layers.hear(event("Pulling fs layer"))
    layers.hear(event("Downloading", current=10, total=100))
    layers.hear(event("Downloading", "b2", current=5, total=50))
    assert (layers.done, layers.total) == (15, 150)
    layers.hear(event("Download complete"))
    assert (layers.done, layers.total) == (105, 150)


def test_what_was_done_once_stays_done() -> None:
    layers = Layers()
    layers.hear(event("Downloading", current=10, total=100))
    layers.hear(event("Download complete"))
    layers.hear(event("Extracting", current=1, total=100))
    layers.hear(event("Pull complete"))
    assert (layers.done, layers.total) == (100, 100)


def test_a_layer_that_was_there_before_counts_for_nothing() -> None:
    layers = Layers()
    layers.hear(event("Already exists"))
    assert (layers.done, layers.total) == (0, None)


def test_a_layer_of_unknown_size_is_counted_as_far_as_it_is_there() -> None:
    layers = Layers()
    layers.hear(event("Downloading", current=10, total=-1))
    assert (layers.done, layers.total) == (10, 10)


def test_facts_are_those_that_jobs_need() -> None:
    found = {
        "Id": "sha256:ab",
        "RepoDigests": ["busybox@sha256:cd"],
        "Size": 7,
        "Os": "linux",
        "Architecture": "amd64",
        "Config": {"Entrypoint": ["/entry.sh"], "Env": ["PATH=/bin", "EMPTY=", "A=b=c"]},
    }
    environment = {"PATH": "/bin", "EMPTY": "", "A": "b=c"}
    expected = ImageFacts("busybox", "sha256:ab", ("busybox@sha256:cd",), 7, "linux/amd64", ("/entry.sh",), environment)
    assert facts_of("busybox", found) == expected


def test_an_image_of_nothing_but_files_has_no_settings() -> None:
    facts = facts_of(
        "plain", {"Id": "sha256:ab", "RepoDigests": None, "Os": "linux", "Architecture": "arm64", "Config": None}
    )
    assert facts == ImageFacts("plain", "sha256:ab", (), 0, "linux/arm64", (), {})


class FakeEngine:
    """An engine that may have credentials, with the Docker settings of a user."""

    shares_credentials, where = True, "my_dsvm"

    def __init__(self, **settings: Any) -> None:
        from docker import auth  # type: ignore[import-untyped]

        self.api = SimpleNamespace(_auth_configs=auth.AuthConfig(settings), credstore_env=None)


def credentials_for(engine: Any, repository: str) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    header = _credentials(engine, repository, progress).get("X-Registry-Auth", "e30=")
    return json.loads(base64.urlsafe_b64decode(header)), notes


def test_only_the_credentials_of_the_image_are_sent() -> None:
    login = {"username": "me", "password": "of one"}
    engine = FakeEngine(auths={"one.example": login, "two.example": {"username": "me", "password": "of two"}})
    assert credentials_for(engine, "one.example/tool") == (login, [])
    assert credentials_for(engine, "three.example/tool") == ({}, [])
    assert credentials_for(engine, "busybox") == ({}, [])


def test_answer_of_a_broken_credential_helper_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-broken"
    helper.write_text("#!/bin/sh\necho no JSON\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    sent, notes = credentials_for(FakeEngine(credsStore="broken"), "one.example/tool")
    assert sent == {}
    assert "one.example cannot be read, so none are sent" in notes[0]
