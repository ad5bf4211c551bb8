"""Show what `up` would do, with the SSH key for new machines. Nothing is changed in Azure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpuinfra.app.access import CloudSession, cloud_errors, is_simulated, open_session
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.inventory import keys_of, unmanaged
from gpuinfra.app.job_request import describe_job
from gpuinfra.app.machine_tasks import ErrorCollector, for_each
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import default_specs, load_specs, spec_paths
from gpuinfra.diagnostics import Code, Problem, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.inventory import PlanReport, UnmanagedResource, totals_of
from gpuinfra.models.plan import Plan, Ref
from gpuinfra.models.spec import Spec
from gpuinfra.models.ssh import AUTO, OWN_KEY, lacks_key, own_private_key
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import inventory
from gpuinfra.provision.login import create_own_key, new_host_key, own_address, read_public_key
from gpuinfra.provision.plan import EachGroupOnce
from gpuinfra.provision.preflight import Preflight, allocate
from gpuinfra.provision.reaping.spec_history import repository_of, spec_history
from gpuinfra.provision.task import Journal
from gpuinfra.provision.up import Provisioner, Survey


def public_key_for(settings: Settings, spec: Spec, frontend: Frontend, *, creates: bool) -> str:
    """Return the administrator's public key. With `creates`, offer to create a missing one."""
    text = spec.admin.key()
    if lacks_key(text):
        if not creates:
            frontend.note(f"there is no SSH key yet: `up` creates {OWN_KEY.removesuffix('.pub')}")
            return new_host_key().public  # used only for the plan
        _create(settings, frontend)
    return read_public_key(spec.admin.key(), settings.folder)


def _create(settings: Settings, frontend: Frontend) -> None:
    is_new = own_private_key() is None
    private = Path(OWN_KEY).expanduser().with_suffix("")
    if is_new and not _consents(settings, frontend, private):
        raise _no_key(private)
    try:
        create_own_key()
    except (OSError, ValueError, TypeError) as error:
        note = f"`{private}`: {error.strerror if isinstance(error, OSError) else 'not a private key that can be used'}"
        help_line = "name a key of your own in `admin.sshPublicKey`"
        raise problem(Code.NO_PUBLIC_KEY, "no SSH key", note, help_line) from error
    if is_new:
        frontend.note(f"created an SSH key for gpuinfra: {private}")


def _consents(settings: Settings, frontend: Frontend, private: Path) -> bool:
    if settings.yes or settings.cloud == "sandbox":
        return True
    text = f"You have no SSH key ({private} and ~/.ssh/id_ed25519 are missing). Create one for gpuinfra?"
    return frontend.can_ask and frontend.confirm(Question(text, default=True))


def _no_key(private: Path) -> Problem:
    return problem(
        Code.NO_PUBLIC_KEY,
        "no SSH key",
        "`~/.ssh/id_ed25519.pub` is missing; nothing was created",
        f"`--yes` creates one for gpuinfra, `{private}`; or name a key of your own in `admin.sshPublicKey`",
    )


SECONDS = 300.0
LOOPBACK_SOURCE = "127.0.0.1/32"


@dataclass(frozen=True)
class SurveyedMachine:
    """A machine of a command, before it is planned or created."""

    work: Provisioner
    survey: Survey
    checked: Preflight | None
    """The result of the preflight, with only the places for which the machines before it leave quota."""


Surveyed = tuple[LocatedSpec, SurveyedMachine | Problem]
"""A spec, and its machine or why it cannot be planned."""


@dataclass(frozen=True)
class PlanResult:
    """What `plan` found, and the problems with the other machines."""

    report: PlanReport
    errors: ErrorCollector
    ended_by: BaseException | None = None
    """Raise it after the report was shown."""


def make_plans(settings: Settings, words: Sequence[str], frontend: Frontend) -> PlanResult:
    """Return the plans for the specs in the files that the words name. With a folder, also find what is in no spec.

    A broken spec, or one that cannot be planned, does not hide the plans of the others.
    """

    def task(surveyed: Surveyed, settings: Settings, _: Frontend) -> Plan:
        located, machine = surveyed
        if isinstance(machine, Problem):
            raise machine
        return replace(machine.work.plan(machine.survey), job=describe_job(settings.folder, located.spec))

    errors, simulated = ErrorCollector(), is_simulated(settings)
    paths = spec_paths(settings, words)
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    specs = _load(paths, folders, errors) if words else default_specs(settings)
    surveyed, ended_by = survey_all(settings, specs, frontend)
    if ended_by:
        return PlanResult(PlanReport(simulated=simulated), errors, ended_by)
    done = for_each(
        surveyed,
        task,
        settings,
        frontend,
        errors=errors,
        name_of=lambda each: each[0].spec.name,
        span_of=lambda each: each[0].span,
    )
    report = PlanReport(tuple(map(EachGroupOnce(), done.results)), simulated=simulated)
    if done.ended_by is None and (folders or len(specs) > 1):
        with errors.capture():
            report = _with_totals(settings, report, specs, folders, frontend)
    return PlanResult(report, errors, done.ended_by)


