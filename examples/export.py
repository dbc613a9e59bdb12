"""Export published changes as a delta: onto a directory, and as an archive.

python examples/export.py [IMAGE]
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from one_session import ask


def main(image: str = "host") -> None:
    with tempfile.TemporaryDirectory(prefix="eos-example-") as folder:
        workspace, dest = Path(folder, "project"), Path(folder, "result")
        workspace.mkdir()
        (workspace / "old.txt").write_text("old\n")
        (workspace / "kept.txt").write_text("kept\n")
        sandbox = ask("create_sandbox", {"image": image, "workspace_root": str(workspace)})["id"]
        try:
            cmd = "rm old.txt; mkdir -p src; echo new > src/new.txt; chmod 755 src/new.txt"
            ask("exec_command", {"cmd": cmd, "yield_time_ms": 30000}, sandbox)
            done = ask("export_changes", {"sandbox_id": sandbox, "dest": str(dest)})
            print(
                "written:",
                sorted(str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_file()),
                "deleted:",
                done["deletes_applied"],
            )
            again = ask("export_changes", {"sandbox_id": sandbox, "dest": str(dest)})
            print("a second export writes", again["files_written"], "files")
            ask(
                "export_changes",
                {"sandbox_id": sandbox, "dest": str(Path(folder, "result.tar")), "format": "tar"},
            )
            with tarfile.open(Path(folder, "result.tar")) as tar:
                print("the archive holds:", tar.getnames())
        finally:
            ask("destroy_sandbox", {"sandbox_id": sandbox})


if __name__ == "__main__":
    main(*sys.argv[1:2])
