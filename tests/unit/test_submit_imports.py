"""What `submit` imports: each of these packages takes a tenth of a second, before the job starts."""

import os
import subprocess
import sys
from pathlib import Path

SLOW = ("docker", "requests", "paramiko", "pydantic")
SUBMIT = f"""
import sys
from gpuinfra.cli.main import main
code = main(["submit", "-c", "local", "noop.py"])
print([each for each in {SLOW!r} if each in sys.modules])
sys.exit(code)
"""


def test_job_without_a_container_or_another_machine_needs_no_slow_package(tmp_path: Path) -> None:
    (tmp_path / "noop.py").write_text("")
    (tmp_path / "home").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
