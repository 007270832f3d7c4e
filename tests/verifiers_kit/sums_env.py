"""One turn: the double of a number; a reward with a weight, and a metric."""

import time

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if trace.last_reply == "nan":
            return float("nan")
        if trace.last_reply == "text":
            return "no number"
        if trace.last_reply == "hang":
            time.sleep(600)
        if trace.last_reply == "die":
            import os

            os._exit(3)
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        return [Sum(Data(prompt=f"{i}+{i}?", system_prompt="Add.", answer=str(2 * i)), self.config.task)
                for i in range(20)]


__all__ = ["Sums"]
