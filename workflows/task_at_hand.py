"""The task interface for workflows: its turns, its truth, its reward, and tokenization."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.locked import interpreter
from ouroboros.pipeline.store.pictures import Kept, Picture, data_uri, of_text, require_few
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.verifiers import served
from ouroboros.workflows.engines import auxiliary
from ouroboros.workflows.engines.guided import check_of
from ouroboros.workflows.protocol import prompts
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.outcomes import Outcome, RewardFunction, add_rewards, opened_tag
from ouroboros.workflows.protocol.prompts import choices_of, conversation_text, prompt_tokens, task_tools, task_turns
from ouroboros.workflows.protocol.sight import sight_of
from ouroboros.workflows.protocol.trajectory import Attempt, Endpoint, Trajectory

PARAMETER = "task"  # a workflow with a parameter of this name gets a TaskAtHand


class TaskAtHand:
    """One task, as seen by the workflow that attempts it.

    messages: the turns {role, content, ...} of its prompt, the system message included, in OpenAI's form. tools: those
    that the prompt offers, in that form. answer: the truth, text.
    """

    def __init__(self, task, rewards: Sequence[RewardFunction], tokenizer, config, is_trained: bool = True,
                 pictures: Sequence[Picture] = (), kept: Kept | None = None):
        """task: of ouroboros.pipeline.store.records.Task. config: settings with sections model, buffer and explorer.

        is_trained: whether the model is trained on the attempt; agents may then not constrain its replies.
        pictures: of the task. kept: takes those of its agents; None: they are not shown.
        """
        self.messages, self.tools, self.answer = task_turns(task, config), task_tools(task), task.answer
        self._columns = prompts.columns_of(task)
        self._prefix = choices_of(task).get("reply_prefix", "")
        self._rewards, self._tokenizer, self._model = rewards, tokenizer, config.model
        self._parser, self._config = config.explorer.tool_call_parser, config
        self._pictures, self._kept = pictures, kept
        self._check = None if is_trained else check_of(config.explorer.rollout_model.engine_type)

    @cached_property
    def _asked(self) -> str:
        """The task's own prompt."""
        return self._rendered(self.messages) + self._prefix

    @property
    def shown(self) -> list[dict]:
        """The messages with images as data URIs, which an agent sends to its endpoint."""
        urls = ({"type": "image_url", "image_url": {"url": data_uri(one)}} for one in self._pictures)
        return [turn if isinstance(turn["content"], str) else {**turn, "content": [
            next(urls) if part["type"] == "image" else part for part in turn["content"]]} for turn in self.messages]

    def _look(self, sources: Sequence[str]) -> list[Picture]:
        """The images that an agent shows the model in a request, with their tokens looked up. Raises DataError."""
        found = {source: of_text(source) for source in dict.fromkeys(sources)}
        require_few({*found.values()})
        own = {one.hash: one for one in self._pictures}
        made = {source: own.get(name := self._kept.keep(data), Picture(str(self._kept.place), name))
                for source, data in found.items()}
        for one in made.values():
            sight_of(self._tokenizer.name_or_path).tokens(one)
        return [made[source] for source in sources]

    def prompt(self, messages: list[dict]) -> list[int]:
        """Token ids of a conversation that ends with a turn of the user or a tool, through the policy's chat template,
        with the tools of the task's prompt."""
        return prompt_tokens(self._tokenizer, [self._rendered(messages)])[0]

    def _rendered(self, messages: list[dict]) -> str:
        return conversation_text(self._tokenizer, messages, self._model.enable_thinking, self.tools)

    def text(self, tokens: list[int]) -> str:
        """A response as text, without special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def judge(self, reply: Reply) -> Outcome:
        """Scores a reply with the task's reward functions: its text, and components or the reason for none."""
        said = Trajectory([], reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)
        outcome = Outcome("ok", trajectory=said, response=self.text(reply.tokens), opened=opened_tag(self._asked))
        add_rewards([outcome], [self.messages], [self.answer], self._rewards, columns=[self._columns])
        return outcome

    def speaker(self, ask: Callable, cancel: Callable):
        """The requests of an agent at this task; ask, cancel: of its attempt."""
        from ouroboros.workflows.endpoint.conversation import Conversation
        from ouroboros.workflows.endpoint.speaker import Speaker
        from ouroboros.workflows.engines.vllm_tools import tool_calls

        conversation = Conversation(self._tokenizer, self._model, self._parser, tool_calls, self._kept and self._look)
        return Speaker(conversation, longest_sequence(self._model), ask, cancel, self._check)

    def consulted(self) -> list[Endpoint]:
        """How the chat models of explorer.auxiliary_models are asked; those that are not loaded yet are waited for."""
        return auxiliary.endpoints(self._config)

    def served(self) -> str:
        """The address of the server of the task's environment (workflows/attempts/verifiers.py)."""
        return served(self.answer, self._config.checkpoint_root_dir, self._config.explorer.max_timeout)

    def python(self, hashed: str) -> Path:
        """The Python of an environment of the project (`ouro env lock`). hashed: workflow_args.locked_environment, in
        place of whose name a workflow has the hash of its lock."""
        return interpreter(hashed, self._config.checkpoint_root_dir)

    def has_room(self, prompt: list[int]) -> bool:
        """Whether a whole response (model.max_response_tokens) still fits after a prompt."""
        return len(prompt) + self._model.max_response_tokens <= longest_sequence(self._model)


def calls_in(text: str, tokenizer, settings) -> list[tuple[str, str]]:
    """Returns (name, arguments) of the tool calls in a reply, as an agent would be given them."""
    from ouroboros.workflows.endpoint.conversation import FORMATS, Conversation

    named = settings.explorer.tool_call_parser
    if not (named or any(mark in text for mark in FORMATS)):  # vLLM's parsers take seconds to import
        return []
    from ouroboros.workflows.engines.vllm_tools import tool_calls

    return Conversation(tokenizer, settings.model, named, tool_calls).tool_calls(text)


def bound(workflow: Callable[..., Attempt] | Isolated, make: Callable[[], TaskAtHand]
          ) -> Callable[[list[int]], Attempt] | Isolated:
    """The workflow with `make()` bound to its parameter `task`, if it has one."""
    if not asks_task(workflow):
        return workflow
    task = make()
    return replace(workflow, task=task) if isinstance(workflow, Isolated) else partial(workflow, **{PARAMETER: task})


def unwritable(reason: str) -> Callable[[list[int]], Attempt]:
    """The workflow of a task whose prompt the chat template cannot write: its attempts fail with the reason."""
    def workflow(prompt: list[int]) -> Attempt:
        raise DataError(reason)
        yield prompt  # as all workflows, a generator

    return workflow


def asks_task(workflow: Callable[..., Attempt] | Isolated) -> bool:
    function = workflow.function if isinstance(workflow, Isolated) else workflow
    if isinstance(workflow, Isolated) and (workflow.speaks or workflow.consults):  # the task has what they need
        return True
    return PARAMETER in inspect.signature(function).parameters
