"""Places of a test's sandbox: values of the fixture `sandbox`."""

from __future__ import annotations

from typing import Any

import pytest

ROOT = pytest.param("root", id="local-as-root")
ORDINARY = pytest.param("ordinary", id="local-as-an-ordinary-user", marks=pytest.mark.needs("uid"))
ORDINARY_IN_A_SOAK = pytest.param(
    "ordinary", id="local-as-an-ordinary-user", marks=[pytest.mark.needs("uid"), pytest.mark.soak]
)
"""Where nothing of the rule depends on the user: tests/eos_agent has the same with agents of both."""
DOCKER = pytest.param("busybox", id="docker-busybox", marks=pytest.mark.needs("dockerd"))
DEBIAN = pytest.param("debian", id="docker-debian", marks=pytest.mark.needs("dockerd"))


def in_places(*places: Any) -> pytest.MarkDecorator:
    """The test is run once in each; what is no place of the machine itself is the name of an image."""
    return pytest.mark.parametrize("sandbox", places, indirect=True)
