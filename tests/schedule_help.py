"""Orders for schedulers, as the tests of them share."""

from dataclasses import replace
from typing import Any

from gpuinfra.scheduling.interval import Interval
from gpuinfra.scheduling.order import Order

ODD = """/srv/sp ace/it's "so" $HOME %h \\n;&*[x]"""
"""A folder's name with everything in it that means something to a shell, to cron or to systemd."""


def order(**fields: Any) -> Order:
    """A usual one, with these fields instead."""
    usual = Order(
        Interval(15),
        specs="infra",
        program=("/opt/gpuinfra",),
        search_path="/opt:/usr/bin:/bin",
        environment_file="/home/me/.config/gpuinfra/schedule.env",
        package="gpuinfra==0.1.0",
        branch="main",
        connection="gpuinfra",
    )
    return replace(usual, **fields)
