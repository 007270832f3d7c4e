"""A small run as its stages would leave it: directories, manifests and tables, made up by hand."""

import math
import random
from pathlib import Path

from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.pictures import Kept
from tests.factories import row

PROMPTS = ["make 24 from 8 3 1", "make 10 from 1 9 4", "make <b>7</b> from 3 3 1", "make 5 from 2 3 9"]


class FakeRun:
    """root/store/<name>-<hash> and root/runs/<project>/<name>, stage after stage."""

    def __init__(self, root: Path, run: str = "toy/first", steps: int = 4):
        self.root, self.run, self.steps, self.stages = Path(root), run, steps, []
        self.random = random.Random(1)

    @property
    def path(self) -> Path:
        return self.root / "runs" / self.run

    def stage(self, name: str, kind: str, *inputs: str, seconds: float = 1.0, complete: bool = True) -> Path:
        """A stage directory with its stage.json and, if complete, its manifest."""
        known = {s["name"]: s["directory"] for s in self.stages}
        directory = self.root / "store" / f"{name}-{files.hash_text(name)[:8]}"
        spec = {"run": self.run, "name": name, "kind": kind, "identity": directory.name.rsplit("-", 1)[1],
                "root": str(self.root), "inputs": {_role(i, kind): known[i] for i in inputs},
                "config": {"buffer": {"total_steps": self.steps}, "log": {"level": "INFO"}}}
        files.write_json(directory / "stage.json", spec)
        if complete:
            files.write_json(directory / files.MANIFEST, {"name": name, "identity": spec["identity"], "started": 0.0,
                                                          "commit": "0123456789ab", "seconds": seconds})
        self.stages.append({"name": name, "kind": kind, "directory": str(directory), "inputs": spec["inputs"]})
        return directory

    def view(self) -> Path:
        """runs/<project>/<name>, as a launch leaves it."""
        path = self.path
        project, name = self.run.split("/")
        files.write_json(path / "plan.json", {"project": project, "name": name, "stages": self.stages})
        (path / "stages").mkdir(exist_ok=True)
        for stage in self.stages:
            link = path / "stages" / stage["name"]
            link.unlink(missing_ok=True)
            link.symlink_to(Path("../../../../store") / Path(stage["directory"]).name)
        return path

    def data(self) -> "FakeRun":
        """tasks and curate: six rows read, four kept, two dropped."""
        raw = [row(records.RawTask, row=i, question=q) for i, q in enumerate([*PROMPTS, "", PROMPTS[0]])]
        tables.write(self.stage("tasks", "tasks", seconds=0.4) / "raw.parquet", records.RawTask, raw)
        directory = self.stage("curate", "curate", "tasks", seconds=2.1)
        tables.write(directory / "tasks.parquet", records.Task, [
            row(records.Task, task_id=f"t{i}", row=i, split="test" if i == 3 else "train", question=q, answer="24")
            for i, q in enumerate(PROMPTS)])
        tables.write(directory / "rejected.parquet", records.Rejected, [
            row(records.Rejected, row=4, operator="text_length_filter", reason="0 characters, needed 5"),
            row(records.Rejected, row=5, operator="document_deduplicator", reason="same as row 0")])
        self.stage("model", "model", seconds=0.8)
        return self

    def images(self, *images: bytes) -> "FakeRun":
        """Gives the prompt of the first task images."""
        curate, kept = Path(self.stages[1]["directory"]), Kept(self.root / ".pictures.tmp")
        tasks = [records.Task(**one) for one in tables.read(curate / "tasks.parquet", records.Task).to_pylist()]
        tasks[0].pictures = [kept.keep(one) for one in images]
        kept.write(curate)
        tables.write(curate / "tasks.parquet", records.Task, tasks)
        return self

    def sft(self) -> "FakeRun":
        directory = self.stage("sft", "train", "curate", "model", seconds=31.0)
        for step in range(1, self.steps + 1):
            self._step(directory, step, loss=2.0 * 0.99**step, entropy=1.5)
        return self

    def rft(self, model: str = "sft") -> "FakeRun":
        directory = self.stage("rft", "rft", "curate", model, seconds=141.0)
        for step in range(1, self.steps + 1):
            solved = 0.35 + 0.5 * (1 - math.exp(-3 * step / self.steps)) + self.random.gauss(0, 0.03)
            self._step(directory, step, loss=self.random.gauss(0, 0.01), entropy=1.2 - solved, reward=solved,
                       solve_rate=solved, kl=2e-4, clip_fraction=0.02, mismatch_mean=1e-6, mismatch_max=4e-6,
                       zero_variance_groups=3, failed_rows=0, response_tokens_mean=7 + solved, staleness_max=1,
                       rollout_seconds=0.2, rollout_tokens=3500, sync_seconds=0.04, explore_other_seconds=0.03,
                       explore_wait_seconds=0.1, publish_seconds=0.02)
            self._rollouts(directory, step, solved)
        return self

    def _step(self, directory: Path, step: int, **columns) -> None:
        plain = {"stage": directory.name, "step": step, "grad_norm": 0.5 + self.random.random(), "lr": 4e-4,
                 "trained_rows": 8, "trained_tokens": 9000, "train_seconds": 0.3 + 0.05 * self.random.random(),
                 "train_other_seconds": 0.02, "train_wait_seconds": 0.05, "seconds": 0.45,
                 "start": {"trainer: imports": 9.0} if step == 1 else None}
        tables.write(tables.step_file(directory, "steps", step), records.Step, [row(records.Step, **plain | columns)])

    def _rollouts(self, directory: Path, step: int, solved: float) -> None:
        made, trained = [], []
        for slot in range(8):
            accuracy = float(self.random.random() < solved)
            made.append(row(
                records.Experience, experience_id=f"{directory.name}/{step}/{slot // 2}/{slot % 2}", step=step,
                slot=slot, stage=directory.name, task_id=f"t{slot // 2}", group_id=f"{step}/{slot // 2}",
                prompt=PROMPTS[slot // 2], response="<script>alert(1)</script>" if slot == 0 else "8 * 3 * 1",
                response_tokens=[5] * 6, rollout_logprobs=[-0.5] * 6, action_mask=[1] * 6, reward=accuracy + 0.1,
                accuracy=accuracy, status="ok", weights_version=step - 1, weights_hash=f"{step:016x}", temperature=1.0,
                top_p=1.0, top_k=-1, engine="vllm 0.32.0", commit="0123456789ab", config_hash="89abcdef"))
            trained.append(row(records.Trained, experience_id=made[-1].experience_id, train_step=step,
                               train_logprobs=[-0.500002] * 6, staleness=slot % 2))
        tables.write(tables.step_file(directory, "experience", step), records.Experience, made)
        tables.write(tables.step_file(directory, "trained", step), records.Trained, trained)
        tables.write(tables.step_file(directory, "rollouts", step), records.Rollout, [
            row(records.Rollout, stage=directory.name, step=step, probe_max_difference=2e-6)])

    def evaluate(self, model: str, sampled: float, half: float = 0.03, **columns) -> "FakeRun":
        """columns: of every score besides."""
        name = f"evaluate_{model}"
        directory = self.stage(name, "evaluate", "curate", model, seconds=9.0)
        metrics = {"greedy_accuracy": sampled + 0.1, "sampled_accuracy": sampled, "pass@8": min(sampled + 0.3, 0.97)}
        tables.write(tables.step_file(directory, "scores", self.steps), records.Score, [
            row(records.Score, stage=directory.name, model=model, step=self.steps, taskset="test", metric=metric,
                value=value, low=value - half, high=min(value + half, 1.0), tasks=256, runs=8, **columns)
            for metric, value in metrics.items()])
        tables.write(tables.step_file(directory, "samples", self.steps), records.Sample, [
            row(records.Sample, stage=directory.name, model=model, step=self.steps, taskset="test", task_id=f"t{i}",
                decoding="sampled", prompt=PROMPTS[3], response=f"{i} + 1", response_tokens=[1, 2], reward=float(i),
                accuracy=float(i > 1), status="ok") for i in range(4)])
        return self

    def interim(self, *sampled: float) -> "FakeRun":
        """Evaluations on the way of the last stage, an rft: its weights of steps 1, 2, ... are so good."""
        name = Path(self.stages[-1]["directory"]).name
        for step, value in enumerate(sampled, 1):
            tables.write(tables.step_file(self.root / "store" / name, "scores", step), records.Score, [
                row(records.Score, stage=name, model=name, step=step, taskset="test", metric="sampled_accuracy",
                    value=value, low=value - 0.05, high=value + 0.05, tasks=64, runs=8)])
        return self

    def whole(self) -> "FakeRun":
        """tasks, curate, model, sft, rft, both evaluations; the report's directory, not yet made."""
        self.data().sft().evaluate("sft", 0.38).rft().evaluate("rft", 0.81).report()
        return self

    def report(self) -> Path:
        return self.stage("report", "report", *[s["name"] for s in self.stages], complete=False)


def whole(root: Path) -> FakeRun:
    """A run with all its stages and its directory under runs/."""
    made = FakeRun(root).whole()
    made.view()
    return made


def _role(name: str, kind: str) -> str:
    """What a stage of this kind reads of the stage of that name."""
    if kind in ("train", "rft", "evaluate"):
        return "tasks" if name == "curate" else "model"
    return name
