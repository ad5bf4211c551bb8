"""Options of `gpuinfra schedule`: valid ones, defaults, and refusals before anything is written."""

from pathlib import Path

import pytest

from gpuinfra import __version__
from gpuinfra.app.schedule_order import Words, read_order, read_scheduler, repository
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Problem
from gpuinfra.scheduling.rendering import Scheduler
from gpuinfra.scheduling.schedule import ReapSchedule, own_program


def settings(workspace: Path, *, sandbox: bool = False) -> Settings:
    return Settings(
        json=False,
        yes=False,
        verbose=False,
        cloud="sandbox" if sandbox else "azure",
        workspace=workspace,
        correlation_id="",
    )


def read(tmp_path: Path, scheduler: Scheduler, **words: object) -> ReapSchedule:
    return read_order(Words(**words), scheduler, settings(tmp_path))  # type: ignore[arg-type]


def refusal(tmp_path: Path, scheduler: Scheduler, **words: object) -> str:
    with pytest.raises(Problem) as caught:
        read(tmp_path, scheduler, **words)
    assert caught.value.exit_code == 2
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.help
    return f"{diagnostic.note} {diagnostic.help}"


def test_scheduler_is_read_by_its_name() -> None:
    assert read_scheduler("azure-pipelines") is Scheduler.AZURE_PIPELINES
    with pytest.raises(Problem) as caught:
        read_scheduler("github")
    assert "`github-actions`" in str(caught.value.diagnostics[0])


def test_cron_and_systemd_get_full_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    order = read(tmp_path, Scheduler.CRON, specs=Path("specs"), start=True)
    assert order.specs == str(tmp_path / "specs")
    assert order.workspace == str(tmp_path)
    assert order.program == own_program()
    assert Path(order.program[0]).is_absolute()
    assert order.environment_file == str(tmp_path / ".config/gpuinfra/schedule.env")
    given = read(tmp_path, Scheduler.SYSTEMD, environment_file=Path("mine.env"))
    assert given.environment_file == str(tmp_path / "mine.env")
    assert given.specs is None


def test_repository_schedulers_get_relative_paths(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "specs"
    inner.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    order = read_order(Words(specs=inner, package="gpuinfra==1"), Scheduler.GITHUB_ACTIONS, settings(inner))
    assert order.specs == "deep/specs"
    assert order.program == ("gpuinfra",)
    assert order.workspace is None
    assert order.package == "gpuinfra==1"
    assert repository(settings(inner)) == tmp_path
    assert read(tmp_path, Scheduler.AZURE_PIPELINES, start=True, package="gpuinfra==1").specs == "."


def test_specs_outside_the_repository_are_refused(tmp_path: Path) -> None:
    workspace, other = tmp_path / "one", tmp_path / "two"
    workspace.mkdir()
    other.mkdir()
    assert "not in the repository" in refusal(workspace, Scheduler.GITHUB_ACTIONS, specs=other)


@pytest.mark.parametrize("name", ["sp ace", "${{ x }}", "a'b", "-x", "ü"])
def test_folder_name_that_yaml_or_shell_would_change_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for scheduler in (Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES):
        assert "letters, digits" in refusal(tmp_path, scheduler, specs=tmp_path / name)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    for scheduler in Scheduler:
        assert "not a directory" in refusal(tmp_path, scheduler, specs=tmp_path / "none")


def test_line_break_in_a_folder_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\nb").mkdir()
    for scheduler in (Scheduler.CRON, Scheduler.SYSTEMD):
        assert "no crontab" in refusal(tmp_path, scheduler, specs=tmp_path / "a\nb")


@pytest.mark.parametrize(
    ("scheduler", "every", "says"),
    [
        (Scheduler.CRON, "7m", "`6m`"),
        (Scheduler.CRON, "soon", "`--every soon`: expected days, hours and minutes"),
        (Scheduler.SYSTEMD, "2d", "`1d`"),
        (Scheduler.GITHUB_ACTIONS, "4m", "every 5m"),
        (Scheduler.AZURE_PIPELINES, "10m", "every 12m"),
    ],
)
def test_unsupported_interval_is_refused(tmp_path: Path, scheduler: Scheduler, every: str, says: str) -> None:
    assert says in refusal(tmp_path, scheduler, every=every)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (Scheduler.CRON, {"package": "gpuinfra"}),
        (Scheduler.SYSTEMD, {"branch": "main"}),
        (Scheduler.GITHUB_ACTIONS, {"connection": "x"}),
        (Scheduler.GITHUB_ACTIONS, {"branch": "main"}),
        (Scheduler.AZURE_PIPELINES, {"environment_file": Path("x")}),
    ],
)
def test_option_for_another_scheduler_is_refused(
    tmp_path: Path, scheduler: Scheduler, words: dict[str, object]
) -> None:
    assert "has no effect for" in refusal(tmp_path, scheduler, **words)


@pytest.mark.parametrize(
    "words",
    [{"package": "x; rm -rf ~"}, {"package": "$(x)"}, {"package": ""}, {"branch": 'a"b'}, {"connection": "${{ x }}"}],
)
def test_value_that_would_be_executed_is_refused(tmp_path: Path, words: dict[str, object]) -> None:
    assert "is not allowed" in refusal(tmp_path, Scheduler.AZURE_PIPELINES, **words)


def test_package_may_be_any_pip_requirement(tmp_path: Path) -> None:
    for package in ("gpuinfra>=0.1,<1", "git+https://example.com/gpuinfra.git@v1#egg=gpuinfra", "gpuinfra[keyring]"):
        assert read(tmp_path, Scheduler.GITHUB_ACTIONS, package=package).package == package


def test_package_is_required_for_ci(tmp_path: Path) -> None:
    for scheduler in (Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES):
        assert f"gpuinfra=={__version__}" in refusal(tmp_path, scheduler)


def test_starting_machines_needs_specs(tmp_path: Path) -> None:
    assert "`--specs`" in refusal(tmp_path, Scheduler.CRON, start=True)


def test_sandbox_is_refused_for_ci(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="wrong usage"):
        read_order(Words(), Scheduler.GITHUB_ACTIONS, settings(tmp_path, sandbox=True))
    assert read_order(Words(), Scheduler.CRON, settings(tmp_path, sandbox=True)).sandbox
