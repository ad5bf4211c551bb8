"""Commands in a hostile repository run no program that the repository names."""

from pathlib import Path

import pytest

from tests.e2e.user import Run, User
from tests.git_help import Hostile, make_repository


# Each of these leaves its marker if git runs with the repository's own settings.
@pytest.mark.parametrize("way", ["clean_filter", "fsmonitor"])
def test_submit_runs_no_program_of_the_repository(run: Run, tmp_path: Path, way: str) -> None:
    make_repository(tmp_path / "project")
    hostile = Hostile(tmp_path / "project", tmp_path)
    getattr(hostile, way)()
    hostile.marker.unlink(missing_ok=True)
    done = run("submit", "--workspace", "project", "-c", "local", "train.py", HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert not hostile.marker.exists()


@pytest.mark.parametrize("way", ["signature", "lazy_fetch"])
def test_reap_runs_no_program_of_the_repository(user: User, tmp_path: Path, way: str) -> None:
    make_repository(user.workspace)
    hostile = Hostile(user.workspace, tmp_path)
    getattr(hostile, way)()
    hostile.marker.unlink(missing_ok=True)
    done = user("reap", "--specs", ".", "--dry-run")
    assert not hostile.marker.exists()
    # Git cannot show the history of a partial clone without the program that fetches the rest.
    assert ("no machine was compared" in done.stderr) is (way == "lazy_fetch")
