"""Hypothesis strategies for bad inputs: command lines, damaged files, calls with wrong arguments.

A case is plain data, so that it can be printed and made again from its seed and number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from benchmarks.reliability.calls import CALLS, ODD
from statetrack.layers import MIXERS
from statetrack.tasks import FAMILIES

TEXTS = [
    "", " ", "nope", "-", "--", "[/]", "[red]x[/red]", ":smile:", "ä\u0301\u202e\U0001f600", "a\nb",
    "../x", "%s{0}", "None", "nan", "inf", "-inf", "1e400", "true", "0x10", "1_000", "½",
    "x" * 5000,
]  # fmt: skip
NUMBERS = [
    "-1", "0", "1", "2", "3", "7", "1.5", "-0", "+4", "1000000000", "9999999999999",
    str(2**31), str(2**53), str(2**63), str(10**30), "1e9", "1e-320",
]  # fmt: skip
FILES = [
    "run", "mamba", "ab", "s3", "odd [/] run", "empty", "notes.txt", "nowhere", "dfa.json",
    "group.json", "data.jsonl", "data.csv", "data.parquet", "run/config.json", "/dev/null", ".", "",
    "run/checkpoints", "s3/config.json", "nowhere/x.json", "x.png", "notes.txt/x", "x" * 300,
]  # fmt: skip
REGEXES = [
    "(0){1000}", "(a|b)*a(a|b){9}", "(a[/]b)*", "[a-z]*", "((((a))))", "(a{30}){30}", "a{,3}",
    "(ab)*&(a|b)*", ".*a.*", "[^a]", "\\d", "(a", "a)", "a**", "", "()", "é*", "[😀-😄]*", "a|",
    "^a$",
]  # fmt: skip
SMALL = [
    "--steps=2", "--batch-size=4", "--hidden-size=8", "--num-layers=1", "--max-length=8",
    "--mlp=none",
]  # fmt: skip

tasks = st.one_of(
    st.sampled_from([name for family in FAMILIES for name in family.examples]),
    st.sampled_from(["dfa:dfa.json", "group:group.json", "dfa:run/config.json", "group:notes.txt"]),
    st.sampled_from(["dataset:data.jsonl", "dataset:data.parquet", "dataset:notes.txt"]),
    st.sampled_from(TEXTS),
    st.sampled_from(REGEXES).map(lambda pattern: f"regex:{pattern}"),
    st.text("ab()|*+?{},0123.&[]- ", max_size=14).map(lambda pattern: f"regex:{pattern}"),
    st.builds("{}{}".format, st.sampled_from("SADZQ"), st.sampled_from(NUMBERS)),
    st.builds("{}:{}".format, st.sampled_from(["dfa", "dataset"]), st.sampled_from(FILES)),
)
values = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(TEXTS), st.sampled_from(FILES), st.text(max_size=12)
).filter(lambda text: "\0" not in text)

TRAIN = """
task mixer preset config out resume json supervision allow-neg-eigval num-heads expand-k expand-v
conv-size beta-stretch d-state expand dt-rank dt-min num-householder size hidden-size num-layers
embedding norm norm-after norm-eps mlp mlp-after mlp-size head tie-embeddings initializer-range
batch-size min-length max-length lr schedule warmup min-lr weight-decay decay-groups betas eps clip
precision saturation saturation-start seed data-seed dataset-size eval-every eval-samples
eval-lengths stop-at-score time-budget carry log-every checkpoint-every tokens-per-element
generators filler predict modulus nope
"""
OPTIONS = {
    "train": TRAIN,
    "sweep": f"{TRAIN} jobs lengths curve samples harden engine engine-options track",
    "status": "all live json nope",
    "reproduce": "scale early seeds mamba-conv xlstm-layers transformer-heads engine json nope",
    "eval": "lengths samples split data-seed curve figure json nope",
    "diagnose": "word checkpoint tolerance max-length samples precision figure json nope",
    "harden": "out lengths samples orders checkpoint json nope",
    "explain": "figure json nope",
    "report": "curve samples json nope",
    "compile": "out target method delay tokens-per-element prove json nope",
    "run": "json nope",
    "models": "json plugin nope",
    "check": "allow-neg-eigval json nope",
    "selftest": "out json nope",
    "info": "json nope",
    "tasks": "json supervision nope",
    "export": "out n format split min-length max-length data-seed json nope",
    "import": "task json",
    "demo": "out json nope",
    "lm tasks": "out task lengths samples shots seed json nope",
    "lm fetch": "out wheel json nope",
    "lm eval": "tasks data limit batch-size max-length out json nope",
    "perplexity": "data names max-length chunks out json nope",
    "audit": "data tokens length out json nope",
    # no tokenizer: what is no file is looked for on the network
    "data": "field template suffix split validation seed max-documents vocab-size bos json nope",
}


def _options(command: str, most: int = 3) -> st.SearchStrategy[list[str]]:
    """Some of a command's flags with a value each; sometimes without one, or with two."""
    names = OPTIONS[command].split()
    flag = st.builds(
        lambda name, given: [f"--{name}", *given],
        st.sampled_from(names),
        st.one_of(values.map(lambda value: [value]), st.just([]), st.lists(values, max_size=2)),
    )
    joined = st.builds(lambda name, value: [f"--{name}={value}"], st.sampled_from(names), values)
    some = st.lists(st.one_of(flag, joined), max_size=most)
    return some.map(lambda flags: [word for flag in flags for word in flag])


