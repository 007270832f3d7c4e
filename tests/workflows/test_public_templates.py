"""Demonstrations and pairs by templates of public models: each row is what transformers renders, token for token."""

import json

import pytest

from ouroboros.operators.formats import read_records
from ouroboros.pipeline.settings.data import BufferFormat
from ouroboros.pipeline.store import records
from ouroboros.workflows.demonstrations import demonstrations, pairs
from ouroboros.workflows.protocol.prompts import with_objects
from tests.chat_templates import tokenizer_of
from tests.factories import row
from tests.public_templates import PUBLIC
from tests.workflows.test_template_rows import ADD, ANSWER, ASKED, CALLS, THREE, marked, settings

AGAIN = [{"role": "user", "content": "Sure?"}]
THOUGHT, AGAIN_THOUGHT = (f"<think>\n{thought}\n</think>\n\n{text}" for thought, text in (
    ("Add.", "It is 3."), ("Again.", "Yes.")))


def says(text):
    return {"role": "assistant", "content": text}


TALKS = {
    "one turn": [ASKED, ANSWER],
    "several turns": [ASKED, ANSWER, *AGAIN, says("Yes.")],
    "a system message": [{"role": "system", "content": "Be brief."}, ASKED, ANSWER],
    "a thought": [ASKED, says(THOUGHT)], "several thoughts": [ASKED, says(THOUGHT), *AGAIN, says(AGAIN_THOUGHT)],
    "an end token": [ASKED, says("It is 3.{end}\n")],
    "an end token in the middle": [ASKED, says("It is{end} 3.")],
    "blanks": [ASKED, says(" It is 3. ")], "tools": [ASKED, CALLS, THREE, ANSWER],
    "an empty thought": [ASKED, says("<think>\n\n</think>\n\nIt is 3.")],
}
PLAIN = {"one turn", "several turns", "a system message", "an end token", "blanks", "tools"}
THINKING = {"a thought", "several thoughts"}
REFUSED = {  # (template, enable_thinking) -> what does not go on from the generation prompt, and what then does
    ("qwen3", False): (THINKING, "true"), ("qwen3.5", False): (THINKING, "true"),
    ("smollm3", False): (THINKING, "true"),
    ("deepseek-r1", None): (PLAIN, ""), ("deepseek-r1", False): (PLAIN, ""),
    ("minimax-m2", None): (PLAIN, ""), ("minimax-m2", False): (PLAIN, ""),
    ("deepseek-v3.1", None): (THINKING, "true"), ("deepseek-v3.1", False): (THINKING, "true"),
    ("glm-4.5", False): (THINKING, "true"),
    ("glm-4.7", None): (PLAIN, "false"), ("glm-4.7", False): (THINKING, "true"),
    ("nemotron-3", None): (PLAIN, "false"), ("nemotron-3", False): (THINKING, "true"),
    ("hunyuan", False): (PLAIN | THINKING | {"an empty thought"}, "true"),
}
NO_TOOLS = {"smollm2", "gemma-3"}
KEPT = {  # thoughts that the template cuts out, or begins otherwise than its prompt: what follows the prompt
    "deepseek-r1-distill": {
        "a thought": [f"{THOUGHT}<｜end▁of▁sentence｜>"],
        "several thoughts": [f"{THOUGHT}<｜end▁of▁sentence｜>", f"{AGAIN_THOUGHT}<｜end▁of▁sentence｜>"],
        "an empty thought": ["<think>\n\n</think>\n\nIt is 3.<｜end▁of▁sentence｜>"]},
    "deepseek-r1": {
        "a thought": ["Add.\n</think>\n\nIt is 3.<｜end▁of▁sentence｜>"],
        "several thoughts": ["Add.\n</think>\n\nIt is 3.<｜end▁of▁sentence｜>",
                             "Again.\n</think>\n\nYes.<｜end▁of▁sentence｜>"],
        "an empty thought": ["\n</think>\n\nIt is 3.<｜end▁of▁sentence｜>"]},
    "minimax-m2": {"an empty thought": ["\n</think>\n\nIt is 3.[e~["]},
    "glm-4.7": {"an empty thought": ["\n\n</think>\n\nIt is 3.<|user|>"]},
    "nemotron-3": {"an empty thought": ["\n</think>\n\nIt is 3.<|im_end|>"]},
}


