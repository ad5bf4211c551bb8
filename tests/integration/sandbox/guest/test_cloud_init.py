"""Custom data does in a guest what cloud-init and systemd would do with it."""

import base64
import gzip
import json
import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuinfra.sandbox.guest.spec import GuestSpec
from tests.integration.sandbox.guest_host import Client, GuestHost, alive, eventually, make_key, make_spec

Boot = Callable[[str], GuestSpec]

SERVICE = """
write_files:
  - path: /opt/agent/agent.sh
    permissions: '0755'
    content: |
      #!/bin/sh
      echo "$GREETING $1" >> "$HOME/greetings"
      exec sleep 620
  - path: /etc/agent/name
    content: friend
  - path: /etc/systemd/system/agent.service
    content: |
      [Unit]
      Description=An agent
      [Service]
      ExecStart=/bin/sh /opt/agent/agent.sh /etc/agent/name
      Environment="GREETING=hello there" OTHER=1
      Restart=always
      RestartSec=50ms
      ProtectHome=yes
      [Install]
      WantedBy=multi-user.target
runcmd:
  - systemctl daemon-reload
  - [systemctl, enable, --now, agent.service]
"""


@pytest.fixture
def boot(host: GuestHost, client: Client, tmp_path: Path) -> Iterator[Boot]:
    """Start a guest with this cloud-config, or with custom data as it is."""
    started: list[GuestSpec] = []

    def start(text: str) -> GuestSpec:
        text = textwrap.dedent(text)
        data = text if text.startswith("#") else f"#cloud-config\n{text}"
        spec = make_spec(tmp_path / "root", client.public_key, custom_data=data.encode())
        started.append(spec)
        host.call(host.guests.start(spec))
        return spec

    yield start
    for spec in started:
        host.call(host.guests.delete(spec.vm_id, spec.root))


@pytest.fixture(scope="module")
def plain(host: GuestHost, client: Client, tmp_path_factory: pytest.TempPathFactory) -> GuestSpec:
    """A guest without custom data."""
    spec = make_spec(tmp_path_factory.mktemp("plain") / "root", client.public_key, vm_id="plain")
    host.call(host.guests.start(spec))
    return spec


def restart(host: GuestHost, spec: GuestSpec) -> None:
    host.call(host.guests.stop(spec.vm_id))
    host.call(host.guests.start(spec))


def read(spec: GuestSpec, path: str) -> str:
    return (spec.root / path.lstrip("/")).read_text()


def home(spec: GuestSpec) -> Path:
    return spec.root / "home" / spec.username


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_server_offers_the_injected_host_key(boot: Boot, client: Client, tmp_path: Path, kind: str) -> None:
    make_key(tmp_path / "host", kind)
    private, public = (tmp_path / "host").read_text(), (tmp_path / "host.pub").read_text()
    spec = boot(json.dumps({"ssh_keys": {f"{kind}_private": private, f"{kind}_public": public}}))
    with client.connect(spec) as connection:
        transport = connection.get_transport()
        assert transport is not None
        assert transport.get_remote_server_key().get_base64() == public.split()[1]
    assert (spec.root / f"etc/ssh/ssh_host_{kind}_key").stat().st_mode & 0o777 == 0o600


def test_files_are_written_under_the_root(boot: Boot) -> None:
    packed = base64.b64encode(gzip.compress(b"packed")).decode()
    spec = boot(f"""
        write_files:
          - path: /etc/plain
            content: "plain\\n"
          - path: /etc/plain
            content: "more\\n"
            append: true
          - path: /usr/local/bin/tool
            permissions: '0755'
            encoding: b64
            content: {base64.b64encode(b"#!/bin/sh").decode()}
          - {{path: /etc/packed, encoding: gzip+b64, content: {packed}, permissions: 0600}}
          - {{path: /../../outside, content: x, owner: 'root:root'}}
    """)
    assert read(spec, "/etc/plain") == "plain\nmore\n"
    assert read(spec, "/usr/local/bin/tool") == "#!/bin/sh"
    assert (spec.root / "usr/local/bin/tool").stat().st_mode & 0o777 == 0o755
    assert read(spec, "/etc/packed") == "packed"
    assert (spec.root / "etc/packed").stat().st_mode & 0o777 == 0o600
    assert read(spec, "/outside") == "x"
    assert not (spec.root.parent / "outside").exists()


def test_commands_run_once_with_the_guests_paths(boot: Boot, host: GuestHost, client: Client) -> None:
    spec = boot("""
        write_files:
          - path: /opt/setup/setup.sh
            content: echo "set up $1" >> $HOME/log
          - {path: /etc/passwd, content: "the guest's own\\n"}
        bootcmd:
          - echo boot >> $HOME/boots
        runcmd:
          - sh /opt/setup/setup.sh 'by string' > /opt/setup/output
          - [sh, /opt/setup/setup.sh, by list]
          - 'false'
          - cd /; pwd; ls /usr/bin/env; /bin/hostname; cat /etc/passwd
    """)
    assert client.output(spec, "cloud-init status --wait") == "status: done"
    restart(host, spec)
    assert client.output(spec, "cloud-init status --wait") == "status: done"
    assert read(spec, "/home/azureuser/log") == "set up by string\nset up by list\n"
    assert (spec.root / "opt/setup/output").exists()
    assert read(spec, "/var/log/cloud-init-output.log") == "/\n/usr/bin/env\nmy-dsvm\nthe guest's own\n"
    # bootcmd is cloud-init's one list that every boot runs.
    assert read(spec, "/home/azureuser/boots") == "boot\nboot\n"
    assert (spec.root / "var/lib/cloud/instance/boot-finished").exists()


