"""Schedule `gpuinfra reap` with cron, systemd, GitHub Actions or Azure Pipelines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.app.schedule_order import Words, read_order, read_scheduler, repository
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.consent import Question
from gpuinfra.scheduling.rendering import CRONTAB, ScheduleOutcome

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.scheduling.rendering import RenderedFile, Scheduler


def render_schedule(word: str, words: Words, settings: Settings) -> tuple[Scheduler, tuple[RenderedFile, ...]]:
    """Return the scheduler that a word means, and its files."""
    from gpuinfra.scheduling.crontab import check_length
    from gpuinfra.scheduling.rendering import Scheduler, render

    kind = read_scheduler(word)
    files = render(kind, read_order(words, kind, settings))
    if kind is Scheduler.CRON:
        check_length(files[0].text)
    return kind, files


def install_schedule(
    kind: Scheduler, files: tuple[RenderedFile, ...], settings: Settings, frontend: Frontend
) -> ScheduleOutcome:
    """Install the files in the scheduler."""
    from gpuinfra.scheduling.rendering import Scheduler

    match kind:
        case Scheduler.CRON:
            return _into_crontab(files[0].text, settings, frontend)
        case Scheduler.SYSTEMD:
            return _as_units(files, settings, frontend)
        case _:
            return _into_repository(kind, files[0], settings, frontend)


def uninstall_schedule(word: str, settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    """Remove from the scheduler what `install` added."""
    from gpuinfra.scheduling.rendering import PIPELINE, WORKFLOW, Scheduler

    match kind := read_scheduler(word):
        case Scheduler.CRON:
            return _out_of_crontab(settings, frontend)
        case Scheduler.SYSTEMD:
            return _without_units(settings, frontend)
        case _:
            file = repository(settings) / (WORKFLOW if kind is Scheduler.GITHUB_ACTIONS else PIPELINE)
            return ScheduleOutcome(kind, removed=_removed([file], settings, frontend))


def _into_crontab(block: str, settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    from gpuinfra.scheduling import crontab
    from gpuinfra.scheduling.rendering import Scheduler, is_untouched

    before = crontab.read()
    known = crontab.block_in(before)
    if known == block:
        return ScheduleOutcome(Scheduler.CRON, unchanged=(CRONTAB,), active=crontab.is_read(), left=_cron_left())
    if known is not None and not is_untouched(known):
        _consent("gpuinfra's lines in your crontab", settings, frontend)
    crontab.write(crontab.with_block(before, block))
    return ScheduleOutcome(Scheduler.CRON, written=(CRONTAB,), active=crontab.is_read(), left=_cron_left())


def _cron_left() -> tuple[str, ...]:
    from gpuinfra.scheduling import crontab

    return () if crontab.is_read() else ("start cron: it does not seem to run on this computer",)


def _out_of_crontab(settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    from gpuinfra.scheduling import crontab
    from gpuinfra.scheduling.rendering import Scheduler, is_untouched

    before = crontab.read()
    known = crontab.block_in(before)
    if known is None:
        return ScheduleOutcome(Scheduler.CRON)
    if not is_untouched(known):
        _consent("gpuinfra's lines in your crontab", settings, frontend)
    crontab.write(crontab.without_block(before))
    return ScheduleOutcome(Scheduler.CRON, removed=(CRONTAB,))


def _as_units(files: tuple[RenderedFile, ...], settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    from gpuinfra.scheduling import systemd
    from gpuinfra.scheduling.rendering import Scheduler

    folder = systemd.folder(os.environ, Path.home())
    texts = {folder / file.name: file.text for file in files}
    written, unchanged = _put(texts, settings, frontend, settings.workspace)
    result = systemd.start()
    return ScheduleOutcome(
        Scheduler.SYSTEMD,
        written=written,
        unchanged=unchanged,
        active=result.active,
        left=result.left,
        reason=result.reason,
    )


def _without_units(settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    from gpuinfra.scheduling import systemd
    from gpuinfra.scheduling.rendering import UNITS, Scheduler

    folder = systemd.folder(os.environ, Path.home())
    present = [path for name in UNITS if (path := folder / name).exists()]
    if not present:
        return ScheduleOutcome(Scheduler.SYSTEMD)
    _consent_to_touched(present, settings, frontend)
    result = systemd.stop()
    removed = _removed(present, settings, frontend, asked=True)
    systemd.remove_links(folder)
    return ScheduleOutcome(Scheduler.SYSTEMD, removed=removed, left=result.left, reason=result.reason)


def _into_repository(kind: Scheduler, file: RenderedFile, settings: Settings, frontend: Frontend) -> ScheduleOutcome:
    from gpuinfra.scheduling.rendering import Scheduler

    root = repository(settings)
    written, unchanged = _put({root / file.name: file.text}, settings, frontend, root)
    service = "on GitHub" if kind is Scheduler.GITHUB_ACTIONS else "in Azure DevOps"
    left = (f"set up what its first lines say, {service}", "commit it and push it to the default branch")
    return ScheduleOutcome(kind, written=written, unchanged=unchanged, left=left)


def _put(
    texts: dict[Path, str], settings: Settings, frontend: Frontend, project: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which files were written, and which were unchanged. Without consent, write none."""
    from gpuinfra.app.workspace import write_file

    new = [path for path, text in texts.items() if _read(path) != text]
    _consent_to_touched([path for path in new if path.exists()], settings, frontend)
    for path in new:
        write_file(path, texts[path], settings, frontend, ours=True, project=project)
    return tuple(map(str, new)), tuple(str(path) for path in texts if path not in new)


def _removed(paths: list[Path], settings: Settings, frontend: Frontend, *, asked: bool = False) -> tuple[str, ...]:
    present = [path for path in paths if path.exists()]
    if not asked:
        _consent_to_touched(present, settings, frontend)
    for path in present:
        try:
            path.unlink()
        except OSError as error:
            note = f"`{path}`: {error.strerror}"
            raise problem(Code.FILE_UNWRITABLE, "file cannot be removed", note) from None
    return tuple(map(str, present))


def _consent_to_touched(paths: list[Path], settings: Settings, frontend: Frontend) -> None:
    for path in paths:
        if not is_untouched_file(path):
            _consent(f"`{path}`", settings, frontend)


def _consent(what: str, settings: Settings, frontend: Frontend) -> None:
    """Ask before changing what is not as gpuinfra wrote it. Raise Problem if the user refuses."""
    found = f"{what} was not written by `gpuinfra schedule`, or was changed"
    note, help_line = f"{found}; it was left as it is", "keep the change elsewhere, then give `--yes`"
    refusal = problem(Code.FILE_EXISTS, "not as gpuinfra wrote it", note, help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question(f"{found}. Overwrite it?"), refusal)


def is_untouched_file(path: Path) -> bool:
    """Return whether a file is as gpuinfra wrote it."""
    from gpuinfra.scheduling.rendering import is_untouched

    return is_untouched(_read(path) or "")


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise problem(Code.FILE_UNREADABLE, "file cannot be read", note) from None
