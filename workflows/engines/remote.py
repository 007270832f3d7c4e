"""Asks a server of OpenAI's interface: retries, time limits and rate limits (pipeline/settings/remote.py)."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError, StageError
from ouroboros.pipeline.store.secret_names import TAKEN_AS_SECRETS

MINUTE = 60.0
LONGEST_PAUSE = 60.0  # seconds before a request is repeated
TRANSIENT = (408, 409, 429)  # and 500 or more


class RequestFailed(StageError):
    """A request that the server refused, or that failed as often as it may be repeated."""


class Remote:
    """A model of a server. Its requests share the limits; they must be made on one event loop."""

    def __init__(self, settings, key: str | None = None, check: Callable[[], None] = lambda: None):
        """settings: pipeline.settings.remote.Remote. key: of a server of ours; None: the one that the settings name.
        check: raises StageError when that server has ended, since no other request would be answered.

        Raises ConfigError when it has no address, model or key."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if not (settings.base_url and settings.model_name):
            raise ConfigError("a server needs base_url and model_name.")
        if settings.api_key_env and not os.environ.get(settings.api_key_env):
            raise ConfigError(f"api_key_env={settings.api_key_env}: the environment variable is not set.")
        if settings.api_key_env:
            TAKEN_AS_SECRETS.add(settings.api_key_env)  # its value is hidden in messages, whatever it is called
        http = None if key is None else DefaultAsyncHttpxClient(trust_env=False)  # on this machine: past any proxy
        key = key or (os.environ[settings.api_key_env] if settings.api_key_env else "none")
        self.client = AsyncOpenAI(base_url=settings.base_url, api_key=key, organization=None, project=None,
                                  max_retries=0, timeout=settings.timeout, http_client=http)
        self.model, self._settings, self._check = settings.model_name, settings, check
        self._free = asyncio.Semaphore(settings.concurrency)
        self._begun: deque[float] = deque()  # in the last minute
        self._used: deque[tuple[float, int]] = deque()  # tokens, likewise

    async def chat(self, messages: list[dict], **body: Any) -> Any:
        """A chat completion. Raises RequestFailed."""
        return await self._asked(lambda: self.client.chat.completions.create(
            model=self.model, messages=messages, **body))

    async def complete(self, prompt: str, **body: Any) -> Any:
        """A completion of a text. Raises RequestFailed."""
        return await self._asked(lambda: self.client.completions.create(model=self.model, prompt=prompt, **body))

    async def models(self) -> list[str]:
        """The names of the server's models. Raises RequestFailed."""
        return [one.id for one in (await self._asked(self.client.models.list)).data]

    async def _asked(self, request: Callable[[], Awaitable]) -> Any:
        import openai
        import tenacity

        pauses = tenacity.wait_random_exponential(multiplier=0.5, max=LONGEST_PAUSE)
        attempts = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(1 + self._settings.max_retries), reraise=True,
            retry=tenacity.retry_if_exception(_is_transient),
            wait=lambda state: _asked_pause(state.outcome.exception()) or pauses(state))
        try:
            async with self._free:
                return await attempts(self._once, request)
        except openai.OpenAIError as error:
            self._check()
            words = " ".join(str(error).split())[:300]
            raise RequestFailed(f"{self._settings.base_url} did not answer: {type(error).__name__}: {words}") from error

    async def _once(self, request: Callable[[], Awaitable]) -> Any:
        await self._allowed()
        self._check()
        self._begun.append(time.monotonic())
        reply = await request()
        if getattr(reply, "usage", None):  # a list of models has none
            self._used.append((time.monotonic(), reply.usage.total_tokens))
        return reply

    async def _allowed(self) -> None:
        """Waits until the limits of a minute allow another request."""
        limits = self._settings
        while True:
            since = time.monotonic() - MINUTE
            while self._begun and self._begun[0] <= since:
                self._begun.popleft()
            while self._used and self._used[0][0] <= since:
                self._used.popleft()
            if limits.requests_per_minute and len(self._begun) >= limits.requests_per_minute:
                soonest = self._begun[0]
            elif limits.tokens_per_minute and sum(n for _, n in self._used) >= limits.tokens_per_minute:
                soonest = self._used[0][0]
            else:
                return
            await asyncio.sleep(max(soonest - since, 0.01))

    async def close(self) -> None:
        await self.client.close()


def _is_transient(error: BaseException) -> bool:
    import openai

    status = getattr(error, "status_code", 0)
    return isinstance(error, openai.APIConnectionError) or status in TRANSIENT or status >= 500


def _asked_pause(error: BaseException) -> float | None:
    """The seconds that a server asks to wait (Retry-After), or None."""
    given = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    return min(float(given), LONGEST_PAUSE) if given.replace(".", "", 1).isdigit() else None