@pytest.fixture
def of(tmp_path):
    """of(name): the tokenizer of a public template, a character a token, and what ends its turns."""
    def make(name):
        template, marks, end, *stops = PUBLIC[name]
        tokenizer = tokenizer_of(template, marks, end)
        tokenizer.name_or_path = str(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps(
            {"eos_token_id": tokenizer.convert_tokens_to_ids([end, *stops])}))
        return tokenizer, [end, *stops]
    return make


def task_of(talk, tools):
    if tools:
        return row(records.Task, messages=json.dumps({"messages": talk, "tools": tools}))
    return row(records.Task, question=talk[-2]["content"], context=talk[:-2], solution=talk[-1]["content"])


def rendered(tokenizer, ends, talk, tools, thinking):
    """(prompt, text with the response and what stops the model) as transformers writes them."""
    more = ({"tools": tools} if tools else {}) | ({} if thinking is None else {"enable_thinking": thinking})
    talk = [with_objects(turn) for turn in talk]
    prompt = tokenizer.apply_chat_template(talk[:-1], tokenize=False, add_generation_prompt=True, **more)
    whole = tokenizer.apply_chat_template(talk, tokenize=False, **more)
    if whole.rstrip().endswith(tuple(ends)):
        return prompt, whole.rstrip()
    return prompt, whole + ("<|observation|>" if "tool_calls" in talk[-1] else "<|user|>")


def check(tokenizer, ends, made, talk, tools, thinking, every_turn):
    """The rows are those renderings, in as few rows as repeat what was answered; only responses are trained on."""
    places = [place for place, turn in enumerate(talk) if turn["role"] == "assistant"]
    parts = [rendered(tokenizer, ends, talk[:place + 1], tools, thinking)
             for place in (places if every_turn else places[-1:])]
    wanted, last = [], None
    for prompt, whole in parts:
        if last is not None and prompt.startswith(last):
            wanted[-1].append((prompt, whole))
        else:
            wanted.append([(prompt, whole)])
        last = whole
    assert len(made) == len(wanted)
    for (before, after, mask), shared in zip(made, wanted, strict=True):
        tokens, trained = tokenizer(shared[-1][1])["input_ids"], []
        for prompt, whole in shared:
            trained += [0] * (len(tokenizer(prompt)["input_ids"]) - len(trained))
            trained += [1] * (len(tokenizer(whole)["input_ids"]) - len(trained))
        assert before + after == tokens
        assert [0] * len(before) + mask == trained


def shown(tokenizer, made):
    return [marked(tokenizer, *one)[1] for one in made]


@pytest.mark.parametrize("every_turn", [False, True])
@pytest.mark.parametrize("thinking", [None, False])
@pytest.mark.parametrize("name", PUBLIC)
def test_rows_are_what_transformers_renders(of, name, thinking, every_turn):
    """Or are refused, with what works; a thought that the template would cut out of the text is kept."""
    (tokenizer, ends), reasons = of(name), {}
    for what, talk in TALKS.items():
        talk = [turn | {"content": turn["content"].replace("{end}", ends[0])} for turn in talk]
        tools = [ADD] if what == "tools" else []
        (made,) = demonstrations(tokenizer, [task_of(talk, tools)], settings(thinking=thinking), every_turn)
        if isinstance(made, str):
            reasons[what] = made
            continue
        is_over = rendered(tokenizer, ends, talk, tools, thinking)[0].rstrip().endswith("</think>")
        if kept := None if is_over else KEPT.get(name, {}).get(what):
            assert shown(tokenizer, made) == [f"[[{one}]]" for one in kept[0 if every_turn else -1:]]
        else:
            is_same = what == "an end token" or (what == "an empty thought" and is_over)  # the prompt has it already
            check(tokenizer, ends, made, TALKS["one turn"] if is_same else talk, tools, thinking, every_turn)
    refused, works = REFUSED.get((name, thinking), (set(), ""))
    assert set(reasons) == refused | {"an end token in the middle"} | ({"tools"} if name in NO_TOOLS else set())
    assert ends[0] in reasons["an end token in the middle"]
    assert all(f"model.enable_thinking={works} works" in reasons[what] if works else
               "enable_thinking" not in reasons[what] for what in refused)


