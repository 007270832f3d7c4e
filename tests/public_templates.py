"""Chat templates in the shape of public ones of 2026: how each begins a response, writes a thought and ends a turn.

What else they write, such as dates and descriptions of tools, is left out.
"""

from tests.chat_templates import LLAMA, LLAMA_MARKS, MISTRAL, MISTRAL_MARKS

LAST = """{%- set last = namespace(user=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"""
SPLIT = """{% set thought, text = m.reasoning_content or "", m.content %}
{%- if not thought and "</think>" in text %}
{%- set thought = text.split("</think>")[0].split("<think>")[-1].strip("\\n") %}
{%- set text = text.split("</think>")[-1].lstrip("\\n") %}{% endif %}"""
CALLS = """{%- for one in m.tool_calls or [] %}{{ "\\n" if text or not loop.first }}<tool_call>
{{ one.function.name }} {{ one.function.arguments | tojson }}
</tool_call>{% endfor %}"""


def chatml(said, begins="", tools=True, default=""):
    """said: what an assistant's turn writes between its head and <|im_end|>. begins: what the prompt adds to the head.
    default: a system message where there is none."""
    offered = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}" if tools else ""
    return (LAST + default + offered + """
{%- for m in messages %}{% if m.role == "assistant" %}<|im_start|>assistant
""" + said + """<|im_end|>
{% elif m.role == "tool" %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
""" + begins + "{% endif %}")


def tagged(user, assistant, said, end, between="", begins="", system=None, first="", tool="[tool]"):
    """Turns that begin with a mark. said: with m and text; end: after it. between: after other turns."""
    return (first + LAST + "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
            + '{% if m.role == "assistant" %}' + assistant + said + end
            + '{% elif m.role == "user" %}' + user + "{{ m.content }}" + between
            + '{% elif m.role == "tool" %}' + tool + "{{ m.content }}" + between
            + "{% else %}" + (user if system is None else system) + "{{ m.content }}" + between
            + "{% endif %}{% endfor %}{% if add_generation_prompt %}" + assistant + begins + "{% endif %}")


OFF = "{% if enable_thinking is defined and not enable_thinking %}"
TEXT = "{% set text = m.content %}{{ text }}" + CALLS
RECENT, ENDIF = "{% if loop.index0 > last.user %}", "{% endif %}"
THINKS = "{% if thought and loop.index0 > last.user %}"
WITH_SYSTEM = '{% if messages[0].role != "system" %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}'

QWEN3 = chatml(SPLIT + RECENT + "{% if loop.last or thought %}<think>\n{{ thought }}\n</think>\n\n" + 2 * ENDIF
               + "{{ text }}" + CALLS, OFF + "<think>\n\n</think>\n\n{% endif %}")
QWEN35 = chatml(SPLIT + "{% set text = text | trim %}" + RECENT + "<think>\n{{ thought | trim }}\n</think>\n\n"
                "{% endif %}{{ text }}" + CALLS, OFF + "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}")
NEMOTRON = chatml(SPLIT + THINKS + "<think>\n{{ thought }}\n</think>\n{% else %}"
                  "<think></think>{% endif %}{% set text = text | trim %}{{ text }}"
                  + CALLS, OFF + "<think></think>{% else %}<think>\n{% endif %}")
SMOLLM3 = chatml("{% set text = m.content %}" + OFF + '<think>\n\n</think>\n{{ text.lstrip("\\n") }}{% else %}'
                 "{{ text }}{% endif %}" + CALLS, OFF + "<think>\n\n</think>\n{% endif %}")
DEEPSEEK_MARKS = ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"]
CUT = SPLIT + "{{ text }}" + CALLS
BEGIN, USER, ASSISTANT, END = DEEPSEEK_MARKS
R1 = tagged(USER, ASSISTANT, CUT, END, first=BEGIN, system="")
R1_OPENS = R1[: -len("{% endif %}")] + "<think>\n{% endif %}"
V31 = tagged(USER, ASSISTANT, "</think>" + CUT, END, first=BEGIN, system="",
             begins="{% if enable_thinking is defined and enable_thinking %}<think>{% else %}</think>{% endif %}")
