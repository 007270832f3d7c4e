"""Runs a Data-Juicer recipe over rows in memory."""

import tempfile
from pathlib import Path

from ouroboros.operators import juicer, shards


def run_recipe(rows, recipe, processes=1, size=1000, priority=()):
    """Returns the kept and the dropped rows of a recipe that runs over shards of `size` rows."""
    parts = [rows[begin:begin + size] for begin in range(0, len(rows), size)] or [[]]
    with tempfile.TemporaryDirectory() as directory:
        done = Path(directory) / "done"

        def finish(shard, kept, dropped):
            shards._save(done / str(shard), (kept, dropped))

        job = shards.Job(Path(directory), len(parts), lambda shard: juicer.required(parts[shard]), finish,
                         [*juicer.build(recipe), *priority])
        shards.run(job, processes, lambda: None)
        found = [shards._load(done / str(shard)) for shard in range(len(parts))]
    return ([{k: v for k, v in row.items() if not k.startswith("__dj__")} for kept, _ in found for row in kept],
            [one for _, dropped in found for one in dropped])
