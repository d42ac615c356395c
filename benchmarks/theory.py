"""How long it takes to compile and prove languages, and how fast and exact the networks run.

    python benchmarks/theory.py
    python benchmarks/theory.py --tokens 100000 --rounds 3
    python benchmarks/theory.py --only models --tokens 1000000

For each language: the seconds of `compile` and `prove` (least of some rounds), and for each number
type the wrong states and the deviation over one word of many tokens. Words avoid symbols that lead
to a sink, after which nothing would be tested. Then the same languages as ordinary models (target
gated_deltaproduct), which do far more arithmetic: minutes for a million tokens. Prints markdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch
import tyro

from statetrack.automata import DFA, Group, from_regex, group
from statetrack.tasks import make_task
from statetrack.theory import CompiledRNN, compile

FORMATS = (torch.float32, torch.bfloat16)
ROWS, LENGTH = 256, 4_096  # of the batch whose tokens are counted


def languages() -> dict[str, DFA | Group]:
    """Name -> language."""
    tasks = [*(f"tomita{n}" for n in range(1, 8)), "dyck1_depth3", "flip_flop"]
    automata = {name: make_task(name).automaton() for name in (*tasks, "modular_arithmetic")}
    return {
        "parity": from_regex("(b*ab*a)*b*"),
        "(ab)*": from_regex("(ab)*"),
        "a*b*": from_regex("a*b*"),
        "contains aba": from_regex(".*aba.*", "ab"),
        **{name: group(name) for name in ("Z3", "Z5", "Z60", "S3", "S5", "A5", "D12")},
        **{name: dfa for name, dfa in automata.items() if dfa is not None},
    }


def random_dfas(states: int, number: int) -> Iterator[DFA]:
    """DFAs of two symbols."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        delta = rng.integers(states, size=(states, 2))
        yield DFA(("a", "b"), delta, 0, rng.random(states) < 0.5)


def word(dfa: DFA, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, length]: symbols, and the states after them."""
    sinks = (dfa.delta == np.arange(dfa.states)[:, None]).all(axis=1)
    choices = [np.flatnonzero(~sinks[row]).tolist() for row in dfa.delta]
    table, state = dfa.delta.tolist(), dfa.start
    symbols, states = [], []
    for draw in np.random.default_rng(0).integers(2**31, size=length).tolist():
        allowed = choices[state] or range(len(dfa.alphabet))
        symbols.append(allowed[draw % len(allowed)])
        state = table[state][symbols[-1]]
        states.append(state)
    return torch.tensor([symbols]), torch.tensor([states])


def least(rounds: int, run: Callable[[], object]) -> float:
    """The least seconds of some rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def exactness(net: CompiledRNN, tokens: int) -> str:
    """Wrong states and deviation in each number type."""
    symbols, states = word(net.dfa, tokens)
    cells = []
    for dtype in FORMATS:
        result = net.to(dtype).run(symbols)
        cells.append(f"{int((result.states != states).sum())} / {result.deviation}")
    net.to(torch.float32)
    return " | ".join(cells)


def models(tokens: int, names: tuple[str, ...]) -> None:
    """Print how exact the models are in each number type, and how fast."""
    titles = ["language", "blocks", "weights", "prove s"]
    titles += [f"{kind}: wrong / tokens per s" for kind in ("float32", "bfloat16")]
    print(f"models: wrong states over {tokens:,} tokens\n")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name, language in languages().items():
        if names and name not in names:
            continue
        net = compile(language, "gated_deltaproduct")
        row = [name, str(net.model.config.num_layers), f"{net.model.num_parameters():,}"]
        start = time.perf_counter()
        proof = net.prove()
        row.append(f"{time.perf_counter() - start:.2f}" if proof.holds else str(proof))
        symbols, states = word(net.dfa, tokens)
        for dtype in FORMATS:
            net.model.to(dtype)
            start = time.perf_counter()
            wrong = int((net(symbols) != states).sum())
            row.append(f"{wrong} / {tokens / (time.perf_counter() - start):,.0f}")
        print(f"| {' | '.join(row)} |", flush=True)


def main(
    tokens: int = 1_000_000,
    rounds: int = 3,
    only: Literal["tables", "models"] | None = None,
    names: tuple[str, ...] = (),
) -> None:
    """Print the tables.

    Args:
        tokens: of the word for exactness.
        rounds: of each measurement, of which the least counts.
        only: one kind of network.
        names: the languages of the models; all if absent.
    """
    compile("(ab)*").prove()  # loads what loads at first use
    if only != "models":
        tables(tokens, rounds)
    if only != "tables":
        models(tokens, names)


def tables(tokens: int, rounds: int) -> None:
    """Print how long networks of tables take, how exact and how fast they are."""
    titles = ["language", "states", "layers: sizes", "compile s", "prove s", "float32", "bfloat16"]
    print(f"wrong states / deviation over {tokens:,} tokens in the last two columns\n")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name, language in languages().items():
        net = compile(language)
        sizes = ", ".join(str(layer.size) for layer in net.stack)
        row = [name, str(net.dfa.states), f"{len(net.layers)}: {sizes}"]
        row.append(f"{least(rounds, lambda language=language: compile(language)):.3f}")
        row.append(f"{least(rounds, net.prove):.3f}")
        print(f"| {' | '.join(row)} | {exactness(net, tokens)} |", flush=True)

    slowest = 0.0
    for dfa in random_dfas(10, 10):
        slowest = max(slowest, least(1, lambda dfa=dfa: compile(dfa).prove()))
    print(f"\nrandom DFAs of 10 states: compiled and proved in at most {slowest:.2f} s")

    net = compile(languages()["modular_arithmetic"])
    batch = torch.randint(len(net.dfa.alphabet), (ROWS, LENGTH))
    speed = batch.numel() / least(rounds, lambda: net(batch))
    threads = torch.get_num_threads()
    print(f"modular arithmetic in batch, {threads} threads: {speed / 1e6:.2f} million tokens/s\n")


if __name__ == "__main__":
    tyro.cli(main)
