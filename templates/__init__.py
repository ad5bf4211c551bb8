"""Data shipped with the program: starter specs, scripts, and the unit of the guest agent."""

from importlib.resources import files


def read_template(name: str) -> str:
    """Return the text of a template."""
    return files(__name__).joinpath(name).read_text("utf-8")
