"""Short forms of options."""

import pytest

from tests.e2e.user import User


def test_short_forms_mean_the_same_as_the_long_ones(user: User) -> None:
    user.spec("size", file="long.yaml", gpu={"model": "T4"}, zones=["1"], lifecycle={"lease": "4h", "maxCost": "5 USD"})
    user.spec("size", file="short.yaml", gpu="T4", zones=[1], lifecycle={"lease": "4 hours", "maxCost": "$5"})
    (long,) = user.does("validate", "long.yaml")["specs"]
    (short,) = user.does("validate", "short.yaml")["specs"]
    assert short["digest"] == long["digest"]


@pytest.mark.parametrize("grace", ["0m", "0", "0h", "0s"])
def test_zero_grace_is_accepted(user: User, grace: str) -> None:
    user.does("reap", "--dry-run", "--grace", grace)
    assert f"--grace {grace}" in user("schedule", "render", "--with", "cron", "--specs", ".", "--grace", grace).stdout
    user.fails("cancel", "last", "--grace", grace, code="no-such-run", exit_code=2)
