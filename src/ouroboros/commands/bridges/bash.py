"""Runs a launch script by bash, where every program only records its words, and returns these commands.

bash runs in bubblewrap: no network, /usr read-only, an empty home, its other files in memory, limits of time, processes
and memory. Programs succeed and print a number; what small tools for texts and files give is real. The script runs once
for each of NUMBERS: a word that is not the same every time holds what only a real run would have given, and is unknown.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from ouroboros.commands.bridges.tables import table
from ouroboros.commands.bridges.verl_entry import entry_of
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.images import OWNER
from ouroboros.pipeline.store.secret_names import names_secret

BASH = table("bash_programs")
NUMBERS = (8, 1, 64)  # what programs print; the first counts where a test compares it
SECONDS, MEGABYTES = 20, 64  # of one run: until it is killed, and of its files
VARIABLE = re.compile(r"(?<!\\)\$\{?([A-Za-z_]\w*)")
QUOTES = "\"'"
# `X:-default} and what follows`, whose default may have two levels of braces
TAKEN = re.compile(r"(\w+):?([-=+])((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)")
OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_]\w*\.[\w.@/-]+(=|$)")
MESSAGE = re.compile(r"^(?:/run-\S+|\S*bash):(?: eval:)? line (\d+): (.*)$", re.MULTILINE)
UNBOUND = re.compile(r"(.*): unbound variable")
OF_FILES = re.compile(r"(?:\[\[?|test)\s.*-[abcdefghkprstuwxGLNOS]\s.*")  # `[ -f x ]`, whose verdict is of this machine
SUBSTITUTED = re.compile(r"\$\((?!\()\s*([\w./<-]*)([^)]*)\)?|`\s*([\w./-]*)([^`]*)`?")
VALUE = r"""(?:"[^"]*"|'[^']*'|\$\(\(.*?\)\)|\$\(.*?\)|`[^`]*`|[^\s"'`;|&)])*"""
DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--nodes|-N|--gpus-per-node|--gres)[= \t]+(?:gpu:(?:[\w.-]+:)?)?(\d+)\b",
                       re.MULTILINE)
OF_JOBS = {"--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
           "--gpus-per-node": ("SLURM_GPUS_PER_NODE",), "--gres": ("SLURM_GPUS_ON_NODE",)}
OF_RUN = {"HOME", "USER", "PATH", "PWD", "HOSTNAME", "SHELLOPTS", "BASHOPTS", "BASH_ENV"}
OF_FIRST = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")  # 0 where a batch script runs
INSTEAD = ("Import a resolved configuration instead (python3 -m verl.trainer.main_ppo ... --cfg job --resolve > "
           "verl.yaml), or a file of overrides (data.train_batch_size=1024), one a line.")


@dataclass(frozen=True)
class Argument:
    """A word of a command. problem: why it is unknown; its text is then what the script has there."""

    text: str
    line: int
    problem: str | None = None


@dataclass(frozen=True)
class Command:
    """A program and its words. times: how often it ran; is_sure: whether it ran whatever programs print."""

    arguments: tuple[Argument, ...]
    line: int
    times: int = 1
    is_sure: bool = True


@dataclass
class Script:
    """The commands of a script. skipped: (line, what may matter and was not read); assumed: (line, assumption)."""

    commands: list[Command] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    assumed: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Call:
    """One call of a program. is_read: whether something takes its output."""

    line: int
    is_read: bool
    words: list[str]


@dataclass
class Run:
    """What one run left. notes: (kind, line, text); last: the line of the last command."""

    status: int
    last: int
    errors: list[tuple[int, str]]
    calls: list[Call] = field(default_factory=list)
    notes: list[tuple[str, int, str]] = field(default_factory=list)


