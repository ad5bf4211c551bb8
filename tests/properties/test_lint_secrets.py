"""What `lint` treats as a secret, and that secrets are never shown."""

from pathlib import Path

import pytest

from gpuinfra.lint.fix import fix_projects
from tests.properties.test_lint_verdicts import GPU, KEY, RUN, SECRET, codes, pip, project, shown


@pytest.mark.parametrize(
    "runconfig",
    [
        *[
            f"EnvironmentVariables:\n  {line}\n"
            for line in (
                f"URL: redis://:{SECRET}@h",
                f"URL: https://me:a@{SECRET}@h",
                f"CONNECTION: Server=${{HOST}};Password={SECRET}",
                f"X_PWD: [{SECRET}]",
                f"X: {{A_PASSWORD: {SECRET}}}",
            )
        ],
        f"EnvironmentVariables:\n- DB_PASSWORD={SECRET}\n",
        f"EnvironmentVariables:\n- STORAGE_KEY={KEY}\n",
        f"ArgumentVector: [$file, --password, {SECRET}]\n",
        f"ArgumentVector: [$file, '--db-pass {SECRET}']\n",
        f"ArgumentVector: [$file, '--token={KEY}']\n",
        f"ArgumentVector:\n- $file\n- --storage-key\n- {KEY}\n",
    ],
)
def test_secret_is_found_and_not_shown(tmp_path: Path, runconfig: str) -> None:
    outcome = fix_projects([project(tmp_path, runconfig=f"{RUN}{runconfig}")])
    assert "plain-secret" in codes(outcome)
    assert SECRET not in shown(outcome)


@pytest.mark.parametrize(
    "line",
    [
        "PWD: /home/me",
        "FIRST_PASS: full",
        "MANY_PASS: 10000",
        "NO_PASS: 'true'",
        "DB_PASSWORD: '%db_password%'",
        "DB_PASSWORD: prefix-${NAME}",
        "DB_PASSWORD: $env:PASSWORD",
        "DB_PASSWORD:",
        "MODEL_KEY: models/best",
        "DATA_KEY: /var/lib/some/long/path/to/a/directory/Of2017",
        "SSH_KEY: ~/.ssh/id_rsa",
        "PAT: short",
        "URL: http://h:8080/a@b",
        "URL: postgres://me:$(PASSWORD)@h",
        "URL: postgres://me:<password>@h",
        "URL: git+ssh://git@github.com/a/b",
        "CONNECTION: Server=h;Password=$(PASSWORD);",
        "CONNECTION: AccountName=a;AccountKey=${KEY}",
    ],
)
def test_harmless_variable_is_not_a_secret(tmp_path: Path, line: str) -> None:
    runconfig = f"{RUN}EnvironmentVariables:\n  {line}\n"
    assert codes(fix_projects([project(tmp_path, runconfig=runconfig)])) == []


@pytest.mark.parametrize(
    "arguments",
    ["--password-file, /run/a", "--token, short", "--password, $(NAME)", "--max-token=10000", "--pass, 2"],
)
def test_harmless_argument_is_not_a_secret(tmp_path: Path, arguments: str) -> None:
    runconfig = f"{RUN}ArgumentVector: [$file, {arguments}]\n"
    assert codes(fix_projects([project(tmp_path, runconfig=runconfig)])) == []


@pytest.mark.parametrize(
    "line",
    [
        "git+https://${TOKEN}@github.com/a/b.git",
        "git+ssh://git@github.com/a/b.git@v1#egg=b",
        "--extra-index-url https://me@pkgs.dev.azure.com/a",
        "--index-url https://$(TOKEN)@h/simple",
    ],
)
def test_address_without_a_secret_is_accepted(tmp_path: Path, line: str) -> None:
    assert codes(fix_projects([project(tmp_path, conda=pip(line))])) == []


@pytest.mark.parametrize(
    "line",
    [
        "password: [{}]",
        "password: {{a: {}}}",
        "password:\n  a: b\n  c: {}",
        "passwort: {}\nsharedVolumes: [1]",
        "? password\n: @{}",
        "password {}\na: b",
        "password: !{} a",
        "password: 'it's {}'",
    ],
)
def test_target_password_is_never_shown(tmp_path: Path, line: str) -> None:
    outcome = fix_projects([project(tmp_path, compute=f"{GPU}{line.format(SECRET)}\n")])
    assert outcome.findings
    assert SECRET not in shown(outcome)
