"""The two forms in which overlayfs keeps its marks: `trusted.*` for root, `user.*` inside a user namespace. A store has one of them for life."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """One xattr namespace and the mount options that go with it."""

    name: str
    """`trusted` or `user`, as it stands in workspace.json."""
    namespace: str
    """What every mark of overlayfs begins with, `trusted.overlay.`."""
    options: tuple[str, ...]
    """Mount options: `key=value` or a flag."""

    @property
    def opaque(self) -> str:
        """On a directory: nothing below it shows through."""
        return self.namespace + "opaque"

    @property
    def redirect(self) -> str:
        """On a directory that was renamed: where its content is looked for in the lower layers."""
        return self.namespace + "redirect"

    @property
    def metacopy(self) -> str:
        """On a file whose content is still in a lower layer; no mount of ours makes one."""
        return self.namespace + "metacopy"

    @property
    def whiteout(self) -> str:
        """On an empty regular file: the form of a whiteout that needs no device."""
        return self.namespace + "whiteout"

    @property
    def escaped(self) -> str:
        """What a user's own xattr of our namespace is stored under: overlayfs.rst, "Nesting overlayfs mounts"."""
        return self.namespace + "overlay."

    def shown(self, stored: str) -> str | None:
        """The name under which a user of the merged tree sees an xattr of a layer; None: a mark of overlayfs, which is not shown."""
        if not stored.startswith(self.namespace):
            return stored
        return self.namespace + stored[len(self.escaped) :] if stored.startswith(self.escaped) else None

    def stored(self, shown: str) -> str:
        """The name of an xattr in a layer that a user of the merged tree sees as `shown`."""
        return self.escaped + shown[len(self.namespace) :] if shown.startswith(self.namespace) else shown


TRUSTED = Form("trusted", "trusted.overlay.", ("redirect_dir=on", "index=off", "metacopy=off"))
USER = Form("user", "user.overlay.", ("userxattr",))
FORMS = {form.name: form for form in (TRUSTED, USER)}
