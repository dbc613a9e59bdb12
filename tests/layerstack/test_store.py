"""The store on disk: create, open, lock, damage, full disk, a base of its own mount, reading without a mount,
writing without a session.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from layerstack.errors import Invalid, NotAFile, NotFound, StoreBusy, StoreCorrupt, Unsupported
from layerstack.fsck.check import check
from layerstack.kernel import syscalls
from layerstack.kernel.xattrs import TRUSTED, USER, XATTR_NAMESPACES
from layerstack.store import Store
from tests import in_namespace
from tests.layerstack.store_fixture import Stack, get, on_a_stack, put

BASE: dict[str, str | bytes | None] = {"f": "base\n", "d/g": "g\n", "l": "-> d", "e": None}


# ---- create and open


@on_a_stack({**BASE})
def test_the_names_on_disk_are_those_that_are_documented(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"))
    done = a.publish()
    assert sorted(os.listdir(stack.root)) == sorted(
        [
            ".layer-metadata",
            ".storage-writer.lock",
            "base",
            "drafts",
            "layers",
            "manifest.json",
            "manifests",
            "sessions",
            "staging",
            "workspace.json",
        ]
    )
    assert sorted(os.listdir(f"{stack.root}/.layer-metadata")) == [
        f"{done.layer_id}.{suffix}" for suffix in ("digest", "index", "json")
    ]
    with open(f"{stack.root}/.layer-metadata/{done.layer_id}.json") as file:
        about = json.load(file)
    assert (about["owner"], about["request_id"], about["base_version"], about["agent"]) == (
        "s0",
        "request",
        1,
        None,
    )
    assert done.layer_id is not None and about["digest"].startswith(done.layer_id.rpartition("-")[2])
    with open(f"{stack.root}/manifest.json") as file:
        assert json.load(file)["version"] == 2
    with open(f"{stack.root}/workspace.json") as file:
        assert json.load(file)["form"] == stack.xattr_namespace.name


@on_a_stack({**BASE})
def test_create_again_is_nothing_and_create_over_another_store_is_refused(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"))
    a.publish()
    stack.create()
    assert stack.store.head.version == 2 and "x" in stack.shows()
    other = USER if stack.xattr_namespace == TRUSTED else TRUSTED
    with pytest.raises(Invalid) as caught:
        Store.create(stack.root, workspace_root="/elsewhere", base_root_hash="0" * 64, xattr_namespace=other)
    assert (
        caught.value.reason == "store_exists"
        and "form" in str(caught.value)
        and "workspace_root" in str(caught.value)
    )


@on_a_stack({**BASE})
def test_a_store_is_reached_by_a_symlink_or_from_the_working_directory_and_stays_where_it_is(
    stack: Stack,
) -> None:
    stack.store.close()
    new = f"{stack.folder}/new"
    os.makedirs(f"{new}/base/B000001-base")
    os.chdir(stack.folder)
    os.symlink(stack.root, "link")
    os.symlink(new, "link-to-new")
    Store.create(
        "link-to-new",
        workspace_root="/workspace",
        base_root_hash="0" * 64,
        xattr_namespace=stack.xattr_namespace,
    )
    for root, place in (("link", stack.root), ("link-to-new/", new), ("./new/.", new)):
        os.chdir(stack.folder)
        stack.store = Store.open(root)
        os.chdir("/")
        stack.store.pin_version(1)
        session = stack.session()
        put(session.at("x"), root)
        assert not session.publish().no_op and stack.store.root == place
        stack.store.close()
        os.chdir(stack.folder)
        assert list(check(root)) == []
    os.chdir("/")
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE})
def test_a_base_that_is_a_symlink_is_the_tree_behind_it_and_a_layer_that_is_one_is_damaged(
    stack: Stack,
) -> None:
    stack.store.close()
    os.chmod(stack.base, 0o751)
    os.rename(stack.base, f"{stack.folder}/elsewhere")
    os.symlink(f"{stack.folder}/elsewhere", stack.base)
    stack.store = Store.open(stack.root)
    before = stack.tree()
    assert before[""].meta[0] == 0o751
    assert stack.session().publish().no_op
    session = stack.session()
    put(session.at("x"))
    layer = f"{stack.root}/layers/{session.publish().layer_id}"
    assert stack.mode("") == 0o751 and stack.mode("x") == 0o644
    stack.store.rollback(1, owner="o", request_id="r")
    assert stack.tree() == before
    stack.store.close()
    os.rename(layer, f"{stack.folder}/layer")
    os.symlink(f"{stack.folder}/layer", layer)
    with pytest.raises(StoreCorrupt) as caught:
        Store.open(stack.root)
    assert caught.value.details["file"] == layer and layer.removeprefix(f"{stack.root}/") in {
        one.file for one in check(stack.root)
    }
    os.unlink(layer)
    os.rename(f"{stack.folder}/layer", layer)
    stack.store = Store.open(stack.root)


@on_a_stack({**BASE})
def test_a_second_process_is_refused_until_the_first_closes(stack: Stack) -> None:
    with pytest.raises(StoreBusy):
        Store.open(stack.root)
    code = (
        f"from layerstack.store import Store\nfrom layerstack.errors import StoreBusy\ntry: "
        f"Store.open({stack.root!r})\nexcept StoreBusy: print('busy')"
    )
    run = [sys.executable, "-c", code]
    assert (
        stack.xattr_namespace.name == "user"
        or subprocess.run(run, capture_output=True, text=True, check=True).stdout == "busy\n"
    )
    stack.store.close()
    stack.store.close()
    stack.store = Store.open(stack.root)


@pytest.mark.needs("root", "overlay", "uid")
def test_a_store_of_the_other_form_is_refused_by_name(short_dir: str) -> None:
    Stack("trusted", {"f": "f\n"}, folder=short_dir).close()
    for folder, _, files in os.walk(short_dir):
        for name in (folder, *(f"{folder}/{file}" for file in files)):
            os.chown(name, in_namespace.ORDINARY_UID, in_namespace.ORDINARY_UID)

    def attempt() -> str:
        try:
            Store.open(f"{short_dir}/store")
        except Unsupported as error:
            return error.reason
        return "opened"

    assert in_namespace.call("user", attempt) == "store_form"


def test_a_folder_that_holds_no_store_is_said_to_be_none(short_dir: str) -> None:
    with pytest.raises(StoreCorrupt) as caught:
        Store.open(short_dir)
    assert caught.value.details["file"] == f"{short_dir}/workspace.json" and os.listdir(short_dir) == []


@on_a_stack({**BASE})
def test_any_damaged_or_missing_file_that_the_head_needs_is_named_and_nothing_is_changed(
    stack: Stack,
) -> None:
    """The others: tests/layerstack/test_damaged_files.py."""
    a = stack.session()
    put(a.at("x"))
    done = a.publish()
    stack.store.close()
    files = [
        "manifest.json",
        "workspace.json",
        f".layer-metadata/{done.layer_id}.json",
        f".layer-metadata/{done.layer_id}.index",
        f".layer-metadata/{done.layer_id}.digest",
    ]
    for name in files:
        path = f"{stack.root}/{name}"
        with open(path, "rb") as file:
            whole = file.read()
        middle = len(whole) // 2
        for broken in (
            whole[:middle],
            whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            b"",
        ):
            with open(path, "wb") as file:
                file.write(broken)
            with pytest.raises(StoreCorrupt) as caught:
                Store.open(stack.root)
            assert caught.value.details["file"] == path, name
        with open(path, "wb") as file:
            file.write(whole)
    for name in ["manifest.json", f"layers/{done.layer_id}", *files[2:], "base/B000001-base"]:
        os.rename(f"{stack.root}/{name}", f"{stack.folder}/away")
        with pytest.raises(StoreCorrupt) as caught:
            Store.open(stack.root)
        assert caught.value.details["file"] == f"{stack.root}/{name}"
        os.rename(f"{stack.folder}/away", f"{stack.root}/{name}")
    stack.store = Store.open(stack.root)
    assert stack.shows()["x"] == "x\n"


@on_a_stack({**BASE})
def test_what_a_crash_left_is_swept_at_open_and_published_versions_stay_openable(stack: Stack) -> None:
    for name in ("x", "y"):
        a = stack.session()
        put(a.at(name))
        a.publish()
    stack.store.close()
    put(f"{stack.root}/staging/rewrite-1/f")
    put(f"{stack.root}/layers/L000004-00000000/f")
    put(f"{stack.root}/.layer-metadata/L000004-00000000.index")
    put(f"{stack.root}/manifests/4.json", "{")
    put(f"{stack.root}/.manifest.json.tmp")
    os.mkdir(f"{stack.root}/drafts/draft-00000000000000aa")
    stack.store = Store.open(stack.root)
    assert (
        os.listdir(f"{stack.root}/staging") == os.listdir(f"{stack.root}/drafts") == []
        and len(stack.layer_dirs()) == 2
    )
    assert (
        sorted(os.listdir(f"{stack.root}/manifests")) == ["1.json", "2.json", "3.json"]
        and len(os.listdir(f"{stack.root}/.layer-metadata")) == 6
    )
    assert not os.path.exists(f"{stack.root}/.manifest.json.tmp")
    assert [("x" in stack.shows(v), "y" in stack.shows(v)) for v in (1, 2, 3)] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    stack.store.gc()
    assert len(stack.layer_dirs()) == 2


@on_a_stack({**BASE}, namespaces=("trusted",))
def test_a_base_on_a_read_only_mount_of_its_own_is_copied_never_linked(stack: Stack) -> None:
    stack.store.close()
    outside = f"{stack.folder}/cache"
    shutil.copytree(f"{stack.root}/base", outside, symlinks=True)
    os.setxattr(f"{outside}/B000001-base/d/g", "user.a", b"1")
    os.truncate(f"{outside}/B000001-base/d/g", 1 << 20)
    os.utime(f"{outside}/B000001-base/d/g", ns=(1, 1234567890123456789))
    syscalls.mount(outside, f"{stack.root}/base", None, syscalls.MS_BIND)
    syscalls.mount(
        "none", f"{stack.root}/base", None, syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    )
    stack.create()
    stack.store = Store.open(stack.root)
    a = stack.session()
    os.rename(a.at("d"), a.at("moved"))
    a.publish()
    with stack.mounted() as view:
        status = os.stat(f"{view}/moved/g")
        assert status.st_mtime_ns == 1234567890123456789 and os.getxattr(f"{view}/moved/g", "user.a") == b"1"
        assert status.st_size == 1 << 20 and status.st_blocks * 512 < 1 << 19, "holes stay holes"
        assert not os.path.exists(f"{view}/d")
    stack.store.update_file("l2/x", lambda old: b"x", owner="o", request_id="r")


@on_a_stack({"f": "base\n"}, namespaces=("trusted",))
def test_a_full_disk_refuses_the_publish_keeps_head_and_work_and_lets_it_pass_later(stack: Stack) -> None:
    with stack.on_a_small_disk({"big": b"\0" * (2 << 20), "moved/big": b"\1" * (1 << 20)}, size_mib=6) as (
        inner,
        _,
    ):
        a = inner.session()
        os.rename(a.at("moved"), a.at("there"))  # must be copied at publish
        a.umount()
        put(f"{inner.folder}/ballast", b"x" * (2 << 20))
        with pytest.raises(OSError) as caught:
            a.publish()
        assert caught.value.errno == 28 and inner.store.head.version == 1 and inner.layer_dirs() == []
        with pytest.raises(OSError):
            a.mount()
        os.unlink(f"{inner.folder}/ballast")
        a.mount()
        assert os.path.getsize(a.at("there/big")) == 1 << 20 and not os.path.exists(a.at("moved"))
        a.publish()
        assert (
            set(inner.shows()) == {"big", "there", "there/big"} and os.listdir(f"{inner.root}/staging") == []
        )


# ---- reading without a mount


@on_a_stack({**BASE})
def test_any_path_of_a_version_is_read_listed_and_described_without_a_mount(stack: Stack) -> None:
    a = stack.session()
    put(a.at("d/new"), "new\n")
    os.chmod(a.at("d/new"), 0o750)
    os.unlink(a.at("f"))
    done = a.publish()
    head = stack.store.snapshot()
    assert (
        head.read_bytes("d/new") == b"new\n"
        and head.read_bytes("d/new", 2) == b"ne"
        and head.read_bytes("d/new", 0) == b""
    )
    entry = head.stat("d/new")
    assert entry is not None and (entry.kind, entry.mode, entry.size, entry.layer_id) == (
        "file",
        0o750,
        4,
        done.layer_id,
    )
    assert [(e.path, e.kind) for e in head.list("")] == [
        ("d", "directory"),
        ("e", "directory"),
        ("l", "symlink"),
    ]
    assert [e.path for e in head.list("d")] == ["d/g", "d/new"] and head.list("e") == []
    assert head.stat("f") is None and head.stat("d/new/x") is None and head.stat("nowhere/x") is None
    assert stack.store.snapshot(1).read_bytes("f") == b"base\n"
    root = head.stat("")
    assert root is not None and root.kind == "directory"


@on_a_stack({**BASE})
def test_links_are_never_followed_and_what_is_no_file_says_what_it_is(stack: Stack) -> None:
    head = stack.store.snapshot()
    for path, kind in (("l", "Symlink"), ("l/g", "Symlink"), ("d", "Directory"), ("", "Directory")):
        with pytest.raises(NotAFile) as caught:
            head.read_bytes(path)
        assert caught.value.details["kind"] == kind
    for path in ("f/x", "nowhere"):
        with pytest.raises(NotFound):
            head.read_bytes(path)
        with pytest.raises(NotFound):
            head.list(path)
    with pytest.raises(NotAFile):
        head.list("f")
    for path in ("/etc/passwd", "../x", "d/../f"):
        with pytest.raises(Invalid):
            head.stat(path)


@on_a_stack({"a/1": "x", "a/2": "x", "b": "b\n", "c/x": "c\n", "k": "k\n"})
def test_the_changed_paths_are_those_that_layers_decide_in_byte_order(stack: Stack) -> None:
    a = stack.session()
    os.unlink(a.at("b"))
    put(a.at("n/x"))
    put(a.at("c/y"))
    os.chmod(a.at("a"), 0o700)
    a.publish()
    b = stack.session()
    shutil.rmtree(b.at("n"))
    shutil.rmtree(b.at("c"))
    for i in range(12):
        put(b.at(f"c/{i:02}"))
    b.publish()
    got = [
        (path, None if entry is None else entry.kind, opaque)
        for path, entry, opaque in stack.store.snapshot().changed()
    ]
    assert got.pop(0) == ("", "directory", False), "a container of what changed"
    assert got[:2] == [("a", "directory", False), ("b", None, False)]
    assert got[2][:2] == ("c", "directory")
    assert [path for path, kind, _ in got[3:] if kind is not None] == [f"c/{i:02}" for i in range(12)]
    gone = [path for path, kind, _ in got if kind is None]
    assert gone == (["b"] if got[2][2] else ["b", "c/x"]), "deleted, and c/x unless c hides it"


@on_a_stack({"f": "0\n"})
def test_readers_see_one_version_or_the_next_while_publishes_go_on(stack: Stack) -> None:
    stop, failures, seen = threading.Event(), list[BaseException](), set[int]()

    def read() -> None:
        try:
            while not stop.is_set():
                head = stack.store.snapshot()
                number = head.version - 1
                assert head.read_bytes("f") == b"%d\n" % number
                assert len(head.list("")) == (2 if number else 1)
                seen.add(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(1, 60):
        upper = stack.store.open_upper(f"w{i}", origin="t")
        put(f"{upper.upperdir}/f", f"{i}\n")
        put(f"{upper.upperdir}/g", f"{i}\n")
        upper.publish(owner="o", request_id="r")
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == [] and len(seen) > 1


# ---- writing without a session


@on_a_stack({**BASE})
def test_a_write_without_a_session_keeps_mode_and_makes_parents(stack: Stack) -> None:
    store = stack.store
    a = stack.session()
    os.chmod(a.at("f"), 0o751)
    a.publish()
    asked: list[bytes | None] = []

    def change(old: bytes | None) -> bytes:
        asked.append(old)
        return b"new\n"

    done = store.update_file("f", change, owner="operation:1", request_id="r1", agent="me")
    assert asked == [b"base\n"] and done.source_count == 1 and done.manifest.version == 3
    assert store.snapshot().read_bytes("f") == b"new\n" and stack.mode("f") == 0o751
    assert store.update_file("f", lambda old: b"new\n", owner="o", request_id="r").no_op
    made = store.update_file("p/q/r", lambda old: b"made" if old is None else b"?", owner="o", request_id="r")
    assert made.source_count == 3 and stack.mode("p/q") == 0o755 and stack.mode("p/q/r") == 0o644
    for path, kind in (("d", "Directory"), ("l", "Symlink"), ("l/x", "Symlink"), ("f/x", "Other")):
        with pytest.raises(NotAFile) as caught:
            store.update_file(path, lambda old: b"", owner="o", request_id="r")
        assert caught.value.details["kind"] == kind, path

    def refuse(old: bytes | None) -> bytes:
        raise KeyError(old)

    with pytest.raises(KeyError):
        store.update_file("f", refuse, owner="o", request_id="r")
    assert store.head.version == 4 and os.listdir(f"{stack.root}/staging") == []


@on_a_stack({**BASE})
def test_a_write_without_a_session_leaves_the_times_of_directories_alone_that_got_no_new_name(
    stack: Stack,
) -> None:
    before = os.stat(f"{stack.base}/d").st_mtime_ns, os.stat(stack.base).st_mtime_ns
    stack.store.update_file("d/g", lambda old: b"new", owner="o", request_id="r")
    with stack.mounted() as view:
        assert (os.stat(f"{view}/d").st_mtime_ns, os.stat(view).st_mtime_ns) == before


@on_a_stack({"f": ""})
def test_writers_without_a_session_and_publishes_at_once_lose_nothing(stack: Stack) -> None:
    failures: list[BaseException] = []

    def append(name: str) -> None:
        try:
            for i in range(10):
                stack.store.update_file(
                    "f", lambda old, i=i: (old or b"") + f"{name}{i}\n".encode(), owner=name, request_id="r"
                )  # type: ignore[misc]
        except BaseException as error:
            failures.append(error)

    def publish() -> None:
        try:
            for i in range(10):
                upper = stack.store.open_upper(f"w{i}", origin="t")
                put(f"{upper.upperdir}/other{i}")
                upper.publish(owner="o", request_id="r")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(name,)) for name in "ab"] + [
        threading.Thread(target=publish)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(get(f"{stack.store.snapshot().stat('f').real_path}").split()) == sorted(
        f"{n}{i}" for n in "ab" for i in range(10)
    )  # type: ignore[union-attr]
    assert {f"other{i}" for i in range(10)} <= set(stack.shows())


# ---- figures


@on_a_stack({**BASE})
def test_the_figures_count_sessions_layers_and_bytes(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x"), "12345")
    done = a.publish()
    b, c = stack.session(), stack.session(version=1)
    stats = stack.store.layer_stats()
    assert (stats["version"], stats["root_hash"], stats["active_lease_count"]) == (
        2,
        stack.store.head.root_hash,
        2,
    )
    top, base = stats["layers"]
    assert (top["layer_id"], top["bytes"], top["leased_by_workspaces"], top["booked_by"]) == (
        done.layer_id,
        5,
        1,
        [],
    )
    assert (base["bytes"], base["leased_by_workspaces"], base["booked_by"]) == (None, 1, [done.layer_id])
    assert (stats["total_bytes"], stats["staging_entry_count"], stats["draft_count"], stats["pin_count"]) == (
        5,
        0,
        0,
        0,
    )
    with stack.store.lease() as snapshot:
        assert snapshot.version == 2 and stack.store.layer_stats()["active_lease_count"] == 3
    for session in (b, c):
        session.umount()
        session.upper.discard()
    assert stack.store.layer_stats()["active_lease_count"] == 0


@on_a_stack({**BASE})
def test_what_a_discard_throws_away_is_said_in_bytes(stack: Stack) -> None:
    a = stack.session()
    put(a.at("x/y"), "12345")
    put(a.at("f"), "123")
    a.umount()
    assert a.upper.size_bytes() == a.upper.discard() == 8
    assert (
        os.listdir(f"{stack.root}/sessions") == []
        and stack.store.drafts() == []
        and stack.store.head.version == 1
    )


@pytest.mark.parametrize(
    ("store", "workspace"), [("w/.eos", "w"), ("s", "s/w"), ("w", "w"), ("link/.eos", "w"), ("w/../w/x", "w")]
)
def test_a_store_inside_its_workspace_or_around_it_is_refused_and_nothing_is_made(
    short_dir: str, store: str, workspace: str
) -> None:
    os.mkdir(f"{short_dir}/w")
    os.symlink("w", f"{short_dir}/link")
    with pytest.raises(Invalid) as caught:
        Store.create(
            f"{short_dir}/{store}",
            workspace_root=f"{short_dir}/{workspace}",
            base_root_hash="0" * 64,
            xattr_namespace=XATTR_NAMESPACES["user"],
        )
    assert caught.value.reason == "store_in_workspace"
    assert os.listdir(f"{short_dir}/w") == [] and sorted(os.listdir(short_dir)) == ["link", "w"]
    Store.create(
        f"{short_dir}/w-store",
        workspace_root=f"{short_dir}/w",
        base_root_hash="0" * 64,
        xattr_namespace=XATTR_NAMESPACES["user"],
    )
