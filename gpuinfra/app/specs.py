"""Find the specs that a command means: in files, in folders, or by the name of a machine or target."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.app.machine_tasks import ErrorCollector
    from gpuinfra.models.spec import Spec
    from gpuinfra.parse.spec import Loaded, LocatedSpec
    from gpuinfra.provision.progress import Progress


def load_specs(paths: Sequence[str], errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    """Return every spec in the files. Raise Problem with all errors in them.

    With `errors`, errors in some specs are collected there, and the others are returned.
    """
    from gpuinfra.parse.files import load_paths

    loaded = load_paths(paths)
    if loaded.diagnostics:
        problem = Problem(*loaded.diagnostics, exit_code=Exit.USAGE)
        if errors is None or not loaded.specs:
            raise problem
        errors.add(problem)
    return loaded.specs


def validate(paths: Sequence[str]) -> Loaded:
    """Return every spec in the files, and every error in them."""
    from gpuinfra.parse.files import load_paths

    return load_paths(paths)


def readable_specs(folder: Path, what: str, progress: Progress) -> list[LocatedSpec]:
    """Return the readable specs in a folder. A broken one must not hide a machine that is billed."""
    from gpuinfra.parse.files import load_paths

    loaded = load_paths([str(folder)])
    problems = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if problems:
        counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        progress.note(f"{counted} in the specs of {what}; `gpuinfra validate {quote(str(folder))}` shows more")
    return loaded.specs


def common_subscription(specs: Sequence[LocatedSpec]) -> str | None:
    """Return the subscription that all specs agree on, for a command that concerns a whole subscription.

    Return None if they disagree, or if the environment selects one for such commands.
    """
    from gpuinfra.provision.azure.access import SUBSCRIPTION_VARIABLE

    if os.environ.get(SUBSCRIPTION_VARIABLE):
        return None
    named = {located.spec.subscription for located in specs if located.spec.subscription}
    return named.pop() if len(named) == 1 else None


def spec_named(workspace: Path, name: str) -> Spec | None:
    """Return a machine's spec in the workspace, by machine or target name, or None."""
    found = _located_named(workspace, name)
    return found[0].spec if found else None


def has_target(workspace: Path, name: str) -> bool:
    """Whether a spec of the workspace has a target of this name, in any spelling: `is_same_name`."""
    from gpuinfra.runner.connection.known_hosts import is_same_name

    return any(is_same_name(located.spec.target_name, name) for located in _specs_in(workspace))


def spec_of_machine(workspace: Path, name: str, group: str | None) -> Spec | None:
    """Return the spec of exactly this machine, or None. Without a group, only the name counts."""
    for spec in (located.spec for located in _specs_in(workspace)):
        if (
            spec.name.casefold() == name.casefold()
            and (group or spec.group_name).casefold() == spec.group_name.casefold()
        ):
            return spec
    return None


def check_specs_agree(workspace: Path, name: str) -> None:
    """Raise Problem if different specs in the workspace describe the machine: none is chosen silently."""
    from gpuinfra.provision.find import ambiguous_name

    found = _located_named(workspace, name)
    if any(each.spec != found[0].spec for each in found):
        raise ambiguous_name(name, [f"`{each.spec.name}` of {each.span.file}" for each in found])


def _specs_in(workspace: Path) -> list[LocatedSpec]:
    """Return the readable specs in the workspace. Errors in other specs do not concern a machine."""
    from gpuinfra.parse.folder import has_spec
    from gpuinfra.workspace import find_workspace

    # Reading a spec needs slow imports, so check first whether there is one.
    if not has_spec(find_workspace(workspace)):
        return []
    from gpuinfra.parse.files import load_paths

    return load_paths([str(workspace)]).specs


def _located_named(workspace: Path, name: str) -> list[LocatedSpec]:
    """Return the specs of one machine, by machine or target name."""
    found = _specs_in(workspace)
    by_name = [located for located in found if located.spec.name.casefold() == name.casefold()]
    chosen = by_name or [located for located in found if located.spec.target_name == name]
    if len({(located.spec.subscription, located.spec.group_name.casefold()) for located in chosen}) > 1:
        from gpuinfra.provision.find import ambiguous_name

        raise ambiguous_name(name, [f"`{each.spec.name}` of {each.span.file}" for each in chosen])
    return chosen


def one_spec(settings: Settings, word: str) -> Spec:
    """Return the one spec that a word means: a file that contains it, or a machine's name."""
    return one_located(settings, word).spec


def one_located(settings: Settings, word: str) -> LocatedSpec:
    """Return the one spec that a word means, with its location. Raise Problem if there is not exactly one."""
    found = _located_meant(settings, word)
    if not found:
        raise _no_spec(settings.workspace, word)
    if not is_path(word):
        check_specs_agree(settings.workspace, word)
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{each.spec.name}`" for each in found)
    raise problem(
        Code.USAGE,
        "more than one machine",
        f"`{word}` describes {names}",
        "give the name of one of them",
        exit_code=Exit.USAGE,
    )


def specs_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[Spec]:
    """Return the specs that a word means: those in a file or folder, or of a machine or target; else none.

    For `errors`, see `load_specs`.
    """
    return [located.spec for located in _located_meant(settings, word, errors)]


def _located_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    from gpuinfra.parse.folder import has_spec

    if is_path(word):
        return load_specs([word], errors)
    if found := _located_named(settings.workspace, word):
        return found[:1]
    if stat.S_ISDIR(_mode(word)) and has_spec(Path(word)):
        return load_specs([word], errors)
    return []


def _no_spec(workspace: Path, name: str) -> Problem:
    from gpuinfra.parse.files import load_paths
    from gpuinfra.suggest import did_you_mean

    names = [located.spec.name for located in load_paths([str(workspace)]).specs]
    return problem(
        Code.NO_SPEC_FOUND,
        "no spec found",
        f"no spec below `{workspace}` describes a machine `{name}`",
        did_you_mean(name, names)
        or f"`gpuinfra validate {quote(str(workspace))}` lists all specs; or give the spec's file",
        exit_code=Exit.USAGE,
    )


def _mode(word: str) -> int:
    """Return the mode of the file that a word names, or 0 without a file or for an invalid path."""
    try:
        return Path(word).stat().st_mode
    except (OSError, ValueError):
        return 0


def is_path(word: str) -> bool:
    """Return whether a word can only mean a spec file or a folder, not a machine's name."""
    return word in {"-", "."} or stat.S_ISREG(_mode(word)) or word.endswith((".yaml", ".yml")) or "/" in word


def spec_file(settings: Settings, machine: str) -> str | None:
    """Return the path of a machine's spec relative to the current folder; None if the workspace has none."""
    specs = _specs_in(settings.folder) if machine else []
    file = next((each.span.file for each in specs if each.spec.name.casefold() == machine.casefold()), None)
    if file is None:
        return None
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file
