"""Secrets of jobs: seen by the job, and by nobody else while it runs or afterwards."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.jobs import GATES, ended, reads, share_of, shown, started
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, Lab

SECRET = "hunter2-%-'\"$(id)-geheim"
HIDING = f"""{GATES}
import hashlib
print(hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(), os.environ["OTHER"] == os.environ["TOKEN"])
gate(sys.argv[1])
"""


@contextmanager
def watched(secret: bytes) -> Iterator[list[bytes]]:
    """Command lines of whatever runs on this machine meanwhile that have the secret in them."""
    found: list[bytes] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for each in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if secret in (line := each.read_bytes()):
                        found.append(line)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(10)


def holding(secret: bytes, *folders: Path) -> list[Path]:
    """Files that have the secret in them."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return [file for file in files if secret in file.read_bytes()]


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE, LOCAL])
def test_secrets_are_seen_by_the_job_alone(lab: Lab, name: str) -> None:
    user = lab.user()
    elsewhere = user.home / "variables"
    elsewhere.write_text(f"# a comment\nOTHER={SECRET}\n")
    secret, gate = SECRET.encode(), f"secret-{name}"
    words = ("--secret", "TOKEN", "--env-file", str(elsewhere), user.script(HIDING), gate)
    places = (user.workspace, lab.home, user.home / ".gpuinfra")
    digest = hashlib.sha256(secret).hexdigest()
    with watched(secret) as seen, started(user, "submit", "--verbose", "-c", name, *words, TOKEN=SECRET) as client:
        reads(client, f"{digest} True\n")
        assert holding(secret, *places) == []
        (share_of(user, name) / gate).touch()
        code, _, errors = ended(client)
    assert code == 0, errors
    assert SECRET not in errors
    assert seen == []
    assert (
        holding(secret, user.workspace, lab.home, user.home / ".gpuinfra", lab.engine.folder / "data/containers") == []
    )
    run = json.dumps(shown(user))
    assert "hunter2" not in run
    assert {"TOKEN", "OTHER"} <= set(shown(user)["environment"])
