"""Real build tools after a publication on a head that moved and after a rebase: what was made from replaced
text is made again.
"""

from __future__ import annotations

import os
import shutil

import pytest

from layerstack.core.layer_times import recorded
from layerstack.model.conflict import Notice
from tests import build_tools
from tests.layerstack.builds import SECOND, age, date, edit, mtime, run
from tests.layerstack.store_fixture import Base, Session, Stack, get, on_a_stack, put

C: Base = {
    "util.h": "#define VER 1\n",
    "util.c": '#include "util.h"\nint util(void) { return VER; }\n',
    "main.c": (
        '#include <stdio.h>\nint util(void);\nint main(void) { printf("util=%d\\n", util()); return 0; }\n'
    ),
    "Makefile": (
        "app: main.o util.o\n\tcc -o $@ $^\nmain.o: main.c\n\tcc -c $<\nutil.o: util.c util.h\n\tcc -c $<\n"
    ),
}
IGNORED: Base = {**C, ".gitignore": "*.o\napp\n"}
TEXT: Base = {
    "a": "a1\n",
    "b": "b1\n",
    "e/x": "x1\n",
    ".gitignore": "out*\n",
    "Makefile": "outab: outa b\n\tcat outa b >$@\nouta: a\n\tcat a >$@\nout.e: .env\n\tcat .env >$@\n",
}


def next_session(stack: Stack) -> Session:
    return stack.session()


def two_sides(
    stack: Stack,
    *build: str,
    theirs: tuple[str, str],
    ours: tuple[str, str],
    env: dict[str, str] | None = None,
) -> Session:
    """A changes a text; later B, who does not see that, changes another and builds. Both publish; then a
    third session.
    """
    a, b = stack.session(agent="a"), stack.session(agent="b")
    edit(a, *theirs, ago=20)
    edit(b, *ours, ago=10)
    run(b, *build, env=env)
    assert not a.publish().no_op
    assert not b.publish().no_op
    return stack.session()


@on_a_stack(IGNORED)
def test_make_builds_what_another_session_changed(stack: Stack) -> None:
    age(stack)
    c = two_sides(
        stack, "make", theirs=("util.h", "#define VER 2\n"), ours=("main.c", str(C["main.c"]) + "/* b */\n")
    )
    assert "cc -c util.c" in run(c, "make") and run(c, "./app") == "util=2\n"
    assert run(c, "make") == "make: 'app' is up to date.\n"


@on_a_stack(C)
def test_without_ignore_rules_the_publication_says_what_it_was_not_built_on(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "util.h", "#define VER 2\n", ago=20)
    run(b, "make")
    a.publish()
    wanted = (Notice("built_on", "", version=1, unseen=("util.h",)),)
    assert b.upper.preview().notices == wanted
    assert b.publish().notices == wanted and wanted[0].to_json() == {
        "kind": "built_on",
        "version": 1,
        "unseen": ["util.h"],
    }


@on_a_stack(IGNORED)
def test_make_builds_what_a_rebase_brought(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "util.h", "#define VER 2\n", ago=20)
    run(b, "make")
    a.publish()
    b.umount()
    assert b.upper.rebase().updated == 1
    b.mount()
    run(b, "make")
    assert run(b, "./app") == "util=2\n"
    edit(b, "main.c", str(C["main.c"]).replace("util=", "is="), ago=0)
    run(b, "make")
    assert not b.publish().no_op
    c = stack.session()
    run(c, "make")
    assert run(c, "./app") == "is=2\n"


@on_a_stack({**TEXT, "f": "a\n"})
def test_order_among_inputs_and_among_outputs_is_kept_and_equal_times_stay_equal(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "f", "b\n", ago=500)
    for path, ago in (
        ("i1", 30),
        ("i2", 20),
        ("i3", 20),
        ("out1", 600),
        ("out2", 300),
        ("out3", 200),
        ("out4", 200),
    ):
        edit(b, path, path, ago=ago)
    made = {path: mtime(b, path) for path in ("out1", "out2")}
    a.publish()
    b.publish()
    c = stack.session()
    bound = mtime(c, "f")
    assert (
        mtime(c, "out1")
        == made["out1"]
        < mtime(c, "out2")
        < mtime(c, "out3")
        == mtime(c, "out4")
        < bound
        < made["out2"]
    )
    assert mtime(c, "out4") // SECOND < bound // SECOND, "also for tools that know seconds only"
    assert mtime(c, "i1") < mtime(c, "i2") == mtime(c, "i3") and mtime(c, "i3") - mtime(c, "i1") == 1_000_000
    assert mtime(c, "i1") > bound + 400 * SECOND


