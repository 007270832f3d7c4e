"""Detects secrets by the name of a setting or environment variable, or by the form of a text.

The only table of both. The forms are those that token issuers publish for detection, addresses with a password or key
in them, and authorization headers. A name is split into words (`openaiApiKey_2` is open, ai, api, key), since the
vocabulary of training has tokens and keys of its own (max_tokens, pad_token_id, prompt_key).
"""

import re
from collections.abc import Iterator
from functools import cache


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


# words of a name; each of these marks a secret at any position
ANYWHERE = _listed("secret secrets credential credentials authorization cookie cookies")
AS_AN_END = re.compile(r"pass(words?|wd|phrases?)$|pwd$|connection_?string$")  # in a word too: PGPASSWORD
LAST = _listed("auth bearer jwt pw")  # marks a secret at the end of a name
DIRECTORIES = _listed("PWD OLDPWD")  # shell variables
# a key or a token is a secret after one of these, whatever follows it
ISSUERS = _listed(
    "access account admin ai anthropic api app application auth aws azure bearer bot client cohere consumer csrf "
    "deepseek deploy docker encryption gemini gh git github gitlab google groq hf hub huggingface license master "
    "mistral ngc npm nvidia openai openrouter private pypi refresh registry replicate secret security serper "
    "session signing slack ssh subscription swanlab tavily wandb webhook")
JOINED = re.compile(rf"(\w*(?:api|access|auth|secret)|{'|'.join(sorted(ISSUERS))})(keys?|tokens?)")  # apikey, hftoken
PASS = _listed("admin db database ftp imap mail my mysql postgres proxy redis root smtp ssh sudo user")
# but not after these: counts of tokens, chat template markers, columns of a file
COUNTED = _listed("avg max mean min num number n per total")
OF_TRAINING = _listed(
    "action answer assistant audio bad batch batched begin bod bos boundary budget cache cached call chat chosen "
    "close cls code column completion content context control correct current data dataset delimiter doc document "
    "drop end eod eom eos eot false fim final first foreign generated good group ignore image input json keep label "
    "language last latent loss marker mask message messages metric middle negative new newline next no observation "
    "open output pad padding partition passage placeholder positive prefix previous primary prompt public query "
    "question rejected remove replace response reward role row score sentinel sep separator seq sequence solution "
    "sort space special split start step stop suffix summary switch system task text think thinking tool tools "
    "trailing train trigger true truth turn unk value verdict video vision wrong yes")
# nor before these: location or length of a secret; properties of each token
PLACES = _listed(
    "column count dir directory endpoint env field file files folder format length limit name names path paths "
    "replacement size type uri url variable")
OF_EACH = _listed(
    "accuracy advantage budget budgets cost dim dtype embedding embeddings entropy header ids index indices kl len "
    "level levels logprob logprobs loss map mask max mean min mode num number per position price prob probs ratio "
    "reward rewards score second sum threshold thresholds usage weight weights window")
# words that only distinguish one secret from another
WHICH = _listed(
    "backup default dev development header headers live local main new old primary prod production raw read ro rw "
    "secondary staging string test value write")


@cache
def names_secret(name: str, is_variable: bool = False) -> bool:
    """Returns whether `api-key`, `apiKey` or `API_KEY_2` names a secret. is_variable: treat as an environment variable.

    An upper-case name is always treated so: there any key counts, while `key` of a setting may be a column's.
    """
    is_variable = is_variable or name.isupper()
    if is_variable and name in DIRECTORIES:
        return False
    words = _words(name)
    if not words or words[-1] in PLACES:
        return False
    if any(word in ANYWHERE or AS_AN_END.search(word) for word in words) or AS_AN_END.search("_".join(words)):
        return True
    last = words[: next((i for i, word in enumerate(words) if i and set(words[i:]) <= WHICH), len(words))]
    return (last[-1] in LAST or _is_pass(last, is_variable)
            or any(_unlocks(words[:at], word, words[at + 1:], is_variable) for at, word in enumerate(words)))


