"""Jobs on a GPU machine do not fall back to the CPU, even if its spec cannot be read."""

from tests.e2e.azure import Azure
from tests.e2e.user import User

REMOTE = {"type": "remote"}


def test_invalid_spec_does_not_let_a_gpu_job_run_on_the_cpu(user: User, azure: Azure) -> None:
    user.spec(target=REMOTE)
    user.up()
    (user.workspace / "train.py").write_text("print('ran')\n")
    azure.fault("gpu-gone", resource="my-dsvm")
    user.spec(target=REMOTE, owner="me")
    done = user("submit", "-c", "my_dsvm", "train.py")
    assert done.returncode == 1, done.stderr
    assert "the job would have no GPU" in done.stderr
    assert "ran" not in done.stdout
