"""What is read of a Dockerfile, and what buildah gets: continued lines, here-documents, names of images, platforms."""

import re
import subprocess
from itertools import pairwise

import pytest

from ouroboros.pipeline.store import dockerfiles
from ouroboros.pipeline.store.dockerfile_text import instructions
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.pipeline.store.images import environments
from tests.harbor_kit import write_task


def read(text: str) -> list[tuple[str, str]]:
    return [(one.name, one.rest) for one in instructions(text)]


def rewritten(text: str, **given: str) -> list[str]:
    """Lines behind the directive and FROM."""
    return dockerfiles.rewritten(text, given).split("\n")[2:-1]


@pytest.mark.parametrize(("text", "found"), [
    ("ENV A=ab\\\ncd", ("ENV", "A=abcd")), ("RUN a \\ \t\n   b", ("RUN", "a    b")),
    ("RUN a &&\\\n# c\n\n  # c \\\n b", ("RUN", "a && b")), ("RUN a \\\r\n b\r\n", ("RUN", "a  b")),
    ("# escape=`\nRUN a `\nb \\", ("RUN", "a b \\")), ("#syntax=x\n# ESCAPE = `\nRUN a`\nb", ("RUN", "ab")),
    ("#\n# escape=`\nRUN a\\\nb", ("RUN", "ab")), ("\ufeffRUN a", ("RUN", "a")), ("\n\trun\ta\tb ", ("RUN", "a\tb")),
    ("RUN a \\", ("RUN", "a")), ("RUN \\\n  a", ("RUN", "a")), ("RUN printf '\f\u2028'", ("RUN", "printf '\f\u2028'"))])
def test_lines_are_joined_as_docker_joins_them(text, found):
    assert read(text) == [found]


def test_two_escapes_end_a_line_and_are_refused_since_buildah_joins_it():
    assert read("RUN a \\\\\nRUN b") == [("RUN", "a \\\\"), ("RUN", "b")]
    assert "\\\\" in dockerfiles.refusal("FROM x\nRUN a \\\\\nRUN b")


@pytest.mark.parametrize("line", [
    "RUN python3 -c 'print(1 << 20)'", "RUN echo $((1 << 2))", "RUN bash -c 'cat <<< x'", "RUN cat <<<x",
    "RUN cat << EOF",
    "RUN echo '<<EOF'", 'RUN echo "a <<EOF"', "RUN cat <<WITHOUT", 'RUN ["cat", "<<EOF"]', "CMD cat <<EOF",
    "RUN a<<EOF", "RUN don't <<EOF", "RUN cat \\<<EOF"])
def test_what_is_no_here_document_takes_no_lines(line):
    text = f"FROM x\n{line}\nUSER me\nEOF\n"
    assert [name for name, _ in read(text)] == ["FROM", line.split()[0], "USER", "EOF"]
    assert rewritten(text)[0] == line


@pytest.mark.parametrize(("begin", "end"), [
    ("<<EOF", "EOF"), ("<<'EOF'", "EOF"), ('<<"A-1"', "A-1"), ("<<-EOF", "\tEOF"),
    ("3<<EOF", "EOF"), ("<<\\EOF", "EOF")])
def test_here_documents_end_at_their_line(begin, end):
    text = f"FROM x\nRUN cat {begin} > /f\n USER a\\\n# c\n\n{end} \n{end}\nUSER me"
    one = list(instructions(text))[1]
    assert one.documents == f" USER a\\\n# c\n\n{end} \n{end.strip()}"
    assert [name for name, _ in read(text)] == ["FROM", "RUN", "USER"]


def printed(text: str) -> tuple[str, str]:
    """What a shell prints for `eval`, or for the file of a script, of the last instruction; and all of its line."""
    line = rewritten(text)[-1]
    command = re.search("printf %b '[^']*'", line)[0]
    return subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout.decode(), line


