"""`make demo` tells the whole story, in less than a minute, on a machine with hardly anything but Python."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.real import program

ROOT = Path(__file__).parents[2]
# What Debian has when nobody has added anything. git stays: there is a step more with it.
ADDED = ("ssh", "scp", "sftp", "docker", "az", "rsync", "cron", "systemctl")


@pytest.mark.timeout(400)
def test_the_demo_tells_the_whole_story(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for found in Path("/usr/bin").iterdir():
        if not found.name.startswith(ADDED) and found.name != "git":
            (tools / found.name).symlink_to(found)
    (tools / "git").symlink_to(program("git", "git"))
    code, said = demo(tools, tmp_path)
    assert code == 0, said[-3000:]
    assert "Traceback" not in said
    assert_told(said)
    # Nothing of it is left, and no server of it runs.
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]
    assert not [words for words in running() if str(tmp_path) in words]


def demo(tools: Path, folder: Path) -> tuple[int, str]:
    """Its exit code and all that it says. A group of its own, so that nothing of it outlives a test that fails."""
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


def assert_told(text: str) -> None:
    for word in (
        "5 problems found",
        "Plan: 7 to add",
        "aml_config/my_dsvm.compute\n",
        "type: remote\n",
        "Target: my_dsvm\n",
        "Tesla T4 (simulated)",
        "epoch 3 loss",
        '{"weight": 2.897}',
        "Azure says PowerState/deallocated",
        "left on overnight",
        "is passed over: AllocationFailed",
        "1 deleted; 2 machines",
        "Persistent=true",
        "the machines would have cost",
        "Azure says 404",
    ):
        assert word in text, word
    # Left on for fourteen hours by everybody, and off when its lease of four was over.
    (billed,) = re.findall(r"^other +deallocated +(\d+):\d\d:\d\d", text, re.MULTILINE)
    assert billed in {"3", "4"}


def running() -> list[str]:
    """Every command line on this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found.append(process.read_bytes().decode("utf-8", "replace"))
    return found
