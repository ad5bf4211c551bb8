"""Two different specs of one machine, for example one in a data folder: none is chosen silently."""

import json

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import LARGER_SIZE, User


@pytest.fixture(autouse=True)
def project(user: User) -> None:
    user.spec(target={"type": "remote"})
    (user.workspace / "train.py").write_text("print('the job ran')\n")
    (user.workspace / "data").mkdir()


def test_run_refuses_a_name_that_two_specs_have(user: User, azure: Azure) -> None:
    user.spec(file="data/a.yaml", size=LARGER_SIZE, target={"type": "remote"})
    before = azure.last_request()
    for name in ("my-dsvm", "my_dsvm"):
        done = user("run", "--json", name, "train.py")
        assert done.returncode == 2, done.stdout + done.stderr
        (problem,) = json.loads(done.stdout)["diagnostics"]
        assert problem["code"] == "ambiguous-name"
        assert "data/a.yaml" in problem["note"]
        assert "gpu.yaml" in problem["note"]
    assert azure.writes(before) == []


def test_submit_refuses_a_target_that_two_specs_describe_but_down_stops_it(user: User, azure: Azure) -> None:
    user.up()
    user.spec(file="data/a.yaml", target={"nvidiaDocker": False})
    done = user("submit", "--json", "-c", "my_dsvm", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert json.loads(done.stdout)["diagnostics"][0]["code"] == "ambiguous-name"
    assert user.down("my-dsvm")["off"]


def test_copy_of_a_spec_is_the_same_spec(user: User, azure: Azure) -> None:
    user.spec(file="data/a.yaml", target={"type": "remote"})
    done = user("run", "my-dsvm", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
