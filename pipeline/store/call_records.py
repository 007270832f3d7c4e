"""The rows of what attempts asked: calls of the model and of tools, and what an application said of them."""

from dataclasses import dataclass

import pyarrow as pa

from ouroboros.pipeline.store.task_records import FLOATS, TOKENS, column


@dataclass(slots=True)
class Call:
    """One reply of the model to a workflow with a parameter `model`, in training, whether the workflow used it or not.

    Not in it: a call that was given up.
    """

    attempt: str = column(pa.string(), "stage/group_id/run index: the experience_id of its rows, without /turn")
    stage: str = column(pa.string(), "stage directory name, with its hash")
    step: int = column(pa.int32(), "explorer step, from 1")
    slot: int = column(pa.int64(), "position of the attempt within the step, as in experience")
    position: int = column(pa.int32(), "which call of the attempt, from 0")
    prompt_hash: str = column(pa.string(), "first 16 hex digits of the sha256 of the prompt's token ids as int32")
    prompt_length: int = column(pa.int32(), "tokens of the prompt")
    tokens: list[int] = column(TOKENS, "token ids of the reply [R]")
    logprobs: list[float] = column(FLOATS, "log-prob of each under the sampling policy [R]")
    finish_reason: str = column(pa.string(), "stop or length")
    weights_version: int = column(pa.int32(), "trainer step that made the weights; with partial_rollout the oldest of "
                                              "weights_versions")
    temperature: float = column(pa.float64(), "of sampling; 0 = greedy")
    top_p: float = column(pa.float64(), "of sampling; 1 = off")
    top_k: int = column(pa.int32(), "of sampling; -1 = off")
    seed: int = column(pa.int64(), "of the request")
    seconds: float = column(pa.float64(), "from the request to the reply, the wait for a place at the engine included")
    api: str | None = column(pa.string(), "of the endpoint: chat.completions, completions, messages or responses; "
                                          "null: a workflow with a parameter `model`", later=True, default=None)
    retokenized: bool | None = column(
        pa.bool_(), "whether the messages had an earlier reply whose tokens could not be reused, because history was "
                    "rewritten or the chat template renders it differently; null: as api", later=True, default=None)
    wishes: str | None = column(pa.string(), "JSON of the sampling parameters that the agent set, in place of which "
                                             "those above were used; null: none", later=True, default=None)
    weights_versions: list[int] | None = column(
        TOKENS, "weights_version of each token [R]; null without partial_rollout", later=True, default=None)
    role: str | None = column(pa.string(), "player that asked the endpoint; null: the attempt has no roles", later=True,
                              default=None)


@dataclass(slots=True)
class ToolCall:
    """One call of a tool by an attempt in training (parameter `toolbox`), and its result.

    Not in it: a call that the tool's signature did not allow, and one without a result, after which the attempt failed.
    """

    attempt: str = column(pa.string(), "stage/group_id/run index: the experience_id of its rows, without /turn")
    stage: str = column(pa.string(), "stage directory name, with its hash")
    step: int = column(pa.int32(), "explorer step, from 1")
    slot: int = column(pa.int64(), "position of the attempt within the step, as in experience")
    position: int = column(pa.int32(), "which tool call of the attempt, from 0, in order of the results")
    name: str = column(pa.string(), "of the tool")
    arguments: str = column(pa.string(), "JSON")
    result: str = column(pa.string(), "what the agent got, as text")
    failed: bool = column(pa.bool_(), "whether the tool raised, took too long or ended")
    idempotency_key: str = column(pa.string(), "the same when the call is repeated after a kill")
    seconds: float = column(pa.float64(), "from the intent on the disk to the result")


@dataclass(slots=True)
class Feedback:
    """What an application said of an attempt that `ouro serve --record` recorded, besides the reward."""

    attempt: str = column(pa.string(), "the experience_id of its rows, without /turn")
    stage: str = column(pa.string(), "name of the directory that was recorded to")
    step: int = column(pa.int32(), "recorded step, from 1")
    slot: int = column(pa.int64(), "position of the attempt within the step, as in experience")
    session: str | None = column(pa.string(), "the session as the client named it; null: requests without one",
                                 null=True)
    metadata: str | None = column(pa.string(), "JSON of what the application sent with the reward; null: nothing",
                                  null=True)
