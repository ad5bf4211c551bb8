"""Repositories of specs, with commits at the time of the embedded Azure."""

import subprocess
from pathlib import Path

from tests.e2e.user import User, inherited


def git(user: User, *words: str, folder: Path | None = None) -> None:
    """Run git in the user's workspace, or in another folder, by the sandbox's clock, which other tests have moved."""
    name = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    now = f"{user.azure.control('GET', 'clock')['now']:.0f} +0000"
    dates = {"GIT_AUTHOR_DATE": now, "GIT_COMMITTER_DATE": now}
    environment = {**inherited(), "HOME": str(user.home), **dates}
    where = folder or user.workspace
    subprocess.run(["git", *name, *words], cwd=where, env=environment, check=True, timeout=20, capture_output=True)


def commit_all(user: User, message: str, folder: Path | None = None) -> None:
    """Commit everything in a folder, which becomes a repository if it is none."""
    git(user, "init", "-q", folder=folder)
    git(user, "add", "-A", folder=folder)
    git(user, "commit", "-q", "--allow-empty", "-m", message, folder=folder)
