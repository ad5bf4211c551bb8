"""For any project files, `lint --fix` fixes every fixable finding, and never crashes."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuinfra.lint.fix import check_projects, fix_projects
from gpuinfra.workbench import compute, runconfig

TEXTS = st.sampled_from(
    [
        *(
            "",
            " ",
            "local",
            "docker",
            "localdocker",
            "remotedocker",
            "cluster",
            "my_dsvm",
            "MY_DSVM",
            "PySpark",
            "Python",
        ),
        *("microsoft/mmlspark:plus-0.9.9", "microsoft/mmlspark::plus-gpu-0.7.9", "nvidia/cuda:11.0 ", "python:3", "::"),
        *(
            "aml_config/conda_dependencies.yml",
            "AML_CONFIG\\Conda_Dependencies.yml",
            "../a.yml",
            "/a",
            "a\x00b",
            "é" * 300,
        ),
        *("<IP>", "$file", "hunter2", "AzureMlSecret=a", "~/.azureml/share/", "/data", "#", "a: b", "- a", "'", '"'),
    ]
)
LINES = st.sampled_from(
    [
        *(
            "python=3.5.2",
            "python=3.10",
            "tensorflow",
            "tensorflow=1.4",
            "tensorflow==1.4",
            "tensorflow-gpu",
            "a::tensorflow",
        ),
        *(
            "keras=2.0.8",
            "keras==2.0.8#2",
            "keras ==2 # why",
            "tensorflow-cpu==2.4.1",
            "cntk",
            "jax",
            "--find-links /whl/cpu",
        ),
        *(
            "https://cntk.ai/PythonWheel/CPU-Only/cntk-2.1-cp35-cp35m-win_amd64.whl",
            "a-1-py3-none-any.whl",
            "tensorflow==1.4 ; sys_platform == 'win32'",
            "tensorflow-gpu==1.4 ; python_version > '3'",
            "tensorflow==1.4 ;",
            "pytorch=1.4=py3.6_cpu_0",
            "${A}/b.whl[c]",
            "http://[a",
        ),
        *("https://a:b@c/d.whl", "", "[", "=", "=1", "#", "tensorflow=", "tensorflow>=", "tensorflow=x=y=z", "é"),
    ]
)
VALUES = TEXTS | st.none() | st.booleans() | st.integers(0, 99) | st.lists(TEXTS, max_size=2)


def mappings(keys: frozenset[str]) -> st.SearchStrategy[dict[str, Any]]:
    names = sorted(keys) + [key.swapcase() for key in sorted(keys)] + [key[:-1] for key in sorted(keys)]
    return st.dictionaries(st.sampled_from(names), VALUES | st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=6)


condas = st.fixed_dictionaries(
    {"dependencies": st.lists(LINES | st.fixed_dictionaries({"pip": st.lists(LINES | TEXTS, max_size=4)}), max_size=4)}
)


def as_text(value: Any, *, flow: bool) -> str:
    """Return a mapping as JSON on one line, or as YAML over several lines."""
    if flow:
        return json.dumps(value)
    return "".join(f"{json.dumps(key)}: {json.dumps(item)}\n" for key, item in value.items()) or "{}"


@settings(max_examples=80, deadline=None)
@given(mappings(compute.KEYS), mappings(runconfig.KEYS), condas, st.booleans())
def test_every_fixable_finding_is_fixed(
    target: dict[str, Any], run: dict[str, Any], conda: dict[str, Any], flow: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "aml_config"
        folder.mkdir()
        (folder / "my_dsvm.compute").write_text(as_text({"type": "localdocker", **target}, flow=flow))
        (folder / "run.runconfig").write_text(as_text({"Target": "my_dsvm", **run}, flow=flow))
        (folder / "conda_dependencies.yml").write_text(as_text(conda, flow=flow))
        before = check_projects([Path(name)])
        outcome = fix_projects([Path(name)])
        assert [finding for finding in outcome.findings if finding.fix] == []
        assert bool(outcome.fixed) == any(finding.fix for finding in before.findings)
        assert fix_projects([Path(name)]).fixed == []
