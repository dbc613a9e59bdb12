"""Whatever the umask and whatever an older version left open: cache, bundles, records and state are this
user's alone, or refused.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from agent_image import build
from eos_agent.machine import private_dirs
from eos_agent.wire.protocol import OperationError
from eos_mcp.config import paths, token_file
from eos_mcp.manager import prune
from eos_mcp.workspace import base
from tests import one_bundle
from tests.in_namespace import ORDINARY_UID

AS_ROOT = pytest.mark.needs("uid")


@pytest.fixture(params=[0o000, 0o077], ids=["umask 000", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Generator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def open_below(folder: str, but: str = "\0") -> list[str]:
    """What group or others may use, directories first; nothing is looked for below a directory called
    `but`.
    """
    found: list[str] = []
    for at, folders, files in os.walk(folder):
        found += [f"{mode(at):o} {at}"] if mode(at) & 0o077 else []
        found += [
            f"{mode(path):o} {path}"
            for path in (os.path.join(at, name) for name in files)
            if mode(path) & 0o077
        ]
        folders[:] = [name for name in folders if name != but]
    return found


@pytest.fixture(autouse=True)
def _settled(short_dir: str) -> Generator[None]:
    """Bases become durable in threads that write into them."""
    yield
    wait_until_durable()


def wait_until_durable() -> None:
    for thread in threading.enumerate():
        if thread.name == "base-durable":
            thread.join(60)


def workspace(short_dir: str) -> str:
    path = os.path.join(short_dir, "w")
    os.mkdir(path)
    Path(path, "open.txt").write_text("x")
    os.chmod(f"{path}/open.txt", 0o666)
    os.chmod(path, 0o755)
    return path


def test_a_base_cache_is_closed_whatever_the_umask_and_the_files_of_the_base_keep_their_modes(
    short_dir: str, umask: int
) -> None:
    cache = os.path.join(short_dir, "cache", "eos", "bases")
    tree = base.prepare(workspace(short_dir), cache)
    prune.note_user(cache, tree.root_hash, "/registry.json")
    assert mode(f"{tree.source}/open.txt") == 0o666 and mode(tree.source) == 0o755
    assert open_below(f"{short_dir}/cache", base.BASE_LAYER) == []


def test_an_open_base_cache_of_an_older_version_is_closed_at_first_use_and_its_content_is_checked(
    short_dir: str,
) -> None:
    cache = os.path.join(short_dir, "bases")
    where = workspace(short_dir)
    tree = base.prepare(where, cache)
    wait_until_durable()
    os.chmod(cache, 0o777)
    os.chmod(os.path.dirname(tree.path), 0o755)
    os.chmod(f"{tree.source}/open.txt", 0o666)
    with open(f"{tree.source}/open.txt", "w") as file:  # what any user of the machine could have done
        file.write("other")
    again = base.prepare(where, cache)
    assert Path(again.source, "open.txt").read_text() == "x"
    assert [path for path in open_below(cache, base.BASE_LAYER) if ".torn-" not in path] == []


def test_a_base_cache_that_could_only_be_read_is_closed_and_its_bases_are_used_again(short_dir: str) -> None:
    cache = os.path.join(short_dir, "bases")
    where = workspace(short_dir)
    tree = base.prepare(where, cache)
    wait_until_durable()
    os.chmod(cache, 0o755)
    os.chmod(os.path.dirname(tree.path), 0o755)
    assert base.prepare(where, cache) == tree._replace(reused=True)
    assert open_below(cache, base.BASE_LAYER) == []


@AS_ROOT
def test_a_base_cache_of_another_user_is_refused_and_stays_as_it_is(short_dir: str) -> None:
    cache = os.path.join(short_dir, "bases")
    os.mkdir(cache, 0o755)
    os.chown(cache, ORDINARY_UID, ORDINARY_UID)
    with pytest.raises(OperationError) as refused:
        base.prepare(workspace(short_dir), cache)
    assert refused.value.details["reason"] == "not_private"
    assert f"belongs to uid {ORDINARY_UID}" in refused.value.message
    assert mode(cache) == 0o755 and os.listdir(cache) == []


@pytest.fixture(scope="module")
def bundle() -> build.Bundle:
    return one_bundle.made()


def records(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("key-")]


def a_cache(bundle: build.Bundle, short_dir: str) -> str:
    """A copy of a cache with one bundle."""
    folder = os.path.join(short_dir, "bundles")
    shutil.copytree(os.path.dirname(bundle.path), folder, symlinks=True)
    os.chmod(folder, 0o700)
    return folder


def assert_closed(folder: str, made: build.Bundle) -> None:
    """Check that bundle and record are this user's alone; the files go into containers as they are."""
    assert build.tree_hash(made.path) == made.sha
    assert build.build(folder) == made == build.known(folder)
    assert [path for path in open_below(folder, made.sha) if ".torn-" not in path] == []
    assert mode(made.path) == 0o755


