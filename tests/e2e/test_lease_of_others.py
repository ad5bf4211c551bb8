"""`gpuinfra lease` does not change a foreign machine, whatever its tags say."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import OVER, make_group, make_machine
from tests.e2e.user import User


@pytest.mark.parametrize("words", [["--release"], ["--extend", "1h"], []], ids=["release", "extend", "show"])
def test_lease_of_a_machine_of_others_is_refused(user: User, azure: Azure, words: list[str]) -> None:
    make_group(azure, "prod")
    make_machine(azure, "prod", "my-dsvm", {"gpuinfra:name": "my-dsvm", "gpuinfra:lease-until": OVER})
    user.spec(resourceGroup="prod")
    before = azure.last_request()
    for word in ("gpu.yaml", "my-dsvm"):
        problem = user.fails("lease", word, *words, code="untagged-machine", exit_code=4)
        assert "it was not changed" in problem["note"]
    assert azure.writes(before) == []
    assert azure.machine(group="prod")["powerState"] == "PowerState/running"
