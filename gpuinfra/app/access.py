"""Open the cloud for a command: Azure as the shell is configured for it, or the sandbox. Keep the two apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Interrupted, Question

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.models.plan import MachineId
    from gpuinfra.models.spec import Spec
    from gpuinfra.models.target import Target
    from gpuinfra.provision.azure.access import Access
    from gpuinfra.provision.azure.clients import Clients
    from gpuinfra.provision.cloud import Cloud
    from gpuinfra.provision.market import Market
    from gpuinfra.provision.observed_resource import ObservedResource
    from gpuinfra.provision.task import Journal, Task
    from gpuinfra.provision.waiting import Deadline, Progress

# For one look. Meanwhile, a client that waits for the machine keeps trying to reach it.
LOOK_SECONDS = 15.0
# For the report after Ctrl-C, which must be short.
INTERRUPT_SECONDS = 3.0


def open_access(settings: Settings, subscription: str | None = None) -> Access:
    """Return the cloud's endpoints and login. `subscription` is the one in the spec."""
    if settings.cloud == "sandbox":
        return _sandbox_access()
    from gpuinfra.provision.azure.access import current

    return current(subscription)


def _open_clients(
    settings: Settings, subscription: str | None, seconds: float, progress: Progress | None = None, *, writes: bool
) -> Clients:
    """Return the SDK's clients. This sends no request yet. Without `writes`, requests change nothing."""
    from gpuinfra.provision.azure.clients import Clients, RequestLimits
    from gpuinfra.provision.waiting import Deadline

    limits = RequestLimits(Deadline.after(seconds), progress, writes=writes, interrupt=settings.interrupt)
    return Clients(open_access(settings, subscription), limits, settings.correlation_id)


def open_cloud(
    settings: Settings,
    subscription: str | None,
    seconds: float,
    *,
    writes: bool = False,
) -> Cloud:
    """Return the cloud, with `seconds` for all its requests. Without `writes`, requests change nothing."""
    from gpuinfra.provision.azure.cloud import AzureCloud

    return AzureCloud(_open_clients(settings, subscription, seconds, writes=writes))


def look_at_vm(cloud: Cloud, machine: Spec | MachineId) -> ObservedResource | None:
    """Return the machine's VM as Azure shows it, or None if there is none."""
    from gpuinfra.models.plan import Kind
    from gpuinfra.provision.tags import ref_of

    return cloud.look(ref_of(Kind.VM, machine.group_name, machine.name))


def _sandbox_access() -> Access:
    from gpuinfra.app.sandbox import Sandbox
    from gpuinfra.provision.azure.access import Access, ClientSecret

    server = Sandbox()
    client, description = server.client(), server.status()
    with server.problems():
        credentials = client.get("credentials")
    assert description is not None, "the client has just answered"  # noqa: S101 for the type checker
    return Access(
        subscription=description.subscription,
        arm=description.endpoint,
        authority=description.authority,
        ca=description.ca,
        prices=f"{description.endpoint}/api/retail/prices",
        client_secret=ClientSecret(credentials["tenant"], credentials["clientId"], credentials["clientSecret"]),
        ssh_port=description.ssh_port or 22,
        simulated=True,
    )


def settings_for_target(settings: Settings, target: Target) -> Settings:
    """Return the settings that find a target's machine: a simulated one exists only in the sandbox."""
    return replace(settings, cloud="sandbox") if target.simulated else settings


def power_of(
    settings: Settings, spec: Spec | MachineId | None, *, is_there: bool = False, resource_id: str = ""
) -> Callable[[], str | None] | None:
    """Return a function that describes the machine's power state if it is off, or returns None if it is on or unknown.

    A machine that Azure does not find is gone if it certainly existed: with the same login (`is_there`), or under the
    target's own `resource_id`. Otherwise the login may be for another subscription. Imports happen on the first call,
    because most jobs never need it.
    """
    if spec is None:
        return None
    machine = spec

    def ask() -> str | None:
        from gpuinfra.models.plan import Kind, same_machine
        from gpuinfra.provision.errors import CloudError
        from gpuinfra.provision.power import SHUT_DOWN, UNUSABLE
        from gpuinfra.provision.tags import ref_of

        try:
            cloud = open_cloud(settings, machine.subscription, LOOK_SECONDS)
            found = look_at_vm(cloud, machine)
        except (CloudError, Problem):
            return None  # without an answer from Azure, the state is unknown
        if found is None:
            place = ref_of(Kind.VM, machine.group_name, machine.name).id(cloud.subscription)
            is_known = is_there or same_machine(resource_id, place)
            return f"{machine.name} is gone" if is_known else None
        billed = f", and billed until `gpuinfra down {machine.name}`" if found.power in SHUT_DOWN else ""
        return f"{machine.name} is {found.power}{billed}" if found.power in UNUSABLE else None

    return ask


