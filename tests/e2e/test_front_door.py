"""The command line as a whole: help, version, usage errors, shared options, completion, interrupts."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuinfra import __version__
from gpuinfra.cli.main import COMMANDS
from tests.e2e.conftest import PROGRAM, Run
from tests.variants import variant, variants


def test_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"gpuinfra {__version__}\n"
    assert json.loads(run("--version", "--json").stdout) == {"schemaVersion": 1, "version": __version__}
    assert run("--verbose", "--version").stdout == f"gpuinfra {__version__}\n"


def test_python_dash_m_runs_the_program(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "gpuinfra", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"gpuinfra {__version__}\n"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["validate", "--help"]])
def test_quick_commands_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from gpuinfra.cli.main import main\n"
        f"main({arguments!r})\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    heavy = {"azure", "paramiko", "docker", "asyncssh", "starlette", "uvicorn", "yaml", "msal", "cryptography"}
    assert "typer" in loaded
    assert not loaded & heavy
    if arguments == ["--version"]:
        assert not loaded & {"pydantic", "rich"}


def test_help_lists_the_commands_by_purpose(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for entry in COMMANDS:
        panel = next(number for number, line in enumerate(lines) if f"─ {entry.panel} ─" in line)
        assert any(f"│ {entry.name} " in line for line in lines[panel:])
    assert run().stdout == done.stdout


@pytest.mark.parametrize("entry", [*COMMANDS[:3], *(pytest.param(entry, marks=variant) for entry in COMMANDS[3:])])
def test_every_command_has_help_with_the_shared_options(run: Run, entry: tuple[str, str]) -> None:
    done = run(entry[0], "--help")
    assert done.returncode == 0
    for option in ("--json", "--yes", "--sandbox", "--workspace", "--verbose"):
        assert option in done.stdout


def test_unknown_command_suggests_the_nearest(run: Run) -> None:
    done = run("valdate", "gpu.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: unknown command\n   = note: `valdate` is not a command of `gpuinfra`\nhelp: did you mean `validate`?\n"
    )


def test_unknown_option_is_a_usage_error(run: Run) -> None:
    done = run("validate", "--jsom", "gpu.yaml")
    assert done.returncode == 2
    assert "wrong usage" in done.stderr
    assert "--json" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("valdate", "--json"), ("--json", "valdate"), ("validate", "--json"), ("schema", "x", "--json")]
)
def test_usage_errors_are_json_with_json(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["schemaVersion"] == 1
    assert document["diagnostics"][0]["code"] in {"usage", "unknown-command"}


def test_shared_options_work_before_and_after_the_command(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    before = run("--json", "--workspace", "other", "init")
    assert json.loads(before.stdout)["files"] == ["other/gpu.yaml", "other/gpuinfra.schema.json"]
    after = run("init", "--workspace", "other", "--json", "--yes")
    assert after.stdout == before.stdout
    named = run("init", "--json", "-y", GPUINFRA_WORKSPACE="other")
    assert named.stdout == before.stdout


def test_missing_workspace_is_not_created(run: Run, tmp_path: Path) -> None:
    done = run("init", "--workspace", "typo")
    assert done.returncode == 2
    assert "no such workspace" in done.stderr
    assert not (tmp_path / "typo").exists()


def test_invalid_cloud_name_suggests_the_nearest(run: Run) -> None:
    done = run("schema", GPUINFRA_CLOUD="sandbax")
    assert done.returncode == 2
    assert "did you mean `sandbox`?" in done.stderr


@pytest.mark.parametrize("way", variants("variable", "option"))
def test_sandbox_is_started_by_the_first_command_that_needs_it(run: Run, tmp_path: Path, way: str) -> None:
    home = {"GPUINFRA_SANDBOX_HOME": str(tmp_path / "home")}
    words, variables = (["--sandbox"], home) if way == "option" else ([], {**home, "GPUINFRA_CLOUD": "sandbox"})
    assert run("--verbose", "--version", *words, **variables).stderr == ""
    assert run("sandbox", "status", *words, **variables).returncode == 0
    assert not (tmp_path / "home").exists(), "neither of these needs it"
    try:
        first = run("status", *words, **variables)
        assert first.returncode == 0
        assert "started the embedded Azure (simulated)" in first.stderr
        assert "started" not in run("status", *words, **variables).stderr
        assert json.loads(run("sandbox", "status", "--json", **home).stdout)["running"] is True
    finally:
        assert run("sandbox", "stop", **home).returncode == 0


def test_verbose_logs_to_stderr_with_a_correlation_id(run: Run) -> None:
    run("init")
    quiet, loud = run("validate", "gpu.yaml"), run("validate", "gpu.yaml", "--verbose")
    assert quiet.stderr == ""
    assert loud.stdout == quiet.stdout
    first = loud.stderr.splitlines()[0]
    assert " DEBUG [" in first
    correlation_id = first.split("[")[1].split("]")[0]
    assert len(correlation_id) == 36
    assert all(f"[{correlation_id}]" in line for line in loud.stderr.splitlines())


def test_completion_knows_commands_and_options(run: Run) -> None:
    def complete(words: str) -> list[str]:
        done = run(_GPUINFRA_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        return done.stdout.split()

    assert complete("gpuinfra val") == ["validate"]
    assert complete("gpuinfra validate --w") == ["--workspace"]
    assert set(complete("gpuinfra ")) >= {entry.name for entry in COMMANDS}
    for shell in ("bash", "zsh", "fish"):
        shown = run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
        assert shown.returncode == 0
        assert "gpuinfra" in shown.stdout


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    shell = f"set -o pipefail; '{PROGRAM}' schema | head -c 10"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == '{\n  "$sche'
    assert done.stderr == ""


def test_interrupt_exits_with_130_and_prints_interrupted(tmp_path: Path) -> None:
    # A program that waits for standard input can be interrupted at a known place.
    with subprocess.Popen(
        [PROGRAM, "validate", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until_reading(process.pid)
        process.send_signal(signal.SIGINT)
        # Standard input stays open until the program has exited.
        assert process.wait(timeout=20) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "interrupted\n"


def wait_until_reading(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        # The first word is the number of the current system call; 0 is read on x86-64, 63 elsewhere.
        call = Path(f"/proc/{pid}/syscall").read_text().split()
        if call[0] in {"0", "63"} and call[1:2] == ["0x0"]:
            return
        time.sleep(0.02)
    pytest.fail("the program never waited for standard input")


def test_init_asks_on_a_terminal_before_it_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("mine\n")
    main, other = pty.openpty()
    with subprocess.Popen([PROGRAM, "init"], cwd=tmp_path, stdin=other, stdout=other, stderr=other) as process:
        os.close(other)
        os.write(main, b"n\n")
        assert process.wait(timeout=30) == 2
    os.close(main)
    assert (tmp_path / "gpu.yaml").read_text() == "mine\n"


def test_submit_with_text_output_does_not_import_pydantic() -> None:
    code = (
        "import sys; from gpuinfra.cli.main import main; main(['submit', '-c', 'nowhere', 'x.py']);"
        "sys.exit('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
