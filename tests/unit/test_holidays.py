"""Holiday files: their dates become part of the spec."""

import os
from datetime import date
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Diagnostic
from gpuinfra.models.hours import DATE, MAX_DAYS, Hours, parse_date, parse_days
from gpuinfra.models.spec import Spec
from gpuinfra.parse.files import load_paths
from gpuinfra.parse.spec import Loaded
from gpuinfra.views.diagnostics import render

SPEC = """\
apiVersion: gpuinfra/v1
name: my-dsvm
region: southcentralus
size: Standard_NC4as_T4_v3
lifecycle:
  hours:
    timezone: UTC
    on: "mon-fri 08:00-19:00"
"""


def load(folder: Path, holidays: str = "holidays.txt") -> Loaded:
    """Load a spec in this folder that names a holiday file."""
    (folder / "gpu.yaml").write_text(f"{SPEC}    holidays: {holidays}\n")
    return load_paths([str(folder / "gpu.yaml")])


def spec(folder: Path, text: bytes) -> Spec:
    (folder / "holidays.txt").write_bytes(text)
    loaded = load(folder)
    assert loaded.diagnostics == []
    return loaded.specs[0].spec


def days(folder: Path, text: bytes) -> list[str]:
    hours = spec(folder, text).lifecycle.hours
    return [day.isoformat() for day in (hours.holidays if hours and hours.holidays else ())]


def problems(folder: Path, text: bytes) -> list[Diagnostic]:
    (folder / "holidays.txt").write_bytes(text)
    return load(folder).diagnostics


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"2026-12-25\n", ["2026-12-25"]),
        (b"2026-12-25", ["2026-12-25"]),
        (b"2026-12-25\r2027-01-01\r", ["2026-12-25", "2027-01-01"]),
        (b"\xef\xbb\xbf  2027-01-01   # New Year\r\n# nothing\r\n\r\n2026-12-25#x\r\n", ["2026-12-25", "2027-01-01"]),
        (b"2026-12-30..2027-01-01\n2026-12-31\n", ["2026-12-30", "2026-12-31", "2027-01-01"]),
        (b"2028-02-28..2028-03-01\n", ["2028-02-28", "2028-02-29", "2028-03-01"]),
        (b"2026-12-25..2026-12-25\n", ["2026-12-25"]),
        (b"", []),
        (b"# to be filled in\n", []),
    ],
)
def test_line_is_a_date_or_a_range(tmp_path: Path, text: bytes, expected: list[str]) -> None:
    assert days(tmp_path, text) == expected


def test_digest_depends_on_the_dates_only(tmp_path: Path) -> None:
    one = spec(tmp_path, b"2026-12-25..2026-12-26\n")
    assert one.digest() == spec(tmp_path, b"2026-12-26 # second\n2026-12-25\n").digest()
    assert one.digest() != spec(tmp_path, b"2026-12-25\n").digest()
    (tmp_path / "gpu.yaml").write_text(SPEC)
    without = load_paths([str(tmp_path / "gpu.yaml")]).specs[0].spec
    assert spec(tmp_path, b"# none\n").digest() == without.digest()


def test_file_is_found_next_to_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs" / "days").mkdir(parents=True)
    (tmp_path / "specs" / "days" / "berlin.txt").write_text("2026-12-25\n")
    monkeypatch.chdir(tmp_path)
    assert load(Path("specs"), "days/berlin.txt").diagnostics == []


def test_printed_spec_includes_the_dates(tmp_path: Path) -> None:
    import json

    made = spec(tmp_path, b"2026-12-24..2026-12-26\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "gpu.json.yaml").write_text(json.dumps(made.as_json()))
    assert load_paths([str(elsewhere)]).specs[0].spec == made


BAD = b"2026-12-25\n  26.12.2026  # second\n2026-02-30\n2027-01-02..2027-01-01\n2026-12-24..soon\n1999-01-01\n"


def test_every_bad_line_is_reported_with_its_place(tmp_path: Path) -> None:
    found = problems(tmp_path, BAD)
    assert [(each.span.line, each.span.column) for each in found if each.span] == [
        (2, 3),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
    ]
    assert [each.label for each in found] == [
        "expected year, month and day, from 2000 to 2099",
        "this day does not exist",
        "the end is before the start",
        "expected year, month and day, from 2000 to 2099",
        "expected year, month and day, from 2000 to 2099",
    ]
    shown = render(found[0]).plain
    assert f"--> {tmp_path / 'holidays.txt'}:2:3" in shown
    assert "26.12.2026" in shown
    assert {each.code.value for each in found} == {"bad-date"}


def test_too_many_days_are_reported_once_and_quickly(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, b"2000-01-01..2009-12-31\n" * 10_000)
    assert found.label == f"at most {MAX_DAYS} days"
    (found,) = problems(tmp_path, b"2000-01-01..2099-12-31\n")
    assert found.label == f"more than {MAX_DAYS} days"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("none.txt", "file-not-found"),
        ("folder.txt", "file-unreadable"),
        ("pipe.txt", "file-unreadable"),
        ("bytes.txt", "not-utf8"),
        ("large.txt", "file-too-large"),
    ],
)
def test_unreadable_file_is_reported(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "bytes.txt").write_bytes(b"2026-12-25\n\xff\n")
    (tmp_path / "large.txt").write_bytes(b"#" * 300_000)
    (found,) = load(tmp_path, name).diagnostics
    assert found.code.value == code
    assert found.span is not None
    assert load(tmp_path, name).specs == []


def test_secret_in_the_file_is_not_shown(tmp_path: Path) -> None:
    shown = [render(each).plain for each in problems(tmp_path, b"password: hunter2hunter2\n")]
    assert shown
    assert not any("hunter2" in text for text in shown)


def test_pattern_matches_exactly_the_calendar_days() -> None:
    import re

    every = {day.isoformat() for day in parse_days("2024-01-01..2028-12-31")}
    texts = (f"{year}-{month:02}-{day:02}" for year in range(2024, 2029) for month in range(14) for day in range(33))
    assert {text for text in texts if re.fullmatch(DATE, text)} == every
    for year in (2000, 2096, 2099):
        assert bool(re.fullmatch(DATE, f"{year}-02-29")) is (year % 4 == 0)


def test_date_is_parsed_and_validated() -> None:
    assert parse_date("2026-12-25") == date(2026, 12, 25)
    with pytest.raises(ValueError, match="invalid date"):
        Hours.model_validate({"timezone": "UTC", "on": ("daily 08:00-09:00",), "holidays": "holidays.txt"})
