"""`run --last` and `run --again` by the installed program."""

import json
from pathlib import Path

from tests.e2e.azure import Azure
from tests.e2e.repository import commit_all
from tests.e2e.run_help import project
from tests.e2e.user import Run, User

SHOW = "import os, sys; print(*sys.argv[1:], os.environ.get('A'), os.environ.get('TOKEN'))"


def test_submitted_job_is_repeated_with_its_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SHOW)
    secret = {"TOKEN": "s3cr3t"}
    words = ("submit", "-c", "local", "--env", "A=b", "--secret", "TOKEN", "src/train.py", "--epochs", "3")
    assert run(*words, **secret).stdout == "--epochs 3 b s3cr3t\n"
    assert b"s3cr3t" not in (tmp_path / ".gpuinfra" / "store.db").read_bytes()

    done = run("run", "--last", **secret)
    assert (done.returncode, done.stdout) == (0, "--epochs 3 b s3cr3t\n"), done.stderr
    assert "there is no git commit of them" in done.stderr
    assert "unchanged: environment" in done.stderr
    done = run("run", "--again", "last", "--env", "A=c", **secret)
    assert (done.returncode, done.stdout) == (0, "--epochs 3 c s3cr3t\n"), done.stderr

    missing = run("run", "--last", "--json")
    assert json.loads(missing.stdout)["diagnostics"][0]["code"] == "missing-secret"
    assert run("run", "--last", "gpu.yaml", "train.py").returncode == 2


def test_run_on_a_machine_is_repeated_after_it_says_what_changed(user: User, azure: Azure) -> None:
    project(user)
    commit_all(user, "Add the project")
    assert user("run", "gpu.yaml", "quick.py", "7").returncode == 7
    (user.workspace / "quick.py").write_text("print('changed')")
    commit_all(user, "Change the script")
    project(user, idle="1h")
    (user.workspace / "quick.py").write_text("print('changed')")
    done = user("run", "--last")
    assert (done.returncode, done.stdout) == (0, "changed\n"), done.stderr
    said = done.stderr[: done.stderr.index("Plan:")] if "Plan:" in done.stderr else done.stderr
    for line in ("repeats ", "commit changed: ", "uncommitted changes then and now", "spec changed"):
        assert line in said, done.stderr
    assert "command changed" not in said
    assert not azure.is_billed()
    assert [each["afterRun"] for each in user.does("runs")["runs"]] == ["deallocate", "deallocate"]
