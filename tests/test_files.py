"""Files: whole or not at all; folders: never one that holds something."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from statetrack.errors import UserError
from statetrack.files import (
    LOCK,
    PREFIX,
    check_new,
    free_folder,
    leftovers,
    new_folder,
    read_json,
    sole_writer,
    whole_folder,
    write_atomic,
    write_json,
)


def raiser(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the umask; put the old one back afterwards."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(
    ("data", "content"),
    [(b"\x00\xff\n", b"\x00\xff\n"), ("λ\n", b"\xce\xbb\n"), ("", b"")],
    ids=["bytes", "text", "empty"],
)
def test_write_atomic(tmp_path: Path, data: bytes | str, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"an older and longer content")
    write_atomic(file, data)
    assert file.read_bytes() == content
    assert names(tmp_path) == ["file"]


DISK_FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [DISK_FULL, KeyboardInterrupt()], ids=["disk full", "Ctrl-C"])
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("old", [None, b"old"], ids=["new file", "old file"])
def test_a_failed_write_leaves_no_trace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: bytes | None,
    call: str,
    error: BaseException,
) -> None:
    file = tmp_path / "file"
    if old is not None:
        file.write_bytes(old)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, raiser(error))
        with pytest.raises(type(error)) as raised:
            write_atomic(file, b"new")
    assert raised.value is error
    assert names(tmp_path) == ([] if old is None else ["file"])
    if old is not None:
        assert file.read_bytes() == old


def test_a_write_is_synced_before_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    events: list[Any] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle: int) -> None:
        events.append(("fsync", os.fstat(handle).st_size))
        fsync(handle)

    def spy_replace(source: str, target: Path) -> None:
        events.append(("replace", Path(source).parent, Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write_atomic(file, b"12345")
    assert events == [("fsync", 5), ("replace", tmp_path, file)]


def test_what_a_killed_process_leaves_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / ".hidden").write_bytes(b"mine")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raiser(DISK_FULL))
        patch.setattr(os, "unlink", lambda _: None)  # killed: nobody tidies up
        with pytest.raises(OSError, match="No space left"):
            write_atomic(tmp_path / "file", b"new")
    (left,) = leftovers(tmp_path)
    assert left.parent == tmp_path
    assert names(tmp_path) == sorted([".hidden", "file", left.name])
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o000, 0o666)], ids=oct
)
def test_umask(tmp_path: Path, umask: Callable[[int], int], mask: int, mode: int) -> None:
    umask(mask)
    write_atomic(tmp_path / "file", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert umask(mask) == mask  # unchanged


def test_write_json(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": {"λ": "\n"}}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value
    text = (tmp_path / "file.json").read_text()
    assert text.endswith("}\n")
    assert text.count("\n") > 5  # for people, not on one line
    assert list(json.loads(text)) == ["b", "a"]  # order kept


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_write_json_refuses_what_json_lacks(tmp_path: Path, value: float) -> None:
    file = tmp_path / "file.json"
    file.write_text("1")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(file, {"loss": [value]})
    assert names(tmp_path) == ["file.json"]
    assert file.read_text() == "1"


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1} x', b'"\xff"'], ids=ascii)
def test_read_json_names_a_broken_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*broken\.json: "):
        read_json(file)


def test_read_json_names_what_is_nested_too_deeply(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(UserError, match=r"cannot read .*deep.json: .* nested too deeply"):
        read_json(file)


def test_read_json_names_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json does not exist$"):
        read_json(tmp_path / "absent.json")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory$"):
        read_json(tmp_path)


def test_new_folder_makes_parents(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b"
    assert folder.is_dir()


def test_new_folder_takes_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert new_folder(tmp_path / "empty") == tmp_path / "empty"


def test_new_folder_takes_one_with_leftovers_only(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}abc").touch()
    assert new_folder(tmp_path) == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="exists and is not empty"):
        new_folder(tmp_path)


@pytest.mark.parametrize("name", ["file", ".hidden"])
def test_new_folder_refuses_one_that_holds_something(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(UserError, match="full exists and is not empty"):
        new_folder(folder)
    assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("content", ["", "mine"], ids=["empty", "full"])
def test_new_folder_refuses_a_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(UserError, match="file exists"):
        new_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == content


def test_free_folder_counts_up(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "run") == tmp_path / "run-1"
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-2").write_text("a file takes a number too")
    (tmp_path / "run-4").mkdir()
    (tmp_path / "other-3").mkdir()
    assert free_folder(tmp_path, "run") == tmp_path / "run-3"
    assert names(tmp_path) == ["other-3", "run-1", "run-2", "run-4"]  # made by whoever asked


def test_free_folder_in_a_parent_that_is_not_there(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "runs", "demo") == tmp_path / "runs" / "demo-1"


# -- one writer -----------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from statetrack.files import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_the_second_writer_is_told_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=-1) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        host = re.escape(socket.gethostname())
        told = rf"process {first.pid} on {host} \(since 20..-..-.. ..:..:..\) is writing to .*b; "
        with pytest.raises(UserError, match=told), sole_writer(folder):
            pass
        assert names(folder) == [LOCK]
        check_new(folder)  # it holds nothing but the lock
        moved = folder.rename(tmp_path / "moved")
        with pytest.raises(UserError, match=str(first.pid)), sole_writer(moved):
            pass
        first.kill()
    with sole_writer(moved):  # the lock has died with its process
        assert names(moved) == [LOCK]
        assert leftovers(moved) == []
    assert names(moved) == []


@pytest.mark.parametrize("before", ["", "killed"])
def test_a_writer_that_has_not_named_itself_yet(before: str, tmp_path: Path) -> None:
    """Between locking the file and writing to it; a killed process may have left its own name."""
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    lock = tmp_path / LOCK
    named = {"pid": killed.pid, "host": socket.gethostname(), "since": "then"}
    with FileLock(lock):
        lock.write_text(json.dumps(named) if before else "")
        late = json.dumps({"pid": 7, "host": "elsewhere", "since": "now"})
        timer = threading.Timer(0.2, lambda: lock.write_text(late))
        timer.start()
        told = r"process 7 on elsewhere \(since now\) is writing"
        with pytest.raises(UserError, match=told), sole_writer(tmp_path):
            pass
        timer.join()


def test_a_second_writer_in_the_same_process(tmp_path: Path) -> None:
    told = f"process {os.getpid()} on "
    with sole_writer(tmp_path), pytest.raises(UserError, match=told), sole_writer(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_many_writers_never_meet(tmp_path: Path) -> None:
    """Also while lock files come and go: a count that two raised at once would fall behind."""
    count = tmp_path / "count"
    count.write_text("0")

    def raise_often(times: int) -> None:
        while times:
            with suppress(UserError), sole_writer(tmp_path):
                count.write_text(str(int(count.read_text()) + 1))
                times -= 1

    children = []
    for _ in range(4):
        if not (child := os.fork()):
            try:
                raise_often(25)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert count.read_text() == "100"


def test_a_folder_made_for_nothing_goes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), sole_writer(tmp_path / "a" / "b"):
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with sole_writer(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").touch()
    assert names(tmp_path / "a") == ["file"]


def test_a_folder_is_whole_or_gone(tmp_path: Path) -> None:
    def fill_half(folder: Path) -> None:
        (folder / "half").touch()
        raise DISK_FULL

    with pytest.raises(OSError, match="No space"), whole_folder(tmp_path / "a" / "b") as folder:
        fill_half(folder)
    assert names(tmp_path) == []
    with whole_folder(tmp_path / "a") as folder:
        (folder / "file").touch()
    assert names(tmp_path / "a") == ["file"]
    with pytest.raises(UserError, match="not empty"), whole_folder(tmp_path / "a"):
        pass
    assert names(tmp_path / "a") == ["file"]


# -- what is read ---------------------------------------------------------------------------------


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"cannot read {path}: .*not a regular file"):
            read_json(path)
