# The one place that says what jobs ask for. A profile's set-resources says otherwise.
#
# slots: of SLOTS, so that no more jobs run at once than this machine bears (common.smk)
# gpu: GPUs; each job claims its own as it starts, or has them from SLURM or Kubernetes
# mem_mb, runtime (minutes): for a cluster; a job that is stopped at its runtime goes on next time


def needs(processes=1, threads=1, **more):
    """A job with a model: processes that each have so many CPU threads, and a GPU if there are."""
    gpus = {"gpu": GPU * processes} if GPU else {}
    asked = {
        "slots": min(SLOTS, threads * processes),
        "mem_mb": JOB_MB * processes,
        "runtime": 1440,
    }
    return asked | gpus | more


ALONE = {"slots": SLOTS}  # nothing else may run on the machine
SMALL = {"slots": 1, "mem_mb": 2 * PROCESS_MB, "runtime": 15}
TRAINING, EVALUATION = study.training, study.evaluation
NEEDS = {
    "train": needs(TRAINING.processes, TRAINING.threads),
    "evaluate": needs(EVALUATION.processes, EVALUATION.threads),
    "throughput": needs(**ALONE),
    "arrivals": needs(**ALONE),
    "training_cost": needs(**ALONE),
}