def _line(command: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[str]]:
    """A command and its arguments, each a word or a list of them."""

    def flat(*found: Any) -> list[str]:
        return [
            command,
            *(word for part in found for word in ([part] if isinstance(part, str) else part)),
        ]

    return st.builds(flat, *parts)


files = st.sampled_from(FILES)
languages = st.one_of(tasks, st.sampled_from(REGEXES), values)
mixers = st.one_of(
    st.sampled_from(list(MIXERS)), st.just("delta_net,mamba"), st.sampled_from(TEXTS)
)
# what may take long when it is valid is only given with a mistake in it
FEW = {
    "check": ["--only", "chunks"],
    "diagnose": ["--max-length=50", "--samples=2"],
    "eval": ["--samples=2"],
    "harden": ["--samples=2", "--lengths", "20"],
    "perplexity": ["--max-length=8", "--chunks=1"],
    "audit": ["--tokens=32", "--length=32"],
}
lines = st.one_of(
    _line("train", st.just(SMALL), tasks.map("--task={}".format), _options("train")),
    _line("train", st.just(SMALL), mixers.map("--mixer={}".format), _options("train")),
    _line("train", st.just(SMALL), _options("train", 5)),
    _line("sweep", st.just([*SMALL, "--plan"]), tasks.map("--task={}".format), _options("sweep")),
    _line("sweep", st.just([*SMALL, "--plan"]), _options("sweep", 5)),
    _line("sweep", st.just("status"), files, _options("status", 1)),
    _line("sweep", st.sampled_from(["pack", "unpack"]), files, st.just(["--out", "packed"])),
    _line(
        "reproduce", st.one_of(st.just("fig1"), values), st.just("--plan"), _options("reproduce")
    ),
    *(
        _line(name, files, st.just(FEW.get(name, [])), _options(name))
        for name in ("eval", "diagnose", "harden")
    ),
    _line("explain", languages, _options("explain")),
    _line("compile", languages, st.just(["--out", "out/net"]), _options("compile")),
    _line("run", files, st.lists(values, max_size=3), _options("run", 1)),
    _line("models", st.one_of(mixers, values), _options("models", 1)),
    _line(
        "check",
        st.one_of(mixers, files),
        st.one_of(st.just(FEW["check"]), values.map("--only={}".format)),
        _options("check"),
    ),
    _line("selftest", values.map("--device={}".format), _options("selftest", 1)),
    _line("info", _options("info", 1)),
    _line(
        "report",
        st.lists(files, max_size=2),
        st.just(["--out=out/report", "--curve=9", "--samples=2"]),
        _options("report", 1),
    ),
    _line("tasks", tasks, _options("tasks", 2)),
    _line(
        "tasks",
        st.just("export"),
        tasks,
        st.just(["--max-length=50", "--n=3"]),
        _options("export"),
    ),
    _line("tasks", st.just("import"), files, st.one_of(st.just(["--task=S3"]), _options("import"))),
    *(
        _line(
            "lm",
            st.just(name),
            st.lists(files, max_size=2),
            st.just(FEW[name]),
            files.map("--data={}".format),
            _options(name),
        )
        for name in ("perplexity", "audit")
    ),
    _line(
        "lm",
        st.just(["data", "--out=out/data", "--vocab-size=258"]),
        files.map("--source={}".format),
        _options("data"),
    ),
    _line("demo", st.sampled_from(["--seed=-1", "--jobs=0", "--nope", "x"]), _options("demo", 1)),
    _line(
        "lm",
        st.just(["tasks", "--out=out/pack", "--samples=3", "--lengths=4"]),
        tasks.map("--task={}".format),
        _options("lm tasks"),
    ),
    _line(
        "lm",
        st.just(["fetch", "--out=out/sets"]),
        files.map("--wheel={}".format),  # never downloaded
        _options("lm fetch", 1),
    ),
    _line("lm", st.just(["eval", "--limit=1"]), files, _options("lm eval")),
    st.lists(values, max_size=3),
)

