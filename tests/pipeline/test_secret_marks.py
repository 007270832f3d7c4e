"""What a secret is known by: the name of a setting or of a variable, or the form of a text."""

import pytest

from pipeline.settings import secrets
from pipeline.settings.config import walk
from pipeline.store.secret_names import hidden


@pytest.mark.parametrize(("key", "is_one"), [
    ("monitor.monitor_args.api_key", True), ("a.my_password", True), ("HF_TOKEN", True), ("token", True),
    ("max_prompt_tokens", False), ("stop_token", False), ("tokenizer", False), ("secretary", False)])
def test_what_a_secret_is_called(key, is_one):
    assert secrets.is_secret(key) == is_one


@pytest.mark.parametrize("key", ["api_keys", "aws_secret_access_key", "secret_key", "openai_key", "pwd", "passphrase",
                                 "tokens", "credentials.token_value", "api_key.0"])
def test_other_names_of_secrets(key):
    assert secrets.is_secret(f"generator_args.{key}")
    assert not secrets.is_secret("format.prompt_key")


@pytest.mark.parametrize("key", [
    "HUGGINGFACE_TOKEN", "GITHUB_TOKEN", "MY_OWN_TOKEN", "SERVICE_KEY", "api-key", "x-api-key", "apiKey",
    "headers.Authorization", "github_token", "accessToken", "Cookie", "bot_token", "id_token", "openai_token",
    "jwt", "bearer", "sasToken", "userpwd", "license_key", "pw", "apikey", "openAIKey", "hf_token_read", "api_key_2",
    "smtp_pass", "basic_auth", "auth_header", "connectionString"])
def test_secrets_of_other_people(key):
    assert secrets.is_secret(f"monitor_args.{key}")
    assert "does not go into a file" in secrets.problems_of({"args": {key: "abc"}} if "." not in key else
                                                            {"headers": {"Authorization": "Bearer abc"}})[0]


@pytest.mark.parametrize("key", [
    "MAX_TOKENS", "EOS_TOKEN", "PROMPT_KEY", "text_key", "cost_per_token", "keyboard", "max_tokens", "prompt_key",
    "pad_token", "eos_token_id", "token_level", "num_tokens", "messages_key", "image_key", "key", "token_ids",
    "new_tokens", "token_reward", "forward_pass", "good_token", "step_token", "pass_at_k", "compass",
    "password_file", "api_key_env", "special_tokens", "per_token_kl", "secret_replacement", "PWD"])
def test_what_is_no_secret(key):
    assert not secrets.is_secret(f"args.{key}")


def test_no_setting_of_the_schema_is_a_secret():
    assert [key for key, _ in walk() if secrets.is_secret(key)] == []


def test_a_number_may_be_a_secret_and_a_switch_is_none():
    assert "does not go into a file" in secrets.problems_of({"password": 12345})[0]
    assert secrets.problems_of({"token": True}) == []


@pytest.mark.parametrize(("text", "what", "shown"), [
    ("postgresql://u:p/x@h", "a password", "postgresql://u:***@h"),
    ("http://u:pw@h/v1", "a password", "http://u:***@h/v1"),
    ("https://tok@host/v1", "a token", "https://***@host/v1"),
    ("http://h/v1?a=1&api_key=abc", "a key in its query", "http://h/v1?a=1&api_key=***"),
    ("http://h/?token=abc#x", "a key in its query", "http://h/?token=***#x"),
    ("see hf_abcdefghijklmnopqrstuv", "a key", "see ***"), ("sk-aBcdefghijklmnop12", "a key", "***"),
    ("sk-proj-abcdefgh-ijklmnop", "a key", "***"), ("sk-0123456789abcdef0123456789abcdef", "a key", "***"),
    ("AIza" + "Sy_" * 12, "a key", "***"), ("nvapi-" + "a1" * 30, "a key", "***"),
    ("x r8_" + "Ab1" * 13, "a key", "x ***"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_9", "a key", "***"), ("ASIAABCDEFGHIJKLMNOP", "a key", "***"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----", "a key",
     "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----"),
    ("Bearer xyz", "what a header authorizes with", "Bearer ***"),
    ("-H 'Authorization: Basic dTpwYXNz'", "what a header authorizes with", "-H 'Authorization: Basic ***'"),
    ("send Bearer hunter6hunter6, then", "what a header authorizes with", "send Bearer ***, then"),
    ("https://h/x?page_token=abc&sig=d", "a key in its query", "https://h/x?page_token=***&sig=***"),
    ("https://hooks.slack.com/services/T0/B0/xyz", "a token", "https://hooks.slack.com/services/***")])
def test_what_a_text_carries_is_refused_and_hidden(text, what, shown):
    (problem,) = secrets.problems_of({"a": text})
    assert problem.startswith(("a: the address carries " + what, "a: the text carries " + what))
    assert hidden(text) == shown


@pytest.mark.parametrize("text", [
    "http://host:80/a@b", "http://host/a:b@c", "ssh://git@host/x", "s3://bucket/a", "http://h/?max_tokens=5&page=2",
    "http://[::1]:80/a@b", "sk-learn", "a sentence: with @ and ?key=1", "http://h/v1?api_key=${oc.env:X_API_KEY}",
    "sk-experiment-grpo-7b-run", "/models/sk-finetuned-llama-7b-chat", "sk-Finetuned-Llama-3B-Chat",
    "sk-finetunedllama7bchat", "the bearer of this letter", "hf_transfer", "http://h/?prompt_key=a",
    "Bearer ${oc.env:X_API_KEY}", "r8_final_run",
    "Authorization: Bearer ${oc.env:X_API_KEY}", "answer with -----BEGIN PUBLIC KEY-----"])
def test_what_carries_nothing(text):
    assert secrets.written_out("a", text) is None
    assert hidden("http://host:80/a@b") == "http://host:80/a@b"
