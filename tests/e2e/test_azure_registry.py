"""Images in an Azure Container Registry are pulled with the VM's identity. Registries and metadata are stand-ins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure_registry import (
    CONTOSO,
    LOOKALIKE,
    MOVED,
    NO_PULL,
    NO_ROLE,
    PRINCIPAL,
    REFRESH,
    SIGNATURE,
    AzureRegistries,
    azure_registries,
)
from tests.integration.runner import registry
from tests.lab import REMOTEDOCKER, Lab, LabUser


@pytest.fixture(scope="module")
def registries(running_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureRegistries]:
    with azure_registries(running_lab, tmp_path_factory.mktemp("azure")) as made:
        yield made


def user_of(lab: Lab, host: str) -> LabUser:
    """Return a user without credentials, in a project whose target uses an image of this registry."""
    user = lab.user()
    user.compute(REMOTEDOCKER, baseDockerImage=f"{host}/{registry.TOOL}", nvidiaDocker=False)
    return user


def test_image_is_pulled_with_the_identity_of_the_machine(lab: Lab, registries: AzureRegistries) -> None:
    user = user_of(lab, CONTOSO)
    seen = len(registries.requests)
    done = user("prepare", "--verbose", "-c", REMOTEDOCKER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"login to {CONTOSO} with the identity of" in done.stderr
    with_token = [line for line in registries.requests[seen:] if "identity-token" in line]
    assert with_token == [f"POST {CONTOSO} /oauth2/exchange identity-token"]
    # The tokens are in no output, file, image or container.
    kept = done.stdout + done.stderr + lab.engine.docker("image", "inspect", f"{CONTOSO}/{registry.TOOL}").stdout
    for folder in (lab.home, user.home, user.workspace):
        kept += "".join(text(file) for file in folder.rglob("*") if file.is_file())
    assert not [token for token in (REFRESH, SIGNATURE) if token in kept]
    assert lab.engine.containers() == []


def text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")


@pytest.mark.parametrize("host", [NO_ROLE, NO_PULL])
def test_missing_role_is_named_with_the_command(lab: Lab, registries: AzureRegistries, host: str) -> None:
    problem = user_of(lab, host).fails("prepare", "-c", REMOTEDOCKER, code="registry-login")
    assert PRINCIPAL in problem["note"], registries.requests
    assert f"az role assignment create --role AcrPull --assignee-object-id {PRINCIPAL} " in problem["help"]
    assert f"az acr show --name {host.partition('.')[0]} " in problem["help"]


def test_token_of_the_identity_follows_no_redirect_and_goes_to_no_other_registry(
    lab: Lab, registries: AzureRegistries
) -> None:
    seen = len(registries.requests)
    user_of(lab, MOVED).fails("prepare", "-c", REMOTEDOCKER, code="registry-login")
    user_of(lab, LOOKALIKE).fails("prepare", "-c", REMOTEDOCKER, code="registry-login")
    requests = registries.requests[seen:]
    assert [line for line in requests if "identity-token" in line] == [f"POST {MOVED} /oauth2/exchange identity-token"]
    assert len([line for line in requests if "metadata" in line]) == 1
    assert not [line for line in requests if CONTOSO in line.replace(LOOKALIKE, "")]
    assert f"GET {LOOKALIKE} /v2/" in requests
