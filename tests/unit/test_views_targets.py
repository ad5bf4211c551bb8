"""The layout of targets, as a table and as JSON, and of an attached machine."""

import json
from dataclasses import replace

import pytest

from gpuinfra.models.target import AttachResult, Checkup, DetachResult, GpuFacts, Reachability, Target, TargetCheck
from gpuinfra.views import targets as attached_view
from gpuinfra.views import targets as view

KEY = "ssh-ed25519 AAAA"
LAB = Target("lab", "lab", "remotedocker", "203.0.113.7", 5022, "me", KEY, None, "ask", "busybox")
SIX = Target("six", "six", "remote", "2001:db8::7", 22, "me", KEY, simulated=True)
HERE = Target("here", "here", "localdocker", "", 22, "", "", base_docker_image="busybox", nvidia_docker=False)
REACHED = {"lab": Reachability("yes"), "six": Reachability("other-key", "shows SHA256:x")}


def test_targets_have_one_line_each() -> None:
    lines = [line.rstrip() for line in view.render([HERE, LAB, SIX], REACHED).plain.splitlines()]
    assert lines == [
        "NAME  TYPE                ADDRESS              GPU  IMAGE    REACHABLE",
        "here  localdocker         this computer        no   busybox  -",
        "lab   remotedocker        me@203.0.113.7:5022  yes  busybox  yes",
        "six   remote (simulated)  me@[2001:db8::7]     -    -        other host key: shows SHA256:x",
    ]


def test_address_of_a_target_on_this_computer_is_not_shown() -> None:
    plain = view.render([Target("gpu", "gpu", "local", "203.0.113.7", 22, "me", "")], {}).plain
    assert "this computer" in plain
    (line,) = view.render([replace(LAB, address="")], {}).plain.splitlines()[1:]
    assert "this computer" not in line, "its machine was deleted, and its jobs do not run here"
    assert "203.0.113.7" not in plain


def test_targets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    view.show([LAB, SIX], REACHED, [], ".", json=True)
    document = json.loads(capsys.readouterr().out)
    assert "diagnostics" not in document
    first, second = document["targets"]
    assert (first["password"], first["gpu"], first["image"], first["reachable"]) == ("ask", True, "busybox", "yes")
    assert first["detail"] is None
    assert (second["gpu"], second["image"], second["reachable"]) == (None, None, "other-key")
    assert second["detail"] == "shows SHA256:x"


def test_control_characters_are_removed() -> None:
    evil = Target("lab", "lab", "remote", "\x1b[2J", 22, "me\n", KEY)
    assert not {"\x1b", "\r"} & set(view.render([evil], {"lab": Reachability("no", "\x1b[0m")}).plain)
    assert len(view.render([evil], {}).plain.splitlines()) == 2


def test_remaining_machine_is_mentioned_after_detach(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_detached(DetachResult("lab", ("lab.compute",), has_machine=True), json=False)
    captured = capsys.readouterr()
    assert captured.out == "removed lab.compute\n"
    assert "may be billed" in captured.err
    view.show_detached(DetachResult("lab", ("lab.compute",), has_machine=False), json=False)
    assert capsys.readouterr().err == ""


def test_remaining_password_is_mentioned_after_detach(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_detached(DetachResult("lab", (), has_machine=False, keeps_password=True), json=False)
    assert "may still be in this computer's keyring" in capsys.readouterr().err
    for keeps in (True, False):
        view.show_detached(DetachResult("lab", (), has_machine=False, keeps_password=keeps), json=True)
        assert ("keepsPassword" in json.loads(capsys.readouterr().out)) is keeps


def test_attached_machine_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = GpuFacts(("Tesla T4",), "535.161.08", (15360,), ("7.5",))
    checkup = Checkup((TargetCheck("gpu", True, gpu.summary),), gpu)
    attached_view.show_attached(AttachResult(LAB, "SHA256:x", checkup, ("aml_config/lab.compute",)), json=False)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "lab is attached: remotedocker",
        "  address     me@203.0.113.7 port 5022",
        "  host key    SHA256:x",
        "  GPU         Tesla T4, 15360 MiB, driver 535.161.08",
        "  password    not stored: gpuinfra asks each time",
        "  wrote       aml_config/lab.compute",
    ]
    assert captured.err.startswith("Next: ")
    attached_view.show_attached(AttachResult(LAB, "SHA256:x", checkup, ()), json=False)
    assert "  files       unchanged" in capsys.readouterr().out
    attached_view.show_attached(AttachResult(LAB, "SHA256:x", checkup, ()), json=True)
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schemaVersion", "name", "files", "fingerprint", "checks", "gpu", "target"]
