"""Report what machines have cost, and what was saved."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_costs import jobs_of, ledger_entries
from gpuinfra.app.settings import Settings, seconds_of
from gpuinfra.app.settlement import settle_runs
from gpuinfra.app.specs import common_subscription
from gpuinfra.diagnostics import Code, Exit, Problem, did_you_mean, problem
from gpuinfra.models.cost import CostReport, CostRow
from gpuinfra.models.plan import Kind
from gpuinfra.models.receipt import LedgerEntry, entries_from_json
from gpuinfra.models.run import Run
from gpuinfra.parse.files import load_paths
from gpuinfra.provision.costing import report
from gpuinfra.provision.costing.activity import KEPT, Event, read_events
from gpuinfra.provision.costing.evidence import Evidence
from gpuinfra.provision.costing.history import CostHistory
from gpuinfra.provision.costing.report import Job, PriceBook
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import shipped_prices
from gpuinfra.provision.ownership import machine_of_row, partition
from gpuinfra.provision.tags import machine_key
from gpuinfra.store import History as Runs

SECONDS = 300.0
CHOICES = ("machine", "run", "tag")
# A machine that is on at the beginning of the span was probably switched on at most this long before.
LOOK_BACK = timedelta(days=31)
# No machine is older than Azure.
FIRST = datetime(2010, 1, 1, tzinfo=UTC)
_DAYS = re.compile(r"([1-9][0-9]{0,3})d")


def cost(settings: Settings, since: str, by: str | None, tag: str | None, frontend: Frontend) -> CostReport:
    """Return what machines have cost since a time, by machine, run or tag."""
    wanted = _wanted(by, tag)
    _moment(since, datetime.now(UTC))  # report an invalid value before any request
    specs = load_paths([str(settings.folder)]).specs
    with cloud_errors("reading what machines cost"):
        session = open_session(settings, common_subscription(specs), SECONDS, frontend)
        return CostQuery(session, frontend).report(since, wanted, tag)


class CostQuery:
    """A query that collects the data and computes the costs."""

    def __init__(self, session: CloudSession, frontend: Frontend) -> None:
        self.session, self.frontend = session, frontend
        self.log = self.receipts = "read"

    def report(self, since: str, by: str, tag: str | None) -> CostReport:
        """Return the report with the requested rows."""
        evidence, start = self._evidence(since)
        book = PriceBook(self.session.market.prices(evidence.sizes()), shipped_prices())
        histories = evidence.histories(book)
        return CostReport(
            since=start,
            until=evidence.now,
            by=by,
            rows=tuple(self._rows(histories, by, tag, start, evidence.now)),
            log=self.log,
            log_since=evidence.log_since,
            receipts=self.receipts,
            prices=book.used,
            simulated=self.session.cloud.simulated,
        )

    def _evidence(self, since: str) -> tuple[Evidence, datetime]:
        cloud = self.session.cloud
        listed, entries = cloud.fleet.holdings(), self._entries()
        machines = self._ours(Kind.VM, listed[0])
        known = {machine_key(ref.group, ref.name) for ref in (machine_of_row(body).ref for body in machines)}
        known |= {machine_key(entry.group, entry.machine) for entry in entries if entry.group}
        disks, addresses = self._ours(Kind.DISK, listed[1], known), self._ours(Kind.PUBLIC_IP, listed[2], known)
        now = cloud.now()
        start = _moment(since, now)
        found = Evidence(
            now=now,
            entries=entries,
            machines=machines,
            disks=disks,
            addresses=addresses,
            seen=_seen(self._runs(), now),
        )
        found = self._with_log(found, max(now - KEPT, start - LOOK_BACK))
        return (self._with_log(found, now - KEPT) if found.lacks_earlier_events() else found), start

    def _with_log(self, evidence: Evidence, since: datetime) -> Evidence:
        if evidence.log_since and evidence.log_since <= since:
            return evidence
        events = self._events(since, evidence.now)
        return replace(evidence, events=events or (), log_since=None if events is None else since)

    def _ours(self, kind: Kind, bodies: list[dict[str, Any]], machines: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return the bodies that are ours, and report those that only have our tag."""
        ours, strange = partition(kind, bodies, machines)
        for line in strange:
            self.frontend.note(line)
        return ours

    def _events(self, since: datetime, until: datetime) -> list[Event] | None:
        """Return the events in Azure's log, or None if it cannot be read, so that the ledger applies."""
        try:
            return read_events(self.session.cloud.fleet.activity_log(since, until))
        except CloudError as error:
            if error.fault in {Fault.INTERRUPTED, Fault.LOGIN}:
                raise
            self.log = _why_not(error)
            return None

    def _entries(self) -> list[LedgerEntry]:
        """Return the entries of this workspace and of the team for this subscription, oldest first.

        If one of the two cannot be read, report that and use the other.
        """
        cloud = self.session.cloud
        own = ledger_entries(self.session.settings, simulated=cloud.simulated, warn=self.frontend.note)
        found = [each for each in own if each.subscription.casefold() == cloud.subscription.casefold()]
        return sorted([*found, *self._shared_entries()], key=lambda entry: entry.at)

    def _shared_entries(self) -> list[LedgerEntry]:
        try:
            return entries_from_json(self.session.cloud.fleet.records())
        except CloudError as error:
            if error.fault in {Fault.INTERRUPTED, Fault.LOGIN}:
                raise
            self.receipts = _why_not(error)
            return []

    def _rows(
        self, histories: list[CostHistory], by: str, tag: str | None, since: datetime, until: datetime
    ) -> list[CostRow]:
        if by == "run":
            return report.by_run(histories, self._jobs(until), since, until)
        return report.by_tag(histories, tag, since, until) if tag else report.by_machine(histories, since, until)

    def _jobs(self, now: datetime) -> list[Job]:
        return jobs_of(settle_runs(self.session.settings, self._runs()).runs, now)

    def _runs(self) -> list[Run]:
        found = Runs(self.session.settings.state).list()
        # A machine in the sandbox may have the name of a real one.
        return [run for run in found if run.simulated == self.session.cloud.simulated]