@pytest.mark.parametrize(("lines", "script"), [
    ("<<X\necho 1\nX", "echo 1\n"), ("<<-X\n\techo '1'\n\n\tX", "echo '1'\n\n"),
    ("<<X\nprintf '\\n' \\\n 'é\\0047' \"$(a <<< b)\"\r\nX\r", "printf '\\n' \\\n 'é\\0047' \"$(a <<< b)\"\r\n"),
    ("cat <<A - <<-'B' > f\n$x\nA\n\tb\n\tB", "cat <<A - <<-'B' > f\n$x\nA\n\tb\nB")])
def test_a_here_document_is_what_the_shell_of_its_stage_evaluates(lines, script):
    found, line = printed(f"FROM x\nRUN {lines}")
    assert found == script
    assert line.startswith('RUN eval "$(printf')
    assert "<<" not in line


def test_a_script_of_another_program_is_a_file():
    found, line = printed("FROM x\nRUN <<X\n#!/usr/bin/env python3\nprint(1)\nX")
    assert (found, "eval" in line) == ("#!/usr/bin/env python3\nprint(1)\n", False)


def test_options_of_run_stay_outside_of_the_script():
    (line,) = rewritten("FROM x\nRUN --mount=type=cache,target=/c --network=none <<X\necho\nX")
    assert line.startswith("RUN --mount=type=cache,target=/c --network=none eval ")


def test_other_instructions_are_handed_on_in_one_line():
    lines = ("RUN a && \\\n  # c\n\n  'b \\\n c'\nENV A=\"b  c\" \\\n  D=e\nCOPY [\"a b\", \"/c\"]\nONBUILD RUN x\n"
             'SHELL ["b"]')
    assert rewritten(f"FROM x\n# c\n\n{lines}\n") == [
        "RUN a &&   'b  c'", 'ENV A="b  c"   D=e', 'COPY ["a b", "/c"]', "ONBUILD RUN x", 'SHELL ["b"]']
    assert dockerfiles.rewritten("# escape=`\nFROM x y\nRUN a `\n b", {}).splitlines() == [
        "# escape=`", "FROM docker.io/library/x:latest y", "RUN a  b"]


@pytest.mark.parametrize(("text", "images"), [
    ("ARG TAG=24.04\nFROM ubuntu:${TAG} AS one\nFROM ghcr.io/a/b\nFROM One\nFROM scratch",
     ["ubuntu:24.04", "ghcr.io/a/b"]),
    ("ARG A='1' B=x:$A\nARG A=2\nFROM $B\nFROM x:$A", ["x:1", "x:2"]),
    ("FROM x\nARG V=7\nFROM y:${V:-1}", ["x", "y:1"]), ("ARG V\nFROM x:${V:-1}${V-2}${V:+3}${V+4}", ["x:12"]),
    ("ARG V=\nFROM x:1${V:-2}${V-3}${V:+4}${V+5}", ["x:125"]),
    ("FROM x AS one\nFROM y\nCOPY --from=tool:1 a b\nCOPY --from=ONE a b\nCOPY --from=0 a b\nCOPY --from=7 a b",
     ["x", "y", "tool:1", "7"]),
    ("FROM x\nRUN --mount=type=bind,from=tool:1,target=/t --mount=from=x2 ls\nRUN --mount=type=cache,target=/c ls",
     ["x", "tool:1", "x2"]),
    ("FROM x\nRUN echo --from=a\nADD --chown=1 b c\nCOPY --chown=1 --from='t:1' b c", ["x", "t:1"])])
def test_images_are_what_is_no_stage(text, images):
    assert dockerfiles.bases(text) == images
    assert dockerfiles.refusal(text) is None


def test_a_given_image_has_all_its_names():
    named = ("docker.io/library/ubuntu:latest", "ubuntu", "library/ubuntu", "ubuntu:24.04", "ghcr.io/a/ubuntu")
    text = "\n".join(f"FROM {name}" for name in named)
    assert dockerfiles.given_bases(text, {"ubuntu": "base.tar"}) == dict.fromkeys(named[:3], "base.tar")
    assert dockerfiles.given_bases("FROM u@sha256:1", {"docker.io/library/u@sha256:1": "x"}) == {"u@sha256:1": "x"}


