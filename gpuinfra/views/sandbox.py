"""The embedded Azure, as text and as JSON."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpuinfra.views import json_output
from gpuinfra.views.terminal import columns, harmless, messages, results

ENVIRONMENT = 'eval "$(gpuinfra sandbox env)"'


def show_started(facts: dict[str, Any], *, json: bool) -> None:
    """Print the server's address and the next step."""
    if json:
        json_output.show(facts)
        return
    word = "started" if facts["started"] else "already running"
    results().print(f"{word}  {facts['endpoint']}  pid {facts['pid']}  profile {facts['profile']}")
    messages().print(f"Next: {ENVIRONMENT}")


def show_stopped(stopped: bool, *, json: bool) -> None:
    """Print whether the server was running."""
    if json:
        json_output.show({"stopped": stopped})
    else:
        results().print("stopped" if stopped else "not running")


def show_log_tail(text: str) -> None:
    """Print the end of a failed server's log."""
    for line in text.splitlines():
        messages().print(f"server: {harmless(line)}")


def show_status(facts: dict[str, Any], *, json: bool) -> None:
    """Print the server's address and a summary of its content."""
    if json:
        json_output.show(facts)
        return
    rows = [("state", "running" if facts["running"] else "not running"), ("folder", facts["folder"])]
    if facts["running"]:
        rows += [
            *((name, str(facts[name])) for name in ("endpoint", "pid", "tenant", "subscription", "profile")),
            ("time", _moment(facts["time"])),
            ("speed", f"{facts['speed']:g}"),
            *((name, str(facts[name])) for name in ("machines", "resources", "requests", "faults")),
        ]
    results().print("\n".join(columns(rows)))


def show_reset(*, json: bool) -> None:
    """Confirm the reset."""
    if json:
        json_output.show({"reset": True})
    else:
        results().print("reset")


def show_environment(variables: Mapping[str, str], *, json: bool) -> None:
    """Print lines for a shell to evaluate, or one JSON object."""
    if json:
        json_output.show(dict(variables))
        return
    console = results()
    for name, value in variables.items():
        quoted = value.replace("'", "'\\''")
        console.print(f"export {name}='{quoted}'")


def show_fault(fault: dict[str, Any], *, json: bool) -> None:
    """Print a new fault."""
    if json:
        json_output.show({"fault": fault})
    else:
        results().print("\n".join(columns([_fault_row(fault)])))


def show_starting(endpoint: str) -> None:
    """Print that a command started the server."""
    messages().print(f"started the embedded Azure (simulated) at {endpoint}; `gpuinfra sandbox stop` stops it")


def show_faults(faults: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print all armed faults."""
    rows = [("FAULT", "TIMES", "WHERE"), *map(_fault_row, faults)]
    _show_rows({"faults": list(faults)}, rows, "no fault is armed", json=json)


def show_clock(state: dict[str, Any], *, json: bool) -> None:
    """Print the sandbox's time and speed."""
    if json:
        json_output.show(state)
    else:
        results().print(f"{_moment(state['time'])}  speed {state['speed']:g}")


def show_limits(limits: dict[str, dict[str, int]], *, json: bool) -> None:
    """Print quota limits that differ from the catalogue."""
    rows = [(region, family, str(limit)) for region, own in sorted(limits.items()) for family, limit in own.items()]
    header = ("REGION", "QUOTA", "LIMIT")
    _show_rows({"limits": limits}, [header, *rows], "no limits set; those of the catalogue apply", json=json)


def show_bill(machines: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print what machines cost."""
    rows = [
        (machine["name"], machine["powerState"], _length(machine["billedSeconds"]), f"${machine['costUsd']:.4f}")
        for machine in machines
    ]
    if machines:
        cost = sum(machine["costUsd"] for machine in machines)
        rows.append(("total", "", _length(sum(machine["billedSeconds"] for machine in machines)), f"${cost:.4f}"))
    header = ("MACHINE", "STATE", "BILLED", "COST (simulated)")
    _show_rows({"machines": list(machines)}, [header, *rows], "no machines so far", right={2, 3}, json=json)


def show_log(requests: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print requests, oldest first. A status of 0 is a closed connection."""
    rows = [
        (
            str(request["number"]),
            _moment(request["start"]),
            f"{request['seconds'] * 1000:.0f} ms",
            str(request["status"]),
            request["method"],
            request["path"],
        )
        for request in requests
    ]
    header = ("NUMBER", "START", "TOOK", "STATUS", "METHOD", "PATH")
    _show_rows({"requests": list(requests)}, [header, *rows], "no requests so far", right={0, 2, 3}, json=json)


def show_operations(operations: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print long-running operations, oldest first. A running one has no end."""
    rows = [
        (
            str(operation["number"]),
            _moment(operation["start"]),
            _moment(operation["end"]) if operation["end"] else "-",
            operation["status"],
            operation["action"],
            operation["resource"],
        )
        for operation in operations
    ]
    header = ("NUMBER", "START", "END", "STATUS", "ACTION", "RESOURCE")
    _show_rows({"operations": list(operations)}, [header, *rows], "no operations so far", right={0}, json=json)


def _show_rows(
    payload: dict[str, Any], rows: Sequence[Sequence[str]], empty: str, right: Collection[int] = (), *, json: bool
) -> None:
    """Print the payload as JSON, a table, or, if only its header is there, that it is empty."""
    if json:
        json_output.show(payload)
    elif rows[1:]:
        results().print("\n".join(columns(rows, right)))
    else:
        messages().print(empty)


def _fault_row(fault: dict[str, Any]) -> tuple[str, str, str]:
    left_out = {"id", "name", "count"}
    said = {name: value for name, value in fault.items() if name not in left_out}
    where = " ".join(name if value is True else f"{name}={value}" for name, value in said.items())
    count = fault.get("count", 1)
    return fault["name"], "always" if count == 0 else str(count), where


def _moment(stamp: str) -> str:
    return f"{stamp[:19]}Z"


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