@on_a_stack({"f": "a\n", ".gitignore": "*.o\n"}, namespaces=("trusted",))
def test_names_of_a_published_file_stay_one_file_with_an_inputs_time_in_a_moved_directory(
    stack: Stack,
) -> None:
    """The moved directory links the layer's file, whose time must not change: a copy takes its place."""
    age(stack)
    first = stack.session()
    edit(first, "d/m", "text\n", ago=10)
    for name in ("d/b.o", "d/z.o"):
        os.link(first.at("d/m"), first.at(name))
    first.publish()
    a, b, before = stack.session(), stack.session(), stack.session()
    edit(a, "f", "b\n", ago=20)
    os.rename(b.at("d"), b.at("e"))
    a.publish()
    b.publish()
    c = stack.session()
    assert os.stat(c.at("e/m")).st_nlink == 3
    assert len({os.stat(c.at(f"e/{name}")).st_ino for name in ("m", "b.o", "z.o")}) == 1
    assert mtime(before, "d/m") < mtime(c, "f") < mtime(c, "e/m")


@on_a_stack(TEXT)
def test_an_input_that_was_edited_built_and_restored_is_built_again_by_the_next(stack: Stack) -> None:
    """Pruned to the base's time it would be older than what was made of the edit."""
    age(stack)
    a = stack.session()
    edit(a, "a", "a2\n", ago=30)
    run(a, "make", "outab")
    edit(a, "a", "a1\n")
    date(a, "a", ago=-5)
    published = a.publish()
    assert (published.source_count, published.ignored_count) == (0, 2)
    assert published.layer_id is not None
    index = stack.store.layers.get(published.layer_id).index
    assert index is not None and index["a"].quiet and index["a"].kind == "f"
    b = stack.session()
    run(b, "make", "outab")
    assert get(b.at("outab")) == "a1\nb1\n"
    b.umount()
    stack.store.update_file("late", lambda _: b"x", owner="o", request_id="r")
    stack.store.squash()
    assert mtime(stack.session(), "a") == index_time(stack, published.layer_id, "a")


def index_time(stack: Stack, layer_id: str, path: str) -> int:
    """Of a file of the head, as the store reads it; the layer may be folded away."""
    state = stack.store.snapshot().chain.find(path)
    assert state is not None
    return state.times[1]


@on_a_stack(TEXT)
def test_a_touch_alone_is_no_version_and_takes_nobodys_change_back(stack: Stack) -> None:
    age(stack)
    a, b, c = stack.session(), stack.session(), stack.session()
    os.utime(a.at("a"))
    assert a.publish().no_op
    edit(b, "a", "a2\n", ago=30)
    run(b, "make", "outab")
    edit(b, "a", "a1\n")
    date(b, "a", ago=-5)
    edit(c, "a", "a3\n", ago=20)
    c.publish()
    assert b.upper.preview().conflicts == ()
    b.publish()
    d = stack.session()
    assert get(d.at("a")) == "a3\n"
    run(d, "make", "outab")
    assert get(d.at("outab")) == "a3\nb1\n"


@on_a_stack({**TEXT, "old": "a0\n"})
def test_an_input_that_comes_with_an_old_time_is_newer_than_what_was_made_before(stack: Stack) -> None:
    age(stack)
    a = stack.session()
    run(a, "make", "outab")
    a.publish()
    b = stack.session()
    os.rename(b.at("old"), b.at("a"))
    edit(b, "new", "n\n", ago=900)
    date(b, "b", ago=950)
    new = mtime(b, "new")
    b.publish()
    c = stack.session()
    run(c, "make", "outab")
    assert get(c.at("outab")) == "a0\nb1\n"
    assert mtime(c, "new") == new, "what was nowhere before keeps its time"


@on_a_stack(TEXT)
def test_an_old_time_beside_a_new_one_hides_neither_from_who_has_not_seen_them(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "b", "b2\n", ago=2000)
    edit(a, "a", "a2\n", ago=500)
    run(b, "make", "outab")
    date(b, "outa", ago=400)
    date(b, "outab", ago=300)
    a.publish()
    b.publish()
    c = stack.session()
    run(c, "make", "outab")
    assert get(c.at("outab")) == "a2\nb2\n"


