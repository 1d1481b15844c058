"""The command line, `mars` or `python -m mars`: thin, one function a command.

What a command needs is imported inside it, so that `--help` is instant. What a user can put right
(a wrong setting, a missing checkpoint, a full disk) ends in one line and exit status 2.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import mars
from mars import jobs
from mars.config import Study, dump_study, json_schema, load_study, parse_study


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["lm-eval"]:
        return _guarded(lambda: _lm_eval(words[1:]), debug=False)
    args = _parser().parse_args(words)
    jobs.end_with_workflow()
    return _guarded(lambda: args.run(args), args.debug)


def _guarded(run: Callable[[], object], debug: bool) -> int:
    try:
        run()
    except KeyboardInterrupt:
        print("mars: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        message = _for_the_user(error)
        if debug or message is None:
            raise
        print(f"mars: {message}", file=sys.stderr)
        return 2
    return 0


def _for_the_user(error: Exception) -> str | None:
    """One line for an error that the user can put right; None for one that is a bug of ours."""
    line = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {error.filename or 'results'}: free some space and run again"
        )
    if type(error).__module__.startswith("mars.") or isinstance(error, FileNotFoundError):
        return line
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or 'a file'}: {error.strerror}: allow it, or choose another folder"
    if type(error) is ValueError and _raised_by_us(error):
        return line
    if "No space left on device" in line:  # libraries wrap it, and lose the number
        return f"disk full: free some space and run again ({line})"
    return None


def _raised_by_us(error: Exception) -> bool:
    """Whether the statement that raised is in one of our modules, not in a library's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("mars.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mars",
        description="Train, evaluate and analyse MARS: multi-token generation by mask fine-tuning. "
        "The workflow (`snakemake --cores 8 all`) calls these commands; each also works by hand.",
    )
    parser.add_argument("--version", action="version", version=f"mars {mars.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str) -> _Command:
        made = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(run=run)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return _Command(made)

    check = command("check", _check, "check that a study can run, before any long work")
    check.study().out("text file to write what was checked to")
    check.parser.add_argument("--name", help="the study's file in messages; default: --config")
    check.parser.add_argument("--stamp", default="", help="written as the file's last line")

    _data_options(command("data", _data, "show what a study trains on"))

    train = command("train", _train, "train one variant of a study, or go on with it")
    train.study().model().option("--parent", "checkpoint to start from (a folder or embedded:NAME)")
    train.out("folder of the run; the checkpoint goes to model/ in it")

    pretrain = command("pretrain", _pretrain, "train a base checkpoint of the embedded study")
    pretrain.parser.add_argument("name", help="toy-s, toy-m, or the path of a recipe")
    pretrain.parser.add_argument("--out", type=Path, help="its folder; default: beside its recipe")

    evaluate = command("evaluate", _evaluate, "run one variant on a study's benchmarks, or go on")
    evaluate.study().model().option("--checkpoint", "what to evaluate (a folder or embedded:NAME)")
    evaluate.out("folder of the run; gets evaluation.csv and the records in evaluation/")

    _generate_options(command("generate", _generate, "have a checkpoint answer prompts").parser)

    throughput = command(
        "throughput", _throughput, "measure a study's wall-clock grid, or go on with it"
    )
    throughput.describe(
        "Every method of the study's throughput section takes its turn over the same prompts. "
        "Nothing else should run on the machine. Beside the CSV, one row per run, come "
        "NAME.environment.json (where and how it was measured) and NAME.costs.json (what a "
        "forward costs there). Progress and medians go to standard error; the last line of "
        "standard output is a JSON summary. An interrupted measurement goes on where it stopped. "
        "A quick look without a study run: mars throughput --config config/embedded.yaml "
        "--seed 0 --checkpoint embedded:toy-m --ar-checkpoint embedded:toy-m --out look.csv"
    )
    throughput.study().seed().option(
        "--checkpoint", "the MARS checkpoint (a folder or embedded:NAME)"
    )
    throughput.option("--ar-checkpoint", "the autoregressive checkpoint it is compared with")
    throughput.out("the CSV to write")

    arrivals = command(
        "arrivals", _arrivals, "serve requests that arrive over time, under each policy of τ"
    )
    arrivals.study().seed().option(
        "--checkpoint", "the MARS checkpoint (a folder or embedded:NAME)"
    )
    arrivals.out("the CSV to write")

    cost = command(
        "training-cost",
        _training_cost,
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

    table = command("table", _table, "write one table of a study's results, as CSV and Markdown")
    table.parser.add_argument("name", help="the table's name")
    table.study().results().out("folder to write NAME.csv and NAME.md to")

    figure = command("figure", _figure, "draw one figure of a study's results, as PNG and PDF")
    figure.parser.add_argument("name", help="the figure's name")
    figure.study().results().out("path without an ending; gets .png and .pdf")

    report = command("report", _report, "write a study's report, one self-contained HTML file")
    report.study().results().option("--figures", "folder of the study's figures", kind=Path)
    report.out("the HTML file to write")

    chance = command("chance", _chance, "write what each benchmark gives for nothing")
    chance.study()
    chance.out("the CSV file to write")

    environment = command("environment", _environment, "record hardware and library versions")
    environment.out("the JSON file to write")

    config = command("config", _config, "check a study file and print every setting of it")
    config.parser.add_argument("file", nargs="?", help="a study file, or - for standard input")
    config.parser.add_argument("--schema", action="store_true", help="print the JSON schema")
    config.parser.add_argument("--out", type=Path, help="write to this file instead of printing")

    command("unlock", _unlock, "clear the lock of a Snakemake that was killed, if it is dead")
    commands.add_parser("lm-eval", help="lm-eval's own command line, with our model and tasks")
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


def _generate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", help="a folder, or embedded:NAME")
    add("prompt", nargs="*", help="what the user says; several are decoded together")
    add("--prompts", metavar="FILE", help="a prompt a line; - for standard input")
    add("--tau", type=float, help="threshold, 1 is one token a step (default 0.95)")
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

    def seed(self) -> _Command:
        return self.option("--seed", "one of the study's seeds", kind=int)

    def model(self) -> _Command:
        self.seed().option("--scale", "one of the study's scales")
        return self.option("--variant", "one of the study's variants")

    def results(self) -> _Command:
        return self.option("--results", "the study's results folder", kind=Path)

    def out(self, help: str) -> _Command:
        return self.option("--out", help, kind=Path)


def _study(args: argparse.Namespace, threads: Callable[[Study], int] | None = None) -> Study:
    """Read the study a command is about, check what it names, and set torch's threads."""
    study = load_study(args.config)
    if hasattr(args, "variant"):
        study.check_run(args.seed, args.scale, args.variant, args.config)
    if threads is not None:
        count = threads(study)
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(count)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import torch

        torch.set_num_threads(count)
    return study


def _check(args: argparse.Namespace) -> None:
    study, name = load_study(args.config), args.name or args.config
    from mars.data import check_rows
    from mars.evaluation.check import check_bases, check_benchmarks
    from mars.evaluation.records import write_atomically

    bases = check_bases(study, name)
    lines = [f"scales.{scale}.base: {source.checkpoint}" for scale, source in bases.items()]
    lines += check_rows(study, {s: source.tokenizer for s, source in bases.items()}, name)
    lines += check_benchmarks(study, bases, name)
    write_atomically(args.out, "\n".join([*lines, *filter(None, [args.stamp])]) + "\n")


def _data(args: argparse.Namespace) -> None:
    study = load_study(args.config)
    seed = study.seeds[0] if args.seed is None else args.seed
    scale = args.scale or next(iter(study.scales))
    study.check_run(seed, scale, "base", args.config)
    drafts = [made.block_size for made in study.variants.values() if made.objective == "mars"]
    from mars.data.preview import preview
    from mars.data.terminal import page
    from mars.models import load_tokenizer

    told, wrong = preview(
        study.data,
        load_tokenizer(study.scales[scale].base),
        [args.stage] if args.stage else [1, 2],
        seed,
        show=args.show,
        block_size=args.block_size or next(iter(drafts), 4),
        processes=args.processes,
    )
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.write(json.dumps(told) + "\n" if args.json else page(told, colour))
    sys.stdout.flush()
    if wrong:
        raise wrong


def _train(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.training.threads)
    from mars.training.run import train_variant

    train_variant(study, args.seed, args.scale, args.variant, args.parent, args.out)


def _pretrain(args: argparse.Namespace) -> None:
    from mars.training.pretrain import pretrain

    pretrain(args.name, args.out)


def _evaluate(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.evaluation.threads)
    from mars.evaluation.run import evaluate_variant

    evaluate_variant(study, args.seed, args.scale, args.variant, args.checkpoint, args.out)


def _generate(args: argparse.Namespace) -> None:
    from mars.decoding.generate.options import Options
    from mars.decoding.generate.terminal import answer, read_prompts

    given = {name: vars(args).get(name) for name in Options.__annotations__}
    status = answer(
        args.checkpoint,
        read_prompts(args.prompt, args.prompts, sys.stdin),
        as_it_comes=not args.no_stream,
        as_json=args.json,
        **{name: value for name, value in given.items() if value is not None},
    )
    if status:
        raise SystemExit(status)


def _throughput(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.throughput.threads if study.throughput else 1)
    from mars.evaluation.throughput import measure

    measure(study, args.seed, args.checkpoint, args.ar_checkpoint, args.out)


def _arrivals(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.throughput.threads if study.throughput else 1)
    from mars.evaluation.throughput.arrivals import measure_arrivals

    measure_arrivals(study, args.seed, args.checkpoint, args.out)


def _training_cost(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.training_cost.threads if study.training_cost else 1)
    from mars.training.cost_study import measure_training_cost

    measure_training_cost(study, args.seed, args.checkpoint, args.out)


def _table(args: argparse.Namespace) -> None:
    from mars.analysis.tables import write_table

    write_table(args.name, _study(args), args.results, args.out)


def _figure(args: argparse.Namespace) -> None:
    from mars.analysis.figures import draw

    draw(args.name, _study(args), args.results, args.out)


def _report(args: argparse.Namespace) -> None:
    from mars.analysis.report import write_report

    write_report(_study(args), args.results, args.figures, args.out)


def _chance(args: argparse.Namespace) -> None:
    from mars.evaluation.chance import write_chance

    write_chance(load_study(args.config), args.out)


def _environment(args: argparse.Namespace) -> None:
    from mars.analysis.environment import write_environment

    write_environment(args.out)


def _config(args: argparse.Namespace) -> None:
    if args.schema:
        text = json_schema()
    elif args.file == "-":
        import yaml

        text = dump_study(parse_study(yaml.safe_load(sys.stdin), "standard input"))
    else:
        text = dump_study(load_study(args.file or "config/embedded.yaml"))
    if args.out is None:
        sys.stdout.write(text)
    else:
        from mars.evaluation.records import write_atomically

        write_atomically(args.out, text)


def _unlock(args: argparse.Namespace) -> None:
    if said := jobs.clear_stale_lock(Path.cwd()):
        print(f"mars: {said}")


def _lm_eval(words: list[str]) -> None:
    """Hand the words to lm-eval as they are, with our model class and our tasks registered."""
    from lm_eval.__main__ import cli_evaluate

    import mars.evaluation.lm_eval_model  # (registers the model `mars`)

    if words and not {"-h", "--help", "--include_path"} & set(words):
        words = [*words, "--include_path", str(Path(mars.evaluation.__path__[0]) / "tasks")]
    sys.argv = ["mars lm-eval", *words]
    cli_evaluate()
