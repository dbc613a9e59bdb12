"""A tree with one entry of every kind that a layer must keep, and its description by lstat alone. Also a
program, for places without our packages:

    python sample_tree.py make DIRECTORY [root]
    python sample_tree.py look DIRECTORY        # prints one JSON object, a line per fact
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys

TIMES = {
    "plain": 1_234_567_890_123_456_789,
    "link-dangling": 3_000_000_001,
    "empty": 1_111_111_111_123_456_789,
    "modes/0750": -1_000_000_001,
    "far": 9_999_999_999_000_000_001,
}
"""mtimes in ns: odd values, one before 1970, one beyond 32 bits."""

HOLE, ISLAND = 24 << 20, 16 << 20
ODD_NAMES = (
    b".wh.x", b".wh..wh..opq", b".wh.", b"manifest.json", b"workspace.json", b"layers", b"staging", b".layer-metadata", b"-rf", b" blank ",  # noqa: E501
    b"back\\slash", b"new\nline", b"tab\t", b"bell\x07", b"\xff\xfe", b"caf\xc3\xa9", b"cafe\xcc\x81", b"A.txt", b"a.txt", b"\xf0\x9f\x90\xa6",  # noqa: E501
    b"n" * 255, b"...", b"~", b"*", b"'\"$(x)", b"a\xe2\x80\xaeb",
)  # fmt: skip
FILE_MODES = (0o000, 0o400, 0o444, 0o600, 0o640, 0o666, 0o755, 0o4755, 0o2755, 0o6711, 0o1644)
DIRECTORY_MODES = (0o000, 0o500, 0o700, 0o750, 0o1777, 0o2775, 0o3770)


def acl(*, mask: int = 7, user: int = 0) -> bytes:
    """An access control list in the kernel's form (acl(5)): owner rwx, one more user rw, group r, `mask`,
    others nothing.
    """
    undefined = 0xFFFFFFFF
    entries = (
        (1, 7, undefined),
        (2, 6, user),
        (4, 4, undefined),
        (0x10, mask, undefined),
        (0x20, 0, undefined),
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def put(path: bytes | str, data: bytes = b"x\n", mode: int = 0o644) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def make(root: str, *, as_root: bool) -> None:
    """Make the tree below the existing `root`. `as_root`: with owners and capabilities, which only root of
    the machine may set.
    """
    for number, name in enumerate(ODD_NAMES):  # at the top, where a store might have names of its own
        put(os.path.join(os.fsencode(root), name), b"%d\n" % number)
    here = os.open(
        ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # its path may lead through another user's home
    os.chdir(root)
    os.umask(0o022)
    put("plain")
    os.mkdir("modes")
    for mode in FILE_MODES:
        put(f"modes/f{mode:04o}", mode=mode)
    for mode in DIRECTORY_MODES:
        os.mkdir(f"modes/{mode:04o}")
        put(f"modes/{mode:04o}/inside")
    os.mkdir("empty")
    os.makedirs("nest/of/empties/and/more")
    os.mkdir("links")
    put("links/one", b"shared\n", 0o640)
    os.link("links/one", "links/two")
    os.link("links/one", "three")
    for link, target in (
        ("link-dangling", "nowhere/at all"),
        ("link-up", "../../../.."),
        ("link-abs", "/etc/passwd"),
        ("link-dir", "modes"),
    ):
        os.symlink(target, link)
    os.symlink(b"\xff\xfe\n/" + b"t" * 3000, b"link-odd")
    os.symlink("link-loop", "link-loop")
    with open("sparse", "wb") as file:
        file.truncate(HOLE)
        file.seek(ISLAND)
        file.write(b"island")
    with open("all-hole", "wb") as file:
        file.truncate(HOLE)
    put("attributes", mode=0o600)
    for key, value in (
        ("user.empty", b""),
        ("user.note", b"\0\xff\n" * 50),
        ("user.overlay.opaque", b"y"),
        ("user.\u00e9", b"e"),
    ):
        os.setxattr("attributes", key, value)
    os.mkdir("attributed")
    os.setxattr("attributed", "user.note", b"of a directory")
    os.setxattr("attributed", "user.overlay.redirect", b"/etc")
    put("listed", mode=0o600)
    os.setxattr("listed", "system.posix_acl_access", acl())
    os.mkdir("by-default")
    put("by-default/before")
    os.setxattr("by-default", "system.posix_acl_default", acl(mask=5))
    put("by-default/inherits", mode=0o640)
    os.mkdir("by-default/inherits-too")
    put("far")
    if as_root:
        put("owned")
        os.chown("owned", 1234, 4321)
        os.chmod("owned", 0o6755)
        os.mkdir("owned-directory")
        os.chown("owned-directory", 65534, 0)
        os.symlink("x", "owned-link")
        os.chown("owned-link", 77, 78, follow_symlinks=False)
        put("capable", mode=0o755)
        os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 0x2000, 0, 0, 0))
    for mode in DIRECTORY_MODES:
        os.chmod(f"modes/{mode:04o}", mode)
    for path, mtime in TIMES.items():
        os.utime(path, ns=(7, mtime), follow_symlinks=False)
    os.fchdir(here)
    os.close(here)


Facts = dict[str, dict[str, object]]


def look(root: str) -> Facts:
    """Return path -> results of lstat, readlink, listxattr and a digest of the bytes; `same`: the first name
    of its inode; `small`: fewer blocks than bytes.
    """
    found: Facts = {}
    inodes: dict[tuple[int, int], list[str]] = {}

    def visit(path: bytes, full: bytes) -> None:
        s = os.lstat(full)
        name = path.decode("utf-8", "backslashreplace")
        facts: dict[str, object] = {
            "mode": oct(s.st_mode),
            "owner": [s.st_uid, s.st_gid],
            "mtime_ns": s.st_mtime_ns,
        }
        xattrs = sorted(n for n in os.listxattr(full, follow_symlinks=False) if n != "security.selinux")
        facts["xattrs"] = {n: os.getxattr(full, n, follow_symlinks=False).hex() for n in xattrs}
        if stat.S_ISLNK(s.st_mode):
            facts["target"] = os.readlink(full).hex()
        elif stat.S_ISREG(s.st_mode):
            with open(full, "rb") as file:
                data = file.read()
            facts |= {
                "data": data.strip(b"\0").hex()[:200],
                "size": len(data),
                "small": s.st_blocks * 512 < len(data),
            }
            inodes.setdefault((s.st_dev, s.st_ino), []).append(name)
        if path:
            found[name] = facts
        if stat.S_ISDIR(s.st_mode):
            for child in sorted(os.listdir(full)):
                visit(path + b"/" + child if path else child, full + b"/" + child)

    visit(b"", os.fsencode(root))
    for names in inodes.values():
        for name in names[1:]:
            found[name]["same"] = names[0]
    return found


def difference(got: Facts, want: Facts) -> list[str]:
    """Return the differences, path by path."""
    return [
        f"{path}: {key}: got {got.get(path, {}).get(key)}, want {want.get(path, {}).get(key)}"
        for path in sorted(got.keys() | want.keys())
        for key in sorted(got.get(path, {}).keys() | want.get(path, {}).keys())
        if got.get(path, {}).get(key) != want.get(path, {}).get(key)
    ]


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], as_root="root" in sys.argv[3:])
    else:
        print(json.dumps(look(sys.argv[2]), indent=0))
