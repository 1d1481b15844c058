"""What each command does: thin, one function a command, named after it.

What a command needs is imported inside it, so that ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from mars import jobs
from mars.config import (
    Study,
    dump_study,
    json_schema,
    load_study,
    located,
    parse_study,
    work_offline,
)


def _open(file: str) -> Study:
    """Read a study; one with a data_root has everything there, and asks the hub nothing."""
    study = load_study(file)
    if study.data_root is not None:
        work_offline()
    return study


def _study(
    args: argparse.Namespace,
    threads: Callable[[Study], int] | None = None,
    gpus: Callable[[Study], int] = lambda study: 1,
) -> Study:
    """Read the study a command is about, check what it names, set torch's threads, claim GPUs."""
    study = _open(args.config)
    if hasattr(args, "variant"):
        study.check_run(args.seed, args.scale, args.variant, args.config)
    for name in ("checkpoint", "ar_checkpoint", "parent"):
        if hasattr(args, name):
            setattr(args, name, located(getattr(args, name), study.data_root))
    if threads is not None:
        count = threads(study)
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(count)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        jobs.claim_gpus(gpus(study))
        import torch

        torch.set_num_threads(count)
        _load_plugins(study, args.config)
    return study


def _load_plugins(study: Study, source: str) -> list[str]:
    """Have what a study's plug-ins bring at hand, and say which they are."""
    from mars.plugins import find_plugins, resolve_plugins

    study = resolve_plugins(study, [Path(source).parent], source)
    if not find_plugins(study, source):
        return []
    from mars.plugins.load import load_plugins

    return [f"plugins: {plugin}" for plugin in load_plugins(study, source)]


def check(args: argparse.Namespace) -> None:
    study, name = _open(args.config), args.name or args.config
    lines = _load_plugins(study, name)
    if lines:
        from mars.plugins.probe import probe_plugins

        lines += probe_plugins(study, name)
    from mars.data import check_rows
    from mars.evaluation.check import check_bases, check_benchmarks, check_given, check_launcher
    from mars.evaluation.records import write_atomically

    lines += check_launcher(study, name)
    bases = check_bases(study, name)
    lines += [f"scales.{scale}.base: {source.checkpoint}" for scale, source in bases.items()]
    lines += check_given(study, name)
    if study.checkpoints == "trained":
        lines += check_rows(study, {s: source.tokenizer for s, source in bases.items()}, name)
    lines += check_benchmarks(study, bases, name)
    for line in lines:
        if "warning:" in line:
            print(f"{name}: {line}", file=sys.stderr)
    write_atomically(args.out, "\n".join([*lines, *filter(None, [args.stamp])]) + "\n")


