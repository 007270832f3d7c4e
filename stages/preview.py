"""Checks a sample of every data file before a run: required columns exist, prompts fit the model.

    python -m ouroboros.stages.preview request.json answer.json

Started by `ouro config check` (pipeline/check/samples.py). Draws rows at random (pipeline/check/reading.py) and
applies the model's chat template and tokenizer. The answer lists problems, warnings, what could not be checked, and
facts. Not a stage of the plan: no stage reads its output.
"""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

from ouroboros.operators.formats import text_of
from ouroboros.pipeline.check.reading import Row, Sample, sample
from ouroboros.pipeline.settings import data
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store import files, kept, yaml_aliases
from ouroboros.pipeline.store.architecture import has_code
from ouroboros.pipeline.store.definitions import sources
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import DataError, ModelError, OuroError
from ouroboros.pipeline.store.light_imports import import_transformers_light
from ouroboros.pipeline.store.model_shape import read_config
from ouroboros.pipeline.store.packable import unknown_type
from ouroboros.pipeline.store.parent import limited_memory
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages.judged_rows import unjudgeable
from ouroboros.stages.model_size import overridden_problem, sizes
from ouroboros.stages.overlap import compare
from ouroboros.stages.sampled_rows import SHOWN, asked, is_conversation, is_text, prompt_of, value_at
from ouroboros.stages.sampled_rows import range_of as spread
from ouroboros.stages.sampled_rows import unusable as unusable_rows
from ouroboros.stages.sampled_rows import usual as usual_length
from ouroboros.stages.sampled_rows import warnings as row_warnings
from ouroboros.stages.unusable_rows import Written, judged, looked_at, tokenizer_of_init, unfit, wanted

LONGEST = 100_000  # characters of a text to tokenize; 16 per allowed token where that is more
MARKER = re.compile(r"<\|[^|<>\s{}]+\|>|<(?:start|end)_of_turn>")  # markers of turns in chat templates
OFTEN = 0.1  # share of over-long rows, or of rows whose prompt is no text, that triggers a warning


