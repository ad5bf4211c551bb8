"""Messages of Docker 20.10 to 28 and exceptions of the SDK are all translated to our errors."""

import inspect
from pathlib import Path
from types import ModuleType

import docker.errors  # type: ignore[import-untyped]
import pytest
import requests.exceptions
import urllib3.exceptions

from gpuinfra.runner.docker.check import CommandOutput
from gpuinfra.runner.docker.errors import no_engine, refusal, translate_error
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut, Unreachable

# Real errors at the start of a container, one per line, from engines and their runtimes.
ANSWERS = Path(__file__).parent.parent / "cases" / "engine"
SOCKET = "/var/run/docker.sock"


def classes_of(module: ModuleType) -> list[type[Exception]]:
    found = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    return [each for each in found if issubclass(each, Exception) and not issubclass(each, Warning)]


def make_exception(kind: type[Exception]) -> Exception:
    """Return an exception of any class, with the arguments that it requires."""
    if kind is requests.exceptions.JSONDecodeError:
        return kind("Expecting value", "", 0)
    wanted = inspect.signature(kind.__init__).parameters.values()
    count = sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in wanted) - 1
    return kind(*["something"] * max(0, count))


@pytest.mark.parametrize(
    "kind", classes_of(docker.errors) + classes_of(requests.exceptions), ids=lambda kind: kind.__name__
)
def test_every_exception_of_the_sdk_is_translated(kind: type[Exception]) -> None:
    translated = translate_error(make_exception(kind), "203.0.113.7:22", "doing", expected=False)
    assert isinstance(translated, (JobError, ConnectError))


def test_other_exceptions_are_not_translated() -> None:
    assert translate_error(KeyError("Id"), "here", "doing", expected=False) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "disk-full"),
        ('could not select device driver "" with capabilities: [[gpu]]', "no-gpu"),
        (
            "OCI runtime create failed: container_linux.go:380: nvidia-container-cli: initialization error: nvml "
            "error: driver not loaded: unknown",
            "no-gpu",
        ),
        ("failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all", "no-gpu"),
        (
            "pull access denied for mine, repository does not exist or may require 'docker login': denied: requested "
            "access to the resource is denied",
            "no-image",
        ),
        ("manifest for busybox:9 not found: manifest unknown: manifest unknown", "no-image"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "no-image"),
        ('Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host', "no-image"),
        ("invalid reference format: repository name must be lowercase", "no-image"),
        ("Get https://lab.azurecr.io/v2/x/manifests/1: unauthorized: authentication required", "registry-login"),
        ('Head "https://ghcr.io/v2/a/b/manifests/latest": denied', "registry-login"),
        ("toomanyrequests: You have reached your pull rate limit", "registry-login"),
        (
            "OCI runtime create failed: runc create failed: unable to start container process: exec /usr/bin/python: "
            "argument list too long: unknown",
            "environment-too-large",
        ),
        ('invalid mount config for type "bind": bind source path does not exist: /x', "job-failed"),
        ("an unknown error", "job-failed"),
    ],
)
def test_message_of_an_engine_has_a_code(text: str, code: str) -> None:
    error = refusal(text, "pulling it")
    assert error.code == code
    assert text in str(error)
    assert error.help or code == "job-failed"


@pytest.mark.parametrize("text", (ANSWERS / "command-cannot-run.txt").read_text().splitlines())
def test_command_that_the_image_cannot_run_is_reported(text: str) -> None:
    error = refusal(text, "starting the container")
    assert (error.code, error.summary) == ("job-failed", "the image cannot run the command")
    assert text in str(error)
    assert "image" in str(error.help)


@pytest.mark.parametrize("text", (ANSWERS / "engine-failed.txt").read_text().splitlines())
def test_engine_that_fails_is_named_as_the_cause(text: str) -> None:
    error = refusal(text, "starting the container")
    assert (error.code, error.summary) == ("engine-failed", "Docker Engine failed on the target")
    assert f"starting the container: {text}" in str(error), "the engine's message is unchanged"
    for step in ("try again", "sudo systemctl restart docker", "sudo journalctl -u docker"):
        assert step in str(error.help)


def test_long_message_is_shortened() -> None:
    assert len(str(refusal("a\n" * 5000, "pulling it"))) < 700


@pytest.mark.parametrize(
    ("error", "help_part"),
    [
        (FileNotFoundError(2, "No such file or directory"), "start it"),
        (ConnectionRefusedError(111, "Connection refused"), "start it"),
        (PermissionError(13, "Permission denied"), "usermod"),
    ],
)
def test_missing_engine_is_reported(error: OSError, help_part: str) -> None:
    # As wrapped by requests and urllib3.
    wrapped = requests.exceptions.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", error))
    translated = translate_error(wrapped, "this computer", "asking", expected=False)
    assert isinstance(translated, JobError)
    assert translated.code == "no-engine"
    assert help_part in str(translated.help)


def test_engine_that_answered_before_is_only_unreachable() -> None:
    wrapped = requests.exceptions.ConnectionError(ConnectionRefusedError(111, "Connection refused"))
    assert isinstance(translate_error(wrapped, "this computer", "asking", expected=True), Unreachable)
    refused = "failed to open the raw stream connection: dial unix: connect: no such file or directory"
    assert isinstance(no_engine(CommandOutput(1, refused), "203.0.113.7:22", expected=True), Unreachable)


@pytest.mark.parametrize(
    ("output", "help_part"),
    [
        (CommandOutput(127, "sh: 1: docker: not found"), "install"),
        (CommandOutput(1, f"dial unix {SOCKET}: connect: permission denied"), "usermod -aG docker $USER"),
    ],
)
def test_permanent_fault_is_not_only_unreachable(output: CommandOutput, help_part: str) -> None:
    translated = no_engine(output, "203.0.113.7:22", expected=True)
    assert isinstance(translated, JobError)
    assert translated.code == "no-engine"
    assert help_part in str(translated.help)


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ReadTimeout("Read timed out."),
        requests.exceptions.ConnectionError(urllib3.exceptions.ReadTimeoutError(None, "/", "Read timed out.")),  # type: ignore[arg-type]
        TimeoutError("timed out"),
    ],
)
def test_silent_engine_is_a_timeout(error: Exception) -> None:
    assert isinstance(translate_error(error, "here", "asking", expected=True), TimedOut)


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError(
            urllib3.exceptions.ProtocolError("aborted", ConnectionResetError(104, "reset"))
        ),
        requests.exceptions.ChunkedEncodingError("IncompleteRead(0 bytes read)"),
        urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead(0 bytes read)"),
    ],
)
def test_closed_connection_is_broken(error: Exception) -> None:
    translated = translate_error(error, "here", "asking", expected=True)
    assert type(translated) is Broken
