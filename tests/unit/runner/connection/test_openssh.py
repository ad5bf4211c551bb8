"""The command lines and files for OpenSSH."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.known_hosts import (
    HostKey,
    is_own_key,
    known_hosts_line,
    known_keys,
    with_known_host,
    without_known_host,
)
from gpuinfra.runner.connection.openssh import (
    command,
    config_block,
    copy_command,
    includes,
    standalone_block,
    with_config_block,
)
from gpuinfra.runner.connection.private_keys import identity_of
from gpuinfra.runner.errors import HostKeyInvalid

# From `ssh-keygen -lf`.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA"
FINGERPRINT = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
TARGET = Target("my_dsvm", "my-dsvm", "remotedocker", "203.0.113.7", 22, "azureuser", KEY, "/home/me/.ssh/id_ed25519")
KNOWN = Path("/home/me/.gpuinfra/ssh/known_hosts")
HOME = Path("/home/me")


def test_host_key_has_the_fingerprint_of_ssh_keygen() -> None:
    key = HostKey.parse(f"  {KEY} root@my-dsvm\n")
    assert key.fingerprint == FINGERPRINT
    assert str(key) == KEY
    assert key.algorithms == ("ssh-ed25519",)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "ssh-ed25519", "ssh-ed25519 ", "ssh-ed25519 !!!!", "ssh-dss AAAAB3NzaC1kc3MAAAA", KEY[:30]),
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",  # nothing after its kind
        KEY.replace("ssh-ed25519", "ssh-rsa"),
        KEY.replace(" ", "\n"),
    ],
)
def test_invalid_host_key_is_refused(text: str) -> None:
    with pytest.raises(HostKeyInvalid):
        HostKey.parse(text)


def test_login_command_uses_the_identity_and_host_key() -> None:
    assert command(TARGET, KNOWN, []) == [
        *("ssh", "-o", "IdentityFile=/home/me/.ssh/id_ed25519", "-o", "IdentitiesOnly=yes"),
        *("-o", "HostKeyAlias=gpuinfra-my-dsvm", "-o", "HostKeyAlgorithms=ssh-ed25519"),
        *("-o", f"UserKnownHostsFile={KNOWN}", "-o", "StrictHostKeyChecking=yes"),
        *("-p", "22", "--", "azureuser@203.0.113.7"),
    ]


def test_command_without_identity_at_another_port() -> None:
    line = command(replace(TARGET, identity=None, port=2222), KNOWN, ["ls", "-la"])
    assert not [word for word in line if word.startswith("Identit")]
    assert line[-6:] == ["-p", "2222", "--", "azureuser@203.0.113.7", "ls", "-la"]


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("/plain", "/plain"),
        ("/a b", '"/a b"'),
        ("/100%", "/100%%"),
        ("/%d x", '"/%%d x"'),
        ('/a"b', '"/a\\"b"'),
        ("/a'b", '"/a\'b"'),
        ("/a#b", '"/a#b"'),
        ("/a\\b", '"/a\\\\b"'),
    ],
)
def test_paths_with_special_characters_are_quoted(path: str, quoted: str) -> None:
    line = command(replace(TARGET, identity=path), Path(path), [])
    assert f"IdentityFile={quoted}" in line
    assert f"UserKnownHostsFile={quoted}" in line
    assert f"    IdentityFile {quoted}\n" in config_block(replace(TARGET, identity=path), KNOWN)


def test_standalone_block_contains_the_host_key() -> None:
    block = standalone_block(TARGET)
    assert f"# {known_hosts_line(TARGET)}\n{config_block(TARGET, Path('/dev/null'))}" in block
    assert block.endswith(f"    KnownHostsCommand /bin/echo gpuinfra-my-dsvm {KEY}\n")
    assert "gpuinfra/ssh" not in block


def test_configuration_block_has_all_settings() -> None:
    assert config_block(TARGET, KNOWN) == (
        "Host my-dsvm\n"
        "    HostName 203.0.113.7\n"
        "    Port 22\n"
        "    User azureuser\n"
        "    IdentityFile /home/me/.ssh/id_ed25519\n"
        "    IdentitiesOnly yes\n"
        "    HostKeyAlias gpuinfra-my-dsvm\n"
        "    HostKeyAlgorithms ssh-ed25519\n"
        "    UserKnownHostsFile /home/me/.gpuinfra/ssh/known_hosts\n"
        "    StrictHostKeyChecking yes\n"
    )


def test_known_host_has_one_line_and_other_lines_are_kept() -> None:
    assert known_hosts_line(replace(TARGET, machine="My-DSVM")) == f"gpuinfra-my-dsvm {KEY}"
    other = "gpuinfra-my-dsvm-2 ssh-ed25519 AAAA\n# a note\n"
    text = with_known_host(f"gpuinfra-my-dsvm ssh-rsa old\n{other}", TARGET)
    assert text == f"{other}gpuinfra-my-dsvm {KEY}\n"
    assert with_known_host(text, TARGET) == text


def keys(text: str, target: Target = TARGET) -> list[HostKey]:
    return [known.key for known in known_keys(text, target)]


def test_pending_key_and_old_key_both_count_until_the_machine_is_created() -> None:
    old, new = HostKey.parse(OTHER_KEY), HostKey.parse(KEY)
    before = with_known_host("", replace(TARGET, host_key=OTHER_KEY), "up:s/one")
    during = with_known_host(before, TARGET, "up:s/one#1a2b")
    assert keys(during) == [old, new]
    assert [known.is_pending for known in known_keys(during, TARGET)] == [False, True]
    assert with_known_host(during, TARGET, "up:s/one") == f"gpuinfra-my-dsvm {KEY} up:s/one\n"
    assert without_known_host(during, TARGET, "up:s/one") == ""


def test_recorded_key_is_replaced_only_by_the_source_that_recorded_it() -> None:
    met = with_known_host("", replace(TARGET, host_key=OTHER_KEY))
    own = with_known_host(met, TARGET, "up:s/one")
    assert own == f"gpuinfra-my-dsvm {KEY} up:s/one\n"
    assert with_known_host(own, TARGET) == own
    both = with_known_host(own, replace(TARGET, host_key=OTHER_KEY), "up:s/two")
    assert keys(both) == [HostKey.parse(KEY), HostKey.parse(OTHER_KEY)]
    assert without_known_host(both, TARGET, "up:s/two") == own
    again = with_known_host(own, replace(TARGET, host_key=OTHER_KEY), "up:s/one")
    assert keys(again) == [HostKey.parse(OTHER_KEY)]


def test_keys_of_up_and_attach_replace_keys_of_ssh() -> None:
    own = with_known_host("", TARGET, "up:s/one")
    target_name = replace(TARGET, machine="my_dsvm", host_key=OTHER_KEY)
    text = with_known_host(own, target_name)
    assert keys(text, target_name) == [HostKey.parse(KEY)]
    assert known_keys(text, replace(TARGET, simulated=True)) == []


def test_own_machine_is_recognised_by_its_key_under_any_name() -> None:
    own = with_known_host("", TARGET, "attach:203.0.113.7")
    assert is_own_key(own, replace(TARGET, machine="other"))
    assert not is_own_key(own, replace(TARGET, host_key=OTHER_KEY))
    assert not is_own_key(own, replace(TARGET, host_key=""))
    assert not is_own_key(with_known_host("", TARGET), TARGET)


def test_new_block_replaces_only_the_block_of_the_machine() -> None:
    two = with_config_block(with_config_block("", TARGET, KNOWN), replace(TARGET, machine="my-dsvm-2"), KNOWN)
    assert two == f"{config_block(TARGET, KNOWN)}\n{config_block(replace(TARGET, machine='my-dsvm-2'), KNOWN)}"
    moved = replace(TARGET, address="203.0.113.9")
    text = with_config_block(f"# mine\nCompression yes\n\n{two}", moved, KNOWN)
    assert text.startswith("# mine\nCompression yes\n\nHost my-dsvm-2\n")
    assert text.endswith(config_block(moved, KNOWN))
    assert text.count("Host my-dsvm\n") == 1
    assert with_config_block(text, moved, KNOWN) == text


@pytest.mark.parametrize(
    ("text", "included"),
    [
        ("", False),
        ("Include ~/.gpuinfra/ssh/config\n", True),
        ("# x\n\n  include  ~/.gpuinfra/ssh/config\nHost *\n", True),
        ('Include "/home/me/.gpuinfra/ssh/config"\n', True),
        ("Include=other ~/.gpuinfra/ssh/config\n", True),
        ("Include ../.gpuinfra/ssh/other\n", False),
        ("#Include ~/.gpuinfra/ssh/config\n", False),
        ("Host x\n  Include ~/.gpuinfra/ssh/config\n", False),
        ("Match all\nInclude ~/.gpuinfra/ssh/config\n", False),
    ],
)
def test_include_for_all_hosts_is_detected(text: str, included: bool) -> None:
    assert includes(text, HOME / ".gpuinfra/ssh/config", HOME) is included


def test_private_key_has_the_path_without_pub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert identity_of("~/.ssh/key.pub") is None
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "key").write_text("")
    assert identity_of("~/.ssh/key.pub") == str(tmp_path / ".ssh" / "key")
    assert identity_of(str(tmp_path / ".ssh/key.pub")) == str(tmp_path / ".ssh" / "key")
    assert identity_of(".ssh/key.pub", tmp_path) == str(tmp_path / ".ssh" / "key")
    assert identity_of(".ssh.pub", tmp_path) is None
    assert identity_of("~unknown-user/key.pub") is None
    assert identity_of(KEY) is None


def test_files_are_copied_with_the_options_of_a_login() -> None:
    line = copy_command(replace(TARGET, address="2001:db8::1"), KNOWN, "a b", "c:d", is_upload=True)
    assert line[0] == "scp"
    assert line[1 : line.index("-P")] == command(TARGET, KNOWN, [])[1 : command(TARGET, KNOWN, []).index("-p")]
    assert line[line.index("--") :] == ["--", "./c:d", f"{TARGET.username}@[2001:db8::1]:a b"]
    line = copy_command(TARGET, KNOWN, "there", "-here", is_upload=False)
    assert line[-2:] == [f"{TARGET.username}@{TARGET.address}:there", "-here"]
