"""What each scheduler is given, and whether it is still as we gave it."""

import shlex

import pytest

from gpuinfra.scheduling import quoting
from gpuinfra.scheduling.interval import Interval
from gpuinfra.scheduling.mark import is_untouched, marked
from gpuinfra.scheduling.order import Order, config_folder, environment_file, search_path
from gpuinfra.scheduling.rendering import Rendered, Scheduler, render
from tests.schedule_help import ODD, order


def text_of(scheduler: Scheduler, wanted: Order) -> str:
    return "\n".join(file.text for file in render(scheduler, wanted))


@pytest.mark.parametrize("scheduler", Scheduler)
def test_every_file_is_known_again_and_a_changed_one_is_not(scheduler: Scheduler) -> None:
    for file in render(scheduler, order()):
        assert is_untouched(file.text)
        assert not is_untouched(file.text + "#\n")
        assert not is_untouched(file.text.replace("gpuinfra", "gpuinfro"))
        assert not is_untouched(file.text.partition("\n")[2])
        assert "@{" not in file.text


def test_the_mark_is_of_the_text_below_it() -> None:
    assert is_untouched(marked("hello\n"))
    assert not is_untouched("")
    assert not is_untouched("hello\n")
    assert not is_untouched(marked("hello\n").replace("hello", "hallo"))


def test_the_names_are_those_that_the_readers_look_for() -> None:
    names = {scheduler: [file.name for file in render(scheduler, order())] for scheduler in Scheduler}
    assert names == {
        Scheduler.CRON: ["crontab"],
        Scheduler.SYSTEMD: ["gpuinfra-reap.service", "gpuinfra-reap.timer"],
        Scheduler.GITHUB_ACTIONS: [".github/workflows/gpuinfra.yml"],
        Scheduler.AZURE_PIPELINES: ["azure-pipelines-gpuinfra.yml"],
    }


def test_the_command_says_all_that_was_wished_for() -> None:
    wanted = Order(
        Interval(15),
        specs="/specs",
        start=True,
        delete=True,
        grace="2d",
        sandbox=True,
        workspace="/work",
        program=("/g",),
    )
    words = "/g --sandbox reap --workspace /work --specs /specs --start --delete --grace 2d --json"
    assert list(wanted.reap) == words.split()
    assert list(Order(Interval(15)).reap) == ["gpuinfra", "reap", "--json"]


def crontab_line(rendered: tuple[Rendered, ...]) -> str:
    (line,) = [line for line in rendered[0].text.splitlines() if not line.startswith("#")]
    return line


def test_a_crontab_has_one_line_that_cron_cuts_nowhere() -> None:
    line = crontab_line(render(Scheduler.CRON, order(specs=ODD)))
    assert line.startswith("*/15 * * * * /bin/sh -c ")
    # A per cent sign is the end of the command, unless a backslash is before it.
    assert line.count("%") == line.count(r"\%") == 2


def test_what_cron_runs_is_one_script() -> None:
    command = crontab_line(render(Scheduler.CRON, order(specs=ODD))).split(" ", 5)[5].replace(r"\%", "%")
    shell, option, script = shlex.split(command)
    assert (shell, option) == ("/bin/sh", "-c")
    assert shlex.join(["/opt/gpuinfra", "reap", "--specs", ODD, "--json"]) in script


def test_no_scheduler_gets_a_value_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "s3cret-value")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client-value")
    for scheduler in Scheduler:
        assert "-value" not in text_of(scheduler, order())


def test_a_missed_run_of_a_timer_is_made_up_for() -> None:
    assert "\nPersistent=true\n" in text_of(Scheduler.SYSTEMD, order())


@pytest.mark.parametrize("scheduler", [Scheduler.GITHUB_ACTIONS, Scheduler.AZURE_PIPELINES])
def test_only_specs_start_a_plan(scheduler: Scheduler) -> None:
    assert '- "infra/gpu/**/*.yaml"' in text_of(scheduler, order(specs="infra/gpu"))
    assert '- "**/*.yml"' in text_of(scheduler, order(specs="."))


def test_the_workflow_keeps_no_secret() -> None:
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
def test_words_for_systemd(word: str, quoted: str) -> None:
    assert quoting.for_systemd(["/x", word]) == f"/x {quoted}"


def test_the_path_of_a_program_has_no_variables() -> None:
    assert quoting.for_systemd(["/a $b%c/gpuinfra"]) == '"/a $b%%c/gpuinfra"'


def test_an_environment_file_is_no_pattern() -> None:
    assert quoting.systemd_pattern("/a b/[x]*%h") == r"/a b/\[x\]\*%%h"


def test_the_path_has_the_program_and_no_folder_twice() -> None:
    folders = search_path(("/opt/gpu/bin/gpuinfra",)).split(":")
    assert folders[0] == "/opt/gpu/bin"
    assert len(folders) == len(set(folders))
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(folders)


def test_where_variables_are_looked_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.getbasetemp()
    assert environment_file({}, home) == home / ".config/gpuinfra/schedule.env"
    assert config_folder({"XDG_CONFIG_HOME": "/settings"}, home).as_posix() == "/settings"
    assert config_folder({"XDG_CONFIG_HOME": "relative"}, home) == home / ".config"
