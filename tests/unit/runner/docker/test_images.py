"""Images, from what engines report about them."""

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.runner.docker.images import ImageFacts, Layers, facts_of
from gpuinfra.runner.docker.registry_login import HEADER, log_in


def event(status: str, layer: str = "a1", **detail: int) -> dict[str, Any]:
    return {"id": layer, "status": status, "progressDetail": detail}


def test_progress_is_the_sum_of_all_layers() -> None:
    layers = Layers()
    layers.add({"status": "Pulling from library/busybox", "id": "latest"})
    layers.add(event("Pulling fs layer"))
    layers.add(event("Downloading", current=10, total=100))
    layers.add(event("Downloading", "b2", current=5, total=50))
    assert (layers.done, layers.total) == (15, 150)
    layers.add(event("Download complete"))
    assert (layers.done, layers.total) == (105, 150)


def test_downloaded_layer_stays_complete() -> None:
    layers = Layers()
    layers.add(event("Downloading", current=10, total=100))
    layers.add(event("Download complete"))
    layers.add(event("Extracting", current=1, total=100))
    layers.add(event("Pull complete"))
    assert (layers.done, layers.total) == (100, 100)


def test_existing_layer_does_not_count() -> None:
    layers = Layers()
    layers.add(event("Already exists"))
    assert (layers.done, layers.total) == (0, None)


def test_layer_of_unknown_size_counts_its_downloaded_bytes() -> None:
    layers = Layers()
    layers.add(event("Downloading", current=10, total=-1))
    assert (layers.done, layers.total) == (10, 10)


def test_facts_of_an_image() -> None:
    found = {
        "Id": "sha256:ab",
        "Os": "linux",
        "Architecture": "amd64",
        "Config": {"Env": ["PATH=/bin", "EMPTY=", "A=b=c"]},
    }
    environment = {"PATH": "/bin", "EMPTY": "", "A": "b=c"}
    assert facts_of("busybox", found) == ImageFacts("busybox", "sha256:ab", "linux/amd64", environment)


def test_image_without_settings_has_no_variables() -> None:
    facts = facts_of(
        "plain", {"Id": "sha256:ab", "RepoDigests": None, "Os": "linux", "Architecture": "arm64", "Config": None}
    )
    assert facts == ImageFacts("plain", "sha256:ab", "linux/arm64", {})


class FakeEngine:
    """An engine that gets credentials, with a user's Docker settings."""

    shares_credentials, where, machine_login = True, "my_dsvm", None

    def __init__(self, **settings: Any) -> None:
        from docker import auth  # type: ignore[import-untyped]

        self.api = SimpleNamespace(_auth_configs=auth.AuthConfig(settings), credstore_env=None)


def credentials_for(engine: Any, repository: str) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    progress: Any = SimpleNamespace(note=notes.append)
    header = log_in(engine, repository, progress).headers.get(HEADER, "e30=")
    return json.loads(base64.urlsafe_b64decode(header)), notes


def test_only_the_credentials_for_the_registry_are_sent() -> None:
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
