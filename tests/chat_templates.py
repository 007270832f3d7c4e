"""Chat templates of model families in the shape of their own, with tokenizers of characters that have their marks."""

from transformers import Qwen2Tokenizer

from ouroboros.stages.model import BYTE_LEVEL, CHARACTERS

CHATML = """\
{%- macro call(one) %}<tool_call>
{"name": "{{ one.function.name }}", "arguments": {{ one.function.arguments | tojson }}}
</tool_call>{% endmacro -%}
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == "assistant" %}<|im_start|>assistant
{% set content = m.content %}
{%- if thinks and "</think>" in content and loop.index0 < last.user %}
{%- set content = content.split("</think>")[-1].lstrip("\n") %}{% endif %}{{ content }}
{%- for one in m.tool_calls or [] %}{% if content or not loop.first %}
{% endif %}{{ call(one) }}{% endfor %}<|im_end|>
{% elif m.role == "tool" %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QWEN3 = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content + "\\n\\n" }}{% endif %}# Tools
{%- for tool in tools %}{{ "\\n" }}{{ tool | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == "user" %}<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.role == "assistant" %}<|im_start|>assistant
{% if loop.index0 > last.user and (loop.last or m.reasoning_content) %}<think>
{{ (m.reasoning_content or "").strip("\\n") }}
</think>

{% endif %}{{ m.content }}
{%- for one in m.tool_calls or [] %}{{ "\\n" if m.content or not loop.first }}<tool_call>
{"name": "{{ one.function.name }}", "arguments": {{ one.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == "tool" %}{% if loop.first or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
{{- "\\n<tool_response>\\n" + m.content + "\\n</tool_response>" }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""  # a thought is shown in the last turn, and since the last question where there is one
LLAMA = """\
<|begin_of_text|>
{%- macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>

{% endmacro -%}
{%- if tools %}{{ head("system") }}{{ tools | tojson }}<|eot_id|>{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call at a time") }}{% endif %}
{%- set one = m.tool_calls[0].function %}{{ head("assistant") }}
{{- '{"name": "' + one.name + '", "parameters": ' }}{{ one.arguments | tojson }}{{ "}" }}<|eot_id|>
{%- elif m.role == "tool" %}{{ head("ipython") }}{{ m.content | tojson }}<|eot_id|>
{%- else %}{{ head(m.role) }}{{ m.content | trim }}<|eot_id|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head("assistant") }}{% endif %}{# <|python_tag|> #}"""
MISTRAL = """\
<s>{% set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == "user" %}
{%- if tools and loop.index0 == last.user %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- "[INST] " + m.content + "[/INST]" }}
{%- elif m.tool_calls %}[TOOL_CALLS] [
{%- for one in m.tool_calls %}
{%- if one.id | length != 9 %}{{ raise_exception("ids of 9 characters") }}{% endif %}
{{- '{"name": "' + one.function.name + '", "arguments": ' }}{{ one.function.arguments | tojson }}
{{- ', "id": "' + one.id + '"}' }}{{ ", " if not loop.last }}{% endfor %}]</s>
{%- elif m.role == "tool" %}[TOOL_RESULTS] {"content": {{ m.content }}
{{- ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %} {{ m.content }}</s>{% endif %}
{%- endfor %}"""
DEEPSEEK = """\
<｜begin▁of▁sentence｜>{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == "user" %}<｜User｜>{{ m.content }}
{%- elif m.tool_calls %}{% if messages[loop.index0 - 1].role == "user" %}<｜Assistant｜>{% endif %}{{ m.content }}
{{- "<｜tool▁calls▁begin｜>" }}
{%- for one in m.tool_calls %}{{ "\\n" if not loop.first }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>
{{- one.function.name + "\\n```json\\n" + one.function.arguments + "\\n```<｜tool▁call▁end｜>" }}{% endfor %}
{{- "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>" }}
{%- elif m.role == "assistant" %}{% if messages[loop.index0 - 1].role == "user" %}<｜Assistant｜>{% endif %}
{{- m.content + "<｜end▁of▁sentence｜>" }}
{%- elif m.role == "tool" %}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>
{{- m.content + "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role == "user" %}<｜Assistant｜>{% endif %}"""

CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]
LLAMA_MARKS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
MISTRAL_MARKS = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
                 "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
DEEPSEEK_MARKS = [f"<｜{name}｜>" for name in (
    "begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end",
    "tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin",
    "tool▁output▁end")]

# template, special tokens, end of a turn, a call in other spelling than the template's, text after a result
FAMILIES = {
    "qwen2.5": (CHATML, CHATML_MARKS, "<|im_end|>",
                'Let me see.\n<tool_call>\n{"name":"add",  "arguments": {"a": 1,"b": 2}}\n</tool_call>',
                "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    "llama3": (LLAMA, LLAMA_MARKS, "<|eot_id|>", '{"name":"add","parameters":{"a":1,"b":2}}',
               '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|>'
               "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "mistral": (MISTRAL, MISTRAL_MARKS, "</s>", '[TOOL_CALLS][{"name":"add","arguments":{"a":1,"b":2}}]',
                '[TOOL_RESULTS] {"content": 3, "call_id": "call00000"}[/TOOL_RESULTS]'),
    "deepseek": (DEEPSEEK, DEEPSEEK_MARKS, "<｜end▁of▁sentence｜>",
                 '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a":1,"b":2}\n```'
                 "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                 "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"),
}


def tokenizer_of(template, marks, end):
    """A tokenizer of characters with the special tokens of a family."""
    texts = ["<unk>", *(BYTE_LEVEL.get(c, c) for c in CHARACTERS)]
    made = Qwen2Tokenizer(vocab={text: place for place, text in enumerate(texts)}, merges=[], unk_token="<unk>",
                          eos_token=end, pad_token=end, chat_template=template, clean_up_tokenization_spaces=False)
    made.add_special_tokens({"additional_special_tokens": [mark for mark in marks if mark != end]})
    return made
