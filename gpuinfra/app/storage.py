"""What gpuinfra keeps on a target: list it, and remove what nothing needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuinfra.app.access import power_of, settings_for_target
from gpuinfra.app.frontend import ask_or_refuse
from gpuinfra.app.machine_names import target_named
from gpuinfra.app.workspace import linked, machine_of, open_workspace
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.consent import Question
from gpuinfra.models.storage import StoredItem
from gpuinfra.models.target import Target
from gpuinfra.runner.errors import Unreachable, job_problems
from gpuinfra.runner.storage import Storage
from gpuinfra.workbench import targets
from gpuinfra.workbench.compute import LOCAL, REMOTE

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.run import Run
    from gpuinfra.runner.link import Link

STEP = "storage"


@contextmanager
def open_storage(settings: Settings, name: str, seconds: float, frontend: Frontend) -> Iterator[Storage]:
    """Connect to a target for the duration of this block. Raise Problem for every error, also if it is off."""
    target = _target(settings, name)
    workspace = open_workspace(settings)
    fetched, unfetched = sort_runs(workspace.history.list(), lambda run: workspace.run_folder(run).is_dir())
    with linked(target, frontend) as link, job_problems(target.name):
        link.power = power_of(
            settings_for_target(settings, target), machine_of(target, None), resource_id=target.resource_id
        )
        _connect(link)
        yield Storage(link, seconds, fetched, unfetched)


def sort_runs(runs: Iterable[Run], has_folder: Callable[[str], bool]) -> tuple[set[str], set[str]]:
    """Return the runs of which everything is in their folder here, and those of which something is missing.

    Of a run whose folder was deleted, the target may have the only copy: it is neither.
    """
    found = list(runs)
    unfetched = {run.id for run in found if not run.state.is_over or run.may_have_outputs or run.is_log_incomplete}
    fetched = {run.id for run in found if run.outputs.complete and has_folder(run.id)}
    return fetched - unfetched, unfetched


def _target(settings: Settings, name: str) -> Target:
    found = targets.find_target(settings.folder, name)
    if found is None and name in targets.BUILT_IN:
        return Target(name, name, targets.BUILT_IN[name], "", 0, "", "")
    return replace(found, address="") if found and found.is_here else target_named(settings, name)


def _connect(link: Link) -> None:
    """Connect now, and report at once if that fails."""
    try:
        _ = link.connection
    except Unreachable:
        link.check_power()
        raise


def list_storage(storage: Storage, frontend: Frontend) -> list[StoredItem]:
    """Return everything that gpuinfra keeps on the target, with its size."""
    frontend.begin(STEP, "measuring files and images")
    found = storage.items()
    if storage.no_engine and storage.link.target.type not in {LOCAL, REMOTE}:
        frontend.fail(STEP, f"images are not listed: {storage.no_engine}")
    else:
        frontend.end(STEP, "measured")
    return found


def remove_storage(
    settings: Settings, storage: Storage, found: Sequence[StoredItem], frontend: Frontend
) -> list[StoredItem]:
    """Remove what can be removed after a question. Return that, with the reason for each item that stays after all."""
    items = [each for each in found if not each.kept]
    name, count = storage.link.target.name, ", ".join(_counted(items))
    refusal = problem(
        Code.NEEDS_CONSENT,
        "files would be deleted",
        f"on `{name}`: {count}; nothing was deleted",
        "`--yes` deletes them; `--dry-run` only lists them",
        exit_code=Exit.USAGE,
    )
    ask_or_refuse(settings, frontend, Question(f"Delete {count} on {name}?"), refusal)
    frontend.begin(STEP, "deleting")
    removed = storage.remove(items)
    frontend.end(STEP, "done")
    return removed


def _counted(items: Sequence[StoredItem]) -> Iterator[str]:
    """Yield the number of items of each kind: `1 run`, `2 copies`."""
    kinds = [each.kind for each in items]
    for kind in dict.fromkeys(kinds):
        plural = "copies" if kind == "copy" else f"{kind}s"
        yield f"{kinds.count(kind)} {kind if kinds.count(kind) == 1 else plural}"