def _words(name: str) -> list[str]:
    """Returns the words of a name in lower case, without trailing numbers."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    words = [word.rstrip("0123456789") for word in re.split(r"[\W_]+", apart.lower())]
    joined = ((word, JOINED.fullmatch(word)) for word in words if word)
    return [part for word, match in joined for part in (match.groups() if match else (word,))]


def _is_pass(words: list[str], is_variable: bool) -> bool:
    """Detects `DB_PASS`, `smtp_pass`, `GITHUB_PAT`, but not `forward_pass`."""
    *before, last = words
    if last == "pass":
        return not before or before[-1] in PASS or (is_variable and before[-1] not in COUNTED)
    return last == "pat" and (is_variable or not ISSUERS.isdisjoint(before[-1:]))


def _unlocks(before: list[str], word: str, behind: list[str], is_variable: bool) -> bool:
    """Returns whether a word in a name is a key or token that grants access."""
    if word not in ("key", "keys", "token", "tokens") and not (is_variable and word.endswith("token")):
        return False
    if OF_EACH & set(behind) or ("token" in word and behind[:1] == ["id"]):
        return False
    if before and (before[-1] in ISSUERS or before[-1].endswith(("api", "access", "auth", "secret"))):
        return True
    if before and (before[-1] in OF_TRAINING or COUNTED & set(before)):
        return False
    if behind and not (set(behind) <= WHICH or (is_variable and before)):
        return False
    return is_variable or word == "token" or (word == "tokens" and not before)


# ---------------------------------------------------------------------------------------------------------------- forms

KEYS = "|".join((
    r"sk-(?:proj|ant|or|svcacct|admin|lf)-[\w-]{12,}",  # OpenAI, Anthropic, OpenRouter
    # other words with this prefix must be long, or have digits, lower and upper case
    r"sk-(?=[A-Za-z]*\d)(?:(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{16,}|[a-z0-9]{32,})",
    r"hf_[A-Za-z0-9]{20,}", r"gh[oprsu]_[A-Za-z0-9]{20,}", r"github_pat_\w{20,}", r"glpat-[\w-]{16,}",
    r"xox[abeprs]-[\w-]{10,}", r"(?:AKIA|ASIA)[0-9A-Z]{16}", r"AIza[\w-]{30,}", r"ya29\.[\w-]{20,}",
    r"nvapi-[\w-]{20,}", r"r8_[A-Za-z0-9]{20,}", r"gsk_[A-Za-z0-9]{20,}", r"xai-[A-Za-z0-9]{20,}",
    r"pplx-[A-Za-z0-9]{20,}", r"npm_[A-Za-z0-9]{30,}", r"pypi-AgE[\w-]{20,}", r"[sr]k_live_[A-Za-z0-9]{10,}",
    r"eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"))  # a JWT: {" in base64
# for each: its description, and the expression that finds it; the group `secret` is hidden
FORMS = {
    "the address carries a password": re.compile(
        r"://[^/@\s:\[]*:(?!\d{1,5}/)(?P<secret>[^@\s]+)@(?=[^\s/])"),  # scheme://user:password@host, not host:80/a@b
    "the address carries a token": re.compile(
        r"\bhttps?://(?P<secret>[^/@\s:]+)@(?=[^\s/])|\bhooks\.slack\.com/services/(?P<hook>[\w/]+)", re.I),
    "the text carries a key": re.compile(
        rf"(?<![\w-])(?P<secret>{KEYS})(?![\w-])"
        r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?P<block>[\s\S]+?)(?=-----END|\Z)"),
    "the text carries what a header authorizes with": re.compile(
        r"\bauthorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+(?P<secret>(?!\$)[^\s'\",}]{3,})"
        r"|\bbearer\s+(?P<with_number>(?!\$)(?=[^\s\d]*\d)[\w.~+/=-]{8,})"
        r"|\A\s*bearer\s+(?P<whole>(?!\$)\S+)\s*\Z", re.I),
}
QUERY = "the address carries a key in its query"
ADDRESS = re.compile(r"://\S+")
PAIR = re.compile(r"(?<=[?&;])([\w.-]+)=([^&;\s#]+)")
SIGNATURES = ("sig", "signature")  # in a signed URL


def carried(text: str) -> str | None:
    """Describes a secret in a text, such as `the address carries a password`; None for most texts."""
    return next((what for what, _, _ in _found(text)), None)


def hidden(text: str) -> str:
    """Returns the text with its secrets replaced by ***."""
    shown, at = [], 0
    for start, end in sorted((start, end) for _, start, end in _found(text)):
        shown += [text[at:start], "***"] if start >= at else []
        at = max(at, end)
    return "".join([*shown, text[at:]])


def _found(text: str) -> Iterator[tuple[str, int, int]]:
    """Returns (description, start, end) of every secret in a text."""
    for what, form in FORMS.items():
        for match in form.finditer(text):
            yield what, *match.span(match.lastgroup)
    for address in ADDRESS.finditer(text):
        for pair in PAIR.finditer(address[0]):
            if names_secret(pair[1], is_variable=True) or pair[1].lower().endswith(SIGNATURES):
                yield QUERY, address.start() + pair.start(2), address.start() + pair.end(2)