@contextmanager
def cloud_errors(doing: str) -> Iterator[None]:
    """Convert errors from Azure to Problems."""
    from gpuinfra.provision.errors import CloudError, explain

    try:
        yield
    except CloudError as error:
        raise explain(error, doing) from error


@dataclass(frozen=True)
class CloudSession:
    """A cloud, opened for one command."""

    settings: Settings
    cloud: Cloud
    market: Market

    def machine_id(self, name: str, group: str | None) -> MachineId:
        """Return the ID of a machine in this session's subscription."""
        from gpuinfra.models.plan import MachineId
        from gpuinfra.provision.tags import default_group

        return MachineId(self.cloud.subscription, group or default_group(name), name)

    def task(self, name: str, progress: Progress, deadline: Deadline | None = None) -> Task:
        """Return what the steps of a change of a machine need."""
        from gpuinfra.provision.task import Task

        return Task(self.cloud, self.market, progress, self.journal(name), deadline or self.cloud.deadline)

    def journal(self, name: str) -> Journal:
        """Return the journal for actions on a machine."""
        from gpuinfra.provision.task import Journal

        folder = None if self.settings.ignores_state else self.settings.state
        return Journal(folder, name, self.settings.correlation_id, self.cloud.now)


def open_session(
    settings: Settings, subscription: str | None, seconds: float, progress: Progress, *, writes: bool = False
) -> CloudSession:
    """Open the cloud, with `seconds` for all its requests.

    `subscription` is the spec's. Raise Problem if the environment selects another one.
    """
    from gpuinfra.provision.azure.access import check_subscription
    from gpuinfra.provision.azure.cloud import AzureCloud
    from gpuinfra.provision.azure.market import AzureMarket

    if settings.cloud != "sandbox":
        check_subscription(os.environ, subscription)
    clients = _open_clients(settings, subscription, seconds, progress, writes=writes)
    return CloudSession(settings, AzureCloud(clients), AzureMarket(clients))


def is_simulated(settings: Settings) -> bool:
    """Return whether this command uses the sandbox."""
    from gpuinfra.provision.azure.access import is_local

    return settings.cloud == "sandbox" or is_local(os.environ)


def check_target(settings: Settings, target: Target) -> None:
    """Raise Problem if a real command would use a simulated machine, or a sandbox command a real one."""
    if not target.address or target.simulated == is_simulated(settings):
        return
    if target.simulated:
        note = f"`{target.name}` is a simulated machine of the embedded Azure, and this command is for real ones"
        help_line = (
            f"to use it, add `--sandbox`; for a real machine of this name, `gpuinfra detach {quote(target.name)}` first"
        )
    else:
        note = f"`{target.name}` is a real machine, and this command is for the embedded Azure"
        help_line = "to use it, leave out `--sandbox`, and unset GPUINFRA_CLOUD and GPUINFRA_ARM_ENDPOINT"
    raise problem(Code.WRONG_CLOUD, "target of another cloud", note, help_line, exit_code=Exit.USAGE)


def consent_to_replace(settings: Settings, workspace: Path, name: str, frontend: Frontend, *, simulated: bool) -> None:
    """Ask before a simulated target replaces a real one, or the reverse. Without a terminal, it needs `--yes`."""
    from gpuinfra.workbench.targets import find_target

    before = find_target(workspace, name)
    # A target without a host key was never used by gpuinfra: perhaps a Workbench file whose machine is long gone.
    if before is None or not (before.address and before.host_key) or before.simulated == simulated:
        return
    old, new = ("simulated", "real") if before.simulated else ("real", "simulated")
    question = Question(f"Replace the {old} target {name} ({before.address}) by a {new} one?")
    note = f"`{name}` is a {old} machine at {before.address}, and would become a {new} one; nothing was changed"
    help_line = "choose another name (`target.name` in a spec), or give `--yes` to replace it"
    refusal = problem(Code.NEEDS_CONSENT, "this would replace a target", note, help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, question, refusal)


def say_what_exists(session: CloudSession, name: str, group: str | None, frontend: Frontend) -> None:
    """Look once more at the machine, briefly because the user wants to leave, and report what exists."""
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.target import stops_at

    session.cloud.interrupt.clear()
    session.cloud.grant(INTERRUPT_SECONDS)
    try:
        observed = session.cloud.observe(name, group)
    except (CloudError, KeyboardInterrupt):
        observed = None
    resources = None if observed is None else [str(part.ref) for part in observed.ours()]
    stops = stops_at(observed) if observed else None
    frontend.show(Interrupted(name, resources, stops, simulated=session.cloud.simulated))
