"""Find the specs that a command means: in files, in folders, or by the name of a machine or target."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace_search import located_path
from gpuinfra.diagnostics import Code, Exit, Problem, problem

if TYPE_CHECKING:
    from gpuinfra.app.machine_tasks import ErrorCollector
    from gpuinfra.diagnostics import Diagnostic
    from gpuinfra.models.spec import Spec
    from gpuinfra.parse.spec import Loaded, LocatedSpec
    from gpuinfra.provision.waiting import Progress

DEFAULT_FILE = "gpu.yaml"
STANDARD_INPUT = "-"


def specs_at(settings: Settings, words: Sequence[str], errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    """Return the specs in the files and folders that the words name; without words, the default ones."""
    return load_specs(spec_paths(settings, words), errors) if words else default_specs(settings)


def spec_paths(settings: Settings, words: Sequence[str]) -> list[str]:
    """Return the files and folders that words on the command line name."""
    return [word if word == STANDARD_INPUT else located_path(settings, word) for word in words]


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


def validate(paths: Sequence[str]) -> tuple[Loaded, list[Diagnostic]]:
    """Return every spec in the files with every error in them, and the warnings."""
    from gpuinfra.app.spec_warnings import spec_warnings
    from gpuinfra.parse.files import load_paths
    from gpuinfra.provision.market import shipped_prices

    loaded = load_paths(paths)
    return loaded, spec_warnings(loaded.specs, shipped_prices())


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


def main_spec(workspace: Path) -> Spec | None:
    """Return the spec of `gpu.yaml`, else the only readable spec in the workspace, or None."""
    found = _specs_in(workspace)
    own = [each for each in found if Path(each.span.file) == workspace / DEFAULT_FILE]
    chosen = own or found
    return chosen[0].spec if len(chosen) == 1 else None


def check_specs_agree(workspace: Path, name: str) -> None:
    """Raise Problem if different specs in the workspace describe the machine: none is chosen silently."""
    found = _located_named(workspace, name)
    if any(each.spec != found[0].spec for each in found):
        from gpuinfra.provision.target import ambiguous_name  # imports pydantic

        raise ambiguous_name(name, [f"`{each.spec.name}` of {each.span.file}" for each in found])


def _specs_in(workspace: Path) -> list[LocatedSpec]:
    """Return the readable specs in the workspace. Errors in other specs do not concern a machine."""
    from gpuinfra.parse.source import has_spec
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
        from gpuinfra.provision.target import ambiguous_name

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


def specs_of_run(settings: Settings, words: Sequence[str], errors: ErrorCollector) -> list[LocatedSpec]:
    """Return the specs that words mean: files, folders or machine names; without words, the default one.

    Errors in them are collected in `errors`.
    """
    from gpuinfra.parse.files import same_names

    if not words:
        return [default_spec(settings)]
    found: list[LocatedSpec] = []
    for word in words:
        with errors.capture():
            meant = _located_meant(settings, word, errors)
            if not meant:
                raise _no_spec(settings.workspace, word)
            if not is_path(word):
                check_specs_agree(settings.workspace, word)
            found += meant
    # Those of one word are known already.
    if twice := [each for each in same_names(found) if each not in errors.diagnostics]:
        errors.add(Problem(*twice, exit_code=Exit.USAGE))
    return found


def may_be_spec(settings: Settings, word: str) -> bool:
    """Return whether a word after a spec is another spec: a YAML file, a folder or a machine's name, not a script."""
    if word.endswith((".yaml", ".yml")):
        return True
    found = located_path(settings, word)
    return stat.S_ISDIR(_mode(found)) or (not _mode(found) and spec_named(settings.workspace, word) is not None)


def is_script(settings: Settings, word: str) -> bool:
    """Return whether the first word of a command is a script and not a spec: an existing file of another kind."""
    if word.endswith((".yaml", ".yml", ".json")) or not stat.S_ISREG(_mode(located_path(settings, word))):
        return False
    return spec_named(settings.workspace, word) is None


def default_spec(settings: Settings) -> LocatedSpec:
    """Return the one spec that a command without a spec means. Raise Problem if there are several."""
    found = default_specs(settings)
    if len(found) == 1:
        return found[0]
    raise _several(Path(found[0].span.file), found)


def default_specs(settings: Settings, *, allows_several: bool = False) -> list[LocatedSpec]:
    """Return the specs of `gpu.yaml` in the workspace, else the only spec there.

    Raise Problem if there are several, unless the command allows them.
    """
    folder = settings.folder
    own = folder / DEFAULT_FILE
    if own.is_file():
        return load_specs([str(own)])
    found = load_specs([str(folder)])
    if len(found) > 1 and not allows_several:
        raise _several(folder, found)
    return found


def _several(place: Path, found: Sequence[LocatedSpec]) -> Problem:
    names = ", ".join(f"`{each.spec.name}`" for each in found)
    note, help_line = f"`{place}` has specs of {names}", "give the file or the name of one of them"
    return problem(Code.USAGE, "more than one spec", note, help_line, exit_code=Exit.USAGE)


def specs_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[Spec]:
    """Return the specs that a word means: those in a file or folder, or of a machine or target; else none.

    For `errors`, see `load_specs`.
    """
    return [located.spec for located in _located_meant(settings, word, errors)]


def _located_meant(settings: Settings, word: str, errors: ErrorCollector | None = None) -> list[LocatedSpec]:
    from gpuinfra.parse.source import has_spec

    if is_path(word):
        return specs_at(settings, [word], errors)
    if found := _located_named(settings.workspace, word):
        return found[:1]
    folder = located_path(settings, word)
    if stat.S_ISDIR(_mode(folder)) and has_spec(Path(folder)):
        return load_specs([folder], errors)
    return []


def _no_spec(workspace: Path, name: str) -> Problem:
    from gpuinfra.diagnostics import did_you_mean
    from gpuinfra.parse.files import load_paths

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
    return word in {STANDARD_INPUT, "."} or stat.S_ISREG(_mode(word)) or word.endswith((".yaml", ".yml")) or "/" in word


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
