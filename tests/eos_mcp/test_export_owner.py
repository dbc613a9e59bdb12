"""Owner, group, setgid, attributes and access control lists of what an export replaces and makes (N14), as
root and as an ordinary user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from eos_mcp.export.rules import ExportRules
from tests import acls, in_namespace
from tests.eos_mcp.export_runs import run, shape
from tests.export_streams import directory, file, hard_link, made, made_by_digests, symlink

ROOT = os.geteuid() == 0
PERSON = (1001, 1002)
TEAM = 1003


def owner(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_uid, found.st_gid


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


DELTA = made(
    file(b"edited", b"new", 0o640),
    directory(b"fresh", 0o755),
    file(b"fresh/f", b"f"),
    symlink(b"link", b"edited"),
    file(b"made", b"made"),
    hard_link(b"made-too", b"made"),
    directory(b"open", 0o755),
    file(b"open/f", b"f"),
    directory(b"team", 0o775),
    directory(b"team/deep", 0o755),
    file(b"team/deep/f", b"f"),
    file(b"team/f", b"f"),
    symlink(b"team/l", b"f"),
)


def _place(root: Path, ids: tuple[int, int], team: int) -> None:
    """A person's directory: a file with everything, a folder of a team, one with a default list."""
    for folder in ("team", "open"):
        (root / folder).mkdir(parents=True)
    (root / "edited").write_text("old")
    (root / "link").symlink_to("elsewhere")
    for path in (root, *root.iterdir()):
        os.chown(path, *ids, follow_symlinks=False)
    os.chown(root / "team", ids[0], team)
    os.chmod(root / "team", 0o2775)
    os.setxattr(root / "edited", "user.note", b"mine")
    os.setxattr(root / "edited", acls.ACL, acls.for_user(1234, 6, group=4, mask=6))
    os.setxattr(root / "open", acls.DEFAULT, acls.for_user(1234, 7))


