"""Agents that show the model images: what the engine saw is stored, trained on, and the same after a kill."""

import base64
import threading
from functools import partial

import pytest
import torch
from PIL import Image

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import pictures, records, tables
from ouroboros.pipeline.store.pictures import Broken, Kept, Picture, data_uri, link, named
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.packing import pack
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.endpoint.anthropic import Messages
from ouroboros.workflows.endpoint.chat import Chat
from ouroboros.workflows.endpoint.dialect import Refusal
from ouroboros.workflows.endpoint.responses import Responses
from ouroboros.workflows.engines.transformers_engine import TransformersEngine
from ouroboros.workflows.protocol.engine import BatchEngine, Reply
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer
from ouroboros.workflows.protocol.sight import sight_of
from ouroboros.workflows.task_at_hand import TaskAtHand, bound
from tests import clients
from tests.factories import row
from tests.pictures import file, png
from tests.workflows.test_retry import rated

SAMPLING = Sampling(1.0, 1.0, -1, 400, 6, 600)
TASK = row(records.Task, task_id="t", question="<image>+", answer="2", messages=(
    '{"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "+"}]}]}'))


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


class Attempts:
    """Attempts at a task with one image, in a stage whose directory has its tasks too."""

    def __init__(self, model, place, config):
        self.place, self.tokenizer, self.config = place, load_tokenizer(model), config
        tasks = Kept(place / ".tasks.tmp")
        tasks.keep(png(8, 8, 1))
        tasks.write(place)
        self.own = named([name(png(8, 8, 1))], place)
        self.kept, self.model = Kept(place / ".shown-1"), model
        self.prompt = sight_of(str(model)).expanded(self.tokenizer("<image>+:")["input_ids"], self.own)

    def __call__(self, workflow, engine=None, kept=True):
        return self.all([workflow], engine, kept)[0]

    def all(self, workflows, engine=None, kept=True):
        task = TaskAtHand(TASK, rated(), self.tokenizer, self.config, True, self.own, self.kept if kept else None)
        ones = [bound(Isolated(one, 60, speaks=True), lambda: task) for one in workflows]
        engine = engine or TransformersEngine(self.model, self.config, end_tokens(self.tokenizer, self.model), False)
        return roll_out(engine, ones, [self.prompt for _ in ones], [*range(7, 7 + len(ones))], [SAMPLING for _ in ones],
                        pictures=[self.own for _ in ones])


def name(data: bytes) -> str:
    return Kept(None).keep(data)


@pytest.fixture
def attempts(seeing_model, tmp_path, settings):
    return Attempts(seeing_model, tmp_path, settings(
        "model.max_prompt_tokens=400", "model.max_response_tokens=6", "model.max_model_len=600", "model.dtype=float32"))


def test_the_trainer_computes_the_log_probs_of_replies_between_images(attempts, seeing_model):
    """The image of the task, then of a tool a new one, the task's again, and the new one again; within 1e-4 nats."""
    new = png(13, 9, 2)
    outcome = attempts(partial(clients.looks, images=[[uri(new), None, uri(new)]]))
    assert (outcome.status, outcome.reason) == ("ok", None)
    ((_, turn, _),) = outcome.turns
    assert [one.hash for one in turn.pictures] == [name(png(8, 8, 1)), name(new), name(png(8, 8, 1)), name(new)]
    sight = sight_of(str(seeing_model))
    assert [turn.prompt_tokens.count(sight.stands), turn.response_tokens.count(sight.stands)] == [4, 12]
    assert not any(acts for token, acts in zip(turn.response_tokens, turn.action_mask, strict=True)
                   if token == sight.stands)
    assert [len(call.request.pictures) for call in outcome.calls] == [1, 4]
    attempts.kept.write(attempts.place, 1, {one.hash for one in turn.pictures} - {attempts.own[0].hash})
    shown = tables.step_file(attempts.place, "shown", 1)
    assert tables.read(shown, records.Picture)["hash"].to_pylist() == [name(new)]  # the task's is there already
    assert not attempts.kept.place.exists()
    stored = named([one.hash for one in turn.pictures], attempts.place, shown)
    settings = Config().trainer.model_copy(update={"compile": False})
    trained = policy.load(seeing_model, "cpu", torch.float32, settings, 1.0, 600)
    tokens, length = turn.prompt_tokens + turn.response_tokens, len(turn.prompt_tokens)
    one, other = (Row(str(of), tokens, length, turn.action_mask, pictures=of) for of in (
        stored, (stored[0], attempts.own[0], *stored[2:])))
    found = {}
    for micro in pack([one, other], 600, 0, 1, fill=trained.way.fill):
        found |= micro.by_row(trained(**micro.inputs(torch.device("cpu")))[0])
    sampled = [logprob for logprob, acts in zip(turn.logprobs, turn.action_mask, strict=True) if acts]
    assert found[0] == pytest.approx(sampled, abs=1e-4)
    assert abs(found[1][-6:] - found[0][-6:]).max() > 1e-3  # another image after the first reply


