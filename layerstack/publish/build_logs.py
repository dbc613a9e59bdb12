"""Build logs that overrule the times of files: ninja's log records when an output was made, and for a rule
with `restat` ninja uses that time alone.

If a session has not seen inputs that the head has, its log would declare outputs up to date that were made
without these inputs. The log of the session is therefore not published: the head keeps its own log, or none,
and ninja makes again what this session made, as the times of the outputs would cause too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerstack.core.layer_times import times_of
from layerstack.model.conflict import Notice
from layerstack.publish.edits import Drop
from layerstack.publish.resolve import MergePlan
from layerstack.tree.state import FILE

if TYPE_CHECKING:
    from layerstack.core.stack import Stack
    from layerstack.layers.index import Index
    from layerstack.model.manifest import Manifest
    from layerstack.text.gitignore import Ignored

NAMES = frozenset({".ninja_log"})


def leave_out(
    stack: Stack, planned: MergePlan, index: Index, ignored: Ignored, version: int, head: Manifest
) -> MergePlan:
    """Remove the build logs from the plan of work on `version` if the head has inputs that the work did not
    see. Cost: O(paths of the work).
    """
    found = [path for path in _logs(index) if index[path].kind == FILE and ignored(path, False)]
    if not found or planned.conflicts:
        return planned
    newer = [times_of(stack, layer) for layer in stack.layers.of(head) if layer.version > version]
    if not any(one.removes or one.oldest_input is not None for one in newer):
        return planned
    edits = [edit for edit in planned.edits if edit.path not in found]
    notices = [notice for notice in planned.notices if notice.path not in found]
    return planned._replace(
        edits=(*edits, *(Drop(path) for path in found)),
        notices=(*notices, *(Notice("derived", path, number=1) for path in found)),
    )


def _logs(index: Index) -> Iterable[str]:
    return [path for path in index if path.rpartition("/")[2] in NAMES]
