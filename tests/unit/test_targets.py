"""The two files of a compute target."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.target import Target
from gpuinfra.workbench.targets import (
    check_files,
    compute_text,
    find_target,
    read_targets,
    runconfig_text,
    write_target,
)

TARGET = Target(
    name="my_dsvm",
    machine="my-dsvm",
    type="remotedocker",
    address="203.0.113.7",
    port=22,
    username="azureuser",
    host_key="ssh-ed25519 AAAA",
    identity="/home/me/.ssh/id_ed25519",
    base_docker_image="example.com/image:1",
)
COMPUTE = """address: 203.0.113.7
baseDockerImage: example.com/image:1
hostKey: ssh-ed25519 AAAA
nativeSharedDirectory: ~/.azureml/share/
nvidiaDocker: true
sharedVolumes: true
type: remotedocker
username: azureuser
"""
RUNCONFIG = """ArgumentVector:
- $file
CondaDependenciesFile: aml_config/conda_dependencies.yml
EnvironmentVariables: null
Framework: Python
PrepareEnvironment: true
Target: my_dsvm
TrackedRun: true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aml_config").mkdir()
    return tmp_path / "aml_config"


def test_new_files_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "aml_config"
    assert write_target(tmp_path, TARGET) == [folder / "my_dsvm.compute", folder / "my_dsvm.runconfig"]
    assert (folder / "my_dsvm.compute").read_text() == COMPUTE
    assert (folder / "my_dsvm.runconfig").read_text() == RUNCONFIG
    assert sorted(file.name for file in folder.iterdir()) == ["my_dsvm.compute", "my_dsvm.runconfig"]


def test_files_contain_no_key_path() -> None:
    assert "id_ed25519" not in compute_text(TARGET) + runconfig_text(TARGET)


def test_explicit_key_is_written_relative_to_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    asked = replace(TARGET, explicit_fields=frozenset({"identity"}))
    assert "privateKeyFile: ~/.ssh/id_ed25519\n" in compute_text(asked)
    assert "privateKeyFile: /elsewhere/key\n" in compute_text(replace(asked, identity="/elsewhere/key"))


def test_second_write_changes_nothing(tmp_path: Path) -> None:
    write_target(tmp_path, TARGET)
    before = [file.stat().st_mtime_ns for file in (tmp_path / "aml_config").iterdir()]
    assert write_target(tmp_path, TARGET) == []
    assert [file.stat().st_mtime_ns for file in (tmp_path / "aml_config").iterdir()] == before


def test_only_the_address_line_changes(tmp_path: Path, folder: Path) -> None:
    mine = (
        b"# of my own\r\n"
        b"address: 198.51.100.1\r\n"
        b"# address: old\r\n"
        b"baseDockerImage: mine/own:2   # by hand\r\n"
        b"sharedVolumes: false\r\n"
        b"type: remotedocker\r\n"
        b"username: azureuser\r\n"
        b"hostKey: ssh-ed25519 AAAA\r\n"
        b"extra:\r\n"
        b"  address: inside\r\n"
    )
    file = folder / "my_dsvm.compute"
    file.write_bytes(mine)
    assert write_target(tmp_path, TARGET) == [file, folder / "my_dsvm.runconfig"]
    assert file.read_bytes() == mine.replace(b"198.51.100.1", b"203.0.113.7")
    assert write_target(tmp_path, TARGET) == []


