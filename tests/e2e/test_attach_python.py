"""`attach --python`, and `~` in paths, by the installed program."""

import sys
from pathlib import Path

from tests.e2e.user import Run
from tests.lab import Lab


def test_jobs_use_the_python_that_attach_was_given(lab: Lab) -> None:
    user = lab.user()
    folder = lab.home / "my env" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    server = lab.server.target
    words = ["attach", "other", "--address", server.address, "--port", str(server.port), "--username", server.username]
    words += ["--type", "remote", "--no-gpu", "--host-key", server.host_key]
    problem = user.fails(*words, "--python", "/no/python", code="unfit-machine")
    assert "/no/python" in problem["note"]
    user.fails(*words, "--python", "python", code="bad-path", exit_code=2)

    user.does(*words, "--python", "~/my env/bin/python")
    file = user.workspace / "aml_config" / "other.compute"
    assert f"pythonLocation: {folder / 'python'}\n" in file.read_text().replace('"', "").replace("'", "")
    user.script("import sys; print(sys.executable)")
    done = user("submit", "-c", "other", "train.py", GPUINFRA_CLOUD="sandbox")  # its GPU is simulated
    assert (done.returncode, done.stdout) == (0, f"{folder / 'python'}\n"), done.stderr


def test_tilde_in_an_option_is_the_home_folder(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (project / "train.py").write_text("import os; print(os.environ['A'])")
    (project.parent / "values").write_text("A=b\n")
    words = ("submit", "--workspace=~/project", "-c", "local", "--env-file=~/values", "train.py")
    done = run(*words, HOME=str(project.parent))
    assert (done.returncode, done.stdout) == (0, "b\n"), done.stderr
