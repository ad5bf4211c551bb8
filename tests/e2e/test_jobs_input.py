"""Input of a job from files and options. Invalid input is reported with its place, and nothing is sent."""

import contextlib
import json
import signal
import zipfile
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.lab import LOCAL, LOCALDOCKER, REMOTE, REMOTEDOCKER, Lab, LabUser
from tests.variants import variant, variants

GREETING = "print('hello')\n"
TELLING = """
import json, os, sys
print(json.dumps({"words": sys.argv, "folder": os.getcwd(), "variables": dict(os.environ), "files": os.listdir(".")}))
"""


def write_runconfig(user: LabUser, name: str, text: str) -> None:
    (user.workspace / f"aml_config/{name}.runconfig").write_text(text)


SHELL_SCRIPT = """#!/bin/sh
echo "$0 $1" > outputs/said
python3 -m pkg || exit 3
python3 scripts/train.py
"""


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_scripts_import_from_the_project_and_run_with_what_fits(lab: Lab, name: str) -> None:
    user = lab.user()
    for folder in ("pkg", "scripts"):
        (user.workspace / folder).mkdir()
    user.script("WORD = 'found'\n", "shared_code.py")
    user.script("import shared_code\nprint('module', shared_code.WORD)\n", "pkg/__main__.py")
    user.script("import shared_code\nprint('script', shared_code.WORD)\n", "scripts/train.py")
    user.script(SHELL_SCRIPT, "go.sh")
    code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, "go.sh", "one word")
    assert (code, out) == (0, b"module found\nscript found\n"), errors
    assert (jobs.outputs_of(user, jobs.last_run(user)["id"]) / "said").read_text() == "go.sh one word\n"
    code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, "scripts/train.py")
    assert (code, out) == (0, b"script found\n"), errors


# Without a traceback, which the tests look for.
MISSING_DATA = """
import os, sys
try:
    open(os.path.abspath("data/train.csv"))
except OSError as error:
    sys.exit(f"FileNotFoundError: {error}")
"""


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_file_that_was_not_sent_is_named_when_the_job_misses_it(lab: Lab, name: str) -> None:
    user = lab.user()
    (user.workspace / "data").mkdir()
    (user.workspace / "data/train.csv").write_text("1,2\n")
    (user.workspace / ".gitignore").write_text("# large\n/data/\n")
    done = user("submit", "-c", name, user.script(MISSING_DATA))
    assert done.returncode == 1, done.stderr
    assert "not sent: data/, 4 B, 1 file: .gitignore:2\n" in done.stderr
    assert "`data/train.csv`: `.gitignore:2` leaves out `data/`" in done.stderr


def test_standard_input_is_refused_and_not_dropped(lab: Lab, tmp_path: Path) -> None:
    user = lab.user()
    words = ("submit", "-c", LOCAL, user.script(GREETING))
    done = user(*words, stdin="data")
    assert done.returncode == 2, done.stderr
    assert "jobs have no standard input" in done.stderr
    assert "< /dev/null" in done.stderr
    assert user.does("runs")["runs"] == []
    assert user(*words).returncode == 0, "an empty pipe is no input"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Target: my_dsvm\nArgumentVector: [$file\n", None),
        ("Target: my_dsvm\nFramework: Python\nArgumentVector: 7\n", 3),
        ("Target: my_dsvm\nEnvironmentVariables:\n  - A\n", None),
        ("Target: my_dsvm\nFramework: Pyton\n", 2),
        ("Target: my_dsm\nFramework: Python\n", 1),
        ("Target: my_dsvm\nTrackedRun: perhaps\n", 2),
    ],
)
def test_invalid_run_configuration_is_reported_with_its_place(lab: Lab, text: str, line: int | None) -> None:
    user = lab.user()
    write_runconfig(user, REMOTEDOCKER, text)
    done = user("submit", "--json", "-c", REMOTEDOCKER, user.script(GREETING))
    assert done.returncode == 2, done.stdout + done.stderr
    found = json.loads(done.stdout)["diagnostics"][0]
    assert found["file"].endswith("my_dsvm.runconfig"), found
    assert line is None or found["line"] == line, found
    assert user.does("runs")["runs"] == []


