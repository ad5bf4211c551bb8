"""Remove a target without changing its machine."""

from __future__ import annotations

from pathlib import Path

from gpuinfra.app.frontend import Frontend, ask_or_refuse
from gpuinfra.app.settings import Settings
from gpuinfra.app.settlement import settle_runs
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, Exit, Problem, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.run import Run
from gpuinfra.models.target import DetachResult, Target, unreachable_runs
from gpuinfra.runner.connection.passwords import delete_password, keyring_entry
from gpuinfra.workbench.compute import LOCAL, LOCALDOCKER
from gpuinfra.workbench.project import load_project
from gpuinfra.workbench.targets import nearest_target, target_files, target_of
from gpuinfra.workspace import check_inside


def detach(settings: Settings, name: str, frontend: Frontend) -> DetachResult:
    """Remove a target's two files, and its password from the keyring."""
    workspace = settings.folder
    files = _files(workspace, name)
    project = load_project(workspace)
    compute = project.computes.get(name)
    runs = _runs_on(settings, name)
    _ask(settings, name, files, runs, frontend)
    is_forgotten = not compute or _forget(target_of(workspace, project, compute))
    _remove(files, workspace)
    return DetachResult(
        name,
        tuple(str(file) for file in files),
        has_machine=not compute or compute.type not in {LOCAL, LOCALDOCKER},
        keeps_password=not is_forgotten,
        runs=tuple(runs),
    )


def _files(workspace: Path, name: str) -> list[Path]:
    # Only a plain file name: a path must not reach other folders.
    files = target_files(workspace, name) if Path(name).name == name else []
    # A run configuration alone is not a target: it may belong to another one.
    if any(file.suffix == ".compute" for file in files):
        return files
    raise problem(
        Code.NO_SUCH_TARGET,
        "no such target",
        f"there is no `{name}.compute` in `{workspace / 'aml_config'}`",
        nearest_target(workspace, name) or "`gpuinfra targets --no-check` lists all targets",
    )


def _runs_on(settings: Settings, name: str) -> list[Run]:
    """Return the target's runs that are active or have unfetched outputs: without the target they are unreachable."""
    try:
        found = settle_runs(settings, open_workspace(settings).history.list(target=name)).runs
    except Problem:
        return []  # a broken history must not prevent it
    return [run for run in found if not run.state.is_over or run.is_unfetched]


def _ask(settings: Settings, name: str, files: list[Path], runs: list[Run], frontend: Frontend) -> None:
    listed = " and ".join(f"`{file}`" for file in files)
    lost = f"; {unreachable_runs(runs)}" if runs else ""
    fetch = next((f"`gpuinfra outputs {run.id}` fetches outputs first; " for run in reversed(runs)), "")
    note, help_line = f"`{name}` is {listed}; nothing was removed{lost}", f"{fetch}give `--yes` to remove them"
    refusal = problem(Code.NEEDS_CONSENT, "this would remove files", note, help_line, exit_code=Exit.USAGE)
    ask_or_refuse(settings, frontend, Question(f"Remove {listed}{lost}?"), refusal)


def _forget(target: Target) -> bool:
    """Delete the target's password, and return whether it is gone. Works even if the file has errors elsewhere."""
    kept = keyring_entry(target)
    return not kept or delete_password(*kept)


def _remove(files: list[Path], workspace: Path) -> None:
    for file in files:
        check_inside(file.parent, workspace)
    # Remove the file that defines the target last, so that an interrupted detach can be repeated.
    for file in sorted(files, key=lambda file: file.suffix == ".compute"):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            note = f"`{file}`: {error.strerror}"
            help_line = "remove it yourself, or run the same command again"
            raise problem(Code.FILE_UNWRITABLE, "file cannot be removed", note, help_line) from error
