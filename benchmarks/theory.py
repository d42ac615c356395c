"""Measure exactness, horizons and speed of compiled networks.

    python -m benchmarks theory --out results/theory.md
    python -m benchmarks theory --only exactness --tokens 10000 --names S5 "a*b*"

Six parts, printed as markdown, each by itself with --only. Words avoid symbols that lead to a
sink, after which nothing would be tested; every state is compared with the DFA's own run.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import torch

from benchmarks.languages import LANGUAGES, lively_word, random_minimal
from benchmarks.processes import machine
from benchmarks.timing import seconds
from statetrack.compiler import CompiledRNN, compile, theorems
from statetrack.compiler.dfa_to_cascade import METHODS
from statetrack.errors import UserError
from statetrack.files import check_output, write_atomic
from statetrack.kernels import library

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS, LENGTH, THREADS = 256, 4_096, 2  # of the batch whose tokens are counted
ROTATIONS: dict[str, Callable[[int], CompiledRNN]] = {
    "rotations (Theorem 3)": theorems.cyclic,
    "reflections (Theorem 6)": theorems.theorem6,
    "reflections, dihedral": theorems.dihedral,
}
MODULI = (3, 5, 7, 12, 60)
BLOCKS = {"S3": 2, "S4": 3, "A5": 4, "S5": 4}  # tokens per element
Part = Literal["exactness", "models", "blocks", "random", "speed", "horizon"]
Lines = Iterator[str]


def main(
    *,
    only: tuple[Part, ...] = (),
    names: tuple[str, ...] = (),
    tokens: int = 1_000_000,
    loop_tokens: int = 10_000,
    automata: int = 300,
    rounds: int = 3,
    out: Path | None = None,
) -> None:
    """Measure and print.

    Args:
        only: some of the parts; all if absent.
        names: some of the languages, as the tables call them; all if absent.
        tokens: of the words for exactness on the kernels and as models, and for the horizons.
        loop_tokens: of the word for the defining loop in Python, a thousand times slower.
        automata: how many random DFAs.
        rounds: of each measurement of time, of which the least counts.
        out: a file for what is printed.
    """
    if out is not None:
        check_output(out)
    chosen = {name: LANGUAGES[name] for name in names or LANGUAGES}
    torch.set_num_threads(1)
    compile("(ab)*").prove()  # loads what loads at first use
    about = machine()
    lines = [
        "# Compiled networks, measured\n",
        f"`python -m benchmarks {shlex.join(sys.argv[1:])}`\n",
        f"{about['processor']}, {about['cores']} cores, of which one thread uses one; native "
        f"kernels: {library.level()}; torch {torch.__version__}\n",
    ]
    print("\n".join(lines), flush=True)
    parts: dict[Part, Callable[[], Lines]] = {
        "exactness": lambda: exactness(chosen, tokens, loop_tokens, rounds),
        "models": lambda: models(chosen, tokens),
        "blocks": lambda: blocks(tokens),
        "random": lambda: random_automata(automata),
        "speed": lambda: speed(rounds),
        "horizon": lambda: horizons(tokens),
    }
    for part, run in parts.items():
        if part in (only or parts):
            for line in run():
                lines.append(line)
                print(line, flush=True)
    if out is not None:
        write_atomic(out, ("\n".join(lines) + "\n").encode())


def exactness(chosen: dict, tokens: int, loop_tokens: int, rounds: int) -> Lines:
    """Wrong states and deviation of the networks of tables, in every form; compiling, proving."""
    forms = {"native": tokens, "torch": tokens, "naive": loop_tokens}
    yield "## Exactness\n"
    yield (
        f"Wrong states / deviation over one word of {tokens:,} tokens: `native` goes token by "
        "token, `torch` chunk by chunk (dense: in blocks), both on the target that `auto` takes; "
        f"`naive`, the defining loop in torch, {loop_tokens:,} tokens. `proved`: `prove()` holds.\n"
    )
    yield _row(
        ["language", "states", "target", "layers: sizes", "compile s", "prove s", "proved"]
        + [f"{backend} {dtype}" for backend in forms for dtype in FORMATS]
    )
    yield _rule(7 + 2 * len(forms))
    for name, language in chosen.items():
        net = compile(language)
        words = {length: lively_word(net.dfa, length) for length in set(forms.values())}
        cells = [f"`{name}`", str(net.dfa.states), net.stack[0].target]
        cells.append(f"{len(net.layers)}: {', '.join(str(layer.size) for layer in net.stack)}")
        cells.append(f"{_least(rounds, lambda language=language: compile(language)):.3f}")
        cells.append(f"{_least(rounds, net.prove):.3f}")
        cells.append("yes" if net.prove().holds else "NO")
        for backend, length in forms.items():
            symbols, states = words[length]
            for dtype in FORMATS.values():
                result = net.to(dtype).run(symbols, backend=backend)
                wrong = int((result.states != states).sum())
                cells.append(f"{wrong} / {result.deviation}")
        yield _row(cells)
    yield ""


def models(chosen: dict, tokens: int) -> Lines:
    """The same languages as ordinary models."""
    yield "## Ordinary models (target gated_deltaproduct)\n"
    yield "`certified`: `certificate()` finds that chunks are exact, too.\n"
    yield _row(
        ["language", "blocks", "weights", "prove s", "proved", "certified"]
        + [f"{name}: wrong of {tokens:,}, tokens/s" for name in FORMATS]
    )
    yield _rule(6 + len(FORMATS))
    for name, language in chosen.items():
        net = compile(language, "gated_deltaproduct")
        cells = [f"`{name}`", str(net.model.config.num_layers), f"{net.model.num_parameters():,}"]
        cells.append(f"{seconds(net.prove):.2f}")
        cells.append("yes" if net.prove().holds else "NO")
        cells.append("yes" if net.certificate()["exact"] else "NO")
        symbols, states = lively_word(net.dfa, tokens)
        for dtype in FORMATS.values():
            net.model.to(dtype)
            began = time.perf_counter()
            wrong = int((net(symbols) != states).sum())
            rate = tokens / (time.perf_counter() - began)
            cells.append(f"{wrong}, {rate:,.0f}")
        yield _row(cells)
    yield ""


def blocks(tokens: int) -> Lines:
    """Groups with several tokens per element, of single reflections."""
    yield "## Several tokens per element, one Householder factor per token\n"
    yield f"`wrong`: states, of a word of {tokens:,} tokens of random elements and their fillers.\n"
    yield _row(["group", "tokens per element", "states", "layers: sizes", "factors", "compile s",
                "prove s", "proved", *(f"wrong in {name}" for name in FORMATS)])  # fmt: skip
    yield _rule(8 + len(FORMATS))
    for name, each in BLOCKS.items():
        nets: list[CompiledRNN] = []
        proofs: list[bool] = []
        took = seconds(lambda: nets.append(compile(name, tokens_per_element=each)))  # noqa: B023
        net = nets[0]
        proved = seconds(lambda: proofs.append(net.prove().holds))  # noqa: B023
        sizes = ", ".join(str(layer.size) for layer in net.stack)
        cells = [f"`{name}`", str(each), f"{net.dfa.states:,}", f"{len(net.stack)}: {sizes}",
                 str(max(layer.factors for layer in net.stack)), f"{took:.2f}", f"{proved:.1f}",
                 "yes" if proofs[0] else "NO"]  # fmt: skip
        word = torch.randint(len(net.dfa.alphabet) - 1, (1, tokens))
        word[:, torch.arange(tokens) % each > 0] = len(net.dfa.alphabet) - 1
        right = torch.from_numpy(net.dfa.run(word.numpy()))
        for dtype in FORMATS.values():
            cells.append(str(int((net.to(dtype)(word) != right).sum())))
        yield _row(cells)
    yield ""


def random_automata(count: int) -> Lines:
    """Compiled and proved by every method."""
    yield f"## {count} random minimal DFAs of 3 to 10 states\n"
    yield (
        "`refused`: met a limit. Seconds of compiling and proving together; levels beyond |Q| - 1, "
        "the most that `auto` and `banned` have.\n"
    )
    yield _row(["method", "proved", "refused", "median s", "largest s", "most levels beyond"])
    yield _rule(6)
    for method in METHODS:
        took, refused, beyond, proved = [], 0, [], 0
        for i in range(count):
            dfa = random_minimal(3 + i % 8, seed=i)
            nets: list[CompiledRNN] = []
            proofs = []

            def work(dfa=dfa, method=method, nets=nets, proofs=proofs) -> None:
                nets.append(compile(dfa, method=method))
                proofs.append(nets[0].prove())

            try:
                took.append(seconds(work))
            except UserError:
                refused += 1
                continue
            proved += proofs[0].holds
            beyond.append(len(nets[0].layers) - (dfa.states - 1))
        cells = [method, str(proved), str(refused)]
        cells += [f"{statistics.median(took):.3f}", f"{max(took):.3f}", f"{max(beyond):+d}"]
        yield _row(cells)
    yield ""


def speed(rounds: int) -> Lines:
    """Arithmetic modulo 5 in batch."""
    net = compile(LANGUAGES["modular_arithmetic"])
    batch = torch.randint(len(net.dfa.alphabet), (ROWS, LENGTH))
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    rate = batch.numel() / _least(rounds, lambda: net(batch))
    torch.set_num_threads(before)
    yield "## Speed\n"
    yield (
        f"Arithmetic modulo 5, {ROWS} words of {LENGTH:,} tokens, {THREADS} threads: "
        f"{rate / 1e6:.2f} million tokens/s.\n"
    )


def horizons(tokens: int) -> Lines:
    """How far networks hold that round."""
    yield "## Horizons of what rounds\n"
    yield (
        f"Tokens before the first wrong state, of {tokens:,}, on one symbol over and over / on "
        "random ones; in brackets the largest distance from the codeword that a state was taken "
        "for. `compile` has exact networks for the same groups.\n"
    )
    yield _row(["network", "m", *FORMATS])
    yield _rule(2 + len(FORMATS))
    for name, make in ROTATIONS.items():
        for m in MODULI:
            cells = [name, str(m)]
            for dtype in FORMATS.values():
                found = theorems.horizon(make(m).to(dtype), tokens)
                cells.append(" / ".join(_held(found[kind]) for kind in ("constant", "random")))
            yield _row(cells)


def _held(found: dict) -> str:
    held = found["holds_for"]
    return f"{'all' if held is None else format(held, ',')} ({found['deviation']:.1g})"


def _least(rounds: int, call: Callable[[], object]) -> float:
    return min(seconds(call) for _ in range(rounds))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns
