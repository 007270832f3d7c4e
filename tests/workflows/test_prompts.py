"""Chat templates: the tokenizer's and the user's, conversations, and demonstrations of several turns."""

import json
import shutil
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.store import records
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError
from ouroboros.workflows.demonstrations import demonstrations
from ouroboros.workflows.protocol import prompts, template_trial
from tests import zoo
from tests.factories import row
from tests.golden.messages import refuses

# <u>question</u> and so on, thinking on demand; a response ends with the end token
TAGGED = ("{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}"
          "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}<a>{% if enable_thinking %}hm {% endif %}{% endif %}")
# earlier responses are cut to one letter, as templates do that take out what was thought
FORGETFUL = TAGGED.replace("{{ m['content'] }}", "{{ m['content'][:1] if m['role'] == 'assistant' else m['content'] }}")
STRICT = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}" + TAGGED
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]


def settings(**given):
    none = dict.fromkeys(("custom_chat_template", "chat_template_path", "enable_thinking", "trust_remote_code"))
    return SimpleNamespace(**{**none, **given})


def config(system=None, **given):
    source = SimpleNamespace(system_prompt=system)
    return SimpleNamespace(model=settings(**given), buffer=SimpleNamespace(explorer_input=source))


@pytest.fixture
def tokenizer(tiny_model):
    return lambda template=TAGGED: prompts.load_tokenizer(tiny_model, settings(custom_chat_template=template))


def test_a_conversation_goes_through_the_template_whole(tokenizer):
    assert prompts.prompt_text(tokenizer(), "1 + 1?", None, TALK) == "<u>Hi<a>Hey<eos><u>1 + 1?<a>"


def test_a_system_message_of_the_row_wins_over_the_one_for_all(tokenizer):
    own = [{"role": "system", "content": "Mine"}]
    assert prompts.prompt_text(tokenizer(), "q", "Ours", own) == "<s>Mine<u>q<a>"
    assert prompts.prompt_text(tokenizer(), "q", "Ours", TALK) == "<s>Ours<u>Hi<a>Hey<eos><u>q<a>"


def test_thinking_is_handed_to_the_template_only_when_it_is_set(tokenizer):
    tasks = [row(records.Task, question="q")]
    assert [prompts.task_texts(tokenizer(), tasks, config(enable_thinking=value)) for value in (None, False, True)] == [
        ["<u>q<a>"], ["<u>q<a>"], ["<u>q<a>hm "]]


def test_without_a_template_turns_are_paragraphs(tokenizer):
    plain = tokenizer()
    plain.chat_template = None
    assert prompts.prompt_text(plain, "q", "Ours", TALK) == "Ours\n\nHi\n\nHey\n\nq"


def test_the_template_of_a_file_wins_and_the_trained_model_keeps_it(tmp_path, tiny_model):
    path = tmp_path / "mine.jinja"
    path.write_text(TAGGED)
    both = settings(custom_chat_template="{{ messages[0]['content'] }}", chat_template_path=str(path))
    assert prompts.load_tokenizer(tiny_model, both).chat_template == TAGGED
    for file in tiny_model.iterdir():
        (tmp_path / "exported").mkdir(exist_ok=True)
        (tmp_path / "exported" / file.name).write_bytes(file.read_bytes())
    prompts.keep_template(tmp_path / "exported", settings())
    kept, given = (prompts.load_tokenizer(place).chat_template for place in (tmp_path / "exported", tiny_model))
    assert kept == given
    prompts.keep_template(tmp_path / "exported", both)
    assert (tmp_path / "exported" / prompts.TEMPLATE).read_text() == TAGGED
    assert prompts.load_tokenizer(tmp_path / "exported").chat_template == TAGGED


@pytest.mark.parametrize(("template", "words"), [
    ("{% for m in messages %}", "line 1"), ("{{ raise_exception('never') }}", "fails on"),
    ("always the same", "user's")])
def test_a_template_of_no_use_is_told_at_once(tokenizer, template, words):
    with refuses(ConfigError, words):
        tokenizer(template)


def test_a_template_may_hand_on_named_arguments(tokenizer):
    made = tokenizer("{% macro said(text) %}{{ text }}{% endmacro %}"
                     "{{ said(**{'text': messages[0].content}) }}{{ 2 ** 3 }}")
    assert prompts.prompt_text(made, "Hi", None) == "Hi8"


def test_a_template_that_does_not_end_is_told(tokenizer, monkeypatch):
    monkeypatch.setattr(template_trial, "SECONDS", 0.3)
    for template in ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                     "{{ 10 ** (10 ** 9) }}", "{{ 7 ** messages | length }}", "{{ 2**64**64**64 }}"):
        with pytest.raises(ConfigError):
            tokenizer(template)