@pytest.mark.needs("root")
def test_root_leaves_a_directory_to_whom_it_belongs(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    _place(dest, PERSON, TEAM)
    foreseen = run(DELTA, dest, dry_run=True)
    result = run(DELTA, dest)
    assert "not_kept" not in result and "not_kept" not in foreseen
    for name in ("edited", "fresh", "fresh/f", "link", "made", "made-too", "open/f"):
        assert owner(dest / name) == PERSON, name
    for name in ("team", "team/f", "team/l", "team/deep", "team/deep/f"):
        assert owner(dest / name) == (PERSON[0], TEAM), name
    assert (mode(dest / "team"), mode(dest / "team/deep"), mode(dest / "fresh")) == (0o2775, 0o2755, 0o755)
    _attributes_are_kept(dest)
    before = {name: os.lstat(dest / name).st_ctime_ns for name in ("edited", "team/deep", "team/f", "open/f")}
    again = run(DELTA, dest)
    assert again["files_written"] == 0
    assert {name: os.lstat(dest / name).st_ctime_ns for name in before} == before, (
        "a second export changes nothing"
    )


def _attributes_are_kept(dest: Path) -> None:
    assert (dest / "edited").read_text() == "new" and os.getxattr(dest / "edited", "user.note") == b"mine"
    assert acls.named(dest / "edited") == {1234: 6} and mode(dest / "edited") == 0o640, (
        "the mode is the mask of the list"
    )
    assert acls.named(dest / "open/f") == {1234: 7} and acls.named(dest / "open", acls.DEFAULT) == {1234: 7}
    assert acls.named(dest / "made") == acls.named(dest / "fresh", acls.DEFAULT) == {}


def test_what_an_ordinary_user_may_keep_is_kept_and_the_rest_is_named(short_dir: str) -> None:
    root = Path(short_dir)
    me = in_namespace.ORDINARY_UID if ROOT else os.geteuid()
    mine = (me, in_namespace.ORDINARY_UID if ROOT else os.getegid())
    _place(root / "d", mine, mine[1])
    if ROOT:
        os.chown(root, *mine)
        os.chown(root / "d/team", me, TEAM)  # not one of this user's groups: the bit alone gives it
        os.chmod(root / "d/team", 0o2775)
        (root / "d/theirs").write_text("theirs")
        os.chown(root / "d/theirs", *PERSON)
        os.setxattr(root / "d/theirs", "user.note", b"theirs")

    def child() -> None:
        dest = root / "d"
        more = (file(b"theirs", b"new"),) if ROOT else ()
        for dry_run in (True, False):
            result = run(made(*more), dest, dry_run=dry_run)
            assert result.get("not_kept") == ([{"path": "theirs", "what": "owner, group"}] if ROOT else None)
        if ROOT:
            assert owner(dest / "theirs") == mine and os.getxattr(dest / "theirs", "user.note") == b"theirs"
        result = run(DELTA, dest)
        assert owner(dest / "edited") == owner(dest / "fresh/f") == mine
        _attributes_are_kept(dest)
        assert mode(dest / "team") == 0o2775, "the bit stays"
        lost = [row["path"] for row in result.get("not_kept", [])]
        assert lost == (["team/deep", "team/deep/f", "team/f", "team/l"] if ROOT else []), (
            "no group of this user"
        )

    in_namespace.call("uid" if ROOT else None, child)


def test_a_group_that_a_user_may_give_is_given(short_dir: str) -> None:
    """Also where the root of the destination passes on another one, which staged files would have."""
    groups = [TEAM] if ROOT else [gid for gid in os.getgroups() if gid != os.getegid()]
    if not groups:
        return
    root = Path(short_dir)
    me, own = (in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID) if ROOT else (os.geteuid(), os.getegid())
    team, other = groups[0], TEAM + 1 if ROOT else own

    def child() -> None:
        if ROOT:
            os.setgroups([team, other])
            os.setresgid(own, own, own)
            os.setresuid(me, me, me)
        dest = root / "d"
        for name, gid, bits in (("", other, 0o2755), ("plain", own, 0o755), ("team", team, 0o2775)):
            (dest / name).mkdir()
            os.chown(dest / name, -1, gid)
            os.chmod(dest / name, bits)
        (dest / "plain/old").write_text("old")
        os.chown(dest / "plain/old", -1, team)
        delta = made(
            file(b"a", b"a"),
            directory(b"plain"),
            file(b"plain/f", b"f"),
            file(b"plain/old", b"new"),
            directory(b"team"),
            file(b"team/f", b"f"),
        )
        assert "not_kept" not in run(delta, dest)
        found = {name: os.lstat(dest / name).st_gid for name in ("a", "plain/f", "plain/old", "team/f")}
        assert found == {"a": other, "plain/f": own, "plain/old": team, "team/f": team}
        assert [mode(dest / name) for name in ("plain", "team")] == [0o755, 0o2755], (
            "the head has 0755 and the folder passes on its group"
        )

    if ROOT:
        os.chown(root, me, own)
    in_namespace.call(None, child)


@pytest.mark.needs("root")
def test_a_new_destination_and_the_folders_above_belong_to_whom_their_folder_does(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, *PERSON)
    os.chmod(home, 0o2755)
    os.setxattr(home, acls.DEFAULT, acls.for_user(1234, 7))
    run(DELTA, home / "a/b/dest")
    for name in ("a", "a/b", "a/b/dest", "a/b/dest/made", "a/b/dest/team/deep/f", "a/b/dest/link"):
        assert owner(home / name) == PERSON, name
    assert (
        acls.named(home / "a/b/dest/team/deep/f") == {1234: 7} and mode(home / "a/b/dest/team/deep") == 0o2755
    )


@pytest.mark.needs("root")
def test_a_capability_goes_with_the_content_that_it_was_given_to_and_is_named(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    (dest / "f").write_text("old")
    os.setxattr(dest / "f", "security.capability", bytes.fromhex("0100000280000000000000000000000000000000"))
    delta = made(file(b"f", b"new", 0o4755))
    for dry_run in (True, False):
        assert run(delta, dest, keep_setuid=True, dry_run=dry_run)["not_kept"] == [
            {"path": "f", "what": "capabilities"}
        ]
    assert os.listxattr(dest / "f") == [] and mode(dest / "f") == 0o4755


@pytest.mark.needs("root")
def test_setuid_bits_that_are_asked_for_outlive_the_change_of_owner(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    dest.mkdir()
    os.chown(dest, *PERSON)
    run(made(file(b"su", b"u", 0o6755)), dest, keep_setuid=True)
    assert (owner(dest / "su"), mode(dest / "su")) == (PERSON, 0o6755)


def test_a_setgid_bit_that_the_session_took_away_goes_and_one_of_the_destination_stays(
    tmp_path: Path,
) -> None:
    """The copy of the base tells them apart."""
    base, dest = tmp_path / "base", tmp_path / "d"
    for name in ("gone", "stays"):
        (base / name).mkdir(parents=True)
        (dest / name).mkdir(parents=True)
        os.chmod(dest / name, 0o2755)
    os.chmod(base / "gone", 0o2755)
    run(made(directory(b"gone"), directory(b"stays")), dest, base=str(base))
    assert (mode(dest / "gone"), mode(dest / "stays")) == (0o755, 0o2755)


@pytest.mark.needs("root")
def test_what_is_of_another_kind_is_new_and_a_name_of_a_group_has_its_owner(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    (dest / "was-dir").mkdir(parents=True)
    (dest / "was-file").write_text("x")
    os.setxattr(dest / "was-file", "user.note", b"1")
    (dest / "z").write_text("z")
    for path in (dest, *dest.iterdir()):
        os.chown(path, *PERSON)
    os.chown(dest / "z", 5, 6)
    delta = made(file(b"a", b"a"), file(b"was-dir", b"f"), directory(b"was-file"), hard_link(b"z", b"a"))
    assert run(delta, dest)["not_kept"] == [{"path": "z", "what": "owner, group"}]
    assert {owner(path) for path in dest.iterdir()} == {PERSON} and os.listxattr(dest / "was-file") == []
    assert shape(dest)[b"z"][2] == b"a"


@pytest.mark.needs("root")
def test_an_error_takes_owners_and_attributes_back_with_the_files(tmp_path: Path) -> None:
    dest = tmp_path / "d"
    _place(dest, PERSON, TEAM)

    def refuse(step: str) -> None:
        if step == "export.done":
            raise OSError(5, "refused")

    before = {path: (os.lstat(path).st_ino, owner(path), mode(path)) for path in (dest, *dest.rglob("*"))}
    with pytest.raises(Exception, match="as it was before"):
        run(DELTA, dest, step=refuse)
    assert {
        path: (os.lstat(path).st_ino, owner(path), mode(path)) for path in (dest, *dest.rglob("*"))
    } == before
    assert os.getxattr(dest / "edited", "user.note") == b"mine" and acls.named(dest / "edited") == {1234: 6}


@pytest.mark.needs("root")
def test_a_kept_first_name_leaves_the_second_its_own_owner(tmp_path: Path) -> None:
    """The bytes of a file that stays are staged for its other names: those belong to their own folder."""
    dest = tmp_path / "d"
    (dest / ".git").mkdir(parents=True)
    for path in (dest, dest / ".git"):
        os.chown(path, *PERSON)
    delta = made_by_digests(
        directory(b".git"), file(b".git/a", b"a", 0o600), hard_link(b"b", b".git/a", 0o600)
    )
    run(delta, dest, rules=ExportRules("auto", "fail", False))
    assert (owner(dest / "b"), mode(dest / "b")) == (PERSON, 0o600) and os.listdir(dest / ".git") == []