def test_ssh_answers_while_commands_still_run(boot: Boot, client: Client) -> None:
    spec = boot("runcmd: ['while [ ! -e $HOME/go ]; do sleep 0.05; done']")
    assert client.output(spec, "cloud-init status") == "status: running"
    assert client.output(spec, "touch go; cloud-init status --wait") == "status: done"


def test_interrupted_commands_run_again_at_the_next_boot(boot: Boot, host: GuestHost, client: Client) -> None:
    wait = "test -e $HOME/go || { touch $HOME/waits; sleep 621; }"
    spec = boot(f"runcmd: ['echo begun >> $HOME/log; {wait}; echo ended >> $HOME/log']")
    assert eventually((home(spec) / "waits").exists)
    (home(spec) / "go").touch()
    restart(host, spec)
    client.output(spec, "cloud-init status --wait")
    assert read(spec, "/home/azureuser/log") == "begun\nbegun\nended\n"


def test_failed_command_sets_the_status_to_error(boot: Boot, client: Client) -> None:
    done = client.run(boot("runcmd: ['exit 3']"), "cloud-init status --wait --long")
    assert done.returncode == 1
    assert b"status: error\n" in done.stdout
    assert b"runcmd: exit code 3" in done.stdout


def test_users_keys_and_names(boot: Boot, client: Client, tmp_path: Path) -> None:
    for name in ("first", "second"):
        make_key(tmp_path / name)
    first, second = ((tmp_path / f"{name}.pub").read_text().strip() for name in ("first", "second"))
    spec = boot(f"""
        hostname: renamed
        ssh_authorized_keys: ["{first}"]
        users: [default, {{name: azureuser, ssh_authorized_keys: ["{second}"]}}, {{name: worker}}]
    """)
    for key in (client.key_file, tmp_path / "first", tmp_path / "second"):
        with client.connect(spec, key=key):
            pass
    assert client.output(spec, "hostname") == "renamed"
    assert "users worker" in read(spec, "/var/log/cloud-init.log")


def test_unsupported_modules_are_logged_as_ignored(boot: Boot, client: Client) -> None:
    spec = boot("packages: [htop]\nwrite_files: [{path: /etc/x, content: y, colour: red}]")
    assert client.output(spec, "cloud-init status --wait") == "status: done"
    log = read(spec, "/var/log/cloud-init.log")
    assert "ignored: packages: not simulated" in log
    assert "ignored: write_files /etc/x: colour: not simulated" in log


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("#cloud-config\n{{{", "failed loading custom data"),
        ("#cloud-config\n- a list", "not a mapping"),
        ("#cloud-config\nruncmd: 7", "runcmd: TypeError"),
        ("#cloud-config\nwrite_files: [{path: /x, encoding: b64, content: abc}]", "write_files /x"),
        ("#cloud-config\nwrite_files: [7]", "write_files"),
        ("#cloud-config\nssh_keys: {ed25519_private: not a key}", ""),
        ("#no idea", "unhandled"),
    ],
)
def test_guest_boots_with_broken_custom_data(boot: Boot, client: Client, data: str, said: str) -> None:
    spec = boot(data)
    done = client.run(spec, "cloud-init status --wait")
    assert done.returncode == (1 if said else 0), done
    assert said in read(spec, "/var/log/cloud-init.log")


def test_script_as_custom_data_is_executed(boot: Boot, client: Client) -> None:
    spec = boot("#!/bin/bash\necho script $BASH_VERSINFO > $HOME/out\n")
    assert client.output(spec, "cloud-init status --wait; cat out").startswith("status: done\nscript ")


# Services.


def main_pid(spec: GuestSpec, client: Client) -> int:
    return int(client.output(spec, "systemctl show agent -p MainPID --value"))


def test_service_is_started_restarted_and_started_at_boot(boot: Boot, host: GuestHost, client: Client) -> None:
    spec = boot(SERVICE)
    client.output(spec, "cloud-init status --wait")
    assert client.output(spec, "systemctl is-active agent; systemctl is-enabled agent.service") == "active\nenabled"
    greeting = f"hello there {spec.root}/etc/agent/name\n"
    assert eventually((home(spec) / "greetings").exists)
    assert eventually(lambda: read(spec, "/home/azureuser/greetings") == greeting)

    first = main_pid(spec, client)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: main_pid(spec, client) not in {0, first})
    assert eventually(lambda: read(spec, "/home/azureuser/greetings") == greeting * 2)

    second = main_pid(spec, client)
    host.call(host.guests.stop(spec.vm_id))
    assert not alive(second)
    host.call(host.guests.start(spec))
    assert eventually(lambda: read(spec, "/home/azureuser/greetings") == greeting * 3)
    # Settings of the unit that are not simulated are logged.
    assert "ignored: Service.ProtectHome" in client.output(spec, "journalctl -u agent")


