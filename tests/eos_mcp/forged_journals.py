"""Journals of an export as an attacker would write them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

RECORD = struct.Struct("<cBHHH")


def forge(at: Path, victim: str, form: int = 1, name: str = ".eos-export-0") -> Path:
    """Write, as a clone could contain it, a journal that creates, overwrites and chmods in `victim`, a path
    relative to the destination.
    """
    staging = at / name
    (staging / "new").mkdir(parents=True)
    (staging / "undo").mkdir()
    (staging / "undo/0").write_text("created")
    (staging / "undo/1").write_text("ssh-ed25519 EVIL KEY")
    (staging / "new/keep").write_text("")
    steps = [
        (b"w", 0, 0, 0xFFFF, "new-file"),
        (b"f", 1, 0o600, 0xFFFF, "authorized_keys"),
        (b"f", 0, 0o644, 0o4777, "secret"),
    ]
    plan = b""
    for letter, staged, mode, old, path in steps:
        raw = f"{victim}/{path}".encode()
        plan += RECORD.pack(letter, staged, mode, old, len(raw)) + raw
    (staging / "plan").write_bytes(plan)
    (staging / "clears").write_bytes(b"")
    state = {
        "format": form,
        "phase": "ready",
        "created": False,
        "plan": "0" * 64,
        "clears": "0" * 64,
        "mac": "0" * 64,
    }
    (staging / "state").write_text(json.dumps(state))
    return staging


def victim_in(folder: Path) -> Path:
    victim = folder / "victim"
    victim.mkdir()
    for name in ("authorized_keys", "secret"):
        (victim / name).write_text(name)
        (victim / name).chmod(0o600)
    return victim