def test_invalid_script_is_refused(lab: Lab) -> None:
    user = lab.user()
    user.script(GREETING)
    (user.workspace / "ignored").mkdir()
    user.script(GREETING, "ignored/train.py")
    (user.workspace / ".gpuinfraignore").write_text("ignored/\n")
    outside = user.workspace.parent / "outside.py"
    outside.write_text(GREETING)
    (user.workspace / "link.py").symlink_to(outside)
    words = ("-c", REMOTEDOCKER)
    assert "train.py" in jobs.submit_refused(user, *words, "trian.py", code="no-script", exit_code=2)["help"]
    for script in ("../outside.py", str(outside), "ignored/train.py", "link.py"):
        jobs.submit_refused(user, *words, script, code="script-outside", exit_code=2)
    jobs.submit_refused(user, *words, code="usage", exit_code=2)
    jobs.submit_refused(user, "-c", "my_dsmv", "train.py", code="no-such-configuration", exit_code=2)


@variant
def test_invalid_variables_are_refused(lab: Lab) -> None:
    user = lab.user()
    words = ("-c", REMOTEDOCKER, "--env", f"LARGE={'x' * 100}")
    jobs.submit_refused(
        user, "-c", REMOTEDOCKER, "--secret", "NOT_SET", user.script(GREETING), code="missing-secret", exit_code=2
    )
    (user.workspace / "large").write_text(f"LARGE={'x' * (129 * 1024)}\n")
    for name in (REMOTEDOCKER, LOCAL):
        jobs.submit_refused(user, "-c", name, "--env-file", "large", "train.py", code="environment-too-large")
    (user.workspace / "large").write_text("".join(f"LARGE_{number}={'x' * 100_000}\n" for number in range(25)))
    jobs.submit_refused(user, "-c", REMOTEDOCKER, "--env-file", "large", "train.py", code="environment-too-large")
    jobs.submit_refused(user, *words, "--env", "1=2", "train.py", code="usage", exit_code=2)


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_arguments_and_variables_of_the_run_configuration_are_used(lab: Lab, name: str) -> None:
    user = lab.user()
    write_runconfig(
        user,
        name,
        f"Target: {name}\nFramework: Python\nPrepareEnvironment: false\n"
        "ArgumentVector:\n- -X\n- utf8\n- $file\n- --data\n- a b'$HOME\n"
        'EnvironmentVariables:\n  GREETING: "hello $USER \\"x\\""\n  NUMBER: 3\n',
    )
    (user.workspace / "sub").mkdir()
    words = ("--epochs", "3", "", "*", "--", "--json")
    code, out, errors = jobs.run_for_bytes(
        user, "submit", "-c", name, "--env", "EXTRA=a=b", user.script(TELLING, "sub/tell.py"), *words
    )
    assert code == 0, errors
    told = json.loads(out)
    assert told["words"] == ["sub/tell.py", "--data", "a b'$HOME", *words]
    variables = told["variables"]
    assert (variables["GREETING"], variables["NUMBER"], variables["EXTRA"]) == ('hello $USER "x"', "3", "a=b")
    assert variables["GPUINFRA_RUN_ID"] == jobs.last_run(user)["id"]
    assert "outputs" in told["files"]
    if name == REMOTEDOCKER:
        assert told["folder"] == "/project"


def test_shared_folder_persists_and_changes_to_the_project_do_not(lab: Lab) -> None:
    user = lab.user()
    script = user.script(
        "import os\nshare = os.environ['AZUREML_NATIVE_SHARE_DIRECTORY']\n"
        "open(share + 'count', 'a').write('x')\nprint(len(open(share + 'count').read()), os.path.exists('left'))\n"
        "os.makedirs('left/locked', mode=0o700)\nopen('train.py', 'a').write('broken(')\n"
    )
    for name in (REMOTEDOCKER, REMOTE, REMOTEDOCKER):
        code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, script)
        assert code == 0, errors
    assert out == b"3 False\n"
    (jobs.shared_folder(user, REMOTEDOCKER) / "count").unlink()