def read_script(text: str, name: str = "the script") -> Script:
    """Returns the commands of a script. Raises ConfigError if it is not bash, lacks a variable, or cannot be run."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if plain := _overrides(text):
        return Script(plain)
    run, script = partial(_run, text, name), Script()
    first = run(NUMBERS[0], 0)
    count = 0 if any(map(_starts, first.calls)) else max(map(int, re.findall(r"\$\{?([1-9])", text)), default=0)
    if count:
        first = run(NUMBERS[0], count)
        script.assumed.append((1, f"its arguments ({', '.join(f'${one}' for one in range(1, count + 1))}) are unknown"))
    _refuse(first, name)
    with ThreadPoolExecutor() as pool:  # without an expansion nothing can be another in another run
        runs = [first, *pool.map(lambda number: run(number, count), NUMBERS[1:] if re.search("[$`]", text) else ())]
    script.commands = list(_merged([one.calls for one in runs], text.split("\n")))
    _tell(script, first, text)
    return script


def _overrides(text: str) -> list[Command]:
    """Returns the lines of a file of nothing but overrides, which needs no bash; empty for any other."""
    found = []
    for at, line in enumerate(text.split("\n"), 1):
        try:
            words = shlex.split(line.rstrip("\\"), comments=True)
        except ValueError:
            return []
        if re.search(r"[$`;|&<>(]", re.sub(r"'[^']*'", "", line)) or not all(map(OVERRIDE.match, words)):
            return []
        found += [Command(tuple(Argument(word, at) for word in words), at)] if words else []
    return found


def _starts(call: Call) -> bool:
    return any(map(entry_of, call.words))


def _run(text: str, name: str, number: int, count: int) -> Run:
    """Runs a script in which programs print a number, with as many arguments. Raises ConfigError if that cannot be."""
    base = f"/run-{number}"  # every path below it is another in another run
    home, call, script = (f"{base}/{below}" for below in ("home/user", "place/of/call", "place/of/script"))
    variables = {"HOME": home, "USER": f"user-{number}", "LC_ALL": "C", "OURO_NUMBER": str(number),
                 "OURO_SCRIPT": f"{script}/" + re.sub(r"[^\w.-]", "_", name), **_of_caller(text, number)}
    user = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "--"] if os.geteuid() == 0 else []
    words = [*user, "bwrap", *_box(number), "--dir", home, "--dir", script, "--dir", call, "--chdir", call,
             "--clearenv", *(word for pair in variables.items() for word in ("--setenv", *pair)), "--",
             "/ouro/real/bash", "-c", BASH["within"], "within", str(SECONDS), BASH["before"], BASH["program"],
             *[str(number)] * count]
    done, said = None, "no answer"
    try:
        done = subprocess.run(words, input=text.encode(), capture_output=True, check=False, timeout=3 * SECONDS)
        said = done.stderr.decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        pass
    except OSError as error:
        said = str(error)
    begun, *fields = done.stdout.decode(errors="replace").split("\0") if done else [""]
    if begun != "begun":
        raise ConfigError(f"{name} is run by bash in bubblewrap (`apt-get install bubblewrap`), which this machine "
                          f"cannot do: {said}. {INSTEAD}")
    try:
        return _left(fields, {home: "HOME", call: "PWD", variables["USER"]: "USER"})
    except (ValueError, IndexError):
        raise ConfigError(f"{name} writes more than {MEGABYTES} MiB of files, or ends what watches it. "
                          + INSTEAD) from None


def _box(number: int) -> list[str]:
    """Returns bubblewrap's options: programs of /usr/bin are at /ouro/real alone, files are in memory."""
    launchers, tools = BASH["launchers"].split(), BASH["tools"].split()
    links = [link for link in ("bin", "lib", "lib64") if os.path.islink(f"/{link}")]
    return ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", f"run-{number}",
            "--size", str(MEGABYTES << 20), "--tmpfs", "/", "--ro-bind", "/usr", "/usr",
            "--ro-bind", "/usr/bin", "/ouro/real",
            *(word for place in ("bin", "local") for word in ("--size", "1048576", "--tmpfs", f"/usr/{place}")),
            *(word for link in links for word in ("--symlink", os.readlink(f"/{link}"), f"/{link}")),
            *(word for one in (*launchers, *tools) for word in ("--symlink", "/ouro/program", f"/usr/bin/{one}")),
            *(word for one in tools for word in ("--symlink", "/ouro/real/" + os.path.basename(
                os.path.realpath(f"/usr/bin/{one}")), f"/ouro/tools/{one}")),
            "--proc", "/proc", "--dev", "/dev", "--size", "1048576", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]


