"""Behind one of three doors is a prize; each look costs 0.1. Its server: `python -m doors_env PORT`."""

import os
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Open(Action):
    door: int


class Seen(Observation):
    text: str = ""


class Doors(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._prize, self._state = 1, State(episode_id="0", step_count=0)

    def reset(self, seed=None, episode_id=None, prize=1, **more):
        self._prize = prize
        return Seen(text="doors 1 to 3", done=False, reward=None)

    def step(self, action, timeout_s=None, **more):
        if action.door == 13:
            os._exit(3)
        if action.door == 14:
            raise ValueError("the door is stuck")
        found = action.door == self._prize
        return Seen(text="the prize" if found else "nothing", done=found, reward=1.0 if found else -0.1)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_app(Doors, Open, Seen, env_name="doors", max_concurrent_envs=8)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
