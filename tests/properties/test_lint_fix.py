"""`--fix` writes whole files, makes only the reported changes, and skips files that it cannot write."""

import codecs
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code
from gpuinfra.lint import fix as fix_module
from gpuinfra.lint.finding import Finding, Fix, set_value
from gpuinfra.lint.fix import LintResult, apply, check_projects, fix_projects
from gpuinfra.parse.document import Document, Edit, EditError, read_document
from gpuinfra.workspace import write_bytes

COMPUTE = b"type: localdocker\nbaseDockerImage: microsoft/mmlspark:plus-gpu-0.9.9\n"


def write(folder: Path, content: bytes, name: str = "my_dsvm.compute") -> Path:
    file = folder / "aml_config" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return file


def codes(outcome: LintResult) -> list[Code]:
    return [finding.diagnostic.code for finding in outcome.findings]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (COMPUTE, COMPUTE + b"nvidiaDocker: true\n"),
        (COMPUTE.replace(b"\n", b"\r\n"), (COMPUTE + b"nvidiaDocker: true\n").replace(b"\n", b"\r\n")),
        (codecs.BOM_UTF8 + COMPUTE, codecs.BOM_UTF8 + COMPUTE + b"nvidiaDocker: true\n"),
        (COMPUTE.rstrip(), COMPUTE + b"nvidiaDocker: true"),
        (COMPUTE + b"\n# nvidiaDocker: true\n", COMPUTE + b"nvidiaDocker: true\n\n# nvidiaDocker: true\n"),
        (
            b'# mine\r\ntype: docker\nbaseDockerImage: "a/b::gpu"   # why\nnvidiaDocker: true  \r\n',
            b'# mine\r\ntype: docker\nbaseDockerImage: "a/b:gpu"   # why\nnvidiaDocker: true  \r\n',
        ),
    ],
)
def test_line_ends_marks_and_comments_are_kept(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = write(tmp_path, before)
    outcome = fix_projects([tmp_path])
    assert (codes(outcome), len(outcome.fixed)) == ([], 1)
    assert file.read_bytes() == after


def test_mode_and_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(COMPUTE)
    real.chmod(0o640)
    (tmp_path / "aml_config").mkdir()
    link = tmp_path / "aml_config" / "my_dsvm.compute"
    link.symlink_to(real)
    assert len(fix_projects([tmp_path]).fixed) == 1
    assert link.is_symlink()
    assert b"nvidiaDocker" in real.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o640


def test_read_only_file_is_kept_and_others_are_fixed(tmp_path: Path) -> None:
    locked, other = write(tmp_path, COMPUTE), write(tmp_path, COMPUTE, "other.compute")
    locked.chmod(0o444)
    outcome = fix_projects([tmp_path])
    assert codes(outcome) == [Code.FILE_UNWRITABLE, Code.GPU_NOT_PASSED_ON]
    assert [fixed.file for fixed in outcome.fixed] == [str(other)]
    assert locked.read_bytes() == COMPUTE


def test_file_changed_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, COMPUTE)

    def apply_late(findings: list[Finding]) -> object:
        file.write_bytes(b"type: local\n")
        return apply(findings)

    monkeypatch.setattr(fix_module, "apply", apply_late)
    outcome = fix_projects([tmp_path])
    assert codes(outcome) == [Code.FILE_CHANGED]
    assert (outcome.fixed, file.read_bytes()) == ([], b"type: local\n")


def test_failed_write_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, COMPUTE)

    def full(path: Path, content: bytes, *, replace: bool) -> None:
        write_bytes(path.with_name("other"), content[:10], replace=replace)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fix_module, "write_bytes", full)
    outcome = fix_projects([tmp_path])
    assert codes(outcome) == [Code.FILE_UNWRITABLE, Code.GPU_NOT_PASSED_ON]
    assert file.read_bytes() == COMPUTE


def test_two_fixes_of_one_line_are_applied(tmp_path: Path) -> None:
    write(tmp_path, COMPUTE + b"nvidiaDocker: true\n")
    wheel = b"https://cntk.ai/PythonWheel/CPU-Only/cntk-2.1-cp35-cp35m-win_amd64.whl"
    file = write(tmp_path, b"dependencies:\n- pip:\n  - " + wheel + b" # mine\n", "conda_dependencies.yml")
    assert len(fix_projects([tmp_path]).fixed) == 2
    assert file.read_bytes() == (
        b"dependencies:\n- pip:\n  - https://cntk.ai/PythonWheel/GPU/cntk-2.1-cp35-cp35m-linux_x86_64.whl # mine\n"
    )


def test_aliased_value_is_not_changed(tmp_path: Path) -> None:
    # The other use of the anchor would change as well.
    text = b"type: localdocker\nbaseDockerImage: &image 'microsoft/mmlspark:0.7 '\nnote: *image\n"
    file = write(tmp_path, text)
    assert [finding.fix for finding in check_projects([tmp_path]).findings] == [None]
    assert fix_projects([tmp_path]).fixed == []
    assert file.read_bytes() == text


def document(text: str) -> Document:
    return read_document("my_dsvm.compute", text.encode())


def test_fix_with_a_side_effect_is_refused() -> None:
    found = document("type: docker\nnvidiaDocker: false\n")
    wrong = Fix(found, (Edit(0, 4, "kind"),), ("nvidiaDocker",), value=True)
    with pytest.raises(EditError):
        wrong.applied_to(found)


def test_key_is_not_added_next_to_a_misspelled_one() -> None:
    assert set_value(document("type: docker\nnvidia_docker: false\n"), "nvidiaDocker", value=True) is None
    assert set_value(document("type: docker\n"), "nvidiaDocker", value=True) is not None


def test_equal_value_needs_no_fix() -> None:
    assert set_value(document("nvidiaDocker: true\n"), "nvidiaDocker", value=True) is None
