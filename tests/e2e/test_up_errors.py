"""Errors of `up`: one clear error, its next step, exit code 1, and nothing created."""

import json
import socket
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from gpuinfra.sandbox import running
from tests.e2e.azure import GROUP, Azure
from tests.e2e.user import PARTS, User
from tests.variants import variant, variants

SOLD = "fortinet:fortinet_fortigate-vm_v5:fortinet_fg-vm_payg:latest"


def assert_nothing_created(azure: Azure) -> None:
    assert azure.everything() == []
    assert not azure.is_billed()


# Login and endpoint


def _without(environment: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in names}


def test_wrong_client_secret_is_reported_with_its_reason(user: User, azure: Azure) -> None:
    environment = {**azure.environment(), "AZURE_CLIENT_SECRET": "wrong-client-secret"}
    problem = user.fails("up", "gpu.yaml", code="login-failed", sandbox=False, **environment)
    assert "AADSTS7000215: Invalid client secret provided" in problem["note"], "the reason, not only that it failed"
    assert "wrong-client-secret" not in json.dumps(problem)
    assert "az login" in problem["help"]
    assert "AZURE_CLIENT_SECRET" in problem["help"]
    assert azure.writes() == []
    assert_nothing_created(azure)


def test_missing_credentials_are_reported(user: User, azure: Azure) -> None:
    environment = _without(azure.environment(), "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
    done = user("up", "gpu.yaml", sandbox=False, **environment, PATH="/nonexistent")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: not logged in to Azure" in done.stderr
    assert "help: `az login`" in done.stderr
    assert "--sandbox" in done.stderr
    assert azure.requests() == []


@pytest.mark.parametrize("chosen", [False, True], ids=["no subscription chosen", "unknown subscription chosen by az"])
def test_missing_subscription_is_reported(user: User, azure: Azure, chosen: bool) -> None:
    environment = _without(azure.environment(), "AZURE_SUBSCRIPTION_ID")
    unknown = str(uuid.uuid4())
    if chosen:
        (user.home / ".azure").mkdir()
        profile = {"subscriptions": [{"id": unknown, "isDefault": True}]}
        (user.home / ".azure" / "azureProfile.json").write_text(json.dumps(profile), "utf-8-sig")
    problem = user.fails("up", "gpu.yaml", code="no-subscription", sandbox=False, **environment)
    assert "AZURE_SUBSCRIPTION_ID" in problem["help"]
    if chosen:
        assert unknown in problem["note"]
        assert "az account list" in problem["help"]
    else:
        assert azure.requests() == []
    assert_nothing_created(azure)


def test_endpoint_must_be_https(user: User, azure: Azure) -> None:
    endpoint = azure.description.endpoint.replace("https://", "http://")
    environment = {**azure.environment(), "GPUINFRA_ARM_ENDPOINT": endpoint}
    problem = user.fails("up", "gpu.yaml", code="bad-endpoint", sandbox=False, **environment)
    assert endpoint in problem["note"]
    assert "https only" in problem["note"]
    assert azure.requests() == []


def test_unreachable_endpoint_is_reported(user: User, azure: Azure) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # reserved, without a listener
        endpoint = f"https://localhost:{closed.getsockname()[1]}"
        environment = {**azure.environment(), "GPUINFRA_ARM_ENDPOINT": endpoint}
        problem = user.fails("up", "gpu.yaml", code="unreachable", sandbox=False, **environment)
    assert "GPUINFRA_ARM_ENDPOINT" in problem["help"]
    assert_nothing_created(azure)


# Permissions


def test_missing_permission_is_reported_before_the_first_write(user: User, azure: Azure) -> None:
    azure.fault("read-only")
    problem = user.fails("up", "gpu.yaml", code="not-allowed")
    assert "Microsoft.Compute/virtualMachines/write" in problem["note"]
    assert "nothing was created" in problem["note"]
    assert "az role assignment create" in problem["help"]
    assert "Contributor" in problem["help"]
    assert azure.writes() == []
    assert_nothing_created(azure)


DENIED = (
    "The client 'me' with object id 'me' does not have authorization to perform action "
    "'Microsoft.Network/publicIPAddresses/write' over scope "
    "'/subscriptions/0/resourcegroups/gpuinfra-my-dsvm' or the scope is invalid."
)
LOCKED = (
    "The scope '/subscriptions/0/resourceGroups/gpuinfra-my-dsvm' cannot perform write operation because following "
    "scope(s) are locked: '/subscriptions/0/resourceGroups/gpuinfra-my-dsvm'. Please remove the lock and try again."
)
POLICY = (
    "Resource 'my-dsvm' was disallowed by policy. Policy identifiers: "
    '\'[{"policyAssignment":{"name":"No GPUs here","id":"/subscriptions/0/x"}}]\'.'
)


@pytest.mark.parametrize(
    ("fault", "where", "message", "code", "says"),
    variants(
        ("AuthorizationFailed", "publicIPAddresses", DENIED, "not-allowed", "az role assignment create"),
        ("ScopeLocked", "resourceGroups", LOCKED, "locked", f"az lock list --resource-group {GROUP}"),
        ("ScopeLocked", "virtualMachines", LOCKED, "locked", "az lock delete"),
        ("RequestDisallowedByPolicy", "virtualMachines", POLICY, "policy-denied", "No GPUs here"),
        ("MarketplacePurchaseEligibilityFailed", "virtualMachines", None, "image-terms", "acceptImageTerms"),
    ),
)
def test_refused_write_leaves_nothing_behind(
    user: User, azure: Azure, fault: str, where: str, message: str | None, code: str, says: str
) -> None:
    azure.fault(fault, method="PUT", type=where, count=0, **({"message": message} if message else {}))
    problem = user.fails("up", "gpu.yaml", code=code)
    assert fault in problem["note"], "Azure's own code"
    assert says in problem["help"]
    assert azure.writes(), "it was tried"
    assert_nothing_created(azure)


def test_machine_is_deleted_when_os_provisioning_fails(user: User, azure: Azure) -> None:
    azure.fault("OSProvisioningTimedOut", type="virtualMachines", method="PUT")
    problem = user.fails("up", "gpu.yaml", code="refused")
    assert "OSProvisioningTimedOut" in problem["note"]
    assert_nothing_created(azure)


@variant
def test_failed_second_spec_does_not_hide_the_first(user: User, azure: Azure) -> None:
    files = [user.spec(file=f"{name}.yaml", name=name) for name in ("first", "second")]
    azure.fault("RequestDisallowedByPolicy", type="virtualMachines", method="PUT", resource="second")
    done = user("up", *files)
    assert done.returncode == 1
    assert "error: forbidden by a policy" in done.stderr
    assert [each["name"] for each in azure.bill() if each["powerState"] == "running"] == ["first"]
    assert "first is running (simulated)" in done.stdout


def test_missing_image_terms_are_found_before_the_first_write(user: User, azure: Azure) -> None:
    user.spec(image=SOLD)
    problem = user.fails("up", "gpu.yaml", code="no-candidate")
    assert "image-terms" in problem["note"]
    assert "acceptImageTerms: true" in problem["help"]
    assert azure.writes() == []


# Specs that cannot be met


def test_unknown_region_is_reported_with_its_place_in_the_spec(user: User, azure: Azure) -> None:
    user.spec(region="southcentralsu")
    done = user("up", "gpu.yaml")
    assert done.returncode == 2
    assert "error: unknown region" in done.stderr
    assert "gpu.yaml:1:" in done.stderr
    assert "did you mean `southcentralus`?" in done.stderr
    assert azure.requests() == []


def test_malformed_spec_is_reported_with_its_place(user: User, azure: Azure) -> None:
    (user.workspace / "gpu.yaml").write_text("apiVersion: gpuinfra/v1\nname: my-dsvm\n\tregion: [\n")
    problem = user.fails("up", "gpu.yaml", code="tab", exit_code=2)
    assert (problem["file"], problem["line"]) == ("gpu.yaml", 3)
    assert azure.requests() == []


def test_missing_public_key_is_reported_with_its_fix(user: User, azure: Azure) -> None:
    public = user.private_key.with_suffix(".pub")
    public.unlink()
    problem = user.fails("up", "gpu.yaml", code="no-public-key")
    assert str(public) in problem["note"]
    assert f"ssh-keygen -y -f {user.private_key} > {public}" in problem["help"]
    assert azure.writes() == []
    assert_nothing_created(azure)


# Machines that do not become usable


def test_new_machine_is_deallocated_when_its_key_cannot_be_used(user: User, azure: Azure) -> None:
    """The machine is up, and this user cannot log in: an unusable new machine is deallocated."""
    user.private_key.unlink()
    user.make_key("a passphrase")
    problem = user.fails("up", "gpu.yaml", code="not-ready")
    assert "it was deallocated" in problem["note"]
    assert azure.machine()["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()
    assert azure.everything() == PARTS


def test_running_machine_stays_on_when_the_key_cannot_be_used(user: User, azure: Azure) -> None:
    """The machine may be in use; a failed login from here is not a reason to end it."""
    user.up()
    user.private_key.unlink()
    user.private_key.with_suffix(".pub").unlink()
    user.make_key("a passphrase")
    user.fails("up", "gpu.yaml", code="not-ready")
    assert azure.machine()["powerState"] == "PowerState/running"


# Each would take forever, so each has the shortest deadline, one minute; they wait while other tests run.
SLOW: dict[str, dict[str, Any]] = {
    "never-ends": {"name": "never-ends", "method": "PUT", "type": "virtualMachines"},
    "no-boot": {"name": "no-boot"},
    "no-ssh": {"name": "ssh-refuses"},
    "no-gpu": {"name": "gpu-gone"},
}


@pytest.fixture(scope="module", autouse=True)
def unusable_machines(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[User, dict[str, subprocess.Popen[str]]]]:
    """Machines that never become usable, in their own Azure, started in parallel."""
    folder = tmp_path_factory.mktemp("hopeless")
    azure = Azure(folder / "sandbox")
    user = User(azure, folder / "user", folder / "project")
    programs = {}
    for name, fault in SLOW.items():
        azure.fault(resource=name, **fault)
        file = user.spec(file=f"{name}.yaml", name=name)
        programs[name] = user.start("up", file, "--timeout", "1m", "--json")
    yield user, programs
    for program in programs.values():
        program.kill()
        program.communicate()
    running.stop(azure.folder)


@pytest.mark.parametrize("name", SLOW)
def test_machine_that_never_becomes_usable_is_deallocated(
    name: str, unusable_machines: tuple[User, dict[str, subprocess.Popen[str]]]
) -> None:
    user, programs = unusable_machines
    azure, program = user.azure, programs[name]
    out, errors = program.communicate(timeout=100)
    assert "Traceback" not in errors, errors
    (problem,) = json.loads(out)["diagnostics"]
    assert program.returncode == 1, errors
    assert problem["help"]
    if name == "never-ends":
        assert problem["code"] == "timed-out"
        assert not [part for part in azure.everything() if name in part]
    else:
        assert problem["code"] == "not-ready", problem
        assert "it was deallocated" in problem["note"]
        assert azure.machine(name, f"gpuinfra-{name}")["powerState"] == "PowerState/deallocated"
    # On a loaded machine the last request may have timed out: then the note names it.
    assert ("GPU" in problem["note"] or "nvidia-smi" in problem["note"]) == (name == "no-gpu"), problem
    states = {machine["name"]: machine["powerState"] for machine in azure.bill()}
    assert states[name] in {"deallocated", "deleted"}
    assert not (user.workspace / "aml_config").exists(), "no target for an unusable machine"