@pytest.mark.parametrize("name", PUBLIC)
def test_both_responses_of_a_pair_are_what_transformers_renders(of, name):
    """As dpo, kto, orpo and simpo train on them."""
    tokenizer, ends = of(name)
    is_refused = "one turn" in REFUSED.get((name, None), ((), ""))[0]
    task = row(records.Task, question="1+2?", chosen="It is 3.", rejected=" It is 4.")
    (made,) = pairs(tokenizer, [task], settings())
    if is_refused:
        assert isinstance(made, str)
        return
    for one, text in zip(made, (task.chosen, task.rejected), strict=True):
        check(tokenizer, ends, [one], [ASKED, says(text)], [], None, False)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_column_of_responses_is_trained_on_like_a_conversation(of, name):
    (read,) = read_records([{"question": "1+2?", "answer": "It is 3."}],
                           BufferFormat(prompt_key="question", response_key="answer"), "demonstration", "a.jsonl", 0)
    tokenizer, _ = of(name)
    alone = demonstrations(tokenizer, [read], settings(), False)
    assert alone == demonstrations(tokenizer, [task_of(TALKS["one turn"], [])], settings(), False)
    assert isinstance(alone[0], str) == ("one turn" in REFUSED.get((name, None), ((), ""))[0])


@pytest.mark.parametrize(("name", "text", "kept"), [
    ("deepseek-r1", "Add.</think>It is 3.", "Add.</think>It is 3.<｜end▁of▁sentence｜>"),
    ("qwen3.5", "Add.\n</think>\n\nIt is 3.", "Add.\n</think>\n\nIt is 3.<|im_end|>")])
def test_a_thought_that_the_prompt_has_begun_is_ended_by_the_text(of, name, text, kept):
    """As it is sampled."""
    tokenizer, _ = of(name)
    (made,) = demonstrations(tokenizer, [task_of([ASKED, says(text)], [])], settings(), False)
    assert shown(tokenizer, made) == [f"[[{kept}]]"]


@pytest.mark.parametrize("name", ["deepseek-r1", "deepseek-r1-distill", "qwen3", "qwen3.5", "glm-4.5"])
def test_a_text_before_a_thought_is_not_lost(of, name):
    tokenizer, _ = of(name)
    task = task_of([ASKED, says("So. <think>Add.</think>It is 3.")], [])
    (made,) = demonstrations(tokenizer, [task], settings(), False)
    assert isinstance(made, str)


@pytest.mark.parametrize("name", ["gpt-oss", "glm-4", "glm-4.5"])
def test_a_call_at_the_end_is_followed_by_what_stops_the_model(of, name):
    """GLM writes it at the head of the result alone."""
    tokenizer, ends = of(name)
    made = demonstrations(tokenizer, [task_of([ASKED, CALLS], [ADD])], settings(), False)[0]
    check(tokenizer, ends, made, [ASKED, CALLS], [ADD], None, False)


def test_turns_of_the_assistant_in_a_row_each_have_their_prompt(of):
    tokenizer, ends = of("qwen2.5")
    talk = [ASKED, ANSWER, says("Really.")]
    (made,) = demonstrations(tokenizer, [row(records.Task, messages=json.dumps({"messages": talk}))], settings(), True)
    check(tokenizer, ends, made, talk, [], None, True)
