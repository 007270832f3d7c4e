"""verifiers' own evaluation against the recorded endpoint, as a workflow."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from ouroboros.pipeline.store.locked import interpreter

LOCAL = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}


def evaluated(task, endpoint, root, agents):
    """The sum of each agent's rewards in `vf-eval`, by name. root: of the store. agents: names of its seats."""
    truth = json.loads(task.answer)
    python = interpreter(truth["lock"], root)
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "run.json")
        config.write_text(json.dumps({
            "env": truth["config"] | dict.fromkeys(agents, LOCAL), "model": endpoint.model, "push": False,
            "client": {"type": "eval", "base_url": endpoint.base_url, "api_key_var": "MY_KEY"}, "rich": None,
            "output_dir": place, "sampling": {"temperature": 0},
            "select": {"include": {"idx": [str(truth["task"]["idx"])]}}}))
        done = subprocess.run([python.parent / "vf-eval", "@", str(config)], capture_output=True, text=True, cwd=place,
                              env=os.environ | {"MY_KEY": endpoint.api_key, "HOME": place}, check=False)
        [traces] = Path(place).rglob("traces.jsonl") if done.returncode == 0 else [None]
        if traces is None:
            raise RuntimeError(done.stdout[-1000:] + done.stderr[-1000:])
        [episode] = map(json.loads, traces.read_text().splitlines())
    return {one["agent"]["name"]: sum(reward["score"] * reward["weight"] for reward in one["rewards"].values())
            for one in episode["traces"]}
