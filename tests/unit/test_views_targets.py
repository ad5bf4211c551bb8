"""Targets as a table and as data, and what is said about a machine that was attached."""

import json

import pytest

from gpuinfra.models.attached import Attached
from gpuinfra.models.checkup import Check, Checkup
from gpuinfra.models.detached import Detached
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.reachability import Reachability
from gpuinfra.models.target import Target
from gpuinfra.views import attached as attached_view
from gpuinfra.views import targets as view

KEY = "ssh-ed25519 AAAA"
LAB = Target("lab", "lab", "remotedocker", "203.0.113.7", 5022, "me", KEY, None, "ask", "busybox")
SIX = Target("six", "six", "remote", "2001:db8::7", 22, "me", KEY, simulated=True)
HERE = Target("here", "here", "localdocker", "", 22, "", "", base_docker_image="busybox", nvidia_docker=False)
REACHED = {"lab": Reachability("yes"), "six": Reachability("other-key", "shows SHA256:x")}


def test_a_line_a_target() -> None:
    lines = [line.rstrip() for line in view.render([HERE, LAB, SIX], REACHED).plain.splitlines()]
    assert lines == [
        "NAME  TYPE                ADDRESS              GPU  IMAGE    REACHABLE",
        "here  localdocker         this computer        no   busybox  -",
        "lab   remotedocker        me@203.0.113.7:5022  yes  busybox  yes",
        "six   remote (simulated)  me@[2001:db8::7]     -    -        other host key: shows SHA256:x",
    ]


def test_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    view.show([LAB, SIX], REACHED, [], ".", json=True)
    document = json.loads(capsys.readouterr().out)
    assert "diagnostics" not in document
    first, second = document["targets"]
    assert (first["password"], first["gpu"], first["image"], first["reachable"]) == ("ask", True, "busybox", "yes")
    assert first["detail"] is None
    assert (second["gpu"], second["image"], second["reachable"]) == (None, None, "other-key")
    assert second["detail"] == "shows SHA256:x"


def test_nothing_in_a_file_drives_the_terminal() -> None:
    evil = Target("lab", "lab", "remote", "\x1b[2J", 22, "me\n", KEY)
    assert not {"\x1b", "\r"} & set(view.render([evil], {"lab": Reachability("no", "\x1b[0m")}).plain)
    assert len(view.render([evil], {}).plain.splitlines()) == 2


def test_what_is_left_is_said_where_there_is_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_detached(Detached("lab", ("lab.compute",), has_machine=True), json=False)
    captured = capsys.readouterr()
    assert captured.out == "removed lab.compute\n"
    assert "may be billed" in captured.err
    view.show_detached(Detached("lab", ("lab.compute",), has_machine=False), json=False)
    assert capsys.readouterr().err == ""


def test_a_password_that_is_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    view.show_detached(Detached("lab", (), has_machine=False, keeps_password=True), json=False)
    assert "may still be in the keyring" in capsys.readouterr().err
    for keeps in (True, False):
        view.show_detached(Detached("lab", (), has_machine=False, keeps_password=keeps), json=True)
        assert ("keepsPassword" in json.loads(capsys.readouterr().out)) is keeps


def test_a_machine_that_was_attached(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = GpuFacts(("Tesla T4",), "535.161.08", (15360,), ("7.5",))
    checkup = Checkup((Check("gpu", True, gpu.summary),), gpu)
    attached_view.show(Attached(LAB, "SHA256:x", checkup, ("aml_config/lab.compute",)), json=False)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "lab is attached: remotedocker",
        "  address     me@203.0.113.7 port 5022",
        "  host key    SHA256:x",
        "  GPU         Tesla T4, 15360 MiB, driver 535.161.08",
        "  password    not kept: it is asked for each time",
        "  wrote       aml_config/lab.compute",
    ]
    assert captured.err.startswith("Next: ")
    attached_view.show(Attached(LAB, "SHA256:x", checkup, ()), json=False)
    assert "  files       as they were" in capsys.readouterr().out
    attached_view.show(Attached(LAB, "SHA256:x", checkup, ()), json=True)
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schemaVersion", "name", "files", "fingerprint", "checks", "gpu", "target"]
