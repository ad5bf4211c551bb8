"""`make demo` runs from start to end in less than a minute, on a machine with little more than Python."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.real import program
from tests.variants import variant

ROOT = Path(__file__).parents[2]
# The packages of a minimal Debian. git stays: the demo has one more step with it.
ADDED = ("ssh", "scp", "sftp", "docker", "az", "rsync", "cron", "systemctl")


@variant
@pytest.mark.timeout(400)
def test_demo_runs_from_start_to_end_and_leaves_nothing_behind(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for found in Path("/usr/bin").iterdir():
        if not found.name.startswith(ADDED) and found.name != "git":
            (tools / found.name).symlink_to(found)
    (tools / "git").symlink_to(program("git", "git"))
    code, said = demo(tools, tmp_path)
    assert code == 0, said[-3000:]
    assert "Traceback" not in said
    assert_printed(said)
    # No file and no server of the demo is left.
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]
    assert not [words for words in running() if str(tmp_path) in words]


def demo(tools: Path, folder: Path) -> tuple[int, str]:
    """Return its exit code and output. Its own process group ends with a test that fails."""
    process = subprocess.Popen(
        [ROOT / "scripts" / "demo"],
        env={"PATH": str(tools), "HOME": str(folder), "TMPDIR": str(folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
    return process.returncode, said


def assert_printed(text: str) -> None:
    for word in (
        "5 problems found",
        "Plan: 7 to add",
        "aml_config/my_dsvm.compute\n",
        "type: remote\n",
        "Target: my_dsvm\n",
        "Tesla T4 (simulated)",
        "epoch 3 loss",
        '{"weight": 2.897}',
        "Azure reports PowerState/deallocated",
        "left on overnight",
        "is passed over: AllocationFailed",
        "1 deleted; checked 2 machines",
        "Persistent=true",
        "that the machines were off",
        "Azure reports 404",
    ):
        assert word in text, word
    # Fourteen hours if it is left on, four with its lease.
    (billed,) = re.findall(r"^other +deallocated +(\d+):\d\d:\d\d", text, re.MULTILINE)
    assert billed in {"3", "4"}


def running() -> list[str]:
    """Return every command line on this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found.append(process.read_bytes().decode("utf-8", "replace"))
    return found
