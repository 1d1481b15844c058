# The one place that says what jobs ask for. A profile's set-resources says otherwise.
#
# slots: of SLOTS, so that no more jobs run at once than this machine bears (common.smk)
# threads, of each rule: CPU threads of a process × processes, as the study says; a cluster's cores
# gpu: GPUs; each job claims its own as it starts, or has them from SLURM or Kubernetes
# mem_mb, runtime (minutes): for a cluster; a job that is stopped at its runtime goes on next time


def needs(processes=1, threads=1, gpus=1, **more):
    """A job with a model: processes that each have so many CPU threads, and GPUs if there are.

    Memory is that of a process, times processes, times attempts: more where it was too little.
    """
    own = {"gpu": processes * gpus} if GPU else {}
    asked = {
        "slots": min(SLOTS, threads * processes),
        "mem_mb": lambda wildcards, attempt: attempt * processes * max(LEAST_MB, JOB_MB),
        "runtime": 1440,
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