def data(args: argparse.Namespace) -> None:
    study = _open(args.config)
    seed = study.seeds[0] if args.seed is None else args.seed
    scale = args.scale or next(iter(study.scales))
    study.check_run(seed, scale, "base", args.config)
    drafts = [made.block_size for made in study.variants.values() if made.objective == "mars"]
    from mars.data.preview import preview
    from mars.data.terminal import page
    from mars.models import load_tokenizer

    told, wrong = preview(
        study.data,
        load_tokenizer(study.base(scale)),
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


def train(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.training.threads)
    from mars.training.run import train_variant

    train_variant(study, args.seed, args.scale, args.variant, args.parent, args.out)


def pretrain(args: argparse.Namespace) -> None:
    jobs.claim_gpus(1)
    from mars.training.pretrain import pretrain

    pretrain(args.name, args.out)


def evaluate(args: argparse.Namespace) -> None:
    if args.rescore:
        study = _study(args, attrgetter("evaluation.threads"), lambda study: 0)
        from mars.evaluation.run import rescore

        rescore(study, args.seed, args.scale, args.variant, args.checkpoint, args.out)
        return
    study = _study(
        args,
        lambda study: study.evaluation.threads,
        lambda study: (
            study.evaluation.gpus_per_process
            * (study.evaluation.processes if args.share is None else 1)
        ),
    )
    from mars.evaluation import shares
    from mars.evaluation.run import evaluate_variant
    from mars.models import visible_gpus

    if args.share is not None:
        share = shares.Share.parse(args.share)
        shares.decode_share(study, args.variant, args.checkpoint, args.out, share)
        return
    gpus = visible_gpus()
    each = study.evaluation.gpus_per_process
    count = shares.processes(study.evaluation.processes, gpus, each)
    if count > 1:
        shares.take_in_leftovers(args.out)
        command = [sys.executable, "-m", "mars", "evaluate"]
        for name in ("config", "seed", "scale", "variant", "checkpoint", "out"):
            command += [f"--{name}", str(getattr(args, name))]
        shares.run_shares(command, count, gpus, each, {jobs.PARENT_VARIABLE: str(os.getpid())})
    evaluate_variant(study, args.seed, args.scale, args.variant, args.checkpoint, args.out)


def generate(args: argparse.Namespace) -> None:
    from mars.decoding.generate.options import Options
    from mars.decoding.generate.terminal import answer, read_prompts

    given = {name: vars(args).get(name) for name in Options.__annotations__}
    if args.tau and len(args.tau) == 1:
        [given["tau"]] = args.tau  # of all prompts
    status = answer(
        args.checkpoint,
        read_prompts(args.prompt, args.prompts, sys.stdin),
        as_it_comes=not args.no_stream,
        as_json=args.json,
        **{name: value for name, value in given.items() if value is not None},
    )
    if status:
        raise SystemExit(status)


def _grid_threads(study: Study) -> int:
    return study.throughput.threads if study.throughput else 1


def throughput(args: argparse.Namespace) -> None:
    study = _study(args, _grid_threads, attrgetter("evaluation.gpus_per_process"))
    from mars.evaluation.throughput import measure

    measure(study, args.seed, args.checkpoint, args.ar_checkpoint, args.out)


def arrivals(args: argparse.Namespace) -> None:
    study = _study(args, _grid_threads, attrgetter("evaluation.gpus_per_process"))
    from mars.evaluation.throughput.arrivals import measure_arrivals

    measure_arrivals(study, args.seed, args.checkpoint, args.out)


def training_cost(args: argparse.Namespace) -> None:
    study = _study(args, lambda study: study.training_cost.threads if study.training_cost else 1)
    from mars.training.cost_study import measure_training_cost

    measure_training_cost(study, args.seed, args.checkpoint, args.out)


def tidy(args: argparse.Namespace) -> None:
    from mars.analysis.tidy import write_tidy

    write_tidy(_study(args), args.results, args.out)


def tidy_throughput(args: argparse.Namespace) -> None:
    from mars.analysis.tidy import write_throughput

    write_throughput(_study(args), args.results, args.out)


def table(args: argparse.Namespace) -> None:
    from mars.analysis.tables import write_table

    write_table(args.name, _study(args), args.results, args.out, args.intervals)


def figure(args: argparse.Namespace) -> None:
    from mars.analysis.figures import draw

    draw(args.name, _study(args), args.results, args.out)


def report(args: argparse.Namespace) -> None:
    from mars.analysis.report import write_report

    write_report(_study(args), args.results, args.figures, args.out)


def results(args: argparse.Namespace) -> None:
    from rich.console import Console

    from mars.analysis import terminal
    from mars.analysis.tidy import locate

    study, folder = locate(args.name)
    found = terminal.find(args.table, study, folder)
    found = terminal.narrow(found, study, args.scale, args.variant, args.benchmark)
    if args.json:
        print(json.dumps(terminal.as_json(found, study), ensure_ascii=False))
    else:
        wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no width of its own
        terminal.draw(found, study, folder, Console(width=wide, highlight=False))


def notebook(args: argparse.Namespace) -> None:
    from mars.analysis.notebooks import execute

    execute(args.notebook, args.results, args.out)


def compare(args: argparse.Namespace) -> None:
    from mars.analysis.compare.page import write_comparison

    study = load_study(args.config)
    write_comparison(study, args.results, args.variant, args.baselines, args.margin, args.out)


def chance(args: argparse.Namespace) -> None:
    from mars.evaluation.chance import write_chance

    write_chance(load_study(args.config), args.out)


def environment(args: argparse.Namespace) -> None:
    from mars.analysis.environment import write_environment

    write_environment(args.out)


def config(args: argparse.Namespace) -> None:
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


def plan(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from mars.cli.presentation import presentation
    from mars.planning.cost import make_plan
    from mars.planning.rates import load_rates

    study = load_study(args.config, args.set)
    toy = all(scale.base.startswith("embedded:") for scale in study.scales.values())
    device = args.device or ("cpu-core" if toy else "h200")
    rates = load_rates(device, args.flops, args.rates)
    made = make_plan(study, rates, presentation(study))
    if args.json:
        sys.stdout.write(json.dumps(asdict(made)) + "\n")
        return
    from rich.console import Console

    from mars.planning.terminal import show

    show(made, Console())


def fetch(args: argparse.Namespace) -> None:
    study = load_study(args.config, args.set)
    from mars.planning.fetch import Fetcher
    from mars.planning.manifest import FetchError, Manifest
    from mars.planning.wanted import wanted

    # What lies below data_root already is no hub dataset any more, and is still to be looked at.
    items = wanted(load_study(args.config, [*args.set, "data_root=null"]))
    to = os.path.expanduser(args.to) if args.to else study.data_root
    if not items:
        print("nothing to fetch: the study needs no network")
        return
    if to is None:
        raise FetchError(f"{args.config}: data_root is not set; set it, or name a folder with --to")
    if args.verify:
        print(Manifest(Path(to)).verify())
        return
    fetcher = Fetcher(Path(to))
    if args.list:
        for item in items:
            print(fetcher.told(item))
        return
    fetcher.fetch(items)
    hint = "" if to == study.data_root else f"; set data_root: {to}"
    print(f"{to}: everything is there{hint}")


def gpus(args: argparse.Namespace) -> None:
    jobs.claim_gpus(args.count)
    try:
        os.execvp(args.command[0], args.command)
    except FileNotFoundError:
        raise FileNotFoundError(f"{args.command[0]}: no such command; check its name") from None


def unlock(args: argparse.Namespace) -> None:
    if said := jobs.clear_stale_lock(Path.cwd()):
        print(f"mars: {said}")


def lm_eval(words: list[str]) -> None:
    """Hand the words to lm-eval as they are, with our model class and our tasks registered."""
    from lm_eval.__main__ import cli_evaluate

    import mars.evaluation.lm_eval_model  # (registers the model `mars`)
    from mars.evaluation.real.files import closed_refused
    from mars.evaluation.real.graders import code_in_the_sandbox

    if words and not {"-h", "--help", "--include_path"} & set(words):
        words = [*words, "--include_path", str(Path(mars.evaluation.__path__[0]) / "tasks")]
    sys.argv = ["mars lm-eval", *words]
    with code_in_the_sandbox(), closed_refused():
        cli_evaluate()
