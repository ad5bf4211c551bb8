"""Repositories of specs, with commit times of the embedded Azure's clock."""

import subprocess
from pathlib import Path

from tests.e2e.user import User, inherited


def git(user: User, *words: str, folder: Path | None = None) -> None:
    """Run git in the user's workspace or another folder, with the time of the sandbox's clock."""
    name = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    now = f"{user.azure.control('GET', 'clock')['now']:.0f} +0000"
    dates = {"GIT_AUTHOR_DATE": now, "GIT_COMMITTER_DATE": now}
    environment = {**inherited(), "HOME": str(user.home), **dates}
    where = folder or user.workspace
    subprocess.run(["git", *name, *words], cwd=where, env=environment, check=True, timeout=20, capture_output=True)


def commit_all(user: User, message: str, folder: Path | None = None) -> None:
    """Commit everything in a folder, and create a repository there if needed."""
    git(user, "init", "-q", folder=folder)
    git(user, "add", "-A", folder=folder)
    git(user, "commit", "-q", "--allow-empty", "-m", message, folder=folder)