def test_what_others_could_write_into_an_open_cache_of_bundles_is_never_run(
    bundle: build.Bundle, short_dir: str
) -> None:
    folder = a_cache(bundle, short_dir)
    daemon = os.path.join(folder, bundle.sha, "bin", "sandbox-daemon")
    Path(daemon).write_text("print('evil')\n")
    os.chmod(folder, 0o777)
    before = os.umask(0o077)
    try:
        made = build.build(folder)
    finally:
        os.umask(before)
    assert "evil" not in Path(made.path, "bin", "sandbox-daemon").read_text()
    assert mode(folder) == 0o700
    assert_closed(folder, made)


def test_a_record_that_others_could_write_is_not_believed(bundle: build.Bundle, short_dir: str) -> None:
    folder = a_cache(bundle, short_dir)
    (record,) = records(folder)
    assert build.known(folder) is not None
    os.chmod(record, 0o666)
    assert build.known(folder) is None
    os.chmod(record, 0o600)
    assert build.known(folder) is not None


@AS_ROOT
def test_a_bundle_of_another_user_is_never_run(bundle: build.Bundle, short_dir: str) -> None:
    """Whether the tree, the record or the directory is theirs; the one bundle that is built for it, without a
    umask, replaces tree and record.
    """
    folder = a_cache(bundle, short_dir)
    (record,) = records(folder)
    for theirs in (folder, f"{folder}/{bundle.sha}", record):
        os.chown(theirs, ORDINARY_UID, ORDINARY_UID)
        assert build.known(folder) is None, theirs
        if theirs == folder:
            with pytest.raises(build.BuildError, match=f"belongs to uid {ORDINARY_UID}"):
                build.build(folder)
        if theirs != record:
            os.chown(theirs, 0, 0)
            assert build.known(folder) == build.Bundle(f"{folder}/{bundle.sha}", bundle.sha), theirs
    os.chown(f"{folder}/{bundle.sha}", ORDINARY_UID, ORDINARY_UID)
    os.chmod(record, 0o666)
    before = os.umask(0)
    try:
        made = build.build(folder)
    finally:
        os.umask(before)
    for ours in (made.path, record):
        assert os.stat(ours).st_uid == os.geteuid(), ours
    assert mode(record) == 0o600
    assert_closed(folder, made)


def test_a_bundle_below_a_directory_that_others_may_write_is_refused_and_the_advice_helps(
    bundle: build.Bundle, short_dir: str
) -> None:
    folder = a_cache(bundle, short_dir)
    os.chmod(short_dir, 0o777)
    assert build.known(folder) is None
    with pytest.raises(
        build.BuildError,
        match=f"{short_dir} can be written by other users .mode 0777.*chmod go-w {short_dir}",
    ):
        build.build(folder)
    os.chmod(short_dir, 0o755)
    assert build.build(folder).sha == bundle.sha


