"""Every family of families.py: the trainer's log-probs are those of transformers, also after steps of sft and rft.

`make test-families` writes the table of docs/models.md; `make test` runs FEW, one of each kind of obstacle.
"""

import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tabulate import tabulate

from ouroboros.pipeline.check.engine import cpu_problem
from ouroboros.pipeline.store.architecture import untrainable
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.files import CONF
from ouroboros.pipeline.store.model_engine import engine_problem
from ouroboros.stages import model_size
from ouroboros.stages.learner import separation
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import Critic
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.way import decoder
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.protocol.hugging_face import set_exact_attention
from tests import families
from tests.configs import TINY, overridden
from tests.factories import TEXT

PAGE = CONF.parent / "docs" / "models.md"
TABLE = re.compile(r"^\| family .*?\n(?=\n|\Z)", re.M | re.S)
FEW = {"granite": "packed", "nemotron_h": "packed", "gpt_oss": "packed", "gemma2": "packed", "nemotron": "rows",
       "llama4_text": "rows"}
# vLLM runs them, with other log-probs; dots1: not tried; step3p7: with another vision_config
DIFFERENT = ("apertus", "dots1", "lfm2_moe", "step3p7")
LENGTHS = (40, 18, 21, 33)  # longer than the windows and chunks of families.py
RFT = ("algorithm.algorithm_type=grpo", "model.max_prompt_tokens=24", "model.max_response_tokens=40")
SFT = ("algorithm.algorithm_type=sft", *RFT[1:])


def rows() -> list[Row]:
    """The first two share a prompt. Advantages as GRPO's, of rewards 1, 0, 0, 1."""
    random = np.random.default_rng(3)
    tokens = [random.integers(5, 380, length).tolist() for length in LENGTHS]
    tokens[1][:6] = tokens[0][:6]
    return [Row(f"r{i}", some, 6, [1] * (len(some) - 6), {"advantages": [1.0, -1.0][i % 3 > 0], "is_expert": False})
            for i, some in enumerate(tokens)]


def own_logprobs(actor: Actor, row: Row) -> np.ndarray:
    """By transformers' own forward of a copy of the weights."""
    model = actor.zero.module.model
    text = decoder(model)  # towers keep theirs
    kept = text.config._attn_implementation
    set_exact_attention(model)
    tokens = torch.tensor([row.tokens])
    with torch.no_grad():
        found = model(input_ids=tokens, use_cache=False).logits.float().log_softmax(-1)[0, :-1]
    text.set_attn_implementation(kept)
    return found.gather(-1, tokens[0, 1:, None])[row.prompt_length - 1 :, 0].numpy()


def trained(path, process, family: str, varied: int | None = None, *more: str) -> tuple[str, str, float]:
    """(way, why, largest difference of a log-prob from transformers' own over two steps). more: settings."""
    families.make(family, path, varied=varied)
    config, far = overridden(*TINY, *RFT, *more), 0.0
    actor = Actor(path, config, process)
    separation.prove_policy(actor, config, TEXT)
    for words in (SFT, RFT):
        some, settings = rows(), overridden(*TINY, *words)
        before = actor.score_rows(some)
        for row, logprobs in zip(some, before, strict=True):
            row.columns["old_logprobs"] = row.columns["rollout_logprobs"] = row.spread(logprobs)
        result = actor.step(some, Objective(settings), 1e-3, 1)
        assert np.isfinite(result.loss)
        assert result.grad_norm > 0
        for scores in (before, result.logprobs):  # of the same weights, in evaluation and in training
            np.testing.assert_allclose(np.concatenate(scores), np.concatenate(before), atol=2e-4)
        after = actor.score_rows(some)
        far = max(far, *(np.abs(a - own_logprobs(actor, row)).max() for a, row in zip(after, some, strict=True)))
        assert np.abs(np.concatenate(after) - np.concatenate(before)).max() > 1e-4
    assert_checkpoint_is_whole(path, actor, config, process, after)
    return actor.way.name, actor.way.why, float(far)


