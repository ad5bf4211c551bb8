"""Any bytes give diagnostics or specs, never a traceback; and the JSON Schema agrees on any document."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpuinfra.diagnostics import Code
from gpuinfra.models.hours import time_zones
from gpuinfra.parse.schema import json_schema
from gpuinfra.parse.source import decode
from gpuinfra.parse.spec import load_bytes
from gpuinfra.parse.tree import read
from gpuinfra.views.diagnostics import as_json, render
from tests.cases import content, spec_cases

SCHEMA = Draft202012Validator(json_schema())
CASES = [content(case) for kind in ("good", "bad") for case in spec_cases(kind)]
SMALL = [case for case in CASES if len(case) < 2000]

# Pieces that matter to YAML and the spec, combined in any order.
PIECES = st.sampled_from(
    [
        *"-:?,[]{}#&*!|>'\"%@`\\ \n\t\r~.\u2028\x85\ufeffé𝄞",
        *("- ", ": ", "  ", "---\n", "...\n", "%YAML 1.1\n", "!!str ", "apiVersion: gpuinfra/v1\n", "9" * 70),
        *"<<: &a *a \\U name: region: tags: no 22:30 1e3 0o7 010 1_0 .inf 2026-13-45 = 1:1:1 0x".split(),
    ]
)


def check(data: bytes) -> None:
    loaded = load_bytes("gpu.yaml", data)
    assert loaded.specs or loaded.diagnostics
    for diagnostic in loaded.diagnostics:
        assert render(diagnostic).plain.startswith("error: ")
        json.dumps(as_json(diagnostic))
    for located in loaded.specs:
        json.dumps(located.spec.as_json())


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_load_or_are_reported(data: bytes) -> None:
    check(data)


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=100, deadline=None)
def test_any_yaml_loads_or_is_reported(text: str) -> None:
    check(text.encode())


@given(st.sampled_from(SMALL), st.data())
@settings(max_examples=100, deadline=None)
def test_any_damaged_case_loads_or_is_reported(case: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(case)))
    end = draw.draw(st.integers(start, min(len(case), start + 20)))
    piece = draw.draw(PIECES.map(str.encode) | st.binary(max_size=4))
    check(case[:start] + piece + case[end:])


# Almost valid documents: a good spec with values and keys replaced by similar ones.
WORDS = st.sampled_from(
    [
        *"auto no my-dsvm my_dsvm -a a- Azure loginx xwindowsx local gpuinfra/v1 root u _x".split(),
        *"southcentralus eastus Standard_NC4as_T4_v3 Standard_NC6 dsvm-ubuntu-22.04 a:b:c:d a:b:c".split(),
        *"regular spot T4 A100 remote remotedocker Python deallocate keep UTC America/Chicago america/chicago".split(),
        *"4h 0h 30d 30d1h 29d23h59m 720h 721h 43200m 43201m 1h60m 1d24h 01h".split(),
        *"0.0.0.0/0 10.0.0.0/7 10.0.0.0/8 1.2.3.4 1.2.3.4/33 01.2.3.4 256.1.1.1 ::1".split(),
        *"a.yml ../a.yml a/../b.yml /a.yml a..yml ..yml .yml k.pub ~/.ssh/id ssh-k.pub .pub".split(),
        *"ubuntu a/b:c A/b localhost/a h.io:5000/a__b a::b".split(),
        *"1 3 4 01 running deallocated stopped (a)_b. (a).b".split(),
        *("01234567-89ab-CDEF-0123-456789abcdef", "0" * 32, "a" * 90, "a" * 91),
        *("4 hours", "1 hour 30 minutes", "1h 30m", "45 min", "45min", " 4h", "25 hours 61 minutes", "0 hours"),
        *("$5", "$0.01", "$0", "$0.00", "$05", "$5 USD", "5$", "V100", "RTXPRO6000"),
        *("5 USD", "0 USD", "0.00 USD", "0.01 USD", "5.001 USD", "1000000 USD", "05 USD"),
        *("mon-fri 08:00-19:00", "daily 00:00-24:00", "mon 08:00-08:00", "mon 8:00-9:00"),
        *"2026-12-25 2026-02-29 2028-02-29 1999-12-31 2026-12-24..2026-12-31 none.txt ../none.txt a/none.txt".split(),
        *("fri-mon 22:00-06:00,07:00-07:00", "a:b ", "4h ", "a/" * 300 + "a", "x@sha256:" + "0" * 64),
        *("", "a" * 64, "a" * 65, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "x" * 43 + " me"),
        # A newline at the very end, which Python's `$` would accept.
        *("1\n", "00000000-0000-0000-0000-000000000000\n"),
        *("a\n", "4h\n", "5 USD\n", "1.2.3.4/32\n", "k.pub\n", "a:b:c:d\n", "a.yml\n", "ubuntu\n", "mon 08:00-09:00\n"),
    ]
)
NAMES = st.sampled_from(
    ["project", "Project", "a/b", "gpuinfra:x", "GPUinfra:x", "azureX", "", "x" * 512, "x" * 513, "é"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    WORDS | st.booleans() | st.none() | st.integers(-2, 5000) | st.sampled_from([0.3, 150.5, 1000.5, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | WORDS, inner, max_size=3),
    max_leaves=4,
)
BASE: dict[str, Any] = {
    "apiVersion": "gpuinfra/v1",
    "name": "my-dsvm",
    "subscription": "00000000-0000-0000-0000-000000000000",
    "resourceGroup": "gpu-team",
    "regions": ["southcentralus", "eastus"],
    "zones": ["1", "2"],
    "sizes": ["Standard_NC4as_T4_v3"],
    "image": "dsvm-ubuntu-22.04",
    "acceptImageTerms": False,
    "securityType": "Standard",
    "priority": "spot",
    "spot": {"maxPrice": 0.3},
    "admin": {"username": "azureuser", "sshPublicKey": "~/.ssh/id_ed25519.pub"},
    "network": {"allowSshFrom": ["203.0.113.7/32"], "allowInternet": False},
    "disk": {"sizeGiB": 150, "sku": "StandardSSD_LRS"},
    "target": {
        "name": "my_dsvm",
        "type": "remotedocker",
        "baseDockerImage": "ubuntu:22.04",
        "nvidiaDocker": True,
        "framework": "Python",
        "condaDependencies": "aml_config/conda_dependencies.yml",
    },
    "power": "running",
    "lifecycle": {
        "afterRun": "deallocate",
        "lease": "4h",
        "idle": "20m",
        "maxCost": "5 USD",
        "hours": {"timezone": "UTC", "on": "mon-fri 08:00-19:00", "holidays": ["2026-12-25", "2028-02-29"]},
    },
    "tags": {"project": "mnist"},
}
KEYS = st.sampled_from(["region", "size", "gpu", "count", "model", "colour"]) | NAMES


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(BASE))
    if draw(st.booleans()):
        del document["sizes"]
        document["gpu"] = {"model": "A100", "count": draw(st.integers(0, 5))}
    for _ in range(draw(st.integers(1, 3))):
        place: Any = document
        while True:
            key = draw(st.sampled_from(sorted(place)) | KEYS if place else KEYS)
            if isinstance(place.get(key), dict) and draw(st.integers(0, 3)):
                place = place[key]
                continue
            break
        if draw(st.booleans()) or key not in place:
            place[key] = draw(VALUES)
        else:
            del place[key]
    return document


@given(documents())
@settings(max_examples=60, deadline=None)
def test_schema_and_loader_agree(document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1)
    assert not read(decode("gpu.yaml", text.encode())).diagnostics, "JSON reads as the same YAML"
    complaints = [
        diagnostic
        for diagnostic in load_bytes("gpu.yaml", text.encode()).diagnostics
        # Azure ignores the case of tags, and a file may be missing; JSON Schema cannot express either.
        if diagnostic.code not in {Code.DUPLICATE_KEY, Code.FILE_NOT_FOUND}
    ]
    refusals = [error.message[:200] for error in SCHEMA.iter_errors(document)]
    assert bool(refusals) == bool(complaints), (refusals, [render(each).plain for each in complaints])


def test_time_zones_exist_in_python() -> None:
    from zoneinfo import ZoneInfo

    assert len(time_zones()) > 400
    assert all(ZoneInfo(name).key == name for name in time_zones())


def test_long_line_is_read_in_time() -> None:
    # Each of these once had a pattern with quadratic time, or would have had one.
    for word in ("9", "password ", "a.", "1:", "-", "ssh-", "mon,", "x/", "A-", "1_", "[", "{a: "):
        check(b"apiVersion: gpuinfra/v1\nname: " + word.encode() * (60_000 // len(word)))
        check(b"target:\n  baseDockerImage: " + word.encode() * 250)