def test_equal_tokens_of_other_images_are_another_row_with_another_seed(attempts):
    first, second = uri(png(8, 8, 3)), uri(png(8, 8, 4))
    outcome = attempts(partial(clients.compares, one=first, other=second))
    assert [[one.hash for one in turn.pictures] for _, turn, _ in outcome.turns] == [
        [name(png(8, 8, 3))], [name(png(8, 8, 4))]]
    one, other = (call.request for call in outcome.calls)
    assert one.prompt_tokens == other.prompt_tokens
    assert one.seed != other.seed


def test_a_request_with_another_image_in_the_same_text_goes_on_from_no_earlier_call(attempts):
    one, other = png(8, 8, 3), png(8, 8, 4)
    end = attempts.tokenizer.eos_token_id
    outcome = attempts(partial(clients.replaces, one=uri(one), other=uri(other)), Says([30, end], [30, end]))
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert [[image.hash for image in turn.pictures] for _, turn, _ in outcome.turns] == [[name(one)], [name(other)]]
    assert [call.origin.retokenized for call in outcome.calls] == [False, True]


class Says(BatchEngine):
    """Replies with these tokens in order."""

    def __init__(self, *replies):
        super().__init__()
        self.replies = list(replies)

    def answer(self, requests):
        return [Reply(one, [-1.0] * len(one), "stop") for one in (self.replies.pop(0) for _ in requests)]


def test_another_request_is_answered_while_an_image_is_decoded(attempts, monkeypatch, tmp_path):
    begun, answered, came = tmp_path / "begun", threading.Event(), []
    opened, answer = pictures.opened, Says.answer

    def slow(data, whole=True):
        if whole and len(data) > 1_000_000:
            begun.touch()
            came.append(answered.wait(20))
        return opened(data, whole)

    monkeypatch.setattr(pictures, "opened", slow)
    monkeypatch.setattr(Says, "answer", lambda *given: (answered.set(), answer(*given))[1])
    large = [{"type": "image_url", "image_url": {"url": uri(png(900, 700))}}]
    outcomes = attempts.all([partial(clients.asks, content=large), partial(clients.asks, content="a", after=begun)],
                            Says([30], [31]))
    assert [(one.status, one.calls[0].reply.tokens) for one in outcomes] == [("ok", [31]), ("ok", [30])]
    assert came
    assert all(came)


def test_an_image_that_the_processor_refuses_is_none_for_the_model(seeing_model, tmp_path, monkeypatch):
    def refuse(image):
        raise ValueError("too thin")

    sight = sight_of(str(seeing_model))
    monkeypatch.setattr(sight._family, "processed", refuse)
    (tmp_path / "thin").write_bytes(png(30, 1))
    with pytest.raises(Broken, match=r"30 x 1 pixels.*too thin"):
        sight.tokens(Picture(str(tmp_path), "thin"))


def test_a_request_has_so_many_images_and_pixels(attempts, monkeypatch):
    """Of different images; pixels by their headers: the last image of 9,000 x 9,000 has no more than these."""
    monkeypatch.setattr(pictures, "MOST_TOGETHER", 2)
    header, small = file(Image.new("1", (9000, 9000)))[:100], [png(seed=number) for number in range(3)]
    monkeypatch.setattr(pictures, "MOST_PIXELS_TOGETHER", 81_000_000)
    for images, words in (([*small], "3 different"), ([header, small[0]], "81,000,064 pixels"),
                          ([small[0], small[1], small[1]], None)):
        outcome = attempts(partial(clients.asks, content=[
            {"type": "image_url", "image_url": {"url": uri(one)}} for one in images]), Says([30]))
        assert ("400" in outcome.reason and words in outcome.reason) if words else outcome.status == "ok"


def test_images_do_not_follow_a_sampled_token_that_stands_for_one(attempts, seeing_model):
    """The agent's history lacks that token, so its next request is tokenized whole, and a row of its own."""
    sight, end = sight_of(str(seeing_model)), attempts.tokenizer.eos_token_id
    outcome = attempts(partial(clients.looks, images=[[uri(png(13, 9, 2))]]), Says([30, sight.stands, end], [30, end]))
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert [len(turn.pictures) for _, turn, _ in outcome.turns] == [1, 2]
    assert [call.origin.retokenized for call in outcome.calls] == [False, True]
    assert [turn.prompt_tokens.count(sight.stands) for _, turn, _ in outcome.turns] == [4, 8]


