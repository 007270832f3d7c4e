"""`ouro serve` and `ouro debug`: a model for agents, and one attempt of a workflow in detail."""

import math
import os
import secrets
import sys

import click

from ouroboros.commands.config_commands import HERE, OVERRIDES, PATH, names, recipes
from ouroboros.pipeline.store.errors import ConfigError


@click.command()
@click.argument("model", metavar="CHECKPOINT", shell_complete=names)
@OVERRIDES
@HERE
@click.option("--stage", metavar="NAME", help="of the run; default: the last one that made a model")
@click.option("--engine", type=click.Choice(["vllm", "transformers"]), help="default: vllm")
@click.option("--host", default="127.0.0.1", show_default=True, help="the address to listen at")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free")
@click.option("--token", is_flag=True, help="make a token, print it, and require it")
@click.option("--token-env", metavar="NAME", help="require the token that this environment variable holds")
@click.option("--record", type=PATH, metavar="DIR", help="write what is asked, answered and rewarded as experience")
@click.option("--step-attempts", "per_step", type=click.IntRange(1), default=32, show_default=True,
              help="rewarded attempts of a recorded step")
@click.option("--wait", type=click.FloatRange(0), default=3600.0, show_default=True, metavar="SECONDS",
              help="for feedback, after an attempt's last reply")
@click.option("--without-feedback", type=click.Choice(["keep", "drop"]), default="keep", show_default=True,
              help="keep: attempts without feedback are rows without a reward, which are not trained on")
def serve(model, overrides, root, stage, engine, token, token_env, without_feedback, **given):
    """Answer clients of OpenAI and Anthropic with a model.

    CHECKPOINT is a model directory, a stage or a checkpoint of the store, the name of a run, or the address of a server
    of OpenAI's interface, up to and with /v1, which is asked then. key=value are settings of model and explorer. Ctrl-C
    ends it.
    """
    from ouroboros.pipeline.results.models import model_of
    from ouroboros.stages.serving.model import model_of_server, settings_of, settings_of_server
    from ouroboros.stages.serving.server import Options, serve

    if math.isnan(given["wait"]):
        raise click.UsageError("--wait nan: needed a number of seconds.")
    options = Options(token=_token(token, token_env), keep=without_feedback == "keep", **given)
    if "://" not in model:
        directory = model_of(model, stage, root)
        serve(directory, settings_of(directory, engine or "vllm", overrides), options)
        return
    if stage is not None or engine is not None:
        raise click.UsageError("--stage and --engine are of a model that is loaded here, and this is the address of a "
                               "server.")
    config = settings_of_server(model, overrides)
    with model_of_server(config) as directory:
        serve(directory, config, options)


@click.group()
def debug():
    """Run a part of a recipe alone, and show what it does."""


@click.command()
@click.argument("recipe", shell_complete=recipes)
@OVERRIDES
@HERE
@click.option("--task", type=click.IntRange(0), default=0, show_default=True, help="its number in the set, from 0")
@click.option("--taskset", metavar="NAME", help="default: the first that is trained on")
@click.option("--stage", metavar="NAME", help="whose settings; default: the first that explores")
@click.option("--checkpoint", metavar="MODEL", help="model directory, stage, checkpoint or run; default: the recipe's")
@click.option("--script", metavar="FILE", help="replies in place of a model: a JSON list of texts; `answer`: one, the "
                                               "task's own solution or truth")
@click.option("--url", help="ask the server of OpenAI's interface at this address (…/v1), with --model")
@click.option("--model", metavar="NAME", help="as the server calls it")
@click.option("--api-key-env", metavar="NAME", help="environment variable with the server's API key")
def workflow(recipe, overrides, root, stage, checkpoint, url, model, api_key_env, **given):
    """Run one attempt at one task and show its calls, tool calls, tokens, masks, reward and times.

    RECIPE is a name in conf/recipe/ or a file; key=value are overrides. Writes nothing. Exits with 1 when the attempt
    has no reward.
    """
    sys.path.insert(0, os.getcwd())  # a project's own code, as in the process of a stage
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.compose.recipe import Recipe
    from ouroboros.pipeline.results.models import model_of, with_models
    from ouroboros.stages.debug import Asked, debug

    if bool(url) != bool(model) or sum(map(bool, (url, checkpoint, given["script"]))) > 1:
        raise click.UsageError("--url goes with --model; and --url, --checkpoint and --script exclude each other.")
    server = {"base_url": url, "model_name": model, "api_key_env": api_key_env} if url else None
    directory = model_of(checkpoint, None, root) if checkpoint else None
    config = compose([f"recipe={recipe.removeprefix('recipe=')}", *overrides])
    config = with_models(config, needed=not (url or checkpoint))
    settings = Recipe(config).one_attempt(stage)
    return 0 if debug(settings, Asked(checkpoint=directory, server=server, **given)) else 1


debug.add_command(workflow)


def _token(new: bool, variable: str | None) -> str | None:
    """The token that clients need, or None."""
    if new and variable is not None:
        raise click.UsageError("--token and --token-env exclude each other.")
    if variable is not None and not os.environ.get(variable):
        raise ConfigError(f"--token-env '{variable}': the environment variable is not set.")
    if new:
        made = secrets.token_urlsafe(24)
        print(f"ouro: token {made}", flush=True)
        return made
    return os.environ[variable] if variable else None
