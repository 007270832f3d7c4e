"""What is counted and refused of compiled graphs. torch's tracer is real; the compiler behind it is one that fails or
passes graphs on, since a real one takes a minute on CPU (`make test-wide`; on GPUs test_gpu.py)."""

from types import SimpleNamespace

import pytest
import torch

from ouroboros.pipeline.settings.trainer import compiles
from ouroboros.stages import recompute
from ouroboros.stages.learner.engine import compiled, policy
from ouroboros.stages.learner.engine.compiled import Graphs
from ouroboros.stages.learner.engine.packing import pack
from tests import families
from tests.golden.messages import wording
from tests.learner.test_policy import rows, score, trainer


@pytest.fixture
def graphs(monkeypatch):
    """A count that starts at zero, with a compiler that returns graphs as they are."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lambda graph, inputs: graph.forward)
    made = Graphs()
    monkeypatch.setattr(policy, "GRAPHS", made)
    yield made
    torch._dynamo.reset()


def test_all_layers_and_lengths_share_a_graph(graphs, tiny_model):
    """Two layers, three micro-batches of different lengths: a graph with gradients and one without, and as many of the
    head, whose kernel needs a GPU. Log-probs and gradients are those of the eager model."""
    found = []
    for compile_ in (False, True):
        settings = SimpleNamespace(**vars(trainer()) | {"compile": compile_})
        learner = policy.load(tiny_model, "cpu", torch.float32, settings, 0.7, 64)
        counts, logprobs = [], []
        for some in (rows(), rows()[:3], rows()[2:]):
            (micro,) = pack(some, 1000, 0, 1)
            logprobs.append(score(learner, micro)[0])
            counts.append(graphs.count)
        sum(part.sum() for part in logprobs).backward()
        with torch.no_grad():
            score(learner, micro)
        found.append((torch.cat(logprobs), [p.grad for p in learner.parameters()], [*counts, graphs.count]))
    (eager, gradients, none), (ours, own, counts) = found
    assert none == [0, 0, 0, 0]
    assert counts[0] == counts[1] == counts[2] <= 3
    assert counts[3] <= 2 * counts[0]
    torch.testing.assert_close(ours, eager, atol=1e-6, rtol=0)
    for some, wanted in zip(own, gradients, strict=True):
        torch.testing.assert_close(some, wanted, atol=2e-5, rtol=1e-4)
    assert [line for line in graphs.news() if "compiled in" in line]
    assert graphs.news() == []


def test_a_tower_of_images_is_not_compiled(graphs, tiny_model, tmp_path):
    path = families.seeing("qwen2_5_vl", tmp_path / "model", tiny_model)
    settings = SimpleNamespace(**vars(trainer()) | {"compile": True})
    model = policy.load(path, "cpu", torch.float32, settings, 0.7, 64).model
    made = [name for name, module in model.named_modules() if module._compiled_call_impl is not None]
    assert len(made) == model.config.text_config.num_hidden_layers
    assert all("language_model" in name for name in made)


@pytest.mark.parametrize("chosen", [(8, 6, 5), (6, 8, 5)])
def test_sizes_that_are_equal_by_chance_make_no_graph(graphs, chosen):
    """As many places as an entry has values, and then fewer or more."""
    function = graphs.compile(lambda values, places: (2 * values)[places])
    for count in chosen:
        assert function(torch.ones(9, 8), torch.arange(count)).shape == (count, 8)
    assert graphs.count == 1


def double(x):
    return 2 * x + 1


def test_what_does_not_compile_runs_eagerly_and_is_reported_once(graphs, monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: fail)
    function = graphs.compile(double)
    assert function(torch.ones(2)).tolist() == function(torch.ones(2, 2))[0].tolist() == [3.0, 3.0]
    assert graphs.count == 0
    (line,) = graphs.news()
    wording(line, "RuntimeError")
    assert graphs.news() == []


def test_beyond_the_limit_new_shapes_run_eagerly(graphs, monkeypatch):
    monkeypatch.setattr(compiled, "LIMIT", 1)
    function = graphs.compile(double)
    assert [function(torch.ones(*shape)).flatten()[0].item() for shape in ((2,), (2, 2), (2, 2, 2))] == [3.0] * 3
    assert graphs.count == 1
    wording(graphs.news(), "1 graphs are")


@pytest.mark.parametrize(("setting", "stage", "gpu", "expected"), [
    ("auto", 1, True, True), ("auto", 1, False, False), ("auto", 2, True, True), ("auto", 3, True, False),
    (True, 1, False, True), (True, 3, True, False), (False, 1, True, False)])
def test_auto_compiles_on_gpus_alone_and_never_under_zero_3(setting, stage, gpu, expected):
    assert compiles(SimpleNamespace(compile=setting, zero_stage=stage), gpu) is expected


def test_without_a_gpu_nothing_is_recomputed_by_itself(settings, tiny_model):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    config = settings()
    assert config.trainer.enable_gradient_checkpointing == "auto"
    assert recompute.resolve(config, tiny_model, False) is None
    assert config.trainer.enable_gradient_checkpointing is False


def head_of(bias: bool = False, dtype: torch.dtype = torch.bfloat16, width: int = 8, cap: float | None = None):
    head, text = torch.nn.Linear(width, 5, bias=bias, dtype=dtype), SimpleNamespace(final_logit_softcapping=cap)
    return SimpleNamespace(get_output_embeddings=lambda: head, config=SimpleNamespace(get_text_config=lambda: text))


@pytest.mark.parametrize(("model", "words"), [
    (head_of(), None), (head_of(cap=30.0), "final_logit_softcapping"), (head_of(bias=True), "no plain matrix product"),
    (head_of(dtype=torch.float32), "bfloat16"), (head_of(width=12), "multiple of 8")])
def test_the_kernel_is_for_plain_bfloat16_heads(model, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: SimpleNamespace(shared_memory_per_block_optin=policy.SHARED))
    found = policy.no_kernel(model)
    assert found is None if words is None else words in found
