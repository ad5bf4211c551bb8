"""`up` asks before it uses a machine that someone else created under the name in a spec."""

from pathlib import Path
from typing import cast

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import Start
from tests.e2e.test_host_key_pins import make_colleague
from tests.e2e.user import User
from tests.lab import LabUser
from tests.variants import variant

ON = "PowerState/running"


def files_of(user: User) -> list[Path]:
    """Return the target's files and the pinned keys."""
    found = [*user.workspace.glob("aml_config/*"), user.home / ".gpuinfra" / "ssh" / "known_hosts"]
    return [file for file in found if file.exists()]


@pytest.fixture
def claimed(user: User, azure: Azure, tmp_path: Path) -> User:
    """The user, whose machine's name a colleague has taken."""
    user.spec(target={"type": "remote"}, lifecycle={"afterRun": "delete"})
    (user.workspace / "train.py").write_text("print('the job ran')\n")
    other = make_colleague(user, azure, tmp_path)
    other.spec(target={"type": "remote"})
    other.up()
    return user


def test_up_stops_at_a_machine_unknown_to_this_computer(claimed: User, azure: Azure) -> None:
    before = azure.last_request()
    problem = claimed.fails("up", "gpu.yaml", code="unknown-host-key")
    assert "`my-dsvm` exists, and this computer has not used it before" in problem["note"]
    assert "created 20" in problem["note"]
    assert "--yes" in problem["help"]
    assert (azure.writes(before), files_of(claimed)) == ([], [])

    done = claimed("run", "gpu.yaml", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the job ran" not in done.stdout
    assert (azure.writes(before), files_of(claimed)) == ([], [])
    assert azure.machine()["powerState"] == ON

    fingerprint = problem["help"].split("--host-key ")[1].split("`")[0]
    claimed.fails("up", "gpu.yaml", "--host-key", "SHA256:" + "A" * 43, code="other-host-key")
    accepted = claimed.up("--host-key", fingerprint)["target"]["hostKey"]
    assert claimed.up()["target"]["hostKey"] == accepted


@variant
def test_up_does_not_replace_a_machine_unknown_to_this_computer(claimed: User, azure: Azure) -> None:
    claimed.spec(region="eastus", target={"type": "remote"})
    before = azure.last_request()
    claimed.fails("up", "gpu.yaml", "--delete", code="unknown-host-key")
    assert azure.writes(before) == []


@variant
def test_up_uses_an_unknown_machine_with_yes_and_reports_it(claimed: User, azure: Azure) -> None:
    done = claimed("up", "gpu.yaml", "--yes")
    assert done.returncode == 0, done.stderr
    assert "this computer has not used it before; host key SHA256:" in done.stderr
    claimed.up()


def test_up_asks_on_a_terminal_before_it_uses_an_unknown_machine(claimed: User, azure: Azure) -> None:
    before = azure.last_request()
    for answer, code, written in ((b"n\n", 1, False), (b"y\n", 0, True)):
        with open_terminal(cast("LabUser", claimed), "up", "gpu.yaml", "--sandbox") as terminal:
            terminal.wait_for_text(b"Use this machine?")
            terminal.type_keys(answer)
            assert terminal.wait_for_exit() == code
        assert bool(files_of(claimed)) is written
        assert written or azure.writes(before) == []
    claimed.up()


def test_run_does_not_use_or_end_a_machine_created_by_another_user_a_moment_before(
    user: User, azure: Azure, start: Start, tmp_path: Path
) -> None:
    user.spec(target={"type": "remote"}, lifecycle={"afterRun": "delete"})
    (user.workspace / "train.py").write_text("print('the job ran')\n")
    other = make_colleague(user, azure, tmp_path)
    other.spec(target={"type": "remote"})
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("run", "gpu.yaml", "train.py")
    client.until_held()
    other.up()
    azure.clear_faults()
    assert client.end() == 1, client.said
    assert client.err.count("SHA256:") >= 2, client.said
    assert "the job ran" not in client.out
    assert azure.machine()["powerState"] == ON
    other.up()
