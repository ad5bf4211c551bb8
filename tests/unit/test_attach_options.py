"""Options of `attach`, before any connection."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.app.attach import AttachOptions, check_options, read_address, read_identity
from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.target import Target

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Z0OTJvTXCTQOXWPUDF6wvEYGcUZtC4xRuWzWvfwKx"
FINGERPRINT = "SHA256:8/uQ7R8EhJWoqm+m8R8i4iF3gC2JnrxmHkURN2DcRhM"
OPTIONS = AttachOptions("lab", "gpu.lab", 22, "me")


@pytest.mark.parametrize(
    ("address", "port", "expected"),
    [
        ("203.0.113.7", None, ("203.0.113.7", 22)),
        ("203.0.113.7", 5022, ("203.0.113.7", 5022)),
        ("gpu.lab:5022", None, ("gpu.lab", 5022)),
        ("gpu.lab:5022", 5022, ("gpu.lab", 5022)),
        ("gpu.lab:22", None, ("gpu.lab", 22)),
        ("gpu_1.lab.", None, ("gpu_1.lab.", 22)),
        ("2001:db8::7", None, ("2001:db8::7", 22)),
        ("[2001:db8::7]", 5022, ("2001:db8::7", 5022)),
        ("[2001:db8::7]:5022", None, ("2001:db8::7", 5022)),
    ],
)
def test_port_may_be_in_the_address_or_an_option(address: str, port: int | None, expected: tuple[str, int]) -> None:
    assert read_address(address, port) == expected


@pytest.mark.parametrize(
    ("address", "port", "code"),
    [
        ("", None, Code.BAD_ADDRESS),
        ("-oProxyCommand=x", None, Code.BAD_ADDRESS),
        ("a b", None, Code.BAD_ADDRESS),
        ("ssh://gpu.lab", None, Code.BAD_ADDRESS),
        ("gpu.lab:0", None, Code.BAD_ADDRESS),
        ("gpu.lab:99999", None, Code.BAD_ADDRESS),
        ("gpu.lab:ssh", None, Code.BAD_ADDRESS),
        ("gpu.lab\n", None, None),
        ("gpu.lab:5022", 22, Code.USAGE),
        ("gpu.lab:22", 5022, Code.USAGE),
    ],
)
def test_invalid_address_is_refused(address: str, port: int | None, code: Code | None) -> None:
    if code is None:  # whitespace from a shell's `$(…)` is accepted
        assert read_address(address, port) == ("gpu.lab", 22)
        return
    with pytest.raises(Problem) as caught:
        read_address(address, port)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, caught.value.exit_code, bool(diagnostic.help)) == (code, Exit.USAGE, True)


def test_user_in_the_address_suggests_the_username_option() -> None:
    with pytest.raises(Problem) as caught:
        read_address("me@gpu.lab", None)
    assert caught.value.diagnostics[0].help == "give the user's name with `--username`"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (replace(OPTIONS, name="local"), Code.BAD_NAME),
        (replace(OPTIONS, name="../up"), Code.BAD_NAME),
        (replace(OPTIONS, type="remotedocer"), Code.UNKNOWN_VALUE),
        (replace(OPTIONS, type="cluster"), Code.UNKNOWN_VALUE),
        (replace(OPTIONS, host_key="SHA256:short"), Code.BAD_HOST_KEY),
        (replace(OPTIONS, host_key="ssh-ed25519 AAAA"), Code.BAD_HOST_KEY),
        (replace(OPTIONS, host_key=""), Code.BAD_HOST_KEY),
        (replace(OPTIONS, image="A B"), Code.BAD_CONTAINER_IMAGE),
        (replace(OPTIONS, image="busybox", type="remote"), Code.USAGE),
        (replace(OPTIONS, identity="/key", by_password=True), Code.USAGE),
        (replace(OPTIONS, username=""), Code.BAD_USERNAME),
        (replace(OPTIONS, username="-x"), Code.BAD_USERNAME),
        (replace(OPTIONS, username="a b"), Code.BAD_USERNAME),
    ],
)
def test_invalid_options_are_refused(options: AttachOptions, code: Code) -> None:
    with pytest.raises(Problem) as caught:
        check_options(options)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, caught.value.exit_code, bool(diagnostic.help)) == (code, Exit.USAGE, True)


@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, host_key=KEY), replace(OPTIONS, host_key=FINGERPRINT)])
def test_valid_options_are_accepted(options: AttachOptions) -> None:
    check_options(options)
    assert options.has_fingerprint == (options.host_key == FINGERPRINT)


def test_suggested_command_repeats_every_option() -> None:
    assert OPTIONS.command("K") == "gpuinfra attach lab --address gpu.lab --username me --host-key K"
    options = AttachOptions("lab", "::1", 5022, "me", "remote", gpu=False, identity="/a b/key")
    assert shlex.split(options.command("K"))[2:] == [
        *("lab", "--address", "::1", "--username", "me", "--port", "5022", "--key", "/a b/key", "--type", "remote"),
        *("--no-gpu", "--host-key", "K"),
    ]
    assert "--password-stdin" in replace(OPTIONS, by_password=True).command("K")
    assert "--base-image busybox" in replace(OPTIONS, image="busybox").command("K")


def test_private_key_is_found_by_either_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.old").write_text("private")
    monkeypatch.chdir(tmp_path)
    assert read_identity("key.old") == read_identity("key.old.pub") == str(tmp_path / "key.old")
    for missing in ("none", "none.pub", "~unknown-user/key", "."):
        with pytest.raises(Problem) as caught:
            read_identity(missing)
        assert caught.value.diagnostics[0].code is Code.FILE_NOT_FOUND


def test_target_has_the_given_options_and_keeps_the_rest() -> None:
    target = OPTIONS.target(KEY, None)
    assert target.base_docker_image is None
    assert (target.nvidia_docker, target.explicit_fields) == (True, frozenset({"type", "nvidia_docker"}))
    assert replace(OPTIONS, gpu=False).target(KEY, None).nvidia_docker is False
    assert replace(OPTIONS, type="remote").target(KEY, None).explicit_fields == {"type"}

    before = Target("lab", "lab", "remotedocker", "old", 22, "me", KEY, "/old/key", "keyring:lab", "busybox")
    kept = OPTIONS.target(KEY, before)
    assert (kept.address, kept.identity, kept.password) == ("gpu.lab", "/old/key", "keyring:lab")
    assert (kept.base_docker_image, "base_docker_image" in kept.explicit_fields) == ("busybox", False)
    by_key = replace(OPTIONS, identity="/new/key").target(KEY, before)
    assert (by_key.identity, by_key.password, "identity" in by_key.explicit_fields) == ("/new/key", None, True)
    by_password = replace(OPTIONS, by_password=True).target(KEY, before)
    assert (by_password.identity, by_password.password) == (None, "ask")
