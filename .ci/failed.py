"""List the tests that failed in the last run of pytest: `python .ci/failed.py MOST`.

Exits with 1 if there are none, or they are in more than MOST folders. The tests of a folder count as one,
because one proxy that did not start in time fails all that share it.
"""

import json
import sys
from pathlib import Path, PurePosixPath

failed = json.loads(Path(".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8"))
sys.stdout.write("\n  ".join([f"{len(failed)} failed:", *sorted(failed)]) + "\n")
folders = {PurePosixPath(test.partition("::")[0]).parent for test in failed}
sys.exit(not 0 < len(folders) <= int(sys.argv[1]))
