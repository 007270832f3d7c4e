"""vLLM with images: its replies have the log-probs of transformers, also after new weights, with the same images."""

import shutil

import pytest

from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.workflows.engines import vllm_engine
from ouroboros.workflows.engines.open import seeing
from tests import families
from tests.configs import TINY, overridden
from tests.golden.messages import refuses
from tests.pictures import png


@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3"])
def test_vllm_is_not_given_images_of_which_it_computes_something_else(tmp_path, kind):
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    config = overridden(*TINY, "explorer.rollout_model.engine_type=vllm")
    assert seeing(config, tmp_path, False) is config
    with refuses(ConfigError, kind):
        seeing(config, tmp_path, True)


@pytest.mark.parametrize(("release", "cuts", "refused"), [
    ("vllm 0.26.0", False, True), ("vllm 0.26.0", True, False), ("vllm 0.32.0", False, False)])
def test_a_release_that_counts_no_tiles_of_whole_images_is_refused(
        release, cuts, refused, seeing_model, tmp_path, monkeypatch):
    class Opened(Exception):
        pass

    def stop(_):
        raise Opened

    monkeypatch.setenv("VLLM_PORT", "10000")
    monkeypatch.setattr(vllm_engine, "_release", lambda: release)
    monkeypatch.setattr(vllm_engine, "import_vllm", stop)
    model = shutil.copytree(seeing_model, tmp_path / "model")
    (file,) = (one for one in model.glob("*.json") if "do_image_splitting" in one.read_text())
    written = '"do_image_splitting": '
    file.write_text(file.read_text().replace(f"{written}false", f"{written}{str(cuts).lower()}"))
    config = seeing(overridden(*TINY, "explorer.rollout_model.engine_type=vllm", "model.max_prompt_tokens=64"), model,
                    True)
    with refuses(ConfigError, "0.32") if refused else pytest.raises(Opened):
        vllm_engine.VllmEngine(model, config, [1], False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["idefics3", "qwen2_5_vl"])
def test_replies_have_the_log_probs_of_transformers_before_and_after_a_sync(family, seeing_model, tmp_path):
    """Prompts with one to three images of odd sizes, each of which is sent again; 1e-3 nats."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from ouroboros.pipeline.store.pictures import Kept, named
    from ouroboros.workflows.engines.open import open_engine
    from ouroboros.workflows.engines.transformers_engine import TransformersEngine
    from ouroboros.workflows.protocol.engine import Request
    from ouroboros.workflows.protocol.sight import Sight

    directory = seeing_model
    if family != "idefics3":
        directory = families.seeing(family, tmp_path / family, seeing_model)
    kept = Kept(tmp_path / ".pictures.tmp")
    names = [kept.keep(png(*size, seed=number)) for number, size in enumerate([(8, 8), (13, 9), (40, 17)])]
    kept.write(tmp_path)
    pictures, sight = named(names, tmp_path), Sight(directory)
    asked = []
    for number in (1, 2, 3, 1):
        prompt = [20 + number, *(token for _ in range(number) for token in (sight.mark, 30))]
        asked.append(Request(sight.expanded(prompt, pictures[:number]), 6, 1.0, 1.0, -1, number,
                             pictures=pictures[:number]))
    model = AutoModelForImageTextToText.from_pretrained(directory)
    torch.manual_seed(1)
    for parameter in model.parameters():  # those that read images too, so that states that vLLM keeps of them are stale
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "changed")
    AutoProcessor.from_pretrained(directory).save_pretrained(tmp_path / "changed")

    config = seeing(overridden(*TINY, "explorer.rollout_model.engine_type=vllm", "model.max_prompt_tokens=64"),
                    directory, True)
    engine = open_engine(directory, config, [1])
    try:
        before = engine.generate(asked)
        engine.load_weights(tmp_path / "changed")
        after = engine.generate(asked)
        probed = engine.probe(asked[2].prompt_tokens, asked[2].pictures)
    finally:
        engine.close()
    for weights, replies in ((directory, before), (tmp_path / "changed", after)):
        exact = TransformersEngine(weights, config, [1], False)
        for request, reply in zip(asked, replies, strict=True):
            (scored,) = exact.probe(request.prompt_tokens + reply.tokens, request.pictures)
            assert reply.logprobs == pytest.approx(scored[len(request.prompt_tokens) - 1 :], abs=1e-3)
    assert probed[0] == pytest.approx(exact.probe(asked[2].prompt_tokens, asked[2].pictures)[0], abs=1e-3)