def _of_caller(text: str, number: int) -> dict[str, str]:
    """Returns the variables that a script names and its caller or SLURM sets; of secrets what they are replaced by."""
    names = set(VARIABLE.findall(text)) - OF_RUN
    head = re.match(r"(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))*", text)[0]
    found = {name: "0" if name in OF_FIRST else str(number) for name in names if name.startswith("SLURM_")}
    found |= {name: value for option, value in DIRECTIVE.findall(head) for name in OF_JOBS[option]}
    found |= {name: os.environ[name] for name in names if name in os.environ}
    return found | {name: f"secret-{name}" for name in names if names_secret(name)}


def _left(fields: list[str], places: dict[str, str]) -> Run:
    """Parses what `within` of tables/bash_programs.yaml writes; each record begins with the number of its fields.
    Raises ValueError or IndexError if one is cut. places: text -> the variable that it is the value of, and the
    secrets of each call."""
    run = Run(int(fields[0]), int(fields[1].strip() or 0),
              [(int(line), what) for line, what in MESSAGE.findall(fields[2])])
    rest = iter(fields[3:-1])
    for size in rest:
        kind, line, *texts, end = islice(rest, int(size))
        if end != ".":
            raise ValueError
        if kind == "call":
            last = 2 + int(texts[1])
            variables = (one.partition("=") for one in texts[last:])
            values = places | {value: key for key, _, value in variables if names_secret(key)}
            run.calls.append(Call(int(line), texts[0] == "1", [_without(word, values) for word in texts[2:last]]))
        else:
            run.notes.append((kind, int(line), texts[0]))
    return run


def _without(word: str, values: dict[str, str]) -> str:
    """Returns a word with references to variables, by their values: to secrets, and to where the run starts."""
    key, sign, rest = word.partition("=") if "=" in word else ("", "", word)
    for value, name in values.items():
        if len(value) > 2 or (value and value == rest):
            rest = rest.replace(value, f"${{oc.env:{name}}}")
    return key + sign + rest


def _refuse(run: Run, name: str) -> None:
    """Raises ConfigError for a script that is not bash, and for a variable that nothing sets."""
    for line, what in run.errors:
        if re.match("syntax error|unexpected EOF|.*bad substitution", what):
            raise ConfigError(f"{name} is not valid bash: line {line}: {what}.")
        if unbound := UNBOUND.fullmatch(what):
            variable = unbound[1]
            raise ConfigError(f"{name}, line {line}: {variable} is set neither by the script nor where ouro was called."
                              + f" Needed: {variable}=... ouro import verl {name}" * variable.isidentifier())


def _merged(runs: list[list[Call]], lines: list[str]) -> Iterator[Command]:
    """Yields a command for each place of the script, with the words that every call of it has, and the unknown ones."""
    places: dict[tuple, list[list[Call]]] = {}
    for at, calls in enumerate(runs):
        for call in calls:
            place = (call.line, call.words[0] if call.words[0].isalpha() else "", *filter(entry_of, call.words))
            places.setdefault(place, [[] for _ in runs])[at].append(call)
    read = list(dict.fromkeys(f"{one.words[0]} (line {one.line})" for one in runs[0]
                              if one.is_read and not _starts(one)))
    for (line, *_), calls in places.items():
        base, *others = (call for of_run in calls for call in of_run)
        words = [*base.words, *_added(base.words, others)]
        several = len({tuple(call.words) for call in calls[0]}) > 1
        arguments = []
        for word in words:
            at, source = _place(word, line, lines)
            is_known = all(word in call.words for call in [base, *others])
            of_rounds = several and any(word not in call.words for call in calls[0])
            arguments.append(Argument(word, at) if is_known else Argument(
                source, at, f"line {line} runs several times, and not always with this value" if of_rounds
                else _why(source, read)))
        yield Command(tuple(arguments), line, len(calls[0]) or 1, all(calls))


def _added(words: list[str], others: Iterable[Call]) -> list[str]:
    """Returns the overrides of other calls whose keys these words do not have."""
    found = {word.partition("=")[0]: word for call in others for word in call.words if "=" in word}
    keys = {word.partition("=")[0] for word in words}
    return [word for key, word in found.items() if key not in keys]