# -- damaged files -------------------------------------------------------------------------------

# what reads each file; the last word names it or its folder
READERS = {
    "run/config.json": ["eval run", "diagnose run", "harden run", "check run",
                        "train --resume=run"],
    "run/metrics.jsonl": ["train --resume=run", "eval run",
                          "report run --out=out/report --curve=0"],
    "run/checkpoints/step-00000002.json": ["eval run", "train --resume=run", "diagnose run"],
    "run/checkpoints/step-00000002.safetensors": ["eval run", "train --resume=run", "harden run",
                                                  "check run"],
    "mamba/config.json": ["eval mamba", "diagnose mamba", "harden mamba"],
    "ab/language.json": ["run ab abab", "diagnose ab"],
    "ab/tables.safetensors": ["run ab abab", "diagnose ab"],
    "s3/language.json": ["run s3 0", "eval s3", "diagnose s3"],
    "s3/config.json": ["run s3 0", "eval s3"],
    "dfa.json": ["explain dfa.json", "tasks dfa:dfa.json", "compile dfa.json --out=out/net"],
    "group.json": ["tasks group:group.json", "explain group:group.json"],
    "data.jsonl": ["tasks import data.jsonl --task=S3", "tasks dataset:data.jsonl",
                   "lm data --out=out/data --source=data.jsonl --field=input"],
    "data.csv": ["tasks import data.csv --task=S3"],
    "data.parquet": ["tasks import data.parquet --task=S3", "tasks dataset:data.parquet",
                     "lm data --out=out/data --source=data.parquet --field=input"],
    "config.json": ["train --config=config.json --steps=2 --batch-size=4 --out=out/new"],
}  # fmt: skip
ODD_JSON = [
    None, True, False, 0, -1, 1.5, 10**9, 2**53, 10**30, float("nan"), float("inf"), "", "nope",
    "[/]", [], {}, [[]], [None], [0, 1], {"a": 1}, ["x"] * 3, "deep", "x" * 3000,
]  # fmt: skip
damages = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 2**20), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 2**20)),
    st.tuples(st.just("bytes"), st.binary(max_size=40)),
    st.tuples(st.just("folder")),
    st.tuples(st.just("missing")),
    st.tuples(st.just("insert"), st.integers(0, 2**20), st.binary(min_size=1, max_size=4)),
    *[st.tuples(st.just("json"), st.integers(0, 999), st.integers(0, len(ODD_JSON) - 1))] * 4,
    st.tuples(st.just("drop"), st.integers(0, 999)),
    st.tuples(st.just("add"), st.integers(0, 999), st.sampled_from(TEXTS)),
)
damaged = st.sampled_from(sorted(READERS)).flatmap(
    lambda file: st.tuples(
        st.just(file),
        st.lists(damages, min_size=1, max_size=2),
        st.sampled_from(READERS[file]).map(lambda line: [*line.split(), *_short(line)]),
    )
)


def _short(line: str) -> list[str]:
    name = line.split()[0]
    return ["--lengths", "5", "--samples=2"] if name == "eval" else FEW.get(name, [])


# -- calls ---------------------------------------------------------------------------------------

calls = st.sampled_from(sorted(CALLS)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.dictionaries(
            st.sampled_from(CALLS[name].arguments),
            st.sampled_from(sorted(ODD)),
            min_size=1,
            max_size=2,
        ),
    )
)


@dataclass(frozen=True)
class Case:
    """One bad input."""

    kind: str  # "command", "file" or "call"
    args: tuple[str, ...] = ()  # of the command
    file: str = ""  # that is damaged before
    damage: tuple[Any, ...] = ()
    call: str = ""
    wrong: tuple[tuple[str, str], ...] = ()  # (argument, odd value)

    def __str__(self) -> str:
        if self.kind == "call":
            return f"{self.call}({', '.join(f'{k}={v}' for k, v in self.wrong)})"
        where = f" after {self.file} had {self.damage}" if self.file else ""
        return f"statetrack {' '.join(map(repr, self.args))}{where}"


KINDS: dict[str, tuple[float, st.SearchStrategy[Case]]] = {  # with their shares
    "command": (0.45, lines.map(lambda line: Case("command", tuple(line)))),
    "file": (0.3, damaged.map(lambda d: Case("file", tuple(d[2]), d[0], tuple(d[1])))),
    "call": (0.25, calls.map(lambda c: Case("call", call=c[0], wrong=tuple(sorted(c[1].items()))))),
}
