"""One figure: how many times as long as something else."""

from typing import NamedTuple


class Ratio(NamedTuple):
    name: str
    of: str
    value: float
    limit: float
