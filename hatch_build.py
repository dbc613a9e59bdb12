"""Hatch's hook for wheels: with `EOS_WHEEL=platform` add the native init of sessions (ADR 0042), else stay
pure."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {
    "x86_64": "manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64": "manylinux2014_aarch64.musllinux_1_1_aarch64",
}
"""Platform tags; the program is static, so it runs with every libc."""


class NativeInit(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `eos_agent/init/init.c` and adds the program to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("EOS_WHEEL") != "platform" or version == "editable":
            return
        sys.path.insert(0, self.root)
        from agent_image import native_init

        if platform.machine() not in MACHINES:
            raise RuntimeError(f"EOS_WHEEL=platform: no platform tag is known for {platform.machine()}")
        self._made = tempfile.TemporaryDirectory(prefix="eos-wheel-")
        target = os.path.join(self._made.name, native_init.NAME)
        if not native_init.make(
            os.path.join(self.root, "agent_image", "eos_agent", "init", native_init.SOURCE), target
        ):
            raise RuntimeError(
                f"EOS_WHEEL=platform needs a C compiler that links statically: "
                f"{', '.join(native_init.COMPILERS)}"
            )
        build_data["force_include"][target] = f"eos_agent/init/{native_init.NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{MACHINES[platform.machine()]}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_made"):
            self._made.cleanup()
