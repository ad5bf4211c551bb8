"""Secrets of jobs: visible to the job, and nowhere else during or after it."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.jobs import GATES, expect_line, shared_folder, show_run, start_program, wait_for_exit
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, Lab
from tests.sshd import eventually

SECRET = "hunter2-%-'\"$(id)-geheim"
IN_BOTH = SECRET.partition("'")[2]
HIDING = f"""{GATES}
import hashlib
print(hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(), os.environ["OTHER"] in os.environ["TOKEN"])
gate(sys.argv[1])
"""


@contextmanager
def watched(secret: bytes) -> Iterator[list[bytes]]:
    """Return command lines on this machine that contain the secret."""
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
    """Return files that contain the secret."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # the file of a container that is being removed
            if secret in file.read_bytes():
                found.append(file)
    return found


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE, LOCAL])
def test_secrets_are_visible_to_the_job_only(lab: Lab, name: str) -> None:
    user = lab.user()
    elsewhere = user.home / "variables"
    # In such files, a value in quotes cannot contain these quotes.
    elsewhere.write_text(f"# a comment\nOTHER='{IN_BOTH}'\n")
    secret, gate = IN_BOTH.encode(), f"secret-{name}"
    words = ("--secret", "TOKEN", "--env-file", str(elsewhere), user.script(HIDING), gate)
    places = (user.workspace, lab.home, user.home / ".gpuinfra")
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    with (
        watched(secret) as seen,
        start_program(user, "submit", "--verbose", "-c", name, *words, TOKEN=SECRET) as client,
    ):
        expect_line(client, f"{digest} True\n")
        assert holding(secret, *places) == []
        (shared_folder(user, name) / gate).touch()
        code, _, errors = wait_for_exit(client)
    assert code == 0, errors
    assert IN_BOTH not in errors
    assert seen == []
    assert holding(secret, *places) == []
    # The machine removes the container in the background.
    assert eventually(lambda: holding(secret, lab.engine.folder / "data/containers") == [])
    run = json.dumps(show_run(user))
    assert "hunter2" not in run
    assert {"TOKEN", "OTHER"} <= set(show_run(user)["environment"])
