"""A person's directory after an export by a gateway that may be root: whose it was, with the attributes it
had, by the name that it was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tests import acls
from tests.end_to_end.manager_fixture import Host
from tests.end_to_end.manager_place import Place
from tests.end_to_end.manager_place import place as place
from tests.end_to_end.repository_exports import play as play

pytestmark = [pytest.mark.needs("overlay")]
PERSON = (1001, 1002) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def test_the_persons_directory_stays_theirs(
    place: Place, play: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    """N14 and N11: owners, groups, a team's folder, attributes, and a workspace that is named by a symlink,
    from the copy to the export.
    """
    workspace, link = Path(place.workspace), f"{place.root}/link"
    in_docker = "docker" in request.node.name
    image = request.getfixturevalue("image")("debian") if in_docker else "host"
    (workspace / "team").mkdir()
    os.symlink(workspace, link)
    for path in (workspace, workspace / "a.txt", workspace / "team"):
        os.chown(path, *PERSON)
    os.chmod(workspace / "team", 0o2775)
    os.setxattr(workspace / "a.txt", "user.note", b"mine")
    os.setxattr(workspace / "team", acls.DEFAULT, acls.for_user(1234, 7))

    async def scenario(host: Host, sandbox: str) -> None:
        other = await host.do("create_sandbox", image=image, workspace_root=link)
        base = (await host.do("inspect_sandbox", sandbox_id=other["id"]))["shared_base"]
        where = Path(f"{place.root}/bases/{base['root_hash']}/base/B000001-base")
        places = [where]
        if in_docker:
            client = docker.from_env()
            root = client.info()["DockerRootDir"]
            client.close()
            places.append(Path(f"{root}/volumes/eos-shared-base-{base['root_hash']}/_data/B000001-base"))
        for copy in places:
            assert os.getxattr(copy / "a.txt", "user.note") == b"mine"
            if os.geteuid() == 0:
                assert acls.named(copy / "team", acls.DEFAULT) == {1234: 7}
        await host.run(
            other["id"], "echo agent >> a.txt; mkdir team/deep; echo new > team/deep/f; echo new > new"
        )
        done = await host.do("export_changes", sandbox_id=other["id"], dest=link)
        await host.do("destroy_sandbox", sandbox_id=other["id"])
        assert "not_kept" not in done and os.path.islink(link)
        for name in ("a.txt", "team", "team/deep", "team/deep/f", "new"):
            found = os.lstat(workspace / name)
            assert (found.st_uid, found.st_gid) == PERSON, name
        assert (
            os.getxattr(workspace / "a.txt", "user.note") == b"mine"
            and (workspace / "a.txt").read_text() == "one\nagent\n"
        )
        assert os.lstat(workspace / "team/deep").st_mode & 0o2000 and acls.named(
            workspace / "team/deep", acls.DEFAULT
        ) == {1234: 7}

    play(scenario)
