"""Orders for schedulers, shared by their tests."""

from dataclasses import replace
from typing import Any

from gpuinfra.scheduling.schedule import Interval, ReapSchedule

ODD = """/srv/sp ace/it's "so" $HOME %h \\n;&*[x]"""
"""The name of a folder with all special characters of a shell, cron and systemd."""


def order(**fields: Any) -> ReapSchedule:
    """Return a usual order with changed fields."""
    usual = ReapSchedule(
        Interval(15),
        specs="infra",
        program=("/opt/gpuinfra",),
        search_path="/opt:/usr/bin:/bin",
        environment_file="/home/me/.config/gpuinfra/schedule.env",
        package="gpuinfra==0.1.0",
        branch="main",
        connection="gpuinfra",
        plan_connection="gpuinfra-plan",
    )
    return replace(usual, **fields)
