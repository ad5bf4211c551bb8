"""`gpuinfra detach`: a target is forgotten, its machine left as it is."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli.options import Settings, begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.models.target import Target


def detach(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The target's name.")],
) -> None:
    """Remove the two files of a target, and its password from the keyring. The machine is left as it is."""
    from gpuinfra.views import targets as view
    from gpuinfra.workbench.targets import find_target
    from gpuinfra.workspace import find_workspace

    settings = begin(context, reaches_cloud=False)
    workspace = find_workspace(settings.workspace)
    files = _files(workspace, name)
    target = None
    with contextlib.suppress(Problem):  # a file that is no good can be removed as well
        target = find_target(workspace, name)
    _ask(settings, name, files)
    if target:
        _forget(target)
    _remove(files)
    view.show_detached(
        name, [str(file) for file in files], has_machine=not target or target.address != "", json=settings.json
    )


def _files(workspace: Path, name: str) -> list[Path]:
    from gpuinfra.workbench.targets import nearest_target, target_files

    # A name is that of files in one folder, and of no others.
    files = target_files(workspace, name) if Path(name).name == name else []
    # A run configuration alone is no target: it may be one for another.
    if any(file.suffix == ".compute" for file in files):
        return files
    raise Problem(
        Diagnostic(
            Code.NO_SUCH_TARGET,
            "no such target",
            note=f"there is no `{name}.compute` in `{workspace / 'aml_config'}`",
            help=nearest_target(workspace, name) or "`gpuinfra targets --no-check` lists those that there are",
        )
    )


def _ask(settings: Settings, name: str, files: list[Path]) -> None:
    listed = " and ".join(f"`{file}`" for file in files)
    if settings.yes:
        return
    if sys.stdin.isatty() and not settings.json and typer.confirm(f"Remove {listed}?", err=True):
        return
    raise Problem(
        Diagnostic(
            Code.NEEDS_CONSENT,
            "this would remove files",
            note=f"`{name}` is {listed}; nothing was removed",
            help="give `--yes` to remove them",
        ),
        exit_code=Exit.USAGE,
    )


def _forget(target: Target) -> None:
    from runner.connection import HostKeyInvalid
    from runner.passwords import account, forget

    with contextlib.suppress(HostKeyInvalid):  # then no password was ever kept for it
        if target.password:
            forget(target.password, account(target))


def _remove(files: list[Path]) -> None:
    # What makes it a target goes last: what is left half-way can be detached again.
    for file in sorted(files, key=lambda file: file.suffix == ".compute"):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            note = f"`{file}`: {error.strerror}"
            help_line = "remove it yourself, or run the same command again"
            diagnostic = Diagnostic(Code.FILE_UNWRITABLE, "file cannot be removed", note=note, help=help_line)
            raise Problem(diagnostic) from error
