"""Two concurrent `up` and a `down` in between: each command reports only what happened to the machine."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import wait_for_exit
from tests.e2e.user import User
from tests.variants import variants

PATCH = {"gpuinfra.app.up.LOOK_SECONDS": 0.2}


@pytest.mark.parametrize(
    ("words", "state", "billed"),
    variants(
        (["down", "my-dsvm"], "deallocated", "only its disk and address are billed"),
        (["down", "my-dsvm", "--delete", "--yes"], "gone", "nothing is billed"),
    ),
    ids=["off", "deleted"],
)
def test_up_reports_that_down_ended_the_machine_meanwhile(
    user: User, azure: Azure, words: list[str], state: str, billed: str
) -> None:
    azure.fault("ssh-refuses", resource="my-dsvm")
    with start_impatient(user, "up", "gpu.yaml", patch=PATCH) as first:
        assert first.stderr
        while "waiting for SSH" not in first.stderr.readline():
            assert first.poll() is None
        with start_impatient(user, "up", "gpu.yaml", patch=PATCH) as second:
            assert second.stderr
            while "waiting for SSH" not in second.stderr.readline():
                assert second.poll() is None
            assert user(*words).returncode == 0
            said = [wait_for_exit(each) for each in (first, second)]
    assert not azure.is_billed()
    for code, _, errors in said:
        assert code == 1, errors
        assert f"`my-dsvm` is {state}: it was ended while `up` waited for it; {billed}" in errors
        assert "left on" not in errors
        assert "billed until" not in errors
