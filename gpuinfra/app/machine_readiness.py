"""Wait until a machine that is on can run jobs. If it cannot, switch off what `up` switched on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote

from gpuinfra.app.access import CloudSession, look_at_vm
from gpuinfra.app.down import tear_down
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import Named
from gpuinfra.app.sandbox import Sandbox
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, problem
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.plan import Plan
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.models.target import Target
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.login.acceptance import FIRST_BOOT, is_created_with, login_seconds
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import UNUSABLE
from gpuinfra.provision.waiting import wait_until
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.readiness import SSH, NotReady, Opener, wait_for_docker, wait_until_ready

SSH_SECONDS, GPU_SECONDS, DOCKER_SECONDS = 600.0, 300.0, 300.0
REMOTEDOCKER = "remotedocker"
WITHOUT_DOCKER = "set `type: remote` under `target` in the spec, and jobs run in the machine's own Python"
OFF_SECONDS = 1200.0
ENDING_SECONDS = 60.0
ENDED = {
    "gone": "nothing is billed",
    "deallocated": "only its disk and address are billed",
    "deallocating": "it is billed until Azure has switched it off",
}
LOOK_SECONDS = 10.0


def make_ready(session: CloudSession, target: Target, spec: Spec, frontend: Frontend, login: Login) -> GpuFacts:
    """Wait until the machine is usable. If `up` switched it on and it is not usable, switch it off again."""
    deadline = session.cloud.deadline
    ssh, gpu = min(SSH_SECONDS, deadline.left), min(GPU_SECONDS, deadline.left)
    try:
        opener = watched_opener(session.cloud, spec)
        facts = wait_until_ready(
            target,
            ssh_seconds=ssh,
            gpu_seconds=gpu,
            login_seconds=login.seconds(session.cloud.now()),
            progress=frontend,
            opener=opener,
        )
        if target.type == REMOTEDOCKER:
            _wait_for_docker(session, target, frontend, opener)
    except NotReady as error:
        if ended := _ended_meanwhile(session, spec):
            raise ended from error
        found = Diagnostic(Code.NOT_READY, "machine is not ready", note=error.reason, help=error.help)
        if error.is_login_refused and login.is_of_another_key:
            found = _not_accepted(target, spec, login.public_key, error)
        if login.plan.switches_on:
            raise _not_ready(session, spec, found, frontend) from error
        raise _left_running(spec, found) from error
    return facts


@dataclass(frozen=True)
class Login:
    """What decides whether and when the machine accepts this computer's key."""

    plan: Plan
    observed: Observed
    public_key: str

    @property
    def _machine(self) -> ObservedResource | None:
        return self.observed.part(Kind.VM)

    def seconds(self, now: datetime) -> float:
        """Return for how long to retry a refused login: the machine may not have our key yet."""
        machine = self._machine
        return login_seconds(self.plan, machine, self.public_key, now) if machine else FIRST_BOOT

    @property
    def is_of_another_key(self) -> bool:
        """Whether the machine was created with another key, so that a refused login stays refused."""
        machine = self._machine
        return machine is not None and not is_created_with(machine, self.public_key)


def _wait_for_docker(session: CloudSession, target: Target, frontend: Frontend, opener: Opener) -> None:
    seconds = min(DOCKER_SECONDS, session.cloud.deadline.left)
    simulated = session.cloud.simulated
    check = wait_for_docker(target, seconds=seconds, progress=frontend, opener=opener, simulated=simulated)
    if not check.passed:
        help_line = Sandbox().docker_help or "start Docker here"
        frontend.note(f"jobs in containers cannot run on {target.machine}: {help_line}, or {WITHOUT_DOCKER}")


def watched_opener(cloud: Cloud, spec: Spec) -> Callable[[Target, float], Connection]:
    """Return a function that opens SSH connections and checks every few seconds that Azure shows the machine as on."""
    next_look = time.monotonic() + LOOK_SECONDS

    def open_connection(target: Target, seconds: float) -> Connection:
        nonlocal next_look
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + LOOK_SECONDS
            try:
                machine = look_at_vm(cloud, spec)
            except CloudError:
                return SshConnection.open(target, seconds)  # without an answer from Azure, the state is unknown
            if machine is None or machine.power in UNUSABLE:
                state = machine.power if machine else "gone"
                reason = f"`{spec.name}` is {state}: it was deallocated while gpuinfra waited"
                raise NotReady(SSH, reason, "`gpuinfra up SPEC` starts it again")
        return SshConnection.open(target, seconds)

    return open_connection


def _ended_meanwhile(session: CloudSession, spec: Spec) -> Problem | None:
    """Return the Problem if another command stopped the machine while this one waited for it, else None."""
    cloud = session.cloud

    def power() -> str:
        machine = look_at_vm(cloud, spec)
        return machine.power if machine else "gone"

    try:
        wait_until(lambda: power() != "deallocating", cloud.grant(ENDING_SECONDS), cloud.interrupt.sleep)
        state = power()
    except CloudError:
        return None
    if state not in ENDED:
        return None
    note = f"`{spec.name}` is {state}: it was ended while `up` waited for it; {ENDED[state]}"
    return problem(Code.NOT_READY, "machine was ended", note, "`gpuinfra up SPEC` starts it again")


def _not_accepted(target: Target, spec: Spec, public_key: str, error: NotReady) -> Diagnostic:
    """Describe a refused login to a machine that was created on another computer or by another user."""
    add = f"echo {quote(public_key)} | gpuinfra ssh {spec.name} -- tee -a .ssh/authorized_keys"
    help_line = f"run this where the machine was created: `{add}`"
    if not target.simulated:
        group, user = quote(spec.group_name), quote(target.username)
        words = f"az vm user update -g {group} -n {spec.name} -u {user} --ssh-key-value {quote(public_key)}"
        help_line = f"{help_line}; or with write access in Azure: `{words}`"
    return Diagnostic(
        Code.LOGIN_REFUSED,
        "the machine does not accept this computer's SSH key",
        note=f"`{spec.name}` was created with another SSH key: {error.reason}",
        help=help_line,
    )


def _left_running(spec: Spec, found: Diagnostic) -> Problem:
    """Return the Problem for a machine that was on before. It stays on, because another user may be using it."""
    note = f"{found.note}; it was on before, and was left on: it is billed until `gpuinfra down {spec.name}`"
    return Problem(replace(found, note=note))


def _not_ready(session: CloudSession, spec: Spec, found: Diagnostic, frontend: Frontend) -> Problem:
    deadline = session.cloud.grant(OFF_SECONDS)
    named = Named(spec.name, spec.group_name, spec.subscription)
    try:
        receipt = tear_down(session, named, frontend, deadline, delete=False, cause="gpuinfra up: it was not ready")
        is_off = receipt.is_proof
    except CloudError:
        is_off = False
    state = "it was deallocated, so nothing is billed but its disk and address"
    bad = f"and it could not be deallocated: it may be billed; run `gpuinfra down {spec.name}`"
    return Problem(
        replace(
            found,
            note=f"{found.note}; {state if is_off else bad}",
            help=found.help or f"try again, or end it: `gpuinfra down {spec.name} --delete`",
        ),
        exit_code=Exit.FAILED if is_off else Exit.LEFT_BEHIND,
    )
