import os
import subprocess
import sys
from pathlib import Path

USE_THE_MODEL = (
    "from mcp_context_proxy.embedding.embeddings import load_model; load_model().embed(['a query'])"
)


def test_using_the_model_writes_no_files(tmp_path: Path) -> None:
    """onnxruntime writes a device id and a usage database unless it is told not to before it is loaded."""
    home = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME")}

    subprocess.run(
        [sys.executable, "-B", "-c", USE_THE_MODEL],
        env={"PATH": os.environ["PATH"], **home},
        check=True,
        timeout=60,
    )

    assert list(tmp_path.rglob("*")) == []
