"""`attach`, `detach` and `targets` by the installed program, with a sandbox machine and a real OpenSSH server."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.runner.connection.known_hosts import HostKey
from tests.e2e.azure import Azure, reset
from tests.e2e.user import PROGRAM, User, inherited
from tests.integration.runner.conftest import WAIT_SECONDS, PasswordServer, SshServer, make_key
from tests.lab import Lab
from tests.nvidia import NO_DRIVER
from tests.variants import variant, variants

SECRET = PasswordServer.PASSWORD

# A keyring in a file of the test.
KEYRING = """
import json, os, pathlib
from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError

class Keyring(KeyringBackend):
    priority = 5
    file = pathlib.Path(os.environ["TEST_KEYRING"])

    def read(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def get_password(self, service, username):
        return self.read().get(f"{service} {username}")

    def set_password(self, service, username, password):
        self.file.write_text(json.dumps({**self.read(), f"{service} {username}": password}))

    def delete_password(self, service, username):
        kept = self.read()
        if kept.pop(f"{service} {username}", None) is None:
            raise PasswordDeleteError("no such password")
        self.file.write_text(json.dumps(kept))
"""


class Machine:
    """A running machine and a project."""

    def __init__(self, user: User, target: dict[str, Any], project: Path) -> None:
        self.user, self.project = user, project
        project.mkdir(exist_ok=True)
        self.fingerprint = HostKey.parse(target["hostKey"]).fingerprint
        self.key = target["hostKey"]
        self.where = ["--address", target["address"], "--port", str(target["port"]), "--username", target["username"]]
        self.address = target["address"]

    def words(self, *more: str, name: str = "lab", kind: str = "remote") -> list[str]:
        return ["attach", name, *self.where, "--type", kind, "--workspace", str(self.project), *more]

    def attach(self, *more: str, **how: Any) -> dict[str, Any]:
        return self.user.does(*self.words(*more), **how)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.project / "aml_config").glob("*"))

    @property
    def compute(self) -> str:
        return (self.project / "aml_config" / "lab.compute").read_text()

    def is_untouched(self) -> bool:
        return list(self.project.iterdir()) == []


@pytest.fixture(scope="session")
def made() -> dict[str, tuple[User, dict[str, Any]]]:
    """The machine of earlier tests, by its id."""
    return {}


@pytest.fixture
def running(
    running_azure: Azure, made: dict[str, tuple[User, dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[User, dict[str, Any]]:
    """A machine of the embedded Azure, shared by tests that do not change it; recreated if a test deleted it."""
    if (found := made.get(machine_id(running_azure))) is not None:
        return found
    reset(running_azure)
    folder = tmp_path_factory.mktemp("running")
    owner = User(running_azure, folder / "user", folder / "project")
    owner.spec()
    made.clear()
    target = owner.up()["target"]
    made[machine_id(running_azure)] = owner, target
    return owner, target


def machine_id(azure: Azure) -> str:
    """Return Azure's id of the machine, or an empty string."""
    status, body = azure.send("GET", azure.id("Microsoft.Compute/virtualMachines", "my-dsvm"))
    return str(body["properties"]["vmId"]) if status == 200 else ""


@pytest.fixture
def machine(running: tuple[User, dict[str, Any]], tmp_path: Path) -> Machine:
    """The machine, and a project that does not know it yet."""
    return Machine(*running, tmp_path / "other")


def other_key(folder: Path) -> str:
    return Path(f"{make_key(folder / 'other_key')}.pub").read_text().strip()


# Attaching


def test_machine_is_attached_listed_and_detached(machine: Machine) -> None:
    user, folder = machine.user, str(machine.project)
    found = machine.attach("--host-key", machine.fingerprint)
    assert (found["name"], found["fingerprint"]) == ("lab", machine.fingerprint)
    assert [(check["name"], check["passed"]) for check in found["checks"]] == [
        ("ssh", True),
        ("python", True),
        ("gpu", True),
    ]
    assert found["gpu"]["simulated"]
    assert [Path(file).name for file in found["files"]] == machine.files == ["lab.compute", "lab.runconfig"]
    assert found["target"]["hostKey"] == machine.key.split(" test")[0]
    for line in (f"hostKey: {found['target']['hostKey']}", "type: remote", "simulated: true"):
        assert line in machine.compute.splitlines()
    assert "password" not in machine.compute

    assert user.does("ssh", "lab", "--workspace", folder)["target"]["hostKey"] == found["target"]["hostKey"]
    exported = user.does("export", "lab", "--format", "ssh-config", "--workspace", folder)["content"]
    assert f"HostName {machine.address}\n" in exported

    # Again, in every way in which the key is known by now: nothing to do.
    for words in ([], ["--host-key", machine.key], ["--host-key", machine.fingerprint], ["--yes"]):
        assert machine.attach(*words)["files"] == []

    (listed,) = user.does("targets", "--workspace", folder)["targets"]
    assert (listed["name"], listed["type"], listed["reachable"], listed["detail"]) == ("lab", "remote", "yes", None)
    table = user("targets", "--workspace", folder).stdout.splitlines()
    assert table[0].split() == ["NAME", "TYPE", "ADDRESS", "GPU", "IMAGE", "REACHABLE"]
    assert table[1].split()[0] == "lab"
    assert table[1].split()[-1] == "yes"
    assert user.does("targets", "--no-check", "--workspace", folder)["targets"][0]["reachable"] is None

    user.fails("detach", "lab", "--workspace", folder, code="needs-consent", exit_code=2)
    assert machine.files == ["lab.compute", "lab.runconfig"]
    done = user("detach", "lab", "--yes", "--workspace", folder)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["removed", "removed"]
    assert "While it is on, it may be billed" in done.stderr
    assert machine.files == []
    assert user.does("targets", "--workspace", folder)["targets"] == []


def test_attach_without_a_terminal_shows_the_command_to_run(machine: Machine) -> None:
    problem = machine.user.fails(*machine.words(), code="unknown-host-key", exit_code=2)
    assert machine.fingerprint in problem["note"]
    assert machine.is_untouched()
    command = problem["help"].rpartition("then: `gpuinfra ")[2].removesuffix("`").split()
    assert command[-2:] == ["--host-key", machine.fingerprint]
    assert machine.user.does(*command, "--workspace", str(machine.project))["name"] == "lab"


def test_yes_accepts_an_unverified_host_key_and_says_so(machine: Machine) -> None:
    done = machine.user(*machine.words("--yes"))
    assert done.returncode == 0, done.stderr
    assert f"has the host key {machine.fingerprint} (ssh-ed25519), accepted unchecked" in done.stderr
    assert machine.fingerprint in done.stdout
    assert "lab is attached (simulated)" in done.stdout


def test_changed_host_key_is_refused_until_it_is_accepted(machine: Machine, tmp_path: Path) -> None:
    user, other = machine.user, other_key(tmp_path)
    for wrong in (other, HostKey.parse(other).fingerprint):
        problem = user.fails(*machine.words("--host-key", wrong), code="other-host-key")
        assert machine.fingerprint in problem["note"]
        assert HostKey.parse(other).fingerprint in problem["note"]
        assert machine.is_untouched()

    machine.attach("--host-key", machine.fingerprint)
    file = machine.project / "aml_config" / "lab.compute"
    file.write_text(file.read_text().replace(machine.key.split()[1], other.split()[1]))
    before = file.read_text()
    # As on another computer, where no key is recorded.
    (user.home / ".gpuinfra" / "ssh" / "known_hosts").unlink()
    # Not with --yes either: it accepts an unknown key, not a changed one.
    for words in ([], ["--yes"]):
        problem = user.fails(*machine.words(*words), code="other-host-key")
        assert f"--host-key {machine.fingerprint}" in problem["help"]
    assert file.read_text() == before
    (listed,) = user.does("targets", "--workspace", str(machine.project))["targets"]
    assert (listed["reachable"], listed["detail"]) == ("other-key", f"shows {machine.fingerprint}")
    assert len(machine.attach("--host-key", machine.fingerprint)["files"]) == 1
    assert machine.key.split()[1] in machine.compute


def test_attach_reports_everything_missing_at_once_and_writes_nothing(machine: Machine, tmp_path: Path) -> None:
    # The engine that the guest's `docker` would use does not exist.
    words = machine.words("--host-key", machine.fingerprint, kind="remotedocker")
    done = machine.user(*words, "--json")
    assert done.returncode == 1, done.stdout
    problems = json.loads(done.stdout)["diagnostics"]
    assert {problem["code"] for problem in problems} == {"unfit-machine"}
    assert [problem["summary"] for problem in problems] == ["Docker does not work", "containers get no GPU"]
    assert all(problem["help"] for problem in problems)
    assert machine.is_untouched()


def test_key_can_be_named_by_its_private_or_public_file(machine: Machine, tmp_path: Path) -> None:
    # A key outside the default paths.
    user, home = machine.user, tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    key = home / ".ssh" / "odd name"
    key.write_bytes(user.private_key.read_bytes())
    Path(f"{key}.pub").write_bytes(Path(f"{user.private_key}.pub").read_bytes())
    trust = ["--host-key", machine.fingerprint]
    problem = user.fails(*machine.words(*trust), code="login-refused", HOME=str(home))
    assert "--key" in problem["help"]
    stranger = make_key(tmp_path / "stranger")
    problem = user.fails(*machine.words(*trust, "--key", str(stranger)), code="login-refused", HOME=str(home))
    assert "authorized_keys" in problem["help"]
    assert machine.is_untouched()
    for path in (f"{key}.pub", str(key)):
        machine.attach(*trust, "--key", path, HOME=str(home))
        assert "privateKeyFile: ~/.ssh/odd name" in machine.compute
    # The key is recorded in the file by now.
    assert machine.attach(HOME=str(home))["files"] == []


def test_invalid_attach_is_refused_before_connecting(machine: Machine, tmp_path: Path) -> None:
    for words, code in (
        (machine.words("--yes", name="local"), "bad-name"),
        (machine.words("--yes", "--key", str(tmp_path / "none")), "file-not-found"),
        (machine.words("--yes", "--password-stdin"), "usage"),  # standard input is empty
        (machine.words("--yes", "--timeout", "soon"), "usage"),
        (["attach", "lab", "--address", "host"], "usage"),
    ):
        machine.user.fails(*words, code=code, exit_code=2)
    assert machine.is_untouched()


def test_address_may_include_the_port(machine: Machine) -> None:
    _, address, _, port, *rest = machine.where
    machine.where = ["--address", f"{address}:{port}", *rest]
    assert machine.attach("--host-key", machine.fingerprint)["target"]["port"] == int(port)


def test_refused_connection_is_reported(machine: Machine) -> None:
    machine.where = ["--address", "127.0.0.1:1", "--username", "me"]
    assert "Connection refused" in machine.user.fails(*machine.words(), code="no-answer")["note"]
    assert machine.is_untouched()


def test_attach_keeps_user_content_of_existing_files(machine: Machine) -> None:
    folder = machine.project / "aml_config"
    folder.mkdir()
    (folder / "lab.compute").write_text(
        "# ours\ntype: virtualmachine\naddress: old.example.com\nusername: them # they\n"
    )
    machine.user.fails(*machine.words(), code="unknown-host-key", exit_code=2)
    machine.attach("--host-key", machine.fingerprint)
    assert machine.compute.startswith("# ours\ntype: remote\n")
    assert "# they" in machine.compute
    (folder / "lab.compute").write_text("type: [")
    before = machine.compute
    done = machine.user(*machine.words("--host-key", machine.fingerprint), "--json")
    assert (done.returncode, json.loads(done.stdout)["diagnostics"][0]["code"]) == (1, "invalid-yaml")
    assert machine.compute == before


def test_local_target_is_not_changed_into_a_machine(machine: Machine) -> None:
    (machine.project / "aml_config").mkdir()
    (machine.project / "aml_config" / "lab.compute").write_text("type: localdocker\n")
    machine.user.fails(*machine.words("--yes"), code="file-exists", exit_code=2)
    assert machine.compute == "type: localdocker\n"


def test_machine_with_a_real_engine_runs_container_jobs(lab: Lab, tmp_path: Path) -> None:
    password_machine = PasswordMachine(lab.server, tmp_path, tmp_path / "other")
    words = [
        *Machine.words(password_machine, "--key", str(lab.server.user_key), kind="remotedocker"),
        "--yes",
        "--json",
    ]
    done = password_machine.run(*words)
    assert done.returncode == 0, done.stdout
    checks = [check["name"] for check in json.loads(done.stdout)["checks"] if check["passed"]]
    assert checks == ["ssh", "docker", "nvidia-runtime", "gpu"]
    assert "nvidiaDocker: true" in password_machine.compute
    # A GPU that has stopped working: no job may be believed to run on it.
    lab.nvidia.fail(NO_DRIVER)
    before = password_machine.compute
    done = password_machine.run(*words)
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["summary"], password_machine.compute) == (1, "the GPU does not work", before)
    assert "--no-gpu" in problem["help"]
    assert password_machine.run(*words, "--no-gpu").returncode == 0
    assert "nvidiaDocker: false" in password_machine.compute


