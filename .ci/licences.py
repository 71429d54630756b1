"""Checks the licences of everything that a user installs with the proxy: ``python .ci/licences.py``.

That is the packages that it needs, and the lists of tools whose vectors are in its own.

Run it where the proxy is installed. A licence that is not on the list needs a person to read it: then add it
here, or choose another dependency.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ALLOWED = {
    "0BSD",
    "Apache 2.0",
    "Apache License 2.0",
    "Apache Software License",
    "Apache-2.0",
    "BSD License",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "3-Clause BSD License",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT License",
    "MPL-2.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
"""Licences under which others may use and pass on the proxy with the package, as packages write them."""

PROJECT = "mcp-context-proxy"
SHIPPED = Path(__file__).parents[1] / "mcp_context_proxy" / "embedding" / "shipped" / "manifest.json"


def main() -> None:
    """Print the packages that are not allowed, and exit with 1 if there is anything."""
    found = {one.name: licences(one) for one in installed(PROJECT, set())} | embedded(SHIPPED)
    problems = [
        f"{name}: {', '.join(sorted(said - ALLOWED)) or 'it names no licence'}"
        for name, said in sorted(found.items())
        if not said or said - ALLOWED
    ]
    summary = problems or [f"{len(found)} packages and lists of tools, all under licences of the list"]
    sys.stdout.write("".join(f"  {line}\n" for line in summary))
    sys.exit(1 if problems else 0)


def installed(name: str, known: set[str]) -> Iterator[Distribution]:
    """Yield a package and all that it needs, each once, but for those of other systems."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in known:
        return
    known.add(key)
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    yield package
    for needed in package.requires or ():
        if "extra ==" not in needed and (match := re.match(r"[\w.-]+", needed)):
            yield from installed(match[0], known)


def embedded(manifest: Path) -> dict[str, set[str]]:
    """Return the sources of the packaged vectors, each with its licences."""
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    return {one["source"]: set(one["licences"]) for one in facts["sources"]}


def licences(package: Distribution) -> set[str]:
    """Return the licences that a package names: in an expression, else by classifiers, else in words."""
    metadata = package.metadata
    classified = [one for one in metadata.get_all("Classifier", []) if one.startswith("License :: OSI")]
    expression, words = (" ".join(metadata.get_all(name, [])) for name in ("License-Expression", "License"))
    if classified and not expression:
        return {one.rsplit(" :: ", 1)[1] for one in classified}
    return {one.strip() for one in re.split(r"\bAND\b|\bOR\b|[()]", expression or words) if one.strip()}


if __name__ == "__main__":
    main()