def test_file_without_a_last_newline_gets_none(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_bytes(b"username: azureuser\r\naddress: old")
    write_target(tmp_path, TARGET)
    expected = b"username: azureuser\r\naddress: 203.0.113.7\r\nhostKey: ssh-ed25519 AAAA"
    assert file.read_bytes() == expected


def test_existing_run_configuration_is_kept(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.runconfig"
    file.write_bytes(b"Framework: PySpark\r\nTarget: another\r\n")
    assert write_target(tmp_path, TARGET) == [folder / "my_dsvm.compute"]
    assert file.read_bytes() == b"Framework: PySpark\r\nTarget: another\r\n"


def test_changed_user_is_written(tmp_path: Path) -> None:
    write_target(tmp_path, TARGET)
    assert len(write_target(tmp_path, replace(TARGET, username="ada", address="198.51.100.1"))) == 1
    text = (tmp_path / "aml_config" / "my_dsvm.compute").read_text()
    assert text == COMPUTE.replace("azureuser", "ada").replace("203.0.113.7", "198.51.100.1")


def test_port_is_part_of_the_address() -> None:
    assert compute_text(replace(TARGET, port=2222)).startswith("address: 203.0.113.7:2222\n")


def test_target_without_a_container_is_written() -> None:
    assert compute_text(replace(TARGET, type="remote")) == (
        "address: 203.0.113.7\nhostKey: ssh-ed25519 AAAA\nnvidiaDocker: true\ntype: remote\nusername: azureuser\n"
    )


def test_target_without_gpu_or_image_is_written() -> None:
    text = compute_text(replace(TARGET, nvidia_docker=False, base_docker_image=None))
    assert "nvidiaDocker: false\n" in text
    assert "baseDockerImage" not in text


def test_framework_is_always_written() -> None:
    text = runconfig_text(replace(TARGET, framework="PySpark", conda_dependencies="env/gpu.yml"))
    assert "Framework: PySpark\n" in text
    assert "CondaDependenciesFile: env/gpu.yml\n" in text


def test_file_with_a_byte_order_mark_is_updated(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_bytes(b"\xef\xbb\xbfaddress: 198.51.100.1\r\nusername: azureuser\r\n")
    write_target(tmp_path, TARGET)
    assert b"203.0.113.7" in file.read_bytes()


def test_missing_address_is_added(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_bytes(b"type: remotedocker\nusername: azureuser\n")
    write_target(tmp_path, TARGET)
    assert b"address: 203.0.113.7\n" in file.read_bytes()


def test_comment_after_the_address_is_kept(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    rest = b"  # the big one\nusername: azureuser\nhostKey: ssh-ed25519 AAAA\n"
    file.write_bytes(b"address: 198.51.100.1" + rest)
    write_target(tmp_path, TARGET)
    assert file.read_bytes() == b"address: 203.0.113.7" + rest


def test_explicit_values_of_the_spec_are_written_and_others_kept(tmp_path: Path, folder: Path) -> None:
    write_target(tmp_path, TARGET)
    compute, runconfig = folder / "my_dsvm.compute", folder / "my_dsvm.runconfig"
    mine = compute.read_text().replace("image:1", "mine:2").replace("nvidiaDocker: true", "nvidiaDocker: false")
    compute.write_text(mine)
    newer = replace(TARGET, base_docker_image="example.com/image:3", framework="PySpark")
    assert write_target(tmp_path, newer) == []
    said = replace(newer, explicit_fields=frozenset({"base_docker_image", "framework"}))
    assert write_target(tmp_path, said) == [compute, runconfig]
    assert compute.read_text() == mine.replace("mine:2", "image:3")
    assert runconfig.read_text() == RUNCONFIG.replace("Python", "PySpark")


def test_older_name_of_the_same_type_is_kept(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_text(COMPUTE.replace("remotedocker", "virtualmachine"))
    assert file not in write_target(tmp_path, replace(TARGET, explicit_fields=frozenset({"type"})))
    file.write_text(COMPUTE.replace("remotedocker", "remote"))
    assert file in write_target(tmp_path, replace(TARGET, explicit_fields=frozenset({"type"})))
    assert file.read_text() == COMPUTE


def test_empty_file_is_written(tmp_path: Path, folder: Path) -> None:
    (folder / "my_dsvm.compute").write_text(" \n")
    write_target(tmp_path, TARGET)
    assert (folder / "my_dsvm.compute").read_text() == COMPUTE


def test_unreadable_file_prevents_all_writes(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_bytes(b"address: 198.51.100.1\n\tusername: x\n")
    for act in (lambda: write_target(tmp_path, TARGET), lambda: check_files(tmp_path, "my_dsvm")):
        with pytest.raises(Problem) as caught:
            act()
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.span is not None
        assert (diagnostic.code, diagnostic.span.line) == (Code.TAB, 2)
    assert file.read_bytes() == b"address: 198.51.100.1\n\tusername: x\n"
    assert not (folder / "my_dsvm.runconfig").exists()


def test_written_target_round_trips(tmp_path: Path) -> None:
    said = frozenset({"identity"})
    target = replace(TARGET, port=2222, password="keyring:my_dsvm", identity="/elsewhere/key", explicit_fields=said)
    write_target(tmp_path, target)
    found = find_target(tmp_path, "my_dsvm")
    assert found == replace(target, machine="my_dsvm", explicit_fields=frozenset())
    assert read_targets(tmp_path).targets == [found]
    assert find_target(tmp_path, "another") is None


@pytest.mark.parametrize("password", ["hunter2", "AzureMlSecret=my_dsvm#me#0123456789abcdef0123456789abcdef"])
def test_foreign_password_is_not_read(tmp_path: Path, folder: Path, password: str) -> None:
    (folder / "old.compute").write_text(f"type: remotedocker\naddress: a\nusername: b\npassword: {password}\n")
    target = find_target(tmp_path, "old")
    assert target is not None
    assert target.password is None
    assert password not in repr(target)


def test_simulated_flag_is_set_and_cleared(tmp_path: Path, folder: Path) -> None:
    write_target(tmp_path, replace(TARGET, simulated=True))
    file = folder / "my_dsvm.compute"
    assert "simulated: true\n" in file.read_text()
    found = find_target(tmp_path, "my_dsvm")
    assert found is not None
    assert found.simulated
    write_target(tmp_path, TARGET)
    assert "simulated: false\n" in file.read_text()


def test_azure_ml_v1_run_configuration_is_kept(tmp_path: Path, folder: Path) -> None:
    later = "script: train.py\ntarget: my_dsvm\nframework: Python\n"
    (folder / "my_dsvm.runconfig").write_text(later)
    write_target(tmp_path, replace(TARGET, explicit_fields=frozenset({"framework", "conda_dependencies"})))
    assert (folder / "my_dsvm.runconfig").read_text() == later


def test_key_in_an_unknown_home_is_ignored(tmp_path: Path, folder: Path) -> None:
    (folder / "old.compute").write_text("type: remote\naddress: a\nprivateKeyFile: ~unknown-user/key\n")
    target = find_target(tmp_path, "old")
    assert target is not None
    assert target.identity is None


def test_new_login_method_replaces_the_old_one(tmp_path: Path, folder: Path) -> None:
    file, said = folder / "my_dsvm.compute", frozenset({"identity", "password"})
    write_target(tmp_path, replace(TARGET, identity=None, password="keyring:my_dsvm", explicit_fields=said))
    by_password = file.read_text()
    assert "password: keyring:my_dsvm\n" in by_password
    write_target(tmp_path, replace(TARGET, identity="/elsewhere/key", explicit_fields=said))
    assert "password: null\n" in file.read_text()
    assert "privateKeyFile: /elsewhere/key\n" in file.read_text()
    write_target(tmp_path, replace(TARGET, identity=None, password="ask", explicit_fields=said))
    assert "password: ask\n" in file.read_text()
    assert "privateKeyFile: null\n" in file.read_text()
    # `up` does not set a login, and keeps it.
    assert write_target(tmp_path, TARGET) == []


def test_mode_and_link_are_kept(tmp_path: Path, folder: Path) -> None:
    elsewhere = tmp_path / "elsewhere.compute"
    elsewhere.write_text("address: 198.51.100.1\nusername: azureuser\nhostKey: ssh-ed25519 AAAA\n")
    elsewhere.chmod(0o640)
    (folder / "my_dsvm.compute").symlink_to(elsewhere)
    write_target(tmp_path, TARGET)
    assert (folder / "my_dsvm.compute").is_symlink()
    assert "203.0.113.7" in elsewhere.read_text()
    assert elsewhere.stat().st_mode & 0o777 == 0o640


def test_read_only_file_is_kept(tmp_path: Path, folder: Path) -> None:
    file = folder / "my_dsvm.compute"
    file.write_text("address: 198.51.100.1\n")
    file.chmod(0o444)
    with pytest.raises(PermissionError):
        write_target(tmp_path, TARGET)
    assert file.read_text() == "address: 198.51.100.1\n"
    file.chmod(0o644)
