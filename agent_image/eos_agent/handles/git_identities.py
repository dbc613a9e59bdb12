"""The git identities of one sandbox's agents; their files are written once for each agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eos_agent.base import git_identity
from eos_agent.base.git_identity import GitIdentity

if TYPE_CHECKING:
    from eos_agent.base.settings import Settings
    from eos_agent.handles.zygote_handle import ZygoteHandle


class GitIdentities:
    """Identities by name of the agent."""

    def __init__(self, settings: Settings, zygote: ZygoteHandle) -> None:
        self._carried, self._zygote = settings.git_identity, zygote
        self._known: dict[str, GitIdentity] = {}
        self._adding = asyncio.Lock()  # the number of known agents names the files of the next one

    async def of(self, agent: str | None) -> GitIdentity:
        """Return the identity of an agent's commits. Its files exist; if they cannot be written, or
        `git_identity.AGENTS_MAX` agents have some, the identity has the address alone.
        """
        name = git_identity.name_of(self._carried, agent)
        if (known := self._known.get(name)) is not None:
            return known
        async with self._adding:
            if (known := self._known.get(name)) is not None:
                return known
            number = len(self._known)
            found = git_identity.identity_of(self._carried, name, str(number))
            if number >= git_identity.AGENTS_MAX or not await self._zygote.write_git_files(found.files):
                return found._replace(files={})
            self._known[name] = found
            return found