def _place(word: str, line: int, lines: list[str]) -> tuple[int, str]:
    """Returns the line in which a word of the command of a line stands, and what the script has there."""
    first = last = line - 1
    while lines[first - 1:first] and lines[first - 1].endswith("\\"):
        first -= 1
    while last + 1 < len(lines) and lines[last].endswith("\\"):
        last += 1
    key, sign, _ = word.partition("=")
    for wanted in dict.fromkeys((re.escape(word), re.escape(key + sign))) if sign or not word.isdigit() else ():
        found = [at for at, one in enumerate(lines) if re.search(rf"(?<![\w.]){wanted}", one)]
        if found:
            at = max((one for one in found if first <= one <= last), default=max(
                (one for one in found if one <= last), default=found[0]))
            whole = re.search(rf"(?<![\w.]){re.escape(key + sign)}{VALUE}", lines[at])
            return at + 1, _quiet(re.sub(r"^\S+?=(['\"])(.*)\1$", rf"{key}=\2", whole[0])) if whole else word
    return next(((at + 1, _quiet(found[0].strip(QUOTES))) for at in range(first, last + 1) if word.isdigit() and (
        found := re.search(r"(?<!\S)(?=[\"']?[$`])" + VALUE, lines[at]))), (line, word))


def _quiet(text: str) -> str:
    """Returns a text for quoting, without arguments of commands, which may be secrets: `8 * $(curl ...)`."""
    return SUBSTITUTED.sub(lambda found: f"$({found[1] or found[3]}{' ...' * bool(found[2] or found[4])})", text)


def _why(source: str, read: list[str]) -> str:
    if outputs := [found[0] for found in SUBSTITUTED.finditer(source)]:
        return f"the output of {', '.join(outputs)}, which is not run"
    return (f"what would be printed by {', '.join(read[:4])}{', ...' * bool(read[4:])}, which did not run" if read
            else "what only a call of the script gives")


def _tell(script: Script, run: Run, text: str) -> None:
    """Adds what was assumed about the environment and the machine, and what bash complained about."""
    lines = text.split("\n")
    mentioned = {name: at for at, one in reversed([*enumerate(lines, 1)]) for name in VARIABLE.findall(one)}
    given = {name for name in _of_caller(text, 0) if name in os.environ and not names_secret(name)}
    script.assumed += [(mentioned[name], f"{name} is taken from the environment: {os.environ[name]}") for name in given]
    script.assumed += [(call.line, f"{name} is a secret by its name: set it where the run starts, too")
                       for call in run.calls for name in re.findall(r"\$\{oc\.env:(\w+)\}", " ".join(call.words))
                       if names_secret(name)]
    for kind, line, what in run.notes:
        if kind == "default":
            name, sign, default = TAKEN.match(what).groups()
            line = next((at for at in range(line, len(lines) + 1) if f"${{{name}" in lines[at - 1]), line)
            which = f"${name} is not known" if name.isdigit() else f"{name} is not assigned in the script"
            script.assumed.append((line, f"{which}; taken as not set" if sign == "+" else
                                   f"{which}; its default was taken: {_quiet(default.strip(QUOTES)) or 'nothing'}"))
        elif kind == "source":
            script.skipped.append((line, f"`source {what}`: the file that it reads is not read"))
        elif OF_FILES.fullmatch(what):
            script.assumed.append((line, f"`{_quiet(what)}`: no file of this machine is seen"))
        elif what.startswith("set +") and "u" in what.split()[1]:
            script.assumed.append((line, f"`{what}`: variables that nothing sets are empty behind it"))
    tested = re.compile(r"^\s*(if|elif|while|until|!)\b|&&|\|\|")
    script.assumed += [(call.line, f"`{call.words[0]}` was not run: taken as successful") for call in run.calls
                       if not _starts(call) and tested.search("".join(lines[call.line - 1:call.line]))]
    script.assumed += [(call.line, f"`{call.words[0]}` was not run: what it prints is missing") for call in run.calls
                       if call.is_read and not _starts(call)]
    script.skipped += {line: (line, what) for line, what in reversed(run.errors)}.values()
    if run.status == 137:
        script.skipped.append((run.last, f"the script did not end within {SECONDS} seconds; it was here at the end"))
    elif run.status and not any(map(_starts, run.calls)):
        script.skipped.append((run.last, f"`{''.join(lines[run.last - 1:run.last]).strip()}` ended the script"))
    for listed in (script.skipped, script.assumed):
        listed[:] = sorted(dict.fromkeys(listed), key=lambda remark: remark[0])
