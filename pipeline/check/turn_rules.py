"""Rules for algorithms that compare turns, the workflows that produce them, and the length of a second turn."""


from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.arguments.answers import WORKFLOWS
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import eval_places, train_places, workflow_of
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store.errors import Problem

RETRY, RETRY_STEPS = "retry_workflow", 3  # the workflow of workflows/retry.py, and its default max_env_steps


def unfit_turns(recipe: Recipe) -> list[Problem]:
    """Lists what is wrong with turns and their states, stage by stage. Stages must have valid names and order."""
    found = []
    for name, kind in recipe.kinds.items():
        settings = recipe.settings[name]
        if kind.is_online:  # offline stages: pipeline/check/recorded_rules.py
            function = settings.algorithm.advantage_fn
            found += [problem.of([name]) for problem in state_problems(function, settings)]
        if not kind.learns_from_given:
            found += [problem.of([name]) for problem in _retry_problems(settings, kind)]
    return found


def state_problems(function: str, explored: Config, place: str = "") -> list[Problem]:
    """Lists sets whose workflow does not identify states that the advantage `function` compares.

    explored: the settings of the stage whose explorer creates the rows. place: prefix of its settings: `stages.look.`.
    """
    if function not in ADVANTAGES or not ADVANTAGES[function].compares_states:
        return []
    source = explored.buffer.explorer_input
    chosen = [(name, workflow_of(one, source, name)) for name, one in train_places(source)]
    return [Problem("algorithm.advantage_fn", "compares turns that begin in the same state (column state_hash), and "
                    f"the workflow of {place}buffer.explorer_input.{name}, {workflow}, does not tell states apart.",
                    f"Set its default_workflow_type to {RETRY}, or to a workflow of your own whose trajectories have a "
                    "state.", found=function)
            # a user's workflow is only known after a run
            for name, workflow in chosen if workflow in WORKFLOWS and not WORKFLOWS[workflow].tells_states]


def _retry_problems(settings: Config, kind: Kind) -> list[Problem]:
    """Checks every set that a stage of this kind, or the evaluation of its model, runs with retry_workflow."""
    source = settings.buffer.explorer_input
    places = [*(train_places(source) if kind.explores else []), *eval_places(source)]
    return [problem.below(f"buffer.explorer_input.{place}") for place, one in places
            if workflow_of(one, source, place) == RETRY
            and (problem := _argument_problem(one.workflow_args) or _room_problem(one.workflow_args,
                                                                                    settings.model))]


def _argument_problem(arguments: dict) -> Problem | None:
    steps, feedback = arguments.get("max_env_steps", RETRY_STEPS), arguments.get("feedback", "")
    if type(steps) is not int or steps < 1:
        return Problem("workflow_args.max_env_steps", "needed a whole number, at least 1.", found=steps)
    if feedback is not None and not isinstance(feedback, str):
        return Problem("workflow_args.feedback", "needed a text, or null to ask the question as it was.",
                       found=feedback)
    return None


def _room_problem(arguments: dict, model: Model) -> Problem | None:
    """Reports sequences too short for a second turn: its prompt holds the first turn, the answer and the feedback."""
    longest = model.longest
    least = model.max_prompt_tokens + 2 * model.max_response_tokens
    if longest > least or arguments.get("max_env_steps", RETRY_STEPS) == 1 or arguments.get("feedback", "") is None:
        return None
    return Problem("", f"{RETRY} appends the feedback to the conversation, which takes more than {least} tokens (a "
                   f"prompt and two responses), and a sequence may have {longest}.", "Raise model.max_model_len, or "
                   "set workflow_args.feedback=null to ask the question as it was.")


def most_turns(settings: Config) -> int:
    """Returns the most rows per attempt of a stage that settings imply: a user's workflow counts as one."""
    source = settings.buffer.explorer_input
    return max(one.workflow_args.get("max_env_steps", RETRY_STEPS) if workflow_of(one, source, place) == RETRY else 1
               for place, one in train_places(source))
