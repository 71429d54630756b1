"""A clock that a test sets."""


class Clock:
    """Seconds, as a test sets them."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
