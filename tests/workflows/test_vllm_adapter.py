"""vLLM with an adapter beside the model: every version answers as peft does, and only the newest is there."""

import shutil

import pytest

from tests.configs import TINY, lora, overridden
from tests.golden.messages import refuses

pytestmark = pytest.mark.slow

TOKENS = [5 + (7 * i) % 90 for i in range(60)]


@pytest.fixture(scope="module")
def engine(tiny_model):
    from ouroboros.workflows.engines.open import open_engine

    config = overridden(*TINY, "explorer.rollout_model.engine_type=vllm")
    opened = open_engine(tiny_model, config, [1], adapter=lora(lora_rank=12))  # vLLM pads to 16
    yield opened
    opened.close()


def versions(model, directory, count: int):
    """Writes `count` random adapters; yields each one's directory and the log-probs of TOKENS that peft says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
    adapted = get_peft_model(base, LoraConfig(r=12, lora_alpha=24, target_modules=["q_proj", "o_proj", "down_proj"]))
    for version in range(count):
        torch.manual_seed(version)
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        adapted.save_pretrained(directory / str(version))
        with torch.no_grad():
            scores = adapted(torch.tensor([TOKENS])).logits[0, :-1].log_softmax(-1)
        yield directory / str(version), scores.gather(-1, torch.tensor(TOKENS)[1:, None])[:, 0].tolist()


def test_each_version_answers_as_itself_and_the_one_before_is_gone(engine, tiny_model, tmp_path):
    from ouroboros.workflows.protocol.engine import Request

    answers = set()
    for directory, expected in versions(tiny_model, tmp_path, 3):
        engine.load_weights(directory)
        shutil.rmtree(directory)  # as the explorer does once newer ones are needed
        (found,) = engine.probe(TOKENS)
        assert found == pytest.approx(expected, abs=1e-4)
        assert len(engine._llm.llm_engine.list_loras()) == 1
        answers.add(tuple(engine.generate([Request(TOKENS[:20], 16, 1.0, 1.0, -1, 7)])[0].tokens))
    assert len(answers) == 3


def test_an_engine_with_another_adapter_than_the_file_is_found_out(engine, tiny_model, tmp_path):
    (first, _), (second, _) = versions(tiny_model, tmp_path, 2)
    engine.load_weights(first)
    with refuses(RuntimeError, "the engine's adapter"):
        engine._llm.collective_rpc("compare_adapter", args=(engine._versions, str(second)))
    with refuses(RuntimeError, "adapter 77", engine._versions):
        engine._llm.collective_rpc("compare_adapter", args=(77, str(first)))


def test_an_adapter_of_a_larger_rank_than_there_is_room_for_is_refused(engine, tiny_model, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model, local_files_only=True)
    get_peft_model(base, LoraConfig(r=20, target_modules=["q_proj"])).save_pretrained(tmp_path)
    with refuses(ValueError, "rank"):
        engine.load_weights(tmp_path)
