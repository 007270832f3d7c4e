"""What of a text is a secret whatever the setting is called: passwords in addresses, keys in queries, issued tokens.

The forms of tokens are those that their issuers write down so that they can be found (GitHub, GitLab, Hugging Face,
OpenAI and Anthropic, Slack, AWS).
"""

import re

# of each: what a text carries, and the expression that finds it; the group `secret` is what is hidden
FORMS = {
    "the address carries a password": re.compile(
        r"://[^/@\s:\[]*:(?!\d{1,5}/)(?P<secret>[^@\s]+)@(?=[^\s/])"),  # scheme://user:password@host, not host:80/a@b
    "the address carries a token": re.compile(r"\bhttps?://(?P<secret>[^/@\s:]+)@(?=[^\s/])", re.I),
    "the address carries a key in its query": re.compile(
        r"://\S*?[?&;](?:[\w-]*(?:key|token|secret|password|passwd|pwd|signature|credential)|sig)=(?P<secret>[^&\s#]+)",
        re.I),
    "the text carries a key": re.compile(
        r"(?<![\w-])(?P<secret>sk-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
        r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16})(?![\w-])"),
}


def carried(text: str) -> str | None:
    """`the address carries a password`, or what else a text carries that is a secret; None for most texts."""
    return next((what for what, form in FORMS.items() if form.search(text)), None)


def hidden(text: str) -> str:
    """The text with *** for what it carries."""
    for form in FORMS.values():
        text = form.sub(lambda m: m[0].replace(m["secret"], "***"), text)
    return text
