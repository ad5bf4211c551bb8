"""Secrets in project files. They are never shown and never removed: only their owner can change them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.lint.finding import Finding, is_nearly, is_placeholder
from gpuinfra.parse.document import Document
from gpuinfra.parse.source import CHANNEL_TOKEN, LOGIN, PRIVATE_KEY
from gpuinfra.parse.tree import Mapping, Node, Scalar, Sequence, node_at
from gpuinfra.workbench.compute import Compute
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import RunConfig
from gpuinfra.workbench.targets import is_reference

HANDLE = "AzureMlSecret="
"""Workbench's reference to a password in the system's store."""

_NUMBER = r"(?:[_-]?[0-9]+)?$"
_PASSWORD = re.compile(rf"(?:passw(?:or)?d|passphrase|pwd|secret){_NUMBER}", re.IGNORECASE)
_PASS = re.compile(rf"(?:^|[_.-])pass{_NUMBER}", re.IGNORECASE)
_KEY = re.compile(rf"(?:key|token|(?:^|[_.-])(?:sas|pat)){_NUMBER}", re.IGNORECASE)
# In Spark settings, the account follows the key's name.
_ACCOUNT = re.compile(r"\.[a-z0-9-]+\.(?:blob|dfs)\.core\.[a-z.]+$", re.IGNORECASE)
# Random text: mixed case with digits, long hex numbers, storage account keys (they may look like paths) and tokens of
# Azure DevOps.
_RANDOM = re.compile(
    r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])(?!.*\.[A-Za-z]{1,5}$)[A-Za-z0-9+_=-][A-Za-z0-9+/_=.~%-]{19,}|[0-9A-Fa-f]{32,}"
    r"|/[A-Za-z0-9+/]{38,}={1,2}|(?=.*[2-7])[a-z2-7]{52}"
)
_CONNECTION = re.compile(r"(?:AccountKey|SharedAccessKey|Password|Pwd)\s*=\s*([^;]+)|[?&]sig=([^&]+)", re.IGNORECASE)
# Variables that a shell or pipeline replaces.
_FILLED_IN = re.compile(r"\$\{[^}]+\}|\$\([^)]+\)|\$env:\w+|^%\w+%$", re.IGNORECASE)
_HARMLESS = re.compile(r"true|false|yes|no|[~./\\].*|[a-z]:\\.*|https?://.*", re.IGNORECASE)
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")
_FLAG_AND_VALUE = re.compile(r"(?<!\S)--?([A-Za-z][\w.-]*)[=\s]\s*(\S+)")


def secrets(project: Project) -> Iterator[Finding]:
    """Find all plain-text secrets."""
    for compute in project.computes.values():
        yield from _of_compute(compute)
    for runconfig in project.runconfigs.values():
        yield from _of_runconfig(runconfig)
    for conda in project.condas.values():
        nodes = [node for _, node in _scalars(conda.document.root)]
        # A file for pip alone has no mapping.
        nodes = nodes if conda.is_conda else [each.node for each in conda.lines]
        for node in nodes:
            if _has_login(node.text) or _has_channel_token(node.text):
                help_line = "replace the secret, and pass it to pip with `${NAME}` and `--build-secret NAME`"
                yield _finding(conda.document, node, "a URL with a password", help_line)
    for spark in project.sparks.values():
        for name, node in _scalars(spark.root):
            if _is_secret(name, node.text):
                help_line = "replace the secret, remove it here, and let the job fetch it"
                yield _finding(spark, node, f"the value of `{name}` is a secret", help_line)


def _of_compute(compute: Compute) -> Iterator[Finding]:
    document = compute.document
    for key, node in document.root.items.items():
        if key == "password" and _is_password(node):
            attach = f"gpuinfra attach {quote(compute.name)} … --password-stdin"
            help_line = f"replace it, and store it in your keyring: `{attach}`"
            yield _finding(document, node, "a plain-text password", help_line)
        elif key != "password" and isinstance(node, Scalar) and _has_login(node.text):
            yield _finding(document, node, "a URL with a password", "replace the password, and remove it here")


def _of_runconfig(runconfig: RunConfig) -> Iterator[Finding]:
    document = runconfig.document
    variables = _variables(runconfig)
    for name, node in _scalars(variables) if variables else ():
        # A list, which is invalid, has NAME=value entries.
        own, _, value = ("", "", node.text) if isinstance(variables, Mapping) else node.text.partition("=")
        if _is_secret(name or own, value) or _is_secret("", node.text):
            help_line = "replace the secret, remove it here, and use `--secret`"
            label = f"the value of `{name}` is a secret" if name else "a secret"
            yield _finding(document, node, label, help_line)
    arguments = document.root.items.get("arguments" if runconfig.is_sdk_v1 else "ArgumentVector")
    for node in _secret_arguments([node for _, node in _scalars(arguments)] if arguments else []):
        yield _finding(document, node, "a secret argument", "replace the secret, remove it here, and use `--secret`")
    password = node_at(document.root, "environment", "docker", "baseImageRegistry", "password")
    if _is_password(password):
        yield _finding(document, password, "a plain-text registry password", "replace it, and use `docker login`")


def _secret_arguments(arguments: list[Scalar]) -> Iterator[Scalar]:
    """Return arguments that are secrets by themselves, or by the option before or inside them."""
    before = ""
    for node in arguments:
        flag = _FLAG.fullmatch(before.strip())
        within = _FLAG_AND_VALUE.findall(node.text)
        if _is_secret(flag[1] if flag else "", node.text) or any(_is_secret(name, value) for name, value in within):
            yield node
        before = node.text


def _variables(runconfig: RunConfig) -> Node | None:
    path = ("environment", "environmentVariables") if runconfig.is_sdk_v1 else ("EnvironmentVariables",)
    return node_at(runconfig.document.root, *path)


def _scalars(node: Node, name: str = "") -> Iterator[tuple[str, Scalar]]:
    """Return every scalar with its key."""
    if isinstance(node, Mapping):
        for key, item in node.items.items():
            yield from _scalars(item, key)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _scalars(item, name)
    elif isinstance(node, Scalar) and node.value is not None:
        yield name, node


def hidden_lines(project: Project) -> set[tuple[str, int]]:
    """Return the lines that no finding may show."""
    spans = [finding.diagnostic.span for finding in secrets(project)]
    spans += _spans_of_doubt(project)
    return {(span.file, line) for span in spans if span for line in range(span.line, span.end_line + 1)}


def _spans_of_doubt(project: Project) -> Iterator[Span]:
    """Return locations of possible secrets with a wrong type or name."""
    for compute in project.computes.values():
        for key, node in compute.document.root.items.items():
            if _PASSWORD.search(key) or _PASS.search(key) or is_nearly(key, "password"):
                yield compute.document.span(node)
    for runconfig in project.runconfigs.values():
        variables = _variables(runconfig)
        if isinstance(variables, Mapping):
            wrong = [node for node in variables.items.values() if not isinstance(node, Scalar)]
        else:
            wrong = [variables] if variables else []
        yield from (runconfig.document.span(node) for node in wrong)


def unshown(span: Span) -> Span:
    """Return a location without its text."""
    return replace(span, text="")


def _finding(document: Document, node: Node | None, label: str, help_line: str) -> Finding:
    span = unshown(document.span(node or document.root))
    return Finding(Diagnostic(Code.PLAIN_SECRET, "secret in a file", span, label, help=help_line))


def _is_password(node: Node | None) -> bool:
    return isinstance(node, Scalar) and node.value is not None and not _is_filled_in(node.text)


def _is_secret(name: str, text: str) -> bool:
    text, name = text.strip(), _ACCOUNT.sub("", name)
    if _stands_for_another(text):
        return False
    if _has_login(text) or PRIVATE_KEY.search(text):
        return True
    if found := [each[0] or each[1] for each in _CONNECTION.findall(text)]:
        return not all(_is_filled_in(each) for each in found)
    if _FILLED_IN.search(text):
        return False
    if _PASSWORD.search(name) or _PASS.search(name):
        # `pass` also means a pass over data: ignore numbers and short words.
        is_harmless = _PASSWORD.search(name) is None and (text.isdigit() or (text.isalpha() and len(text) < 8))
        return len(text) >= 4 and not is_harmless and not _HARMLESS.fullmatch(text)
    return _KEY.search(name) is not None and _RANDOM.fullmatch(text) is not None


def _stands_for_another(text: str) -> bool:
    text = text.strip()
    return text.startswith(HANDLE) or is_reference(text) or is_placeholder(text)


def _is_filled_in(text: str) -> bool:
    return _stands_for_another(text) or _FILLED_IN.search(text.strip()) is not None


def _has_login(text: str) -> bool:
    """Return whether a URL has a password, or a token as user name."""
    return any(
        not _is_filled_in(found["password"]) if found["password"] else _RANDOM.fullmatch(found["token"]) is not None
        for found in LOGIN.finditer(text)
    )


def _has_channel_token(text: str) -> bool:
    found = CHANNEL_TOKEN.search(text) if "://" in text else None
    return found is not None and re.search("[0-9]", found[0]) is not None and not _is_filled_in(found[0])