@AS_ROOT
def test_a_symbolic_link_of_another_user_on_the_way_is_refused(bundle: build.Bundle, short_dir: str) -> None:
    folder = a_cache(bundle, short_dir)
    os.symlink(short_dir, f"{short_dir}/own")
    assert private_dirs.untrusted(f"{short_dir}/own/bundles") is None
    os.symlink("own", f"{short_dir}/theirs")
    os.chown(f"{short_dir}/theirs", ORDINARY_UID, ORDINARY_UID, follow_symlinks=False)
    problem = private_dirs.untrusted(f"{short_dir}/theirs/bundles")
    assert problem is not None and problem.filename == f"{short_dir}/theirs"
    with pytest.raises(build.BuildError):
        build.build(f"{short_dir}/theirs/bundles")
    assert build.known(folder) is not None


def test_a_state_directory_that_holds_other_things_or_is_shared_is_refused_and_not_closed(
    short_dir: str,
) -> None:
    for path, more in ((f"{short_dir}/other", 0o755), (f"{short_dir}/shared", 0o1777)):
        os.mkdir(path)
        Path(path, "work.txt").touch()
        os.chmod(path, more)
        with pytest.raises(private_dirs.NotPrivate, match=r"not ours .work\.txt"):
            private_dirs.make(path)
        assert mode(path) == more
        private_dirs.make(f"{path}/eos")  # as the message says
        assert mode(f"{path}/eos") == 0o700 and mode(path) == more


@pytest.mark.parametrize("name", sorted(private_dirs.COMMON_NAMES))
def test_a_name_that_others_have_too_makes_no_shared_directory_ours(short_dir: str, name: str) -> None:
    """As /srv/nfs with `exports`, or a site with `index`: nobody else could enter it any more."""
    path = f"{short_dir}/shared"
    os.makedirs(f"{path}/{name}")
    Path(path, "site.html").touch()
    os.chmod(path, 0o755)
    with pytest.raises(private_dirs.NotPrivate, match=rf"has files that are not ours.*chmod 700 {path}"):
        private_dirs.make(path)
    assert mode(path) == 0o755
    os.unlink(f"{path}/site.html")
    assert private_dirs.make(path) == 0o055 and mode(path) == 0o700


def test_the_advice_to_close_a_directory_is_enough(short_dir: str) -> None:
    path = f"{short_dir}/state"
    os.mkdir(path)
    Path(path, "eos.yml").touch()
    os.chmod(path, 0o755)
    with pytest.raises(private_dirs.NotPrivate):
        private_dirs.make(path)
    os.chmod(path, 0o700)
    assert private_dirs.make(path) == 0


def test_a_state_directory_of_an_older_version_is_closed(short_dir: str, umask: int) -> None:
    path = f"{short_dir}/a/b/state"
    assert private_dirs.make(path) == 0
    Path(path, "registry.json").touch()
    os.chmod(path, 0o755)
    assert private_dirs.make(path) == 0o055
    assert [mode(one) for one in (path, f"{short_dir}/a/b", f"{short_dir}/a")] == [0o700] * 3


@pytest.mark.parametrize("variable", ["EOS_STATE_DIR", None])
def test_the_folder_of_token_and_socket_is_closed(
    short_dir: str, umask: int, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.setenv("HOME", short_dir)
    monkeypatch.delenv("EOS_STATE_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, f"{short_dir}/s")
    folder = os.path.dirname(paths.token_file())
    os.makedirs(folder)
    Path(folder, "gateway.lock").touch()
    os.chmod(folder, 0o755)
    token_file.ensure()
    assert mode(folder) == 0o700 and mode(paths.token_file()) == 0o600


@AS_ROOT
def test_a_token_that_another_user_wrote_is_refused(short_dir: str) -> None:
    path = f"{short_dir}/gateway.token"
    token_file.ensure(path)
    os.chown(path, ORDINARY_UID, ORDINARY_UID)
    with pytest.raises(OperationError, match=f"belongs to uid {ORDINARY_UID}"):
        token_file.read(path)