def _why_not(error: CloudError) -> str:
    return "not allowed" if error.fault is Fault.DENIED else f"not read: {error.code}"


def _seen(runs: Iterable[Run], now: datetime) -> dict[str, list[datetime]]:
    """Return when machines were on because a job ran on them, by case-folded name."""
    found: dict[str, list[datetime]] = {}
    for job in jobs_of(runs, now):
        found.setdefault(job.machine.casefold(), []).extend([job.started, *([job.ended] if job.is_over else [])])
    return found


def _wanted(by: str | None, tag: str | None) -> str:
    wanted = by or ("tag" if tag else "machine")
    if wanted not in CHOICES:
        help_line = did_you_mean(wanted, CHOICES) or "`machine`, `run` or `tag`"
        raise usage("unknown value", f"`--by {wanted}`", help_line)
    if (wanted == "tag") != bool(tag):
        note = "`--by tag` is given without a tag's name" if not tag else f"`--tag {tag}` is given with `--by {wanted}`"
        raise usage("wrong usage", note, "for example `gpuinfra cost --by tag --tag project`")
    return wanted


def _moment(text: str, now: datetime) -> datetime:
    """Parse `30d`, `12h`, or a date."""
    if found := _DAYS.fullmatch(text):
        return max(FIRST, now - timedelta(days=int(found[1])))
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        return max(FIRST, now - timedelta(seconds=seconds_of("--since", text)))
    return max(FIRST, min(now, day if day.tzinfo else day.replace(tzinfo=UTC)))


def usage(summary: str, note: str, help_line: str) -> Problem:
    """Return the Problem for an invalid option."""
    return problem(Code.USAGE, summary, note, help_line, exit_code=Exit.USAGE)