GPT_OSS = LAST + """<|start|>system<|message|>Reasoning: medium<|end|>
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == "assistant" and m.tool_calls %}<|start|>assistant
{%- if m.content %}<|channel|>analysis<|message|>{{ m.content }}<|end|><|start|>assistant{% endif %}
{{- " to=functions." + m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>
{{- m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == "assistant" %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}
{{- "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
{%- elif m.role == "tool" %}<|start|>functions.add to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ "developer" if m.role == "system" else m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
GLM_MARKS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
GLM = {"first": "[gMASK]<sop>", "system": "<|system|>\n", "tool": "<|observation|>\n"}
GLM4 = tagged("<|user|>\n", "<|assistant|>", "\n" + TEXT, "", **GLM)
GLM45 = tagged("<|user|>\n", "<|assistant|>", SPLIT + RECENT + '{{ "\\n<think>" + thought }}</think>{% else %}'
               '{{ "\\n" }}<think></think>{% endif %}{% if text.strip() %}{{ "\\n" + text.strip() }}{% endif %}'
               + CALLS, "", begins=OFF + '{{ "\\n" }}<think></think>{% endif %}', **GLM)
GLM47 = tagged("<|user|>", "<|assistant|>", SPLIT + THINKS + "<think>{{ thought }}</think>"
               "{% else %}</think>{% endif %}{{ text.strip() }}" + CALLS, "",
               begins=OFF + "</think>{% else %}<think>{% endif %}", **GLM)
GEMMA = """<bos>{% set head = messages[0].content + "\\n\\n" if messages[0].role == "system" else "" %}
{%- if tools %}{{ raise_exception("no tools") }}{% endif %}
{%- for m in messages if m.role != "system" %}
{%- if m.role == "tool" %}{{ raise_exception("no tools") }}{% endif %}<start_of_turn>
{{- "model" if m.role == "assistant" else "user" }}
{{ head if loop.first }}{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
PHI4 = tagged("<|im_start|>user<|im_sep|>", "<|im_start|>assistant<|im_sep|>", TEXT, "<|im_end|>", "<|im_end|>",
              system="<|im_start|>system<|im_sep|>")
GRANITE = tagged("<|start_of_role|>user<|end_of_role|>", "<|start_of_role|>assistant<|end_of_role|>", TEXT,
                 "<|end_of_text|>\n", "<|end_of_text|>\n", system="<|start_of_role|>system<|end_of_role|>")
OLMO = tagged("<|user|>\n", "<|assistant|>\n", TEXT, '<|endoftext|>{{ "\\n" if not loop.last }}', "\n",
              system="<|system|>\n", first="<|endoftext|>")
HUNYUAN_MARKS = [f"<｜hy_{name}｜>" for name in ("begin▁of▁sentence", "User", "Assistant", "place▁holder▁no▁2")]
HUNYUAN = tagged(*HUNYUAN_MARKS[1:3], "{% set text = m.content %}{% if not loop.last and '<answer>' in text %}"
                 "{% set text = text.split('<answer>')[-1].split('</answer>')[0].strip() %}{% endif %}{{ text }}"
                 + CALLS, HUNYUAN_MARKS[3], first=HUNYUAN_MARKS[0], system="",
                 begins=OFF + "<think>\n\n</think>\n{% endif %}")
KIMI = tagged("<|im_user|>user<|im_middle|>", "<|im_assistant|>assistant<|im_middle|>",
              SPLIT + "<think>{{ thought if loop.index0 > last.user }}</think>{{ text }}" + CALLS, "<|im_end|>",
              "<|im_end|>", system="<|im_system|>system<|im_middle|>")
MINIMAX = tagged("]~b]user\n", "]~b]ai\n", SPLIT + THINKS + "<think>\n{{ thought }}\n"
                 "</think>\n\n{% endif %}{{ text }}" + CALLS, "[e~[\n", "[e~[\n", "<think>\n", "]~b]system\n")

CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]
PUBLIC = {  # template, marks, what ends a turn, further tokens that stop the model
    "qwen2.5": (chatml(TEXT, default=WITH_SYSTEM), CHATML_MARKS, "<|im_end|>"),
    "qwen3": (QWEN3, CHATML_MARKS, "<|im_end|>"),
    "qwen3.5": (QWEN35, CHATML_MARKS, "<|im_end|>"),
    "deepseek-r1-distill": (R1, DEEPSEEK_MARKS, END),
    "deepseek-r1": (R1_OPENS, DEEPSEEK_MARKS, END),
    "deepseek-v3.1": (V31, DEEPSEEK_MARKS, END),
    "gpt-oss": (GPT_OSS, ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"], "<|return|>",
                "<|call|>"),
    "glm-4": (GLM4, GLM_MARKS, "<|endoftext|>", "<|user|>", "<|observation|>"),
    "glm-4.5": (GLM45, GLM_MARKS, "<|endoftext|>", "<|user|>", "<|observation|>"),
    "glm-4.7": (GLM47, GLM_MARKS, "<|endoftext|>", "<|user|>", "<|observation|>"),
    "nemotron-3": (NEMOTRON, CHATML_MARKS, "<|im_end|>"),
    "smollm2": (chatml(TEXT, tools=False, default=WITH_SYSTEM), CHATML_MARKS, "<|im_end|>"),
    "smollm3": (SMOLLM3, CHATML_MARKS, "<|im_end|>"),
    "gemma-3": (GEMMA, ["<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"], "<eos>", "<end_of_turn>"),
    "llama-3": (LLAMA, LLAMA_MARKS, "<|eot_id|>"),
    "mistral": (MISTRAL, MISTRAL_MARKS, "</s>"),
    "phi-4": (PHI4, [*CHATML_MARKS, "<|im_sep|>"], "<|im_end|>"),
    "granite": (GRANITE, ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], "<|end_of_text|>"),
    "olmo-2": (OLMO, ["<|endoftext|>"], "<|endoftext|>"),
    "hunyuan": (HUNYUAN, HUNYUAN_MARKS, HUNYUAN_MARKS[3]),
    "kimi-k2-thinking": (KIMI, [*CHATML_MARKS, "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"],
                         "<|im_end|>"),
    "minimax-m2": (MINIMAX, ["]~b]", "[e~["], "[e~["),
}