# Listing and detaching


def test_unreadable_target_does_not_hide_the_others(machine: Machine) -> None:
    user, folder = machine.user, machine.project / "aml_config"
    machine.attach("--host-key", machine.fingerprint)
    (folder / "broken.compute").write_text("type: [\n")
    (folder / "docker.compute").write_text("type: localdocker\nbaseDockerImage: busybox\nnvidiaDocker: false\n")
    (folder / "gone.compute").write_text("type: remotedocker\naddress: 127.0.0.1:1\nusername: me\nnvidiaDocker: true\n")
    done = user("targets", "--json", "--workspace", str(machine.project))
    assert done.returncode == 1
    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["targets"]}
    assert list(rows) == ["docker", "gone", "lab"]
    assert (rows["docker"]["gpu"], rows["docker"]["image"], rows["docker"]["reachable"]) == (False, "busybox", None)
    assert (rows["gone"]["gpu"], rows["gone"]["reachable"], rows["gone"]["detail"]) == (
        True,
        "no",
        "connection refused",
    )
    assert rows["lab"]["reachable"] == "yes"
    assert {problem["code"] for problem in document["diagnostics"]} == {"invalid-yaml"}
    shown = user("targets", "--workspace", str(machine.project))
    assert shown.returncode == 1
    assert "no: connection refused" in shown.stdout
    assert "broken.compute" in shown.stderr
    # An unreadable file can be removed.
    user.does("detach", "broken", "--yes", "--workspace", str(machine.project))
    assert user("targets", "--workspace", str(machine.project)).returncode == 0


