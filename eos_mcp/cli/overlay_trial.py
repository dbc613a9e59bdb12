"""`python -m eos_mcp.cli.overlay_trial FOLDER trusted|user`: mount an overlay in FOLDER, write through it, and end with the namespace."""

from __future__ import annotations

import os
import sys

from layerstack import linux

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


def main(folder: str, form: str) -> None:
    """Raises OSError with the kernel's errno where it refuses."""
    uid, gid = os.geteuid(), os.getegid()
    if form == "user":
        linux.unshare(CLONE_NEWUSER | CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        options = "userxattr"
    else:
        linux.unshare(CLONE_NEWNS)
        options = "redirect_dir=on,index=off,metacopy=off"
    linux.mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.chdir(folder)
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(name)
    linux.mount("overlay", "merged", "overlay", 0, f"lowerdir=lower,upperdir=upper,workdir=work,{options}")
    with open("merged/file", "w") as file:
        file.write("x")
    linux.umount("merged")
    for entry in os.scandir("work"):
        os.chmod(entry.path, 0o700)  # the kernel makes it with mode 000, which its owner could not delete


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error.strerror} ({error.filename})")
