"""A game of several turns between two agents: each names a number, the larger one wins a round of two."""

import verifiers.v1 as vf


class Round(vf.Task[vf.TaskData]):
    pass


class DuelConfig(vf.EnvConfig):
    left: vf.AgentConfig = vf.AgentConfig()
    right: vf.AgentConfig = vf.AgentConfig()


class Duel(vf.Env[DuelConfig]):
    async def run(self, task, agents):
        won = {"left": 0, "right": 0}
        async with agents.left.interaction(task) as left, agents.right.interaction(task) as right:
            said = ()
            for _ in range(2):
                replies = [(await one.turn(*said)).last_reply for one in (left, right)]
                best = max(replies)
                won["left"] += replies[0] == best
                won["right"] += replies[1] == best
                said = (f"best {best}",)
        for one, name in ((left, "left"), (right, "right")):
            one.trace.record_reward("rounds", won[name])


class Duels(vf.Taskset[Round, vf.TasksetConfig]):
    def load(self):
        return [Round(vf.TaskData(prompt="Number?"), self.config.task)]


__all__ = ["Duel", "Duels"]
