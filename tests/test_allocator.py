"""Freed memory stays in the process where that was asked for, and only there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import import_module

import pytest

import statetrack
from tests.conftest import Command

MAIN = import_module("statetrack.cli.main")
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

# page faults of 40 tensors of 64 MB after 20 that may fill the heap
FAULTS = """
import resource, sys, torch
from statetrack.allocator import tune_allocator
applied = tune_allocator() if sys.argv[1] == "tune" else False
def faults(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        torch.ones(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(20)
print(int(applied), faults(40))
"""


def child(what: str, **variables: str) -> tuple[bool, int]:
    env = {k: v for k, v in os.environ.items() if k != "STATETRACK_TUNE_ALLOCATOR"}
    out = subprocess.run(
        [sys.executable, "-c", FAULTS, what],
        env={**env, **variables}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    applied, faults = out.split()
    return applied == "1", int(faults)


@glibc
def test_it_takes_effect_and_can_be_turned_off() -> None:
    plain = child("leave")[1]
    assert plain > 40 * 64e6 / 65536  # a fault for each page, even if pages were of 64 kB
    applied, tuned = child("tune")
    assert applied
    assert tuned < plain / 10
    applied, off = child("tune", STATETRACK_TUNE_ALLOCATOR="0")
    assert not applied
    assert off > plain / 2


def test_the_variable_is_checked(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setenv("STATETRACK_TUNE_ALLOCATOR", "off")
    with pytest.raises(statetrack.UserError, match="must be 0 or 1; got 'off'"):
        statetrack.tune_allocator()
    code, _, err = command("demo")
    assert code == 2
    assert "STATETRACK_TUNE_ALLOCATOR must be 0 or 1" in err


@pytest.mark.parametrize("name", ["demo", "train", "eval", "diagnose", "harden"])
def test_commands_that_compute_call_it(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(MAIN, "tune_allocator", lambda: called.append(name))
    command(name, "--no-such-flag")
    assert called == [name]


def test_others_do_not(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAIN, "tune_allocator", lambda: pytest.fail("not asked for"))
    assert command("models").code == 0
    assert command("--version").code == 0
