# The one place that says what jobs ask for. A profile's set-resources says otherwise.
#
# slots: of SLOTS, so that no more jobs run at once than this machine bears (common.smk): a core
#     each, and where a GPU computes, a process each
# threads, of each rule: CPU threads of a process × processes, as the study says; a cluster's cores
# gpu: GPUs; each job claims its own as it starts, or has them from SLURM or Kubernetes
# mem_mb: for a cluster, whose profile says the minutes too (runtime); a job that is stopped at its
#     runtime goes on next time


def needs(processes=1, threads=1, gpus=1, **more):
    """A job with a model: processes that each have so many CPU threads, and GPUs if there are.

    Memory is that of a process, times processes; each further attempt asks for a step more, since
    most of them come after a time limit.
    """
    own = {"gpu": processes * gpus} if GPU else {}
    memory = processes * max(LEAST_MB, JOB_MB)
    asked = {
        "slots": min(SLOTS, processes if GPU else threads * processes),
        "mem_mb": lambda wildcards, attempt: memory + (attempt - 1) * LEAST_MB,
    }
    return asked | own | more


LEAST_MB = 4000  # asked of a cluster for a process with a model: some for CUDA, some to spare
ALONE = {"slots": SLOTS}  # nothing else may run on the machine
SMALL = {"slots": 1, "mem_mb": 2 * PROCESS_MB, "runtime": 15}
TRAINING, EVALUATION = study.training, study.evaluation
NEEDS = {
    "train": needs(TRAINING.processes, TRAINING.threads),
    "evaluate": needs(EVALUATION.processes, EVALUATION.threads, EVALUATION.gpus_per_process),
    "throughput": needs(gpus=EVALUATION.gpus_per_process, **ALONE),
    "arrivals": needs(gpus=EVALUATION.gpus_per_process, **ALONE),
    "training_cost": needs(**ALONE),
}
