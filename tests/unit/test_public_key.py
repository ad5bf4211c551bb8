"""The administrator's public key."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.provision.login.public_key import read_public_key
from tests.unit.provision_help import KEY

RSA = f"ssh-rsa AAAAB3NzaC1yc2E{'a' * 357} me@here"


def problem(text: str, folder: Path) -> str:
    with pytest.raises(Problem) as caught:
        read_public_key(text, folder)
    (found,) = caught.value.diagnostics
    assert found.code is Code.NO_PUBLIC_KEY
    assert "ssh-keygen -t ed25519 -f" in (found.help or "")
    return found.note or ""


def test_a_key_is_itself() -> None:
    assert read_public_key(KEY, Path("/nowhere")) == KEY


@pytest.mark.parametrize("content", [KEY, f"{KEY}\n", f"{KEY}\r\n", RSA, KEY.rsplit(" ", 1)[0]])
def test_a_path_is_from_the_projects_folder(content: str, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "mine.pub").write_bytes(content.encode())
    assert read_public_key("keys/mine.pub", tmp_path) == content.strip()
    assert read_public_key(str(tmp_path / "keys" / "mine.pub"), Path("/nowhere")) == content.strip()


def test_a_path_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "id_ed25519.pub").write_text(KEY)
    assert read_public_key("~/id_ed25519.pub", Path("/nowhere")) == KEY


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert problem("mine.pub", tmp_path) == f"`{tmp_path / 'mine.pub'}`: No such file or directory"


@pytest.mark.parametrize(
    "content",
    [b"", b"ssh-ed25519 AAAA cut off", f"{KEY}\n{KEY}\n".encode(), b"-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n"],
)
def test_a_file_that_holds_no_public_key(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.pub").write_bytes(content)
    note = problem("mine.pub", tmp_path)
    assert note == f"`{tmp_path / 'mine.pub'}` does not hold one Ed25519 or RSA public key"
    assert "secret" not in note


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.pub").write_bytes(b"\xff\xfe")
    assert problem("mine.pub", tmp_path).endswith("not text")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.pub").mkdir()
    assert problem("mine.pub", tmp_path).endswith("Is a directory")


def test_the_home_of_nobody(tmp_path: Path) -> None:
    problem("~nobody-of-this-name/mine.pub", tmp_path)
