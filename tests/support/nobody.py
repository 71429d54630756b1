"""Programs run by a user without any rights, because root may read and open everything."""

import os
import shutil
import sys

import pytest

NOBODY = 65_534

as_nobody = (
    ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    if sys.platform == "linux" and os.geteuid() == 0
    else []
)
"""Begins a command line; empty where the tests themselves run without such rights."""

needs_another_user = pytest.mark.skipif(
    bool(as_nobody) and shutil.which("setpriv") is None, reason="needs setpriv"
)
