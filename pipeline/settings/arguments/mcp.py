"""Arguments of MCP servers, whose tools an agent calls."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ouroboros.pipeline.settings.arguments.addresses import is_address


class McpServer(BaseModel):
    """A server of the Model Context Protocol: a program that is started for each attempt, or a URL.

    env: environment variables that the program sees besides those of every program. token_env: variable with the token
    of `Authorization: Bearer`. tools: those that the model sees; None for all. prefix: before their names. idempotent:
    whether calls may be repeated after a kill (workflows/protocol/tools.py), or the tools of which they may. stateful:
    whether calls depend on earlier ones of the attempt.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    command: str | None = Field(None, min_length=1)
    args: list[str] = []
    env: list[str] = []
    url: str | None = None
    headers: dict[str, str] = {}
    token_env: str | None = None
    tools: list[str] | None = Field(None, min_length=1)
    prefix: str = ""
    idempotent: bool | list[str] = False
    stateful: bool | None = None

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not is_address(value.partition("?")[0]):
            raise ValueError("needed http:// or https://, a host and a path, without user or password")
        return value

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needed a command, or the url of a server that runs already")
        if self.url and (self.args or self.env):
            raise ValueError("args and env are those of a command; needed headers or token_env with a url")
        if self.command and (self.headers or self.token_env):
            raise ValueError("headers and token_env are those of a url; needed env with a command")
        return self

    @property
    def keeps_state(self) -> bool:
        """A program has the state of its attempt; one behind a URL is expected to outlive attempts."""
        return self.command is not None if self.stateful is None else self.stateful

    @property
    def variables(self) -> list[str]:
        """The environment variables that it needs."""
        return [*self.env, *([self.token_env] if self.token_env else [])]


def servers_of(value: Any) -> dict[str, McpServer]:
    """The servers in `workflow_args.mcp`, by name. Raises ValueError."""
    if not isinstance(value, dict) or not all(value):
        raise ValueError("needed a mapping from a name to {command, args, env} or {url, headers, token_env}")
    found = {}
    for name, one in value.items():
        try:
            found[str(name)] = McpServer.model_validate(one)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, (name, *first["loc"])))
            raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error
    return found