def test_service_can_be_stopped_and_disabled(boot: Boot, host: GuestHost, client: Client) -> None:
    spec = boot(SERVICE)
    client.output(spec, "cloud-init status --wait")
    pid = main_pid(spec, client)
    assert client.output(spec, "systemctl show -p ActiveState,MainPID agent") == f"ActiveState=active\nMainPID={pid}"
    assert "Active: active (running)" in client.output(spec, "systemctl status agent")
    client.output(spec, "sudo systemctl stop agent")
    assert not alive(pid)
    down = client.run(spec, "systemctl is-active agent")
    assert (down.stdout, down.returncode) == (b"inactive\n", 3)
    client.output(spec, "systemctl restart agent && systemctl is-active agent")
    client.output(spec, "systemctl disable --now agent")
    assert client.run(spec, "systemctl is-enabled agent").returncode == 1
    restart(host, spec)
    assert client.run(spec, "systemctl is-active agent").returncode == 3


def test_stopping_a_service_ends_its_children(boot: Boot, client: Client) -> None:
    spec = boot(
        SERVICE.replace("exec sleep 620", "setsid sleep 622 & echo $! > $HOME/child; exec sleep 620").replace(
            "Restart=always", "Restart=no"
        )
    )
    client.output(spec, "cloud-init status --wait")
    assert eventually((home(spec) / "child").exists)
    child = int(read(spec, "/home/azureuser/child"))
    client.output(spec, "systemctl stop agent")
    assert not alive(child)


def unit(spec: GuestSpec, name: str, *lines: str) -> None:
    (spec.root / "etc/systemd/system" / name).write_text("\n".join(["[Service]", *lines, ""]))


def test_on_failure_restarts_a_failure_and_not_a_success(boot: Boot, client: Client) -> None:
    spec = boot("{}")
    once = "test -e $$0 || { touch $$0; exit 1; }; echo again >> $$0"
    unit(spec, "retried.service", f"ExecStart=/bin/bash -c '{once}' {home(spec)}/flag", "Restart=on-failure")
    # A dollar of the shell's own is doubled in a unit.
    client.output(spec, "systemctl start retried")
    assert eventually(lambda: (home(spec) / "flag").exists() and read(spec, "/home/azureuser/flag") == "again\n")
    assert eventually(lambda: client.run(spec, "systemctl is-active retried").stdout == b"inactive\n")


def test_repeatedly_failing_service_hits_the_start_limit(boot: Boot, client: Client) -> None:
    spec = boot("{}")
    unit(spec, "bad.service", "ExecStart=/bin/false", "Restart=always", "RestartSec=10ms")
    client.output(spec, "systemctl start bad")
    assert eventually(lambda: client.run(spec, "systemctl is-active bad").stdout == b"failed\n")
    assert "start-limit-hit" in client.output(spec, "systemctl show bad -p Result")


def test_start_waits_for_a_oneshot_and_reports_its_failure(boot: Boot, client: Client) -> None:
    spec = boot("{}")
    unit(spec, "good.service", "Type=oneshot", "RemainAfterExit=yes", "ExecStart=/bin/touch done")
    unit(spec, "bad.service", "Type=oneshot", "ExecStart=/bin/false")
    unit(spec, "absent.service", "ExecStart=/no/such/program")
    client.output(spec, "systemctl start good && systemctl is-active good")
    assert (spec.root / "done").exists()
    assert client.run(spec, "systemctl start bad").returncode == 1
    assert client.run(spec, "systemctl is-failed bad").stdout == b"failed\n"
    client.run(spec, "systemctl start absent")
    assert client.run(spec, "systemctl is-active absent").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("start absent", 5, b"Unit absent.service not found."),
        ("status absent", 4, b"could not be found"),
        ("is-active absent", 4, b"inactive"),
        ("is-enabled absent", 1, b"No such file"),
        ("enable absent", 1, b"does not exist"),
        ("poweroff", 1, b"not simulated"),
        ("start", 1, b"Too few arguments"),
    ],
)
def test_systemctl_prints_what_the_real_one_prints(
    plain: GuestSpec, client: Client, arguments: str, code: int, said: bytes
) -> None:
    done = client.run(plain, f"systemctl {arguments}")
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_guest_boots_with_an_invalid_unit(boot: Boot, host: GuestHost, client: Client) -> None:
    spec = boot("{}")
    unit(spec, "odd.service", "ExecStart=/bin/true", "RestartSec=soon")
    assert b"not a span of time" in client.run(spec, "systemctl start odd").stderr
    wants = spec.root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "odd.service").symlink_to("../odd.service")
    restart(host, spec)
    assert client.output(spec, "echo up") == "up"