@pytest.mark.parametrize("name", ["lab1", "../aml_config/lab", "aml_config/lab", "", "..", "train"])
def test_unknown_target_is_not_detached(run: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "aml_config"
    folder.mkdir()
    (folder / "lab.compute").write_text("type: local\n")
    (folder / "train.runconfig").write_text("Target: lab\n")
    done = run("detach", name, "--yes", "--json")
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (1, "no-such-target")
    assert problem["help"] == ("did you mean `lab`?" if name == "lab1" else problem["help"])
    assert sorted(file.name for file in folder.iterdir()) == ["lab.compute", "train.runconfig"]


def test_targets_without_a_target_is_not_an_error(run: Any) -> None:
    done = run("targets")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no target in" in done.stderr
    assert json.loads(run("targets", "--json").stdout) == {"schemaVersion": 1, "targets": []}


# Passwords


class PasswordMachine(Machine):
    """A real OpenSSH server, and a user with a keyring."""

    def __init__(self, server: SshServer, folder: Path, project: Path) -> None:
        target = server.target
        place = {"address": target.address, "port": target.port, "username": target.username}
        self.folder, self.keyring = folder, folder / "keyring.json"
        super().__init__(None, {**place, "hostKey": target.host_key}, project)  # type: ignore[arg-type]
        (folder / "home").mkdir()
        (folder / "stand_in_keyring.py").write_text(KEYRING)
        self.variables = {
            **inherited(),
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(folder),
            "TEST_KEYRING": str(self.keyring),
            "PYTHON_KEYRING_BACKEND": "stand_in_keyring.Keyring",
        }

    def run(self, *words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PROGRAM, *words],
            env={**self.variables, **more},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return done

    def words(self, *more: str, name: str = "lab", kind: str = "remote") -> list[str]:
        return super().words("--no-gpu", *more, name=name, kind=kind)

    def written(self) -> str:
        return "".join(file.read_text() for file in self.project.rglob("*") if file.is_file())


@pytest.fixture
def password_machine(tmp_path: Path) -> Iterator[PasswordMachine]:
    server = PasswordServer(tmp_path / "sshd")
    server.start()
    yield PasswordMachine(server, tmp_path, tmp_path / "other")
    server.stop()


def test_password_is_kept_in_the_keyring_and_not_in_a_file(password_machine: PasswordMachine) -> None:
    trust = ["--host-key", password_machine.fingerprint]
    done = password_machine.run(*password_machine.words(*trust, "--password-stdin", "--verbose"), stdin=f"{SECRET}\r\n")
    assert done.returncode == 0, done.stderr
    assert "password    stored in this computer's keyring" in done.stdout
    assert "password: keyring:lab" in password_machine.compute
    assert SECRET not in password_machine.written()
    assert list(json.loads(password_machine.keyring.read_text()).values()) == [SECRET]
    # From now on there is no prompt.
    assert password_machine.run(*password_machine.words()).returncode == 0
    assert password_machine.run("detach", "lab", "--yes", "--workspace", str(password_machine.project)).returncode == 0
    assert json.loads(password_machine.keyring.read_text()) == {}


def test_password_is_not_kept_when_files_cannot_be_written(password_machine: PasswordMachine) -> None:
    (password_machine.project / "aml_config").write_text("a file in the way")
    words = password_machine.words("--host-key", password_machine.fingerprint, "--password-stdin", "--json")
    done = password_machine.run(*words, stdin=SECRET)
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (1, "file-unwritable")
    assert json.loads(password_machine.keyring.read_text()) == {}


@variant
def test_wrong_password_is_refused_and_not_kept(password_machine: PasswordMachine) -> None:
    words = password_machine.words(
        "--host-key", password_machine.fingerprint, "--password-stdin", "--json", "--verbose"
    )
    done = password_machine.run(*words, stdin="wr0ng-Passw0rd\n")
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (1, "login-refused")
    assert "does not accept the password" in problem["note"]
    assert problem["help"]
    assert "wr0ng-Passw0rd" not in done.stdout + done.stderr
    assert password_machine.is_untouched()
    assert not password_machine.keyring.exists()


def test_password_is_asked_each_time_without_a_keyring(password_machine: PasswordMachine) -> None:
    backend = "keyring.backends.fail.Keyring"
    words = password_machine.words("--host-key", password_machine.fingerprint, "--password-stdin")
    done = password_machine.run(*words, stdin=SECRET, PYTHON_KEYRING_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert "password    not stored" in done.stdout
    assert "password: ask" in password_machine.compute
    assert SECRET not in password_machine.written()
    done = password_machine.run(*password_machine.words("--json"), PYTHON_KEYRING_BACKEND=backend)
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (done.returncode, problem["code"]) == (1, "login-refused")
    assert "--password-stdin" in problem["help"]


# On a terminal


def answer_questions(
    words: Sequence[str], talk: Sequence[tuple[str, str]], variables: dict[str, str]
) -> tuple[int, str]:
    """Run the program on a terminal of its own, and answer each question when it comes."""
    main, other = pty.openpty()
    screen, left = "", list(talk)
    # The password is read from the controlling terminal, which must not be that of the tests.
    command = ["env", "--default-signal=INT", "setsid", "--ctty", "--wait", str(PROGRAM), *words]
    program = subprocess.Popen(command, env={**variables, "TERM": "xterm"}, stdin=other, stdout=other, stderr=other)
    try:
        os.close(other)
        ends, last = time.monotonic() + WAIT_SECONDS, ""
        while (chunk := _read(main)) is not None and time.monotonic() < ends:
            screen += chunk
            if left and left[0][0] in screen:
                last = left.pop(0)[1]
                os.write(main, last.encode())
            elif not chunk and last == CTRL_C:
                # Python ignores a Ctrl-C that arrives just before it starts to read. Press again, as a user would.
                os.write(main, last.encode())
        code = program.wait(timeout=WAIT_SECONDS)
    finally:
        program.kill()
        program.wait()
        os.close(main)
    assert not left, (left, screen)
    return code, screen


def _read(terminal: int) -> str | None:
    """Read what arrives within a second; None when the program has exited and closed its end of the terminal."""
    try:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        return (os.read(terminal, 4096).decode("utf-8", "replace") or None) if ready else ""
    except OSError:
        return None


CTRL_C = "\x03"
QUESTION = "Is this the machine's own key? [y/N]:"
# With its space: earlier input is discarded, so the password must not be typed too early.
PASSWORD = f"Password of {PasswordServer.USER} at 127.0.0.1: "


def test_terminal_asks_about_the_key_and_for_the_password(password_machine: PasswordMachine) -> None:
    talk = [(QUESTION, "y\n"), (PASSWORD, f"{SECRET}\n")]
    code, screen = answer_questions(password_machine.words(), talk, password_machine.variables)
    assert code == 0, screen
    assert password_machine.fingerprint in screen.partition(QUESTION)[0]
    assert SECRET not in screen
    assert "password: keyring:lab" in password_machine.compute
    assert SECRET not in password_machine.written()
    code, screen = answer_questions(
        ["detach", "lab", "--workspace", str(password_machine.project)],
        [("lab.runconfig`? [y/N]:", "y\n")],
        password_machine.variables,
    )
    assert (code, password_machine.files) == (0, []), screen


@variant
def test_password_is_prompted_when_stdin_is_a_terminal(password_machine: PasswordMachine) -> None:
    words = password_machine.words("--host-key", password_machine.fingerprint, "--password-stdin")
    code, screen = answer_questions(words, [("Password: ", f"{SECRET}\n")], password_machine.variables)
    assert code == 0, screen
    assert SECRET not in screen


@pytest.mark.parametrize(("answer", "expected"), variants(("n\n", 2), (CTRL_C, 130)))
def test_attach_without_consent_writes_nothing(password_machine: PasswordMachine, answer: str, expected: int) -> None:
    code, screen = answer_questions(password_machine.words(), [(QUESTION, answer)], password_machine.variables)
    assert code == expected, screen
    assert "Traceback" not in screen
    assert password_machine.is_untouched()
    assert not password_machine.keyring.exists()


@variant
def test_attach_without_a_password_writes_nothing(password_machine: PasswordMachine) -> None:
    words = password_machine.words("--host-key", password_machine.fingerprint)
    code, screen = answer_questions(words, [(PASSWORD, CTRL_C)], password_machine.variables)
    assert code == 130, screen
    assert password_machine.is_untouched()
