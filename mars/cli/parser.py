"""The commands' options and what ``--help`` says of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import mars
from mars.cli import commands
from mars.config.compare import BASELINES


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mars",
        description="Train, evaluate and analyse MARS: multi-token generation by mask fine-tuning. "
        "The workflow (`snakemake --cores 8 all`) calls these commands; each also works by hand.",
    )
    parser.add_argument("--version", action="version", version=f"mars {mars.__version__}")
    found = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str) -> _Command:
        made = found.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(run=run)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return _Command(made)

    check = command("check", commands.check, "check that a study can run, before any long work")
    check.study().out("text file to write what was checked to")
    check.parser.add_argument("--name", help="the study's file in messages; default: --config")
    check.parser.add_argument("--stamp", default="", help="written as the file's last line")

    _data_options(command("data", commands.data, "show what a study trains on"))

    train = command("train", commands.train, "train one variant of a study, or go on with it")
    train.study().model().option("--parent", "checkpoint to start from (a folder or embedded:NAME)")
    train.out("folder of the run; the checkpoint goes to model/ in it")

    pretrain = command(
        "pretrain", commands.pretrain, "train a base checkpoint of the embedded study"
    )
    pretrain.parser.add_argument("name", help="toy-s, toy-m, or the path of a recipe")
    pretrain.parser.add_argument("--out", type=Path, help="its folder; default: beside its recipe")

    evaluate = command(
        "evaluate", commands.evaluate, "run one variant on a study's benchmarks, or go on"
    )
    evaluate.study().model().option("--checkpoint", "what to evaluate (a folder or embedded:NAME)")
    evaluate.out("folder of the run; gets evaluation.csv and the records in evaluation/")
    add = evaluate.parser.add_mutually_exclusive_group().add_argument
    help = "only decode this share of the documents (of 0/N … N-1/N)"
    add("--share", metavar="I/N", help=help)
    help = "score the records that are there, and run no model"
    add("--rescore", action="store_true", help=help)

    _generate_options(
        command("generate", commands.generate, "have a checkpoint answer prompts").parser
    )

    throughput = command(
        "throughput", commands.throughput, "measure a study's wall-clock grid, or go on with it"
    )
    throughput.describe(
        "Every method of the study's throughput section takes its turn over the same prompts. "
        "Nothing else should run on the machine. Beside the CSV, one row per run, come "
        "NAME.environment.json (where and how it was measured), NAME.costs.json (what a forward "
        "costs there) and NAME.profile.csv (what its time goes on). Progress and medians go to "
        "standard error; the last line of standard output is a JSON summary with every ratio. An "
        "interrupted measurement goes on where it stopped. Without a study run: mars throughput "
        "--config config/embedded.yaml --seed 0 --checkpoint embedded:toy-m --ar-checkpoint "
        "embedded:toy-m --out look.csv. That is the whole grid of that study; for a quick look, "
        "copy the file and shorten batch_sizes, cache_blocks and prompts of its throughput section"
    )
    throughput.study().seed().option(
        "--checkpoint", "the MARS checkpoint (a folder or embedded:NAME)"
    )
    throughput.option("--ar-checkpoint", "the autoregressive checkpoint it is compared with")
    throughput.out("the CSV to write")

    arrivals = command(
        "arrivals",
        commands.arrivals,
        "serve requests that arrive over time, under each policy of τ",
    )
    arrivals.study().seed().option(
        "--checkpoint", "the MARS checkpoint (a folder or embedded:NAME)"
    )
    arrivals.out("the CSV to write")

    cost = command(
        "training-cost",
        commands.training_cost,
        "measure what a training step of a study costs, or go on with it",
    )
    cost.describe(
        "AR SFT, each MARS variant of the study's training_cost section, and MARS as released "
        "(two full streams, a dense mask) take turns at the same conversations. Nothing else "
        "should run on the machine. Beside the CSV, one row per method and repeat, comes "
        "NAME.environment.json (where and how it was measured). Progress goes to standard error; "
        "the last line of standard output is a JSON summary. An interrupted measurement goes on "
        "where it stopped. Without a study run: mars training-cost --config config/embedded.yaml "
        "--seed 0 --checkpoint embedded:toy-m --out look.csv"
    )
    cost.study().seed().option("--checkpoint", "what is trained on (a folder or embedded:NAME)")
    cost.out("the CSV to write")

    tidy = command("tidy", commands.tidy, "gather the records of a study in two Parquet files")
    tidy.study().results()
    tidy.out("folder to write records.parquet and generations.parquet to")

    runs = command(
        "tidy-throughput",
        commands.tidy_throughput,
        "gather the runs of a wall-clock grid in Parquet",
    )
    runs.study().results()
    runs.out("the Parquet file to write")

    table = command(
        "table", commands.table, "write one table of a study's results, as CSV, Markdown and LaTeX"
    )
    table.describe(
        "Writes NAME.csv, NAME.md and NAME.tex. Of table2 to table5, which the paper has too, "
        "there are three forms more, in its own layout: NAME.ours, NAME.paper, NAME.difference."
    )
    table.parser.add_argument("name", help="the table's name")
    table.parser.add_argument(
        "--intervals", action="store_true", help="with 95 %% intervals in the LaTeX too"
    )
    table.study().results().out("folder to write them to")

    figure = command(
        "figure", commands.figure, "draw one figure of a study's results, as PNG and PDF"
    )
    figure.parser.add_argument("name", help="the figure's name")
    figure.study().results().out("path without an ending; gets .png and .pdf")

    report = command(
        "report", commands.report, "write a study's report, one self-contained HTML file"
    )
    report.study().results().option("--figures", "folder of the study's figures", kind=Path)
    report.out("the HTML file to write")

    notebook = command("notebook", commands.notebook, "run a notebook on a study's results")
    notebook.parser.add_argument("notebook", type=Path, help="e.g. workflow/notebooks/NAME.ipynb")
    notebook.results().out("the HTML file to write")

    results = command("results", commands.results, "show a study's results in the terminal")
    results.describe(
        "Without --table: the score of every run at every threshold, and its tokens per forward."
    )
    add = results.parser.add_argument
    add("name", nargs="?", default="embedded", help="the study, or its results folder")
    add("--table", metavar="NAME", help="one of the report's tables, e.g. table2, claims")
    add("--scale", help="only rows of this scale")
    add("--variant", help="only rows of this variant")
    add("--benchmark", help="only this benchmark")
    add("--json", action="store_true", help="print one JSON object instead")

    compare = command(
        "compare", commands.compare, "hold one variant of a study against others, on an HTML page"
    )
    compare.describe(
        "Paired differences with intervals, frontiers, and a verdict for each baseline, from "
        "results that are there (`snakemake compare --config variant=FILE` makes them first)."
    )
    compare.study().results().option("--variant", "the variant; the study must have it")
    add = compare.parser.add_argument
    add("--baselines", nargs="+", default=list(BASELINES), help="variants it is held against")
    add("--margin", type=float, default=2.0, help="points; a smaller loss is not worse (default 2)")
    compare.out("the HTML file to write")

    chance = command("chance", commands.chance, "write what each benchmark gives for nothing")
    chance.study()
    chance.out("the CSV file to write")

    environment = command(
        "environment", commands.environment, "record hardware and library versions"
    )
    environment.out("the JSON file to write")

    config = command("config", commands.config, "check a study file and print every setting of it")
    config.parser.add_argument("file", nargs="?", help="a study file, or - for standard input")
    config.parser.add_argument("--schema", action="store_true", help="print the JSON schema")
    config.parser.add_argument("--out", type=Path, help="write to this file instead of printing")

    _plan_options(command("plan", commands.plan, "reckon what a study will cost, and what is done"))

    _fetch_options(command("fetch", commands.fetch, "download what a study needs, and verify it"))

    gpus = command("gpus", commands.gpus, "run another command on GPUs that no other job uses")
    gpus.parser.add_argument("count", type=int, help="GPUs that it is shown; it waits for them")
    gpus.parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its words")

    command(
        "unlock", commands.unlock, "clear the lock of a Snakemake that was killed, if it is dead"
    )
    found.add_parser("lm-eval", help="lm-eval's own command line, with our model and tasks")
    return parser


def _data_options(data: _Command) -> None:
    data.describe(
        "Counts of conversations and tokens, rows that were dropped and why, histograms of "
        "lengths, and examples as they are trained on: ⟦block│block⟧ are the tokens with loss (on "
        "a terminal, blocks in alternating colours). Nothing is downloaded unless data.source "
        "names a hub dataset."
    )
    add = data.study().parser.add_argument
    add("--scale", help="whose tokenizer (default: the study's first)")
    add("--stage", type=int, choices=[1, 2], help="default: both")
    add("--seed", type=int, help="of toy conversations and phases (default: the study's first)")
    add("--show", type=int, default=1, metavar="N", help="examples of each stage (default 1)")
    add("--block-size", type=int, metavar="B", help="default: the study's first MARS variant's")
    add("--processes", type=int, metavar="N", help="encoding in parallel; changes no result")
    add("--json", action="store_true", help="print one JSON object instead")


def _fetch_options(fetch: _Command) -> None:
    fetch.describe(
        "Models, training data, the benchmarks' data and NLTK's go below one folder; with it as "
        "the study's data_root a run makes no connection. Each file is compared with the hash "
        "that its source tells, and noted in manifest.json there. The same command goes on with "
        "what was interrupted."
    )
    add = fetch.changed_study().parser.add_argument
    add("--to", metavar="FOLDER", help="default: the study's data_root")
    add = fetch.parser.add_mutually_exclusive_group().add_argument
    add("--list", action="store_true", help="say what would be fetched, and do nothing")
    add("--verify", action="store_true", help="hash what is there again; needs no network")


def _plan_options(plan: _Command) -> None:
    plan.describe(
        "Jobs of each rule, checkpoints, hours and disk, from the study's file and a table of "
        "rates (mars/planning/rates.yaml), which says of each whether it was measured or assumed. "
        "Nothing is run and nothing is downloaded."
    )
    add = plan.changed_study().parser.add_argument
    add("--device", help="of the table; default: cpu-core for toy models, else h200")
    add("--flops", type=float, help="FLOP/s that one device achieves in training, e.g. 3e14")
    add("--rates", metavar="FILE", help="YAML of the table's form; replaces entries it has")
    add("--json", action="store_true", help="print one JSON object instead")


def _generate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", help="a folder, or embedded:NAME")
    add("prompt", nargs="*", help="what the user says; several are decoded together")
    add("--prompts", metavar="FILE", help="a prompt a line; - for standard input")
    help = "threshold, 1 is one token a step (default 0.95); given several times: one a prompt"
    add("--tau", type=float, action="append", help=help)
    add("--block-size", type=int, help="tokens drafted a step (default: as trained)")
    add("--decoder", choices=["mars", "ar", "jacobi", "block_diffusion"])
    add("--rule", choices=["probability", "entropy", "margin"])
    add("--cache", choices=["cursor", "block", "none"])
    add("--cache-block", type=int, help="B_cache of --cache block")
    add("--draft", choices=["B", "auto"], help="auto: no longer than pays on this machine")
    add("--costs", metavar="FILE", help="cost table of --draft auto (default: measured once, kept)")
    add("--max-new-tokens", type=int, help="default 256")
    add("--temperature", type=float, help="default 0, greedy")
    add("--seed", type=int, help="of the samples")
    add("--stop", action="append", help="text that ends an answer; may be given several times")
    add("--slots", type=int, help="prompts in flight (default: all, up to 32)")
    add("--dtype", help="float32 (default on a CPU), bfloat16 (default on a GPU), …")
    add("--device", help="cpu, cuda, … (default: a GPU where there is one)")
    add("--linears", choices=["auto", "stock", "packed"], help="of a CPU (default auto)")
    add("--threads", type=int, help="of torch on the CPU")
    add("--no-stream", action="store_true", help="print an answer when it is finished")
    add("--json", action="store_true", help="print one JSON object an answer")


class _Command:
    """Options that several commands share, added by name."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser

    def option(self, flag: str, help: str, kind: type = str) -> _Command:
        self.parser.add_argument(flag, required=True, type=kind, help=help)
        return self

    def describe(self, more: str) -> None:
        """Say more than the one line that the list of commands has."""
        self.parser.description = f"{self.parser.description} {more}"

    def study(self) -> _Command:
        return self.option("--config", "study file, e.g. results/embedded/config.yaml")

    def changed_study(self) -> _Command:
        add = self.parser.add_argument
        add("--config", "--configfile", required=True, help="study file, e.g. config/paper.yaml")
        change = "change a setting, as snakemake --config does, e.g. checkpoints=released"
        add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=change)
        return self

    def seed(self) -> _Command:
        return self.option("--seed", "one of the study's seeds", kind=int)

    def model(self) -> _Command:
        self.seed().option("--scale", "one of the study's scales")
        return self.option("--variant", "one of the study's variants")

    def results(self) -> _Command:
        return self.option("--results", "the study's results folder", kind=Path)

    def out(self, help: str) -> _Command:
        return self.option("--out", help, kind=Path)
