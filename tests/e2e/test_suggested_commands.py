"""Suggested commands repeat the cloud and the workspace of the command line, so that they do what they promise."""

import json

from tests.e2e.user import User

WHERE = ("--sandbox", "--workspace", "my project")


def test_suggested_command_repeats_sandbox_and_workspace(user: User) -> None:
    (user.workspace / "my project").mkdir()
    done = user("down", "nosuch", *WHERE, sandbox=False)
    assert "`gpuinfra --sandbox --workspace 'my project' status` lists the machines" in done.stderr
    done = user("down", "nosuch", *WHERE, "--json", sandbox=False)
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["help"] == "`gpuinfra --sandbox --workspace 'my project' status` lists the machines"


def test_next_step_of_up_repeats_each_option_once(user: User) -> None:
    folder = user.workspace / "my project"
    folder.mkdir()
    (user.workspace / "gpu.yaml").rename(folder / "gpu.yaml")
    done = user("up", "my project/gpu.yaml", *WHERE, sandbox=False)
    next_step = done.stderr.splitlines()[-1]
    assert "`gpuinfra --workspace 'my project' down my-dsvm --sandbox`" in next_step, done.stderr


def test_options_from_the_environment_are_not_repeated(user: User) -> None:
    done = user("down", "nosuch", GPUINFRA_WORKSPACE=".")
    assert "`gpuinfra status` lists the machines" in done.stderr