@on_a_stack(TEXT)
def test_without_an_input_that_was_deleted_outputs_are_older_than_everything(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    os.unlink(a.at("b"))
    edit(a, "Makefile", str(TEXT["Makefile"]).replace("outa b\n\tcat outa b", "outa\n\tcat outa"), ago=900)
    run(b, "make", "outab")
    a.publish()
    b.publish()
    c = stack.session()
    assert mtime(c, "outab") < SECOND
    run(c, "make", "outab")
    assert get(c.at("outab")) == "a1\n"


@on_a_stack({**TEXT, ".gitignore": "out*\n.env\nhand\n", ".env": "1\n", "hand": "1\n"})
def test_ignored_files_that_were_written_by_hand_are_inputs(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, ".env", "2\n", ago=30)
    edit(a, "hand", "2\n", ago=30)
    a.upper.note_written("hand")
    edit(a, "outa", "x\n", ago=30)
    run(b, "make", "out.e")
    shutil.copyfile(b.at("hand"), b.at("outh"))
    edit(b, "b", "b2\n")
    a.publish()
    b.publish()
    c = stack.session()
    assert max(mtime(c, "out.e"), mtime(c, "outh")) < min(mtime(c, ".env"), mtime(c, "hand"))
    run(c, "make", "out.e")
    assert get(c.at("out.e")) == "2\n"
    metadata = stack.store.layers.get(stack.store.snapshot(2).manifest.layer_ids[0]).about
    assert metadata["written"] == ["hand"]


@on_a_stack(TEXT)
def test_a_directory_that_a_rule_touches_is_an_output_and_a_container_keeps_the_heads_time(
    stack: Stack,
) -> None:
    """`node_modules: package.json` and the like: the directory's own time says when."""
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "a", "a2\n", ago=20)
    put(a.at("e/new"))
    date(a, "e", ago=15)
    os.mkdir(b.at("outdir"))
    put(b.at("outdir/one"))
    put(b.at("e/x"), "x2\n")
    os.utime(b.at("outdir"))
    added = mtime(a, "e")
    a.publish()
    b.publish()
    c = stack.session()
    assert mtime(c, "outdir") < mtime(c, "a") and mtime(c, "e") == added


@on_a_stack(TEXT)
def test_what_could_not_be_published_has_the_times_that_it_had(stack: Stack) -> None:
    age(stack)
    a, b = stack.session(), stack.session()
    edit(a, "a", "a2\n", ago=20)
    edit(b, "b", "b2\n", ago=10)
    run(b, "make", "outab")
    wanted = {path: mtime(b, path) for path in ("b", "outa", "outab")}
    a.publish()

    def refuse(name: str) -> None:
        if name == "commit.rename_layer":
            raise OSError(28, "no room")

    stack.store.step = refuse
    with pytest.raises(OSError):
        b.publish()
    stack.store.step = stack.step
    b.mount()
    assert {path: mtime(b, path) for path in wanted} == wanted
    b.publish()
    c = stack.session()
    assert mtime(c, "outab") < mtime(c, "a") and mtime(c, "b") > wanted["outab"]


NINJA: Base = {
    "a": "a1\n",
    "b": "b1\n",
    ".gitignore": "out*\n.ninja*\n",
    "build.ninja": "rule cat\n  command = cat $in > $out\nrule keep\n  command = cmp -s $in $out || cp $in "
    "$out\n  restat = 1\n"
    "build outa: keep a\nbuild outab: cat outa b\n",
}


@on_a_stack(NINJA)
def test_ninja_builds_what_another_session_changed(stack: Stack) -> None:
    """Also where a rule has `restat`, for which ninja goes by its log."""
    age(stack)
    ninja = build_tools.program("ninja", "ninja-build")
    first = stack.session()
    run(first, ninja)
    first.publish()
    c = two_sides(stack, ninja, theirs=("a", "a2\n"), ours=("b", "b2\n"))
    run(c, ninja)
    assert get(c.at("outab")) == "a2\nb2\n"
    assert "no work to do" in run(c, ninja)


@on_a_stack(NINJA)
def test_ninja_builds_what_changed_before_the_first_build_was_published(stack: Stack) -> None:
    age(stack)
    ninja = build_tools.program("ninja", "ninja-build")
    c = two_sides(stack, ninja, theirs=("a", "a2\n"), ours=("b", "b2\n"))
    run(c, ninja)
    assert get(c.at("outab")) == "a2\nb2\n"


