"""Progress for tests: ignored, or recorded."""


class SilentProgress:
    """Ignores all reports."""

    def begin(self, step: str, doing: str) -> None: ...

    def amount(self, step: str, done: int, total: int | None) -> None: ...

    def end(self, step: str, outcome: str) -> None: ...

    def fail(self, step: str, reason: str) -> None: ...

    def note(self, text: str) -> None: ...


class RecordedSteps(SilentProgress):
    """Adds the reports of steps to `reports`."""

    reports: list[tuple[str, ...]]

    def begin(self, step: str, doing: str) -> None:
        self.reports.append(("begin", step, doing))

    def end(self, step: str, outcome: str) -> None:
        self.reports.append(("end", step, outcome))

    def fail(self, step: str, reason: str) -> None:
        self.reports.append(("fail", step, reason))
