"""What a change runs again and what it leaves alone: a finished study, one change at a time."""

from __future__ import annotations

import json

import pytest

MARS = ["mars_b4", "mars_b8", "mars_b16", "mars_no_sft_b4", "mars_no_sft_b8", "mars_no_sft_b16"]
MARS += ["mars_no_sft_stream_b4"]


@pytest.fixture(scope="module")
def finished(make_checkout):
    made = make_checkout()
    done = made.run("snakemake", "--cores", "8", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slots=" in done.stdout + done.stderr
    return made


def test_snakemakes_own_report_has_every_figure_with_its_caption(finished):
    done = finished.run("snakemake", "--report", "report.html")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (finished.folder / "report.html").read_text(encoding="utf-8")
    captions = sorted((finished.folder / "workflow" / "captions").glob("*.rst"))
    assert {path.stem for path in captions} == {*figures(finished), "report"}
    for path in captions:
        lead = path.read_text(encoding="utf-8").split("**")[1].replace("\n", " ")
        assert json.dumps(f"<strong>{lead}</strong>")[1:-1] in page.replace("\\n", " "), path.name
    for name in figures(finished):
        assert f"{name}.png" in page


def figures(made):
    return {path.stem for path in (made.folder / "figures" / "embedded").glob("*.png")}


@pytest.fixture
def changed(finished):
    """The jobs that a change of one file calls for; the file is put back afterwards."""
    kept = {}

    def jobs(path, text="\n# changed\n", *words):
        file = finished.folder / path
        kept[file] = (file.read_bytes(), file.stat())
        finished.append(path, text)
        return finished.jobs(*words)

    yield jobs
    for file, (content, _) in kept.items():
        file.write_bytes(content)


def rules(jobs):
    return {job.split()[0] for job in jobs}


def variants(jobs, rule):
    return {job.split("/")[-2] for job in jobs if job.startswith(f"{rule} ")}


def test_a_second_run_does_nothing(finished):
    assert finished.jobs() == set()


def test_the_configuration_as_it_was_run_is_the_same_study(finished):
    assert finished.jobs("--configfile", "results/embedded/config.yaml") == set()


def test_an_objective_retrains_its_own_variants_and_what_follows(changed):
    jobs = changed("mars/training/objectives/mars.py")
    assert variants(jobs, "train") == set(MARS)
    assert variants(jobs, "evaluate") == set(MARS)
    assert {"throughput", "environment", "report", "table", "figure_frontier"} <= rules(jobs)


def test_the_objective_of_the_parent_retrains_all_that_descend_from_it(changed):
    jobs = changed("mars/training/objectives/ar_sft.py")
    everything = {*MARS, "ar_sft", "ar_sft_10ep", "block_diffusion_b4"}
    assert variants(jobs, "train") == everything
    assert variants(jobs, "evaluate") == everything  # the base stays


def test_a_decoder_evaluates_again_without_training(changed):
    jobs = changed("mars/decoding/block_diffusion.py")
    assert variants(jobs, "evaluate") == {"block_diffusion_b4"}
    assert "train" not in rules(jobs)
    assert "throughput" not in rules(jobs)


def test_the_arrival_trace_is_served_again_without_the_grid(changed):
    jobs = changed("mars/evaluation/throughput/trace.py")
    assert {"arrivals", "table", "figure_arrivals", "report"} <= rules(jobs)
    assert not rules(jobs) & {"train", "evaluate", "throughput"}


def test_a_setting_of_the_trace_leaves_the_grid_alone(finished):
    jobs = finished.jobs("--config", "throughput={trace: {patience: 3}}")
    assert "arrivals" in rules(jobs)
    assert not rules(jobs) & {"train", "evaluate", "throughput"}


def test_a_setting_of_the_cost_study_leaves_everything_else_measured_alone(finished):
    jobs = finished.jobs("--config", "training_cost={steps: 3}")
    assert {"training_cost", "environment", "report"} <= rules(jobs)
    assert "table results/embedded/tables/training_overhead.csv" in jobs
    assert not rules(jobs) & {"train", "evaluate", "throughput", "arrivals"}


def test_a_figure_only_redraws_itself(changed):
    jobs = changed("mars/analysis/figures/frontier.py")
    assert rules(jobs) == {"figure_frontier", "report"}


def test_the_report_alone_is_written_again(changed):
    assert rules(changed("mars/analysis/report/__init__.py")) == {"report"}


def test_a_notebook_alone_is_run_again(changed):
    jobs = changed("workflow/notebooks/01_frontier.ipynb", "\n")
    assert jobs == {"notebook reports/embedded/notebooks/01_frontier.html"}


def test_statistics_touch_neither_training_nor_evaluation(changed):
    assert not rules(changed("mars/analysis/statistics.py")) & {"train", "evaluate", "throughput"}


@pytest.mark.parametrize(
    "path", ["mars/cli/commands.py", "mars/config/sections.py", "mars/jobs.py", "mars/__init__.py"]
)
def test_what_shapes_no_result_runs_nothing(changed, path):
    assert changed(path) == set()


def test_a_file_written_again_as_it_was_runs_nothing(changed):
    assert changed("mars/training/trainer.py", "") == set()


def test_the_learning_rate_retrains_everything(finished):
    jobs = finished.jobs("--config", "training={learning_rate: 0.5}")
    assert len([job for job in jobs if job.startswith("train ")]) == 14


@pytest.mark.parametrize(
    "setting",
    [
        "training={threads: 2}",
        "training={logging_steps: 7}",
        "training={row_length: 256, micro_batch_tokens: 2048, activation_checkpointing: true}",
        "training={processes: 2}",
        "training={accelerate: config/accelerate/one_gpu.yaml}",
        "evaluation={processes: 2}",
        "evaluation={gpus_per_process: 2}",
        "scales={toy-s: {paper: 7B}}",
    ],
)
def test_settings_that_shape_no_model_retrain_nothing(finished, setting):
    jobs = finished.jobs("--config", setting)
    assert not rules(jobs) & {"train", "evaluate", "throughput"}
    assert "report" in rules(jobs)


@pytest.mark.parametrize("gpus", ["", "0", "0,1"])
def test_whether_this_machine_has_gpus_runs_nothing(finished, gpus):
    """As where a study that a cluster has finished is looked at from a login node."""
    assert finished.jobs(CUDA_VISIBLE_DEVICES=gpus) == set()
    together = finished.jobs("--config", "training={processes: 2}", CUDA_VISIBLE_DEVICES=gpus)
    assert not rules(together) & {"train", "evaluate", "throughput", "arrivals", "training_cost"}


def test_a_threshold_evaluates_the_mars_variants_again(finished):
    jobs = finished.jobs("--config", "evaluation={thresholds: [1.0, 0.9]}")
    assert variants(jobs, "evaluate") == set(MARS)
    assert "train" not in rules(jobs)


def test_a_second_seed_leaves_the_first_alone(finished):
    jobs = finished.jobs("--config", "seeds=[0,1]")
    measured = [job for job in jobs if job.split()[0] in ("train", "evaluate", "throughput")]
    assert len(measured) == 14 + 16 + 1
    assert all("/seed1/" in job for job in measured)


def test_a_new_variant_runs_alone(finished):
    new = (
        "{mars_b2: {objective: mars, parent: ar_sft, stages: [2], block_size: 2, scales: [toy-s]}}"
    )
    jobs = finished.jobs("--config", f"variants={new}")
    assert variants(jobs, "train") == {"mars_b2"}
    assert variants(jobs, "evaluate") == {"mars_b2"}


def test_a_learning_rate_of_its_own_retrains_one_variant(finished):
    jobs = finished.jobs("--config", "variants={mars_b8: {learning_rate: 0.5}}")
    assert variants(jobs, "train") == variants(jobs, "evaluate") == {"mars_b8"}
