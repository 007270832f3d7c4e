"""Rules between the reward functions of task sets and what they ask: models, judges, lengths."""

from collections.abc import Iterator

from ouroboros.pipeline.settings.algorithms import OF_SCORES
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS, OverlongPenalty, tool_arguments
from ouroboros.pipeline.settings.data import EXPERTS, SHOWN, reward_functions, workflow_of
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import Problem, nearest

Found = Iterator[Problem]
ASKING = ("judge_reward", "reward_model")  # functions that ask a model


def rewards(c) -> Found:
    """Every answered set has a reward function, and reward_model a model to ask."""
    source, models = c.buffer.explorer_input, c.explorer.auxiliary_models
    known = [model.name for model in models]
    for place, one in answered(c):
        functions, key = reward_functions(one, source), f"buffer.explorer_input.{place}"
        asked = one.reward_fn_args.get("model")
        if not functions:
            yield Problem(key, "no reward function is named.")
        judge = one.reward_fn_args.get("judge_model") if "judge_reward" in functions else None
        if judge is not None and one.reward_fn_args.get("judge_url") is None and judge not in known:
            yield Problem(f"{key}.reward_fn_args.judge_model", "no model of explorer.auxiliary_models has that name, "
                          "and no judge_url names a server.", nearest(str(judge), filter(None, known)), found=judge)
        if c.kind.only_rewards and "judge_reward" in functions and not place.startswith("eval_") and judge is None and (
                one.reward_fn_args.get("judge_url") is None):
            yield Problem(f"{key}.reward_fn_args.judge_url", f"null is the policy itself, and with mode={c.mode} there "
                          "is no engine.", "Name a judge_model.", found=None)
        if "judge_reward" in functions and one.reward_fn_args.get("compare") is True:
            yield from _compared(c, key)
        if "reward_model" not in functions:
            continue
        if not models:
            yield Problem(key, "the reward function reward_model asks a model of explorer.auxiliary_models, which is "
                          "empty.", "Add {model_path: ...} there.")
        elif asked is None and len(models) > 1:
            yield Problem(f"{key}.reward_fn_args.model", f"explorer.auxiliary_models has {len(models)}; needed the "
                          "name of one of them.")
        elif asked is not None and asked not in known:
            yield Problem(f"{key}.reward_fn_args.model", "no model of explorer.auxiliary_models has that name.",
                          nearest(asked, filter(None, known)), found=asked)
    scoring, only = asked_models(c)[0], len(models) == 1
    for index, model in enumerate(models):
        if model.tensor_parallel_size > 1 and (model.name in scoring or (only and None in scoring)):
            yield Problem(f"explorer.auxiliary_models.{index}.tensor_parallel_size", "a model that scores is not "
                          "divided.", "Set 1, and engine_num for copies.", found=model.tensor_parallel_size)


def _compared(c, key: str) -> Found:
    """A judge that compares needs several answers in a group. key: of the set."""
    algorithm = c.algorithm
    if ".eval_" in key:
        yield Problem(f"{key}.reward_fn_args.compare", "an evaluation also answers each task once, greedily, and one "
                      "answer has no other to be compared with.", "Leave it out of evaluation sets.", found=True)
    elif c.kind.explores and (algorithm.repeat_times or 1) + bool(algorithm.greedy_baseline) < 2:
        yield Problem("algorithm.repeat_times", f"{key}.reward_fn_args.compare compares the answers of a group; needed "
                      "at least 2.", found=1)


