"""Arguments of workflows and of the functions that reward a response."""

from typing import Any, Literal

from pydantic import Field, field_validator

from ouroboros.pipeline.settings.arguments.base import LONGEST, Reward, Workflow, described
from ouroboros.pipeline.settings.arguments.binding import EVERY
from ouroboros.pipeline.settings.arguments.judging import JudgeReward
from ouroboros.pipeline.settings.arguments.mcp import McpServer, servers_of

THINK_ANSWER = r"\s*<think>(?:(?!</?think>|</?answer>).)*</think>\s*<answer>(?:(?!</?think>|</?answer>).)*</answer>\s*"


class CountdownReward(Reward):
    """1 for an expression that reaches the target with every number, and accuracy."""
    reads_truths = True
    reports_accuracy = True
    components = ("accuracy", "format_score")
    format_score: float = Field(0.1, description="reward of an expression with a wrong value; 0: right or wrong alone")


class AccuracyReward(Reward):
    """1 where the final answer equals the truth: numbers exactly, words as words, formulas by math_verify."""
    reads_truths = True
    reports_accuracy = True
    components = ("accuracy",)
    timeout_seconds: int = Field(5, ge=1, le=LONGEST, description=(
        "limit of the CPU time in which math_verify compares one answer with its truth; beyond it the answer is wrong"))
    allow_unevaluated: bool = Field(False, description=(
        "count a marked answer that leaves an operation to carry out, such as \\boxed{34 + 50} where the truth is 84"))


class ReasoningGymReward(Reward):
    """1 where the scorer of a task of reasoning-gym gives the answer 1."""
    reports_accuracy = True
    components = ("accuracy", "partial_credit")
    columns = ("metadata",)
    partial_credit: float = Field(0.0, ge=0, le=1, description=(
        "weight of a score below 1, which the package gives for parts of an answer and for its form"))


class FormatReward(Reward):
    """score where the whole response matches a pattern, else -score."""
    components = ("format_score",)
    pattern: str = Field(THINK_ANSWER, description="regular expression; default: <think>…</think><answer>…</answer>")
    score: float = Field(0.1, description="score of a response that matches")


class ConfidenceReward(Reward):
    """The confidence that a response states, from 0 to 1: a component for the advantage rlcr."""
    components = ("confidence",)
    tag: str = Field("confidence", description="name of the tag, as in <confidence>0.8</confidence>; the last counts")


class EvalsReward(Reward):
    """1 where a reply is right by the rule of its set of OpenAI's evals."""
    reads_truths = True
    reports_accuracy = True
    components = ("accuracy",)


class CallsReward(Reward):
    """1 where a reply is the function calls that are asked for, by the rules of BFCL."""
    reads_truths = True
    reports_accuracy = True
    components = ("accuracy",)


class CodeReward(Reward):
    """1 where the program of a reply passes the tests of its row, which run outside of its process."""
    reports_accuracy = True
    components = ("accuracy", "tests")
    columns = (EVERY,)
    cpu_seconds: int = Field(5, ge=1, le=3600, description=(
        "CPU seconds of a program: of all calls of its function together, or of one input; beyond them the rest of its "
        "tests fail, and after ten times as many of wall time the row has failed"))
    memory_mb: int = Field(1024, ge=128, description="memory of a program")
    tests_score: float = Field(0.0, ge=0, description="factor of the share of tests that pass")
    isolation: Literal["auto", "namespaces", "landlock", "none"] = Field("auto", description=(
        "what is around a program: namespaces of bubblewrap, or Landlock and seccomp alone; auto: the first of these "
        "that this machine allows; none: nothing, so that programs may do all that you may"))


class OverlongPenalty(Reward):
    """The penalty on length, added to a function that judges whether the answer is right."""
    components = ("overlong_penalty",)
    cache_length: int | None = Field(None, ge=1, description="last tokens, which cost; null: a fifth of the longest")
    max_response_length: int | None = Field(None, ge=2, description="length of the longest response; null: "
                                                                    "model.max_response_tokens")
    penalty_factor: float = Field(1.0, ge=0, description="the whole penalty")


class ModelScore(Reward):
    """The score of a model of explorer.auxiliary_models."""
    components = ("reward_model",)
    model: str | None = Field(None, description="name of the model in explorer.auxiliary_models; null: the only one")
    weight: float = Field(1.0, description="factor of the score")


