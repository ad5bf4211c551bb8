"""Secrets in files that are for git. None is ever shown, and none is taken out: only its owner can change it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from gpuinfra.diagnostics import Code, Diagnostic, Span
from gpuinfra.lint.finding import Finding, node_at
from gpuinfra.lint.words import is_placeholder
from gpuinfra.load.document import Document
from gpuinfra.load.tree import Mapping, Node, Scalar
from gpuinfra.workbench.project import Project
from gpuinfra.workbench.runconfig import RunConfig
from gpuinfra.workbench.targets import is_reference

HANDLE = "AzureMlSecret="
"""The Workbench kept the password in the system's own store, and wrote this into the file."""

_PASSWORD = re.compile(r"(?:passw(?:or)?d|passphrase|pwd|secret)[0-9]*$", re.IGNORECASE)
_KEY = re.compile(r"(?:key|token|(?:^|_)sas)[0-9]*$", re.IGNORECASE)
# What no name, path or address looks like: capital and small letters with figures among them, or many hex digits.
_RANDOM = re.compile(
    r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])(?!.*\.[A-Za-z]{1,5}$)[A-Za-z0-9+_=-][A-Za-z0-9+/_=.~%-]{19,}|[0-9A-Fa-f]{32,}"
)
_CONNECTION = re.compile(r"(?:AccountKey|SharedAccessKey|Password|Pwd)\s*=\s*([^;]+)|[?&]sig=([^&]+)", re.IGNORECASE)
_URL = re.compile(r"[a-z+]+://[^\s/@]+@\S+", re.IGNORECASE)


def secrets(project: Project) -> Iterator[Finding]:
    """Every secret that stands in a file as it is."""
    for compute in project.computes.values():
        password = compute.document.root.items.get("password")
        if _is_password(password):
            help_line = (
                f"change it, and let `gpuinfra attach {compute.name} … --password-stdin` keep it in your keyring"
            )
            yield _finding(compute.document, password, "a password as it is", help_line)
    for runconfig in project.runconfigs.values():
        yield from _of_runconfig(runconfig)
    for conda in project.condas.values():
        lines = [
            *((each.text, each.node) for each in conda.packages),
            *((each.text, each.node) for each in conda.options),
        ]
        for text, node in lines:
            if _has_password(text):
                help_line = "change it, and give it to pip by a variable: `${NAME}`"
                yield _finding(conda.document, node, "an address with a password in it", help_line)


def _of_runconfig(runconfig: RunConfig) -> Iterator[Finding]:
    document = runconfig.document
    path = ("environment", "environmentVariables") if runconfig.is_later else ("EnvironmentVariables",)
    variables = node_at(document, *path)
    for name, node in variables.items.items() if isinstance(variables, Mapping) else ():
        if isinstance(node, Scalar) and _is_secret(name, node.text):
            help_line = "change it, remove it here, and let the job fetch it"
            yield _finding(document, node, f"the value of `{name}` is a secret", help_line)
    password = node_at(document, "environment", "docker", "baseImageRegistry", "password")
    if _is_password(password):
        yield _finding(document, password, "a registry's password as it is", "change it, then `docker login` there")


def hidden_lines(project: Project) -> set[tuple[str, int]]:
    """The lines that no other finding may show either."""
    spans = [finding.diagnostic.span for finding in secrets(project)]
    return {(span.file, line) for span in spans if span for line in range(span.line, span.end_line + 1)}


def unshown(span: Span) -> Span:
    """A place whose line is not shown."""
    return replace(span, text="")


def _finding(document: Document, node: Node | None, label: str, help_line: str) -> Finding:
    span = unshown(document.span(node or document.root))
    return Finding(Diagnostic(Code.PLAIN_SECRET, "secret in a file", span, label, help=help_line))


def _is_password(node: Node | None) -> bool:
    if not isinstance(node, Scalar) or node.value is None:
        return False
    text = node.text.strip()
    return not (text.startswith(HANDLE) or is_reference(text) or is_placeholder(text))


def _is_secret(name: str, text: str) -> bool:
    text = text.strip()
    if is_placeholder(text) or is_reference(text) or text.startswith(HANDLE):
        return False
    found = _CONNECTION.search(text)
    if found:
        return not is_placeholder(found[1] or found[2])
    if _PASSWORD.search(name):
        return len(text) >= 4 and not re.fullmatch(r"(?i)true|false|yes|no|[~./\\].*|[A-Za-z]:\\.*|https?://.*", text)
    return _KEY.search(name) is not None and _RANDOM.fullmatch(text) is not None


def _has_password(text: str) -> bool:
    found = _URL.search(text)
    if found is None:
        return False
    try:
        parts = urlsplit(found[0])
    except ValueError:
        return False
    if parts.password is None:
        return _RANDOM.fullmatch(parts.username or "") is not None
    return not is_placeholder(parts.password)
