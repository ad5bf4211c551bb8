"""Receipts of `reap` and of an `up` that was not ready: the cost is what the embedded Azure bills, to the cent."""

import json

import pytest

from gpuinfra.models.receipt import LedgerEntryKind
from gpuinfra.store import Ledger
from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.repository import commit_all
from tests.e2e.user import User
from tests.variants import variants

LONG = {"lease": "3d", "idle": "2d"}


def bill(azure: Azure) -> float:
    return float(sum(each["costUsd"] for each in azure.bill()))


@pytest.mark.parametrize("folder", variants("an empty folder", "its own workspace"))
def test_receipt_of_reap_is_what_azure_bills_for_the_last_time_on(user: User, azure: Azure, folder: str) -> None:
    user.spec(lifecycle=LONG)
    commit_all(user, "on")
    user.up()
    change_power(azure, "deallocate")
    advance(azure, 10 * 3600)
    before = bill(azure)
    change_power(azure, "start")
    advance(azure, 3600)
    user.spec(lifecycle=LONG, power="deallocated")
    commit_all(user, "off")
    specs = str(user.workspace)
    if folder != "its own workspace":
        user.workspace = user.workspace.parent / "cron"
        user.workspace.mkdir()
    done = user("reap", "--specs", specs, "--json")
    assert done.returncode == 0, done.stderr
    (stopped,) = json.loads(done.stdout)["stopped"]
    assert stopped["costUsd"] == pytest.approx(bill(azure) - before, abs=0.005)
    assert stopped["billedSeconds"] == pytest.approx(3600, abs=60)


def test_end_of_a_machine_that_was_not_ready_is_recorded_as_azure_bills_it(user: User, azure: Azure) -> None:
    user.up()
    user.down("my-dsvm")
    before = bill(azure)
    user.private_key.unlink()
    user.private_key.with_suffix(".pub").unlink()
    user.make_key("a passphrase")
    user.fails("up", "gpu.yaml", code="not-ready")
    end = Ledger(user.workspace / ".gpuinfra").entries()[-1]
    assert (end.what, end.price_per_hour) == (LedgerEntryKind.OFF, 0.631)
    assert end.since is not None
    seconds = (end.at - end.since).total_seconds()
    assert seconds / 3600 * 0.631 == pytest.approx(bill(azure) - before, abs=0.005)
