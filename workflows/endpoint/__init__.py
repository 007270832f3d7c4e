"""The recorded endpoint: agents that speak to OpenAI or Anthropic ask the policy, token for token."""