class RetryWorkflow(Workflow):
    """The same question again, until the answer is right."""
    rewards_whole = True
    tells_states = True
    max_env_steps: int = Field(3, ge=1, description="most turns of an attempt")
    feedback: str | None = Field("That is not right. Try again.", description=(
        "user's turn after a wrong answer; null: the question again"))


class ToolArguments(Workflow):
    """The tools of a workflow with a parameter `toolbox`."""
    tools: list[str] = Field([], description="functions, each as package.module:function")
    environment_class: str | None = Field(None, description=(
        "a class derived from ouroboros.workflows.tools.Environment, as package.module:Class; its public methods are "
        "tools"))
    environment: list[str] = Field([], description="environment variables that tools see besides the usual ones")
    tool_seconds: float = Field(30.0, ge=0.1, le=LONGEST, description=(
        "limit of one call, unless the tool declares its own, and of the start of an MCP server"))
    tool_gib: float | None = Field(4.0, gt=0, description="memory of the process of a call; null: not limited")
    mcp: Any = Field({}, description="MCP servers by name, each with {command, args, env} or {url, headers, token_env}")

    @field_validator("tools")
    @classmethod
    def _functions(cls, value: list[str]) -> list[str]:
        named = [one.partition(":")[2] for one in value]
        if not all(named):
            raise ValueError(f"'{value[named.index('')]}' names no function; needed package.module:function")
        if twice := [name for name in named if named.count(name) > 1]:
            raise ValueError(f"two of them have the name '{twice[0]}'; needed one each")
        return value

    @field_validator("mcp")
    @classmethod
    def _servers(cls, value: Any) -> Any:
        servers_of(value)
        return value

    @property
    def servers(self) -> dict[str, McpServer]:
        """The MCP servers by name."""
        return servers_of(self.mcp)


class ToolWorkflow(ToolArguments):
    """The model calls tools, until it answers."""
    acts_by_itself = True
    max_rounds: int = Field(8, ge=1, description="most replies of an attempt")


class TerminalAgent(ToolWorkflow):
    """The model works in a shell and edits files, until it answers: tasks of Harbor."""
    environment_class: str | None = Field("ouroboros.workflows.environments.terminal:Terminal", description=(
        "a class derived from ouroboros.workflows.tools.Environment, as package.module:Class; its public methods are "
        "tools"))
    max_rounds: int = Field(30, ge=1, description="most replies of an attempt")
    tool_seconds: float = Field(60.0, ge=0.1, le=LONGEST, description=(
        "limit of one command, unless less of the task's own time is left"))


class VerifiersWorkflow(Workflow):
    """The server of an environment of verifiers 0.4 makes the attempt: tasks of verifiers://ENVIRONMENT/TASKSET."""
    acts_by_itself = True
    rewards_whole = True


class HarnessAgent(Workflow):
    """A program, such as a coding agent, works in a task of Harbor and asks the policy by HTTP."""
    acts_by_itself = True
    rewards_whole = True
    command: str = Field("", description=(
        "what bash runs in the task's directory; INSTRUCTION, MODEL, OPENAI_BASE_URL, OPENAI_API_KEY and those of "
        "Anthropic are its variables"))
    locked_environment: str | None = Field(None, description=(
        "environment (ouro env lock) whose packages the command sees; null: what it runs is in the task's image"))


REWARDS = {
    "countdown_reward": CountdownReward, "accuracy_reward": AccuracyReward, "format_reward": FormatReward,
    "confidence_reward": ConfidenceReward,
    "code_reward": CodeReward, "overlong_penalty": OverlongPenalty, "reward_model": ModelScore,
    "reasoning_gym_reward": ReasoningGymReward, "evals_reward": EvalsReward, "calls_reward": CallsReward,
    "judge_reward": JudgeReward,
}
WORKFLOWS = {
    "simple_workflow": described(Workflow, "One prompt, one response."),
    "retry_workflow": RetryWorkflow,
    "tool_call_workflow": ToolWorkflow,
    "terminal_agent": TerminalAgent,
    "verifiers_workflow": VerifiersWorkflow,
    "harness_agent": HarnessAgent,
    "react_workflow": described(ToolWorkflow, "Thought, Action and Observation as text, until the model answers."),
}


def tool_arguments(workflow: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a set's workflow that are about its tools, as given or else by the workflow's defaults."""
    model = WORKFLOWS.get(workflow, ToolArguments)
    declared = model.model_fields if issubclass(model, ToolArguments) else ToolArguments.model_fields
    return {name: given.get(name, declared[name].default) for name in ToolArguments.model_fields}
