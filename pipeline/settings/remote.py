"""A model that a server of OpenAI's interface answers for: where it is, and how it may be asked."""

from ouroboros.pipeline.settings.arguments.addresses import NEEDED_ADDRESS, NEEDED_VARIABLE, is_address, is_variable
from ouroboros.pipeline.settings.setting import LIMIT, Section, rule, setting
from ouroboros.pipeline.store.errors import Problem

UNTOLD = {"top_k": -1, "min_p": 0.0}  # what OpenAI's interface has no parameter for -> the value by which it is off


class Remote(Section):
    base_url: str | None = setting(None, "address of the server, up to and with /v1, such as http://127.0.0.1:8000/v1")
    model_name: str | None = setting(None, "name of the model on the server")
    api_key_env: str | None = setting(None, "environment variable with the API key; null: the server needs none",
                                      how=True)
    timeout: float = setting(120.0, "time for a request, after which it is repeated, seconds", **LIMIT, how=True)
    max_retries: int = setting(5, "repetitions of a request that failed by the network or the server's load, after "
                                  "growing pauses", ge=0, how=True)
    concurrency: int = setting(16, "number of requests at once", ge=1, how=True)
    requests_per_minute: int | None = setting(None, "requests begun in a minute; null: no limit", ge=1, how=True)
    tokens_per_minute: int | None = setting(None, "tokens of prompts and replies in a minute, counted when a reply "
                                                  "comes; null: no limit", ge=1, how=True)

    @rule
    def _address(self):
        if self.base_url is not None and not is_address(self.base_url):
            yield Problem("base_url", f"{NEEDED_ADDRESS}.",
                          "A key belongs to the environment variable that api_key_env names.")
        if self.api_key_env is not None and not is_variable(self.api_key_env):
            yield Problem("api_key_env", f"{NEEDED_VARIABLE}.")
