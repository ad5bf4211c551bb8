"""The administrator's public key."""

import os
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.provision.login import read_public_key
from tests.unit.provision_help import KEY

RSA = f"ssh-rsa AAAAB3NzaC1yc2E{'a' * 357} me@here"


def problem(text: str, folder: Path) -> str:
    with pytest.raises(Problem) as caught:
        read_public_key(text, folder)
    (found,) = caught.value.diagnostics
    assert found.code is Code.NO_PUBLIC_KEY
    assert "ssh-keygen -t ed25519 -f" in (found.help or "")
    return found.note or ""


def test_key_text_is_returned() -> None:
    assert read_public_key(KEY, Path("/nowhere")) == KEY


@pytest.mark.parametrize("content", [KEY, f"{KEY}\n", f"{KEY}\r\n", RSA, KEY.rsplit(" ", 1)[0]])
def test_path_is_relative_to_the_project(content: str, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "mine.pub").write_bytes(content.encode())
    assert read_public_key("keys/mine.pub", tmp_path) == content.strip()
    assert read_public_key(str(tmp_path / "keys" / "mine.pub"), Path("/nowhere")) == content.strip()


def test_path_may_begin_with_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "id_ed25519.pub").write_text(KEY)
    assert read_public_key("~/id_ed25519.pub", Path("/nowhere")) == KEY


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert problem("mine.pub", tmp_path) == f"`{tmp_path / 'mine.pub'}`: No such file or directory"


@pytest.mark.parametrize(
    "content",
    [b"", b"ssh-ed25519 AAAA cut off", f"{KEY}\n{KEY}\n".encode(), b"-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n"],
)
def test_file_without_a_public_key_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.pub").write_bytes(content)
    note = problem("mine.pub", tmp_path)
    assert note == f"`{tmp_path / 'mine.pub'}` does not hold one Ed25519 or RSA public key"
    assert "secret" not in note


def test_binary_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.pub").write_bytes(b"\xff\xfe")
    assert problem("mine.pub", tmp_path).endswith("not text")


def test_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mine.pub").mkdir()
    assert problem("mine.pub", tmp_path).endswith("Is a directory")


def test_unknown_home_is_reported(tmp_path: Path) -> None:
    problem("~unknown-user/mine.pub", tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_file_without_end_is_reported(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.pub"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as content:
            content.truncate(5 << 30)
    expected = "larger than a public key" if kind == "huge" else "not a plain file"
    assert problem("mine.pub", tmp_path) == f"`{file}`: {expected}"
