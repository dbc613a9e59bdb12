"""The table of mutants stays true: each still has its place in the sources, and a run notices what is wrong
and nothing else.
"""

from __future__ import annotations

import ast
import os

import pytest

from tests.mutants import table
from tests.mutants.runner import ROOT, NoVerdict, copied
from tests.mutants.table import MUTANTS, Mutant

CHEAP = "tests/layerstack/test_whiteout_forms.py"


def source(name: str) -> str:
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_has_its_place_and_tests_that_are_there(mutant: Mutant) -> None:
    ast.parse(mutant.applied(source(mutant.file)))
    for test in mutant.noticed_by:
        name, _, function = test.partition("::")
        tree = ast.parse(source(name))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not function or function.partition("[")[0] in defined, f"{test} is gone"


def test_no_two_mutants_have_one_name_and_all_are_in_the_documentation() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert table.page() in source("docs/testing.md"), "python -m tests.mutants --table"


@pytest.mark.needs("overlay", "root")
def test_a_run_tells_a_mutant_that_is_noticed_from_one_that_changes_nothing() -> None:
    """With the tests of whiteouts, which take a moment."""
    wrong = Mutant(
        "w",
        "layerstack/kernel/whiteout.py",
        'return get_overlay_xattr(path, xattr_namespace.opaque) == b"x"',
        "return False",
        "none is found",
        (CHEAP,),
    )
    equal = Mutant(
        "e",
        "layerstack/kernel/whiteout.py",
        'return get_overlay_xattr(path, xattr_namespace.opaque) == b"x"',
        'return b"x" == get_overlay_xattr(path, xattr_namespace.opaque)',
        "",
        (CHEAP,),
    )
    broken = Mutant(
        "b", "layerstack/kernel/whiteout.py", "import errno", "import no_such_module", "", (CHEAP,)
    )
    with copied() as copy:
        assert [copy.run(mutant).noticed for mutant in (wrong, equal)] == [True, False]
        with pytest.raises(NoVerdict):
            copy.run(broken)
    assert not os.path.exists(copy.folder)


@pytest.mark.soak
@pytest.mark.needs("overlay", "root")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_noticed(mutant: Mutant) -> None:
    with copied() as copy:
        outcome = copy.run(mutant)
    assert outcome.noticed, f"{mutant.file}: {mutant.what}\n{outcome.output}"
