"""Custom data as cloud-init reads it: bytes in, values out, and a message for everything it did not understand."""

import base64
import binascii
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

# A string is a shell line, a tuple is a command with its arguments.
Command = str | tuple[str, ...]

_DEFAULT_MODE = 0o644
_KEY_KINDS = ("rsa", "ecdsa", "ed25519")
_FILE_KEYS = frozenset({"path", "content", "encoding", "permissions", "owner", "append", "defer"})
_ENCODINGS: Mapping[str, tuple[Callable[[bytes], bytes], ...]] = {
    **dict.fromkeys(("", "text/plain"), ()),
    **dict.fromkeys(("b64", "base64"), (base64.b64decode,)),
    **dict.fromkeys(("gz", "gzip"), (gzip.decompress,)),
    **dict.fromkeys(("gz+b64", "gz+base64", "gzip+b64", "gzip+base64"), (base64.b64decode, gzip.decompress)),
}


@dataclass(frozen=True)
class File:
    """A file to write."""

    path: str
    content: bytes
    mode: int
    append: bool


@dataclass
class CloudConfig:
    """What custom data asks for. `problems` are errors; `ignored` is what the guest does not simulate."""

    username: str
    files: list[File] = field(default_factory=list)
    host_keys: dict[str, str] = field(default_factory=dict)
    authorized_keys: list[str] = field(default_factory=list)
    hostname: str | None = None
    boot_commands: list[Command] = field(default_factory=list)
    run_commands: list[Command] = field(default_factory=list)
    script: bytes | None = None
    problems: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def read_custom_data(data: bytes | None, username: str) -> CloudConfig:
    """Parse custom data. Every error is in `problems`; nothing is raised."""
    config = CloudConfig(username)
    if not data:
        return config
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        if data.startswith(b"#!"):
            config.script = data
        elif data.startswith(b"#cloud-config"):
            _read_mapping(yaml.safe_load(data.decode()), config)
        else:
            config.problems.append(f"unhandled non-multipart userdata: {data[:24]!r}...")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, yaml.YAMLError) as error:
        config.problems.append(f"failed loading custom data: {error}")
    return config


def _read_mapping(content: Any, config: CloudConfig) -> None:
    if content is None:
        return
    if not isinstance(content, dict):
        config.problems.append(f"#cloud-config is a {type(content).__name__}, not a mapping")
        return
    for key, value in content.items():
        reader = _READERS.get(key)
        if reader is None:
            config.ignored.append(f"{key}: not simulated")
            continue
        try:
            reader(value, config)
        except (TypeError, ValueError, KeyError, OSError, EOFError, zlib.error) as error:
            config.problems.append(f"{key}: {type(error).__name__}: {error}")


def _write_files(value: Any, config: CloudConfig) -> None:
    for item in _list(value):
        unknown = sorted(set(item) - _FILE_KEYS)
        if unknown:
            config.ignored.append(f"write_files {item.get('path')}: {', '.join(unknown)}: not simulated")
        if "owner" in item:
            config.ignored.append(f"write_files {item.get('path')}: owner: every file is the guest's own")
        try:
            config.files.append(_file(item))
        except (TypeError, ValueError, KeyError, OSError, EOFError, zlib.error) as error:
            config.problems.append(f"write_files {item.get('path')}: {type(error).__name__}: {error}")


def _file(item: Mapping[str, Any]) -> File:
    content = item.get("content") or b""
    content = content.encode() if isinstance(content, str) else bytes(content)
    encoding = str(item.get("encoding") or "").strip().lower()
    if encoding not in _ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r}")
    for decode in _ENCODINGS[encoding]:
        try:
            content = decode(content)
        except binascii.Error as error:
            raise ValueError(f"content is not {encoding}: {error}") from error
    permissions = item.get("permissions")
    # YAML reads 0644 as an octal number; in quotes it is a string.
    mode = permissions if isinstance(permissions, int) else int(permissions, 8) if permissions else _DEFAULT_MODE
    return File(str(item["path"]), content, mode & 0o7777, bool(item.get("append")))


def _ssh_keys(value: Any, config: CloudConfig) -> None:
    known = {f"{kind}_{part}" for kind in _KEY_KINDS for part in ("private", "public", "certificate")}
    for name, text in dict(value).items():
        if name in known:
            config.host_keys[name] = str(text)
        else:
            config.ignored.append(f"ssh_keys {name}: not simulated")


def _users(value: Any, config: CloudConfig) -> None:
    for user in _list(value):
        if user == "default":
            continue
        if isinstance(user, dict) and user.get("name") == config.username:
            config.authorized_keys += _keys(user)
        else:
            name = user.get("name") if isinstance(user, dict) else user
            config.ignored.append(f"users {name}: the simulated guest has no user but {config.username}")


def _keys(user: Mapping[str, Any]) -> Iterator[str]:
    for name in ("ssh_authorized_keys", "ssh-authorized-keys"):
        yield from (str(key) for key in _list(user.get(name) or []))


def _commands(value: Any) -> Iterator[Command]:
    for command in _list(value):
        if isinstance(command, list):
            yield tuple(str(word) for word in command)
        elif isinstance(command, str):
            yield command
        elif command is not None:
            raise TypeError(f"a command is a string or a list, not {command!r}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list is wanted, not {value!r}")
    return value


_READERS: Mapping[str, Callable[[Any, CloudConfig], None]] = {
    "write_files": _write_files,
    "ssh_keys": _ssh_keys,
    "users": _users,
    "ssh_authorized_keys": lambda value, config: config.authorized_keys.extend(str(key) for key in _list(value)),
    "hostname": lambda value, config: setattr(config, "hostname", str(value)),
    "bootcmd": lambda value, config: config.boot_commands.extend(_commands(value)),
    "runcmd": lambda value, config: config.run_commands.extend(_commands(value)),
}