def overlong(c) -> Found:
    """The penalty on length grows in the last tokens of a response that may be so long."""
    longest = c.model.max_response_tokens
    for place, one in answered(c):
        key, given = f"buffer.explorer_input.{place}.reward_fn_args", one.reward_fn_args
        if "overlong_penalty" not in reward_functions(one, c.buffer.explorer_input) or OverlongPenalty.wrong_values(
                key, given):  # reported with all other arguments
            continue
        most, cache = given.get("max_response_length"), given.get("cache_length")
        if most and most > longest:
            yield Problem(f"{key}.max_response_length", f"a response is cut at model.max_response_tokens={longest}; "
                          "needed a number of tokens from 2 up to that, or null, which is that.", found=most)
        elif cache and cache >= (most or longest):
            yield Problem(f"{key}.cache_length", f"needed between 0 and max_response_length={most or longest}, both "
                          "excluded: the last tokens, in which the penalty grows.", found=cache)


def resampled_by_accuracy(c) -> Found:
    """Groups are compared by accuracy where a reward function reports it."""
    source = c.buffer.explorer_input
    if c.kind.explores and c.algorithm.max_resample_rounds and c.algorithm.resample_metric == "accuracy":
        for place, one in source.train_places:
            if set(functions := reward_functions(one, source)) <= NO_ACCURACY:
                yield Problem("algorithm.resample_metric", f"{' and '.join(functions)} of buffer.explorer_input."
                              f"{place} do not say what is solved.", "Name a function with a component `accuracy`, or "
                              "set resample_metric=reward.", found="accuracy")


def component_keys(c) -> Found:
    """What an advantage reads or weighs by name is in every row, where built-in functions alone reward."""
    keys, weights = c.algorithm.advantage_fn_args.get("gdpo_reward_keys"), c.algorithm.reward_weights
    keys = keys if c.algorithm.advantage.reads_components and isinstance(keys, list) else []
    if not c.kind.learns_from_rollouts or not (keys or weights):
        return
    for place, one in c.buffer.explorer_input.train_places if c.kind.explores else ():
        functions = reward_functions(one, c.buffer.explorer_input)
        made = components_of(one, c.buffer.explorer_input, place)
        if made is None:
            continue
        if not any(weights.get(name, 1) for name in made):
            yield Problem("algorithm.reward_weights", f"with buffer.explorer_input.{place}, whose rewards are of "
                          f"{' and '.join(made)}: all of them would be 0.", "Weigh one of them.", found=weights)
        if lacking := [key for key in keys if key not in made]:
            yield Problem("algorithm.advantage_fn_args.gdpo_reward_keys", f"{' and '.join(functions)} of "
                          f"buffer.explorer_input.{place} give no component '{lacking[0]}'."
                          f"{nearest(str(lacking[0]), made)} They give: {', '.join(made)}.", found=keys)


def components_of(taskset, source, place: str) -> list[str] | None:
    """Returns what the rewards of a set add up; None where a user's code or its rows decide. place: of train_places."""
    known = [REWARDS[name].components if name in REWARDS else () for name in reward_functions(taskset, source)]
    own = workflow_of(taskset, source, place) not in WORKFLOWS or taskset.format.reward_fn_key
    return None if own or not known or not all(known) else [name for names in known for name in names]


def asked_models(c) -> tuple[set[str | None], set[str | None]]:
    """Returns the names of auxiliary models that reward_model asks (None: the only one), and that judge_reward asks."""
    sets = [(one, reward_functions(one, c.buffer.explorer_input)) for _, one in answered(c)]
    scoring = {one.reward_fn_args.get("model") for one, functions in sets if "reward_model" in functions}
    judging = {one.reward_fn_args.get("judge_model") for one, functions in sets
               if "judge_reward" in functions and one.reward_fn_args.get("judge_url") is None}
    return scoring, judging - {None}


def answered(c) -> list:
    """Returns (place below buffer.explorer_input, set) of the sets that a stage, or the evaluation of its model,
    answers."""
    source = c.buffer.explorer_input
    return [*source.eval_places, *(source.train_places if c.kind.makes_experience else ())]


# reward functions that do not report whether a task is solved
NO_ACCURACY = {name for name, one in REWARDS.items() if not one.reports_accuracy}


