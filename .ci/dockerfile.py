"""Reads the Dockerfile: its stages and their instructions, as plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Stage:
    """One ``FROM`` and the instructions after it."""

    image: str
    """The image, or the name of the stage, that it begins with."""
    name: str
    """Its own name, empty where it has none."""
    instructions: list[tuple[str, str]] = field(default_factory=list)
    """Keyword and the rest of its line, in order."""

    def all(self, keyword: str) -> list[str]:
        """Arguments of each instruction of that kind."""
        return [text for found, text in self.instructions if found == keyword]

    def only(self, keyword: str) -> str:
        """Arguments of the one instruction of that kind."""
        (text,) = self.all(keyword)
        return text

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it sets."""
        return dict(text.split("=", 1) for text in self.all("ENV"))

    @property
    def command(self) -> list[str]:
        """Command that a container runs."""
        return [*json.loads(self.only("ENTRYPOINT")), *json.loads(self.only("CMD"))]

    @property
    def health_check(self) -> list[str]:
        """Command that asks a container whether it is well."""
        words: list[str] = json.loads(self.only("HEALTHCHECK").partition(" CMD ")[2])
        return words

    @property
    def owner(self) -> tuple[int, int]:
        """The user and group that it runs as."""
        user, group = self.only("USER").split(":")
        return int(user), int(group)


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile that has one instruction per line."""
    found: list[Stage] = []
    for line in text.splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name))
        elif keyword and not keyword.startswith("#"):
            found[-1].instructions.append((keyword, rest.strip()))
    return found


def let_through(text: str) -> list[str]:
    """Paths that a .dockerignore which ignores everything lets through again."""
    return [line[1:] for line in text.splitlines() if line.startswith("!")]