def test_spark_submit_runs_pyspark_jobs(lab: Lab) -> None:
    user = lab.user()
    (user.workspace / "spark-submit").write_text("#!/bin/sh\necho spark $*\nexec python $*\n")
    (user.workspace / "spark-submit").chmod(0o755)
    user.configure(REMOTEDOCKER, Framework="PySpark")
    user.compute(REMOTEDOCKER, sparkSubmitLocation="/project/spark-submit")
    code, out, errors = jobs.run_for_bytes(user, "submit", "-c", REMOTEDOCKER, user.script(GREETING), "--rows", "2")
    assert (code, out) == (0, b"spark train.py --rows 2\nhello\n"), errors
    user.compute(REMOTEDOCKER, sparkSubmitLocation="")
    done = user("submit", "--json", "-c", REMOTEDOCKER, "train.py")
    assert done.returncode not in {0, 255}, done.stdout
    assert "spark-submit" in done.stdout


def test_untracked_run_fetches_no_outputs(lab: Lab) -> None:
    user = lab.user()
    user.configure(REMOTEDOCKER, TrackedRun=False)
    script = user.script("open('outputs/model', 'w').write('weights')\nprint('secretive')\n")
    run = jobs.submit_job(user, "-c", REMOTEDOCKER, script)
    assert run["state"] == "completed"
    assert user.does("runs")["runs"] == []
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"model": b"weights"}
    kept = [path.name for path in jobs.outputs_of(user, run["id"]).parent.iterdir()]
    assert kept == ["outputs"]
    # An untracked job cannot be followed later.
    jobs.submit_refused(user, "-c", REMOTEDOCKER, "--detach", script, code="usage", exit_code=2)
    with jobs.start_program(user, "submit", "--json", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        # As early as possible: the client may not know yet that the job runs.
        jobs.wait_for(lambda: lab.engine.containers(running=True, name="gpuinfra-20") != [], "a job that runs")
        client.send_signal(signal.SIGINT)
        code, out, errors = jobs.wait_for_exit(client)
    assert (code not in {0, 255}, jobs.run_in_output(out)["state"]) == (True, "cancelled"), errors
    # Nothing waits for the engine to remove it.
    jobs.wait_for(lambda: lab.engine.containers() == [], "no container")


@variant
def test_concurrent_jobs_do_not_interfere(lab: Lab) -> None:
    user = lab.user()
    script = user.script(
        f"{jobs.GATES}\nopen('mine', 'x').write(sys.argv[1])\nprint('begun')\ngate('both')\n"
        "print(open('mine').read())\nopen('outputs/who', 'w').write(sys.argv[1])\n"
    )
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(jobs.start_program(user, "submit", "-c", REMOTEDOCKER, script, each))
            for each in ("one", "two")
        ]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "begun\n"
        (jobs.shared_folder(user, REMOTEDOCKER) / "both").touch()
        ends = [jobs.wait_for_exit(client)[:2] for client in clients]
    assert ends == [(0, "one\n"), (0, "two\n")]
    runs = user.does("runs")["runs"]
    assert {jobs.read_tree(jobs.outputs_of(user, run["id"]))["who"] for run in runs} == {b"one", b"two"}


def test_environment_is_built_once_and_includes_wheels(lab: Lab) -> None:
    user = lab.user()
    (user.workspace / "wheels").mkdir()
    write_wheel(user.workspace / "wheels/greeting-1.0-py3-none-any.whl", "hello from a wheel")
    (user.workspace / "aml_config/conda_dependencies.yml").write_text(
        "dependencies:\n  - python=3.11\n  - pip:\n    - --no-index\n    - wheels/greeting-1.0-py3-none-any.whl\n"
    )
    script = user.script("import greeting\n")
    jobs.submit_refused(user, "-c", REMOTEDOCKER, script, code="build-failed")  # PrepareEnvironment: false
    made = user.does("prepare", "-c", REMOTEDOCKER)["environment"]
    assert made["built"]
    assert made["gpu"]["count"] == 2
    user.configure(REMOTEDOCKER, LOCALDOCKER, PrepareEnvironment=True)
    for name in (REMOTEDOCKER, LOCALDOCKER):
        code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, script)
        assert (code, out) == (0, b"hello from a wheel\n"), errors
        assert jobs.show_run(user)["imageDigest"] == made["imageId"]
    assert not user.does("prepare", "-c", REMOTEDOCKER)["environment"]["built"]


def write_wheel(file: Path, says: str) -> None:
    name, version = file.name.split("-")[:2]
    folder = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(f"{name}.py", f"print({says!r})\n")
        wheel.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{folder}/RECORD", "")