def assert_checkpoint_is_whole(path, actor, config, process, logprobs) -> None:
    """A checkpoint has the tensors of the model that was read, buffers too, and gives the same log-probs."""
    out = path / "checkpoint"
    shutil.copytree(path, out, ignore=shutil.ignore_patterns("*.safetensors"))
    policy.export(actor.full_state(), actor.zero.module.model, out)
    read, written = (load_file(directory / "model.safetensors") for directory in (path, out))
    assert {name: tensor.shape for name, tensor in written.items()} == {
        name: tensor.shape for name, tensor in read.items()}
    again = Actor(out, config, process)
    separation.prove_policy(again, config, TEXT)
    np.testing.assert_allclose(np.concatenate(again.score_rows(rows())), np.concatenate(logprobs), atol=1e-5)


@pytest.mark.parametrize(("family", "way", "words"), [
    *((*one, ()) for one in FEW.items()), ("granitemoehybrid", "rows", ("trainer.zero_stage=3",))])
def test_a_family_of_each_kind_and_a_hybrid_whose_weights_are_gathered_for_each_layer(
        tmp_path, process, family, way, words):
    found, _, far = trained(tmp_path, process, family, None, *words)
    assert (found, far < 1e-4) == (way, True)


def test_a_critic_goes_by_rows_too(tmp_path, process):
    families.make("nemotron", tmp_path)
    config = overridden(*TINY, *RFT, "algorithm.algorithm_type=ppo")
    critic = Critic(tmp_path, config, process)
    separation.prove_critic(critic, config, TEXT)
    assert critic.way.name == "rows"
    torch.nn.init.normal_(critic.zero.module.head.weight)
    alone = [critic.values([row])[0] for row in rows()]
    for one, together in zip(alone, critic.values(rows()), strict=True):
        np.testing.assert_allclose(one, together, atol=1e-4)


@pytest.fixture(scope="module")
def table():
    """The lines of docs/models.md; written there when every family has one."""
    lines: list[tuple] = []
    yield lines
    heads = "family", "engine", "because", "rows go", "because", "largest difference, nats"
    text = tabulate(sorted(lines), heads, "github", disable_numparse=True)
    print(f"\n\n{text}")
    if len(lines) == len(families.listed()):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: f"{text}\n", page), encoding="utf-8")


@pytest.mark.families
@pytest.mark.parametrize("family", families.listed())
def test_every_family(tmp_path, process, table, family):
    engine, because = families.listed()[family]
    if engine == "none":
        table.append((family, engine, because, "refused", refusal(tmp_path, family), ""))
        return
    way, why, far = trained(tmp_path, process, family)
    table.append((family, engine, because, way, why, f"{far:.1e}"))
    assert far < 1e-4


@pytest.mark.families
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", [name for name, (engine, _) in families.listed().items() if engine != "none"])
def test_other_configurations_of_every_family(tmp_path, process, family, seed):
    assert trained(tmp_path, process, family, seed)[2] < 1e-4


def refusal(path, family: str) -> str:
    """The sentence before anything starts."""
    if family not in families.SHAPES | families.SEEING:
        return untrainable({"model_type": family}, 64)
    families.config(family).save_pretrained(path)
    with pytest.raises(ModelError) as raised:
        model_size.build(str(path))
    return str(raised.value).replace(str(path), "PATH")


def test_the_page_has_every_family():
    table = TABLE.search(PAGE.read_text(encoding="utf-8")).group()
    cells = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    assert {family.strip(): engine.strip() for family, engine in cells} == {
        family: engine for family, (engine, _) in families.listed().items()}


def test_the_engine_of_a_family_is_one_that_config_check_takes():
    found = families.listed()
    assert families.SHAPES.keys() | families.SEEING.keys() == found.keys() - {"internlm2"}
    for family in found.keys() - {"internlm2", "gemma3n"}:
        said = families.config(family).to_diff_dict() | {"architectures": [families.architecture(family)]}
        refused = engine_problem(said, 64) or cpu_problem(said, "float32", {})
        assert (found[family][0] == "vllm") == (not refused and family not in DIFFERENT), family
