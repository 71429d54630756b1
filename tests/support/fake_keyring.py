"""A module in place of the package keyring, with secrets in memory."""

import sys
from types import ModuleType

import pytest


class FakeKeyring(ModuleType):
    """Passwords by service and user, as the package has them."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.passwords: dict[tuple[str, str], str] = {}
        self.asked: list[str] = []
        self.error: Exception | None = None

    def _answer(self, user: str) -> None:
        self.asked.append(user)
        if self.error is not None:
            raise self.error

    def get_password(self, service: str, user: str) -> str | None:
        self._answer(user)
        return self.passwords.get((service, user))

    def set_password(self, service: str, user: str, password: str) -> None:
        self._answer(user)
        self.passwords[service, user] = password

    def delete_password(self, service: str, user: str) -> None:
        self._answer(user)
        del self.passwords[service, user]


def install(monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
    """Put a fake keyring in the place of the real one."""
    made = FakeKeyring()
    monkeypatch.setitem(sys.modules, "keyring", made)
    return made