CARGO: Base = {
    ".gitignore": "target\n",
    "Cargo.toml": '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n',
    "Cargo.lock": 'version = 3\n\n[[package]]\nname = "app"\nversion = "0.1.0"\n',
    "src/main.rs": 'mod util;\nfn main() { println!("util={}", util::VER); }\n',
    "src/util.rs": "pub const VER: u32 = 1;\n",
}


@pytest.mark.needs("cargo")
@on_a_stack(CARGO, namespaces=("trusted",))
def test_cargo_builds_what_another_session_changed(stack: Stack) -> None:
    age(stack)
    folder = build_tools.cargo()
    env = {
        "PATH": folder + os.pathsep + os.environ["PATH"],
        "HOME": stack.folder,
        "CARGO_NET_OFFLINE": "true",
    }
    cargo = (f"{folder}/cargo", "run", "--quiet")
    ours = ("src/main.rs", str(CARGO["src/main.rs"]).replace("util=", "is="))
    c = two_sides(stack, *cargo, theirs=("src/util.rs", "pub const VER: u32 = 2;\n"), ours=ours, env=env)
    assert run(c, *cargo, env=env) == "is=2\n"


TSC: Base = {
    ".gitignore": "dist\n",
    "tsconfig.json": '{"files": [], "references": [{"path": "lib"}, {"path": "app"}]}\n',
    "lib/tsconfig.json": (
        '{"compilerOptions": {"composite": true, "outDir": "../dist/lib", "rootDir": ".", '
        '"module": "commonjs", "types": []}}\n'
    ),
    "app/tsconfig.json": '{"compilerOptions": {"composite": true, "outDir": "../dist/app", "rootDir": ".", '
    '"module": "commonjs", "types": []}, '
    '"references": [{"path": "../lib"}]}\n',
    "lib/util.ts": "export const ver = 1;\n",
    "app/main.ts": (
        'import { ver } from "../lib/util";\ndeclare const console: { log(text: string): void '
        '};\nconsole.log("util=" + ver);\n'
    ),
}


@pytest.mark.needs("typescript")
@on_a_stack(TSC, namespaces=("trusted",))
def test_tsc_builds_what_another_session_changed(stack: Stack) -> None:
    age(stack)
    node, script = build_tools.tsc()
    ours = ("app/main.ts", str(TSC["app/main.ts"]).replace("util=", "is="))
    c = two_sides(stack, node, script, "-b", theirs=("lib/util.ts", "export const ver = 2;\n"), ours=ours)
    run(c, node, script, "-b")
    with open(c.at("dist/app/main.js")) as app, open(c.at("dist/lib/util.js")) as lib:
        assert '"is="' in app.read() and "ver = 2" in lib.read()


PYTHON: Base = {
    ".gitignore": "__pycache__\n",
    "util.py": "VER = 1\n",
    "main.py": "import util\nprint(f'util={util.VER}')\n",
    "test_it.py": "import util\n\ndef test_it():\n    assert util.VER == 2\n",
}


@on_a_stack(PYTHON)
def test_python_compiles_what_another_session_changed(stack: Stack) -> None:
    """Byte code says the time and the size of its source; here the size is the same."""
    age(stack)
    c = two_sides(
        stack,
        "python3",
        "-c",
        "import util, main, test_it",
        theirs=("util.py", "VER = 2\n"),
        ours=("main.py", "import util\nprint(f'is={util.VER}')\n"),
    )
    assert run(c, "python3", "main.py") == "is=2\n"


@on_a_stack({"i.c": "1\n"}, namespaces=("trusted",))
def test_times_that_a_head_which_moved_last_asked_for_are_known_after_a_restart(stack: Stack) -> None:
    a, b = stack.session(), stack.session()
    put(a.at("i.c"), "2\n")
    put(b.at("j"), "j\n")
    waiting = [b]

    def step(name: str) -> None:
        if name == "publish.write.manifest" and waiting:
            waiting.pop().publish()

    stack.store.step = step
    a.publish()
    times = recorded(stack.store.layers.of(stack.store.head)[0])
    stack.reopen()
    assert times is not None and recorded(stack.store.layers.of(stack.store.head)[0]) == times
