"""Helpers for tests of uploads."""


class RecordedProgress:
    """Records the reported progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.amounts: list[tuple[str, int, int | None]] = []

    def begin(self, step: str, doing: str) -> None:
        self.lines.append(f"{step}: {doing}")

    def amount(self, step: str, done: int, total: int | None) -> None:
        self.amounts.append((step, done, total))

    def end(self, step: str, outcome: str) -> None:
        self.lines.append(f"{step} ended: {outcome}")

    def fail(self, step: str, reason: str) -> None:
        self.lines.append(f"{step} failed: {reason}")

    def note(self, text: str) -> None:
        self.lines.append(text)