@pytest.mark.parametrize("template", [
    "{{ 1 / 0 }}", "{% include 'x' %}", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"])
def test_a_template_that_raises_what_python_raises_ends_no_process(tmp_path, tiny_model, template):
    shutil.copytree(tiny_model, tmp_path / "copy")
    (tmp_path / "copy" / prompts.TEMPLATE).write_text(template)
    read = prompts.load_tokenizer(tmp_path / "copy")
    assert prompts.end_tokens(read, tmp_path) == [1]
    with pytest.raises(DataError):
        prompts.prompt_text(read, "q", None)


@pytest.mark.parametrize(("file", "edit", "words"), [
    ("config.json", {"num_hidden_layers": "2"}, "config.json"),
    ("tokenizer_config.json", {"model_max_length": "x"}, "tokenizer")])
def test_what_keeps_a_tokenizer_from_being_read_is_named(tmp_path, tiny_model, file, edit, words):
    shutil.copytree(tiny_model, tmp_path / "copy")
    place = tmp_path / "copy" / file
    place.write_text(json.dumps(json.loads(place.read_text()) | edit))
    with refuses(ModelError, words):
        prompts.load_tokenizer(tmp_path / "copy")


def test_a_models_own_template_that_leaves_out_messages_is_refused(tmp_path, tiny_model):
    for template, refused in (("always the same", True), ("{{ raise_exception('system first') }}", False)):
        copy = tmp_path / str(refused)
        shutil.copytree(tiny_model, copy)
        (copy / prompts.TEMPLATE).write_text(template)
        if refused:
            with refuses(ConfigError, "user's"):
                prompts.load_tokenizer(copy)
        else:  # some take no conversation without a system message: their rows say so
            with refuses(DataError, "system first"):
                prompts.prompt_text(prompts.load_tokenizer(copy), "q", None)


def test_a_tokenizer_without_its_vocabulary_is_refused(tmp_path, tiny_model):
    """Beside tokenizer_config.json alone transformers makes one of a few added tokens: texts have no tokens."""
    shutil.copytree(tiny_model, tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").unlink()
    with refuses(ModelError, "no readable tokenizer"):
        prompts.load_tokenizer(tmp_path / "copy")


def test_a_template_file_that_is_not_there_is_named(tiny_model):
    with refuses(DataError, "nowhere.jinja", "Check model.chat_template_path"):
        prompts.load_tokenizer(tiny_model, settings(chat_template_path="nowhere.jinja"))


def test_a_conversation_that_the_template_refuses_is_shown(tokenizer):
    with refuses(DataError, "user", "'then?': one"):
        prompts.prompt_text(tokenizer(STRICT), "then?", None, TALK)


def shown(tokenizer, task, every_turn):
    """(prompt, what follows, what of it is trained on) of each row as texts."""
    (rows,), made = demonstrations(tokenizer, [task], config(), every_turn), []
    for prompt, tokens, mask in rows:
        assert len(tokens) == len(mask)
        trained = [token for token, own in zip(tokens, mask, strict=True) if own]
        made.append(tuple(tokenizer.decode(ids) for ids in (prompt, tokens, trained)))
    return made


SPOKEN = TAGGED.replace("{{ m['content'] }}", "{{ m['content'] if loop.last or m['role'] == 'user' else 'H' }}")
WELCOME = [{"role": "assistant", "content": "Welcome"}, *TALK, {"role": "assistant", "content": "looked"}]


@pytest.mark.parametrize(("template", "context", "every_turn", "rows"), [
    (TAGGED, TALK, False, [("<u>Hi<a>Hey<eos><u>Bye<a>", "Ciao<eos>", "Ciao<eos>")]),
    (TAGGED, TALK, True, [("<u>Hi<a>", "Hey<eos><u>Bye<a>Ciao<eos>", "Hey<eos>Ciao<eos>")]),
    # where the template puts no end token none is trained before the last
    (TAGGED.replace("{{ eos_token }}", ""), TALK, True, [("<u>Hi<a>", "Hey<u>Bye<a>Ciao<eos>", "HeyCiao<eos>")]),
    # a turn before the first of the user is context
    (TAGGED, WELCOME, True, [("<a>Welcome<eos><u>Hi<a>", "Hey<eos><a>looked<eos><u>Bye<a>Ciao<eos>",
                              "Hey<eos>looked<eos>Ciao<eos>")]),
    # earlier responses that the template changes are rows of their own
    (SPOKEN, TALK, True, [("<u>Hi<a>", "Hey<eos>", "Hey<eos>"),
                          ("<u>Hi<a>H<eos><u>Bye<a>", "Ciao<eos>", "Ciao<eos>")])])
def test_the_last_response_or_every_one_is_trained_on(tokenizer, template, context, every_turn, rows):
    """The context of each is what the template makes of the turns before it, and end tokens are the policy's own."""
    task = row(records.Task, question="Bye", solution="Ciao", context=context)
    assert shown(tokenizer(template), task, every_turn) == rows


def test_a_template_that_shortens_a_response_is_told(tokenizer):
    task = row(records.Task, question="Bye", solution="Ciao", context=TALK)
    (reason,) = demonstrations(tokenizer(FORGETFUL), [task], config(), True)
    assert ("turn 2: " in reason, "'H<eos>'" in reason) == (True, True)


@pytest.mark.parametrize("every_turn", [False, True])
def test_without_a_template_a_response_follows_its_turns_at_once(tokenizer, every_turn):
    plain = tokenizer()
    plain.chat_template = None
    task = row(records.Task, question="Bye", solution="Ciao", context=TALK)
    rows = [("Hi", "Hey<eos>", "Hey<eos>"), ("Hi\n\nHey\n\nBye", "Ciao<eos>", "Ciao<eos>")]
    assert shown(plain, task, every_turn) == rows[0 if every_turn else 1:]


class Plain:
    """A tokenizer of characters without a chat template."""

    chat_template, eos_token_id = None, 1

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [([0] if add_special_tokens else []) + [ord(c) for c in text] for text in texts]}


def test_without_a_template_the_text_is_the_prompt_with_the_tokenizer_s_own_beginning():
    assert prompts.prompt_text(Plain(), "a", None) == "a"
    assert prompts.prompt_text(Plain(), "a", "b") == "b\n\na"
    assert prompts.prompt_tokens(Plain(), ["a"]) == [[0, 97]]
    assert prompts.prompt_tokens(Plain(), []) == []


@pytest.mark.parametrize(("family", "end", "others"), [
    ("llama", "<|eot_id|>", {"<|end_of_text|>", "<|eom_id|>"}), ("mistral", "</s>", set()),
    ("qwen2", "<|im_end|>", {"<|endoftext|>"}), ("gemma", "<end_of_turn>", {"<eos>"}),
    ("phi3", "<|end|>", {"<|endoftext|>", "<|assistant|>"}), ("phi", "<|endoftext|>", set())])
def test_a_response_ends_as_the_chat_template_ends_a_turn(tmp_path, family, end, others):
    """Gemma's and Phi-3's eos token ends a text, not a turn; generation_config.json lists more than one."""
    zoo.make_tokenizer(family, tmp_path)
    made = prompts.load_tokenizer(tmp_path)
    assert made.convert_ids_to_tokens(prompts.turn_end(made)) == end
    assert set(made.convert_ids_to_tokens(prompts.end_tokens(made, tmp_path))) == {end, made.eos_token, *others}
    (((_, response, _),),) = demonstrations(made, [row(records.Task, question="q", solution="7 ☃")], config(), False)
    assert made.convert_ids_to_tokens(response[-1]) == end
    assert made.decode(response, skip_special_tokens=True).strip() == "7 ☃"  # a snowman is three bytes
    assert end in made.decode(response)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_a_template_with_bos_and_a_tokenizer_that_adds_one_make_one(tmp_path, family):
    zoo.make_tokenizer(family, tmp_path)
    made = prompts.load_tokenizer(tmp_path)
    assert made("a")["input_ids"][0] == made.bos_token_id
    (tokens,) = prompts.prompt_tokens(made, [prompts.prompt_text(made, "a", None)])
    assert tokens.count(made.bos_token_id) == 1


def test_a_template_without_a_system_role_is_told_with_the_way_out(tmp_path):
    zoo.make_tokenizer("gemma", tmp_path)
    with refuses(DataError, "supported", "chat_template_path", "or system_prompt"):
        prompts.prompt_text(prompts.load_tokenizer(tmp_path), "a", "Be brief.")


def test_a_conversation_is_trained_on_with_the_end_of_its_turns(tmp_path):
    zoo.make_tokenizer("gemma", tmp_path)
    made = prompts.load_tokenizer(tmp_path)
    task = row(records.Task, question="Bye", solution="Ciao", context=TALK)
    (((_, tokens, mask),),) = demonstrations(made, [task], config(), True)
    learnt = [token for token, trained in zip(tokens, mask, strict=True) if trained]
    assert made.decode(learnt) == "Hey<end_of_turn>Ciao<end_of_turn>"


def test_a_model_without_generation_config_ends_with_its_eos_token(tiny_model, tmp_path, tokenizer):
    assert prompts.end_tokens(tokenizer(), tmp_path) == [1]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert prompts.end_tokens(tokenizer(), tmp_path) == [1, 7]
    for odd in ("x", [1, -2], 1.5, True):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": odd}))
        with pytest.raises(ModelError):
            prompts.end_tokens(tokenizer(), tmp_path)
