"""List the tests that failed in the last run of pytest: `python .ci/failed.py MOST`.

Exits with 1 if there are none, or more than MOST.
"""

import json
import sys
from pathlib import Path

failed = json.loads(Path(".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8"))
sys.stdout.write("\n  ".join([f"{len(failed)} failed:", *sorted(failed)]) + "\n")
sys.exit(not 0 < len(failed) <= int(sys.argv[1]))
