"""A team lives through a simulated month: nothing stays on, nothing is missed, and every amount is what Azure bills."""

from collections.abc import Callable
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.az import Az
from tests.e2e.azure import Azure
from tests.e2e.foreign import make_disk, make_group, make_machine
from tests.e2e.month import DAY, HOUR, Hours, Machine, Team
from tests.e2e.run_help import wait_until

CHICAGO = Hours("America/Chicago", "tue", "wed", time(22), time(4))
BERLIN = Hours("Europe/Berlin", "mon", "wed", time(8), time(19), holidays=("2027-03-08", "2027-03-23"))
TOKYO = Hours("Asia/Tokyo", "mon", "tue", time(9), time(18))
FIRST, DAYS = date(2027, 3, 1), 31
# In the fourth week CI is broken: it has no new kind of event, and what is on must still end.
QUIET_WEEK = [date(2027, 3, 22) + timedelta(days=number) for number in range(7)]
JOBS, LAB, MOVED = "specs/nlp/jobs.yaml", "specs/vision/lab.yaml", "archive/vision/lab.yaml"
WEB, BATCH = "specs/web.yaml", "specs/batch/jobs.yaml"


class Month:
    """The machines, and what happens to them. Each method is one event."""

    def __init__(self, team: Team, folder: Path) -> None:
        self.team, self.folder = team, folder
        self.train = Machine("nlp-train", lease=4 * HOUR, cap_usd=5)
        self.eval = Machine("nlp-eval", lease=6 * HOUR, region="eastus", price=0.1578, spot=True)
        self.night = Machine("nlp-night", lease=HOUR, hours=CHICAGO)
        self.tune = Machine("nlp-tune", lease=3 * DAY)
        self.label = Machine("vis-label", lease=HOUR, hours=BERLIN, group="vision-shared")
        self.study = Machine(
            "vis-study", lease=2 * DAY, group="vision-shared", region="eastus", price=0.526, cap_usd=20
        )
        self.old = Machine("vis-old", lease=4 * DAY)
        self.tokyo = Machine("web-tokyo", lease=HOUR, hours=TOKYO, group="web-shared", region="japaneast", price=0.71)
        self.demo, self.show = Machine("web-demo", lease=3 * DAY), Machine("web-show", lease=5 * HOUR)
        self.api = Machine("web-api", lease=3 * DAY)
        self.later = Machine("web-later", lease=HOUR, is_kept_off=True)
        self.long = Machine("batch-long", lease=10 * DAY, cap_usd=60)
        self.crawl = Machine("batch-crawl", lease=20 * HOUR, spot=True, price=0.1893, group="batch")
        self.research = team.repository(
            "research", "ada", {JOBS: [self.train, self.eval, self.night], LAB: [self.label, self.study, self.old]}
        )
        self.products = team.repository(
            "products", "ben", {WEB: [self.tokyo, self.demo, self.api, self.later], BATCH: [self.long, self.crawl]}
        )
        self.run = ""

    def create(self) -> None:
        for each in (self.research, self.products):
            self.team.up(each, "specs", machines=each.machines)

    # CI

    def reap_research(self) -> dict[str, Any]:
        found = self.team.reap(self.research, "--delete")
        self.team.fetch_receipts()
        return found

    def reap_products(self) -> dict[str, Any]:
        return self.team.reap(self.products, "--delete")

    def reap_both(self) -> None:
        self.team.reap(self.research, "--delete")
        self.reap_products()

    # Ada's and Ben's work

    def start_jobs(self) -> None:
        self.team.up(self.research, JOBS, machines=self.research.files[JOBS])

    def evict(self, machine: Machine) -> Callable[[], None]:
        return lambda: self.team.evict(machine)

    def extend(self) -> None:
        self.team.extend(self.research, self.train, 2 * HOUR)
        done = self.research.owner("lease", "nlp-train", "--extend", "40d", "--json")
        assert done.returncode != 0, "30 days are the longest lease"

    def remove_old(self) -> None:
        plans = self.team.pull_request(self.research, "vis-old is done", {LAB: [self.label, self.study]})
        assert ("vis-old" in plans, self.team.without_spec) == (False, ["vis-old"])
        self.team.merge(self.research, "Merge: vis-old is done")

    def find_old_off(self) -> None:
        assert self.reap_research()["notDeleted"] == ["vis-old"], "nothing has said that its outputs were fetched"

    def delete_old(self) -> None:
        self.team.down(self.research, "vis-old", "--delete", "--yes", machines=[self.old])
        assert not self.left_of(self.old)

    def left_of(self, machine: Machine) -> list[str]:
        return [each for each in self.team.azure.everything() if machine.name in each]

    def drift(self) -> None:
        """Someone opens a machine to the internet with `az`; the plan shows it, and `up` closes it."""
        described, credentials = self.team.azure.description, self.team.azure.control("GET", "credentials")
        az = Az(self.folder / "az", endpoint=described.endpoint, authority_file=described.ca)
        az.login(tenant=credentials["tenant"], client=credentials["clientId"], secret=credentials["clientSecret"])
        rule = ["-g", "vision-shared", "--nsg-name", "vis-label-nsg", "-n", "open", "--priority", "200"]
        az("network", "nsg", "rule", "create", *rule, "--protocol", "*", "--destination-port-ranges", "*")
        ada = self.research.owner
        assert ada("plan", LAB, "--detailed-exitcode").returncode == 3
        assert "opens every port to every address" in ada("status", "vis-label").stdout
        self.team.up(self.research, LAB, machines=self.research.files[LAB])
        assert ada("plan", LAB, "--detailed-exitcode").returncode == 0

    def add_tune(self) -> None:
        plans = self.team.pull_request(
            self.research, "A machine for tuning", {JOBS: [self.train, self.eval, self.night, self.tune]}
        )
        assert plans["nlp-tune"]["summary"]["add"] > 0
        self.team.merge(self.research, "Merge: a machine for tuning")
        self.team.is_identity_broken = True
        self.team.set_faults()
        self.start_jobs()

    def repair_identity(self) -> None:
        self.team.is_identity_broken = False
        self.team.set_faults()

    def move_lab(self) -> None:
        """The folder that CI knows loses the specs; the repository still has them."""
        self.team.pull_request(self.research, "Archive the lab", {LAB: [], MOVED: self.research.files[LAB]})
        assert self.team.without_spec == []
        self.team.merge(self.research, "Merge: archive the lab")

    def move_lab_back(self) -> None:
        self.team.pull_request(self.research, "The lab again", {MOVED: [], LAB: self.research.files[MOVED]})
        self.team.merge(self.research, "Merge: the lab again")

    def rename_demo(self) -> None:
        """The old machine is on; Ben switches it off, and CI deletes it a day later."""
        ben = self.products
        self.team.up(ben, "specs/web.yaml", machines=[self.tokyo, self.demo, self.api])
        files = {WEB: [self.tokyo, self.show, self.api, self.later]}
        plans = self.team.pull_request(ben, "web-demo is web-show now", files)
        assert plans["web-show"]["summary"]["add"] > 0
        assert self.team.without_spec == ["web-demo"]
        assert plans["web-later"]["changes"] == [], "`power: deallocated` does not create it"
        self.team.merge(ben, "Merge: web-demo is web-show now")
        self.team.up(ben, "specs/web.yaml", machines=[self.tokyo, self.show, self.api])
        self.team.down(ben, "web-demo", machines=[self.demo])

    def delete_demo(self) -> None:
        (deleted,) = self.reap_products()["deleted"]
        assert deleted["name"] == "web-demo"
        assert not self.left_of(self.demo)

    def stop_lab(self) -> None:
        """A deallocation takes two hours. The other machine is off at once, and nothing is called off too early."""
        stuck = {"name": "slow", "operation": True, "seconds": 2 * HOUR, "method": "POST", "resource": "vis-study"}
        ada = self.research.owner
        self.team.up(self.research, LAB, machines=self.research.files[LAB])
        self.team.set_faults(stuck)
        ada.patch = {"gpuinfra.app.down.SECONDS": 10.0}
        receipts = self.team.down(self.research, LAB, machines=self.research.files[LAB], code=4)["receipts"]
        assert [(each["name"], each["off"]) for each in receipts] == [("vis-label", True), ("vis-study", False)]
        ada.patch = None
        self.team.set_faults()

    def submit(self) -> None:
        """A job writes outputs, they are not fetched, and Azure evicts the machine."""
        ada = self.research.owner
        self.start_jobs()
        done = ada("submit", "-c", "nlp_eval", "--detach", "quick.py")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: ada.does("runs")["runs"][0]["state"] == "completed", "the job is over")
        self.run = ada.does("runs")["runs"][0]["id"]
        self.team.evict(self.eval)

    def remove_eval(self) -> None:
        files = {JOBS: [self.train, self.night, self.tune]}
        self.team.pull_request(self.research, "No evaluation now", files)
        self.team.merge(self.research, "Merge: no evaluation now")

    def keep_eval(self) -> None:
        assert self.reap_research()["notDeleted"] == ["nlp-eval"]

    def fetch_outputs(self) -> None:
        files = {JOBS: [self.train, self.eval, self.night, self.tune]}
        self.team.pull_request(self.research, "Evaluation again", files)
        self.team.merge(self.research, "Merge: evaluation again")
        self.start_jobs()
        self.research.owner.does("outputs", self.run, "results")
        assert (self.research.owner.workspace / "results" / "result.txt").read_text() == "result"

    def delete_vm(self) -> None:
        self.team.delete_in_portal(self.team.vm(self.long), self.long)

    def remove_disk(self) -> None:
        self.team.down(self.products, "batch-long", "--delete", "--yes", machines=[])
        assert not self.left_of(self.long)

    def delete_group(self) -> None:
        path = f"{self.team.azure.subscription}/resourcegroups/gpuinfra-nlp-tune"
        self.team.delete_in_portal(path, self.tune)

    def resize(self) -> None:
        """A machine that is off gets a larger size, and another price from its next start on."""
        self.show.size, self.show.price = "Standard_NC8as_T4_v3", 0.902
        changes = self.team.pull_request(self.products, "A larger machine", {})["web-show"]["changes"]
        assert changes[0]["differences"][0]["what"] == "size"
        self.team.merge(self.products, "Merge: a larger machine")
        self.team.up(self.products, WEB, "--yes", machines=self.products.files[WEB])

    def keep_api_off(self) -> None:
        self.api.is_kept_off = True
        self.team.pull_request(self.products, "web-api stays off", {})
        self.team.merge(self.products, "Merge: web-api stays off")
        assert [each["name"] for each in self.reap_products()["stopped"]] == ["web-api"]

    def delete_crawl(self) -> None:
        self.team.down(self.products, "batch-crawl", "--delete", "--yes", machines=[self.crawl])

    def start_batch(self) -> None:
        self.team.up(self.products, BATCH, machines=[self.long, self.crawl])

    def start_study(self) -> None:
        self.team.start_in_portal(self.study)

    def timeline(self) -> list[tuple[str, str, Callable[[], object]]]:
        """Return all events: time in UTC, what happens, and the event."""
        events: list[tuple[str, str, Callable[[], object]]] = [
            ("03-01 07:00", "all machines are created", self.create),
            ("03-02 09:00", "the machines of jobs are started again", self.start_jobs),
            ("03-02 09:10", "Azure evicts a spot machine", self.evict(self.eval)),
            ("03-02 12:00", "a lease is extended", self.extend),
            ("03-03 15:00", "a spec is removed", self.remove_old),
            ("03-04 06:30", "someone opens a machine to the internet", self.drift),
            ("03-04 18:20", "the machine without a spec is off, and kept", self.find_old_off),
            ("03-05 06:00", "the machine without a spec is deleted by hand", self.delete_old),
            ("03-05 10:00", "a spec is added; identities of machines are broken", self.add_tune),
            ("03-06 03:00", "a machine is started in the portal", self.start_study),
            ("03-06 14:00", "identities are repaired", self.repair_identity),
            ("03-07 02:00", "someone deletes a resource group", self.delete_group),
            ("03-10 09:00", "a machine is renamed", self.rename_demo),
            ("03-09 12:00", "specs are moved out of the folder", self.move_lab),
            ("03-11 10:00", "the renamed machine is deleted by CI", self.delete_demo),
            ("03-11 06:30", "specs are moved back", self.move_lab_back),
            ("03-11 06:45", "a deallocation is stuck", self.stop_lab),
            ("03-12 09:00", "a job's outputs are not fetched", self.submit),
            ("03-12 10:15", "its spec is removed", self.remove_eval),
            ("03-13 12:00", "its machine is kept", self.keep_eval),
            ("03-15 11:00", "its outputs are fetched", self.fetch_outputs),
            ("03-16 06:00", "machines for batches are started", self.start_batch),
            ("03-16 20:00", "Azure evicts a spot machine", self.evict(self.crawl)),
            ("03-17 01:00", "someone deletes a VM", self.delete_vm),
            ("03-17 04:00", "its disk is deleted", self.remove_disk),
            ("03-18 08:00", "a machine is resized", self.resize),
            ("03-19 13:00", "a spec keeps its machine off", self.keep_api_off),
            ("03-24 13:00", "a machine is deleted", self.delete_crawl),
            # The hours of Chicago and Berlin move with daylight saving, each on its own day.
            ("03-10 03:30", "before the hours of Chicago", self.reap_research),
            ("03-10 04:05", "in the hours of Chicago", self.reap_research),
            ("03-17 03:05", "in the hours of Chicago, an hour earlier", self.reap_research),
            ("03-17 09:05", "after the hours of Chicago, an hour earlier", self.reap_research),
            ("03-29 06:05", "in the hours of Berlin, an hour earlier", self.reap_research),
            ("03-29 17:05", "after the hours of Berlin, an hour earlier", self.reap_research),
        ]
        events = [(f"2027-{when}", what, event) for when, what, event in events]
        for number in range(DAYS):
            day = FIRST + timedelta(days=number)
            if day in QUIET_WEEK:
                continue
            if day.weekday() < 2:
                events.append((f"{day} 07:30", "reap in both repositories", self.reap_both))
            elif day.weekday() == 2:
                events.append((f"{day} 07:30", "reap in research", self.reap_research))
            if day.weekday() in {0, 1, 2, 4}:
                events.append((f"{day} 18:20", "reap in research", self.reap_research))
        return sorted(events, key=lambda event: event[0])


def add_others(azure: Azure) -> None:
    """Machines and a disk of other teams: without our tags, and with our tag in a group that is not for it."""
    make_group(azure, "others")
    make_machine(azure, "others", "render-farm", {"owner": "films"})
    make_group(azure, "vision-shared")
    make_disk(azure, "vision-shared", "photos", {"gpuinfra:name": "vis-label"})


@pytest.mark.timeout(1200)
def test_team_pays_for_what_it_used(azure: Azure, tmp_path: Path) -> None:
    team = Team(azure, tmp_path, "2027-03-01 00:00")
    add_others(azure)
    team.note_foreign()
    month = Month(team, tmp_path)
    for when, what, event in month.timeline():
        with team.at(when, what):
            event()
    with team.at("2027-04-01 00:00", "the month is over"):
        team.check_left()
        team.check_money()
        team.check_foreign()