@pytest.mark.parametrize(("source", "words"), [
    ("http://127.0.0.1/a.png", "addresses are not read"), ("file:///etc/passwd", "addresses are not read"),
    (uri(png()[:60]), "damaged"), (uri(b"no image"), "no image"), ("data:image/png;base64,%%", "needed data:image"),
    (uri(b""), "no image"), ("typed", "1 images"), ("untold", "stands for an image"), ("many", "600"),
    ("animated", "2 frames")])
def test_what_is_no_image_for_the_model_is_a_refused_request(attempts, source, words):
    if source == "animated":
        source = uri(file(Image.new("L", (4, 4)), "GIF", save_all=True, append_images=[Image.new("L", (4, 4), 9)]))
    image = {"type": "image_url", "image_url": {"url": uri(png())}}
    parts = {"typed": [{"type": "text", "text": "a <image>"}, image], "untold": [{"type": "text", "text": "a <image>"}],
             "many": [image] * 160}.get(source, [{"type": "image_url", "image_url": {"url": source}}])
    outcome = attempts(partial(clients.asks, content=parts), Says([30]))
    assert outcome.status == "workflow_failed"
    assert "400" in outcome.reason
    assert words in outcome.reason


def test_token_ids_that_stand_for_an_image_are_refused_as_texts_are(attempts, seeing_model):
    for token in {sight_of(str(seeing_model)).stands, sight_of(str(seeing_model)).mark}:
        outcome = attempts(partial(clients.continues_ids, ids=[30, token]), Says([30]))
        assert outcome.status == "workflow_failed"
        assert "400" in outcome.reason
    assert attempts(partial(clients.continues_ids, ids=[30, 31]), Says([30])).status == "ok"


def test_images_are_refused_where_nothing_takes_them_in_and_of_a_text_model(attempts, tiny_model, settings, tmp_path):
    parts = [{"type": "image_url", "image_url": {"url": uri(png())}}]
    assert "ouro run" in attempts(partial(clients.asks, content=parts), Says([30]), kept=False).reason
    attempts.kept = Kept(None, "vLLM reads text")
    assert "vLLM reads text" in attempts(partial(clients.asks, content=parts), Says([30])).reason
    attempts.kept, attempts.tokenizer = Kept(tmp_path / ".shown-2"), load_tokenizer(tiny_model)
    assert "qwen2" in attempts(partial(clients.asks, content=parts), Says([30])).reason


def test_the_dialects_read_the_same_messages():
    image, data = uri(png()), base64.b64encode(png()).decode()
    chat = Chat().read({"model": "policy", "messages": [{"role": "tool", "tool_call_id": "a", "content": [
        {"type": "text", "text": "so"}, {"type": "image_url", "image_url": {"url": image}}]}]})
    said = Responses().read({"model": "policy", "input": [{"type": "function_call_output", "call_id": "a", "output": [
        {"type": "input_text", "text": "so"}, {"type": "input_image", "image_url": image}]}]})
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    blocks = Messages().read({"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "so"}, block]}, block]}]})
    parts = [{"type": "text", "text": "so"}, {"type": "image", "image": image}]
    assert chat.messages == said.messages == [{"role": "tool", "content": parts, "tool_call_id": "a"}]
    assert [one["content"][-1]["image"] for one in blocks.messages] == [data, data]
    assert blocks.messages[0]["content"][0] == parts[0]
    for role in ("assistant", "system"):
        with pytest.raises(Refusal, match="image_url"):
            Chat().read({"model": "policy", "messages": [{"role": role, "content": [
                {"type": "image_url", "image_url": {"url": image}}]}]})


def test_files_of_a_killed_process_are_removed_also_where_no_image_is_shown_again(tmp_path):
    before, now = (Kept(tmp_path / ".shown-1") for _ in range(2))
    before.keep(png())
    now.write(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_a_stage_that_rewards_again_has_the_images_of_agents(tmp_path):
    kept, source, target = Kept(tmp_path / ".shown-2"), tmp_path / "explored", tmp_path / "scored"
    kept.write(source, 2, [kept.keep(png(seed=5))])
    for step in (1, 2):
        link(source, target, step)
    assert tables.steps_present(target, "shown") == [2]
    (found,) = named([name(png(seed=5))], target, tables.step_file(target, "shown", 2))
    assert data_uri(found) == uri(png(seed=5))


def test_the_view_of_images_has_those_of_tasks_and_of_steps(attempts):
    for step, seed in ((1, 5), (2, 6)):
        kept = Kept(attempts.place / f".shown-{step}")
        found = kept.keep(png(seed=seed))
        kept.keep(png(seed=9))  # of an attempt without rows
        kept.write(attempts.place, step, [found])
    session = tables.connect([("run", attempts.place)])
    assert {one for (one,) in session.sql("SELECT hash FROM pictures").fetchall()} == {
        name(png(8, 8, 1)), name(png(seed=5)), name(png(seed=6))}
    assert data_uri(attempts.own[0]) == uri(png(8, 8, 1))
