"""Azure's refusals, as the user reads them."""

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Exit
from gpuinfra.provision.errors import TABLE, CloudError, Fault, explain, fault_of

SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000000"
DOING = "creating machine my-dsvm"


def explained(fault: Fault, code: str, message: str) -> Diagnostic:
    problem = explain(CloudError(fault, code, message), DOING)
    assert problem.exit_code is Exit.FAILED
    (diagnostic,) = problem.diagnostics
    return diagnostic


def test_every_fault_has_a_row() -> None:
    assert set(TABLE) == set(Fault)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault.LOGIN, Code.LOGIN_FAILED),
        (Fault.DENIED, Code.NOT_ALLOWED),
        (Fault.POLICY, Code.POLICY_DENIED),
        (Fault.LOCKED, Code.LOCKED),
        (Fault.TERMS, Code.IMAGE_TERMS),
        (Fault.CAPACITY, Code.NO_CAPACITY),
        (Fault.QUOTA, Code.NO_QUOTA),
        (Fault.THROTTLED, Code.THROTTLED),
        (Fault.UNREACHABLE, Code.UNREACHABLE),
        (Fault.TIMEOUT, Code.TIMED_OUT),
        (Fault.BUSY, Code.BUSY),
        (Fault.IN_USE, Code.REFUSED),
        (Fault.OTHER, Code.REFUSED),
        (Fault.ABSENT, Code.REFUSED),
    ],
)
def test_problem_has_a_code_and_azures_message(fault: Fault, code: Code) -> None:
    found = explained(fault, "SomeCode", "Something happened.")
    assert (found.code, found.note) == (code, f"{DOING}: SomeCode: Something happened")
    assert (found.help is None) == (fault is Fault.ABSENT)


def test_note_says_what_was_created() -> None:
    problem = explain(CloudError(Fault.OTHER, "A", "b"), DOING, "nothing was created")
    assert problem.diagnostics[0].note == f"{DOING}: A: b; nothing was created"


def test_interrupt_has_its_own_exit_code() -> None:
    assert explain(CloudError(Fault.INTERRUPTED, "A", "b"), DOING).exit_code is Exit.INTERRUPTED


@pytest.mark.parametrize("code", ["SubscriptionNotFound", "InvalidSubscriptionId"])
def test_unknown_subscription_is_reported(code: str) -> None:
    found = explained(Fault.ABSENT, code, "The subscription '…' could not be found.")
    assert (found.code, found.summary) == (Code.NO_SUBSCRIPTION, "no such subscription")
    assert "az account list" in (found.help or "")


def test_login_problem_names_the_ways_to_log_in() -> None:
    found = explained(Fault.LOGIN, "CredentialUnavailable", "DefaultAzureCredential failed")
    assert found.summary == "not logged in to Azure"
    for way in ("az login", "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "--sandbox"):
        assert way in (found.help or "")


def test_missing_permission_is_named_with_its_role() -> None:
    found = explained(
        Fault.DENIED,
        "AuthorizationFailed",
        "The client 'me' with object id 'me' does not have authorization to perform action "
        f"'Microsoft.Compute/virtualMachines/write' over scope '{SUBSCRIPTION}/resourceGroups/g/providers/"
        "Microsoft.Compute/virtualMachines/m' or the scope is invalid.",
    )
    assert "missing is Microsoft.Compute/virtualMachines/write on " in (found.note or "")
    assert f"--role Contributor --scope {SUBSCRIPTION}/resourceGroups/g`" in (found.help or "")


def test_linked_refusal_names_the_second_action() -> None:
    found = explained(
        Fault.DENIED,
        "LinkedAuthorizationFailed",
        f"The client has permission to perform action 'A/write' on scope '{SUBSCRIPTION}/x'; however, it does not have "
        f"permission to perform action(s) 'B/join/action' on the linked scope(s) '{SUBSCRIPTION}/y' (respectively).",
    )
    assert f"missing is B/join/action on {SUBSCRIPTION}/y" in (found.note or "")


def test_refusal_without_details_has_a_next_step() -> None:
    found = explained(Fault.DENIED, "AuthorizationFailed", "The client does not have authorization.")
    assert found.note == f"{DOING}: AuthorizationFailed: The client does not have authorization"
    assert "--scope /subscriptions/SUBSCRIPTION`" in (found.help or "")


def test_policy_is_named() -> None:
    found = explained(
        Fault.POLICY,
        "RequestDisallowedByPolicy",
        'Resource \'m\' was disallowed by policy. Policy identifiers: \'[{"policyAssignment":{"name":"No GPUs",'
        '"id":"/subscriptions/1/…"}}]\'.',
    )
    assert "the policy is `No GPUs`" in (found.note or "")
    assert "`No GPUs`" in (found.help or "")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"The scope '{SUBSCRIPTION}/resourcegroups/g/providers/x' cannot perform write operation because following "
            f"scope(s) are locked: '{SUBSCRIPTION}/resourceGroups/gpu-team'. Please remove the lock and try again.",
            "`az lock list --resource-group gpu-team` shows",
        ),
        (f"The scope 'x' cannot perform it: following scope(s) are locked: '{SUBSCRIPTION}'.", "`az lock list` shows"),
    ],
)
def test_lock_command_names_the_group(message: str, expected: str) -> None:
    assert expected in (explained(Fault.LOCKED, "ScopeLocked", message).help or "")


def test_quota_problem_says_where_to_find_or_request_quota() -> None:
    found = explained(Fault.QUOTA, "OperationNotAllowed", "exceeding approved Cores quota")
    assert "gpuinfra sizes --with-quota" in (found.help or "")
    assert "https://" in (found.help or "")


def test_disk_that_a_vm_uses_is_in_use() -> None:
    message = "Disk my-dsvm-disk is attached to VM /subscriptions/s/resourceGroups/g/providers/x/my-dsvm."
    assert fault_of("OperationNotAllowed", message, 409) is Fault.IN_USE
