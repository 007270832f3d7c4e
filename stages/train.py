"""Supervised training on demonstrations (sft), with DeepSpeed ZeRO.

Reads tasks.parquet (split sft) and a model; writes steps/, checkpoints/ and model/. The trainer is stages/learn.py, one
process per rank; this process starts it, follows its steps and reports them.
"""

from ouroboros.stages.follow import run_followed, train_alone

if __name__ == "__main__":
    run_followed(train_alone, __doc__)