def test_names_of_images_and_stages_are_replaced():
    given = {"ubuntu:24.04": "localhost/u", "tool:1": "localhost/t"}
    text = ("FROM ubuntu:24.04 as One\nCOPY --chown=1 --from=tool:1 \\\n  a b\n"
            "RUN --mount=type=bind,from=tool:1,target=/t ls\n"
            "RUN --mount=from=a/b,target=/t <<X\nls\nX\nFROM oNE\nCOPY --from=one tool:1 b\nCOPY --from=0 a b")
    assert dockerfiles.rewritten(text, given).splitlines() == [
        "# escape=\\", "FROM localhost/u as One", "COPY --chown=1 --from=localhost/t   a b",
        "RUN --mount=type=bind,from=localhost/t,target=/t ls",
        "RUN --mount=from=docker.io/a/b:latest,target=/t eval \"$(printf %b 'ls\\n')\"", "FROM One",
        "COPY --from=One tool:1 b", "COPY --from=0 a b"]


def test_an_image_that_copy_names_is_in_the_identity(tmp_path):
    write_task(tmp_path / "tasks" / "one", environment__Dockerfile="FROM x\nCOPY --from=tool:1 /a /b\n")
    keys = []
    for content in ("1", "1", "2"):
        (tmp_path / "tool.tar").write_text(content)
        (one,) = environments([str(tmp_path / "tasks")], {"tool:1": str(tmp_path / "tool.tar")}, str(tmp_path))
        keys.append(one.key)
    assert [before == after for before, after in pairwise(keys)] == [True, False]
    assert one.bases == {"tool:1": tmp_path / "tool.tar"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_platforms_of_this_machine_are_accepted_and_others_refused(monkeypatch, machine):
    monkeypatch.setattr("platform.machine", lambda: machine)
    here, there = ("amd64", "arm64") if machine == "x86_64" else ("arm64", "amd64")
    for name in (f"linux/{here}", here, "$BUILDPLATFORM", "${TARGETPLATFORM}", "linux/$TARGETARCH", machine):
        text = f"FROM --platform={name} x:$TARGETARCH\n"
        assert dockerfiles.refusal(text) is None
        assert dockerfiles.rewritten(text, {}).splitlines()[1:] == [f"FROM docker.io/library/x:{here}"]
    for name in (f"linux/{there}", there, f"windows/{here}", "linux/arm/v7", ""):
        assert f"--platform={name}" in dockerfiles.refusal(f"ARG P={name}\nFROM --platform=$P x")
    assert (dockerfiles.refusal("FROM --platform=linux/arm64/v8 x") is None) == (here == "arm64")


@pytest.mark.parametrize(("text", "reason"), [
    ("FROM ${A#b}", "${A#b}"), ("FROM x\nCOPY --from=$A b c", "--from=$A"), ("FROM --pull=always x", "--pull"),
    ("FROM x\nRUN --mount=type=bind,from=$A,target=/b ls", "from=$A"), ("FROM x\nADD <<EOF /a\ntext\nEOF", "ADD <<EOF"),
    ("FROM x\nONBUILD RUN <<EOF\ntext\nEOF", "ONBUILD RUN <<EOF"), ("FROM x\nRUN echo " + "a" * 65_527, "65536 bytes"),
    ("FROM x\nRUN <<EOF\n" + "echo a\n" * 9_000 + "EOF", "bytes"),
    ("FROM x\nRUN " + "a \\\n" * 40_000, "bytes"), ("ARG A=x", "FROM"), ("FROM x\nRUN echo " + "a" * 65_526, None)])
def test_what_buildah_would_build_otherwise_is_refused(tmp_path, text, reason):
    found = [dockerfiles.refusal(text), read_task(write_task(tmp_path, environment__Dockerfile=text)).unsupported]
    assert found == [None, None] if reason is None else all(reason in one for one in found)
