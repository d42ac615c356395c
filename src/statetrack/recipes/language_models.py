"""`language-models`: Figures 5 and 10, perplexity against position in both ranges, in pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from statetrack.lm.extra import unusable_packages
from statetrack.recipes.language_model_report import make_document
from statetrack.recipes.recipe import Recipe, Results, Settings, register

if TYPE_CHECKING:
    from statetrack.lm.pretraining_job import PretrainingJob
    from statetrack.report.document import Document

SEEDS = {"smoke": 1, "laptop": 3, "paper": 1}
MODELS = {
    "smoke": (("tiny", "delta_net"), ("tiny", "mamba")),
    "laptop": (("tiny", "delta_net"), ("tiny", "mamba")),
    "paper": (("340m", "delta_net"), ("1.3b", "delta_net"), ("mamba-370m", "mamba")),
}  # preset and mixer
PAPER_TOKENIZER = "fla-hub/gla-1.3B-100B"  # Mistral's, 32,000 tokens
LENGTHENED = 8  # positions up to this multiple of the training length
HARNESS_LIMIT = {"smoke": 4, "laptop": 1000, "paper": None}  # documents per task
CPU_SECONDS = {"delta_net": 1000.0, "mamba": 1300.0}  # of a laptop run in bf16


@cache
def jobs_of(settings: Settings) -> tuple[PretrainingJob, ...]:
    """List the runs: every model in both ranges, from the same seeds and data orders."""
    count = SEEDS[settings.scale] if settings.seeds is None else settings.seeds
    return tuple(
        _job(settings, preset, mixer, allow, seed)
        for preset, mixer in MODELS[settings.scale]
        for seed in range(count)
        for allow in (False, True)
    )


def _job(settings: Settings, name: str, mixer: str, allow: bool, seed: int) -> PretrainingJob:
    from statetrack.lm.data.config import DataConfig
    from statetrack.lm.pretraining.presets import preset
    from statetrack.lm.pretraining_job import PretrainingJob

    config = preset(name, mixer)
    model = config.model.with_range(allow)
    config = replace(config, model=model, seed=seed, precision=settings.lm_precision)
    options: dict[str, Any] = {"max_length": LENGTHENED * config.context_length}
    data, seconds = DataConfig(), CPU_SECONDS[mixer]
    if settings.lm_precision == "fp32":
        seconds *= 2
    if settings.scale == "paper":
        data = DataConfig(source=("fineweb",), tokenizer=PAPER_TOKENIZER, bos=True)
        seconds = 3.6e6
    if settings.scale == "smoke":
        few: dict[str, Any] = {"steps": 2, "warmup": 1, "log_every": 1, "checkpoint_every": 2}
        config = replace(config, **few, batch_size=2, context_length=32, validation_batches=1)
        data = DataConfig(max_documents=40, vocab_size=300)
        options, seconds = {"max_length": 256, "chunks": 2, "audit_tokens": 1024}, 2.0
    if settings.harness:
        options["harness_limit"] = HARNESS_LIMIT[settings.scale]
    return PretrainingJob(
        name=f"{config.model.title} {name} seed {seed}",
        config=config,
        data=data,
        texts=settings.texts,
        harness=settings.harness,
        seconds=seconds,
        **options,
    )


def jobs(settings: Settings, results: Results) -> list[PretrainingJob]:
    """List all runs."""
    return list(jobs_of(settings))


def document(settings: Settings, results: Results) -> Document:
    """Make the tables of losses and paired differences, the figures and the audit."""
    return make_document(RECIPE.title, settings, jobs_of(settings), results, _notes(settings))


def _notes(settings: Settings) -> list[str]:
    notes = [
        "Both ranges of a pair have the same seed: the same initial weights and order of the data.",
        "Held-out text is the validation split of what the models read. Running perplexity at "
        "position t: the exponential of the mean loss of the first t predictions of a sequence, "
        "averaged over sequences.",
    ]
    if settings.scale == "laptop":
        notes.append(
            "2 to 3 million parameters and 10 million tokens of Python's standard library, with a "
            "byte-level BPE of 4,096 tokens, instead of 340 million to 1.3 billion parameters and "
            "100 billion tokens of FineWeb; three seeds per model instead of one."
        )
    how = "in float32 (--lm-precision fp32); the paper's is in bfloat16"
    if settings.lm_precision == "bf16":
        how = "in bfloat16 under autocast with weights in float32, as in the paper"
    notes.append(f"Training is {how}.")
    if settings.scale == "paper":
        notes.append(
            "The paper's four evaluation sets are not among the data: save them as text files and "
            "give them with --texts, or measure the models with `statetrack lm perplexity`."
        )
    if not settings.texts:
        notes.append("Other texts are measured with --texts FILE ....")
    limit = HARNESS_LIMIT[settings.scale]
    if settings.harness and limit is not None:
        notes.append(f"lm-evaluation-harness reads the first {limit:,} documents of each task.")
    if not settings.harness:
        notes.append(
            "Tasks of lm-evaluation-harness are scored with --harness FOLDER ...: the pack of "
            "`statetrack lm tasks`, the paper's sets of `statetrack lm fetch`."
        )
    return notes


RECIPE = register(
    Recipe(
        name="language-models",
        aliases=("fig5", "fig10"),
        title="Language models in both ranges (Figures 5 and 10)",
        jobs=jobs,
        document=document,
        unusable=unusable_packages,
    )
)
