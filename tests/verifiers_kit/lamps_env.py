"""A tool: how many of something there are, counted by a server of tools."""

import verifiers.v1 as vf

STOCK = {"lamp": 12, "chair": 4}


class Store(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "store"

    @vf.tool
    def count(self, item: str) -> str:
        """How many there are."""
        return str(STOCK[item])


class Data(vf.TaskData):
    answer: str


class Config(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Count(vf.Task[Data, vf.State, Config]):
    @classmethod
    def toolsets(cls, config: Config) -> list[vf.Toolset]:
        return [Store(config.tools)]

    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class LampsConfig(vf.TasksetConfig):
    task: Config = Config()


class Lamps(vf.Taskset[Count, LampsConfig]):
    def load(self):
        return [Count(Data(prompt=f"{one}s?", answer=str(number)), self.config.task) for one, number in STOCK.items()]


__all__ = ["Lamps"]

if __name__ == "__main__":
    Store.run()
