"""What a job prints appears when it prints it, on a terminal as it is and elsewhere as the final state of each line."""

import re

import pytest

from tests.e2e.jobs import GATES, open_terminal, run_for_bytes, shared_folder
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, Lab
from tests.variants import variants

BAR = f"""{GATES}
sys.stdout.write("Name? ")
sys.stdout.flush()
gate("name")
print()
for tick in range(1, 4):
    sys.stderr.write(f"\\r\\x1b[32m{{tick}}/3\\x1b[0m")
    sys.stderr.flush()
    gate(f"tick-{{tick}}")
print(file=sys.stderr)
print(os.environ.get("COLUMNS"), os.environ.get("FORCE_COLOR"))
"""


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE, LOCAL))
def test_every_tick_appears_before_the_next_one_is_printed(lab: Lab, name: str) -> None:
    user = lab.user()
    share = shared_folder(user, name)
    with open_terminal(user, "submit", "-c", name, "--yes", user.script(BAR)) as terminal:
        terminal.wait_for_text(b"Name? ")
        (share / "name").touch()
        for tick in range(1, 4):
            terminal.wait_for_text(b"\r\x1b[32m%d/3\x1b[0m" % tick)
            (share / f"tick-{tick}").touch()
        assert terminal.wait_for_exit() == 0, terminal.seen
    assert b"80 1\r\n" in terminal.seen
    expected = b"\x1b[32m3/3\x1b[0m\n"
    assert run_for_bytes(user, "logs", "last") == (0, b"Name? \n80 1\n", expected)
    raw = b"".join(b"\r\x1b[32m%d/3\x1b[0m" % tick for tick in range(1, 4)) + b"\n"
    assert run_for_bytes(user, "logs", "last", "--raw") == (0, b"Name? \n80 1\n", raw)
    # The gates are open. A pipe gets the final states, and the job learns of no terminal.
    code, out, errors = run_for_bytes(user, "submit", "-c", name, "--yes", "train.py")
    assert (code, out) == (0, b"Name? \nNone None\n")
    assert expected in errors
    assert b"1/3" not in errors


def test_live_line_shows_gpu_and_time_while_the_job_is_silent(lab: Lab) -> None:
    user = lab.user()
    lab.nvidia.load(65, 4000)
    share = shared_folder(user, REMOTEDOCKER)
    script = user.script(f"{GATES}\nprint('begun')\ngate('seen')\nprint('more')\n")
    patch = {"gpuinfra.runner.heartbeat.PERIOD_SECONDS": 0.2}
    with open_terminal(user, "submit", "-c", REMOTEDOCKER, "--gpus", "1", script, patch=patch) as terminal:
        terminal.wait_for_text(b"begun\r\n")
        terminal.wait_for_text(b"GPU 65 %")
        (share / "seen").touch()
        assert terminal.wait_for_exit() == 0, terminal.seen
    assert re.search(rb"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}  \d+ s  GPU 65 %  [0-9.]+ MiB", terminal.seen)
    assert re.search(rb"\x1b\[2K(\x1b\[\?25h)?more\r\n", terminal.seen), terminal.seen[-2000:]
