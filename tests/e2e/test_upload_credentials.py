"""Files that may hold credentials stay on this computer unless an ignore file re-includes them by name."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.user import Run

LIST = """
import os
for folder, _, names in os.walk("."):
    for name in names:
        print(os.path.relpath(os.path.join(folder, name)))
"""
CREDENTIALS = [
    ".env",
    ".env.local",
    "config/.ENV",
    "server.pem",
    "id_rsa",
    "keys/id_ed25519",
    "id_work",
    ".netrc",
    ".azure/msal_token_cache.json",
    ".aws/credentials",
    ".git-credentials",
    "certificate.pfx",
]
MORE_CREDENTIALS = [
    "prod.env",
    "server.key",
    "credentials",
    "cloud/credentials.json",
    "token.json",
    "secrets.yaml",
    "secrets.yml",
    "secrets.json",
    "secrets.toml",
    "secrets.env",
    "service-account-prod.json",
    "terraform.tfstate",
    "terraform.tfstate.backup",
    ".pypirc",
    ".npmrc",
    ".pgpass",
    ".vault-token",
    "kaggle.json",
]
ORDINARY = [
    "train.py",
    "id_map.json",
    "keys/id_rsa.pub",
    "environment.yml",
    "data/azure.csv",
    "tokens.json",
    "secrets.py",
    "credentials.py",
    "a.keys",
]


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    (folder / "train.py").write_text(LIST)


def sent(run: Run, tmp_path: Path) -> tuple[set[str], "subprocess.CompletedProcess[str]"]:
    """Return the files that a job finds, and the output."""
    done = run("submit", "-c", "local", "--workspace", "project", "train.py", HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()), done


def test_credential_files_are_not_sent_and_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", *CREDENTIALS, *ORDINARY)
    files, done = sent(run, tmp_path)
    assert files == {*ORDINARY}
    (line,) = [each for each in done.stderr.splitlines() if "may hold credentials" in each]
    for name in (".env", "server.pem", ".azure", "keys/id_ed25519"):
        assert name in line
    assert ".gpuinfraignore" in line


def test_credentials_of_common_tools_are_not_sent(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", *MORE_CREDENTIALS, *ORDINARY)
    files, done = sent(run, tmp_path)
    assert files == {*ORDINARY}
    assert "may hold credentials: .npmrc, .pgpass, .pypirc, .vault-token, cloud/credentials.json" in done.stderr


@pytest.mark.parametrize("ignore", ["*.tmp\n", "!*\n", "!*.pem\n!.*\n"])
def test_other_lines_of_an_ignore_file_do_not_include_credentials(run: Run, tmp_path: Path, ignore: str) -> None:
    write(tmp_path / "project", ".env", "server.pem")
    (tmp_path / "project/.gpuinfraignore").write_text(ignore)
    files, _ = sent(run, tmp_path)
    assert files == {"train.py", ".gpuinfraignore"}


def test_credential_file_is_sent_where_it_is_included_by_name(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", ".env", "config/.env", "server.pem", ".azure/config")
    (tmp_path / "project/.gpuinfraignore").write_text("!/.env\n!.azure/\n")
    files, done = sent(run, tmp_path)
    assert files == {"train.py", ".gpuinfraignore", ".env", ".azure/config"}
    (line,) = [each for each in done.stderr.splitlines() if "may hold credentials" in each]
    assert "config/.env, server.pem" in line
    (line,) = [each for each in done.stderr.splitlines() if "usually hold credentials" in each]
    assert "sent, because `.gpuinfraignore` names them" in line
    assert ".azure/, .env" in line
    assert "config/.env" not in line


def test_ordinary_file_that_is_included_by_name_is_not_mentioned(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", "a.bin")
    (tmp_path / "project/.gpuinfraignore").write_text("*.bin\n!a.bin\n!.env\n")
    files, done = sent(run, tmp_path)
    assert "a.bin" in files
    assert "credentials" not in done.stderr


def test_credential_file_that_is_ignored_is_not_mentioned(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", ".env")
    (tmp_path / "project/.gitignore").write_text(".env\n")
    files, done = sent(run, tmp_path)
    assert files == {"train.py", ".gitignore"}
    assert "credentials" not in done.stderr


def test_files_that_gpuinfraignore_includes_despite_gitignore_are_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "project", "notes.txt", "data/a.bin", "data/b.bin", "deep/local.cfg", "tmp/x")
    (tmp_path / "project/.gitignore").write_text("notes.txt\ndata/\ntmp/\n")
    (tmp_path / "project/deep/.gitignore").write_text("local.cfg\n")
    (tmp_path / "project/.gpuinfraignore").write_text("tmp/\n")
    files, done = sent(run, tmp_path)
    assert {"notes.txt", "data/a.bin", "deep/local.cfg"} <= files
    (line,) = [each for each in done.stderr.splitlines() if ".gitignore" in each]
    assert "data/, deep/local.cfg, notes.txt" in line
    assert "tmp" not in line