class Preview:
    """Collects the findings on all sources of one request."""

    def __init__(self, request: dict[str, Any]):
        self.request, self.limits = request, Model.partial(request["model"])
        self.found: dict[str, list] = {"problems": [], "warnings": [], "unjudged": [], "facts": [], "longest": []}
        self.cut = False  # whether texts of the last source were too long to be counted
        self.untemplated = False  # whether a missing chat template was already reported
        self.unsaid = False  # and a system prompt that the template leaves out
        own = self.limits.model_path and not self.limits.init.enable
        self.tokenizer = self._tokenizer() if request["sources"] or own else None

    def _tokenizer(self):
        import_transformers_light()
        if self.limits.trust_remote_code:  # of CUDA it maps more than what the template may ask for below
            import torch  # noqa: F401

        from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer

        if self.limits.init.enable:
            return tokenizer_of_init(self.limits, self.found["problems"])
        path = self.limits.model_path
        if not path or not (Path(path) / "config.json").is_file():
            self.found["unjudged"].append("lengths of prompts and responses: the model, and so its tokenizer, is not "
                                          "here.")
            return None
        if (template := self.limits.chat_template_path) and not resolve(template).is_file():
            return None  # pipeline/check/data.py reports it
        try:
            with limited_memory():
                tokenizer = load_tokenizer(Path(path), self.limits)
            end_tokens(tokenizer, Path(path))
        except OuroError as error:
            self.found["problems"].append(str(error))
            return None
        self.found["problems"] += filter(None, [overridden_problem(Path(path), self.limits)])
        self._check_model(path, max(tokenizer.get_vocab().values(), default=-1) + 1)
        self._check_markers(tokenizer)
        if self.limits.enable_thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
            self.found["warnings"].append("model.enable_thinking changes nothing: the chat template of "
                                          f"{path} does not read it. Leave it out.")
        return tokenizer

    def tools(self) -> None:
        """Warns of a chat template that does not write the tools that a workflow sends."""
        from ouroboros.workflows.protocol.prompts import writes

        if self.tokenizer is not None and self.request.get("tools") and not writes(self.tokenizer, "tools"):
            self.found["warnings"].append(
                f"{self.request['tools'][0]}: the chat template does not write tools, so the model is not told of "
                "them. Set model.chat_template_path to one that does, or show them in demonstrations (mode=sft).")

    def _check_model(self, path: str, tokens: int) -> None:
        """Checks whether transformers has that type of model, and the model an embedding for each of its tokens."""
        try:
            shape = read_config(path)
        except OuroError:  # a malformed config.json is reported by its own check
            return
        if not has_code(shape) and (unknown := unknown_type(shape["model_type"])):
            self.found["problems"].append(f"model.model_path={path}: {unknown}")
        rows = shape.get("vocab_size")
        if isinstance(rows, int) and rows < tokens:
            self.found["problems"].append(
                f"model.model_path={path}: its tokenizer has tokens up to number {tokens - 1:,}, and the model "
                f"embeddings for {rows:,} (vocab_size of config.json); needed one for each. Either they are of two "
                "models, or the tokenizer's class adds a token (such as <|endoftext|>) that the model lacks.")

    def _check_markers(self, tokenizer) -> None:
        """Warns of markers in the chat template, such as <|im_start|>, that are several tokens of the tokenizer."""
        split = {mark: len(tokenizer.tokenize(mark)) for mark in MARKER.findall(str(tokenizer.chat_template or ""))}
        if split := {mark: count for mark, count in split.items() if count > 1}:
            mark, count = next(iter(split.items()))
            self.found["warnings"].append(
                f"the chat template writes {', '.join(split)}, which the tokenizer of {self.limits.model_path} does "
                f"not have as single tokens ({mark} is {count}): the template is of another model, and turns cost "
                "more tokens. Set model.chat_template_path to one of this model.")

    def source(self, source: dict[str, Any]) -> None:
        """Checks one data source."""
        path, self.cut = Path(source["path"]), False
        try:
            drawn = sample(path, source["split"], self.request["rows"], wanted(source))
        except OuroError as error:
            self.found["problems"].append(f"{source['key']}: {error}")
            return
        wrong = unusable_rows(source, drawn)
        try:
            read, written = looked_at(source, drawn, None if wrong else self.tokenizer, self._settings(),
                                      self._shortened)
        except ModelError as error:  # its images are not for this model
            self.found["problems"].append(f"{source['key']}: {error}")
            return
        reasons = [(at, why) for at, one in enumerate(read) if (why := unfit(one)) is not None]
        few, many = ([], []) if wrong else map(
            add, judged(source, drawn, reasons + written.reasons, written.unwritten), unjudgeable(source, drawn, read))
        wrong += many
        self.found["warnings"] += few
        self.found["problems"] += wrong
        if not drawn.total:
            return
        about = "" if len(drawn.rows) == drawn.total else f", {len(drawn.rows):,} of them read"
        fact = f"{path}: {'about ' if about else ''}{drawn.total:,} rows{about}"
        if not wrong:
            self.found["warnings"] += row_warnings(source, drawn.rows)
            try:
                plain = [place for place, one in enumerate(read) if unfit(one) is None and one.messages is None
                         and place not in written.refused] if read else range(len(drawn.rows))
                fact += f"; {self._lengths(source, drawn, plain, written)}" if self.tokenizer is not None else ""
            except DataError as error:  # the chat template refuses a task
                self.found["problems"].append(f"{source['key']}: {error}")
        self.found["facts"].append([source["name"], fact])

    def _settings(self) -> Config:
        return Config.partial({"model": self.request["model"], "buffer": {
            "explorer_input": {"system_prompt": self.request["system_prompt"]}}})

    def _lengths(self, source: dict[str, Any], drawn: Sample, plain: Sequence[int], written: Written) -> str:
        """plain: places of the rows that are texts alone."""
        columns, rows = source["columns"], [drawn.rows[place] for place in plain]
        prompts = [prompt_of(source, row) for row in rows]
        if source["key"].startswith((data.SHOWN, data.EXPERTS)):
            prompts = [asked(prompt, source["every_turn"]) for prompt in prompts]
        text = "solution_key" not in columns  # plain text is cut into pieces, so none is too long
        both = [(at, one) for at, one in zip(plain, prompts, strict=True) if one not in (None, [], {}) and is_text(one)]
        places, given = [at for at, _ in both], [one for _, one in both]
        odd = [] if text else [one for one in given if not (isinstance(one, str) or is_conversation(one))]
        lengths = self._prompt_lengths(given, text, written.begun) + written.prompts
        what = "conversations" if given and all(map(is_conversation, given)) else "prompts"
        if not text:
            self._judge(source, what, lengths, "max_prompt_tokens", drawn, places + written.places)
        if odd:
            self._by_share(f"{source['key']}: {len(odd)} of {len(prompts)} sampled prompts (column "
                           f"'{columns['prompt_key']}') are no text, such as {text_of(odd[0])[:SHOWN]}: the model is "
                           f"asked their JSON. Write text, or set {source['format_key']}."
                           f"{source['prompt_setting']}.", len(odd), len(prompts))
        words = [f"texts of {min(lengths, default=0)} to {max(lengths, default=0)} tokens" if text else
                 spread(what, lengths, self.limits.max_prompt_tokens)]
        if responses := written.responses or self._solutions(source, rows):
            self._judge(source, "demonstrations", responses, "max_response_tokens")
            words.append(spread("demonstrations", responses, self.limits.max_response_tokens))
        return "; ".join(words)

    def _solutions(self, source: dict[str, Any], rows: list[Row]) -> list[int]:
        """Tokens of the solutions of tasks, with an end token: `ouro init` tells the length of responses by them."""
        found = [value_at(row, source["columns"]["solution_key"]) for row in rows if source["purpose"] == "task"]
        texts = [text_of(one).encode(errors="replace").decode() for one in found if one is not None]
        return [len(tokens) + 1 for tokens in self.tokenizer(
            self._cut(texts, "max_response_tokens"), add_special_tokens=False)["input_ids"]] if texts else []

    def _prompt_lengths(self, prompts: list[Any], text: bool, begun: str) -> list[int]:
        """Tokens of each prompt (text or conversation) with the chat template; reports a missing one once.

        text: the rows are plain training texts, which use no template. begun: what every reply begins with.
        """
        from ouroboros.workflows.protocol.prompts import conversation_text, prompt_text, prompt_tokens, with_system

        system, thinking = self.request["system_prompt"], self.limits.enable_thinking
        texts = [conversation_text(self.tokenizer, with_system(p, system), thinking)
                 if is_conversation(p) and self.tokenizer.chat_template else
                 prompt_text(self.tokenizer, text_of(p[-1]["content"]), system, p[:-1], thinking)
                 if is_conversation(p) else prompt_text(self.tokenizer, text_of(p), system, (), thinking)
                 for p in prompts]
        texts = [one + begun for one in texts]
        if system and not text and not self.unsaid and texts and not any(system in one for one in texts):
            self.unsaid = True
            self.found["warnings"].append(
                "buffer.explorer_input.system_prompt does not occur in the prompts: the chat template of "
                f"{self.limits.model_path} leaves it out, or the rows have a system message. A prompt: "
                f"{texts[0][:SHOWN]!r}. Set model.chat_template_path to a template that writes it.")
        if texts and not text and not self.tokenizer.chat_template and not self.untemplated:
            self.untemplated = True
            self.found["warnings"].append(
                f"the tokenizer of {self.limits.model_path} has no chat template, so prompts are their turns as "
                f"written, such as {texts[0][:SHOWN]!r}{'…' * (len(texts[0]) > SHOWN)}. A chat model needs one: set "
                "model.chat_template_path.")
        return [len(tokens) for tokens in prompt_tokens(self.tokenizer, self._cut(texts, "max_prompt_tokens"))]

    def _cut(self, texts: list[str], limit: str) -> list[str]:
        """The texts, truncated where tokenizing them would take minutes."""
        most = max(LONGEST, 16 * getattr(self.limits, limit))
        self.cut = self.cut or any(len(text) > most for text in texts)
        return [text[:most] for text in texts]

    def _shortened(self, row: RawTask) -> RawTask:
        """The row with its responses of text truncated likewise."""
        return replace(row, **{name: self._cut([text], "max_response_tokens")[0] for name in
                               ("solution", "chosen", "rejected") if (text := getattr(row, name)) is not None})

    def _judge(self, source: dict[str, Any], what: str, lengths: list[int], limit: str, drawn: Sample | None = None,
               places: Sequence[int] = ()) -> None:
        """drawn, places: the sample, and where the row of each length is in it, where that is known."""
        most, order = getattr(self.limits, limit), sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        longest = drawn.named([places[order[0]]]) if drawn and order else ""
        self.found["longest"].append([limit, max(lengths, default=0), usual_length(lengths), longest])
        over = [at for at in order if lengths[at] > most]
        if not over:
            return
        rows = f" ({drawn.named({places[at] for at in over})})" if drawn else ""
        line = (f"{source['key']}: {len(over)} of {len(lengths)} sampled {what}{rows} are longer than "
                f"model.{limit}={most}, the longest has {'at least ' * self.cut}{max(lengths)} tokens; they are not "
                "trained on. Raise it, or leave such rows out.")
        self._by_share(line, len(over), len(lengths))

    def _by_share(self, line: str, some: int, total: int) -> None:
        """Adds a problem when all rows are affected, and a warning when more than a few are."""
        if some == total:
            self.found["problems"].append(line)
        elif some > OFTEN * total:
            self.found["warnings"].append(line)

    def recipes(self) -> None:
        """Checks the Data-Juicer operators and arguments of recipe files and of inline recipes."""
        on_experience = self.request.get("on_experience", [])
        if not (self.request["recipes"] or self.request["operators"] or on_experience):
            return
        from ouroboros.operators import juicer
        from ouroboros.operators.experience import TEXT, misfits
        from ouroboros.operators.juicer_recipes import inline_recipe, items

        made = [(path, partial(_recipe, Path(path)), juicer.faults) for path in self.request["recipes"]]
        made += [("data_processor.task_pipeline.operators", partial(inline_recipe, *given), juicer.faults)
                 for given in self.request["operators"]]
        made += [(key, partial(_recipe, Path(path)) if path else partial(inline_recipe, operators, [TEXT]),
                  misfits) for key, path, operators in on_experience]
        version = kept.version(*map(str, sources(files.HOME)))
        known = kept.answers(__file__, version)  # recipes without faults: Data-Juicer takes seconds to import
        for key, recipe, problems in made:
            try:
                read = recipe()
                asked = json.dumps([problems.__name__, read], default=str)
                lines = [] if asked in known else problems(read)
                self.found["problems"] += [f"{key}: {line}" for line in lines]
                if not lines and asked not in known and not any(":" in name for name, _ in items(read)):
                    kept.keep(__file__, version, known := known | {asked: True})
            except OuroError as error:
                self.found["problems"].append(str(error))


def _recipe(path: Path) -> dict[str, Any]:
    """A Data-Juicer recipe, its YAML aliases bounded. Raises ConfigError as read_recipe does."""
    import yaml

    from ouroboros.operators.juicer_recipes import read_recipe

    with suppress(OSError, ValueError, yaml.YAMLError):  # invalid YAML is reported by the line below
        yaml_aliases.load(path.read_bytes(), str(path))
    return read_recipe(path)


def main(request: str, answer: str) -> None:
    preview = Preview(files.read_json(Path(request)))
    for source in preview.request["sources"]:
        preview.source(source)
    preview.tools()
    preview.recipes()
    if not preview.found["problems"]:
        for word, lines in compare(preview.request.get("sets", [])).items():
            preview.found[word] += lines
    counted = sizes(preview.request.get("models", []), preview.found)
    files.write_json(Path(answer), preview.found | {"sizes": counted})


if __name__ == "__main__":
    main(*sys.argv[1:])
