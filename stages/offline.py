"""Offline reinforcement fine-tuning (mode=train): trains on stored experience, without an engine.

Reads a model and the experience/ and rollouts/ of a stage of kind `rollout`; writes trained/, steps/, checkpoints/ and
model/. The trainer is stages/learn.py; batches are cut by stages/learner/batches/recorded.py.
"""

from ouroboros.stages.follow import run_followed, train_alone

if __name__ == "__main__":
    run_followed(train_alone, __doc__)