def _load(paths: Sequence[str], folders: Sequence[Path], errors: ErrorCollector) -> list[LocatedSpec]:
    """Return the specs; none if all specs of a folder were deleted, whose machines may still be there."""
    try:
        return load_specs(paths, errors)
    except Problem as problem:
        if not any(spec_history(folder, datetime.now(UTC)).deleted for folder in folders):
            raise
        errors.add(problem)
        return []


def _with_totals(
    settings: Settings, report: PlanReport, specs: Sequence[LocatedSpec], folders: Sequence[Path], frontend: Frontend
) -> PlanReport:
    """Return the report with its totals, and with what is in no spec of the folders."""
    found, billed, notes = dict[tuple[str, Ref], UnmanagedResource](), list[float | None](), dict[str, None]()
    for subscription in dict.fromkeys(each.spec.subscription for each in specs) or (None,):
        session = open_session(settings, subscription, SECONDS, frontend)
        with cloud_errors("listing machines"):
            rows = session.cloud.fleet.machines()
            prices = session.market.prices(inventory.sizes(rows))
            billed += inventory.billed_now(rows, keys_of(specs), prices)
            parts = session.cloud.fleet.parts() if folders else []
            for folder in folders:
                beside, note = unmanaged(session, folder, specs, rows, parts, prices)
                found |= {(session.cloud.subscription, each.ref): each for each in beside}
                notes |= {note: None} if note else {}
    return replace(
        report,
        unmanaged=tuple(found.values()),
        totals=totals_of(report.plans, list(found.values()), billed),
        notes=tuple(notes),
    )


def survey_all(
    settings: Settings, specs: Sequence[LocatedSpec], frontend: Frontend
) -> tuple[list[Surveyed], BaseException | None]:
    """Look at each machine, and share the quota among them in the order of the specs. Nothing is changed.

    Return a Problem for a machine that cannot be planned, and an exception that ended the command.
    """

    def task(located: LocatedSpec, settings: Settings, frontend: Frontend) -> tuple[Provisioner, Survey] | Problem:
        try:
            session = open_session(settings, located.spec.subscription, SECONDS, frontend)
            with cloud_errors(f"planning {located.spec.name}"):
                work = open_provisioner(session, located, frontend, writes=False)
                return work, work.survey()
        except Problem as problem:
            return problem

    done = for_each(specs, task, settings, frontend, errors=ErrorCollector(), name_of=lambda each: each.spec.name)
    if done.ended_by:
        return [], done.ended_by
    demands = [each[1].demand for each in done.results if not isinstance(each, Problem) and each[1].demand]
    shares = iter(allocate(demands))
    return [
        (located, each if isinstance(each, Problem) else _with_share(*each, shares))
        for located, each in zip(specs, done.results, strict=True)
    ], None


def _with_share(work: Provisioner, survey: Survey, shares: Iterator[Preflight | Problem]) -> SurveyedMachine | Problem:
    share = next(shares) if survey.demand else None
    if isinstance(share, Problem):
        return share
    if share:
        work.limit(share)
    return SurveyedMachine(work, survey, share)


def make_plan(settings: Settings, located: LocatedSpec, frontend: Frontend) -> Plan:
    """Return the plan for one spec."""
    spec = located.spec
    session = open_session(settings, spec.subscription, SECONDS, frontend)
    with cloud_errors(f"planning {spec.name}"):
        plan = open_provisioner(session, located, frontend, writes=False).plan()
    return replace(plan, job=describe_job(settings.folder, spec))


def open_provisioner(session: CloudSession, located: LocatedSpec, frontend: Frontend, *, writes: bool) -> Provisioner:
    """Return a Provisioner for a spec, with everything that planning and creating need."""
    spec = located.spec

    repository, note = repository_of(Path(located.span.file))
    if note and writes:
        frontend.note(note)
    task = session.task(spec.name, frontend)
    return Provisioner(
        spec=spec,
        task=task if writes else replace(task, journal=Journal(None, spec.name, "")),
        sources=ssh_sources(spec, simulated=session.cloud.simulated),
        public_key=public_key_for(session.settings, spec, frontend, creates=writes),
        repository=repository,
    )


def ssh_sources(spec: Spec, *, simulated: bool) -> tuple[str, ...]:
    """Return the addresses that may reach SSH. `auto` is this computer's address, loopback in the sandbox."""
    found = []
    for source in spec.network.allow_ssh_from:
        if source == AUTO:
            found.append(LOOPBACK_SOURCE if simulated else f"{own_address()}/32")
        else:
            found.append(source if "/" in source else f"{source}/32")
    return tuple(dict.fromkeys(found))
