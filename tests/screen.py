"""What a terminal shows."""

import re


def screen(written: str) -> list[str]:
    """Return what a terminal shows in the end, for the controls that rich's live display uses."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[row] = ""
        elif up := re.fullmatch(r"\x1b\[([0-9]+)A", part):
            row -= int(up[1])
        elif not part.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return lines[: row + 1] if lines[row] else lines[:row]
