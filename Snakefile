# The order of the stages, and nothing else: what they are is decided in pipeline/plan.py, what they do in stages/.
#   snakemake --cores all                                                     the default recipe
#   snakemake --cores all --config overrides="algorithm.optimizer.lr=4e-4"    Hydra overrides, space-separated
import os
import sys

from snakemake.utils import min_version

min_version("9.0")
sys.path.insert(0, str(workflow.basedir))

from pipeline import view
from pipeline.launch import load_plan

PLAN = load_plan(config)


onstart:
    PLAN.freeze()


onsuccess:
    if not os.environ.get("OURO_SUMMARY_FOLLOWS"):  # `ouro run` prints it below snakemake's own last lines
        print(view.summary(view.of_plan(PLAN)))


rule all:
    input:
        PLAN.targets,
    default_target: True


for stage in PLAN.stages:

    rule:
        name:
            stage.name
        input:
            [ancient(manifest) for manifest in stage.upstream],
        output:
            update(stage.manifest),  # not deleted first: another run may have made it since, or be about to
        log:
            stage.error,
        threads: stage.threads
        params:
            kind=stage.kind,
            directory=subpath(output[0], parent=True),
        shell:
            "python -m stages.{params.kind} {params.directory:q}"
