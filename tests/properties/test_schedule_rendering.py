"""Rendered files of each scheduler, and how edits are detected."""

import shlex

import pytest

from gpuinfra.scheduling import rendering
from gpuinfra.scheduling.rendering import RenderedFile, Scheduler, is_untouched, marked, render
from gpuinfra.scheduling.schedule import Interval, ReapSchedule, config_folder, environment_file, search_path
from tests.schedule_help import ODD, order


def text_of(scheduler: Scheduler, wanted: ReapSchedule) -> str:
    return "\n".join(file.text for file in render(scheduler, wanted))


@pytest.mark.parametrize("scheduler", Scheduler)
def test_rendered_file_is_recognised_until_it_is_edited(scheduler: Scheduler) -> None:
    for file in render(scheduler, order()):
        assert is_untouched(file.text)
        assert not is_untouched(file.text + "#\n")
        assert not is_untouched(file.text.replace("gpuinfra", "gpuinfro"))
        assert not is_untouched(file.text.partition("\n")[2])
        assert "@{" not in file.text


def test_mark_is_a_digest_of_the_text() -> None:
    assert is_untouched(marked("hello\n"))
    assert not is_untouched("")
    assert not is_untouched("hello\n")
    assert not is_untouched(marked("hello\n").replace("hello", "hallo"))


def test_rendered_files_have_the_expected_names() -> None:
    names = {scheduler: [file.name for file in render(scheduler, order())] for scheduler in Scheduler}
    assert names == {
        Scheduler.CRON: ["crontab"],
        Scheduler.SYSTEMD: ["gpuinfra-reap.service", "gpuinfra-reap.timer", "gpuinfra-reap-failure.service"],
        Scheduler.GITHUB_ACTIONS: [".github/workflows/gpuinfra.yml"],
        Scheduler.AZURE_PIPELINES: ["azure-pipelines-gpuinfra.yml"],
    }


def test_command_contains_every_option() -> None:
    wanted = ReapSchedule(
        Interval(15),
        specs="/specs",
        start=True,
        delete=True,
        grace="2d",
        sandbox=True,
        workspace="/work",
        program=("/g",),
    )
    words = "/g --sandbox reap --workspace /work --specs /specs --require-clean --start --delete --grace 2d --json"
    assert list(wanted.reap) == words.split()
    assert list(ReapSchedule(Interval(15)).reap) == ["gpuinfra", "reap", "--json"]


def crontab_line(rendered: tuple[RenderedFile, ...]) -> str:
    (line,) = [line for line in rendered[0].text.splitlines() if not line.startswith("#")]
    return line


def test_crontab_line_is_not_cut_at_a_percent_sign() -> None:
    line = crontab_line(render(Scheduler.CRON, order(specs=ODD)))
    assert line.startswith("*/15 * * * * /bin/sh -c ")
    # A percent sign ends the command, unless a backslash precedes it.
    assert line.count("%") == line.count(r"\%") == 3


def test_cron_runs_one_script() -> None:
    command = crontab_line(render(Scheduler.CRON, order(specs=ODD))).split(" ", 5)[5].replace(r"\%", "%")
    shell, option, script = shlex.split(command)
    assert (shell, option) == ("/bin/sh", "-c")
    assert shlex.join(["/opt/gpuinfra", "reap", "--specs", ODD, "--require-clean", "--json"]) in script


def test_rendered_files_contain_no_environment_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "s3cret-value")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client-value")
    for scheduler in Scheduler:
        assert "-value" not in text_of(scheduler, order())


def test_systemd_timer_is_persistent() -> None:
    assert "\nPersistent=true\n" in text_of(Scheduler.SYSTEMD, order())


@pytest.mark.parametrize("scheduler", [Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES])
def test_only_changed_specs_trigger_a_plan(scheduler: Scheduler) -> None:
    assert '- "infra/gpu/**/*.yaml"' in text_of(scheduler, order(specs="infra/gpu"))
    assert '- "**/*.yml"' in text_of(scheduler, order(specs="."))
    assert '- "infra/gpu/**/*.txt"' in text_of(scheduler, order(specs="infra/gpu")), "such as holidays.txt"


def test_workflow_contains_no_secret() -> None:
    text = text_of(Scheduler.GITHUB_ACTIONS, order())
    assert "secrets." not in text
    assert text.count("id-token: write") == 2


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain-word_1.0/x=y:z@1+2,3", "plain-word_1.0/x=y:z@1+2,3"),
        ("a b", '"a b"'),
        ('a"b', '"a\\"b"'),
        ("a\\b", '"a\\\\b"'),
        ("a;b", '"a;b"'),
        ("100%", "100%%"),
        ("$HOME", '"$$HOME"'),
        ("", '""'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, quoted: str) -> None:
    assert rendering.quote_for_systemd(["/x", word]) == f"/x {quoted}"


def test_program_path_is_quoted_for_systemd() -> None:
    assert rendering.quote_for_systemd(["/a $b%c/gpuinfra"]) == '"/a $b%%c/gpuinfra"'


def test_environment_file_is_escaped_for_systemd() -> None:
    assert rendering.systemd_pattern("/a b/[x]*%h") == r"/a b/\[x\]\*%%h"


def test_search_path_starts_with_the_program_and_has_no_duplicates() -> None:
    folders = search_path(("/opt/gpu/bin/gpuinfra",)).split(":")
    assert folders[0] == "/opt/gpu/bin"
    assert len(folders) == len(set(folders))
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(folders)


def test_environment_file_is_in_the_config_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.getbasetemp()
    assert environment_file({}, home) == home / ".config/gpuinfra/schedule.env"
    assert config_folder({"XDG_CONFIG_HOME": "/settings"}, home).as_posix() == "/settings"
    assert config_folder({"XDG_CONFIG_HOME": "relative"}, home) == home / ".config"
