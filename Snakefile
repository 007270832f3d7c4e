# Only the order of the stages; pipeline/plan/plan.py defines them, and stages/ implements them.
#   snakemake --cores all                                                     the default recipe
#   snakemake --cores all --config overrides="algorithm.optimizer.lr=4e-4"    Hydra overrides, space-separated
#   snakemake --cores all --config overrides="-m seed=1,2"                    a sweep: shared stages run once
import os
import sys
import time

from snakemake.utils import min_version

min_version("9.0")

from ouroboros.pipeline.job.holders import hold
from ouroboros.pipeline.job.process_group import pass_on_signals
from ouroboros.commands.run import failure, outcome
from ouroboros.pipeline.plan import requests
from ouroboros.commands.run.console import STARTED
from ouroboros.commands.run.snakefile import follow_steadily, freeze, load_plan, refuse_idle_status
from ouroboros.commands.run.sweep import rules as named_rules

BEGAN = time.time()
PLAN = load_plan(config, ask=workflow.is_main_process)  # a job has no network
PRIORITIES = requests.priorities(PLAN.stages)


onstart:
    refuse_idle_status(workflow.executor_settings)  # known only now
    follow_steadily(workflow.executor_settings)
    freeze(PLAN)
    hold(PLAN.view)
    pass_on_signals()
    if os.environ.get("OURO_SUMMARY_FOLLOWS"):
        print(STARTED, file=sys.stderr, flush=True)  # later output goes to the log file only


onsuccess:
    if not os.environ.get("OURO_SUMMARY_FOLLOWS"):  # `ouro run` prints it below snakemake's own last lines
        print(outcome.conclude(outcome.of(PLAN)))


onerror:
    if not os.environ.get("OURO_SUMMARY_FOLLOWS"):
        print(outcome.conclude(outcome.of(PLAN)), failure.what_failed(outcome.of(PLAN), 1, since=BEGAN), sep="\n", file=sys.stderr)


rule all:
    input:
        PLAN.targets,
    default_target: True


for rule_name, stage in named_rules(PLAN.stages):

    rule:
        name:
            rule_name
        input:
            [ancient(manifest) for manifest in stage.upstream],
        output:
            update(stage.manifest),  # not deleted first: another run may have written it, or be about to
        log:
            stage.error,
        benchmark:
            str(PLAN.view / "benchmarks" / f"{rule_name}.tsv")  # in the run's view: a stage may be shared by runs
        threads: stage.threads
        priority: PRIORITIES[stage.manifest]
        resources:
            **requests.resources(stage),  # locally pipeline/job/claims.py assigns GPUs
        localrule: not requests.is_submitted(stage)
        params:
            before=requests.command_prefix(stage),
            module=stage.kind.module,
            directory=subpath(output[0], parent=True),
        shell:
            "{params.before}python -P -m {params.module} {params.directory:q}"
