"""A game of several turns: a number is guessed, and each guess is answered by the environment."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    secret: int


class Guess(vf.Task[Data]):
    pass


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as player:
            segment, turns = await player.turn(), 1
            while segment.last_reply != str(task.data.secret) and turns < 4:
                small = int(segment.last_reply) < task.data.secret
                segment, turns = await player.turn("more" if small else "less"), turns + 1
            player.trace.record_reward("found", float(segment.last_reply == str(task.data.secret)), 1.0 / turns)


class Guesses(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self):
        return [Guess(Data(prompt=f"0 to {top}?", secret=top - 2), self.config.task) for top in (9, 7)]


__all__ = ["Game", "Guesses"]
