"""Environments of real projects: each can be made, or has a problem with its place."""

from collections import Counter

from gpuinfra.diagnostics import Diagnostic, Problem
from gpuinfra.runner.environment.recipe import make_recipe
from gpuinfra.workbench.project import find_projects, load_project
from tests.unit.runner.environment.test_recipe import Image
from tests.workbench import FOLDER, needs_projects


@needs_projects
def test_every_shared_file_is_a_recipe_or_a_located_problem() -> None:
    outcomes: Counter[str] = Counter()
    diagnostics: list[Diagnostic] = []
    for root in find_projects(FOLDER):
        for conda in load_project(root).condas.values():
            try:
                found = make_recipe(Image(), conda, root)
            except Problem as problem:
                diagnostics += problem.diagnostics
                outcomes["problem"] += 1
                continue
            outcomes["recipe" if found else "nothing"] += 1
            if found:
                assert not [each for each in found.secrets if each in found.dockerfile("1") + repr(found)]
    assert outcomes["recipe"] > 90, outcomes
    assert outcomes["nothing"] < 5, outcomes
    assert 0 < outcomes["problem"] < 10, outcomes
    assert all(each.span and each.help for each in diagnostics), diagnostics
