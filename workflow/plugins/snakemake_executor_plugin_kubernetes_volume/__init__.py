"""Snakemake's Kubernetes executor where all pods share a volume that holds the checkout.

The plugin `snakemake-executor-plugin-kubernetes` submits jobs and watches them. It takes for
granted that pods share no files, and has each of them copy its inputs and outputs from and to an
object store; then what a stopped job leaves for the next one (trainer/, evaluation/), which is no
output, would be lost. Here it is told that they do share files, and its pods work in the checkout.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import snakemake_executor_plugin_kubernetes as plugin
from snakemake_executor_plugin_kubernetes import ExecutorSettings
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
)


class Executor(plugin.Executor):  # type: ignore[misc]
    """The plugin's, whose pods start in the folder in which Snakemake was started.

    What they download, and the rows they lay out, go there too: a pod's own disk is small.
    """

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        folder = Path(self.workflow.workdir_init)
        home = os.environ.get("HF_HOME") or folder / "results" / ".cache" / "huggingface"
        return f"cd {shlex.quote(str(folder))} && export HF_HOME={shlex.quote(str(home))}"
