"""The two xattr namespaces of overlayfs: `trusted.overlay.*` for root, `user.overlay.*` inside a user
namespace. A store uses one of them for life.
"""

from __future__ import annotations

from typing import NamedTuple


class XattrNamespace(NamedTuple):
    """One xattr namespace and the mount options that belong to it."""

    name: str
    """`trusted` or `user`, as in workspace.json."""
    prefix: str
    """The prefix of every xattr of overlayfs, `trusted.overlay.` or `user.overlay.`."""
    options: tuple[str, ...]
    """Mount options: `key=value` or a flag."""

    @property
    def opaque(self) -> str:
        """Set on a directory: no lower layer is visible below it."""
        return self.prefix + "opaque"

    @property
    def redirect(self) -> str:
        """Set on a directory that was renamed: where its content is in the lower layers."""
        return self.prefix + "redirect"

    @property
    def metacopy(self) -> str:
        """Set on a file whose content is still in a lower layer; our mounts never make one."""
        return self.prefix + "metacopy"

    @property
    def whiteout(self) -> str:
        """Set on an empty regular file: a whiteout that needs no device."""
        return self.prefix + "whiteout"

    @property
    def escaped(self) -> str:
        """Prefix under which a user's own xattr of this namespace is stored. Source: overlayfs.rst, "Nesting
        overlayfs mounts".
        """
        return self.prefix + "overlay."

    def shown(self, stored: str) -> str | None:
        """Give the name under which a user of the merged tree sees an xattr of a layer; None for overlayfs's
        own, which is hidden.
        """
        if not stored.startswith(self.prefix):
            return stored
        return self.prefix + stored[len(self.escaped) :] if stored.startswith(self.escaped) else None

    def stored(self, shown: str) -> str:
        """Give the name in a layer of an xattr that a user of the merged tree sees as `shown`."""
        return self.escaped + shown[len(self.prefix) :] if shown.startswith(self.prefix) else shown


TRUSTED = XattrNamespace("trusted", "trusted.overlay.", ("redirect_dir=on", "index=off", "metacopy=off"))
USER = XattrNamespace("user", "user.overlay.", ("userxattr",))
XATTR_NAMESPACES = {each.name: each for each in (TRUSTED, USER)}