def _margins(c) -> Found:
    """Only a reward model has margins of pairs, and no set of tasks or of an expert's rows is read for one."""
    source = c.buffer.explorer_input
    sets = [(f"buffer.explorer_input.{place}", one) for place, one in source.places]
    sets += [(f"{EXPERTS}.{name}", one) for name, one in c.buffer.trainer_input.auxiliary_buffers.items()]
    for place, one in sets:
        if one.format.margin_key is not None:
            yield Problem(f"{place}.format.margin_key", "no pairs are read of this set.", "Leave it out, or set it in "
                          f"{SHOWN}.format of a stage that trains a reward model.", found=one.format.margin_key)


def reward_model(c) -> Found:
    """A reward model has scores of responses and no probabilities of tokens."""
    a, shown = c.algorithm, c.buffer.trainer_input.experience_buffer
    yield from _margins(c)
    scores = c.kind.trains and a.scores_responses
    if c.kind.learns_from_given and not scores and shown.format.margin_key is not None:
        yield Problem(f"{SHOWN}.format.margin_key", f"{a.algorithm_type} has no margin of a pair.", "Leave it out, or "
                      f"train a reward model (algorithm_type={OF_SCORES[0]}).", found=shown.format.margin_key)
    if scores and c.trainer.reference_update.interval is not None:
        yield Problem("trainer.reference_update.interval", f"with algorithm_type={a.algorithm_type}: a reward model "
                      "has no reference.", "Set null for this stage.", found=c.trainer.reference_update.interval)
    if not scores:
        if c.kind.trains and a.loss.scores_responses and a.on_pairs:
            yield Problem("algorithm.policy_loss_fn", f"takes scores, and {a.algorithm_type} trains a policy.",
                          f"Set algorithm_type={OF_SCORES[0]}, or another loss.", found=a.policy_loss_fn)
        return
    if ":" not in (a.policy_loss_fn or ":") and not a.loss.scores_responses:
        yield Problem("algorithm.policy_loss_fn", f"takes log-probs, and algorithm_type={a.algorithm_type} has scores.",
                      f"Set {OF_SCORES[0]}, or the type of that name.", found=a.policy_loss_fn)
    for name in ("kl_loss_fn", "entropy_loss_fn"):
        if (given := getattr(a, name)) not in (None, "none"):
            yield Problem(f"algorithm.{name}", f"with algorithm_type={a.algorithm_type}: a reward model has no "
                          "probabilities of tokens.", "Set none.", found=given)
    if a.loss_agg_mode == "seq-mean-token-sum-norm":
        yield Problem("algorithm.loss_agg_mode", "a score has no length to divide by.", "Set null.",
                      found=a.loss_agg_mode)
    if c.model.lora_configs:
        yield Problem("model.lora_configs", f"with algorithm_type={a.algorithm_type}: all weights of a reward model "
                      "are trained.", "Set [] for this stage.", found=plain(c.model.lora_configs))


def unrepeatable(c) -> str:
    """Returns why rewards cannot be computed again from stored responses, if so."""
    source = c.buffer.explorer_input
    for place, one in source.train_places:
        workflow = workflow_of(one, source, place)
        if asking := [name for name in reward_functions(one, source) if name in ASKING]:
            return f"{asking[0]} asks a model"
        if workflow not in WORKFLOWS or WORKFLOWS[workflow].rewards_whole or (
                tool_arguments(workflow, one.workflow_args)["environment_class"]):
            return f"rewards of attempts of {workflow} follow from more than their last response"
    return ""


def repeatable_evaluations(c) -> bool:
    """Returns whether the rewards of evaluations can be computed again: rows of them have one turn, without a mask."""
    source = c.buffer.explorer_input
    return all(workflow_of(one, source, place) == "simple_workflow" and not {*reward_functions(one, source)} & {*ASKING}
               for place, one in source.eval_places)


RULES = (reward_model, rewards, overlong, resampled_by_accuracy, component_keys)
