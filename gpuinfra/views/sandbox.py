"""The embedded Azure, as text and as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuinfra.views import json_output
from gpuinfra.views.terminal import harmless, messages, results

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
    _print_table(rows)


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
        _print_table([_fault_row(fault)])


def show_starting(endpoint: str) -> None:
    """Print that a command started the server."""
    messages().print(f"started the embedded Azure (simulated) at {endpoint}; `gpuinfra sandbox stop` stops it")


def show_faults(faults: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print all armed faults."""
    if json:
        json_output.show({"faults": list(faults)})
    elif faults:
        _print_table([("FAULT", "TIMES", "WHERE"), *(_fault_row(fault) for fault in faults)])
    else:
        messages().print("no fault is armed")


def show_clock(state: dict[str, Any], *, json: bool) -> None:
    """Print the sandbox's time and speed."""
    if json:
        json_output.show(state)
    else:
        results().print(f"{_moment(state['time'])}  speed {state['speed']:g}")


def show_limits(limits: dict[str, dict[str, int]], *, json: bool) -> None:
    """Print quota limits that differ from the catalogue."""
    rows = [(region, family, str(limit)) for region, own in sorted(limits.items()) for family, limit in own.items()]
    if json:
        json_output.show({"limits": limits})
    elif rows:
        _print_table([("REGION", "QUOTA", "LIMIT"), *rows])
    else:
        messages().print("no limits set; those of the catalogue apply")


def show_bill(machines: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print what machines cost."""
    if json:
        json_output.show({"machines": list(machines)})
        return
    if not machines:
        messages().print("no machines so far")
        return
    rows = [
        (machine["name"], machine["powerState"], _length(machine["billedSeconds"]), f"${machine['costUsd']:.4f}")
        for machine in machines
    ]
    total = sum(machine["costUsd"] for machine in machines)
    billed = sum(machine["billedSeconds"] for machine in machines)
    _print_table(
        [("MACHINE", "STATE", "BILLED", "COST (simulated)"), *rows, ("total", "", _length(billed), f"${total:.4f}")],
        right={2, 3},
    )


def show_log(requests: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print requests, oldest first. A status of 0 is a closed connection."""
    if json:
        json_output.show({"requests": list(requests)})
        return
    if not requests:
        messages().print("no requests so far")
        return
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
    _print_table([("NUMBER", "START", "TOOK", "STATUS", "METHOD", "PATH"), *rows], right={0, 2, 3})


def show_operations(operations: Sequence[dict[str, Any]], *, json: bool) -> None:
    """Print long-running operations, oldest first. A running one has no end."""
    if json:
        json_output.show({"operations": list(operations)})
        return
    if not operations:
        messages().print("no operations so far")
        return
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
    _print_table([("NUMBER", "START", "END", "STATUS", "ACTION", "RESOURCE"), *rows], right={0})


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


def _print_table(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
    console, shown = results(), [[harmless(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    for row in shown:
        cells = [
            cell.rjust(width) if column in set(right) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        console.print("  ".join(cells).rstrip())
